//! An encrypted connection of the control thread: a socket whose bytes are records.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::{Opener, Sealer};

/// What is read at once of what few and small messages need.
const READ: usize = 2 << 10;

/// What waits for the socket at most before it is written.
const WRITE: usize = 64 << 10;

/// A stream that encrypts what is written and decrypts what is read. What was written reaches the other end with a flush.
#[derive(Debug)]
pub(crate) struct SealedStream<S> {
    stream: S,
    sealer: Sealer,
    opener: Opener,
    /// Records on their way to the socket, of which it has taken so many bytes.
    out: Vec<u8>,
    written: usize,
}

impl<S> SealedStream<S> {
    /// Over a stream whose ends have shaken hands.
    pub(crate) fn new(stream: S, (sealer, opener): (Sealer, Opener)) -> Self {
        Self { stream, sealer, opener, out: Vec::new(), written: 0 }
    }
}

impl<S: AsyncWrite + Unpin> SealedStream<S> {
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

impl<S: AsyncRead + Unpin> AsyncRead for SealedStream<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            if let Some(count) = this.opener.take(into.initialize_unfilled())? {
                into.advance(count);
                return Poll::Ready(Ok(()));
            }
            let mut came = ReadBuf::new(this.opener.room(READ));
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut came))?;
            match came.filled().len() {
                0 if this.opener.is_between_records() => return Poll::Ready(Ok(())),
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                count => this.opener.put(count),
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for SealedStream<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if !this.out.is_empty() {
            ready!(this.write_out(context))?;
        }
        let count = this.sealer.records(bytes, &mut this.out, WRITE)?;
        // What the socket does not take now goes with the next write or flush; these bytes are taken.
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
    fn what_is_written_is_read_both_ways_over_a_narrow_pipe() {
        on_a_runtime(async {
            let [caller, answerer] = pair();
            let (near, far) = tokio::io::duplex(1000);
            let (mut near, mut far) = (SealedStream::new(near, caller), SealedStream::new(far, answerer));
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
                let mut near = SealedStream::new(near, caller);
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
                    SealedStream::new(tokio::io::join(records.as_slice(), tokio::io::sink()), answerer);
                let error = far.read_to_end(&mut Vec::new()).await.expect_err("not what was sent");
                assert_eq!(is_altered(&error), !cut, "{error}");
            }
        });
    }
}
