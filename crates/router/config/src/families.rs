//! What families of models accept: the table in `families.txt`. Read once per deployment by `read`, and per request for names with
//! wildcards; applied to requests by the upstream crate.

use std::sync::OnceLock;

/// The table, with its date and sources.
const TABLE: &str = include_str!("../families.txt");

/// What a model accepts. The default is everything.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Accepts {
    /// Only OpenAI's fields, none of vLLM's and llama.cpp's.
    pub openai_form: bool,
    /// Which chats use `/responses`.
    pub responses: ResponsesFor,
    /// The name of the maximum answer length.
    pub length: Option<String>,
    /// The largest maximum answer length, in tokens.
    pub output_tokens_max: Option<u32>,
    /// The only fields of a request; empty if all are accepted.
    pub only: Vec<String>,
    /// The only fields of a message; empty if all are accepted.
    pub message_fields: Vec<String>,
    /// Fields that are refused.
    pub without: Vec<String>,
    /// Fields that have only this value; without one, they are refused.
    pub fixed: Vec<(String, Option<f64>)>,
    /// [`Accepts::fixed`] does not hold if the reasoning effort is `none`.
    pub fixed_unless_none: bool,
    /// The reasoning effort of requests that set none is `none`.
    pub default_effort_is_none: bool,
    /// Numbers with an upper limit.
    pub max: Vec<(String, f64)>,
    /// Maximum number of stop sequences.
    pub stops_max: Option<usize>,
    /// Fields of which only one may be set; the first is kept.
    pub one_of: Vec<String>,
    /// Other names of fields.
    pub rename: Vec<(String, String)>,
    /// Values of the reasoning effort; empty if all are accepted.
    pub efforts: Vec<String>,
    /// Roles that become others.
    pub roles: Vec<(String, String)>,
    /// Maximum characters of `user`.
    pub user_chars_max: Option<usize>,
    /// Images in results of tools are refused.
    pub no_tool_images: bool,
    /// The form of earlier reasoning.
    pub reasoning: Option<ReasoningForm>,
    /// Answers may have a list of parts as their content, which clients of OpenAI's dialect do not expect.
    pub answers_in_parts: bool,
    /// Maximum characters of a tool's name.
    pub name_chars_max: Option<usize>,
    /// Characters of a tool's name besides letters, digits, `_` and `-`.
    pub name_characters: String,
    /// Exact number of letters and digits in the id of a call.
    pub id_chars: Option<usize>,
    /// How Claude thinks.
    pub thinking: Option<Thinking>,
    /// How thinking is turned off.
    pub off: Off,
    /// The last message cannot be the assistant's.
    pub no_prefill: bool,
    /// It reads `cache_control` in OpenAI's dialect.
    pub breakpoints: bool,
}

/// Which chats use a provider's `/responses`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ResponsesFor {
    /// None.
    #[default]
    None,
    /// Those with tools, unless the reasoning effort is `none`.
    Tools,
    /// All: the model has no other endpoint.
    All,
}

/// The form of the reasoning of earlier turns in OpenAI's dialect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningForm {
    /// Left out: it is refused.
    Omit,
    /// The field `reasoning`.
    Reasoning,
    /// The field `reasoning_content`.
    ReasoningContent,
    /// Parts of the content, in Mistral's form.
    Parts,
}

/// How a model of Anthropic thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Thinking {
    /// With a budget.
    Budget,
    /// As much as it chooses, guided by an effort.
    Adaptive,
    /// Either.
    Both,
}

/// How thinking is turned off.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Off {
    /// By saying so.
    #[default]
    Disabled,
    /// By saying nothing.
    Omit,
    /// Not at all.
    Never,
}

impl Accepts {
    /// What `provider/model` accepts.
    pub fn of(name: &str) -> Self {
        let mut out = Self::default();
        for family in table().iter().filter(|family| family.matches(name)) {
            // A test reads the whole table.
            family.rules.iter().for_each(|(rule, value)| drop(out.set(rule, value)));
        }
        out
    }

    /// Whether no rule applies.
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    fn set(&mut self, rule: &str, value: &str) -> Result<(), String> {
        let value = Some(value).filter(|v| *v != "-");
        let list = || value.into_iter().flat_map(|v| v.split(',')).map(String::from).collect::<Vec<_>>();
        let pairs = || {
            let pair = |item: &str| {
                item.split_once(':')
                    .map_or((item.to_string(), None), |(a, b)| (a.into(), Some(b.to_string())))
            };
            value.into_iter().flat_map(|v| v.split(',')).map(pair).collect::<Vec<_>>()
        };
        let wrong = || format!("{rule}={} has no such value", value.unwrap_or("-"));
        let number = || value.map(|v| v.parse::<u32>().map_err(|_| wrong())).transpose();
        let word = |known: &str| match value {
            None => Ok(false),
            Some(v) if v == known => Ok(true),
            Some(_) => Err(wrong()),
        };
        let named = || {
            let named = |(a, b): (String, Option<String>)| Some((a, b?));
            pairs().into_iter().map(|pair| named(pair).ok_or_else(wrong)).collect::<Result<Vec<_>, _>>()
        };
        match rule {
            "form" => self.openai_form = word("openai")?,
            "api" => {
                self.responses = match value {
                    None => ResponsesFor::None,
                    Some("responses") => ResponsesFor::All,
                    Some("responses-for-tools") => ResponsesFor::Tools,
                    Some(_) => return Err(wrong()),
                }
            }
            "length" => self.length = value.map(String::from),
            "output" => self.output_tokens_max = number()?,
            "only" => self.only = list(),
            "fields" => self.message_fields = list(),
            "without" => self.without = list(),
            "fixed" => {
                let fixed = |(name, value): (String, Option<String>)| {
                    let value = value.map(|v| v.parse::<f64>().map_err(|_| wrong())).transpose()?;
                    Ok::<_, String>((name, value))
                };
                self.fixed = pairs().into_iter().map(fixed).collect::<Result<_, _>>()?;
            }
            "unless" => self.fixed_unless_none = word("none")?,
            "effort" => self.default_effort_is_none = word("none")?,
            "max" => {
                let max = |(name, value): (String, String)| {
                    Ok::<_, String>((name, value.parse::<f64>().map_err(|_| wrong())?))
                };
                self.max = named()?.into_iter().map(max).collect::<Result<_, _>>()?;
            }
            "stops" => self.stops_max = number()?.map(|n| n as usize),
            "one" => self.one_of = list(),
            "rename" => self.rename = named()?,
            "efforts" => self.efforts = list(),
            "roles" => self.roles = named()?,
            "user" => self.user_chars_max = number()?.map(|n| n as usize),
            "tool-images" => self.no_tool_images = word("move")?,
            "reasoning" => self.reasoning = value.map(reasoning_form).transpose()?,
            "answers" => self.answers_in_parts = word("parts")?,
            "names" => self.name_chars_max = number()?.map(|n| n as usize),
            "characters" => self.name_characters = value.unwrap_or("").into(),
            "ids" => self.id_chars = number()?.map(|n| n as usize),
            "thinking" => {
                self.thinking = match value {
                    None => None,
                    Some("budget") => Some(Thinking::Budget),
                    Some("adaptive") => Some(Thinking::Adaptive),
                    Some("both") => Some(Thinking::Both),
                    Some(_) => return Err(wrong()),
                }
            }
            "off" => {
                self.off = match value {
                    None | Some("disabled") => Off::Disabled,
                    Some("omit") => Off::Omit,
                    Some("never") => Off::Never,
                    Some(_) => return Err(wrong()),
                }
            }
            "prefill" => self.no_prefill = word("no")?,
            "breakpoints" => self.breakpoints = word("yes")?,
            _ => return Err(format!("there is no rule '{rule}'")),
        }
        Ok(())
    }
}

fn reasoning_form(text: &str) -> Result<ReasoningForm, String> {
    Ok(match text {
        "omit" => ReasoningForm::Omit,
        "reasoning" => ReasoningForm::Reasoning,
        "reasoning_content" => ReasoningForm::ReasoningContent,
        "parts" => ReasoningForm::Parts,
        _ => return Err(format!("reasoning={text} has no such value")),
    })
}

/// A line of the table.
struct Family {
    /// Providers and the pattern of their models.
    patterns: Vec<(Vec<&'static str>, &'static str)>,
    rules: Vec<(&'static str, &'static str)>,
}

impl Family {
    fn matches(&self, name: &str) -> bool {
        let Some((provider, model)) = name.split_once('/') else { return false };
        self.patterns.iter().any(|(providers, pattern)| providers.contains(&provider) && glob(pattern, model))
    }
}

/// Whether a pattern matches: a `*` stands for any text.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(start) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return text.ends_with(part);
        }
        match text.split_once(part) {
            Some((_, after)) => text = after,
            None => return false,
        }
    }
    true
}

fn table() -> &'static [Family] {
    static PARSED: OnceLock<Vec<Family>> = OnceLock::new();
    PARSED.get_or_init(|| TABLE.lines().filter_map(family).collect())
}

fn family(line: &'static str) -> Option<Family> {
    let mut out = Family { patterns: Vec::new(), rules: Vec::new() };
    let line = line.trim();
    for word in line.split_whitespace().filter(|_| !line.starts_with('#')) {
        match (word.split_once('='), word.split_once('/')) {
            (Some(rule), _) => out.rules.push(rule),
            (None, Some((providers, pattern))) => {
                out.patterns.push((providers.split('|').collect(), pattern));
            }
            (None, None) => {}
        }
    }
    (!out.patterns.is_empty()).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_can_be_read_and_says_where_it_is_from() {
        assert!(TABLE.contains("# Date: 20") && TABLE.contains("https://"));
        for line in TABLE.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let family = family(line).unwrap_or_else(|| panic!("{line}: no pattern"));
            let known = |provider: &&str| crate::read::is_provider(provider);
            assert!(family.patterns.iter().all(|(providers, _)| providers.iter().all(known)), "{line}");
            assert!(!family.rules.is_empty(), "{line}");
            for (rule, value) in family.rules {
                Accepts::default().set(rule, value).unwrap_or_else(|e| panic!("{line}: {e}"));
            }
            let words = line.split_whitespace().filter(|word| !word.contains('=') && !word.contains('/'));
            assert_eq!(words.count(), 0, "{line}: a word that is neither a pattern nor a rule");
        }
    }

    /// The model map of LiteLLM and the providers' documentation say so.
    #[test]
    fn families_have_their_rules() {
        let of = Accepts::of;
        assert!(of("hosted_vllm/qwen3").is_everything() && of("openai_like/gpt-5").is_everything());
        assert_eq!(of("openai/gpt-5").length.as_deref(), Some("max_completion_tokens"));
        assert_eq!(of("openai/gpt-4o").length, None);
        assert!(!of("openai/gpt-oss-120b").openai_form && of("openai/gpt-4o").openai_form);
        for (name, responses) in [
            ("openai/gpt-5", ResponsesFor::None),
            ("openai/gpt-5.2", ResponsesFor::None),
            ("openai/gpt-5.4-mini", ResponsesFor::Tools),
            ("azure/gpt-5.6-terra", ResponsesFor::Tools),
            ("openai/gpt-6-sol", ResponsesFor::Tools),
            ("openai/gpt-5.4-pro", ResponsesFor::All),
            ("openai/gpt-5-codex", ResponsesFor::All),
            ("openai/o3-pro", ResponsesFor::All),
            ("openai/gpt-5-chat-latest", ResponsesFor::None),
        ] {
            assert_eq!(of(name).responses, responses, "{name}");
        }
        for (name, output, thinking, off) in [
            ("anthropic/claude-sonnet-4-5", 64_000, Thinking::Budget, Off::Disabled),
            ("bedrock/eu.anthropic.claude-opus-4-1-20250805-v1:0", 32_000, Thinking::Budget, Off::Disabled),
            ("anthropic/claude-opus-4-6", 128_000, Thinking::Both, Off::Disabled),
            ("vertex_ai/claude-opus-4-7", 128_000, Thinking::Adaptive, Off::Omit),
            ("anthropic/claude-sonnet-5", 128_000, Thinking::Adaptive, Off::Disabled),
            ("anthropic/claude-fable-5", 128_000, Thinking::Adaptive, Off::Never),
        ] {
            let accepts = of(name);
            assert_eq!(
                (accepts.output_tokens_max, accepts.thinking, accepts.off),
                (Some(output), Some(thinking), off),
                "{name}"
            );
        }
        assert_eq!(of("anthropic/claude-opus-4-8").without, ["temperature", "top_p", "top_k"]);
        assert_eq!(of("anthropic/claude-sonnet-4-6").one_of, ["temperature", "top_p"]);
        assert_eq!(of("mistral/magistral-medium-latest").reasoning, Some(ReasoningForm::Parts));
        assert_eq!(of("mistral/mistral-large-latest").reasoning, Some(ReasoningForm::Omit));
        assert_eq!(of("groq/openai/gpt-oss-120b").reasoning, Some(ReasoningForm::Reasoning));
    }
}
