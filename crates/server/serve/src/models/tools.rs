//! How tools are presented to a loaded model: in its chat template's own syntax, found by rendering, or in a generic one. Created when
//! a model is loaded; used before a prompt is rendered.

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use octet_api::Warning;
use octet_api::core::{Chat, TemplateChat};
use octet_engine::template::{ChatInput, ChatTemplate, ProbeBudget};
use octet_engine::tokenizer::Tokenizer;
use octet_parser::{
    Derived, Format, History, Ids, ReasoningPlace, TextBesideCalls, ToolSyntax, ToolsVariable, derive,
    json_dumps,
};
use serde_json::{Map, Value, json};

/// How tools and earlier calls are presented to the model.
#[derive(Debug, Default)]
pub struct Tools {
    shown: ToolDelivery,
    history: History,
    syntax: ToolSyntax,
}

/// How tools are presented to the model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum ToolDelivery {
    /// By its template, through this variable.
    Template(ToolsVariable),
    /// Described in the instructions; calls use the template's syntax.
    Described,
    /// Described in the instructions; calls are text in Hermes' syntax.
    #[default]
    Generic,
}

impl Tools {
    /// Derived from a template within the budget, with the parser for its answers. `asked` is the syntax that the server's user chose.
    pub fn of(
        template: &ChatTemplate,
        tokenizer: &Tokenizer,
        variables: &Map<String, Value>,
        asked: Option<&ToolSyntax>,
        budget: &ProbeBudget,
    ) -> (Self, Format) {
        let render = |messages: &[Value], variable: ToolsVariable, tools: &[Value]| {
            let mut input = ChatInput {
                messages: messages.to_vec(),
                variables: variables.clone(),
                ..ChatInput::default()
            };
            give_tools(&mut input.variables, &mut input.tools, variable, tools.to_vec());
            template.probe(&input, budget, "tool calls and reasoning").map(|prompt| prompt.text)
        };
        let stops: Vec<&str> =
            tokenizer.eos_ids().iter().filter_map(|&id| tokenizer.token_text(id)).collect();
        let derived = derive(template.source(), &render, &stops);
        let mut format = Format::derived(template.source(), &derived);
        let shown = match asked {
            Some(asked) => {
                format.tools = asked.clone();
                ToolDelivery::Template(derived.tools.unwrap_or(ToolsVariable::Tools))
            }
            None => delivery(&format.tools, &derived),
        };
        if shown == ToolDelivery::Generic {
            format.tools = ToolSyntax::Hermes;
        }
        (Self { shown, history: derived.history, syntax: format.tools.clone() }, format)
    }

    /// The conversation with its tools described as the template needs it, and a warning for the client.
    pub fn describe<'a>(&self, chat: &'a Chat) -> (Cow<'a, Chat>, Option<Warning>) {
        match self.shown {
            ToolDelivery::Template(_) => (Cow::Borrowed(chat), None),
            ToolDelivery::Described => {
                let arguments = Map::from_iter([("argument's name".to_string(), Value::from("value"))]);
                let example = self.syntax.write(&[("tool's name".into(), arguments)]);
                chat.with_described_tools(json_dumps, &example)
            }
            ToolDelivery::Generic => chat.with_generic_tools(json_dumps),
        }
    }

    /// Converts tools and earlier calls to the form that the template expects.
    pub fn shape(&self, from: &mut TemplateChat) {
        if let (ToolDelivery::Template(variable), Some(tools)) = (self.shown, from.tools.take()) {
            give_tools(&mut from.variables, &mut from.tools, variable, tools);
        }
        if self.history.reasoning != ReasoningPlace::default() {
            from.messages.iter_mut().for_each(|m| move_reasoning(m, self.history.reasoning));
        }
        if self.shown == ToolDelivery::Generic || !from.messages.iter().any(|m| m.get("tool_calls").is_some())
        {
            return;
        }
        if self.history.as_text {
            from.messages.iter_mut().for_each(|m| self.write_out(m));
            return;
        }
        match self.history.beside {
            TextBesideCalls::Together => {}
            TextBesideCalls::Apart => from.messages = text_apart(std::mem::take(&mut from.messages)),
            TextBesideCalls::Lost => from.warnings.extend(lost_text(&from.messages)),
        }
        if self.history.single {
            from.messages = one_by_one(std::mem::take(&mut from.messages));
        }
        self.rename(&mut from.messages);
    }

    /// Gives calls the ids, and messages without text the content, that the template expects.
    fn rename(&self, messages: &mut [Value]) {
        let mut ids: HashMap<String, String> = HashMap::new();
        let mut number = 0;
        for message in messages {
            let empty = matches!(&message["content"], Value::String(text) if text.is_empty());
            if let Some(calls) = message.get_mut("tool_calls").and_then(Value::as_array_mut) {
                for call in calls {
                    let old = call["id"].as_str().unwrap_or_default().to_string();
                    let new = match self.history.ids {
                        Ids::Any => old.clone(),
                        Ids::Short if is_short(&old) => old.clone(),
                        Ids::Short => shortened(&old),
                        Ids::Numbered => {
                            let name = call["function"]["name"].as_str().unwrap_or_default();
                            format!("functions.{name}:{number}")
                        }
                    };
                    number += 1;
                    call["id"] = new.as_str().into();
                    ids.insert(old, new);
                }
                if self.history.null_content && empty {
                    message["content"] = Value::Null;
                }
            }
            let answered = message.get("tool_call_id").and_then(Value::as_str);
            if let Some(new) = answered.and_then(|id| ids.get(id)) {
                message["tool_call_id"] = new.as_str().into();
            }
        }
    }

    /// Writes a message's calls into its text.
    fn write_out(&self, message: &mut Value) {
        let Some(Value::Array(calls)) = message.as_object_mut().and_then(|m| m.remove("tool_calls")) else {
            return;
        };
        let given = |call: &Value| {
            let function = &call["function"];
            let arguments = function["arguments"].as_object().cloned().unwrap_or_default();
            (function["name"].as_str().unwrap_or_default().to_string(), arguments)
        };
        let written = self.syntax.write(&calls.iter().map(given).collect::<Vec<_>>());
        message["content"] = match &message["content"] {
            Value::String(text) if !text.is_empty() => format!("{text}\n{written}").into(),
            Value::Array(parts) => {
                let mut parts = parts.clone();
                parts.push(serde_json::json!({"type": "text", "text": format!("\n{written}")}));
                parts.into()
            }
            _ => written.into(),
        };
    }
}

/// Moves a message's reasoning to the field that the template reads. gpt-oss' template refuses a message with both text and calls; its
/// text counts as reasoning.
fn move_reasoning(message: &mut Value, place: ReasoningPlace) {
    let says = message["content"].as_str().is_some_and(|text| !text.is_empty());
    let Some(members) = message.as_object_mut() else { return };
    if let Some(text) = members.remove("reasoning_content")
        && !(says && members.contains_key("tool_calls") && place == ReasoningPlace::Key("thinking"))
    {
        place.put(message, text);
    }
}

/// How tools are presented to a model with this call syntax.
fn delivery(syntax: &ToolSyntax, derived: &Derived) -> ToolDelivery {
    match (derived.tools, syntax) {
        (_, ToolSyntax::None) => ToolDelivery::Generic,
        (Some(variable), _) => ToolDelivery::Template(variable),
        (None, _) if derived.calls.is_some() => ToolDelivery::Described,
        (None, _) => ToolDelivery::Generic,
    }
}

/// Passes tools to a template in the variable that it reads.
fn give_tools(
    variables: &mut Map<String, Value>,
    given: &mut Option<Vec<Value>>,
    variable: ToolsVariable,
    tools: Vec<Value>,
) {
    match variable {
        _ if tools.is_empty() => {}
        ToolsVariable::Tools => *given = Some(tools),
        ToolsVariable::XmlTools => {
            variables.insert("xml_tools".into(), tools.into());
        }
    }
}

/// Whether a message has text, which white space is not, and calls. Many clients send some beside calls.
fn has_text_and_calls(message: &Value) -> bool {
    let is_text = |content: &Value| content.as_str().is_some_and(|text| !text.trim().is_empty());
    let has_text = match &message["content"] {
        Value::Array(parts) => parts.iter().any(|part| is_text(&part["text"])),
        content => is_text(content),
    };
    has_text && message.get("tool_calls").is_some()
}

/// Splits messages with text and calls into one with the text, and its reasoning, and one with the calls.
fn text_apart(messages: Vec<Value>) -> Vec<Value> {
    let mut out = Vec::with_capacity(messages.len());
    for mut message in messages {
        let is_split = has_text_and_calls(&message);
        let calls = message.as_object_mut().filter(|_| is_split).and_then(|m| m.remove("tool_calls"));
        let role = message["role"].clone();
        out.push(message);
        out.extend(calls.map(|calls| json!({"role": role, "content": "", "tool_calls": calls})));
    }
    out
}

/// A warning about the first message whose text the template leaves out.
fn lost_text(messages: &[Value]) -> Option<Warning> {
    messages.iter().any(has_text_and_calls).then(|| {
        Warning::new(
            "messages",
            "has text beside tool calls, of which this model's chat template shows only one",
        )
    })
}

/// Splits messages with several calls into one message per call, each followed by the call's result.
fn one_by_one(messages: Vec<Value>) -> Vec<Value> {
    let mut out: Vec<Value> = Vec::with_capacity(messages.len());
    for mut message in messages {
        let answered = message.get("tool_call_id").and_then(Value::as_str);
        let of = answered.and_then(|id| out.iter().rposition(|m| m["tool_calls"][0]["id"] == id));
        if let Some(at) = of {
            let next =
                out[at + 1..].iter().position(|m| m["role"] != "tool").map_or(out.len(), |n| at + 1 + n);
            out.insert(next, message);
            continue;
        }
        let calls = message.get("tool_calls").and_then(Value::as_array).cloned().unwrap_or_default();
        for call in calls.iter().take(calls.len().saturating_sub(1)) {
            let mut one = message.clone();
            one["tool_calls"] = vec![call.clone()].into();
            out.push(one);
            message["content"] = "".into();
            if let Some(m) = message.as_object_mut() {
                m.remove("reasoning_content");
            }
        }
        if let Some(last) = calls.last() {
            message["tool_calls"] = vec![last.clone()].into();
        }
        out.push(message);
    }
    out
}

fn is_short(id: &str) -> bool {
    id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric())
}

/// A hash of the id, nine letters and digits, so that the prompt has the same prefix at the next turn.
fn shortened(id: &str) -> String {
    let mut hasher = DefaultHasher::new();
    id.hash(&mut hasher);
    format!("{:09x}", hasher.finish() >> 28)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str) -> Value {
        json!({"type": "function", "id": id, "function": {"name": "f", "arguments": {}}})
    }

    #[test]
    fn several_calls_become_several_messages() {
        let answer = |id: &str| json!({"role": "tool", "content": id, "tool_call_id": id});
        let asked = json!({"role": "user", "content": "?"});
        let both = json!({"role": "assistant", "content": "So.", "tool_calls": [call("a"), call("b")]});
        let messages = one_by_one(vec![asked.clone(), both, answer("a"), answer("b"), asked]);
        let ids: Vec<&Value> = messages.iter().map(|m| &m["tool_calls"][0]["id"]).collect();
        assert_eq!(ids, [&Value::Null, &"a".into(), &Value::Null, &"b".into(), &Value::Null, &Value::Null]);
        let contents: Vec<&str> = messages.iter().map(|m| m["content"].as_str().unwrap()).collect();
        assert_eq!(contents, ["?", "So.", "a", "", "b", "?"]);
    }

    /// Of a message with text and calls, Llama 3.1's template writes the calls, and DeepSeek R1's the text.
    #[test]
    fn text_beside_calls_is_kept_or_warned_about() {
        for (writes, refuses) in [
            (["calls"].as_slice(), false),
            (&["text"], false),
            (&["text", "calls"], false),
            (&["calls"], true),
        ] {
            let write = |message: &Value| {
                let text = message["content"].as_str().unwrap_or_default();
                let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
                let call = |c: &Value| format!("<call>{}</call>", c["function"]);
                let has_both = !text.is_empty() && !calls.is_empty();
                let text = if has_both && !writes.contains(&"text") { "" } else { text };
                let calls = if has_both && !writes.contains(&"calls") { &[] } else { calls };
                format!("[{}]{text}{}[end]", message["role"], calls.iter().map(call).collect::<String>())
            };
            let render = |messages: &[Value]| {
                let twice = messages.windows(2).any(|m| m[0]["role"] == m[1]["role"]);
                (!refuses || !twice).then(|| messages.iter().map(write).collect::<String>())
            };
            let derived = derive(
                "",
                &|messages, _, tools| Some(Value::from(tools).to_string() + &render(messages)?),
                &["[end]"],
            );
            assert!(derived.calls.is_some());
            let shown = ToolDelivery::Template(ToolsVariable::Tools);
            let tools = Tools { history: derived.history, shown, ..Tools::default() };
            let both = json!({"role": "assistant", "content": "I look.", "tool_calls": [call("a")]});
            let mut chat = TemplateChat {
                messages: vec![json!({"role": "user", "content": "?"}), both],
                tools: None,
                variables: Map::new(),
                add_generation_prompt: true,
                warnings: Vec::new(),
            };
            tools.shape(&mut chat);
            assert_eq!(chat.warnings.len(), usize::from(refuses));
            if refuses {
                continue;
            }
            assert_eq!(chat.messages.len(), if writes.len() == 2 { 2 } else { 3 });
            let prompt = render(&chat.messages).expect("it is rendered");
            let [text, call] = ["I look.", "<call>"].map(|part| prompt.find(part).expect(part));
            assert!(text < call, "{prompt}");
        }
    }

    #[test]
    fn white_space_beside_calls_is_no_text() {
        let parts = |text: &str| json!([{"type": "text", "text": ""}, {"type": "text", "text": text}]);
        for (content, is_text) in [
            (json!("\n"), false),
            (json!(" "), false),
            (parts(""), false),
            (parts(" \n"), false),
            (Value::Null, false),
            (json!(" So. "), true),
            (parts("So."), true),
        ] {
            let message = json!({"role": "assistant", "content": content, "tool_calls": [call("a")]});
            assert_eq!(text_apart(vec![message.clone()]).len(), 1 + usize::from(is_text), "{content}");
            assert_eq!(lost_text(&[message]).is_some(), is_text, "{content}");
        }
    }

    #[test]
    fn ids_take_the_template_s_form() {
        let with = |ids: Ids| Tools { history: History { ids, ..History::default() }, ..Tools::default() };
        let messages = || {
            let called = json!({"role": "assistant", "content": "", "tool_calls": [call("call_77"), call("abcdefgh1")]});
            vec![called, json!({"role": "tool", "content": "", "tool_call_id": "call_77"})]
        };
        let mut short = messages();
        with(Ids::Short).rename(&mut short);
        let id = short[0]["tool_calls"][0]["id"].as_str().unwrap();
        assert!(is_short(id));
        assert_eq!(
            (short[1]["tool_call_id"].as_str(), &short[0]["tool_calls"][1]["id"]),
            (Some(id), &json!("abcdefgh1"))
        );
        let mut numbered = messages();
        with(Ids::Numbered).rename(&mut numbered);
        assert_eq!(numbered[0]["tool_calls"][1]["id"], "functions.f:1");
        assert_eq!(numbered[1]["tool_call_id"], "functions.f:0");
    }
}
