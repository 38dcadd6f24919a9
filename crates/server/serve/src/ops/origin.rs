//! Protection against web pages that make a browser send requests here. Checked by a middleware.
//!
//! A server on the user's own machine needs no key, but every page open in a browser there can reach it: by its address, which CORS
//! prevents, or by a domain name that resolves to it (DNS rebinding), which CORS does not.

use std::net::{IpAddr, Ipv6Addr};

use hyper::header::{HOST, HeaderValue, ORIGIN};
use hyper::{HeaderMap, Uri};

/// Whether a request comes from a page that may not use the server. `allowed` are the configured origins; `local` is true if the
/// server listens on the loopback interface only, so that its host name must be this machine's: one of `names`, or one that always is.
pub fn is_foreign(headers: &HeaderMap, allowed: &[String], local: bool, names: &[String]) -> bool {
    headers.get_all(ORIGIN).iter().any(|origin| is_foreign_origin(origin, headers, allowed, local, names))
}

fn is_foreign_origin(
    origin: &HeaderValue,
    headers: &HeaderMap,
    allowed: &[String],
    local: bool,
    names: &[String],
) -> bool {
    let Ok(origin) = origin.to_str() else { return true };
    if allowed.iter().any(|a| a == "*" || a == origin) {
        return false;
    }
    // Desktop programs built from web pages have their own URL schemes.
    let Some((scheme, rest)) = origin.split_once("://") else { return true };
    if !matches!(scheme, "http" | "https") {
        return false;
    }
    let Some(name) = host(rest) else { return true };
    let own_name = headers.get(HOST).is_some_and(|h| h.as_bytes() == rest.as_bytes());
    !(is_this_machine(name) || own_name && (!local || is_one_of(name, names)))
}

/// The name under which a request reaches a server on the loopback interface, if it does not mean this machine: a page of that name made a
/// browser send the request. `names` are further names, and `origins` the pages that may use the server; `*` is any.
///
/// Names without a dot are this machine's or the local network's: a page of another network cannot have one.
pub fn foreign_host<'a>(
    headers: &'a HeaderMap,
    uri: &'a Uri,
    names: &[String],
    origins: &[String],
) -> Option<&'a str> {
    let sent = headers.get_all(HOST).iter().map(|value| value.to_str().unwrap_or("?."));
    let is_known = |authority: &&str| {
        let Some(name) = host(authority) else { return false };
        let of_page =
            |origin: &String| origin.split_once("://").and_then(|(_, rest)| host(rest)) == Some(name);
        is_this_machine(name)
            || !name.contains('.')
            || is_one_of(name, names)
            || origins.iter().any(|origin| origin == "*" || of_page(origin))
    };
    sent.chain(uri.authority().map(|a| a.as_str())).find(|authority| !is_known(authority))
}

/// Whether browsers trust the address under which they asked: HTTPS, as a proxy in front of this server says, or this machine itself.
/// Elsewhere they ignore some headers, and complain about them.
pub fn is_trustworthy(headers: &HeaderMap) -> bool {
    let forwarded = headers.get("x-forwarded-proto").and_then(|v| v.to_str().ok()).unwrap_or_default();
    // Each proxy may add its own; the first is the browser's.
    if forwarded.split(',').next().is_some_and(|proto| proto.trim().eq_ignore_ascii_case("https")) {
        return true;
    }
    let Some(name) = headers.get(HOST).and_then(|v| v.to_str().ok()).and_then(host) else { return false };
    match name.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => is_this_machine(name),
    }
}

/// A host without its port and a last dot; `None` if it is none.
fn host(authority: &str) -> Option<&str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => {
            let (host, rest) = v6.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, rest.strip_prefix(':').or(rest.is_empty().then_some(""))?)
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
    (host.chars().all(is_name) && port.bytes().all(|b| b.is_ascii_digit())).then_some(host)
}

/// Host names that always mean this machine. An address is no name that someone else could give it.
fn is_this_machine(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or(host);
    last.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok()
}

fn is_one_of(name: &str, names: &[String]) -> bool {
    names.iter().any(|known| known == "*" || known.eq_ignore_ascii_case(name))
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
            is_foreign(&headers, &["https://chat.example.com".into()], local, &["octet.lan".into()])
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
        assert!(!is_foreign(&HeaderMap::new(), &[], true, &[]), "no browser");
        assert!(!ask("http://octet.lan:8080", "octet.lan:8080", true), "a name that the operator gave it");
        assert!(ask("http://octet.lan:8080", "127.0.0.1:8080", true), "another server's page");
        assert!(ask("http://[::1]evil.example.com", "127.0.0.1:8080", true));
        let mut two = HeaderMap::new();
        two.append(ORIGIN, "http://127.0.0.1".parse().unwrap());
        two.append(ORIGIN, "http://evil.example.com".parse().unwrap());
        assert!(is_foreign(&two, &[], true, &[]), "each of several counts");
    }

    #[test]
    fn this_machine_and_https_are_trusted_by_browsers() {
        let ask = |host: &str, proto: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            proto.map(|proto| headers.insert("x-forwarded-proto", HeaderValue::from_static(proto)));
            is_trustworthy(&headers)
        };
        for host in ["127.0.0.1:8080", "127.8.0.1", "localhost:1", "a.localhost", "[::1]:8080"] {
            assert!(ask(host, None), "{host}");
        }
        for host in ["192.168.0.2:8080", "box.lan", "localhost.example.com", "[fe80::1]", "?"] {
            assert!(!ask(host, None) && !ask(host, Some("http")), "{host}");
        }
        assert!(ask("chat.example.com", Some("https")) && ask("chat.example.com", Some("HTTPS, http")));
        assert!(!is_trustworthy(&HeaderMap::new()), "no browser");
    }

    #[test]
    fn names_of_others_are_foreign() {
        let names = ["octet.lan".to_string(), "Box.Example.com".into()];
        let origins = ["https://chat.example.com:8443".to_string()];
        let ask = |host: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(HOST, host.parse().unwrap());
            foreign_host(&headers, &Uri::from_static("/"), &names, &origins).map(str::to_string)
        };
        for host in [
            "127.0.0.1:8080",
            "127.0.0.1",
            "localhost:3000",
            "LOCALHOST",
            "localhost.:80",
            "a.localhost",
            "[::1]:8080",
            "[::1]",
            "192.168.1.5:8080",
            "octet",
            "octet:8080",
            "octet.lan:8080",
            "OCTET.LAN.",
            "box.example.com",
            "chat.example.com",
            "",
        ] {
            assert_eq!(ask(host), None, "{host}");
        }
        for host in [
            "evil.example.com:8080",
            "evil.example.com",
            "octet.lan.evil.example.com",
            "127.0.0.1.evil.example.com",
            "127.0.0.1@evil.example.com",
            "localhost.evil.example.com",
            "evillocalhost.com",
            "[::1]evil.example.com",
            "[::1].evil.example.com:80",
            "localhost:80.evil.example.com",
        ] {
            assert_eq!(ask(host).as_deref(), Some(host));
        }
        // Each of several counts, and the one of an absolute address.
        let mut headers = HeaderMap::new();
        assert_eq!(foreign_host(&headers, &Uri::from_static("/"), &names, &origins), None, "no browser");
        let uri = Uri::from_static("http://evil.example.com/props");
        assert_eq!(foreign_host(&headers, &uri, &names, &origins), Some("evil.example.com"));
        headers.append(HOST, "localhost".parse().unwrap());
        headers.append(HOST, "evil.example.com".parse().unwrap());
        assert_eq!(
            foreign_host(&headers, &Uri::from_static("/"), &names, &origins),
            Some("evil.example.com")
        );
        assert_eq!(foreign_host(&headers, &Uri::from_static("/"), &["*".into()], &[]), None);
    }
}
