//! Downloads the images of a request that are given by address, for models that take only the bytes.
//!
//! The addresses are the clients', so only public ones are reached: a name is resolved here, and a connection is opened only to the
//! addresses that passed the check, at each redirect again. Otherwise a client could read what only this machine may: cloud metadata,
//! other servers of the network.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, LOCATION, USER_AGENT};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::connect::dns::Name;
use octet_api::ApiError;
use octet_api::core::{GenerateRequest, Image, ImageSource};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tower_service::Service;

use crate::connect::{Limits, pool};
use crate::tls;

/// Maximum bytes of one image.
const BYTES_MAX: usize = 20 << 20;
/// Maximum number of images of one request that are downloaded.
const IMAGES_MAX: usize = 32;
/// Time limit of all downloads of a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum redirects of one image.
const REDIRECTS_MAX: usize = 3;
/// Downloads at the same time, of all requests.
const AT_ONCE: usize = 8;
/// Maximum length of an address.
const URL_BYTES_MAX: usize = 4096;

type Http = Pool<HttpsConnector<HttpConnector<Names>>, Empty<Bytes>>;

/// Downloads images from public addresses. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ImageFetcher {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    is_allowed: fn(IpAddr) -> bool,
    /// Created for the first image: it reads the machine's certificates.
    http: OnceLock<Result<Http, String>>,
    places: Semaphore,
}

impl Default for ImageFetcher {
    fn default() -> Self {
        Self::reaching(is_public)
    }
}

impl ImageFetcher {
    /// Reaches only the addresses for which `is_allowed` is true; the default are [public](is_public) ones.
    pub fn reaching(is_allowed: fn(IpAddr) -> bool) -> Self {
        let places = Semaphore::new(AT_ONCE);
        Self { shared: Arc::new(Shared { is_allowed, http: OnceLock::new(), places }) }
    }

    /// Replaces the addresses of images by the images themselves.
    ///
    /// # Errors
    /// An image that cannot be downloaded, by its place in the request.
    pub async fn download(&self, request: &mut GenerateRequest) -> Result<(), ApiError> {
        let by_url = |image: &&mut Image| matches!(image.source, ImageSource::Url(_));
        let mut downloads = JoinSet::new();
        for (n, image) in request.images_mut().filter(by_url).enumerate() {
            let ImageSource::Url(url) = &image.source else { continue };
            if n == IMAGES_MAX {
                return Err(refused(
                    image,
                    &format!("at most {IMAGES_MAX} images are downloaded for a request"),
                ));
            }
            let (url, shared) = (url.clone(), Arc::clone(&self.shared));
            downloads.spawn(async move { (n, shared.image(&url).await) });
        }
        let mut sources: Vec<Option<Result<ImageSource, String>>> = Vec::new();
        sources.resize_with(downloads.len(), || None);
        let all = async {
            while let Some(done) = downloads.join_next().await {
                if let Ok((n, source)) = done {
                    sources[n] = Some(source);
                }
            }
        };
        // Those that are late have no source. They end as the set is dropped.
        let _ = tokio::time::timeout(TIMEOUT, all).await;
        for (image, source) in request.images_mut().filter(by_url).zip(sources) {
            let late = || Err(format!("it did not arrive within {} seconds", TIMEOUT.as_secs()));
            image.source = source.unwrap_or_else(late).map_err(|why| refused(image, &why))?;
            if image.frame.is_some() && image.is_document() {
                return Err(refused(image, "it is no image, as frames of a video are"));
            }
        }
        Ok(())
    }
}

/// Whether a request has images by address.
pub fn has_image_urls(request: &GenerateRequest) -> bool {
    request.images().any(|image| matches!(image.source, ImageSource::Url(_)))
}

/// The error for the first image by address, if these are not downloaded.
pub fn image_url_refused(request: &GenerateRequest, who: &str) -> Option<ApiError> {
    let image = request.images().find(|image| matches!(image.source, ImageSource::Url(_)))?;
    let what = format!(
        "'{}' is the address of an image, and {who} does not download images: send the image itself, in base64, or start \
         the server with --allow-image-urls",
        image.at
    );
    Some(ApiError::invalid(image.at.clone(), what))
}

/// The error for the first frame of a video in a request that is translated: other dialects have no form for these.
pub(crate) fn video_refused(request: &GenerateRequest) -> Option<ApiError> {
    let image = request.images().find(|image| image.frame.is_some())?;
    let what = format!(
        "'{}' is a frame of a video, for which the API of this model's provider has no form: send frames as images",
        image.at
    );
    Some(ApiError::invalid(image.at.clone(), what))
}

fn refused(image: &Image, why: &str) -> ApiError {
    let what = format!("the image at '{}' cannot be downloaded: {why}", image.at);
    ApiError::invalid(image.at.clone(), what)
}

impl Shared {
    async fn image(&self, url: &str) -> Result<ImageSource, String> {
        let _place = self.places.acquire().await.map_err(|e| e.to_string())?;
        if url.len() > URL_BYTES_MAX {
            return Err(format!("its address has more than {URL_BYTES_MAX} bytes"));
        }
        let mut uri: Uri = url.parse().map_err(|_| "its address is not a URL".to_string())?;
        for _ in 0..=REDIRECTS_MAX {
            let response = self.get(&uri).await?;
            if response.status().is_redirection() {
                uri = redirected(&uri, &response)?;
                continue;
            }
            if response.status() != StatusCode::OK {
                return Err(format!("its server answers {}", response.status()));
            }
            return read(response).await;
        }
        Err(format!("more than {REDIRECTS_MAX} redirects"))
    }

    async fn get(&self, uri: &Uri) -> Result<Response<Incoming>, String> {
        self.check(uri)?;
        let http = self.http.get_or_init(|| client(self.is_allowed)).as_ref().map_err(Clone::clone)?;
        let request = Request::get(uri)
            .header(ACCEPT, "image/*")
            .header(USER_AGENT, concat!("octet/", env!("CARGO_PKG_VERSION")))
            .body(Empty::new())
            .map_err(|_| "its address is not a URL".to_string())?;
        let host = uri.host().unwrap_or_default();
        http.request(request).await.map_err(|e| {
            let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&e);
            while let Some(error) = cause {
                if error.to_string() == NOT_PUBLIC {
                    return format!("{host} {NOT_PUBLIC}");
                }
                cause = error.source();
            }
            format!("no connection to {host}")
        })
    }

    /// Checks what is not checked when the name is resolved.
    fn check(&self, uri: &Uri) -> Result<(), String> {
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err("its address is neither http nor https".into());
        }
        let authority = uri.authority().map_or("", Authority::as_str);
        if authority.contains('@') {
            return Err("its address has a user name".into());
        }
        let host = uri.host().unwrap_or_default();
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        match bare.parse::<IpAddr>() {
            Ok(ip) if !(self.is_allowed)(ip) => Err(format!("{host} {NOT_PUBLIC}")),
            _ => Ok(()),
        }
    }
}

fn client(is_allowed: fn(IpAddr) -> bool) -> Result<Http, String> {
    let limits = Limits { idle_per_host_max: 0, ..Limits::default() };
    let mut inner = HttpConnector::new_with_resolver(Names { is_allowed });
    inner.enforce_http(false);
    inner.set_connect_timeout(Some(limits.connect));
    let tls = tls::config().map_err(|e| format!("TLS cannot be used: {e}"))?;
    let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1();
    Ok(pool(&limits).build(connector.wrap_connector(inner)))
}

/// The target of a redirect: an absolute address, or a path on the same server.
fn redirected(from: &Uri, response: &Response<Incoming>) -> Result<Uri, String> {
    let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
    let wrong = || "its server redirects to no valid address".to_string();
    let location = location.filter(|to| to.len() <= URL_BYTES_MAX).ok_or_else(wrong)?;
    let to: Uri = if location.starts_with('/') && !location.starts_with("//") {
        let mut parts = from.clone().into_parts();
        parts.path_and_query = Some(location.parse::<PathAndQuery>().map_err(|_| wrong())?);
        Uri::from_parts(parts).map_err(|_| wrong())?
    } else {
        location.parse().map_err(|_| wrong())?
    };
    if from.scheme() == Some(&Scheme::HTTPS) && to.scheme() != Some(&Scheme::HTTPS) {
        return Err("its server redirects from https to another scheme".into());
    }
    Ok(to)
}

/// Reads an image or a PDF file.
async fn read(response: Response<Incoming>) -> Result<ImageSource, String> {
    let too_large = || format!("it has more than {BYTES_MAX} bytes");
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    if header(CONTENT_LENGTH).and_then(|n| n.parse::<usize>().ok()).is_some_and(|n| n > BYTES_MAX) {
        return Err(too_large());
    }
    if header(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
        return Err("its server compressed it unasked".into());
    }
    let (mut body, mut bytes) = (response.into_body(), Vec::new());
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| "the connection broke off".to_string())?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > BYTES_MAX {
                return Err(too_large());
            }
            bytes.extend_from_slice(&data);
        }
    }
    let is_pdf = bytes.starts_with(b"%PDF-");
    let media_type = is_pdf.then(|| "application/pdf".to_string());
    let source = ImageSource::Base64 { media_type, data: STANDARD.encode(&bytes).into() };
    let read = Image { source, detail: None, at: String::new(), frame: None };
    // The type is found in the bytes: other content of a server is not sent on.
    match read.media_type() {
        Some(_) => Ok(read.source),
        None => Err("it is neither a PNG, JPEG, WebP or GIF image nor a PDF file".into()),
    }
}

/// The error for addresses that are not allowed; the host's name comes before it.
const NOT_PUBLIC: &str = "is not at a public address";

/// Resolves names to allowed addresses only.
#[derive(Debug, Clone)]
struct Names {
    is_allowed: fn(IpAddr) -> bool,
}

impl Service<Name> for Names {
    type Response = std::vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let is_allowed = self.is_allowed;
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let allowed: Vec<SocketAddr> = found.filter(|address| is_allowed(address.ip())).collect();
            if allowed.is_empty() { Err(io::Error::other(NOT_PUBLIC)) } else { Ok(allowed.into_iter()) }
        })
    }
}

/// Whether an address is on the public internet, by IANA's registries of special-purpose addresses.
pub fn is_public(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => is_public_v4(ip),
        IpAddr::V6(ip) => is_public_v6(ip),
    }
}

fn is_public_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    !(ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && b & 0xc0 == 64) // shared by providers; some clouds have their metadata there
        || (a == 192 && b == 0 && (c == 0 || c == 2))
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (b & 0xfe == 18 || (b == 51 && c == 100)))
        || (a == 203 && b == 0 && c == 113))
}

/// Only 2000::/3 is public, without what stands for other addresses in it.
fn is_public_v6(ip: Ipv6Addr) -> bool {
    let [a, b, ..] = ip.segments();
    let is_special = (a == 0x2001 && (b < 0x200 || b == 0xdb8)) // Teredo, ORCHID and others; documentation
        || a == 0x2002 // 6to4
        || (a == 0x3fff && b < 0x1000);
    a & 0xe000 == 0x2000 && !is_special
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_public() {
        for public in
            ["1.1.1.1", "93.184.215.14", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450::1"]
        {
            assert!(is_public(public.parse().unwrap()), "{public}");
        }
        for other in [
            "127.0.0.1",
            "127.8.8.8",
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "100.100.100.200",
            "0.0.0.0",
            "0.1.2.3",
            "192.0.0.192",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.7",
            "203.0.113.9",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd00:ec2::254",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:1.1.1.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001::1",
            "2001:db8::1",
            "3fff::1",
        ] {
            assert!(!is_public(other.parse().unwrap()), "{other}");
        }
    }
}
