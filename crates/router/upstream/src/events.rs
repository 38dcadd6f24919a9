//! An answer as events, from any provider. Returned by `Client::generate`; read by the router.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use octet_api::ApiError;
use octet_api::core::Event;
use octet_api::dialect::StreamReader;

use crate::accept::Names;
use crate::body::Body;
use crate::endpoint::Endpoint;
use crate::failure::Failure;
use crate::long::AnswerMemory;

/// The events of an answer. Ends after the last of them, or after one failure; never with [`Event::Error`]. Dropping it cancels the call.
pub struct Events {
    source: Source,
    queue: VecDeque<Event>,
    scratch: Vec<Event>,
    /// The failure after the queued events.
    failure: Option<Failure>,
    /// An event other than `Started` was returned.
    sent_any: bool,
    /// What was changed or left out of the request for the model.
    warnings: Vec<String>,
    /// The client's names of tools.
    names: Names,
    endpoint: Endpoint,
    /// The share of the memory for long answers.
    memory: Option<AnswerMemory>,
}

enum Source {
    /// All events are queued.
    Done,
    Stream {
        body: Body,
        reader: Box<dyn StreamReader>,
    },
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("queue", &self.queue).finish_non_exhaustive()
    }
}

impl Events {
    pub(crate) fn whole(events: Vec<Event>, memory: Option<AnswerMemory>, endpoint: &Endpoint) -> Self {
        let mut this = Self { memory, ..Self::new(Source::Done, endpoint) };
        this.process(events);
        this
    }

    pub(crate) fn stream(body: Body, reader: Box<dyn StreamReader>, endpoint: &Endpoint) -> Self {
        Self::new(Source::Stream { body, reader }, endpoint)
    }

    fn new(source: Source, endpoint: &Endpoint) -> Self {
        Self {
            source,
            queue: VecDeque::new(),
            scratch: Vec::new(),
            failure: None,
            sent_any: false,
            warnings: Vec::new(),
            names: Names::default(),
            endpoint: endpoint.clone(),
            memory: None,
        }
    }

    /// The memory that a long answer takes, for whoever keeps its text.
    pub fn memory(&self) -> Option<AnswerMemory> {
        self.memory.clone()
    }

    /// The answer to a request that was changed for its model.
    pub(crate) fn of_request(mut self, warnings: Vec<String>, names: Names) -> Self {
        self.queue.iter_mut().for_each(|event| names.restore(event));
        (self.warnings, self.names) = (warnings, names);
        self
    }

    /// Fields of the request that were changed or left out for the model.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The next event; `None` after the last. (The same as the [`Stream`].)
    pub async fn next(&mut self) -> Option<Result<Event, Failure>> {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    fn process(&mut self, events: Vec<Event>) -> Vec<Event> {
        let mut events = events;
        for event in events.drain(..) {
            match event {
                Event::Error(e) => self.fail(e),
                mut event => {
                    self.names.restore(&mut event);
                    self.queue.push_back(event);
                }
            }
        }
        events
    }

    fn fail(&mut self, e: ApiError) {
        self.failure.get_or_insert(Failure::reported(e, None));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Event, Failure>>> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                self.sent_any |= !matches!(event, Event::Started { .. });
                return Poll::Ready(Some(Ok(event)));
            }
            if let Some(mut failure) = self.failure.take() {
                self.source = Source::Done;
                failure.sent_any = self.sent_any;
                return Poll::Ready(Some(Err(failure.without_keys(&self.endpoint))));
            }
            let Source::Stream { body, reader } = &mut self.source else { return Poll::Ready(None) };
            let piece = body.poll_next(cx);
            let mut events = std::mem::take(&mut self.scratch);
            match piece {
                Poll::Ready(Some(Ok(bytes))) => {
                    // Bytes after the end are read only so that the connection can be reused.
                    reader.push(&bytes, &mut events);
                }
                Poll::Ready(Some(Err(e))) if !reader.is_over() => self.failure = Some(e),
                Poll::Ready(None) => {
                    reader.end(&mut events);
                    self.source = Source::Done;
                }
                Poll::Ready(Some(Err(_))) => self.source = Source::Done,
                Poll::Pending if reader.is_over() => {
                    if let Source::Stream { body, .. } = std::mem::replace(&mut self.source, Source::Done) {
                        body.drain();
                    }
                }
                Poll::Pending => {
                    self.scratch = events;
                    return Poll::Pending;
                }
            }
            self.scratch = self.process(events);
        }
    }
}

impl Stream for Events {
    type Item = Result<Event, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(cx)
    }
}
