//! An answer that hooks see before the client does: it is collected, and sent as they leave it.
//!
//! A streamed answer too: its client gets keep-alives until the hooks have answered, then all of it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use octet_api::core::{Answer, Event, GenerateRequest};
use octet_api::{ApiError, ErrorKind};
use octet_config::Hook;
use octet_router::{AnswerMemory, Piece};
use serde_json::Value;
use tokio::task::JoinHandle;

use super::hooks::About;
use super::reply::Form;
use crate::answer_source::{AnswerSource, Facts};
use crate::blocking::run_sized;
use crate::gateway::{Gateway, RoutedRequest};

/// See the module.
pub struct CheckedAnswer {
    inner: RoutedRequest,
    /// What has arrived, and how it is checked; `None` when the hooks are asked.
    collecting: Option<(Collected, Check)>,
    /// The hooks are asked in a task of their own: once, however often [`AnswerSource::next`] is cancelled.
    asked: Option<JoinHandle<Result<Vec<Piece>, ApiError>>>,
    /// The pieces for the client.
    pieces: VecDeque<Piece>,
}

/// How answers are checked.
pub struct Check {
    pub gateway: Arc<Gateway>,
    pub hooks: Arc<[Hook]>,
    pub about: About,
    /// The client's request.
    pub asked: Option<Bytes>,
    pub form: Form,
    /// Maximum bytes of an answer.
    pub bytes_max: usize,
}

#[derive(Default)]
struct Collected {
    events: Vec<Event>,
    raw: Vec<u8>,
    is_complete: bool,
}

impl CheckedAnswer {
    pub fn new(inner: RoutedRequest, check: Check) -> Self {
        let collecting = Some((Collected::default(), check));
        Self { inner, collecting, asked: None, pieces: VecDeque::new() }
    }

    /// Waits until the hooks have seen the answer, for at most `most`.
    ///
    /// # Errors
    /// The answer's, a hook's refusal.
    pub async fn decide(&mut self, most: Option<Duration>) -> Result<(), ApiError> {
        match most {
            Some(most) => tokio::time::timeout(most, self.check()).await.unwrap_or(Ok(())),
            None => self.check().await,
        }
    }

    /// Collects the answer, asks the hooks, and waits for what they say. Cancel-safe.
    async fn check(&mut self) -> Result<(), ApiError> {
        if let Some((collected, check)) = &mut self.collecting {
            while !collected.is_complete {
                match self.inner.next().await {
                    Some(Piece::Event(Event::Error(e))) => {
                        self.collecting = None;
                        return Err(e);
                    }
                    Some(Piece::Event(event)) => collected.events.push(event),
                    Some(Piece::Raw(bytes)) => collected.raw.extend_from_slice(&bytes),
                    None => collected.is_complete = true,
                }
                if collected.raw.len() > check.bytes_max {
                    self.collecting = None;
                    let what = "the answer is too long to be checked";
                    return Err(ApiError::new(ErrorKind::Upstream, what));
                }
            }
        }
        if let Some((collected, check)) = self.collecting.take() {
            let request = self.inner.request();
            self.asked = Some(tokio::spawn(check.ask(request, collected)));
        }
        if let Some(asked) = &mut self.asked {
            let answered = asked.await;
            self.asked = None;
            let answered = answered.map_err(|e| ApiError::new(ErrorKind::Internal, e.to_string()))?;
            self.pieces = answered?.into();
        }
        Ok(())
    }
}

impl Drop for CheckedAnswer {
    fn drop(&mut self) {
        if let Some(asked) = &self.asked {
            asked.abort();
        }
    }
}

impl Check {
    /// Asks the hooks; the pieces of the answer as they leave it.
    async fn ask(self, request: Arc<GenerateRequest>, collected: Collected) -> Result<Vec<Piece>, ApiError> {
        let Collected { events, raw, .. } = collected;
        let Self { gateway, hooks, about, asked, form, bytes_max } = self;
        let (whole, changed) = (form.whole, form.changed);
        let is_raw = !raw.is_empty();
        let (events, body) = run_sized(usize::MAX, move || {
            if is_raw {
                return (events, raw);
            }
            let mut answer = Answer::default();
            events.iter().for_each(|event| answer.push(event));
            (events, whole(&request, &answer))
        })
        .await?;
        let new = about.ask(&gateway, &hooks, &body, asked.as_deref(), bytes_max).await?;
        let events = match new {
            new if is_raw => return Ok(vec![Piece::Raw(new.unwrap_or_else(|| body.into()))]),
            None => events,
            Some(new) => run_sized(new.len(), move || changed(&new, events)).await?.map_err(|e| {
                tracing::error!("a hook has changed an answer to what is no answer: {}", e.message);
                ApiError::new(ErrorKind::Internal, "the answer cannot be checked at the moment; try again")
            })?,
        };
        Ok(events.into_iter().map(Piece::Event).collect())
    }
}

/// The events of an answer whose texts were changed: `texts` has one for each choice. For dialects that have only texts.
pub fn with_texts(events: Vec<Event>, texts: Vec<Option<String>>) -> Result<Vec<Event>, ApiError> {
    let mut out = Vec::new();
    let mut texts: Vec<Option<String>> = texts;
    for event in events {
        match event {
            Event::Text { .. }
            | Event::Logprobs { .. }
            | Event::Tokens { .. }
            | Event::RoutedExperts { .. } => {}
            Event::Finished { choice, reason } => {
                let text = texts.get_mut(choice as usize).and_then(Option::take);
                let text = text.ok_or_else(|| ApiError::upstream("it has no text"))?;
                out.extend([Event::Text { choice, text }, Event::Finished { choice, reason }]);
            }
            other => out.push(other),
        }
    }
    Ok(out)
}

/// The member of a JSON object that is the answer's text.
pub fn text_of(body: &[u8], member: &str) -> Vec<Option<String>> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    vec![body[member].as_str().map(str::to_string)]
}

/// The text of each choice.
pub fn texts_of(body: &[u8]) -> Vec<Option<String>> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let mut choices = body["choices"].as_array().cloned().unwrap_or_default();
    choices.sort_by_key(|choice| choice["index"].as_u64());
    choices.iter().map(|choice| choice["text"].as_str().map(str::to_string)).collect()
}

impl AnswerSource for CheckedAnswer {
    fn request(&self) -> Arc<GenerateRequest> {
        self.inner.request()
    }

    fn facts(&mut self) -> Facts {
        self.inner.facts()
    }

    fn owner(&self) -> Option<&Arc<str>> {
        self.inner.owner()
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn flows(&self) -> bool {
        false
    }

    fn memory(&self) -> Option<AnswerMemory> {
        self.inner.memory()
    }

    async fn next(&mut self) -> Option<Piece> {
        match self.check().await {
            Ok(()) => self.pieces.pop_front(),
            Err(e) => Some(Piece::Event(Event::Error(e))),
        }
    }

    fn try_next(&mut self) -> Option<Piece> {
        self.pieces.pop_front()
    }

    fn wrote(&mut self, bytes: &[u8]) {
        self.inner.wrote(bytes);
    }

    fn finished(&mut self) {
        self.inner.finished();
    }
}
