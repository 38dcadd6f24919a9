//! TLS of connections to other servers: downloads, providers, databases, tools.

use std::sync::Arc;

pub use rustls;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_platform_verifier::BuilderVerifierExt;

/// Which certificates of servers are accepted.
#[derive(Debug)]
pub enum Trust {
    /// Those that the operating system trusts; on Linux also those of SSL_CERT_FILE and SSL_CERT_DIR.
    System,
    /// Those of these authorities. Of none: for clients that use no TLS, as a small container may have no certificates at all.
    Only(RootCertStore),
    /// Any: connections are encrypted, and the server is not known.
    Anybody,
}

/// The configuration of a client.
///
/// # Errors
/// If the operating system's certificates cannot be read.
pub fn client(trust: Trust) -> Result<ClientConfig, rustls::Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions()?;
    let builder = match trust {
        Trust::System => builder.with_platform_verifier()?,
        Trust::Only(roots) => builder.with_root_certificates(roots),
        Trust::Anybody => builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyServer(provider))),
    };
    Ok(builder.with_no_client_auth())
}

/// Accepts any certificate.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
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
