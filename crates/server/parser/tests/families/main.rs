//! The syntaxes of calls derived from real chat templates, which jinja2 renders as in transformers: calls as a template renders them
//! parse to the same calls, whole and by characters. The templates come from packages of PyPI; none is in this repository.

mod mutations;
mod renderer;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::{Arc, LazyLock};

use octet_parser::{
    Changes, Derived, Format, History, Ids, Message, Options, Parser, Start, TextBesideCalls, Tool,
    ToolSyntax, ToolsVariable, derive,
};
use renderer::Renderer;
use serde_json::{Map, Value, json};

/// A template's text; `None` if it rejects the messages.
fn render(
    renderer: &Renderer,
    template: &Path,
    messages: &[Value],
    variable: ToolsVariable,
    tools: &[Value],
) -> Option<String> {
    // Some take arguments as a mapping, some as text: the one that does not fail, and is not quoted, is right.
    let as_text = |messages: &[Value]| {
        let mut messages = messages.to_vec();
        for call in messages.iter_mut().filter_map(|m| m.get_mut("tool_calls")?.as_array_mut()).flatten() {
            let arguments = call["function"]["arguments"].to_string();
            call["function"]["arguments"] = arguments.into();
        }
        messages
    };
    let ask = |messages: &[Value]| {
        let (tools, variables) = match variable {
            // FireFunction's template requires two more variables, of which the engine makes one of the tools.
            ToolsVariable::Tools => (json!(tools), json!({"functions": functions(tools), "datetime": "now"})),
            ToolsVariable::XmlTools => (Value::Null, json!({"xml_tools": tools})),
        };
        renderer.render(template, messages, tools, variables)
    };
    let calls = messages.iter().any(|m| m["tool_calls"].is_array());
    let plain = ask(messages);
    match plain {
        Some(text) if !calls || !text.contains("': ") => Some(text),
        Some(text) => ask(&as_text(messages)).filter(|t| !t.contains("\\\"")).or(Some(text)),
        None if calls => ask(&as_text(messages)),
        None => None,
    }
}

/// The functions of tools as JSON text.
fn functions(tools: &[Value]) -> String {
    Value::from_iter(tools.iter().map(|t| t["function"].clone())).to_string()
}

/// The tools of all requests.
static TOOLS: LazyLock<Arc<[Tool]>> = LazyLock::new(|| tools().into());

fn tools() -> Vec<Tool> {
    let tool = |name: &str, properties: Value| Tool {
        name: name.into(),
        parameters: json!({"type": "object", "required": Value::from_iter(properties.as_object().unwrap().keys().cloned()), "properties": properties}),
    };
    vec![
        tool(
            "get_weather",
            json!({"city": {"type": "string", "description": "-"}, "days": {"type": "integer", "description": "-"}}),
        ),
        tool(
            "find",
            json!({"paths": {"type": "array", "items": {"type": "string"}, "description": "-"}, "deep": {"type": "boolean", "description": "-"}}),
        ),
    ]
}

fn schemas() -> Vec<Value> {
    let schema = |t: Tool| json!({"type": "function", "function": {"name": t.name, "description": "-", "parameters": t.parameters}});
    tools().into_iter().map(schema).collect()
}

fn calls() -> [(&'static str, Value); 2] {
    [
        ("get_weather", json!({"city": "Zürich, \"it's\" <b>", "days": 2})),
        ("find", json!({"paths": ["a", "b c"], "deep": true})),
    ]
}

fn parse(format: &Format, start: Start, pieces: &[&str]) -> Message {
    parse_changed(format, start, pieces).0
}

/// The message, and what was changed of it.
fn parse_changed(format: &Format, start: Start, pieces: &[&str]) -> (Message, Changes) {
    let mut message = Message::default();
    let mut parser = Parser::new(format.clone(), start, TOOLS.clone(), Options::default());
    pieces.iter().for_each(|piece| parser.push(piece, &mut |delta| message.add(delta)));
    let changes = parser.finish_scoped(false, &mut |delta, _| message.add(delta));
    (message, changes)
}

/// A call of a message, with an id as the template takes it.
fn call(derived: &Derived, i: usize) -> Value {
    let (name, arguments) = &calls()[i];
    let is_numbered = derived.history.ids == Ids::Numbered;
    let id = if is_numbered { format!("functions.{name}:{i}") } else { format!("call0000{i}") };
    json!({"type": "function", "id": id, "function": {"name": name, "arguments": arguments}})
}

/// Whether text beside calls is in the prompts of conversations that go on behind them; what is wrong, where it is not.
fn keeps_text(renderer: &Renderer, path: &Path, derived: &Derived) -> Result<(), String> {
    let History { null_content, beside, .. } = derived.history;
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    let texts = ["zqfirst", "zqsecond"];
    let prompt = |rounds: usize, is_answered: bool, with_text: bool| {
        let mut messages = vec![said("user", "hi")];
        for (i, text) in texts[..rounds].iter().enumerate() {
            let call = call(derived, i);
            let (id, name) = (call["id"].clone(), call["function"]["name"].clone());
            let content = match beside {
                TextBesideCalls::Together | TextBesideCalls::AsReasoning if with_text => text,
                TextBesideCalls::Apart if with_text => {
                    messages.push(said("assistant", text));
                    ""
                }
                _ => "",
            };
            let content = if null_content && content.is_empty() { Value::Null } else { content.into() };
            messages.push(json!({"role": "assistant", "content": content, "tool_calls": [call]}));
            messages.push(json!({"role": "tool", "tool_call_id": id, "name": name, "content": "12"}));
        }
        if is_answered {
            messages.extend([said("assistant", "So."), said("user", "And?")]);
        }
        let variable = derived.tools.unwrap_or(ToolsVariable::Tools);
        render(renderer, path, &messages, variable, &schemas())
    };
    for (rounds, is_answered) in [(1, false), (1, true), (2, false), (2, true)] {
        let at = format!("{rounds} rounds, {}", if is_answered { "answered" } else { "not answered" });
        if prompt(rounds, is_answered, false).is_none() {
            continue; // whatever it does not take, it is not the text
        }
        let Some(prompt) = prompt(rounds, is_answered, true) else {
            return Err(format!("{at}: is not rendered"));
        };
        // gpt-oss' template leaves reasoning out once it is answered.
        let is_left_out =
            beside == TextBesideCalls::Lost || beside == TextBesideCalls::AsReasoning && is_answered;
        if !is_left_out && !texts[..rounds].iter().all(|text| prompt.contains(text)) {
            return Err(format!("{at}: a text is missing: {prompt}"));
        }
    }
    Ok(())
}

/// What a template makes of an answer with the first `n` calls, after `said`: from where an answer of text would differ, or where the
/// prompt ends if text has a header.
fn written(
    renderer: &Renderer,
    path: &Path,
    (derived, format): (&Derived, &Format),
    (said, n): (&str, usize),
) -> Option<(Start, String)> {
    let calls: Vec<Value> = (0..n).map(|i| call(derived, i)).collect();
    let content = if derived.history.null_content && said.is_empty() { Value::Null } else { said.into() };
    let user = json!({"role": "user", "content": "hi"});
    let variable = derived.tools.unwrap_or(ToolsVariable::Tools);
    let answered = |answer: Value| render(renderer, path, &[user.clone(), answer], variable, &schemas());
    let mut answer = json!({"role": "assistant", "content": content});
    if n > 0 {
        answer["tool_calls"] = calls.into();
    }
    let with = answered(answer)?;
    if format.text.is_some() {
        let variables = json!({"add_generation_prompt": true});
        let prompt = renderer.render(path, &[user], json!(schemas()), variables)?;
        let start = format.start(&prompt);
        // What ends an answer is a token, and no text of it.
        let ends = ["<|eot_id|>", "<|eot|>", "<|end_of_msg|>"];
        let answer = ends.iter().find_map(|end| with.strip_suffix(end)).unwrap_or(&with);
        return Some((start, answer.strip_prefix(&prompt)?.to_string()));
    }
    let without = answered(json!({"role": "assistant", "content": "zqtext"}))?;
    if let Some((_, answer)) = with.rsplit_once("<|start|>assistant").filter(|_| with.contains("<|channel|>"))
    {
        return Some((Start::default(), answer.to_string()));
    }
    let same = with.bytes().zip(without.bytes()).take_while(|(a, b)| a == b).count();
    let from = with[..with.floor_char_boundary(same + 1).min(with.len())]
        .rfind(['<', '[', '{', '>', ']', '\n'])
        .unwrap_or(0);
    Some((Start::default(), with[from.min(same)..].to_string()))
}

/// Whether the template's own calls are read back; what was read, where they are not.
fn round_trip(format: &Format, (start, text): (Start, &str), (said, n): (&str, usize)) -> Result<(), String> {
    let parse = |pieces: &[&str]| parse(format, start, pieces);
    let want: Vec<(String, Value)> = calls()[..n].iter().map(|(f, a)| (f.to_string(), a.clone())).collect();
    let whole = parse(&[text]);
    let found: Vec<(String, Value)> = whole
        .tool_calls
        .iter()
        .map(|c| (c.name.clone(), serde_json::from_str(&c.arguments).unwrap_or(c.arguments.as_str().into())))
        .collect();
    if found != want || format.text.is_some() && whole.content != said {
        return Err(format!("{text:?}\n      -> {found:?} {:?}", whole.content));
    }
    for (at, _) in text.char_indices() {
        if parse(&[&text[..at], &text[at..]]) != whole {
            return Err(format!("{text:?}\n      cut at {at}: {:?}", parse(&[&text[..at], &text[at..]])));
        }
    }
    Ok(())
}

/// Whether an answer with reasoning, as the template writes it, is read as that; `None` where the template leaves reasoning out.
fn reasons(
    renderer: &Renderer,
    path: &Path,
    derived: &Derived,
    format: &Format,
) -> Option<Result<(), String>> {
    let (thought, said) = ("zqthought one.\n\nzqtwo", "zqtext");
    let tags = format.reasoning.as_ref().filter(|_| format.tools != ToolSyntax::Harmony)?;
    let mut answer = json!({"role": "assistant", "content": said});
    derived.history.reasoning.put(&mut answer, thought.into());
    let messages = [json!({"role": "user", "content": "hi"}), answer];
    let prompt = render(renderer, path, &messages, ToolsVariable::Tools, &[])?;
    let text = &prompt[prompt[..prompt.find(thought)?].rfind(&tags.open)?..];
    // Up to what ends the answer.
    let text = &text[..text.find(said)? + said.len()];
    for start in [0, tags.open.len()] {
        let in_reasoning = start > 0;
        for cut in (start..text.len()).filter(|at| text.is_char_boundary(*at)) {
            let mut message = Message::default();
            let mut parser = Parser::new(
                format.clone(),
                Start { in_reasoning, ..Start::default() },
                TOOLS.clone(),
                Options::default(),
            );
            [&text[start..cut], &text[cut..]].iter().for_each(|t| parser.push(t, &mut |d| message.add(d)));
            parser.finish(&mut |delta| message.add(delta));
            // Control tokens around what is said (Cohere's) are no text in an answer.
            let content = message.content.trim().replace("<|START_TEXT|>", "");
            if (message.reasoning.as_str(), content.as_str()) != (thought, said) {
                return Some(Err(format!("{text:?} cut at {cut}: {message:?}")));
            }
        }
    }
    Some(Ok(()))
}

/// The headers and ends of messages, in families that have some; the prompt may have begun the first header.
fn headers(format: &Format, start: Start) -> Vec<String> {
    let Some(text) = &format.text else { return Vec::new() };
    let begun = text.open[start.header..].to_string();
    let thought = format.reasoning.iter().flat_map(|r| [r.open.clone(), r.close.clone()]);
    let all = [text.open.clone(), begun, text.close.clone(), text.end.clone()].into_iter().chain(thought);
    all.map(|header| header.trim().to_string()).filter(|header| !header.is_empty()).collect()
}

#[test]
fn calls_of_real_templates_parse_to_themselves() {
    let Some((renderer, templates)) = renderer::templates() else { return };
    let (mut native, mut generic, mut reasoning, mut bad) = (0, 0, 0, Vec::new());
    let mut table: BTreeMap<String, String> = BTreeMap::new();
    let mut changed = mutations::Mutations::default();
    // Many families write calls alike.
    let mut seen = HashSet::new();
    for path in templates {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let source = std::fs::read_to_string(&path).unwrap();
        let rendered = |messages: &[Value], variable: ToolsVariable, tools: &[Value]| {
            render(&renderer, &path, messages, variable, tools)
        };
        let derived = derive(&source, &rendered, &["</s>"]);
        let format = Format::derived(&source, &derived);
        match reasons(&renderer, &path, &derived, &format) {
            Some(Ok(())) => reasoning += 1,
            Some(Err(why)) => bad.push(format!("{name}, reasoning: {why}")),
            None => {}
        }
        if format.tools == ToolSyntax::None || derived.tools.is_none() && derived.calls.is_none() {
            generic += 1;
            if derived.tools.is_some() {
                bad.push(format!("{name}: shows tools, and no syntax of calls was found"));
            }
            table.insert(name, "generic".into());
            continue;
        }
        native += 1;
        let how = match &format.tools {
            ToolSyntax::Native(syntax) => {
                let calls: Vec<(String, Map<String, Value>)> =
                    vec![("f".into(), json!({"a": "b", "c": 1}).as_object().unwrap().clone()); 2];
                syntax.write(if syntax.separator.is_some() { &calls } else { &calls[..1] })
            }
            other => format!("{other:?}"),
        };
        let tags = format.reasoning.as_ref().map(|r| (&r.open, &r.close));
        table.insert(name.clone(), format!("{how:?} {:?} {:?} {tags:?}", derived.tools, derived.history));
        let most = match derived.history {
            History { as_text: true, .. } => 0,
            History { single: true, .. } => 1,
            _ => 2,
        };
        if most > 0
            && let Err(why) = keeps_text(&renderer, &path, &derived)
        {
            bad.push(format!("{name}, text beside calls: {why}"));
        }
        let mut cases = vec![("", 1), ("", 2)];
        // In few families text has a header, too.
        if derived.text.is_some() {
            let said = "Well, >>> it\nis <b>.";
            cases.extend([(said, 0), (said, 1), (said, 2)]);
        }
        for (said, n) in cases.into_iter().filter(|(_, n)| *n <= most) {
            match written(&renderer, &path, (&derived, &format), (said, n)) {
                // Muse Glimmer's template leaves out what is said before calls.
                Some((_, text)) if !text.contains(said) && n > 0 => {}
                Some((start, text)) => {
                    if !seen.insert(format!("{format:?} {start:?} {text}")) {
                        continue;
                    }
                    if let Err(why) = round_trip(&format, (start, &text), (said, n)) {
                        bad.push(format!("{name}, {n}: {why}"));
                    }
                    let want: Vec<(String, Value)> =
                        calls()[..n].iter().map(|(f, a)| (f.to_string(), a.clone())).collect();
                    let read = |pieces: &[&str]| parse_changed(&format, start, pieces);
                    changed.check((&name, &headers(&format, start)), &text, &want, &read);
                }
                None => bad.push(format!("{name}, {n}: is not rendered")),
            }
        }
    }
    for (name, how) in &table {
        println!("{name}: {how}");
    }
    println!("{native} native, {generic} generic, {reasoning} with reasoning, {} wrong", bad.len());
    assert!(reasoning > 5, "templates write reasoning where this test looks for it");
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    changed.report();
}
