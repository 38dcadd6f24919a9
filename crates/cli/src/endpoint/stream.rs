//! Reads a streamed answer and records when its chunks arrive, and what it says.

use std::time::Duration;

use octet_api::sse::SseDecoder;
use serde_json::Value;

/// Maximum size of an event.
const EVENT_BYTES_MAX: usize = 4 << 20;
/// Maximum size of an answer whose text is kept.
const ANSWER_BYTES_MAX: usize = 4 << 20;
/// Maximum number of calls in such an answer.
const CALLS_MAX: usize = 128;
/// Maximum length of a printed message.
const MESSAGE_CHARS_MAX: usize = 200;

/// Why a request has no measurement, in one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure(pub String);

/// The measurements of one request.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Arrival times of the chunks with text, relative to sending; at least one.
    pub arrivals: Vec<Duration>,
    /// Tokens of the answer: as reported by the endpoint, or else the number of chunks.
    pub tokens: u64,
    /// The endpoint reported the number.
    pub has_usage: bool,
    /// Prompt tokens, if reported.
    pub prompt_tokens: Option<u64>,
    /// Cached prompt tokens, if reported.
    pub cached_tokens: Option<u64>,
}

impl Sample {
    /// Time to first token in seconds.
    pub fn ttft(&self) -> f64 {
        self.arrivals.first().map_or(0.0, Duration::as_secs_f64)
    }

    /// Time to the last token in seconds.
    pub fn latency(&self) -> f64 {
        self.arrivals.last().map_or(0.0, Duration::as_secs_f64)
    }

    /// Time per output token after the first in seconds.
    pub fn tpot(&self) -> Option<f64> {
        (self.tokens > 1).then(|| (self.latency() - self.ttft()) / (self.tokens - 1) as f64)
    }

    /// Times between chunks in seconds.
    pub fn gaps(&self) -> impl Iterator<Item = f64> + '_ {
        self.arrivals.windows(2).map(|w| w[1].saturating_sub(w[0]).as_secs_f64())
    }
}

/// What an answer says. Reasoning is left out.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Said {
    pub content: String,
    pub calls: Vec<SaidCall>,
}

/// A call of a tool, with its arguments as JSON.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SaidCall {
    pub name: String,
    pub arguments: String,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Answer {
    pub said: Said,
    /// Times of the first and the last chunk with text; 0 without text.
    times: [Duration; 2],
    /// Tokens, as reported by the endpoint, or else the number of chunks.
    pub tokens: u64,
    /// It ended because it had become too long.
    pub is_cut_off: bool,
}

impl Answer {
    /// Time to first token in seconds.
    pub fn first_s(&self) -> f64 {
        self.times[0].as_secs_f64()
    }

    /// Time to the last token in seconds.
    pub fn seconds(&self) -> f64 {
        self.times[1].as_secs_f64()
    }
}

impl Said {
    /// Adds what a delta says.
    fn add(&mut self, delta: &Value) -> Result<(), Failure> {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_string();
        self.content += &text(&delta["content"]);
        for call in delta["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default() {
            // Without a number, one with a name begins a call.
            let (function, last) = (&call["function"], self.calls.len().saturating_sub(1));
            let begins = function["name"].as_str().is_some_and(|n| !n.is_empty());
            let next = if begins { self.calls.len() } else { last };
            let at = call["index"].as_u64().map_or(next, |i| usize::try_from(i).unwrap_or(usize::MAX));
            if at >= CALLS_MAX {
                return Err(Failure(format!("the answer makes more than {CALLS_MAX} calls")));
            }
            if at >= self.calls.len() {
                self.calls.resize(at + 1, SaidCall::default());
            }
            let (name, arguments) = (text(&function["name"]), text(&function["arguments"]));
            self.calls[at].name += &name;
            self.calls[at].arguments += &arguments;
        }
        let calls: usize = self.calls.iter().map(|c| c.name.len() + c.arguments.len()).sum();
        match self.content.len() + calls > ANSWER_BYTES_MAX {
            true => Err(Failure(format!("the answer is longer than {ANSWER_BYTES_MAX} bytes"))),
            false => Ok(()),
        }
    }
}

/// A stream being read.
pub struct Reader {
    /// What the answer says, if it is kept.
    said: Option<Said>,
    decoder: SseDecoder,
    arrivals: Vec<Duration>,
    usage: Option<Value>,
    /// A finish reason has arrived.
    is_finished: bool,
    is_cut_off: bool,
    /// `[DONE]` has arrived.
    is_done: bool,
}

impl Reader {
    pub fn new() -> Self {
        Self {
            said: None,
            decoder: SseDecoder::with_limit(EVENT_BYTES_MAX),
            arrivals: Vec::new(),
            usage: None,
            is_finished: false,
            is_cut_off: false,
            is_done: false,
        }
    }

    /// Keeps what the answer says.
    pub fn keeping() -> Self {
        Self { said: Some(Said::default()), ..Self::new() }
    }

    /// Processes bytes that arrived at `at`; returns whether they end the stream.
    pub fn push(&mut self, bytes: &[u8], at: Duration) -> Result<bool, Failure> {
        self.decoder.push(bytes);
        while let Some(event) = self.decoder.next_event().map_err(|e| Failure(e.to_string()))? {
            if self.is_done {
                break;
            }
            if event.data.trim() == "[DONE]" {
                self.is_done = true;
            } else {
                self.event(&event.data, at)?;
            }
        }
        Ok(self.is_done)
    }

    fn event(&mut self, data: &str, at: Duration) -> Result<(), Failure> {
        let no_json = |_| Failure(format!("an event of the stream is not JSON: {}", line(data)));
        let mut event: Value = serde_json::from_str(data).map_err(no_json)?;
        let is_error = !event["error"].is_null() || event["choices"].is_null();
        if let Some(message) = error_message(&event).filter(|_| is_error) {
            return Err(Failure(format!("the stream reports an error: {message}")));
        }
        let choices = event["choices"].as_array().map(Vec::as_slice).unwrap_or_default();
        if choices.iter().any(|c| has_text(&c["delta"])) {
            self.arrivals.push(at);
        }
        if let (Some(said), Some(choice)) = (&mut self.said, choices.first()) {
            said.add(&choice["delta"])?;
        }
        self.is_finished |= choices.iter().any(|c| c["finish_reason"].is_string());
        self.is_cut_off |= choices.iter().any(|c| c["finish_reason"] == "length");
        if event["usage"].is_object() {
            self.usage = Some(event["usage"].take());
        }
        Ok(())
    }

    /// Fails if the stream has no end.
    fn is_whole(&self) -> Result<(), Failure> {
        if self.is_done || self.is_finished {
            return Ok(());
        }
        let pieces = crate::units::count(self.arrivals.len(), "piece");
        Err(Failure(format!("the stream broke off after {pieces}")))
    }

    /// The answer, at the end of the stream. It may be empty.
    pub fn answer(self) -> Result<Answer, Failure> {
        self.is_whole()?;
        let time = |at: Option<&Duration>| at.copied().unwrap_or_default();
        let reported = self.usage.as_ref().and_then(|u| u["completion_tokens"].as_u64());
        Ok(Answer {
            times: [time(self.arrivals.first()), time(self.arrivals.last())],
            tokens: reported.unwrap_or(self.arrivals.len() as u64),
            is_cut_off: self.is_cut_off,
            said: self.said.unwrap_or_default(),
        })
    }

    /// The sample, at the end of the stream.
    pub fn end(self) -> Result<Sample, Failure> {
        self.is_whole()?;
        if self.arrivals.is_empty() {
            return Err(Failure("the answer holds no text".into()));
        }
        let usage = self.usage.unwrap_or_default();
        let reported = usage["completion_tokens"].as_u64().filter(|&n| n > 0);
        Ok(Sample {
            tokens: reported.unwrap_or(self.arrivals.len() as u64),
            has_usage: reported.is_some(),
            prompt_tokens: usage["prompt_tokens"].as_u64(),
            cached_tokens: usage["prompt_tokens_details"]["cached_tokens"].as_u64(),
            arrivals: self.arrivals,
        })
    }
}

/// Whether a delta has text of the answer, of reasoning, or of a call.
fn has_text(delta: &Value) -> bool {
    let has_text = |v: &Value| v.as_str().is_some_and(|s| !s.is_empty());
    let called = |c: &Value| has_text(&c["function"]["arguments"]) || has_text(&c["function"]["name"]);
    ["content", "reasoning_content", "reasoning", "refusal"].iter().any(|&key| has_text(&delta[key]))
        || delta["tool_calls"].as_array().is_some_and(|calls| calls.iter().any(called))
}

/// The error message in a JSON body, in the forms of OpenAI, Ollama and FastAPI.
pub fn error_message(body: &Value) -> Option<String> {
    let candidates = [&body["error"]["message"], &body["error"], &body["message"], &body["detail"]];
    let value = candidates.into_iter().find(|v| !v.is_null())?;
    Some(line(&value.as_str().map_or_else(|| value.to_string(), String::from)))
}

/// Untrusted text as one short line without terminal control sequences.
pub fn line(text: &str) -> String {
    let mut out = String::new();
    for (i, word) in text.split_whitespace().enumerate() {
        if i > 0 {
            out.push(' ');
        }
        let word: String = word.chars().take(MESSAGE_CHARS_MAX).collect();
        out.push_str(&octet_config::printable(&word));
        if out.chars().count() > MESSAGE_CHARS_MAX {
            return out.chars().take(MESSAGE_CHARS_MAX).chain(['…']).collect();
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn read(pieces: &[(u32, &str)]) -> Result<Sample, Failure> {
        let mut reader = Reader::new();
        for (at, bytes) in pieces {
            if reader.push(bytes.as_bytes(), *at * MS)? {
                break;
            }
        }
        reader.end()
    }

    fn text(s: &str) -> String {
        format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{s}\"}}}}]}}\n\n")
    }

    #[test]
    fn times_are_those_of_text() {
        let role = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
        let thought = "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"hm\"}}]}\n\n";
        let call =
            "data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"function\":{\"arguments\":\"{\"}}]}}]}\n\n";
        let end = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":7,\
                     \"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\ndata: [DONE]\n\n";
        let a = text("a");
        let s = read(&[(1, role), (10, thought), (30, &a), (40, call), (50, end), (60, usage)]).unwrap();
        assert_eq!(s.arrivals, [10 * MS, 30 * MS, 40 * MS]);
        assert_eq!((s.tokens, s.has_usage, s.prompt_tokens, s.cached_tokens), (7, true, Some(9), Some(4)));
        assert_eq!((s.ttft(), s.latency()), (0.010, 0.040));
        assert!((s.tpot().unwrap() - 0.005).abs() < 1e-12);
        assert_eq!(s.gaps().collect::<Vec<_>>(), [0.020, 0.010]);
    }

    #[test]
    fn what_is_said_is_kept() {
        let mut reader = Reader::keeping();
        let call = |i: u8, rest: &str| format!(r#"{{"index":{i},"function":{{{rest}}}}}"#);
        for (at, delta) in [
            (10, r#""content":"a b""#.to_string()),
            (20, r#""content":null,"reasoning_content":"hm""#.into()),
            (30, format!(r#""tool_calls":[{}]"#, call(0, r#""name":"f","arguments":"{\"x\"""#))),
            (
                40,
                format!(r#""tool_calls":[{},{}]"#, call(1, r#""name":"g""#), call(0, r#""arguments":":1}""#)),
            ),
            (50, r#""content":" c""#.into()),
        ] {
            reader
                .push(format!("data: {{\"choices\":[{{\"delta\":{{{delta}}}}}]}}\n\n").as_bytes(), at * MS)
                .unwrap();
        }
        reader
            .push(b"data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"length\"}]}\n\n", 60 * MS)
            .unwrap();
        let answer = reader.answer().unwrap();
        assert_eq!(answer.said.content, "a b c");
        let calls: Vec<_> = answer.said.calls.iter().map(|c| (&*c.name, &*c.arguments)).collect();
        assert_eq!(calls, [("f", r#"{"x":1}"#), ("g", "")]);
        assert_eq!((answer.first_s(), answer.seconds(), answer.is_cut_off), (0.010, 0.050, true));
        let mut endless = Reader::keeping();
        let long = text(&"x".repeat(1 << 20));
        assert!((0..9).any(|_| endless.push(long.as_bytes(), MS).is_err()), "it is bounded");
        let mut calls = Reader::keeping();
        let many = b"data: {\"choices\":[{\"delta\":{\"tool_calls\":[{\"index\":4000000000}]}}]}\n\n";
        assert!(calls.push(many, MS).is_err());
        assert!(Reader::keeping().answer().is_err(), "it has no end");
    }

    #[test]
    fn without_usage_pieces_count() {
        let s = read(&[(10, &(text("a") + &text("b"))), (20, "data: [DONE]\n\n")]).unwrap();
        assert_eq!((s.tokens, s.has_usage, s.prompt_tokens), (2, false, None));
    }

    #[test]
    fn invalid_streams_are_errors() {
        let (done, a) = ("data: [DONE]\n\n", text("a"));
        let cases: [(&[(u32, &str)], &str); 6] = [
            (&[(1, &a), (2, "data: {\"cho")], "broke off after 1 piece"),
            (&[], "broke off after 0 pieces"),
            (&[(1, done)], "no text"),
            (&[(1, "data: <html>\n\n")], "not JSON: <html>"),
            (&[(1, &a), (2, "data: {\"error\":{\"message\":\"out of memory\"}}\n\n")], "out of memory"),
            (
                &[(1, "data: 7\n\n"), (2, "data: {\"choices\":{\"a\":[]},\"usage\":3}\n\n"), (3, done)],
                "no text",
            ),
        ];
        for (pieces, words) in cases {
            let Failure(message) = read(pieces).unwrap_err();
            assert!(message.contains(words), "{message}");
        }
    }

    #[test]
    fn an_end_without_done_is_one_where_a_reason_came() {
        let end = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"},\"finish_reason\":\"length\"}]}\n\n";
        assert_eq!(read(&[(5, end)]).unwrap().tokens, 1);
    }

    #[test]
    fn messages_are_found_and_are_one_line() {
        let message = |body: &str| error_message(&serde_json::from_str(body).unwrap());
        assert_eq!(message(r#"{"error":{"message":"a\nb\u001b[1m"}}"#).unwrap(), "a b\\u{1b}[1m");
        assert_eq!(message(r#"{"error":"model not found"}"#).unwrap(), "model not found");
        assert_eq!(message(r#"{"detail":[{"loc":1}]}"#).unwrap(), r#"[{"loc":1}]"#);
        assert_eq!(message(r#"{"choices":[]}"#), None);
        assert_eq!(message("[]"), None);
        assert_eq!(line(&"x".repeat(5000)).chars().count(), 200);
        assert_eq!(line(&"word ".repeat(500)).chars().count(), 201);
    }
}
