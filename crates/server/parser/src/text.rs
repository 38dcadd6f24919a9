//! Where an answer begins; and the header before its text, in families whose messages name a recipient or a channel for text as well as for calls.
//! Derived from a chat template by `derive`; used by `parser`.

/// The text before and after what an answer says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TextTags {
    /// Before it: `>>>all\n` (Functionary 3.2).
    pub open: String,
    /// After it; empty if the next header ends it.
    pub close: String,
    /// After the whole answer, before the token that ends it.
    pub end: String,
}

impl TextTags {
    /// How many bytes of the header a prompt has already written at its end: Functionary's ends with `>>>`.
    pub fn begun(&self, prompt: &str) -> usize {
        let ends = |n: &usize| self.open.get(..*n).is_some_and(|head| prompt.ends_with(head));
        (1..=self.open.len()).rev().find(ends).unwrap_or(0)
    }
}

/// The state at the beginning of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Start {
    /// The prompt ends with the tag that opens reasoning.
    pub in_reasoning: bool,
    /// Number of bytes of the header before text with which the prompt ends ([`TextTags::begun`](TextTags::begun)).
    pub header: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_may_end_with_the_beginning_of_a_header() {
        let tags = TextTags { open: ">>>all\n".into(), ..TextTags::default() };
        for (prompt, begun) in [("user\n\n>>>", 3), ("", 0), ("hi", 0), ("x >", 1), ("é>>>all\n", 7)] {
            assert_eq!(tags.begun(prompt), begun, "{prompt}");
        }
    }
}
