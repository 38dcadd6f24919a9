//! Answers of gpt-oss in channels: reasoning, then a call or the answer.

use super::texts::{any_text, text};
use super::{Arguments, Rules, hermes};
use crate::{Error, Tool, Vocabulary, lark};

/// Writes rule `body`: an answer that calls one of `calls`, after reasoning if it `may_think`, or text if it `may_speak`.
pub(super) fn answer(
    rules: &mut Rules,
    vocabulary: &Vocabulary,
    calls: &[String],
    may_think: bool,
    may_speak: bool,
) {
    let thought = format!(
        "{}{}{}",
        text(vocabulary, "<|channel|>analysis<|message|>"),
        any_text(rules, vocabulary, "<|end|>"),
        text(vocabulary, "<|start|>assistant")
    );
    rules.rule("thought", &thought);
    let mut all = calls.to_vec();
    if may_speak {
        all.push(format!("{}/(?s:.*)/", text(vocabulary, "<|channel|>final<|message|>")));
    }
    let thought = if may_think { "thought? " } else { "" };
    rules.rule("body", &format!("{thought}({})", all.join(" | ")));
}

/// Writes rule `call{i}`. `<|call|>` ends the answer.
pub(super) fn write(
    rules: &mut Rules,
    vocabulary: &Vocabulary,
    i: usize,
    tool: &Tool,
    given: Option<&Arguments<'_>>,
) -> Result<(), Error> {
    let prepared = hermes::arguments(given)?;
    rules.warnings.extend(prepared.warnings.iter().cloned());
    // As the model writes it, and as its template does.
    let heads = [
        format!("<|channel|>commentary to=functions.{} <|constrain|>json<|message|>", tool.name),
        format!(" to=functions.{}<|channel|>commentary json<|message|>", tool.name),
    ];
    let heads = heads.map(|h| text(vocabulary, &h));
    rules.rule(&format!("call{i}"), &format!("({}) {}", heads.join("| "), lark::json(&prepared)));
    Ok(())
}
