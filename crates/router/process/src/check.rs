//! Checks whether a server is ready.

use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::{Request, StatusCode, Uri, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Time limit of one check: a loading server may accept connections and not answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The URL of a check, if it is valid.
pub fn address(base_url: &str, path: &str) -> Result<Uri, String> {
    let url = format!("{}/{}", base_url.trim_end_matches('/'), path.trim_start_matches('/'));
    let uri: Uri = url.parse().map_err(|e| format!("'{url}' is not a valid URL to check: {e}"))?;
    match (uri.scheme_str(), uri.host()) {
        (Some("http"), Some(_)) => Ok(uri),
        _ => Err(format!(
            "'{url}' cannot be checked, as it is not http; set 'proxy' to its http address, or 'checkEndpoint: none'"
        )),
    }
}

/// Checks once; the error says why the server is not ready.
pub async fn ask(uri: &Uri) -> Result<(), String> {
    match tokio::time::timeout(ANSWER_MAX, status(uri)).await {
        Ok(Ok(StatusCode::OK)) => Ok(()),
        Ok(Ok(status)) => Err(format!("it answers {status}")),
        Ok(Err(e)) => Err(e),
        Err(_) => Err(format!("no answer in {} s", ANSWER_MAX.as_secs())),
    }
}

async fn status(uri: &Uri) -> Result<StatusCode, String> {
    let host = uri.host().unwrap_or_default();
    let (plain, port) = (host.trim_matches(['[', ']']), uri.port_u16().unwrap_or(80));
    let stream = TcpStream::connect((plain, port)).await.map_err(|e| format!("no connection: {e}"))?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|e| e.to_string())?;
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    let request = Request::get(path)
        .header(header::HOST, format!("{host}:{port}"))
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|e| e.to_string())?;
    let mut answer = std::pin::pin!(sender.send_request(request));
    let ended = tokio::select! {
        biased;
        answer = &mut answer => return answer.map(|a| a.status()).map_err(|e| e.to_string()),
        ended = connection => ended,
    };
    // A server may close the connection after its answer: both arrive at once.
    let why = || ended.err().map_or("it closed the connection".into(), |e| e.to_string());
    answer.await.map(|a| a.status()).map_err(|_| why())
}
