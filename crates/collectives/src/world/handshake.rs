//! The handshake of [`super::secret`] over connections: those of the data path wait, those of the control plane do not.

use std::io::{Read, Write};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::secret::{Answerer, CHALLENGE, Caller, HELLO, PROOF, Purpose, Refusal, Secret, VERDICT};
use super::tls::TlsConfigs;
use crate::control::Connection;

/// A connection ready for the handshake: encrypted, if that is wanted, in the role of a caller or of who answers.
#[cfg_attr(not(feature = "tls"), allow(unused_variables, clippy::unused_async))]
pub(super) async fn control(
    stream: TcpStream,
    tls: Option<&TlsConfigs>,
    calls: bool,
) -> Result<Connection, Refusal> {
    match tls {
        None => Ok(Box::new(stream)),
        #[cfg(feature = "tls")]
        Some(ends) if calls => {
            let connector = tokio_rustls::TlsConnector::from(ends.caller.clone());
            Ok(Box::new(connector.connect(TlsConfigs::name(), stream).await.map_err(lost)?))
        }
        #[cfg(feature = "tls")]
        Some(ends) => {
            let acceptor = tokio_rustls::TlsAcceptor::from(ends.answerer.clone());
            Ok(Box::new(acceptor.accept(stream).await.map_err(lost)?))
        }
        #[cfg(not(feature = "tls"))]
        Some(never) => match *never {},
    }
}

/// A broken connection, in words.
#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn lost(error: std::io::Error) -> Refusal {
    format!("the connection broke: {error}")
}

/// Opens a data connection that is connected already.
pub(super) fn call(stream: &mut (impl Read + Write), secret: Option<&Secret>) -> Result<(), Refusal> {
    let mut caller = Caller::new(secret, Purpose::Data).map_err(lost)?;
    stream.write_all(&caller.hello()).map_err(lost)?;
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge).map_err(lost)?;
    stream.write_all(&caller.prove(&challenge)?).map_err(lost)?;
    let mut verdict = [0; VERDICT];
    stream.read_exact(&mut verdict).map_err(lost)?;
    caller.check(&verdict)
}

/// Answers a data connection.
pub(super) fn answer(stream: &mut (impl Read + Write), secret: Option<&Secret>) -> Result<(), Refusal> {
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello).map_err(lost)?;
    let (answerer, challenge) = match Answerer::new(secret, Purpose::Data, &hello) {
        Ok(begun) => begun,
        Err((why, challenge)) => {
            if let Some(challenge) = challenge {
                stream.write_all(&challenge).map_err(lost)?;
            }
            return Err(why);
        }
    };
    stream.write_all(&challenge).map_err(lost)?;
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof).map_err(lost)?;
    let (verdict, judged) = answerer.judge(&proof);
    stream.write_all(&verdict).map_err(lost)?;
    judged
}

/// Opens a connection of the control plane or of the mail that is connected already.
pub(super) async fn call_async(
    stream: &mut Connection,
    secret: Option<&Secret>,
    purpose: Purpose,
) -> Result<(), Refusal> {
    let mut caller = Caller::new(secret, purpose).map_err(lost)?;
    stream.write_all(&caller.hello()).await.map_err(lost)?;
    let mut challenge = [0; CHALLENGE];
    stream.read_exact(&mut challenge).await.map_err(lost)?;
    stream.write_all(&caller.prove(&challenge)?).await.map_err(lost)?;
    let mut verdict = [0; VERDICT];
    stream.read_exact(&mut verdict).await.map_err(lost)?;
    caller.check(&verdict)
}

/// Answers a connection of the control plane or of the mail.
pub(super) async fn answer_async(
    stream: &mut Connection,
    secret: Option<&Secret>,
    purpose: Purpose,
) -> Result<(), Refusal> {
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello).await.map_err(lost)?;
    let (answerer, challenge) = match Answerer::new(secret, purpose, &hello) {
        Ok(begun) => begun,
        Err((why, challenge)) => {
            if let Some(challenge) = challenge {
                stream.write_all(&challenge).await.map_err(lost)?;
            }
            return Err(why);
        }
    };
    stream.write_all(&challenge).await.map_err(lost)?;
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof).await.map_err(lost)?;
    let (verdict, judged) = answerer.judge(&proof);
    stream.write_all(&verdict).await.map_err(lost)?;
    judged
}
