//! Encrypted connections: TLS 1.3 (rustls), with certificates at both ends.
//!
//! All ranks have certificates of one authority of their own, in the name `phalanx`, and refuse any other. Memory that ranks
//! of one host share needs none; every TCP connection of the world is encrypted.

use std::path::{Path, PathBuf};

use crate::error::{CommError, Result};

/// Where the certificates of a rank are: PEM files.
///
/// ```sh
/// openssl req -x509 -newkey ed25519 -nodes -days 365 -subj /CN=authority -keyout authority.key -out authority.pem
/// openssl req -newkey ed25519 -nodes -subj /CN=phalanx -addext subjectAltName=DNS:phalanx -keyout rank.key -out rank.csr
/// openssl x509 -req -in rank.csr -CA authority.pem -CAkey authority.key -days 365 -copy_extensions copy -out rank.pem
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tls {
    /// The rank's certificate, for the name `phalanx`; ranks may share one.
    pub certificate: PathBuf,
    /// The key of that certificate.
    pub key: PathBuf,
    /// The authority that has signed all ranks' certificates.
    pub authority: PathBuf,
}

fn wrong(path: &Path, problem: impl std::fmt::Display) -> CommError {
    CommError::Argument { operation: "TLS", problem: format!("{}: {problem}", path.display()) }
}

#[cfg(feature = "tls")]
pub(super) use with::TlsConfigs;
#[cfg(not(feature = "tls"))]
pub(super) use without::TlsConfigs;

#[cfg(not(feature = "tls"))]
mod without {
    use super::{CommError, Result, Tls, wrong};

    /// Nothing: this build cannot encrypt.
    #[derive(Clone)]
    pub(in crate::world) enum TlsConfigs {}

    impl TlsConfigs {
        pub(in crate::world) fn read(tls: &Tls) -> Result<Self, CommError> {
            Err(wrong(
                &tls.certificate,
                "this program was built without the feature `tls` of phalanx-collectives",
            ))
        }
    }
}

#[cfg(feature = "tls")]
mod with {
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject as _;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use rustls::server::WebPkiClientVerifier;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};

    use super::{CommError, Result, Tls, wrong};

    /// What this rank shows and asks for, as the end that calls and as the one that answers.
    #[derive(Clone)]
    pub(in crate::world) struct TlsConfigs {
        pub(in crate::world) caller: Arc<ClientConfig>,
        pub(in crate::world) answerer: Arc<ServerConfig>,
    }

    impl TlsConfigs {
        pub(in crate::world) fn read(tls: &Tls) -> Result<Self, CommError> {
            let chain: Vec<_> = CertificateDer::pem_file_iter(&tls.certificate)
                .and_then(Iterator::collect)
                .map_err(|error| wrong(&tls.certificate, error))?;
            let key = PrivateKeyDer::from_pem_file(&tls.key).map_err(|error| wrong(&tls.key, error))?;
            let mut roots = RootCertStore::empty();
            for root in
                CertificateDer::pem_file_iter(&tls.authority).map_err(|error| wrong(&tls.authority, error))?
            {
                let root = root.map_err(|error| wrong(&tls.authority, error))?;
                roots.add(root).map_err(|error| wrong(&tls.authority, error))?;
            }
            let roots = Arc::new(roots);
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let versions = &[&rustls::version::TLS13];
            let of_key = |error: rustls::Error| wrong(&tls.key, error);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
                .build()
                .map_err(|error| wrong(&tls.authority, error))?;
            let answerer = ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(versions)
                .map_err(of_key)?
                .with_client_cert_verifier(verifier)
                .with_single_cert(chain.clone(), key.clone_key())
                .map_err(of_key)?;
            let caller = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(versions)
                .map_err(of_key)?
                .with_root_certificates(roots)
                .with_client_auth_cert(chain, key)
                .map_err(of_key)?;
            Ok(Self { caller: Arc::new(caller), answerer: Arc::new(answerer) })
        }

        /// The name in all certificates.
        pub(in crate::world) fn name() -> ServerName<'static> {
            ServerName::DnsName(
                rustls::pki_types::DnsName::try_from_str("phalanx")
                    .unwrap_or_else(|_| unreachable!("a plain name")),
            )
        }

        pub(in crate::world) fn call(&self) -> std::io::Result<rustls::Connection> {
            let connection = ClientConnection::new(self.caller.clone(), Self::name());
            connection.map(Into::into).map_err(std::io::Error::other)
        }

        pub(in crate::world) fn answer(&self) -> std::io::Result<rustls::Connection> {
            ServerConnection::new(self.answerer.clone()).map(Into::into).map_err(std::io::Error::other)
        }
    }
}
