//! Runs one request at a time on the caller's thread, for `octet run` and `octet perplexity`.

use std::ops::ControlFlow;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::event::{Event, Finish, TokenLogprob};
use super::request::entropy;
use super::{Engine, Request, RequestId, SubmitError};
use crate::Error;
use crate::sampler::SamplerError;

/// An answer with its statistics.
#[derive(Debug, Clone)]
pub struct Answer {
    /// Its text, without control tokens.
    pub text: String,
    /// Its tokens, the last one included even if it is not text.
    pub tokens: Vec<u32>,
    /// Log-probabilities of the tokens, if requested.
    pub logprobs: Vec<TokenLogprob>,
    /// Why it ended.
    pub finish: Finish,
    /// Its seed: the same request with this seed gives the same answer.
    pub seed: u64,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Cached ones among them.
    pub cached_tokens: usize,
    /// From the call to the first token.
    pub prompt_time: Duration,
    /// From there to the last one.
    pub generate_time: Duration,
    /// Computed and accepted guesses ([`super::Timings`]).
    pub drafted: usize,
    /// See `drafted`.
    pub accepted: usize,
}

impl From<SubmitError> for Error {
    fn from(e: SubmitError) -> Self {
        match e {
            SubmitError::TooLong { prompt, context, .. } => Error::ContextFull { tokens: prompt, context },
            SubmitError::Invalid(e) => e,
            SubmitError::QueueFull { .. } | SubmitError::Stopping => Error::Stopped,
        }
    }
}

impl Engine {
    /// Answers a request, calling `on_text` with each piece of complete text, and with none before each step of the prompt, so that a
    /// long one can be interrupted. An answer is limited to the context.
    pub fn generate(
        &mut self,
        mut request: Request,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Answer, Error> {
        // An image stands in the prompt as one token.
        let of_images: usize = request.images.iter().map(|image| image.prompt_len().saturating_sub(1)).sum();
        let prompt_tokens = request.prompt.len() + of_images;
        let room = self.context().saturating_sub(prompt_tokens);
        request.max_tokens = request.max_tokens.map(|n| n.min(room.max(1)));
        let mut answer = Answer {
            text: String::new(),
            tokens: Vec::new(),
            logprobs: Vec::new(),
            finish: Finish::Cancelled,
            seed: *request.sampling.seed.get_or_insert_with(entropy),
            prompt_tokens,
            cached_tokens: 0,
            prompt_time: Duration::ZERO,
            generate_time: Duration::ZERO,
            drafted: 0,
            accepted: 0,
        };
        let start = Instant::now();
        let mut first = None;
        let mut broken_off = false;
        self.drive(request, &mut |engine, id, event| {
            // The remaining tokens of a step are dropped.
            if broken_off {
                return;
            }
            let mut go_on = |text: &str| {
                if on_text(text).is_break() {
                    broken_off = true;
                    engine.cancel(id);
                }
            };
            match event {
                None => go_on(""),
                Some(Event::Admitted { cached_tokens, .. }) => answer.cached_tokens = cached_tokens,
                Some(Event::Token { id, text, logprob, .. }) => {
                    first.get_or_insert_with(|| start.elapsed());
                    answer.tokens.push(id);
                    answer.logprobs.extend(logprob);
                    answer.text.push_str(&text);
                    go_on(&text);
                }
                Some(Event::Done { finish, timings, .. }) => {
                    answer.finish = finish;
                    (answer.drafted, answer.accepted) = (timings.drafted, timings.accepted);
                }
                Some(_) => {}
            }
        })?;
        answer.prompt_time = first.unwrap_or_else(|| start.elapsed());
        answer.generate_time = start.elapsed() - answer.prompt_time;
        Ok(answer)
    }

    /// Negative log-likelihood of each token but the first, given those before it. `tick` gets the number of finished tokens. Fails if
    /// the model computes values that are not finite.
    pub fn score(&mut self, tokens: &[u32], tick: &mut dyn FnMut(usize)) -> Result<Vec<f32>, Error> {
        let request = Request {
            prompt: tokens.to_vec(),
            max_tokens: Some(0),
            prompt_logprobs: Some(0),
            cache: false,
            ..Request::default()
        };
        let mut nll = Vec::with_capacity(tokens.len());
        self.drive(request, &mut |_, _, event| match event {
            Some(Event::PromptProgress { done, total }) => tick(done.min(total - 1)),
            Some(Event::PromptLogprobs(scores)) => nll.extend(scores.iter().map(|s| -s.logprob)),
            _ => {}
        })?;
        if let Some(i) = nll.iter().position(|x| !x.is_finite()) {
            return Err(SamplerError::NotFinite { id: tokens[i + 1], value: nll[i] }.into());
        }
        Ok(nll)
    }

    /// Runs until `request` is finished or cancelled. `hear` is called with each event, and without one before each step of the
    /// prompt.
    fn drive(
        &mut self,
        request: Request,
        hear: &mut dyn FnMut(&mut Engine, RequestId, Option<Event>),
    ) -> Result<(), Error> {
        let (send, events) = channel();
        let prepared = self.rules.prepare(request)?;
        let id = self.submit(prepared, Box::new(send));
        let mut in_prompt = true;
        let mut result = Ok(());
        // The engine owns the sender: it is dropped with the request.
        loop {
            if in_prompt {
                hear(self, id, None);
            }
            self.step();
            loop {
                match events.try_recv() {
                    Ok(Event::Failed(e)) => result = Err(e),
                    Ok(event) => {
                        in_prompt &= !matches!(event, Event::Token { .. });
                        hear(self, id, Some(event));
                    }
                    Err(std::sync::mpsc::TryRecvError::Empty) => break,
                    Err(std::sync::mpsc::TryRecvError::Disconnected) => return result,
                }
            }
        }
    }
}
