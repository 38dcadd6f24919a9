//! Content of several texts in real chat templates, against jinja2: all texts reach the prompt, as the template joins them if it does, on
//! separate lines if it would drop them or print them as data. The templates come from packages of PyPI.

#[path = "../../../../server/parser/tests/families/renderer.rs"]
mod renderer;

use std::collections::BTreeMap;

use octet_engine::template::{ArgumentsForm, ChatInput, ChatTemplate};
use octet_engine::tokenizer::Tokenizer;
use octet_weights::{Metadata, Value as Meta};
use serde::Serialize;
use serde_json::{Map, Value, json};

const TEXTS: [&str; 2] = ["Zqone apples.", "Zqtwo pears."];

/// The messages whose content has several texts: a name, and whether there are tools.
const CASES: [(&str, bool); 5] =
    [("user", false), ("user", true), ("system", false), ("assistant", false), ("tool", true)];

fn messages(role: &str, content: Value, arguments: ArgumentsForm) -> Vec<Value> {
    let user = json!({"role": "user", "content": "Hi."});
    let said = json!({"role": role, "content": content});
    match role {
        "user" => vec![said],
        "system" => vec![said, user],
        "assistant" => vec![user.clone(), said, user],
        _ => {
            let given = match arguments {
                ArgumentsForm::Object => json!({"city": "Rome"}),
                ArgumentsForm::Text => json!(r#"{"city": "Rome"}"#),
            };
            let call = json!({"type": "function", "id": "call00001", "function": {"name": "get_weather", "arguments": given}});
            let mut said = said;
            said["tool_call_id"] = "call00001".into();
            said["name"] = "get_weather".into();
            vec![user, json!({"role": "assistant", "content": "", "tool_calls": [call]}), said]
        }
    }
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string", "description": "-"}}, "required": ["city"]});
    json!([{"type": "function", "function": {"name": "get_weather", "description": "-", "parameters": parameters}}])
}

/// JSON as `json.dumps(value, indent=4)` writes it.
fn indented(value: &Value) -> String {
    let mut out = Vec::new();
    let style = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, style)).unwrap();
    String::from_utf8(out).unwrap()
}

/// Whether both texts are there, in order.
fn has_texts(prompt: &str) -> bool {
    let [one, two] = TEXTS.map(|t| prompt.find(t));
    one.is_some() && one < two
}

/// Signs of content that was printed as data.
fn printed(prompt: &str) -> usize {
    ["'type'", "'text'", "\"text\"", "[{'"].iter().map(|sign| prompt.matches(sign).count()).sum()
}

/// The messages with each content in parts.
fn as_parts(mut messages: Vec<Value>) -> Vec<Value> {
    for content in messages.iter_mut().filter_map(|m| m.get_mut("content")).filter(|c| c.is_string()) {
        *content = json!([{"type": "text", "text": content}]);
    }
    messages
}

/// Templates whose prompts differ from jinja2's in something else: a role in which, and why.
const UNLIKE: [(&str, &str, &str); 2] = [
    (
        "meetkai-functionary-medium-v3.1",
        "tool",
        "adds text to text that is marked as safe, which escapes it as HTML",
    ),
    ("CohereForAI-c4ai-command-r-plus-tool_use", "tool", "a line break after a brace that is no block's"),
];

fn template(source: &str) -> Result<ChatTemplate, String> {
    let mut m = Metadata::new("test");
    m.insert("tokenizer.ggml.model", Meta::Str("llama".into()));
    // The tokens that jinja2 is given.
    let tokens = ["<unk>", "<s>", "</s>", "<pad>"];
    m.insert("tokenizer.ggml.tokens", Meta::Strs(tokens.map(Into::into).into()));
    m.insert("tokenizer.ggml.token_type", Meta::Ints(vec![2, 3, 3, 3]));
    m.insert("tokenizer.ggml.scores", Meta::Floats(vec![0.0; 4]));
    for (i, name) in ["unknown", "bos", "eos", "padding"].iter().enumerate() {
        m.insert(&format!("tokenizer.ggml.{name}_token_id"), Meta::U64(i as u64));
    }
    let tokenizer = Tokenizer::from_metadata(&m).unwrap();
    ChatTemplate::new(source, &m, &tokenizer).map_err(|e| e.to_string())
}

#[test]
fn several_texts_reach_the_prompts_of_real_templates() {
    let Some((renderer, paths)) = renderer::templates() else { return };
    let (mut bad, mut counts) = (Vec::new(), BTreeMap::<_, [usize; 3]>::new());
    for path in &paths {
        let name = path.file_stem().unwrap().to_string_lossy();
        let template = match template(&std::fs::read_to_string(path).unwrap()) {
            Ok(template) => template,
            Err(why) => {
                bad.push(format!("{name}: {why}"));
                continue;
            }
        };
        for (role, with_tools) in CASES {
            let tools = || with_tools.then(tools);
            let chat = |content: Value| messages(role, content, template.arguments_form());
            let octet = |content: Value| {
                let input = ChatInput {
                    messages: messages(role, content, ArgumentsForm::Object),
                    tools: tools().map(|t| t.as_array().unwrap().clone()),
                    add_generation_prompt: true,
                    variables: Map::new(),
                    now_s: Some(0),
                };
                template.render(&input).map(|prompt| prompt.text)
            };
            let rendered = |messages: &[Value]| {
                let functions = tools().map_or(json!([]), |tools| json!([tools[0]["function"]]));
                let variables = json!({
                    "add_generation_prompt": true,
                    // What FireFunction's template requires, as its model card makes it.
                    "functions": indented(&functions), "datetime": "1970-01-01 00:00:00",
                });
                renderer.render(path, messages, tools().unwrap_or_default(), variables)
            };
            let jinja = |content: Value| rendered(&chat(content));
            let parts = || json!(TEXTS.map(|text| json!({"type": "text", "text": text})));
            let lines = || json!(TEXTS.join("\n"));
            let [tried, given, joined] = counts.entry((role, with_tools)).or_default();
            *tried += 1;
            let at = format!("{name}, {role}{}", if with_tools { ", tools" } else { "" });
            let (one, several) = (octet(lines()), octet(parts()));
            let whole = jinja(parts());
            // Not every template has every role.
            let no_role = |prompt: &Option<String>| !prompt.as_ref().is_some_and(|p| has_texts(p));
            if no_role(&jinja(lines())) && no_role(&whole) {
                continue;
            }
            let data = one.as_ref().map_or(0, |p| printed(p));
            let takes_parts = whole.as_ref().is_some_and(|p| has_texts(p) && printed(p) <= data);
            *given += usize::from(takes_parts);
            *joined += usize::from(!takes_parts);
            let want = if takes_parts { whole } else { jinja(lines()) };
            let differs = UNLIKE.iter().any(|(n, r, _)| *n == name && (*r == role || with_tools));
            match several {
                Err(e) => bad.push(format!("{at}: {e}")),
                Ok(got) if !has_texts(&got) || printed(&got) > data => {
                    bad.push(format!("{at}: the texts are not in the prompt as such: {got:?}"));
                }
                // Some drop the other messages, unless these are parts, too.
                Ok(got) if rendered(&as_parts(chat(parts()))).as_ref() == Some(&got) => {}
                Ok(got) if !differs && want.as_ref() != Some(&got) => {
                    bad.push(format!("{at}: {got:?}\n    jinja2: {want:?}"));
                }
                Ok(_) => {}
            }
        }
    }
    for ((role, with_tools), [tried, given, joined]) in &counts {
        println!("{role}, tools {with_tools}: {tried} templates, {given} take several texts, {joined} one");
        assert!(*given > 0 && *joined > 0 || std::env::var_os("OCTET_TEST_TEMPLATES").is_some());
    }
    println!("{} templates, {} wrong", paths.len(), bad.len());
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
