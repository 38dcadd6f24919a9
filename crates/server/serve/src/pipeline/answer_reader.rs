//! Parses an answer up to the texts at which its client wants it to end.
//!
//! A stop text belongs to the answer's own text. It does not count in reasoning, in calls, in the tags between them, or across these.

use octet_engine::engine::TextEnd;
use octet_engine::sampler::StopStrings;
use octet_parser::{Changes, Delta, Parser};

/// What follows a part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This many bytes were read and are not certain yet: they may begin a stop text.
    Held(usize),
    /// A stop text: it was the last part.
    Stop,
}

/// A parser that ends at stop texts, or with an answer's only call.
pub struct AnswerReader {
    parser: Option<Parser>,
    stops: StopStrings,
    /// Number of tokens in whose text no stop counts.
    min_tokens: usize,
    tokens: usize,
    has_ended: bool,
}

impl AnswerReader {
    /// None of the `stops` counts in the text of the first `min_tokens` tokens.
    pub fn new(parser: Parser, stops: StopStrings, min_tokens: usize) -> Self {
        Self { parser: Some(parser), stops, min_tokens, tokens: 0, has_ended: false }
    }

    /// Whether the next text is reasoning, as far as is certain.
    pub fn in_reasoning(&self) -> bool {
        self.parser.as_ref().is_some_and(Parser::in_reasoning)
    }

    /// The stop text that ended the answer.
    pub fn stopped_by(&self) -> Option<&str> {
        self.stops.matched()
    }

    /// Reads the text of the next token; true if the answer ends with it. `emit` gets what is certain, and what follows.
    pub fn token(&mut self, text: &str, emit: &mut impl FnMut(Delta<'_>, Next)) -> bool {
        self.tokens += 1;
        let counts = self.tokens > self.min_tokens;
        if let Some(mut parser) = self.parser.take().filter(|_| !self.has_ended) {
            parser.push_scoped(text, &mut |delta, is_text| self.delta(delta, is_text && counts, emit));
            self.has_ended |= parser.has_last_call();
            self.parser = Some(parser);
        }
        self.has_ended
    }

    /// Ends the answer, which its maximum length may have cut. Returns what the parser changed.
    pub fn finish(&mut self, cut: bool, emit: &mut impl FnMut(Delta<'_>, Next)) -> Changes {
        let Some(parser) = self.parser.take() else { return Changes::default() };
        if self.stopped_by().is_some() {
            return parser.changes();
        }
        let changes = parser.finish_scoped(cut, &mut |delta, is_text| self.delta(delta, is_text, emit));
        self.flush(emit);
        changes
    }

    fn delta(&mut self, delta: Delta<'_>, is_text: bool, emit: &mut impl FnMut(Delta<'_>, Next)) {
        if self.stopped_by().is_some() {
            return;
        }
        match delta {
            Delta::Content(text) if is_text => {
                let read = self.stops.held() + text.len();
                let found = self.stops.push(text);
                self.has_ended |= found.stopped;
                let next = if found.stopped { Next::Stop } else { Next::Held(read - found.emit.len()) };
                if !found.emit.is_empty() {
                    emit(Delta::Content(found.emit), next);
                }
            }
            // No stop text goes on behind this.
            other => {
                self.flush(emit);
                emit(other, Next::Held(0));
            }
        }
    }

    fn flush(&mut self, emit: &mut impl FnMut(Delta<'_>, Next)) {
        if self.stopped_by().is_none() {
            let rest = self.stops.flush();
            if !rest.is_empty() {
                emit(Delta::Content(rest), Next::Held(0));
            }
        }
    }
}

/// The end of an answer, for the engine: it generates no more than is read.
pub struct ReaderEnd<F> {
    make: F,
    reader: AnswerReader,
}

impl<F: Fn() -> AnswerReader + Clone + Send + 'static> ReaderEnd<F> {
    /// `make` makes a reader for each answer to the prompt.
    pub fn new(make: F) -> Self {
        Self { reader: make(), make }
    }
}

impl<F: Fn() -> AnswerReader + Clone + Send + 'static> TextEnd for ReaderEnd<F> {
    fn token(&mut self, text: &str) -> bool {
        self.reader.token(text, &mut |_, _| {})
    }

    fn fork(&self) -> Box<dyn TextEnd> {
        Box::new(Self::new(self.make.clone()))
    }
}

#[cfg(test)]
mod tests {
    use octet_parser::{Format, Message, Options, ReasoningFormat, ReasoningTags, Start, Tool, ToolSyntax};
    use serde_json::json;

    use super::*;

    fn parser(reasoning: ReasoningFormat) -> Parser {
        let tools = ToolSyntax::Qwen3Coder;
        let format = Format { reasoning: Some(ReasoningTags::default()), tools, text: None };
        let tool = Tool { name: "f".into(), parameters: json!({"properties": {"a": {"type": "string"}}}) };
        let options = Options { reasoning, ..Options::default() };
        Parser::new(format, Start { in_reasoning: true, ..Start::default() }, [tool], options)
    }

    fn stops(stops: &[&str]) -> StopStrings {
        StopStrings::new(stops.iter().map(|s| s.to_string()).collect()).unwrap()
    }

    /// What an answer in these pieces is, the stop text, and the number of pieces read.
    fn read(reader: &mut AnswerReader, pieces: &[&str]) -> (Message, Option<String>, usize) {
        let mut message = Message::default();
        let mut n = 0;
        for piece in pieces {
            n += 1;
            if reader.token(piece, &mut |delta, _| message.add(delta)) {
                break;
            }
        }
        reader.finish(false, &mut |delta, _| message.add(delta));
        (message, reader.stopped_by().map(str::to_string), n)
    }

    const CALL: &str =
        "<tool_call>\n<function=f>\n<parameter=a>\nstop\n</parameter>\n</function>\n</tool_call>";

    #[test]
    fn stop_texts_count_only_in_the_answers_text() {
        let think = "I stop\n\nhere\n</think>\n\n";
        for (stop, answer, content, calls, stopped) in [
            ("stop", format!("{think}A. stop B."), "A. ", 0, true),
            ("\n\n", format!("{think}One.\n\nTwo."), "One.", 0, true),
            ("stop", format!("{think}A. {CALL}\nB."), "A. \nB.", 1, false),
            ("stop", format!("{think}A. {CALL}\nB. stop C."), "A. \nB. ", 1, true),
            ("\n", format!("{think}{CALL}\n{CALL}\n"), "", 2, false),
            // Not across a tag or a call.
            ("hereA", "here</think>A".into(), "A", 0, false),
            ("AB", format!("x</think>A{CALL}B"), "AB", 1, false),
            ("</think>", format!("{think}A"), "A", 0, false),
        ] {
            for pieces in [answer.split_inclusive(' ').collect::<Vec<_>>(), answer.split("").collect()] {
                let mut reader = AnswerReader::new(parser(ReasoningFormat::Deepseek), stops(&[stop]), 0);
                let (message, by, _) = read(&mut reader, &pieces);
                assert_eq!(
                    (message.content.as_str(), message.tool_calls.len()),
                    (content, calls),
                    "{stop:?}"
                );
                assert_eq!(by.is_some(), stopped, "{stop:?}");
                let thought = answer.split_once("</think>").unwrap().0.trim();
                assert_eq!(message.reasoning, thought, "{stop:?}");
            }
        }
    }

    #[test]
    fn reasoning_in_the_content_has_no_stop_texts() {
        for (stop, content) in
            [("\n\n", "a\n\nb\n</think>\n\nOne."), ("a", "a\n\nb\n</think>\n\nOne.\n\nTwo.")]
        {
            let mut reader = AnswerReader::new(parser(ReasoningFormat::None), stops(&[stop]), 0);
            let (message, ..) = read(&mut reader, &["a\n\nb\n</think>\n\nOne.\n\nTwo."]);
            assert_eq!(message.content, content);
        }
    }

    #[test]
    fn an_answer_has_a_minimum_and_may_have_one_call() {
        let mut reader = AnswerReader::new(parser(ReasoningFormat::Deepseek), stops(&["x"]), 2);
        let (message, by, n) = read(&mut reader, &["</think>x", "x", "x", "y"]);
        assert_eq!((message.content.as_str(), by.as_deref(), n), ("xx", Some("x"), 3));
        let format = Format { reasoning: None, tools: ToolSyntax::Qwen3Coder, text: None };
        let tool = Tool { name: "f".into(), parameters: json!({}) };
        let options = Options { parallel_tool_calls: false, ..Options::default() };
        let parser = Parser::new(format, Start::default(), [tool], options);
        let mut reader = AnswerReader::new(parser, stops(&[]), 0);
        let (message, _, n) = read(&mut reader, &["</tool_call> is a tag. ", CALL, CALL]);
        assert_eq!((message.tool_calls.len(), n), (1, 2));
        assert_eq!(message.content, "</tool_call> is a tag. ");
    }
}
