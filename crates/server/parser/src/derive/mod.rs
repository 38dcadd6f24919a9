//! Derives the call syntax of a model from its chat template, by rendering small chats with made-up calls and comparing the results.
//!
//! A chat is rendered with a text and with calls as its end: what follows the common prefix is the model's call syntax
//! (`Prober::region`). The made-up names, ids and values are located in it, and the text around them is the syntax (`split`). What
//! rendering cannot show is in the table of `known`.

pub(crate) mod known;
mod split;

use serde_json::{Value, json};

use crate::reasoning::ReasoningTags;
use crate::syntax::{Arguments, CallSyntax, JsonType, Nested, Tagged, tags};
use crate::text::TextTags;

/// The result for a template.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Derived {
    /// The call syntax; `None` if neither the template nor the table has one.
    pub calls: Option<CallSyntax>,
    /// The variable for tools; `None` if the template ignores tools.
    pub tools: Option<ToolsVariable>,
    /// The tags around reasoning; `None` if the model does not reason, or uses no tags.
    pub reasoning: Option<ReasoningTags>,
    /// The header before text; `None` if only calls have one.
    pub text: Option<TextTags>,
    /// How earlier calls are passed to the template.
    pub history: History,
}

/// The template variable for tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolsVariable {
    /// `tools`, in nearly all templates.
    Tools,
    /// `xml_tools`, in SmolLM3's.
    XmlTools,
}

/// How a template accepts earlier calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct History {
    /// It cannot write calls: they are passed as text.
    pub as_text: bool,
    /// The form of ids.
    pub ids: Ids,
    /// A message with calls and without text has `null` content instead of an empty text.
    pub null_content: bool,
    /// A message may have only one call.
    pub single: bool,
    /// How text and calls of one message are passed.
    pub beside: TextBesideCalls,
    /// The position of a message's reasoning.
    pub reasoning: ReasoningPlace,
}

/// How a template accepts text beside calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TextBesideCalls {
    /// In one message.
    #[default]
    Together,
    /// In one message, where the text counts as reasoning: gpt-oss. A message with reasoning, too, is refused.
    AsReasoning,
    /// In two messages: of one, it leaves out the text, or the calls.
    Apart,
    /// Not at all: it leaves out one of them, and refuses two messages in a row.
    Lost,
}

/// Where a template reads a message's reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasoningPlace {
    /// In a key of the message.
    Key(&'static str),
    /// In a part of its content, `{"type": "thinking", "thinking": ...}`: Mistral.
    Part,
}

impl Default for ReasoningPlace {
    /// The most common position.
    fn default() -> Self {
        Self::Key("reasoning_content")
    }
}

impl ReasoningPlace {
    /// Puts reasoning where the template reads it.
    pub fn put(self, message: &mut Value, text: Value) {
        match self {
            Self::Key(key) => message[key] = text,
            Self::Part => {
                let said = match message["content"].take() {
                    Value::Array(parts) => parts,
                    Value::String(said) if !said.is_empty() => vec![json!({"type": "text", "text": said})],
                    _ => Vec::new(),
                };
                let thought = json!({"type": "thinking", "thinking": text});
                message["content"] = std::iter::once(thought).chain(said).collect();
            }
        }
    }
}

/// The form of ids that a template accepts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Ids {
    /// Any.
    #[default]
    Any,
    /// Nine letters and digits: Mistral.
    Short,
    /// `functions.NAME:NUMBER`; the template writes the name only there: Kimi K2.
    Numbered,
}

/// Renders messages with tools in the given variable, without the beginning of an answer; `None` if the template rejects them.
pub type Render<'a> = &'a dyn Fn(&[Value], ToolsVariable, &[Value]) -> Option<String>;

/// Derives the syntax of the template `source`, which `render` renders. `stops` are the texts of tokens that end an answer.
pub fn derive(source: &str, render: Render<'_>, stops: &[&str]) -> Derived {
    let shown = |variable: &ToolsVariable| {
        render(&[user()], *variable, &tools()).is_some_and(|p| NAMES.iter().all(|n| p.contains(n)))
    };
    let tools = [ToolsVariable::Tools, ToolsVariable::XmlTools].into_iter().find(shown);
    let mut prober = Prober {
        render,
        stops,
        variable: tools.unwrap_or(ToolsVariable::Tools),
        history: History::default(),
        reasoning_ends: None,
    };
    let (place, tags) = prober.reasoning();
    if let Some((reasoning, text, calls)) = known::sections(source) {
        let beside = prober.text_beside_calls();
        let history = History { reasoning: place, beside, ..History::default() };
        return Derived { calls: Some(calls), tools, reasoning: Some(reasoning), text: Some(text), history };
    }
    let reasoning = tags.or_else(|| ReasoningTags::named_in(source));
    prober.reasoning_ends = reasoning.as_ref().map(|r| r.close.clone());
    for ids in [Ids::Any, Ids::Numbered] {
        for null_content in [false, true] {
            prober.history = History { ids, null_content, ..History::default() };
            if let Some(calls) = prober.calls() {
                let mut history = prober.history;
                history.single = calls.separator.is_none();
                if ids == Ids::Any && !prober.takes_long_ids() {
                    history.ids = Ids::Short;
                }
                history.beside = prober.text_beside_calls();
                history.reasoning = place;
                let (text, header) = prober.text_header().unzip();
                let reasoning = match header {
                    Some(header) => reasoning.or_else(|| prober.message_of_reasoning(&header, place)),
                    None => reasoning,
                };
                return Derived { calls: Some(calls), tools, reasoning, text, history };
            }
        }
    }
    prober.history = History::default();
    let is_harmony = known::is_harmony(source);
    let beside = if is_harmony { TextBesideCalls::AsReasoning } else { TextBesideCalls::default() };
    let history =
        History { as_text: !is_harmony, single: is_harmony, reasoning: place, beside, ..History::default() };
    Derived { calls: known::named_in(source), tools, reasoning, text: None, history }
}

// Words that no template contains and that are no single token.
const TEXT: &str = "zqtext";
const THOUGHT: &str = "zqthought";
const NAMES: [&str; 2] = ["zqalpha", "zqbeta"];
const IDS: [&str; 2] = ["zqid00001", "zqid00002"];
const KEYS: [&str; 2] = ["zqkey", "zqother"];
const VALUE: &str = "zqvalue";
const NUMBER: i64 = 73501;

fn user() -> Value {
    json!({"role": "user", "content": "hi"})
}

fn tools() -> Vec<Value> {
    let text = json!({"type": "string", "description": "-"});
    let properties = json!({KEYS[0]: text, KEYS[1]: {"type": "integer", "description": "-"}});
    let parameters = json!({"type": "object", "properties": properties, "required": []});
    let tool = |name: &&str| json!({"type": "function", "function": {"name": name, "description": "-", "parameters": parameters}});
    NAMES.iter().map(tool).collect()
}

/// An argument of the made-up calls.
fn argument(value: impl Into<Value>) -> Value {
    json!({KEYS[0]: value.into()})
}

/// What stands before a function's name at byte `at`, from the beginning of the line or the last tag.
fn header(prompt: &str, at: usize) -> Option<&str> {
    let before = prompt.get(..at).filter(|_| NAMES.iter().any(|n| prompt[at..].starts_with(n)))?;
    let line = before.rfind('\n').map_or(0, |n| n + 1);
    let from = before.rfind(['<', '[']).map_or(line, |tag| tag.max(line));
    Some(&before[from..]).filter(|h| !h.is_empty())
}

struct Prober<'a> {
    render: Render<'a>,
    stops: &'a [&'a str],
    variable: ToolsVariable,
    history: History,
    /// The tag after reasoning, which precedes a call.
    reasoning_ends: Option<String>,
}

impl Prober<'_> {
    fn prompt(&self, answer: Value) -> Option<String> {
        (self.render)(&[user(), answer], self.variable, &tools())
    }

    /// An answer that calls the made-up functions with these arguments.
    fn answer(&self, calls: &[Value], ids: [&str; 2]) -> Value {
        let call = |(i, arguments): (usize, &Value)| {
            let id = match self.history.ids {
                Ids::Numbered => format!("functions.{}:{i}", NAMES[i]),
                Ids::Any | Ids::Short => ids[i].to_string(),
            };
            json!({"type": "function", "id": id, "function": {"name": NAMES[i], "arguments": arguments}})
        };
        let calls: Vec<Value> = calls.iter().enumerate().map(call).collect();
        let content = if self.history.null_content { Value::Null } else { "".into() };
        json!({"role": "assistant", "content": content, "tool_calls": calls})
    }

    fn text_beside_calls(&self) -> TextBesideCalls {
        let possible = [TextBesideCalls::Together, TextBesideCalls::Apart];
        possible.into_iter().find(|how| self.keeps_text(*how)).unwrap_or(TextBesideCalls::Lost)
    }

    /// Whether the template writes both the text and the calls of messages that are passed in this way: of the last one, and of two with
    /// results and an answer behind them. Some templates count messages with text, but not those with calls, and then refuse two in a
    /// row (Mistral); or they write only the first text (DeepSeek V3).
    fn keeps_text(&self, beside: TextBesideCalls) -> bool {
        let words = [(TEXT, VALUE), ("zqlater", "zqworth")];
        let said = |text: &str| json!({"role": "assistant", "content": text});
        let messages = |rounds: usize, with_text: bool| {
            let mut out = vec![user()];
            for (i, (text, value)) in words[..rounds].iter().enumerate() {
                let mut call = self.answer(&[argument(*value)], [IDS[i], ""]);
                let id = call["tool_calls"][0]["id"].clone();
                if with_text && beside == TextBesideCalls::Apart {
                    out.push(said(text));
                } else if with_text {
                    call["content"] = (*text).into();
                }
                out.push(call);
                out.push(json!({"role": "tool", "tool_call_id": id, "name": NAMES[0], "content": "-"}));
            }
            if rounds == 1 {
                out.pop();
            } else {
                out.extend([said("-"), user()]);
            }
            out
        };
        let shows = |rounds: usize, with_text: bool| {
            let prompt = (self.render)(&messages(rounds, with_text), self.variable, &tools());
            let has =
                |p: &str, (text, value): &(&str, &str)| p.contains(value) && (!with_text || p.contains(text));
            prompt.is_some_and(|p| words[..rounds].iter().all(|pair| has(&p, pair)))
        };
        // Where the longer conversation is not written without text either, the text is not the cause.
        shows(1, true) && (shows(2, true) || !shows(2, false))
    }

    fn takes_long_ids(&self) -> bool {
        let long = ["call_0123456789abcdef0123456789abcdef", ""];
        self.prompt(self.answer(&[argument(VALUE)], long)).is_some()
    }

    /// The position of reasoning, and the tags around it. Some templates write it only in messages with calls.
    fn reasoning(&self) -> (ReasoningPlace, Option<ReasoningTags>) {
        let said = json!({"role": "assistant", "content": TEXT});
        let answers = [said, self.answer(&[argument(VALUE)], IDS)];
        let mut shown = None;
        let keys = ["reasoning_content", "thinking", "reasoning"].map(ReasoningPlace::Key);
        for place in keys.into_iter().chain([ReasoningPlace::Part]) {
            for answer in &answers {
                let mut answer = answer.clone();
                place.put(&mut answer, THOUGHT.into());
                let Some(prompt) = self.prompt(answer).filter(|p| p.contains(THOUGHT)) else { continue };
                if let Some(tags) = ReasoningTags::around(&prompt, THOUGHT) {
                    return (place, Some(tags));
                }
                // Some templates print a list of parts as Python data.
                if place != ReasoningPlace::Part {
                    shown.get_or_insert(place);
                }
            }
        }
        (shown.unwrap_or_default(), None)
    }

    /// The prompts of an answer with text and of one with these calls, and where they begin to differ.
    fn answers(&self, calls: &[Value]) -> Option<(String, String, usize)> {
        let text = self.prompt(json!({"role": "assistant", "content": TEXT}))?;
        let called = self.prompt(self.answer(calls, IDS))?;
        let same = text.bytes().zip(called.bytes()).take_while(|(a, b)| a == b).count();
        let mut from = called.floor_char_boundary(same);
        // Not in the middle of a tag.
        if let Some(at) = called[..from].rfind(['<', '['])
            && !called[at..from].contains(['>', ']', '\n'])
        {
            from = at;
        }
        Some((text, called, from))
    }

    /// The header before text, and the part of it that calls have, too, followed by a function's name: `>>>all\n` and `>>>`.
    fn text_header(&self) -> Option<(TextTags, String)> {
        let (text, called, from) = self.answers(&[argument(VALUE)])?;
        let same = header(&called, from)?;
        let said = from + text.get(from..)?.find(TEXT)?;
        let open = text[from - same.len()..said].to_string();
        (said > from).then(|| (TextTags { open, ..TextTags::default() }, same.to_string()))
    }

    /// The tags around reasoning that is a message of its own, with this header.
    fn message_of_reasoning(&self, header: &str, place: ReasoningPlace) -> Option<ReasoningTags> {
        let mut answer = json!({"role": "assistant", "content": TEXT});
        place.put(&mut answer, THOUGHT.into());
        let prompt = self.prompt(answer)?;
        let (before, behind) = prompt.split_once(THOUGHT)?;
        let open = &before[before.rfind(header)?..];
        let close = split::first_tags(behind).next().filter(|t| behind.starts_with(t))?;
        Some(ReasoningTags { open: open.into(), close: close.into() })
    }

    /// The model's text for these calls, trimmed.
    fn region(&self, calls: &[Value]) -> Option<String> {
        let (text, called, mut from) = self.answers(calls)?;
        from -= header(&called, from).map_or(0, str::len);
        let mut region = &called[from..];
        if let Some(end) = self.reasoning_ends.as_ref().and_then(|e| Some(region.find(e)? + e.len())) {
            region = &region[end..];
        }
        // It ends before the text that ends an answer.
        let last = region.rfind("zq").or_else(|| region.rfind(&NUMBER.to_string()))?;
        let behind = text.rsplit_once(TEXT).map_or("", |(_, behind)| behind);
        let ends = self.stops.iter().copied().chain(split::first_tags(behind));
        let end = ends.filter_map(|e| Some(last + region[last..].find(e)?)).min().unwrap_or(region.len());
        Some(region[..end].trim().to_string())
    }

    fn calls(&self) -> Option<CallSyntax> {
        let one = self.region(&[argument(VALUE)])?;
        if known::is_harmony(&one) {
            return None; // its calls are messages of their own
        }
        if !one.contains(NAMES[0]) || !one.contains(VALUE) {
            return None;
        }
        let arguments = self.arguments(&one)?;
        let two = self.region(&[argument(VALUE), argument(VALUE)]);
        let two = two.filter(|t| NAMES.iter().all(|n| t.contains(n)));
        let syntax = split::syntax(&one, two.as_deref(), &arguments)?;
        // A call that begins like ordinary text cannot be recognised.
        let is_clear = syntax.trigger().starts_with(['<', '[', '{', ']']) || syntax.trigger().len() > 2;
        is_clear.then_some(syntax)
    }

    /// The form of arguments, from a call with one.
    fn arguments(&self, one: &str) -> Option<Arguments> {
        let (key, quotes) = (KEYS[0], ['\'', '"']);
        if split::json_at(one, |v| *v == argument(VALUE)).is_some() {
            return Some(Arguments::Json);
        }
        if quotes.iter().any(|q| one.contains(&format!("{key}={q}{VALUE}{q}"))) {
            return Some(Arguments::Python);
        }
        if one.contains(&format!("{key}:<|\"|>{VALUE}<|\"|>")) {
            return Some(Arguments::Gemma);
        }
        if let Some(nested) = self.nested(one) {
            return Some(Arguments::Nested(nested));
        }
        let two = self.region(&[json!({KEYS[0]: VALUE, KEYS[1]: VALUE})])?;
        let (open, close) = split::around_parameters(&two)?;
        let middle = |value: Value, written: &str| {
            let text = self.region(&[argument(value)])?;
            split::between(&text, key, written).filter(|m| !m.is_empty()).map(str::to_string)
        };
        let text = middle(VALUE.into(), VALUE)?;
        let mut others = Vec::new();
        for (of, value, written) in [
            (JsonType::Number, json!(NUMBER), "73501"),
            (JsonType::Boolean, json!([true]), "["),
            (JsonType::Array, json!([VALUE]), "["),
            (JsonType::Object, json!({VALUE: NUMBER}), "{"),
        ] {
            // A word like `true` may be part of the tags: the text before it then also precedes a list.
            others.push((of, middle(value, written)?));
        }
        Some(Arguments::Tagged(Tagged { open, text, others, close }))
    }

    /// Arguments in nested tags, each after the same mark, from a call with one.
    fn nested(&self, one: &str) -> Option<Nested> {
        let (key, other) = (KEYS[0], KEYS[1]);
        let mark = split::between(one, VALUE, &format!("</{key}>"))?;
        let element = |key: &str, value: &str| format!("{mark}<{key}>{value}{mark}</{key}>");
        if tags(mark).next() != Some(mark) || !one.contains(&element(key, VALUE)) {
            return None;
        }
        let object = self.region(&[argument(json!({other: VALUE}))])?;
        let list = self.region(&[argument(json!([VALUE]))])?;
        let item = split::between(&list, &format!("<{key}>{mark}<"), &format!(">{VALUE}"))?;
        let is_nested = object.contains(&element(key, &element(other, VALUE)))
            && list.contains(&element(key, &element(item, VALUE)));
        is_nested.then(|| Nested { mark: mark.into(), item: item.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, ToolSyntax};

    #[test]
    fn tools_may_reach_the_prompt_by_another_variable() {
        let source = "{{ xml_tools }} call as <tool_call>{...}</tool_call>";
        let render = |messages: &[Value], variable: ToolsVariable, tools: &[Value]| {
            let shown =
                if variable == ToolsVariable::XmlTools { json!(tools).to_string() } else { String::new() };
            let texts = messages.iter().map(|m| m["content"].as_str().unwrap_or_default());
            Some(shown + &texts.collect::<Vec<_>>().join("\n"))
        };
        let derived = derive(source, &render, &[]);
        assert_eq!(derived.tools, Some(ToolsVariable::XmlTools));
        assert!(derived.history.as_text);
        assert_eq!(Format::derived(source, &derived).tools, ToolSyntax::Hermes);
    }

    /// As templates write them with `tojson`.
    #[test]
    fn calls_that_are_written_as_text_have_pythons_spaces() {
        let arguments = json!({"city": "Zürich", "days": 2});
        let calls = [("f".to_string(), arguments.as_object().expect("an object").clone())];
        // Granite 3, Kimi K2.
        let known =
            ["<|tool_call|>", "<|tool_calls_section_begin|>"].map(|tag| known::named_in(tag).expect(tag));
        let chosen = ["hermes", "openai"].map(|name| name.parse::<ToolSyntax>().expect(name));
        for syntax in known.map(ToolSyntax::from).into_iter().chain(chosen) {
            let text = syntax.write(&calls);
            assert!(text.contains(r#"{"city": "Zürich", "days": 2}"#), "{text}");
        }
    }

    #[test]
    fn a_template_without_calls_has_no_syntax() {
        let render = |messages: &[Value], _: ToolsVariable, _: &[Value]| {
            messages[0]["content"].as_str().map(String::from)
        };
        assert_eq!(derive("{{ messages[0].content }}", &render, &[]).calls, None);
        assert_eq!(derive("", &|_, _, _| None, &[]).tools, None);
    }
}
