//! The web pages: the chat at `/` and the admin page at `/admin`; `/page/` has their other files. They are built from `web/` and
//! stored compressed in `assets/page/`.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::sync::{Arc, OnceLock};

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::response::Response;
use flate2::read::GzDecoder;
use hyper::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY,
    CONTENT_TYPE, ETAG, HeaderName, HeaderValue, IF_NONE_MATCH, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{HeaderMap, StatusCode};
use octet_api::{ApiError, ErrorKind, shortened};

use super::Dialect;
use super::call::trace;
use super::error::named;
use crate::app::App;
use crate::ops::is_trustworthy;

/// Path, content type and bytes of each file, and whether these are compressed (gzip).
type Source = (&'static str, &'static str, &'static [u8], bool);

/// Written by the page's build.
const SOURCES: &[Source] = include!("../../assets/page/files.in");
/// The path of all files but the documents.
pub const FOLDER: &str = "/page/";
const DOCUMENT: &str = "index.html";
/// The chat page's Content-Security-Policy: load its own files and call this server. `{}` stands for further servers for its user's
/// tools (`--page-connect`). HTML may only be created by the named policies, which sanitise it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data: blob:; \
    connect-src 'self'{}; worker-src 'self'; frame-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types dompurify octet";
const ADMIN: &str = "admin.html";
/// The admin page's policy: the same without further servers, and without HTML creation.
const ADMIN_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// The document of the frame in which the chat page shows HTML, SVG and diagrams that a model wrote.
const FRAME: &str = "frame.html";
/// Its policy: whatever the model wrote may run, with an origin of its own (a sandbox) and without any network. The chat page's
/// `frame-src` keeps the frame from going elsewhere.
const FRAME_POLICY: &str = "sandbox allow-scripts; default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'unsafe-inline'; \
    img-src data: blob:; media-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'";

/// A file as it is sent to clients.
struct File {
    kind: &'static str,
    stored: &'static [u8],
    is_gzip: bool,
    etag: HeaderValue,
    /// Decompressed at the first request of a client that does not accept gzip.
    plain: OnceLock<bytes::Bytes>,
}

impl File {
    fn new((_, kind, stored, is_gzip): &Source) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(stored);
        let etag = HeaderValue::from_str(&format!("\"{:016x}\"", hasher.finish()));
        Self {
            kind,
            stored,
            is_gzip: *is_gzip,
            etag: etag.expect("hexadecimal digits"),
            plain: OnceLock::new(),
        }
    }

    fn plain(&self) -> bytes::Bytes {
        let plain = || {
            if !self.is_gzip {
                return bytes::Bytes::from_static(self.stored);
            }
            let mut out = Vec::new();
            // Embedded data; a test checks that it decompresses.
            let _ = GzDecoder::new(self.stored).read_to_end(&mut out);
            out.into()
        };
        self.plain.get_or_init(plain).clone()
    }

    fn response(&self, asked: &HeaderMap) -> Response {
        let has =
            |name, what: &str| asked.get_all(name).iter().any(|v| v.to_str().is_ok_and(|v| v.contains(what)));
        let etag = self.etag.to_str().unwrap_or_default();
        let mut response = Response::new(Body::empty());
        if has(IF_NONE_MATCH, etag) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            let body = if self.is_gzip && has(ACCEPT_ENCODING, "gzip") {
                response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
                bytes::Bytes::from_static(self.stored)
            } else {
                self.plain()
            };
            *response.body_mut() = Body::from(body);
        }
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(ETAG, self.etag.clone());
        headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
        // Browsers revalidate on each request, which is cheap: a new Octet has new files under the same names.
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        if is_trustworthy(asked) {
            let opener = HeaderName::from_static("cross-origin-opener-policy");
            headers.insert(opener, HeaderValue::from_static("same-origin"));
        }
        response
    }
}

fn files() -> &'static HashMap<&'static str, File> {
    static FILES: OnceLock<HashMap<&'static str, File>> = OnceLock::new();
    FILES.get_or_init(|| SOURCES.iter().map(|source| (source.0, File::new(source))).collect())
}

/// `GET /`
pub async fn document(State(app): State<Arc<App>>, request: Request) -> Response {
    let mut response = files()[DOCUMENT].response(request.headers());
    let further: String = app.options.page_connect.iter().map(|origin| format!(" {origin}")).collect();
    if let Ok(policy) = HeaderValue::from_str(&POLICY.replace("{}", &further)) {
        response.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}

/// Why there is no admin page, and what to do: for programs, and for people in English and German.
const NO_ADMIN: &str = "there is no admin page here: it needs a router with a key of its own (octet serve --config FILE, with \
    general_settings.master_key in the file)";
const NO_ADMIN_EN: &str = "There is no admin page here: start the server with <code>octet serve --config FILE</code>, and set \
    <code>general_settings.master_key</code> in that file; the page asks for this key.";
const NO_ADMIN_DE: &str = "Hier gibt es keine Verwaltungsseite: den Server mit <code>octet serve --config DATEI</code> starten und in \
    dieser Datei <code>general_settings.master_key</code> setzen; die Seite fragt nach diesem Schlüssel.";

/// Says to a browser why there is no admin page.
fn no_admin(asked: &HeaderMap) -> Response {
    let language = asked.get(ACCEPT_LANGUAGE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let (language, text, back) = match language.trim_start().to_ascii_lowercase().starts_with("de") {
        true => ("de", NO_ADMIN_DE, "Zur Chatseite"),
        false => ("en", NO_ADMIN_EN, "To the chat page"),
    };
    let text = format!(
        "<!doctype html>\n<html lang=\"{language}\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>Octet admin</title>\n\
         <link rel=\"icon\" type=\"image/svg+xml\" href=\"./page/icon.svg\">\n\
         <link rel=\"stylesheet\" href=\"./page/admin.css\">\n</head>\n\
         <body>\n<main class=\"login\"><div><p>{text}</p><p><a href=\"./\">{back}</a></p></div></main>\n</body>\n</html>\n"
    );
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::NOT_FOUND;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(ADMIN_POLICY));
    headers.insert(VARY, HeaderValue::from_static("accept, accept-language"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// `GET /admin`: the page asks for the server's own key. Without such a key there is no page, as nothing would protect it.
pub async fn admin(State(app): State<Arc<App>>, request: Request) -> Response {
    if app.gateway().is_none_or(|g| g.is_open()) {
        let accepts =
            |kind| request.headers().get(ACCEPT).is_some_and(|v| v.to_str().is_ok_and(|v| v.contains(kind)));
        if accepts("text/html") {
            return no_admin(request.headers());
        }
        return Dialect::OpenAi.error(&ApiError::new(ErrorKind::NotFound, NO_ADMIN), Some(&trace(&request)));
    }
    let mut response = files()[ADMIN].response(request.headers());
    response.headers_mut().insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(ADMIN_POLICY));
    response
}

/// `GET /page/{path}`
pub async fn file(path: Result<Path<String>, PathRejection>, request: Request) -> Response {
    let found = named(path).and_then(|path| {
        let file = files().get(&*path).ok_or_else(|| {
            let what = format!("the page has no file '{}'; reload it", shortened(&path));
            ApiError::new(ErrorKind::NotFound, what)
        })?;
        Ok((file, path == FRAME))
    });
    let (file, is_frame) = match found {
        Ok(found) => found,
        Err(e) => return Dialect::OpenAi.error(&e, Some(&trace(&request))),
    };
    let mut response = file.response(request.headers());
    if is_frame {
        let headers = response.headers_mut();
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(FRAME_POLICY));
        // A name that is looked up would be a message to others.
        headers.insert(HeaderName::from_static("x-dns-prefetch-control"), HeaderValue::from_static("off"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_loads_files_that_are_there() {
        for document in [DOCUMENT, ADMIN] {
            let document = files()[document].plain();
            let document = std::str::from_utf8(&document).expect("UTF-8");
            let named = document.split("./page/").skip(1).filter_map(|rest| rest.split('"').next());
            let named: Vec<&str> = named.collect();
            assert!(named.len() >= 2, "a script and a style: {named:?}");
            assert!(named.iter().all(|name| files().contains_key(name)), "{named:?}");
            assert!(!document.contains("<style") && !document.contains(" style="), "the policy forbids it");
        }
    }

    #[test]
    fn what_is_stored_compressed_is_whole() {
        for (path, kind, stored, is_gzip) in SOURCES {
            let mut out = Vec::new();
            let read = GzDecoder::new(*stored).read_to_end(&mut out);
            assert_eq!(*is_gzip, read.is_ok() && out.len() > stored.len(), "{path}: {kind}");
        }
    }
}
