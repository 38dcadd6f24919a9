//! TLS certificates of connections.

use std::path::Path;
use std::sync::Arc;

use octet_tls::Trust;
use octet_tls::rustls::pki_types::CertificateDer;
use octet_tls::rustls::pki_types::pem::PemObject;
use octet_tls::rustls::{ClientConfig, RootCertStore};

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
    let trust = match (tls, cert) {
        (Tls::None, _) => Trust::Only(RootCertStore::empty()),
        (Tls::Unchecked, _) => Trust::Anybody,
        (Tls::PipCert, Some(path)) => Trust::Only(certificates(path)?),
        (Tls::PipCert | Tls::System, _) => Trust::System,
    };
    let config = octet_tls::client(trust)
        .map_err(|e| Error::Setting { setting: "TLS".into(), what: format!("cannot be set up: {e}") })?;
    Ok(Arc::new(config))
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
