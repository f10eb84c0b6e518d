//! The handshake of [`super::noise`] over sockets: blocking for data connections, asynchronous on the control thread.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::encryption::Credentials;
use super::hello::{HELLO, Hello};
use super::noise::{CipherPair, Initiator, Refusal, Rejection, Responder};
use crate::control::Connection;
use crate::encrypted::EncryptedStream;
use crate::transport::Wire;

/// Describes a broken connection.
#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn lost(error: std::io::Error) -> Refusal {
    format!("the connection broke: {error}")
}

/// A socket whose reads and writes share one deadline, so that a slow sender cannot extend it.
struct DeadlineSocket<'a>(&'a TcpStream, Instant);

impl DeadlineSocket<'_> {
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
                // The next round returns the error.
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) => return Err(lost(error)),
            }
        }
        Ok(())
    }

    /// Writes a message of a handshake. It is so short that a new connection always has room for it.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.0.set_write_timeout(Some(self.left()?)).map_err(lost)?;
        self.0.write_all(bytes).map_err(lost)
    }
}

/// Returns a data connection after its handshake.
fn wire(stream: TcpStream, encrypted: bool, ciphers: Option<CipherPair>) -> Result<Wire, Refusal> {
    stream.set_write_timeout(None).map_err(lost)?;
    Ok(match ciphers.filter(|_| encrypted) {
        Some((encryptor, decryptor)) => Wire::Encrypted(Box::new((encryptor, decryptor)), stream),
        None => Wire::Plain(stream),
    })
}

/// Shakes hands as the initiator of a data connection, until a deadline.
pub(crate) fn call(
    stream: TcpStream,
    credentials: &Credentials,
    hello: Hello,
    until: Instant,
) -> Result<Wire, Refusal> {
    let mut socket = DeadlineSocket(&stream, until);
    let (initiator, first) = Initiator::new(credentials, hello)?;
    socket.write(&first)?;
    let mut verdict = [0; 1];
    socket.read(&mut verdict)?;
    let mut message = vec![0; initiator.read_verdict(verdict[0])?];
    socket.read(&mut message)?;
    let (proof, ciphers) = initiator.finish(&message)?;
    socket.write(&proof)?;
    wire(stream, credentials.encrypts(hello.purpose), ciphers)
}

/// Shakes hands as the responder of a data connection, until a deadline. Returns the hello, unless `check` refuses it.
pub(crate) fn answer(
    stream: TcpStream,
    credentials: &Credentials,
    until: Instant,
    check: impl FnOnce(&Hello) -> Result<(), Refusal>,
) -> Result<(Hello, Wire), Refusal> {
    let mut socket = DeadlineSocket(&stream, until);
    let turn_away = |socket: &mut DeadlineSocket<'_>, rejection: Rejection| {
        // The initiator may have gone.
        let _ = rejection.answer.map(|answer| socket.write(&[answer]));
        rejection.why
    };
    let mut hello = [0; HELLO];
    socket.read(&mut hello)?;
    let (mut responder, follows) =
        Responder::new(credentials, &hello, check).map_err(|rejection| turn_away(&mut socket, rejection))?;
    let mut message = vec![0; follows];
    socket.read(&mut message)?;
    let (answer, follows) =
        responder.answer(&message).map_err(|rejection| turn_away(&mut socket, rejection))?;
    socket.write(&answer)?;
    message.resize(follows, 0);
    socket.read(&mut message)?;
    let (hello, ciphers) = responder.finish(&message)?;
    Ok((hello, wire(stream, hello.encrypted, ciphers)?))
}

/// Returns a connection of the control thread after its handshake.
fn connection(stream: tokio::net::TcpStream, encrypted: bool, ciphers: Option<CipherPair>) -> Connection {
    match ciphers.filter(|_| encrypted) {
        Some(ciphers) => Box::new(EncryptedStream::new(stream, ciphers)),
        None => Box::new(stream),
    }
}

/// Shakes hands as the initiator of a connection of the control thread.
pub(crate) async fn call_async(
    mut stream: tokio::net::TcpStream,
    credentials: &Credentials,
    hello: Hello,
) -> Result<Connection, Refusal> {
    let (initiator, first) = Initiator::new(credentials, hello)?;
    stream.write_all(&first).await.map_err(lost)?;
    let verdict = stream.read_u8().await.map_err(lost)?;
    let mut message = vec![0; initiator.read_verdict(verdict)?];
    stream.read_exact(&mut message).await.map_err(lost)?;
    let (proof, ciphers) = initiator.finish(&message)?;
    stream.write_all(&proof).await.map_err(lost)?;
    Ok(connection(stream, credentials.encrypts(hello.purpose), ciphers))
}

/// Shakes hands as the responder of a connection of the control thread. Returns the hello, unless `check` refuses it.
pub(crate) async fn answer_async(
    mut stream: tokio::net::TcpStream,
    credentials: &Credentials,
    check: impl FnOnce(&Hello) -> Result<(), Refusal>,
) -> Result<(Hello, Connection), Refusal> {
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello).await.map_err(lost)?;
    let begun = Responder::new(credentials, &hello, check);
    let (mut responder, follows) = match begun {
        Ok(begun) => begun,
        Err(rejection) => return Err(turn_away(&mut stream, rejection).await),
    };
    let mut message = vec![0; follows];
    stream.read_exact(&mut message).await.map_err(lost)?;
    let (answer, follows) = match responder.answer(&message) {
        Ok(answer) => answer,
        Err(rejection) => return Err(turn_away(&mut stream, rejection).await),
    };
    stream.write_all(&answer).await.map_err(lost)?;
    message.resize(follows, 0);
    stream.read_exact(&mut message).await.map_err(lost)?;
    let (hello, ciphers) = responder.finish(&message)?;
    Ok((hello, connection(stream, hello.encrypted, ciphers)))
}

/// Rejects an initiator and sends it the answer, if there is one.
async fn turn_away(stream: &mut tokio::net::TcpStream, rejection: Rejection) -> Refusal {
    if let Some(answer) = rejection.answer {
        // The initiator may have gone.
        let _ = stream.write_all(&[answer]).await;
    }
    rejection.why
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::time::Duration;

    use super::super::encryption::Encryption;
    use super::super::hello::Purpose;
    use super::super::secret::Secret;
    use super::*;

    #[test]
    fn slow_callers_and_other_protocols_are_refused_in_time() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let secret = Some(Secret::new(&[3; 16]).expect("long"));
        let ours = Credentials { secret, encryption: Encryption::All };
        let limit = Duration::from_millis(300);
        let hello = Hello { token: 1, ..Hello::between(Purpose::Data, 1, 0, 2) };
        let (_, first) = Initiator::new(&ours, hello).expect("begun");
        // Silence; another protocol; a valid beginning byte by byte, which would take over a second; half a handshake.
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
            let refused = answer(stream, &ours, start + limit, |_| Ok(())).expect_err("a stranger");
            assert!(refused.contains(words), "{refused}");
            assert!(start.elapsed() < 4 * limit, "it took {:?}", start.elapsed());
            drop(saying.join().expect("no panic"));
        }
    }
}
