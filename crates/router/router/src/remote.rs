//! A provider as a target of the router. Created by the server for each remote deployment.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use http::HeaderMap;
use octet_api::core::{Event, Usage};
use octet_config::Provider;
use octet_upstream::{AnswerMemory, Client, Dialect, Endpoint, Forward, Raw};

use crate::failure::{Failure, FailureKind};
use crate::resume::{self, Rest};
use crate::size::bytes_with_images;
use crate::target::{Ask, Events, Piece, Sent, Target};

/// A model at a provider.
#[derive(Debug, Clone)]
pub struct Remote {
    client: Client,
    endpoint: Endpoint,
}

impl Remote {
    /// The model at `endpoint`, over the connections of `client`.
    pub fn new(client: Client, endpoint: Endpoint) -> Self {
        Self { client, endpoint }
    }
}

/// Whether a request in this dialect is for text and can be translated. Embeddings and token counts are only forwarded.
pub(crate) fn generates(dialect: Dialect) -> bool {
    use Dialect as D;
    !matches!(
        dialect,
        D::OpenAiEmbeddings
            | D::OllamaEmbed
            | D::AnthropicCountTokens
            | D::GeminiCountTokens
            | D::GeminiEmbed
            | D::GeminiBatchEmbed
            | D::Passed(_)
    )
}

/// A provider's answer.
#[derive(Debug)]
pub enum Answer {
    /// Translated events.
    Events(octet_upstream::Events),
    /// The continuation of another answer.
    Rest(Continued),
    /// Raw bytes.
    Raw(Raw),
}

/// The continuation of an answer by a provider.
#[derive(Debug)]
pub struct Continued {
    events: octet_upstream::Events,
    rest: Rest,
}

impl Continued {
    async fn next(&mut self) -> Option<Result<Piece, Failure>> {
        loop {
            match self.events.next().await?.and_then(|event| self.rest.process(event)) {
                Ok(Some(event)) => return Some(Ok(event.into())),
                Ok(None) => {}
                Err(failure) => return Some(Err(failure)),
            }
        }
    }
}

impl Target for Remote {
    type Events = Answer;

    async fn generate(&self, ask: Ask<'_>) -> Result<Answer, Failure> {
        let template = self.endpoint.model();
        let filled = template.contains('*').then(|| self.endpoint.with_model(ask.fill(template)));
        let endpoint = filled.as_ref().unwrap_or(&self.endpoint);
        if let Some(o) = ask.original.filter(|o| !generates(o.dialect) && !endpoint.speaks(o.dialect)) {
            let what = format!("{} has nothing like {:?}", endpoint.provider().name(), o.dialect);
            return Err(Failure::new(FailureKind::BadRequest, what));
        }
        if ask.resumed {
            let (request, rest) = resume::of(ask.request);
            let (request, bytes) = (Arc::new(request), bytes_with_images(ask.request));
            let events = self.client.generate_in(endpoint, &request, bytes, ask.traceparent).await?;
            return Ok(Answer::Rest(Continued { events, rest }));
        }
        match ask.original.filter(|o| endpoint.forwards(o.dialect, &o.body)) {
            Some(o) => {
                let (headers, body) = (&o.headers, &o.body);
                let stream = ask.request.stream;
                let (upload, memory) = (o.upload.as_ref(), &ask.request.memory);
                let model = Some(ask.request.model.as_str());
                let forward =
                    Forward { dialect: o.dialect, model, headers, body, upload, memory, stream, usage: true };
                self.client.forward(endpoint, forward).await.map(Answer::Raw)
            }
            None => {
                let bytes = bytes_with_images(ask.request);
                let answer = self.client.generate_in(endpoint, ask.request, bytes, ask.traceparent);
                answer.await.map(Answer::Events)
            }
        }
    }

    fn model(&self) -> &str {
        self.endpoint.model()
    }

    fn has_logprobs(&self) -> bool {
        self.endpoint.provider() != Provider::Anthropic
    }

    fn continues(&self, sent: &Sent) -> bool {
        // Reasoning alone cannot be continued: whether a server closes it is unknown.
        self.may_continue() && sent.is_begun()
    }

    fn may_continue(&self) -> bool {
        self.endpoint.settings().remote.continues
    }

    async fn check(&self) -> Result<(), Failure> {
        self.client.probe(&self.endpoint).await.map(drop)
    }
}

impl Events for Answer {
    async fn next(&mut self) -> Option<Result<Piece, Failure>> {
        match self {
            Self::Events(events) => events.next().await.map(|e| e.map(|e: Event| e.into())),
            Self::Rest(continued) => continued.next().await,
            Self::Raw(raw) => raw.next().await.map(|b| b.map(Piece::Raw)),
        }
    }

    // A poll without a waker: the next one is by a task that waits.
    fn try_next(&mut self) -> Option<Result<Piece, Failure>> {
        match pin!(self.next()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(next) => next,
            Poll::Pending => None,
        }
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn flows(&self) -> bool {
        matches!(self, Self::Raw(raw) if raw.flows())
    }

    fn memory(&self) -> Option<AnswerMemory> {
        match self {
            Self::Events(events) => events.memory(),
            Self::Rest(_) | Self::Raw(_) => None,
        }
    }

    fn warnings(&self) -> &[String] {
        match self {
            Self::Events(events) => events.warnings(),
            Self::Rest(_) => &[],
            Self::Raw(raw) => raw.warnings(),
        }
    }

    fn usage(&self) -> Option<Usage> {
        match self {
            Self::Events(_) | Self::Rest(_) => None,
            Self::Raw(raw) => raw.usage(),
        }
    }

    fn headers(&self) -> Option<&HeaderMap> {
        match self {
            Self::Events(_) | Self::Rest(_) => None,
            Self::Raw(raw) => Some(raw.headers()),
        }
    }
}
