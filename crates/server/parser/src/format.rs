//! The syntax of a model's answers: derived from its chat template, or chosen by name. Determined once per model.

use std::str::FromStr;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::derive::Derived;
use crate::derive::known::is_harmony;
use crate::dumps::json_dumps;
use crate::reasoning::ReasoningTags;
use crate::syntax::{Arguments, CallSyntax, Piece, tags};
use crate::text::{Start, TextTags};

/// An unknown name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no {what} '{name}'; there are {names}")]
pub struct UnknownName {
    what: &'static str,
    name: String,
    names: &'static str,
}

/// The syntax of tool calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolSyntax {
    /// None: tags are text.
    #[default]
    None,
    /// `<tool_call><function=NAME><parameter=KEY>VALUE</parameter>...</function></tool_call>`, with newlines: Qwen3-Coder,
    /// Qwen3.5 and later. Values are bare text.
    Qwen3Coder,
    /// `<tool_call>{"name": NAME, "arguments": {...}}</tool_call>`, with newlines: Hermes 2 and 3, Qwen2.5, Qwen3.
    Hermes,
    /// The syntax derived from the model's chat template.
    Native(Arc<CallSyntax>),
    /// gpt-oss' messages in channels, some of which are calls. Reasoning has its own channel.
    Harmony,
}

impl From<CallSyntax> for ToolSyntax {
    /// Two syntaxes have their own parsers, as their models forget tags.
    fn from(syntax: CallSyntax) -> Self {
        let begins_call = syntax.trigger() == "<tool_call>";
        let is_bare = |pieces: &[Piece]| {
            pieces
                .iter()
                .all(|p| matches!(p, Piece::Text(t) if t.replace("<tool_call>", "").trim().is_empty()))
        };
        let keys = syntax.object.as_ref().map(|k| (k.name.as_str(), k.arguments.as_str()));
        if begins_call && keys == Some(("name", "arguments")) && is_bare(&syntax.open) {
            return Self::Hermes;
        }
        let opens_function =
            matches!(syntax.open.as_slice(), [Piece::Text(t)] if t.trim_end() == "<tool_call>\n<function=");
        let is_xml = syntax.call.iter().any(|p| match p {
            Piece::Arguments(Arguments::Tagged(t)) => t.open.trim() == "<parameter=" && t.text == ">\n",
            _ => false,
        });
        if begins_call && opens_function && is_xml { Self::Qwen3Coder } else { Self::Native(syntax.into()) }
    }
}

impl ToolSyntax {
    /// The text that begins calls: a token of its own in most models that can call tools.
    pub fn trigger(&self) -> &str {
        match self {
            Self::None => "",
            Self::Qwen3Coder | Self::Hermes => "<tool_call>",
            Self::Native(syntax) => syntax.trigger(),
            Self::Harmony => "<|channel|>",
        }
    }

    /// Writes calls in the model's syntax, given functions and arguments.
    pub fn write(&self, calls: &[(String, Map<String, Value>)]) -> String {
        let one = |(name, arguments): &(String, Map<String, Value>)| match self {
            Self::Qwen3Coder => {
                let each = arguments.iter().map(|(k, v)| {
                    let value = v.as_str().map_or_else(|| json_dumps(v), str::to_string);
                    format!("<parameter={k}>\n{value}\n</parameter>\n")
                });
                let each: String = each.collect();
                format!("<tool_call>\n<function={name}>\n{each}</function>\n</tool_call>")
            }
            Self::Harmony => format!(
                "<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{}<|call|>",
                json_dumps(&arguments.clone().into())
            ),
            Self::None | Self::Hermes | Self::Native(_) => {
                let call = json_dumps(&json!({"name": name, "arguments": arguments}));
                format!("<tool_call>\n{call}\n</tool_call>")
            }
        };
        match self {
            Self::Native(syntax) => syntax.write(calls),
            _ => calls.iter().map(one).collect::<Vec<_>>().join("\n"),
        }
    }
}

impl FromStr for ToolSyntax {
    type Err = UnknownName;

    /// Parses the names of vLLM's `--tool-call-parser`.
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "none" => Ok(Self::None),
            "qwen3_coder" | "qwen3_xml" => Ok(Self::Qwen3Coder),
            "hermes" => Ok(Self::Hermes),
            "openai" | "harmony" => Ok(Self::Harmony),
            _ => Err(UnknownName {
                what: "tool call parser",
                name: name.into(),
                names: "qwen3_coder (also qwen3_xml), hermes, openai (also harmony), none",
            }),
        }
    }
}

/// Where reasoning is returned.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// Separately from the content, without its tags.
    #[default]
    Deepseek,
    /// Nowhere: it is recognised and dropped.
    Hidden,
    /// In the content as generated, including tags.
    None,
}

impl FromStr for ReasoningFormat {
    type Err = UnknownName;

    /// Parses the names of llama.cpp's `--reasoning-format`, where `auto` is `deepseek`; and `hidden`.
    fn from_str(name: &str) -> Result<Self, UnknownName> {
        match name {
            "deepseek" | "auto" => Ok(Self::Deepseek),
            "hidden" => Ok(Self::Hidden),
            "none" => Ok(Self::None),
            _ => Err(UnknownName {
                what: "reasoning format",
                name: name.into(),
                names: "deepseek (also auto), hidden, none",
            }),
        }
    }
}

/// The syntax of a model's answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Format {
    /// The tags around reasoning at the beginning of an answer.
    pub reasoning: Option<ReasoningTags>,
    /// The syntax of tool calls.
    pub tools: ToolSyntax,
    /// The header before text, if it has one.
    pub text: Option<TextTags>,
}

impl Format {
    /// Detects the syntax from a template's source: a template writes the history as its model writes answers.
    pub fn detect(template: &str) -> Self {
        let has = |text: &str| template.contains(text);
        let tools = if !has("<tool_call>") {
            ToolSyntax::None
        } else if has("<function=") && has("<parameter=") {
            ToolSyntax::Qwen3Coder
        } else if (has("\"arguments") || has("{'arguments': ")) && !has("<arg_key>") {
            ToolSyntax::Hermes
        } else {
            ToolSyntax::None // another family's call between the same tags
        };
        Self { reasoning: ReasoningTags::named_in(template), tools, text: None }
    }
}

impl Format {
    /// Tags that must be visible in answers for parsing, even if they are control tokens: those of reasoning, and those of calls if
    /// there are `tools`.
    pub fn shown_tags(&self, with_tools: bool) -> Vec<&str> {
        let mut out: Vec<&str> =
            self.reasoning.iter().flat_map(|r| tags(&r.open).chain(tags(&r.close))).collect();
        out.extend(self.text.iter().flat_map(|t| [&t.open, &t.close, &t.end]).flat_map(|t| tags(t)));
        match &self.tools {
            // Channels also separate reasoning.
            ToolSyntax::Harmony => {
                out.extend(["<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"]);
            }
            ToolSyntax::Native(syntax) if with_tools => out.extend(syntax.tags()),
            ToolSyntax::None | ToolSyntax::Qwen3Coder | ToolSyntax::Hermes | ToolSyntax::Native(_) => {}
        }
        out
    }

    /// The state at the beginning of an answer to this prompt.
    pub fn start(&self, prompt: &str) -> Start {
        let in_reasoning = self.reasoning.as_ref().is_some_and(|r| prompt.trim_end().ends_with(&r.open));
        let header = self.text.as_ref().filter(|_| !in_reasoning).map_or(0, |t| t.begun(prompt));
        Start { in_reasoning, header }
    }

    /// Whether the prompt ends behind reasoning, which is empty where it is switched off.
    pub fn ends_reasoning(&self, prompt: &str) -> bool {
        self.reasoning.as_ref().is_some_and(|r| prompt.trim_end().ends_with(&r.close))
    }

    /// Whether a tag of reasoning or of text begins with this character.
    pub(crate) fn begins_tag(&self, c: char) -> bool {
        let text = |t: &TextTags| [&t.open, &t.close, &t.end].iter().any(|t| t.starts_with(c));
        self.text.as_ref().is_some_and(text) || self.reasoning.as_ref().is_some_and(|r| r.begins_with(c))
    }

    /// The derived syntax of a template, or the one whose tags it mentions.
    pub fn derived(template: &str, derived: &Derived) -> Self {
        if is_harmony(template) {
            // Its channels mark reasoning.
            return Self {
                reasoning: Some(ReasoningTags::default()),
                tools: ToolSyntax::Harmony,
                text: None,
            };
        }
        let detected = Self { reasoning: derived.reasoning.clone(), ..Self::detect(template) };
        match &derived.calls {
            Some(calls) => Self { tools: calls.clone().into(), text: derived.text.clone(), ..detected },
            None => detected,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_vllm_and_llama_cpp() {
        for (name, syntax) in [
            ("qwen3_coder", ToolSyntax::Qwen3Coder),
            ("qwen3_xml", ToolSyntax::Qwen3Coder),
            ("hermes", ToolSyntax::Hermes),
            ("none", ToolSyntax::None),
        ] {
            assert_eq!(name.parse(), Ok(syntax));
        }
        assert_eq!("auto".parse(), Ok(ReasoningFormat::Deepseek));
        assert_eq!("hidden".parse(), Ok(ReasoningFormat::Hidden));
        assert_eq!("none".parse(), Ok(ReasoningFormat::None));
        let e = "pythonic".parse::<ToolSyntax>().unwrap_err().to_string();
        assert!(e.contains("'pythonic'") && e.contains("hermes"), "{e}");
        let e = "deepseek-legacy".parse::<ReasoningFormat>().unwrap_err().to_string();
        assert!(e.contains("'deepseek-legacy'") && e.contains("none"), "{e}");
    }

    #[test]
    fn other_families_calls_are_not_parsed() {
        let of = |t: &str| Format::detect(t).tools;
        assert_eq!(of("{{ '<function=' + name + '>' }}{\"name\": 1}</function>"), ToolSyntax::None);
        assert_eq!(of("<tool_call>{{ tc.name }}\n<arg_key>{{ \"arguments\" }}</arg_key>"), ToolSyntax::None);
        assert_eq!(of("{{ messages }}"), ToolSyntax::None);
        assert!(Format::detect("{{ content.split('</think>')[-1] }}").reasoning.is_some());
        assert!(Format::detect("{{ content }}").reasoning.is_none());
    }
}
