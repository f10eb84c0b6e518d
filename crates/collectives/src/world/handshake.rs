//! The handshake of [`super::noise`] over connections: those of the data path wait, those of the control thread do not.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::encryption::Credentials;
use super::hello::{HELLO, Hello};
use super::noise::{Answerer, Caller, Ends, Refusal, Turned};
use crate::control::Connection;
use crate::sealed::SealedStream;
use crate::transport::Wire;

/// A broken connection, in words.
#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn lost(error: std::io::Error) -> Refusal {
    format!("the connection broke: {error}")
}

/// A socket whose reads and writes end at one time, however many there are: who sends byte by byte has no longer.
struct Until<'a>(&'a TcpStream, Instant);

impl Until<'_> {
    fn left(&self) -> Result<std::time::Duration, Refusal> {
        let left = self.1.saturating_duration_since(Instant::now());
        if left.is_zero() { Err("it did not introduce itself in time".to_owned()) } else { Ok(left) }
    }

    fn read(&mut self, mut into: &mut [u8]) -> Result<(), Refusal> {
        while !into.is_empty() {
            self.0.set_read_timeout(Some(self.left()?)).map_err(lost)?;
            match self.0.read(into) {
                Ok(0) => return Err(lost(ErrorKind::UnexpectedEof.into())),
                Ok(count) => into = &mut into[count..],
                Err(error) if matches!(error.kind(), ErrorKind::Interrupted) => {}
                // The next round says so.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(())
    }

    /// What a handshake sends is so little that a new connection always has room for it.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.0.set_write_timeout(Some(self.left()?)).map_err(lost)?;
        self.0.write_all(bytes).map_err(lost)
    }
}

/// A connection of operations after its handshake.
fn wire(stream: TcpStream, sealed: bool, ends: Option<Ends>) -> Result<Wire, Refusal> {
    stream.set_write_timeout(None).map_err(lost)?;
    Ok(match ends.filter(|_| sealed) {
        Some((sealer, opener)) => Wire::Sealed(Box::new((sealer, opener)), stream),
        None => Wire::Plain(stream),
    })
}

/// Opens a connection of operations that is connected already; until then it must have been accepted.
pub(super) fn call(
    stream: TcpStream,
    credentials: &Credentials,
    hello: Hello,
    until: Instant,
) -> Result<Wire, Refusal> {
    let mut socket = Until(&stream, until);
    let (caller, first) = Caller::new(credentials, hello)?;
    socket.write(&first)?;
    let mut verdict = [0; 1];
    socket.read(&mut verdict)?;
    let mut message = vec![0; caller.hear(verdict[0])?];
    socket.read(&mut message)?;
    let (proof, ends) = caller.finish(&message)?;
    socket.write(&proof)?;
    wire(stream, credentials.seals(hello.plane), ends)
}

/// Answers a connection of operations: what the caller says of it, if `is_meant` finds nothing wrong with that.
pub(super) fn answer(
    stream: TcpStream,
    credentials: &Credentials,
    until: Instant,
    is_meant: impl FnOnce(&Hello) -> Result<(), Refusal>,
) -> Result<(Hello, Wire), Refusal> {
    let mut socket = Until(&stream, until);
    let turn_away = |socket: &mut Until<'_>, turned: Turned| {
        // It may have gone.
        let _ = turned.answer.map(|answer| socket.write(&[answer]));
        turned.why
    };
    let mut hello = [0; HELLO];
    socket.read(&mut hello)?;
    let (mut answerer, follows) =
        Answerer::new(credentials, &hello, is_meant).map_err(|turned| turn_away(&mut socket, turned))?;
    let mut message = vec![0; follows];
    socket.read(&mut message)?;
    let (answer, follows) = answerer.answer(&message).map_err(|turned| turn_away(&mut socket, turned))?;
    socket.write(&answer)?;
    message.resize(follows, 0);
    socket.read(&mut message)?;
    let (hello, ends) = answerer.finish(&message)?;
    Ok((hello, wire(stream, hello.sealed, ends)?))
}

/// A connection of the control thread after its handshake.
fn connection(stream: tokio::net::TcpStream, sealed: bool, ends: Option<Ends>) -> Connection {
    match ends.filter(|_| sealed) {
        Some(ends) => Box::new(SealedStream::new(stream, ends)),
        None => Box::new(stream),
    }
}

/// Opens a connection of the control thread that is connected already.
pub(super) async fn call_async(
    mut stream: tokio::net::TcpStream,
    credentials: &Credentials,
    hello: Hello,
) -> Result<Connection, Refusal> {
    let (caller, first) = Caller::new(credentials, hello)?;
    stream.write_all(&first).await.map_err(lost)?;
    let verdict = stream.read_u8().await.map_err(lost)?;
    let mut message = vec![0; caller.hear(verdict)?];
    stream.read_exact(&mut message).await.map_err(lost)?;
    let (proof, ends) = caller.finish(&message)?;
    stream.write_all(&proof).await.map_err(lost)?;
    Ok(connection(stream, credentials.seals(hello.plane), ends))
}

/// Answers a connection of the control thread: what the caller says of it, if `is_meant` finds nothing wrong with that.
pub(super) async fn answer_async(
    mut stream: tokio::net::TcpStream,
    credentials: &Credentials,
    is_meant: impl FnOnce(&Hello) -> Result<(), Refusal>,
) -> Result<(Hello, Connection), Refusal> {
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello).await.map_err(lost)?;
    let begun = Answerer::new(credentials, &hello, is_meant);
    let (mut answerer, follows) = match begun {
        Ok(begun) => begun,
        Err(turned) => return Err(turn_away(&mut stream, turned).await),
    };
    let mut message = vec![0; follows];
    stream.read_exact(&mut message).await.map_err(lost)?;
    let (answer, follows) = match answerer.answer(&message) {
        Ok(answer) => answer,
        Err(turned) => return Err(turn_away(&mut stream, turned).await),
    };
    stream.write_all(&answer).await.map_err(lost)?;
    message.resize(follows, 0);
    stream.read_exact(&mut message).await.map_err(lost)?;
    let (hello, ends) = answerer.finish(&message)?;
    Ok((hello, connection(stream, hello.sealed, ends)))
}

/// Tells a caller why it is not let in, as far as it is told.
async fn turn_away(stream: &mut tokio::net::TcpStream, turned: Turned) -> Refusal {
    if let Some(answer) = turned.answer {
        // It may have gone.
        let _ = stream.write_all(&[answer]).await;
    }
    turned.why
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::super::encryption::Encryption;
    use super::super::hello::Plane;
    use super::super::secret::Secret;
    use super::*;

    #[test]
    fn who_dawdles_or_speaks_something_else_is_refused_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let secret = Some(Secret::new(&[3; 16]).expect("long"));
        let ours = Credentials { secret, encryption: Encryption::All };
        let patience = Duration::from_millis(300);
        let hello = Hello {
            plane: Plane::Data,
            has_secret: true,
            sealed: true,
            lane: 0,
            token: 1,
            caller: 1,
            callee: 0,
            world_size: 2,
        };
        let (_, first) = Caller::new(&ours, hello).expect("begun");
        // Nothing; something else; a right beginning byte by byte, which would take its second; half a handshake.
        let cases: [(&[u8], Duration, &str); 4] = [
            (b"", Duration::ZERO, "in time"),
            (&[b'G'; 100], Duration::ZERO, "not of this protocol"),
            (&first, Duration::from_millis(10), "in time"),
            (&first[..60], Duration::ZERO, "in time"),
        ];
        for (bytes, pause, words) in cases {
            let stranger = TcpStream::connect(address).expect("it listens");
            let (stream, _) = listener.accept().expect("it called");
            let bytes = bytes.to_vec();
            let saying = std::thread::spawn(move || {
                for part in bytes.chunks(if pause.is_zero() { 200 } else { 1 }) {
                    if (&stranger).write_all(part).is_err() {
                        break;
                    }
                    std::thread::sleep(pause);
                }
                stranger
            });
            let start = Instant::now();
            let refused = answer(stream, &ours, start + patience, |_| Ok(())).expect_err("a stranger");
            assert!(refused.contains(words), "{refused}");
            assert!(start.elapsed() < 4 * patience, "it took {:?}", start.elapsed());
            drop(saying.join().expect("no panic"));
        }
    }
}
