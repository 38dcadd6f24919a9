//! The tags around a model's reasoning. Derived from its chat template by `derive`; used by `parser`.

use crate::syntax::tags;

/// The text before and after reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningTags {
    /// Before it: `<think>`, `[THINK]`, `<|channel>thought`.
    pub open: String,
    /// After it: `</think>`.
    pub close: String,
}

impl Default for ReasoningTags {
    /// `<think>` and `</think>`, as in most families.
    fn default() -> Self {
        Self { open: "<think>".into(), close: "</think>".into() }
    }
}

/// Tags of families whose templates omit reasoning from the history, so that rendering cannot show them.
const NAMED: [(&str, &str); 6] = [
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
];

/// Maximum length of a word between a tag and the reasoning: a channel's name.
const NAME_LETTERS_MAX: usize = 16;

impl ReasoningTags {
    /// The tags that a template's source mentions.
    pub fn named_in(template: &str) -> Option<Self> {
        let named = |(open, close): &&(&str, &str)| template.contains(close) || template.contains(open);
        NAMED.iter().find(named).map(|(open, close)| Self { open: (*open).into(), close: (*close).into() })
    }

    /// Whether one of them begins with this character.
    pub(crate) fn begins_with(&self, c: char) -> bool {
        self.open.starts_with(c) || self.close.starts_with(c)
    }

    /// The tags around `reasoning` in a prompt; `None` if it is not enclosed in a pair of tags, but follows a role's header, or is a
    /// separate message.
    pub(crate) fn around(prompt: &str, reasoning: &str) -> Option<Self> {
        let (before, behind) = prompt.split_once(reasoning)?;
        let before = before.trim_end();
        let name = before.len() - before.trim_end_matches(char::is_alphabetic).len();
        let tagged = &before[..before.len() - if name <= NAME_LETTERS_MAX { name } else { 0 }];
        let open = tags(tagged).last().filter(|t| tagged.ends_with(t))?;
        let behind = behind.trim_start();
        let close = tags(behind).next().filter(|t| behind.starts_with(t))?;
        let is_pair = words(open).any(|word| words(close).any(|other| other == word));
        let open = &before[before.len() - name - open.len()..];
        (is_pair && open != close).then(|| Self { open: open.into(), close: close.into() })
    }
}

/// The significant words of a tag: not `im` of `<|im_end|>`, nor `id` of `<|eot_id|>`.
fn words(tag: &str) -> impl Iterator<Item = &str> {
    let words = tag.split(|c: char| !c.is_alphanumeric());
    words.filter(|w| w.len() > 3 && !w.eq_ignore_ascii_case("start") && !w.eq_ignore_ascii_case("begin"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_enclose_reasoning() {
        let around = |before: &str, behind: &str| {
            let tags = ReasoningTags::around(&format!("hi{before}zq{behind}"), "zq")?;
            Some((tags.open, tags.close))
        };
        for (before, behind, open, close) in [
            ("<|im_start|>assistant\n<think>\n", "\n</think>\n\nSo.", "<think>", "</think>"),
            ("<seed:think>", "</seed:think>So.", "<seed:think>", "</seed:think>"),
            ("[/INST][THINK]", "[/THINK]So.</s>", "[THINK]", "[/THINK]"),
            ("<|A|><|START_THINKING|>", "<|END_THINKING|><|B|>", "<|START_THINKING|>", "<|END_THINKING|>"),
            ("<|turn>model\n<|channel>thought\n", "\n<channel|>So.", "<|channel>thought", "<channel|>"),
        ] {
            assert_eq!(around(before, behind), Some((open.into(), close.into())), "{before}");
        }
        for (before, behind) in [
            ("<|im_start|>assistant\n", "<|im_end|>"),
            ("<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>"),
            ("<|begin_assistant|>\n", "\n[BEGIN FINAL RESPONSE]\nSo."),
            ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
            ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
            ("{'thinking': '", "'}"),
            ("", ""),
        ] {
            assert_eq!(around(before, behind), None, "{before}");
        }
    }
}
