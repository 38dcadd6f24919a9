//! Protection against web pages that make a browser send requests here. Checked by a middleware.
//!
//! A server on the user's own machine needs no key, but every page open in a browser there can reach it: by its address, which CORS
//! prevents, or by a domain name that resolves to it (DNS rebinding), which CORS does not.

use std::net::IpAddr;

use hyper::HeaderMap;
use hyper::header::{HOST, ORIGIN};

/// Whether a request comes from a page that may not use the server. `allowed` are the configured origins; `local` is true if the
/// server listens on the loopback interface only, so that its host name must be this machine's.
pub fn is_foreign(headers: &HeaderMap, allowed: &[String], local: bool) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return false };
    let Ok(origin) = origin.to_str() else { return true };
    if allowed.iter().any(|a| a == "*" || a == origin) {
        return false;
    }
    // Desktop programs built from web pages have their own URL schemes.
    let Some((scheme, rest)) = origin.split_once("://") else { return true };
    if !matches!(scheme, "http" | "https") {
        return false;
    }
    let own_name = headers.get(HOST).is_some_and(|h| h.as_bytes() == rest.as_bytes());
    !(is_this_machine(host(rest)) || (!local && own_name))
}

/// A host without its port.
fn host(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or(v6),
        None => authority.split(':').next().unwrap_or(authority),
    }
}

/// Host names that always mean this machine.
fn is_this_machine(host: &str) -> bool {
    host == "localhost" || host.ends_with(".localhost") || host.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_others_are_foreign() {
        let ask = |origin: &str, host: &str, local: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(ORIGIN, origin.parse().unwrap());
            headers.insert(HOST, host.parse().unwrap());
            is_foreign(&headers, &["https://chat.example.com".into()], local)
        };
        for origin in [
            "http://127.0.0.1:8080",
            "http://localhost:3000",
            "http://[::1]:8080",
            "https://chat.example.com",
            "vscode-webview://x",
        ] {
            assert!(!ask(origin, "127.0.0.1:8080", true), "{origin}");
        }
        for origin in ["http://evil.example.com:8080", "null", "http://localhost.evil.example.com"] {
            assert!(ask(origin, "evil.example.com:8080", true), "{origin}");
        }
        assert!(
            !ask("http://box.lan:8080", "box.lan:8080", false),
            "a server that others may reach has a name"
        );
        assert!(ask("http://evil.example.com", "box.lan:8080", false));
        assert!(!is_foreign(&HeaderMap::new(), &[], true), "no browser");
    }
}
