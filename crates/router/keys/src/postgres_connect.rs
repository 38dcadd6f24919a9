//! Connections to PostgreSQL: the address as in libpq and LiteLLM, TLS by `sslmode`.

use std::time::Duration;

use octet_tls::Trust;
use postgres::{Client, NoTls};
use tokio_postgres::Config;
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::Error;

/// Time limit of connecting, and of a statement.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const STATEMENT_MS: u32 = 10_000;

/// A database's address.
#[derive(Clone)]
pub(crate) struct Place {
    config: Config,
    /// Certificates are checked (`sslmode=verify-full`).
    verifies: bool,
    /// Without its password.
    pub shown: String,
}

/// Parameters of an address that libpq has. Others are those of LiteLLM's client (Prisma), such as `connection_limit`.
const KNOWN: &[&str] = &[
    "host",
    "hostaddr",
    "port",
    "user",
    "password",
    "dbname",
    "application_name",
    "keepalives",
    "keepalives_idle",
    "target_session_attrs",
    "channel_binding",
];

impl Place {
    /// Reads `postgresql://USER:PASSWORD@HOST:PORT/NAME?sslmode=require&schema=public`.
    pub fn parse(url: &str) -> Result<Self, Error> {
        // The parser's error may quote the password.
        let wrong = || {
            Error::Invalid(
                "the address of the database cannot be understood; it is like postgresql://USER:PASSWORD@HOST:5432/NAME"
                    .into(),
            )
        };
        let is_url = url.starts_with("postgresql://") || url.starts_with("postgres://");
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let value = |name: &str| pairs.clone().find(|(n, _)| *n == name).map(|(_, v)| v);
        let kept: Vec<String> = pairs
            .clone()
            .filter(|(name, _)| KNOWN.contains(name))
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let mut config: Config = Some(format!("{base}?{}", kept.join("&")))
            .filter(|_| is_url)
            .ok_or_else(wrong)?
            .parse()
            .map_err(|_| wrong())?;
        let (mode, verifies) = match value("sslmode") {
            Some("disable") => (SslMode::Disable, false),
            None | Some("allow" | "prefer") => (SslMode::Prefer, false),
            Some("require") => (SslMode::Require, false),
            Some("verify-ca" | "verify-full") => (SslMode::Require, true),
            Some(_) => {
                return Err(Error::Invalid(
                    "the database's sslmode is one of disable, prefer, require, verify-full".into(),
                ));
            }
        };
        let mut options = format!("-c statement_timeout={STATEMENT_MS}");
        if let Some(schema) =
            value("schema").filter(|s| s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        {
            options += &format!(" -c search_path={schema}");
        }
        config.ssl_mode(mode).connect_timeout(CONNECT_WITHIN).options(&options);
        if config.get_application_name().is_none() {
            config.application_name("octet");
        }
        let host = config.get_hosts().first().map_or_else(String::new, |host| match host {
            tokio_postgres::config::Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            tokio_postgres::config::Host::Unix(path) => path.display().to_string(),
        });
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let shown = format!("postgresql://{host}:{port}/{}", config.get_dbname().unwrap_or_default());
        Ok(Self { config, verifies, shown })
    }

    /// An error of the database, with its address.
    pub fn error(&self, e: &postgres::Error) -> Error {
        let what = match (e.as_db_error(), std::error::Error::source(e)) {
            (Some(db), _) => db.message().to_string(),
            (None, Some(source)) => format!("{e}: {source}"),
            (None, None) => e.to_string(),
        };
        Error::Database { place: self.shown.clone(), what }
    }

    /// TLS, unless it is switched off.
    fn tls(&self) -> Result<Option<MakeRustlsConnect>, Error> {
        if self.config.get_ssl_mode() == SslMode::Disable {
            return Ok(None);
        }
        // As libpq does with `sslmode=prefer` and `require`.
        let trust = if self.verifies { Trust::System } else { Trust::Anybody };
        let tls = octet_tls::client(trust)
            .map_err(|e| Error::Database { place: self.shown.clone(), what: format!("no TLS: {e}") })?;
        Ok(Some(MakeRustlsConnect::new(tls)))
    }

    /// The connection was lost in the middle of a transaction.
    pub fn lost(&self) -> Error {
        Error::Database { place: self.shown.clone(), what: "the connection was lost; try again".into() }
    }
}

/// A new connection.
pub(crate) fn connect(place: &Place) -> Result<Client, Error> {
    let config = postgres::Config::from(place.config.clone());
    let connected = match place.tls()? {
        None => config.connect(NoTls),
        Some(tls) => config.connect(tls),
    };
    connected.map_err(|e| place.error(&e))
}

/// A new connection whose requests do not wait for each other. Must be called inside a tokio runtime.
pub(crate) async fn connect_async(place: &Place) -> Result<tokio_postgres::Client, Error> {
    let failed = |e| place.error(&e);
    match place.tls()? {
        None => {
            let (client, connection) = place.config.connect(NoTls).await.map_err(failed)?;
            drive(connection);
            Ok(client)
        }
        Some(tls) => {
            let (client, connection) = place.config.connect(tls).await.map_err(failed)?;
            drive(connection);
            Ok(client)
        }
    }
}

/// Runs a connection until it is closed; errors reach who uses it.
fn drive(connection: impl Future<Output = Result<(), tokio_postgres::Error>> + Send + 'static) {
    drop(tokio::spawn(connection));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_litellm_has_them_and_shown_without_passwords() {
        let read = Place::parse(
            "postgresql://me:p%40ss@db.example:6432/litellm?connection_limit=10&sslmode=verify-full&schema=app",
        )
        .unwrap();
        assert_eq!((read.shown.as_str(), read.verifies), ("postgresql://db.example:6432/litellm", true));
        assert_eq!(read.config.get_password(), Some(&b"p@ss"[..]));
        assert!(read.config.get_options().is_some_and(|o| o.contains("search_path=app")));
        let plain = Place::parse("postgres://me@localhost/x").unwrap();
        assert_eq!(
            (plain.shown.as_str(), plain.config.get_ssl_mode()),
            ("postgresql://localhost:5432/x", SslMode::Prefer)
        );
        for wrong in ["mysql://me:secret@h/x", "postgresql://me:secret@h:port/x", "keys.db"] {
            let error = Place::parse(wrong).err().expect("refused").to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
