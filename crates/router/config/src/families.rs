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
    /// What says that a chat is answered without thinking, instead of the effort `none`.
    pub none: Option<NoThinking>,
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
    /// It sees images. Requests are the same whether it does: providers refuse them themselves.
    pub images: bool,
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

/// How a provider with OpenAI's dialect is told not to think.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoThinking {
    /// `thinking: {type: disabled}`.
    Disabled,
    /// `enable_thinking: false`.
    NotEnabled,
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

    /// Whether no rule applies to requests.
    pub fn is_everything(&self) -> bool {
        *self == Self { images: self.images, ..Self::default() }
    }

    fn set(&mut self, rule: &str, value: &str) -> Result<(), String> {
        let value = Setting { rule, value: Some(value).filter(|v| *v != "-") };
        match rule {
            "form" => self.openai_form = value.is("openai")?,
            "api" => {
                let known = [("responses", ResponsesFor::All), ("responses-for-tools", ResponsesFor::Tools)];
                self.responses = value.word(&known)?.unwrap_or_default();
            }
            "length" => self.length = value.value.map(String::from),
            "output" => self.output_tokens_max = value.number()?,
            "only" => self.only = value.list(),
            "fields" => self.message_fields = value.list(),
            "without" => self.without = value.list(),
            "fixed" => self.fixed = value.fixed()?,
            "unless" => self.fixed_unless_none = value.is("none")?,
            "effort" => self.default_effort_is_none = value.is("none")?,
            "max" => self.max = value.numbers()?,
            "stops" => self.stops_max = value.count()?,
            "one" => self.one_of = value.list(),
            "rename" => self.rename = value.pairs()?,
            "efforts" => self.efforts = value.list(),
            "none" => self.none = value.word(NO_THINKING)?,
            "roles" => self.roles = value.pairs()?,
            "user" => self.user_chars_max = value.count()?,
            "tool-images" => self.no_tool_images = value.is("move")?,
            "reasoning" => self.reasoning = value.word(REASONING)?,
            "answers" => self.answers_in_parts = value.is("parts")?,
            "names" => self.name_chars_max = value.count()?,
            "characters" => self.name_characters = value.value.unwrap_or("").into(),
            "ids" => self.id_chars = value.count()?,
            "thinking" => self.thinking = value.word(THINKING)?,
            "off" => self.off = value.word(OFF)?.unwrap_or_default(),
            "prefill" => self.no_prefill = value.is("no")?,
            "breakpoints" => self.breakpoints = value.is("yes")?,
            "images" => self.images = value.is("yes")?,
            _ => return Err(format!("there is no rule '{rule}'")),
        }
        Ok(())
    }
}

const REASONING: &[(&str, ReasoningForm)] = &[
    ("omit", ReasoningForm::Omit),
    ("reasoning", ReasoningForm::Reasoning),
    ("reasoning_content", ReasoningForm::ReasoningContent),
    ("parts", ReasoningForm::Parts),
];
const NO_THINKING: &[(&str, NoThinking)] =
    &[("thinking", NoThinking::Disabled), ("enable_thinking", NoThinking::NotEnabled)];
const THINKING: &[(&str, Thinking)] =
    &[("budget", Thinking::Budget), ("adaptive", Thinking::Adaptive), ("both", Thinking::Both)];
const OFF: &[(&str, Off)] = &[("disabled", Off::Disabled), ("omit", Off::Omit), ("never", Off::Never)];

/// A rule and its value; `None` is "-".
struct Setting<'a> {
    rule: &'a str,
    value: Option<&'a str>,
}

impl Setting<'_> {
    fn wrong(&self) -> String {
        format!("{}={} has no such value", self.rule, self.value.unwrap_or("-"))
    }

    fn items(&self) -> impl Iterator<Item = &str> {
        self.value.into_iter().flat_map(|v| v.split(','))
    }

    fn list(&self) -> Vec<String> {
        self.items().map(String::from).collect()
    }

    fn pairs(&self) -> Result<Vec<(String, String)>, String> {
        let pair = |item: &str| item.split_once(':').map(|(a, b)| (a.into(), b.into()));
        self.items().map(|item| pair(item).ok_or_else(|| self.wrong())).collect()
    }

    fn numbers(&self) -> Result<Vec<(String, f64)>, String> {
        let number = |(name, value): (String, String)| Some((name, value.parse::<f64>().ok()?));
        self.pairs()?.into_iter().map(|pair| number(pair).ok_or_else(|| self.wrong())).collect()
    }

    fn fixed(&self) -> Result<Vec<(String, Option<f64>)>, String> {
        let one = |item: &str| match item.split_once(':') {
            None => Some((item.to_string(), None)),
            Some((name, value)) => Some((name.to_string(), Some(value.parse::<f64>().ok()?))),
        };
        self.items().map(|item| one(item).ok_or_else(|| self.wrong())).collect()
    }

    fn number(&self) -> Result<Option<u32>, String> {
        self.value.map(|v| v.parse::<u32>().map_err(|_| self.wrong())).transpose()
    }

    fn count(&self) -> Result<Option<usize>, String> {
        Ok(self.number()?.map(|n| n as usize))
    }

    /// Whether it is this word, or nothing.
    fn is(&self, word: &str) -> Result<bool, String> {
        Ok(self.word(&[(word, ())])?.is_some())
    }

    fn word<T: Copy>(&self, known: &[(&str, T)]) -> Result<Option<T>, String> {
        let find = |v: &str| known.iter().find(|(word, _)| *word == v).map(|(_, value)| *value);
        self.value.map(|v| find(v).ok_or_else(|| self.wrong())).transpose()
    }
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
        for name in [
            "openai/gpt-4o-mini",
            "azure/gpt-5.2-chat",
            "openai/o3",
            "anthropic/claude-opus-4-8",
            "bedrock/eu.anthropic.claude-sonnet-4-5-20250929-v1:0",
            "bedrock/us.amazon.nova-pro-v1:0",
            "gemini/gemini-3-pro-preview",
            "mistral/mistral-small-latest",
            "openrouter/google/gemini-2.5-flash",
            "ollama_chat/qwen2.5vl:7b",
        ] {
            assert!(of(name).images, "{name}");
        }
        for name in [
            "openai/gpt-3.5-turbo",
            "openai/o3-mini",
            "bedrock/anthropic.claude-v2:1",
            "bedrock/amazon.nova-micro-v1:0",
            "gemini/gemini-embedding-001",
            "mistral/codestral-latest",
            "deepseek/deepseek-chat",
            "ollama/gemma3:1b",
            "hosted_vllm/gpt-4o",
        ] {
            assert!(!of(name).images, "{name}");
        }
    }
}
