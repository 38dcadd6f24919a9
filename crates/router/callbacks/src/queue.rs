//! The queue of one receiver: bounded, with batches and retries. Created by `lib`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Uri};
use octet_config::{Callback, CallbackForm, JsonForm};
use octet_upstream::{Client, FailureKind};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, sleep_until};

use crate::record::Record;
use crate::{generic, otlp};

/// Maximum number of waiting records.
const WAITING_MAX: usize = 10_000;
/// Maximum number of records per batch.
const BATCH_MAX: usize = 512;
/// How long a record waits for others.
const EVERY: Duration = Duration::from_secs(1);
/// Time limit of one attempt.
const TRY_MAX: Duration = Duration::from_secs(10);
/// Pauses before retries.
const PAUSES: [Duration; 3] = [Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(5)];
/// Maximum pause that a receiver may request.
const PAUSE_MAX: Duration = Duration::from_secs(30);

enum Message {
    Record(Arc<Record>),
    Flush(oneshot::Sender<()>),
}

/// The queue of one receiver.
#[derive(Debug)]
pub struct Queue {
    to: mpsc::Sender<Message>,
    dropped: Arc<AtomicU64>,
}

impl Queue {
    /// Starts the task that sends.
    ///
    /// # Errors
    /// A setting that is not a valid HTTP header.
    pub fn start(callback: &Callback, client: Client, dropped: Arc<AtomicU64>) -> Result<Self, String> {
        let sender = Sender::new(callback, client, Arc::clone(&dropped))?;
        let (to, from) = mpsc::channel(WAITING_MAX);
        tokio::spawn(sender.run(from));
        Ok(Self { to, dropped })
    }

    /// Adds a record; drops it if the queue is full.
    pub fn add(&self, record: Arc<Record>) {
        if self.to.try_send(Message::Record(record)).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all queued records are sent or dropped.
    pub async fn flush(&self) {
        let (done, wait) = oneshot::channel();
        if self.to.send(Message::Flush(done)).await.is_ok() {
            let _ = wait.await;
        }
    }
}

struct Sender {
    name: String,
    client: Client,
    uri: Uri,
    headers: HeaderMap,
    form: CallbackForm,
    dropped: Arc<AtomicU64>,
    /// The last attempt failed, and that was logged.
    is_failing: bool,
}

impl Sender {
    fn new(callback: &Callback, client: Client, dropped: Arc<AtomicU64>) -> Result<Self, String> {
        let name = callback.name.clone();
        let uri: Uri =
            callback.url.parse().map_err(|e| format!("the callback '{name}': its address: {e}"))?;
        let mut headers = HeaderMap::new();
        let mut add = |key: &str, value: &str| {
            let wrong = || format!("the callback '{name}': its header '{key}' cannot be sent");
            let key = HeaderName::from_bytes(key.as_bytes()).map_err(|_| wrong())?;
            let mut value = HeaderValue::from_str(value).map_err(|_| wrong())?;
            value.set_sensitive(true);
            headers.insert(key, value);
            Ok::<(), String>(())
        };
        for (key, value) in &callback.headers {
            add(key, value.expose())?;
        }
        if let Some((user, password)) = &callback.login {
            let login = BASE64_STANDARD.encode(format!("{user}:{}", password.expose()));
            add(AUTHORIZATION.as_str(), &format!("Basic {login}"))?;
        }
        let kind = match callback.form {
            CallbackForm::Otlp { .. } => "application/x-protobuf",
            CallbackForm::Json(JsonForm::Lines) => "application/x-ndjson",
            CallbackForm::Json(_) => "application/json",
        };
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        Ok(Self { client, uri, headers, form: callback.form.clone(), dropped, is_failing: false, name })
    }

    async fn run(mut self, mut from: mpsc::Receiver<Message>) {
        let mut batch = Vec::new();
        let mut due = None;
        loop {
            let message = match due {
                Some(at) => tokio::select! {
                    message = from.recv() => message,
                    () = sleep_until(at) => {
                        self.send(&mut batch).await;
                        due = None;
                        continue;
                    }
                },
                None => from.recv().await,
            };
            match message {
                Some(Message::Record(record)) => {
                    batch.push(record);
                    due.get_or_insert_with(|| Instant::now() + EVERY);
                    if batch.len() >= BATCH_MAX {
                        self.send(&mut batch).await;
                        due = None;
                    }
                }
                Some(Message::Flush(done)) => {
                    self.send(&mut batch).await;
                    due = None;
                    let _ = done.send(());
                }
                None => {
                    self.send(&mut batch).await;
                    return;
                }
            }
        }
    }

    async fn send(&mut self, batch: &mut Vec<Arc<Record>>) {
        let batch = std::mem::take(batch);
        let bodies: Vec<(usize, Vec<u8>)> = match &self.form {
            _ if batch.is_empty() => Vec::new(),
            CallbackForm::Otlp { service } => vec![(batch.len(), otlp::body(&batch, service))],
            CallbackForm::Json(JsonForm::Array) => vec![(batch.len(), generic::array(&batch))],
            CallbackForm::Json(JsonForm::Lines) => vec![(batch.len(), generic::lines(&batch))],
            CallbackForm::Json(JsonForm::Single) => batch.iter().map(|r| (1, generic::one(r))).collect(),
        };
        for (records, body) in bodies {
            match self.try_all(body.into()).await {
                Ok(()) => {
                    if std::mem::replace(&mut self.is_failing, false) {
                        tracing::info!("the callback '{}' takes records again", self.name);
                    }
                }
                Err(why) => {
                    self.dropped.fetch_add(records as u64, Ordering::Relaxed);
                    if !std::mem::replace(&mut self.is_failing, true) {
                        tracing::warn!(
                            "the callback '{}' does not take records, which are dropped: {why}",
                            self.name
                        );
                    }
                }
            }
        }
    }

    async fn try_all(&self, body: Bytes) -> Result<(), String> {
        let mut pauses = PAUSES.iter();
        loop {
            let mut request = Request::new(body.clone());
            *request.method_mut() = Method::POST;
            *request.uri_mut() = self.uri.clone();
            request.headers_mut().clone_from(&self.headers);
            let (why, may_pass, retry_after) = match self.client.deliver(request, TRY_MAX).await {
                Ok((status, _)) if status.is_success() => return Ok(()),
                Ok((status, retry_after)) => {
                    let may_pass = matches!(status.as_u16(), 408 | 429) || status.is_server_error();
                    (format!("it answers {status}"), may_pass, retry_after)
                }
                Err(e) => {
                    let may_pass = matches!(e.kind, FailureKind::Connect | FailureKind::Timeout);
                    (e.message, may_pass, None)
                }
            };
            let Some(pause) = pauses.next().filter(|_| may_pass) else { return Err(why) };
            sleep(retry_after.unwrap_or(*pause).min(PAUSE_MAX)).await;
        }
    }
}
