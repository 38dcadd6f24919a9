//! Turns the engine's events for one answer into the API's events.

use octet_api::core::{Event, FinishReason, RoutedExperts, TokenLogprob, TopLogprob};
use octet_engine::engine::{self, Finish, TokenRoutes};
use octet_engine::tokenizer::Tokenizer;
use octet_parser::{Changes, Delta};
use uuid::Uuid;

use super::answer_reader::{AnswerReader, Next};
use super::plan::Reader;

/// One answer.
pub struct Choice {
    index: u32,
    reader: Option<AnswerReader>,
    calls: u32,
    /// Log-probabilities of tokens whose text is not emitted yet.
    waiting: Vec<TokenLogprob>,
    logprobs: bool,
    /// What follows the text: tokens of a stop text are not part of the answer.
    next: Next,
    /// The next text begins the answer's content: white space and tags before it are not part of it.
    begins: bool,
    /// The client wants token ids.
    tokens: bool,
    /// The last token.
    last: Option<u32>,
    /// Number of reasoning tokens.
    pub reasoning_tokens: u64,
    /// Why it ended, if it has.
    pub finish: Option<FinishReason>,
}

impl Choice {
    /// A new answer.
    pub fn new(index: u32, reader: Option<&Reader>, logprobs: bool, tokens: bool) -> Self {
        Self {
            index,
            reader: reader.map(Reader::read),
            calls: 0,
            waiting: Vec::new(),
            logprobs,
            next: Next::Held(0),
            begins: reader.is_some(),
            tokens,
            last: None,
            reasoning_tokens: 0,
            finish: None,
        }
    }

    /// Emits the prompt, if the answer repeats it.
    pub fn echo(&mut self, text: &str, logprobs: Vec<TokenLogprob>, out: &mut Vec<Event>) {
        let choice = self.index;
        if !logprobs.is_empty() {
            out.push(Event::Logprobs { choice, tokens: logprobs });
        }
        out.push(Event::Text { choice, text: text.into() });
    }

    /// Processes a token.
    pub fn token(
        &mut self,
        tokenizer: &Tokenizer,
        id: u32,
        text: &str,
        logprob: Option<&engine::TokenLogprob>,
        routes: Option<&TokenRoutes>,
        out: &mut Vec<Event>,
    ) {
        self.last = Some(id);
        if self.reader.as_ref().is_some_and(AnswerReader::in_reasoning) {
            self.reasoning_tokens += 1;
        }
        if self.tokens {
            out.push(Event::Tokens { choice: self.index, ids: vec![id] });
        }
        // The end token is not part of the answer.
        if let Some(routes) = routes.filter(|_| !tokenizer.eos_ids().contains(&id)) {
            out.push(Event::RoutedExperts { choice: self.index, tokens: experts(tokenizer, id, routes) });
        }
        if self.logprobs {
            self.waiting.extend(logprob.map(|l| token_logprob(tokenizer, l)));
        }
        match self.reader.take() {
            None if text.is_empty() => {}
            None => self.push_text(text, out),
            Some(mut reader) => {
                reader.token(text, &mut |delta, next| self.delta(delta, next, out));
                self.reader = Some(reader);
            }
        }
    }

    fn push_text(&mut self, text: &str, out: &mut Vec<Event>) {
        let choice = self.index;
        if std::mem::replace(&mut self.begins, false) {
            self.waiting.drain(..before(&self.waiting, text));
        }
        let n = match self.next {
            Next::Stop => within(&self.waiting, text.len()),
            Next::Held(bytes) => self.waiting.len() - last_of(&self.waiting, bytes),
        };
        if n > 0 {
            out.push(Event::Logprobs { choice, tokens: self.waiting.drain(..n).collect() });
        }
        out.push(Event::Text { choice, text: text.into() });
    }

    /// The APIs report log-probabilities of the content only.
    fn drop_waiting(&mut self) {
        self.waiting.clear();
        self.begins = true;
    }

    /// A part of the answer.
    fn delta(&mut self, delta: Delta<'_>, next: Next, out: &mut Vec<Event>) {
        let choice = self.index;
        self.next = next;
        match delta {
            Delta::Content(text) => self.push_text(text, out),
            Delta::Reasoning(text) => {
                self.drop_waiting();
                out.push(Event::Reasoning { choice, text: text.into() });
            }
            Delta::Call { name, .. } => {
                self.drop_waiting();
                let id = format!("call_{}", Uuid::new_v4().simple());
                out.push(Event::ToolCallStart { choice, index: self.calls, id, name: name.into() });
                self.calls += 1;
            }
            Delta::Arguments(text) => {
                self.drop_waiting();
                let index = self.calls.saturating_sub(1);
                out.push(Event::ToolCallArguments { choice, index, text: text.into() });
            }
        }
    }

    /// The answer is complete. Returns what was changed of it.
    pub fn done(
        &mut self,
        tokenizer: &Tokenizer,
        finish: Finish,
        stop: Option<String>,
        out: &mut Vec<Event>,
    ) -> Changes {
        // The end token is not part of the answer.
        if self.last.is_some_and(|id| finish == Finish::StopToken || tokenizer.eos_ids().contains(&id)) {
            self.waiting.pop();
        }
        // The engine found a stop text itself.
        self.next = if finish == Finish::StopString { Next::Stop } else { Next::Held(0) };
        let (mut changes, mut stop) = (Changes::default(), stop);
        if let Some(mut reader) = self.reader.take() {
            changes = reader.finish(finish == Finish::Length, &mut |delta, next| {
                self.delta(delta, next, out);
            });
            stop = reader.stopped_by().map(str::to_string);
        }
        let reason = match (finish, stop) {
            (Finish::Length, None) => FinishReason::Length,
            _ if self.calls > 0 => FinishReason::ToolCalls,
            (_, Some(stop)) => FinishReason::StopSequence(stop),
            (Finish::StopString | Finish::EndOfText | Finish::StopToken | Finish::Cancelled, None) => {
                FinishReason::Stop
            }
        };
        out.push(Event::Finished { choice: self.index, reason: reason.clone() });
        self.finish = Some(reason);
        changes
    }
}

/// The number of tokens that begin within the first `bytes` bytes.
fn within(tokens: &[TokenLogprob], bytes: usize) -> usize {
    let mut begin = 0;
    let is_within = |token: &&TokenLogprob| {
        let is_within = begin < bytes;
        begin += token.bytes.len();
        is_within
    };
    tokens.iter().take_while(is_within).count()
}

/// The number of last tokens that lie within the last `bytes` bytes.
fn last_of(tokens: &[TokenLogprob], bytes: usize) -> usize {
    let mut left = bytes;
    let is_within = |token: &&TokenLogprob| {
        let rest = left.checked_sub(token.bytes.len());
        left = rest.unwrap_or(0);
        rest.is_some() && !token.bytes.is_empty()
    };
    tokens.iter().rev().take_while(is_within).count()
}

/// The number of tokens before those that begin with `text`: tags, and white space that is not in the text.
fn before(tokens: &[TokenLogprob], text: &str) -> usize {
    let (mut bytes, mut starts) = (Vec::new(), Vec::new());
    for token in tokens {
        starts.push(bytes.len());
        bytes.extend_from_slice(&token.bytes);
    }
    let keeps_blanks = text.starts_with(char::is_whitespace);
    let begins = |rest: &[u8]| {
        let rest = if keeps_blanks { rest } else { rest.trim_ascii_start() };
        rest.starts_with(text.as_bytes())
    };
    let is_all = |at: &usize| keeps_blanks && &bytes[*at..] == text.as_bytes();
    let found = starts.iter().position(is_all).or_else(|| starts.iter().position(|&at| begins(&bytes[at..])));
    // Nothing, where the text has other bytes than its tokens: those are not characters.
    let tags = found.unwrap_or(0);
    let is_blank = |t: &&TokenLogprob| t.bytes.trim_ascii().is_empty();
    let blanks = tokens[tags..].iter().take_while(is_blank).count();
    if keeps_blanks { tags } else { tags + blanks }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn token_logprob(tokenizer: &Tokenizer, l: &engine::TokenLogprob) -> TokenLogprob {
    let bytes = tokenizer.token_bytes(l.id);
    let top = l.top.iter().map(|(id, logprob)| {
        let bytes = tokenizer.token_bytes(*id);
        TopLogprob { id: Some(*id), token: text(bytes), bytes: bytes.to_vec(), logprob: *logprob }
    });
    TokenLogprob {
        id: Some(l.id),
        token: text(bytes),
        bytes: bytes.to_vec(),
        logprob: Some(l.logprob),
        top: top.collect(),
    }
}

fn experts(tokenizer: &Tokenizer, id: u32, routes: &TokenRoutes) -> RoutedExperts {
    let layers = routes.gates.len();
    RoutedExperts {
        layers,
        per_token: routes.experts.len() / layers.max(1),
        tokens: vec![text(tokenizer.token_bytes(id))],
        experts: routes.experts.to_vec(),
        gates: routes.gates.to_vec(),
    }
}

/// Log-probabilities of a prompt; its first token has none.
pub fn prompt_logprobs(
    tokenizer: &Tokenizer,
    tokens: &[u32],
    scores: &[engine::TokenLogprob],
) -> Vec<TokenLogprob> {
    let first = tokens.first().map(|id| {
        let bytes = tokenizer.token_bytes(*id);
        TokenLogprob {
            id: Some(*id),
            token: text(bytes),
            bytes: bytes.to_vec(),
            logprob: None,
            top: Vec::new(),
        }
    });
    first.into_iter().chain(scores.iter().map(|l| token_logprob(tokenizer, l))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_and_white_space_before_the_content_have_no_log_probabilities() {
        let token = |text: &str| TokenLogprob {
            id: None,
            token: text.into(),
            bytes: text.into(),
            logprob: Some(-1.0),
            top: Vec::new(),
        };
        for (tokens, text, dropped) in [
            (&["</think>", "\n\n", "Hello"][..], "Hello", 2),
            (&["\n", "</think>", "\n", "\n", "a"], "a", 4),
            (&["</think>", " a"], "a", 1),
            (&["\n</tool_call>", "\nDone"], "Done", 1),
            (&["a"], "a", 0),
            (&["\n", "a"], "\na", 0),
            (&["\n"], "\n", 0),
            (&["</think>", "\n", "\u{b}"], "\u{b}", 2),
            (&["</think>", "\n\n", "\n"], "\n", 2),
            // The rest of the last token may become a tag.
            (&["<", " a <"], "< a ", 0),
            (&["a", "a"], "a", 0),
            (&["\u{fffd}"], "other", 0),
        ] {
            let tokens: Vec<TokenLogprob> = tokens.iter().map(|t| token(t)).collect();
            assert_eq!(before(&tokens, text), dropped, "{text:?}");
        }
    }
}
