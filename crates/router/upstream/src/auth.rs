//! Authentication at clouds: signatures for Amazon, access tokens for Google and Azure. A token is fetched once and reused until shortly
//! before it expires.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign as signature};
use aws_sigv4::sign::v4;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::Full;
use octet_config::{Aws, Entra, Google};
use octet_tls::rustls::pki_types::PrivatePkcs8KeyDer;
use octet_tls::rustls::pki_types::pem::PemObject;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Mutex;

use crate::escape::path_segment;
use crate::failure::{Failure, FailureKind};

/// Amazon's name of Bedrock's runtime in signatures.
const SERVICE: &str = "bedrock";
/// The scope of Google's tokens.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";
/// Lifetime of a signed assertion: Google's maximum.
const STATEMENT_S: u64 = 3600;
/// A token is not used shortly before it expires: it must be valid when it arrives.
const TOKEN_RESERVE: Duration = Duration::from_secs(120);

/// Signs a request, AWS Signature Version 4: host, content type, time and body.
pub(crate) fn sign<B>(
    request: &mut Request<B>,
    body: &[u8],
    aws: &Aws,
    now: SystemTime,
) -> Result<(), Failure> {
    let failed = |what: String| {
        Failure::new(FailureKind::Authentication, format!("the request cannot be signed: {what}"))
    };
    let id = aws.access_key_id.expose();
    let token = aws.session_token.as_ref().map(|t| t.expose().to_string());
    let identity = Credentials::new(id, aws.secret_access_key.expose(), token, None, "octet").into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(&aws.region)
        .name(SERVICE)
        .time(now)
        .settings(SigningSettings::default())
        .build()
        .map_err(|e| failed(e.to_string()))?
        .into();
    let uri = request.uri().to_string();
    // Proxies may change other headers.
    let kind = request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok());
    let headers = kind.iter().map(|value| (CONTENT_TYPE.as_str(), *value));
    let method = request.method().as_str().to_string();
    let signed = SignableRequest::new(&method, &uri, headers, SignableBody::Bytes(body))
        .and_then(|request| signature(request, &params))
        .map_err(|e| failed(e.to_string()))?;
    let (instructions, _) = signed.into_parts();
    instructions.apply_to_request_http1x(request);
    Ok(())
}

/// An access token, shared by all requests of an endpoint.
#[derive(Debug, Default)]
pub(crate) struct Token {
    current: Mutex<Option<(HeaderValue, Instant)>>,
}

/// A token as the server returns it.
#[derive(Deserialize)]
struct Granted {
    access_token: String,
    #[serde(default)]
    expires_in: u64,
}

impl Token {
    /// The header value of the last token, unless a new one is being fetched.
    pub fn known(&self) -> Option<String> {
        let current = self.current.try_lock().ok()?;
        current.as_ref().and_then(|(value, _)| value.to_str().ok().map(str::to_owned))
    }

    /// The token as a header's value; `request` creates the request for one, and `fetch` sends it and returns the answer's body.
    pub async fn header<F, R>(
        &self,
        request: impl FnOnce() -> Result<Request<Full<Bytes>>, Failure>,
        fetch: F,
    ) -> Result<HeaderValue, Failure>
    where
        F: FnOnce(Request<Full<Bytes>>) -> R,
        R: Future<Output = Result<Bytes, Failure>>,
    {
        // Held while a token is fetched: all waiting requests share it.
        let mut current = self.current.lock().await;
        if let Some((value, _)) = current.as_ref().filter(|(_, until)| Instant::now() < *until) {
            return Ok(value.clone());
        }
        let asked = Instant::now();
        let answer = fetch(request()?).await?;
        let granted: Granted = serde_json::from_slice(&answer).map_err(|_| {
            Failure::new(FailureKind::Authentication, "the answer of the token server has no access token")
        })?;
        let mut value = HeaderValue::from_str(&format!("Bearer {}", granted.access_token)).map_err(|_| {
            Failure::protocol("the access token contains characters that are not allowed in a header")
        })?;
        value.set_sensitive(true);
        let life = Duration::from_secs(granted.expires_in.min(24 * 3600)).saturating_sub(TOKEN_RESERVE);
        *current = Some((value.clone(), asked + life));
        Ok(value)
    }
}

/// The request for an Entra ID token (RFC 6749, 4.4).
pub(crate) fn entra(application: &Entra) -> Result<Request<Full<Bytes>>, Failure> {
    let form = [
        ("client_id", application.client_id.as_str()),
        ("grant_type", "client_credentials"),
        ("client_secret", application.client_secret.expose()),
        ("scope", &application.scope),
    ];
    let uri = application.token_uri.parse().map_err(|_| {
        Failure::new(FailureKind::Authentication, "AZURE_AUTHORITY_HOST is not the address of a server")
    })?;
    Ok(posted(uri, encoded(&form)))
}

fn posted(uri: Uri, form: String) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(form.into()));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
    request.headers_mut().insert(CONTENT_TYPE, kind);
    request
}

/// The request for a Google token.
pub(crate) fn google(account: &Google, now: SystemTime) -> Result<Request<Full<Bytes>>, Failure> {
    let wrong = |what: &str| Failure::new(FailureKind::Authentication, format!("vertex_credentials: {what}"));
    let (uri, form) = match account {
        Google::Service { email, private_key, key_id, token_uri } => {
            let statement =
                statement(email, private_key.expose(), key_id.as_deref(), token_uri, now).map_err(wrong)?;
            let form =
                [("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"), ("assertion", &statement)];
            (token_uri.clone(), Some(encoded(&form)))
        }
        Google::User { client_id, client_secret, refresh_token, token_uri } => {
            let form = [
                ("grant_type", "refresh_token"),
                ("client_id", client_id),
                ("client_secret", client_secret.expose()),
                ("refresh_token", refresh_token.expose()),
            ];
            (token_uri.clone(), Some(encoded(&form)))
        }
        Google::Machine { base } => {
            (format!("{base}/computeMetadata/v1/instance/service-accounts/default/token"), None)
        }
    };
    let uri: Uri = uri.parse().map_err(|_| wrong("token_uri is not a valid URL"))?;
    if let Some(form) = form {
        return Ok(posted(uri, form));
    }
    let mut request = Request::new(Full::default());
    *request.uri_mut() = uri;
    request.headers_mut().insert("metadata-flavor", HeaderValue::from_static("Google"));
    Ok(request)
}

/// A form's fields. All characters except letters, digits and a few marks are escaped.
fn encoded(fields: &[(&str, &str)]) -> String {
    let pairs = fields.iter().map(|(name, value)| format!("{name}={}", path_segment(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// A signed assertion of the account: a JSON Web Token, RS256 (RFC 7523).
fn statement(
    email: &str,
    private_key: &str,
    key_id: Option<&str>,
    audience: &str,
    now: SystemTime,
) -> Result<String, &'static str> {
    let der = PrivatePkcs8KeyDer::from_pem_slice(private_key.as_bytes())
        .map_err(|_| "private_key is not a key in PEM ('-----BEGIN PRIVATE KEY-----')")?;
    let key = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).map_err(|_| "private_key is not an RSA key")?;
    let now = now.duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs());
    let mut header = json!({"alg": "RS256", "typ": "JWT"});
    if let Some(id) = key_id {
        header["kid"] = id.into();
    }
    let claims = json!({"iss": email, "scope": SCOPE, "aud": audience, "iat": now, "exp": now + STATEMENT_S});
    let text = format!("{}.{}", BASE64.encode(header.to_string()), BASE64.encode(claims.to_string()));
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
        .map_err(|_| "private_key cannot sign")?;
    Ok(format!("{text}.{}", BASE64.encode(signature)))
}

/// Where a request's access token goes.
pub(crate) const TOKEN_HEADER: http::HeaderName = AUTHORIZATION;

#[cfg(test)]
mod tests {
    use octet_config::Secret;

    use super::*;

    /// Signatures as botocore 1.44.5 makes them.
    #[test]
    fn signatures_are_those_of_botocore() {
        let secret = |text| Secret::new(text).expect("a secret");
        let mut aws = Aws {
            region: "us-east-1".into(),
            access_key_id: secret("AKIDEXAMPLE"),
            secret_access_key: secret("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"),
            session_token: None,
        };
        // 2026-11-22 22:00:00 UTC
        let now = UNIX_EPOCH + Duration::from_secs(1_795_384_800);
        let plain = "SignedHeaders=content-type;host;x-amz-date, \
                     Signature=6f9e9aef165a1ee501af52d0f7d613901847f1d7bd217e72f0c7d1106c075cdf";
        let with_token = "SignedHeaders=content-type;host;x-amz-date;x-amz-security-token, \
                          Signature=071dbe3a0d5c0b0e0daef8eecec7932abcd81aa253fe55697d02175f6f2423c5";
        for (token, expected) in [(None, plain), (Some("session/token=="), with_token)] {
            aws.session_token = token.map(secret);
            let body = &b"{\"messages\":[]}"[..];
            let mut request = Request::post(
                "https://bedrock-runtime.us-east-1.amazonaws.com/model/\
                 anthropic.claude-3-5-haiku-20241022-v1%3A0/converse-stream",
            )
            .header(CONTENT_TYPE, "application/json")
            .header("x-request-id", "not signed")
            .body(Full::new(Bytes::from_static(body)))
            .expect("a request");
            sign(&mut request, body, &aws, now).expect("it is signed");
            let header =
                |name: &str| request.headers().get(name).map(|v| v.to_str().expect("text").to_string());
            let scope = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261122/us-east-1/bedrock/aws4_request, ";
            assert_eq!(header("authorization"), Some(format!("{scope}{expected}")));
            assert_eq!(header("x-amz-date").as_deref(), Some("20261122T220000Z"));
            assert_eq!(header("x-amz-security-token").as_deref(), token);
        }
    }

    #[test]
    fn keys_that_are_none_are_named_without_being_shown() {
        for (key, expected) in [
            ("-----BEGIN X", "not a key in PEM"),
            ("-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n", "not an RSA key"),
        ] {
            let account = Google::Service {
                email: "a@b".into(),
                private_key: Secret::new(key).expect("a text"),
                key_id: None,
                token_uri: "http://127.0.0.1/".into(),
            };
            let failure = google(&account, UNIX_EPOCH).expect_err("no key");
            assert_eq!(failure.kind, FailureKind::Authentication);
            assert!(failure.message.contains(expected) && !failure.message.contains("c2Vj"), "{failure:?}");
        }
    }
}
