//! An encrypted connection of the control thread.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Decryptor, Encryptor};

/// Bytes that are read at a time; control messages are few and small.
const READ: usize = 2 << 10;

/// The most bytes that wait for the socket.
const WRITE: usize = 64 << 10;

/// A stream that encrypts written bytes and decrypts read ones. Written bytes reach the other end with a flush.
#[derive(Debug)]
pub(crate) struct EncryptedStream<S> {
    stream: S,
    encryptor: Encryptor,
    decryptor: Decryptor,
    /// Records on their way to the socket.
    out: Vec<u8>,
    /// Bytes of `out` that the socket has taken.
    written: usize,
}

impl<S> EncryptedStream<S> {
    /// Wraps a stream whose ends have shaken hands.
    pub(crate) fn new(stream: S, (encryptor, decryptor): (Encryptor, Decryptor)) -> Self {
        Self { stream, encryptor, decryptor, out: Vec::new(), written: 0 }
    }
}

impl<S: AsyncWrite + Unpin> EncryptedStream<S> {
    fn write_out(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.out.len() {
            let written = Pin::new(&mut self.stream).poll_write(context, &self.out[self.written..]);
            match ready!(written)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        self.out.clear();
        self.written = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for EncryptedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if let Some(count) = this.decryptor.take(into.initialize_unfilled())? {
                into.advance(count);
                return Poll::Ready(Ok(()));
            }
            let mut came = ReadBuf::new(this.decryptor.room(READ));
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut came))?;
            match came.filled().len() {
                0 if this.decryptor.is_between_records() => return Poll::Ready(Ok(())),
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                count => this.decryptor.put(count),
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for EncryptedStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if !this.out.is_empty() {
            ready!(this.write_out(context))?;
        }
        let count = this.encryptor.records(bytes, &mut this.out, WRITE)?;
        // The next write or flush sends the bytes that the socket does not take now.
        match this.write_out(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(count)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.write_out(context))?;
        Pin::new(&mut this.stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.write_out(context))?;
        Pin::new(&mut this.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::is_altered;
    use super::super::tests::pair;
    use super::*;

    fn on_a_runtime<R>(work: impl Future<Output = R>) -> R {
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(work)
    }

    #[test]
    fn written_bytes_are_read_both_ways_over_a_narrow_pipe() {
        on_a_runtime(async {
            let [caller, answerer] = pair();
            let (near, far) = tokio::io::duplex(1000);
            let (mut near, mut far) =
                (EncryptedStream::new(near, caller), EncryptedStream::new(far, answerer));
            let sent: Vec<u8> = (0..300_000_u32).map(|at| (at / 3) as u8).collect();
            let writing = async {
                near.write_all(&sent).await?;
                near.flush().await?;
                near.shutdown().await
            };
            let mut heard = Vec::new();
            let (written, read) = tokio::join!(writing, far.read_to_end(&mut heard));
            written.expect("a reader");
            assert_eq!(read.expect("a writer"), sent.len());
            assert!(heard == sent);
            let mut short = [0; 4];
            let (written, read) = tokio::join!(
                async {
                    far.write_all(b"back").await?;
                    far.flush().await
                },
                near.read_exact(&mut short)
            );
            written.expect("a reader");
            read.expect("a writer");
            assert_eq!(&short, b"back");
        });
    }

    #[test]
    fn an_altered_byte_and_an_early_end_are_errors_of_their_own() {
        on_a_runtime(async {
            for cut in [false, true] {
                let [caller, answerer] = pair();
                let (near, mut wire) = tokio::io::duplex(1 << 20);
                let mut near = EncryptedStream::new(near, caller);
                near.write_all(b"a sum").await.expect("room");
                near.shutdown().await.expect("room");
                let mut records = Vec::new();
                wire.read_to_end(&mut records).await.expect("written");
                if cut {
                    records.truncate(records.len() - 1);
                } else {
                    records[5] ^= 4;
                }
                let mut far =
                    EncryptedStream::new(tokio::io::join(records.as_slice(), tokio::io::sink()), answerer);
                let error = far.read_to_end(&mut Vec::new()).await.expect_err("not what was sent");
                assert_eq!(is_altered(&error), !cut, "{error}");
            }
        });
    }
}
