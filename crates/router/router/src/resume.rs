//! Continuation of an answer by another server: the request, and which of its words the client already has.
//!
//! Servers with `continue_final_message` put the message's text at the end of the prompt. White space at its end is lost (templates trim
//! it), or separates a word's token from its space. So the text is sent without it, and the white space that the server repeats is removed
//! from its output.

use octet_api::core::{Event, GenerateRequest, Input, Part, Reasoning};

use crate::failure::{Failure, FailureKind};

/// The request fields for a continuation, and how its words are read.
pub(crate) fn of(request: &GenerateRequest) -> (GenerateRequest, Rest) {
    let mut request = request.clone();
    let mut said_again = String::new();
    if let Input::Chat(chat) = &mut request.input {
        // Reasoning is over. Servers that would open a reasoning block would put the text into it.
        chat.reasoning =
            Reasoning { enabled: Some(false), hide: chat.reasoning.hide, ..Reasoning::default() };
        if let Some(Part::Text { text, .. }) = chat.messages.last_mut().and_then(|m| m.content.last_mut()) {
            said_again = text.split_off(text.trim_end().len());
        }
    }
    (request, Rest { said_again })
}

/// A continuation in progress.
#[derive(Debug)]
pub(crate) struct Rest {
    /// White space that the client has and the server has not repeated yet.
    said_again: String,
}

impl Rest {
    /// The part of an event that the client gets.
    ///
    /// # Errors
    /// Reasoning: the server has misread the answer's beginning, and what follows does not continue it.
    pub fn process(&mut self, event: Event) -> Result<Option<Event>, Failure> {
        match event {
            Event::Text { choice, text } => {
                let text = self.cut(text);
                Ok((!text.is_empty()).then_some(Event::Text { choice, text }))
            }
            Event::Reasoning { text, .. } if !text.is_empty() => {
                let what = "the server began to reason instead of continuing the answer";
                Err(Failure::new(FailureKind::Protocol, what))
            }
            other => Ok(Some(other)),
        }
    }

    /// `text` without the part that the client has.
    fn cut(&mut self, mut text: String) -> String {
        if self.said_again.is_empty() {
            return text;
        }
        let same = self.said_again.chars().zip(text.chars()).take_while(|(a, b)| a == b);
        let same: usize = same.map(|(c, _)| c.len_utf8()).sum();
        let rest = text.split_off(same);
        if rest.is_empty() {
            self.said_again.drain(..same);
        } else {
            self.said_again.clear();
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use octet_api::core::{Chat, Message, Role};
    use proptest::prelude::*;

    use super::*;

    fn rest(beginning: &str) -> (String, Rest) {
        let message = Message { content: vec![Part::text(beginning)], ..Message::empty(Role::Assistant) };
        let chat = Chat { messages: vec![message], continue_final: true, ..Chat::default() };
        let (request, rest) = of(&GenerateRequest::new("m", Input::Chat(chat)));
        let Input::Chat(chat) = request.input else { panic!("a chat") };
        assert_eq!(chat.reasoning.enabled, Some(false));
        let Some(Part::Text { text, .. }) = chat.messages[0].content.first() else { panic!("a text") };
        (text.clone(), rest)
    }

    fn go_on(beginning: &str, pieces: &[&str]) -> String {
        let (_, mut rest) = rest(beginning);
        let mut out = beginning.to_string();
        for piece in pieces {
            let event = Event::Text { choice: 0, text: piece.to_string() };
            if let Some(Event::Text { text, .. }) = rest.process(event).unwrap() {
                assert!(!text.is_empty());
                out += &text;
            }
        }
        out
    }

    #[test]
    fn white_space_is_said_once() {
        for (beginning, pieces, expected) in [
            ("One, two", &[", three"][..], "One, two, three"),
            ("One, ", &[" two"][..], "One, two"),
            ("One, ", &["two"][..], "One, two"),
            ("One.\n\n", &["\n", "\nTwo\n", "\n"][..], "One.\n\nTwo\n\n"),
            ("One.\n\n", &["\nTwo"][..], "One.\n\nTwo"),
            ("f():\n", &["\n    x"][..], "f():\n    x"),
            ("f():\n", &["    x"][..], "f():\n    x"),
            ("a\u{3000}", &["\u{3000}b"][..], "a\u{3000}b"),
        ] {
            assert_eq!(go_on(beginning, pieces), expected, "{beginning:?} {pieces:?}");
        }
        assert_eq!(rest("One,\t\n ").0, "One,");
    }

    #[test]
    fn thoughts_are_no_rest_of_an_answer() {
        let (_, mut rest) = rest("One");
        let thought = |text: &str| Event::Reasoning { choice: 0, text: text.into() };
        assert_eq!(rest.process(thought("")).unwrap(), Some(thought("")));
        assert_eq!(rest.process(thought("Hm")).unwrap_err().kind, FailureKind::Protocol);
    }

    proptest! {
        /// Wherever an answer breaks off, and however its rest is split: a server that continues after the last word gives the same text.
        #[test]
        fn the_seam_is_not_seen(whole in "[a-z][a-z \n]{0,40}[a-z]", at in any::<prop::sample::Index>(), cuts in 1usize..5) {
            let beginning = &whole[..at.index(whole.len()) + 1];
            prop_assume!(!beginning.trim().is_empty());
            let (sent, _) = rest(beginning);
            let tail = &whole[sent.len()..];
            let pieces: Vec<&str> = tail.as_bytes().chunks(cuts).map(|c| std::str::from_utf8(c).unwrap()).collect();
            prop_assert_eq!(go_on(beginning, &pieces), whole.clone());
        }
    }
}
