//! TLS certificates of connections. Used by `http`.

use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::error::Error;

/// How certificates are checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Tls {
    /// Without TLS.
    None,
    System,
    PipCert,
    Unchecked,
}

/// The TLS configuration for `tls`; `cert` is pip's setting.
pub(crate) fn config(tls: Tls, cert: Option<&Path>) -> Result<Arc<ClientConfig>, Error> {
    let failed =
        |e: rustls::Error| Error::Setting { setting: "TLS".into(), what: format!("cannot be set up: {e}") };
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
    let builder = match (tls, cert) {
        (Tls::None, _) => builder.with_root_certificates(RootCertStore::empty()),
        (Tls::Unchecked, _) => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        }
        (Tls::PipCert, Some(path)) => builder.with_root_certificates(certificates(path)?),
        (Tls::PipCert | Tls::System, _) => builder.with_platform_verifier().map_err(failed)?,
    };
    Ok(Arc::new(builder.with_no_client_auth()))
}

fn certificates(path: &Path) -> Result<RootCertStore, Error> {
    let pem = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok));
    if roots.is_empty() {
        return Err(Error::Setting {
            setting: format!("pip's 'cert' ({})", path.display()),
            what: "has no certificate in PEM format".into(),
        });
    }
    Ok(roots)
}

/// Accepts any certificate: for pip's `trusted-host` hosts.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
