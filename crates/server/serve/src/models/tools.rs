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
        let calls = from.messages.iter().any(|m| m.get("tool_calls").is_some());
        if calls && self.shown != ToolDelivery::Generic {
            self.shape_calls(from);
        }
        // After messages were split: the reasoning stays with their first part.
        if self.history.reasoning != ReasoningPlace::default() {
            from.messages.iter_mut().for_each(|m| move_reasoning(m, self.history.reasoning));
        }
    }

    /// Converts messages with calls.
    fn shape_calls(&self, from: &mut TemplateChat) {
        if self.history.as_text {
            from.messages.iter_mut().for_each(|m| self.write_out(m));
            return;
        }
        match self.history.beside {
            TextBesideCalls::Together => {}
            TextBesideCalls::AsReasoning => from.messages.iter_mut().for_each(join_reasoning),
            TextBesideCalls::Apart => from.messages = text_apart(std::mem::take(&mut from.messages)),
            TextBesideCalls::Lost => from.warnings.extend(leave_out_text(&mut from.messages)),
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

/// Moves a message's reasoning to the field that the template reads.
fn move_reasoning(message: &mut Value, place: ReasoningPlace) {
    if let Some(text) = message.as_object_mut().and_then(|m| m.remove("reasoning_content")) {
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

/// The texts of a message's content.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// Whether a message has text, which white space is not, and calls. Many clients send some beside calls.
fn has_text_and_calls(message: &Value) -> bool {
    message.get("tool_calls").is_some() && !text_of(&message["content"]).trim().is_empty()
}

/// Adds the text beside calls to the message's reasoning: gpt-oss' template writes either as that, and refuses both.
fn join_reasoning(message: &mut Value) {
    let Some(reasoning) = message["reasoning_content"].as_str().filter(|text| !text.is_empty()) else {
        return;
    };
    if message.get("tool_calls").is_none() {
        return;
    }
    if has_text_and_calls(message) {
        message["reasoning_content"] = format!("{reasoning}\n\n{}", text_of(&message["content"])).into();
    }
    message["content"] = "".into();
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

/// Leaves out the text of messages with calls, with a warning if there is any.
fn leave_out_text(messages: &mut [Value]) -> Option<Warning> {
    let mut warning = None;
    for message in messages.iter_mut().filter(|m| has_text_and_calls(m)) {
        message["content"] = "".into();
        let what = "has text beside tool calls, which this model's chat template has no place for: the text is left out";
        warning.get_or_insert_with(|| Warning::new("messages", what));
    }
    warning
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

    fn chat(messages: Vec<Value>) -> TemplateChat {
        TemplateChat {
            messages,
            images: Vec::new(),
            tools: None,
            variables: Map::new(),
            add_generation_prompt: true,
            warnings: Vec::new(),
        }
    }

    /// What a template does with messages that have text and calls.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Writes {
        Both,
        /// DeepSeek V3.
        FirstText,
        /// DeepSeek R1.
        Text,
        /// Llama 3.1.
        Calls,
    }

    /// What a template refuses.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Refuses {
        Nothing,
        /// Two answers in a row.
        TwoInARow,
        /// Two answers of text before the user's next message: Mistral Nemo, which does not count those with calls.
        TwoTexts,
    }

    fn rendered(messages: &[Value], writes: Writes, refuses: Refuses) -> Option<String> {
        let has_calls = |m: &Value| m["tool_calls"].is_array();
        let texts: Vec<&Value> = messages.iter().filter(|m| !has_calls(m) && m["role"] != "tool").collect();
        let is_refused = match refuses {
            Refuses::Nothing => false,
            Refuses::TwoInARow => messages.windows(2).any(|m| m[0]["role"] == m[1]["role"]),
            Refuses::TwoTexts => texts.windows(2).any(|m| m[0]["role"] == m[1]["role"]),
        };
        let mut out = String::new();
        let mut called = false;
        for message in messages {
            let text = message["content"].as_str().unwrap_or_default();
            let calls = message["tool_calls"].as_array().map_or(&[][..], Vec::as_slice);
            let has_both = !text.is_empty() && !calls.is_empty();
            let leaves_text = writes == Writes::Calls || writes == Writes::FirstText && called;
            let text = if has_both && leaves_text { "" } else { text };
            let calls = if has_both && writes == Writes::Text { &[] } else { calls };
            called |= !calls.is_empty();
            let calls: String = calls.iter().map(|c| format!("<call>{}</call>", c["function"])).collect();
            out.push_str(&format!("[{}]{text}{calls}[end]", message["role"]));
        }
        (!is_refused).then_some(out)
    }

    /// In a conversation that ends with calls, goes on with further ones, and is answered.
    #[test]
    fn text_beside_calls_is_kept_or_warned_about() {
        let said = |role: &str, text: &str| json!({"role": role, "content": text});
        let both =
            |text: &str, id: &str| json!({"role": "assistant", "content": text, "tool_calls": [call(id)]});
        let result = |id: &str| json!({"role": "tool", "content": "12", "tool_call_id": id});
        let begun = [said("user", "?"), both("I look.", "a")];
        let again = [result("a"), both("Once more.", "b"), result("b")];
        let answered = [said("assistant", "So."), said("user", "And?")];
        for (writes, refuses, beside) in [
            (Writes::Both, Refuses::Nothing, TextBesideCalls::Together),
            (Writes::Both, Refuses::TwoTexts, TextBesideCalls::Together),
            (Writes::FirstText, Refuses::Nothing, TextBesideCalls::Apart),
            (Writes::Text, Refuses::Nothing, TextBesideCalls::Apart),
            (Writes::Calls, Refuses::Nothing, TextBesideCalls::Apart),
            (Writes::Calls, Refuses::TwoInARow, TextBesideCalls::Lost),
            (Writes::Calls, Refuses::TwoTexts, TextBesideCalls::Lost),
            (Writes::Text, Refuses::TwoTexts, TextBesideCalls::Lost),
        ] {
            let render = |messages: &[Value]| rendered(messages, writes, refuses);
            let derived = derive(
                "",
                &|messages, _, tools| Some(Value::from(tools).to_string() + &render(messages)?),
                &["[end]"],
            );
            assert!(derived.calls.is_some());
            assert_eq!(derived.history.beside, beside, "{writes:?} {refuses:?}");
            let shown = ToolDelivery::Template(ToolsVariable::Tools);
            let tools = Tools { history: derived.history, shown, ..Tools::default() };
            let all = [&begun[..], &again, &answered].concat();
            for (n, texts) in
                [(2, &["I look."][..]), (5, &["I look.", "Once more."]), (7, &["I look.", "Once more."])]
            {
                let mut chat = chat(all[..n].to_vec());
                tools.shape(&mut chat);
                let is_lost = beside == TextBesideCalls::Lost;
                assert_eq!(chat.warnings.len(), usize::from(is_lost));
                let apart = if beside == TextBesideCalls::Apart { texts.len() } else { 0 };
                assert_eq!(chat.messages.len(), n + apart);
                let prompt = render(&chat.messages).expect("it is rendered");
                assert_eq!(prompt.matches("<call>").count(), texts.len(), "{prompt}");
                let mut from = 0;
                for text in texts {
                    let found = prompt[from..].find(text).map(|at| from + at);
                    assert_eq!(found.is_none(), is_lost, "{prompt}");
                    from = found.unwrap_or(from);
                    from += prompt[from..].find("<call>").expect("its call follows");
                }
            }
        }
    }

    /// gpt-oss: one call in a message, and text beside it counts as reasoning.
    #[test]
    fn reasoning_before_calls_is_written_once() {
        let history = History {
            single: true,
            reasoning: ReasoningPlace::Key("thinking"),
            beside: TextBesideCalls::AsReasoning,
            ..History::default()
        };
        let shown = ToolDelivery::Template(ToolsVariable::Tools);
        let tools = Tools { history, shown, ..Tools::default() };
        for (content, thought, shown) in [
            (json!(""), "I think.", ("", json!("I think."))),
            (json!(" "), "I think.", ("", json!("I think."))),
            (json!("So."), "I think.", ("", json!("I think.\n\nSo."))),
            (json!([{"type": "text", "text": "So."}]), "I think.", ("", json!("I think.\n\nSo."))),
            (json!("So."), "", ("So.", Value::Null)),
        ] {
            let mut message =
                json!({"role": "assistant", "content": content, "tool_calls": [call("a"), call("b")]});
            if !thought.is_empty() {
                message["reasoning_content"] = thought.into();
            }
            let mut chat = chat(vec![message]);
            tools.shape(&mut chat);
            let seen =
                |m: &Value| (m["content"].clone(), m["thinking"].clone(), m["reasoning_content"].clone());
            let seen: Vec<_> = chat.messages.iter().map(seen).collect();
            let first = (json!(shown.0), shown.1, Value::Null);
            assert_eq!(seen, [first, (json!(""), Value::Null, Value::Null)], "{content}");
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
            assert_eq!(leave_out_text(&mut [message]).is_some(), is_text, "{content}");
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
