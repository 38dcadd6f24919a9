//! Variables that a chat sets for its template: those that change nothing are known beforehand.

use octet_engine::template::{ArgumentsForm, ChatInput, ChatTemplate, ContentForm};
use octet_engine::tokenizer::Tokenizer;
use octet_weights::{Metadata, Value};
use serde_json::json;

const SOURCE: &str = "{%- set ns = namespace(n=0) %}{%- macro say(m) %}{{ m.role }}{% endmacro %}\
    {%- for m in messages %}{{ bos_token }}{{ say(m) }}{% endfor %}\
    {%- if enable_thinking is defined and not enable_thinking %}off{% endif %}\
    {%- if style %}{{ style }}{% endif %}{% if add_generation_prompt %}:{% endif %}";

fn template(source: &str) -> ChatTemplate {
    let mut m = Metadata::new("test");
    m.insert("tokenizer.ggml.model", Value::Str("llama".into()));
    m.insert("tokenizer.ggml.tokens", Value::Strs(vec!["<unk>".into(), "a".into()]));
    m.insert("tokenizer.ggml.token_type", Value::Ints(vec![2, 1]));
    m.insert("tokenizer.ggml.scores", Value::Floats(vec![0.0, 0.0]));
    m.insert("tokenizer.ggml.bos_token_id", Value::U64(1));
    let t = Tokenizer::from_metadata(&m).unwrap();
    ChatTemplate::new(source, &m, &t).unwrap()
}

#[test]
fn unknown_template_variables_are_named_with_the_known_ones() {
    let template = template(SOURCE);
    assert_eq!(template.check_variable("enable_thinking"), Ok(()));
    assert_eq!(template.check_variable("style"), Ok(()));
    for wrong in ["enable_thinkng", "enable", "thinking", "styles", ""] {
        let why = template.check_variable(wrong).unwrap_err();
        assert_eq!(
            why, "is not a variable of the model's chat template; its variables: enable_thinking, style",
            "{wrong}"
        );
    }
    for own in ["messages", "tools", "add_generation_prompt", "namespace", "raise_exception", "range"] {
        let why = template.check_variable(own).unwrap_err();
        assert!(why.starts_with("cannot be set"), "{own}: {why}");
    }
}

/// FireFunction 2's template takes tools as text, and requires them and the time.
#[test]
fn functions_and_the_time_are_made_for_templates_that_require_both() {
    let template = template(
        "{{ 'F' + functions }}|{{ 'D' + datetime }}{% for m in messages %}{{ m.content }}{% endfor %}",
    );
    let mut input = ChatInput {
        messages: vec![json!({"role": "user", "content": "!"})],
        now_s: Some(1_795_219_199),
        ..ChatInput::default()
    };
    let text = |input: &ChatInput| template.render(input).unwrap().text;
    assert_eq!(text(&input), "F[]|D2026-11-20 23:59:59!");
    let function = json!({"name": "now", "parameters": {"type": "object"}});
    input.tools = Some(vec![json!({"type": "function", "function": function})]);
    // As json.dumps(functions, indent=4) writes it.
    let listed = "[\n    {\n        \"name\": \"now\",\n        \"parameters\": {\n            \"type\": \"object\"\n        }\n    }\n]";
    assert_eq!(text(&input), format!("F{listed}|D2026-11-20 23:59:59!"));
    input.variables.insert("datetime".into(), "now".into());
    assert_eq!(text(&input), format!("F{listed}|Dnow!"));
}

#[test]
fn a_template_may_have_no_variables() {
    let template = template("{% for m in messages %}{{ m.content }}{% endfor %}");
    assert!(template.check_variable("enable_thinking").unwrap_err().ends_with("which has none"));
}

#[test]
fn content_has_the_form_that_the_template_renders() {
    let parts = || json!([{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]);
    let of = |source: &str| {
        let template = template(source);
        let input = |content| ChatInput {
            messages: vec![json!({"role": "user", "content": content})],
            ..ChatInput::default()
        };
        let text = |content| template.render(&input(content)).unwrap().text;
        (template.content_form("user"), text(parts()), text("One.".into()))
    };
    // One that prints whatever content is, one that drops lists, one that drops texts, and one that takes both.
    let (form, many, one) = of("{% for m in messages %}{{ m.content }}{% endfor %}");
    assert_eq!((form, &*many, &*one), (ContentForm::Text, "One.\nTwo.", "One."));
    let (form, many, one) =
        of("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% endif %}{% endfor %}");
    assert_eq!((form, &*many, &*one), (ContentForm::Text, "One.\nTwo.", "One."));
    let (form, many, one) =
        of("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}");
    assert_eq!((form, &*many, &*one), (ContentForm::Parts, "One.Two.", "One."));
    let (form, many, one) = of(
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
    );
    assert_eq!((form, &*many, &*one), (ContentForm::TextOrParts, "One.Two.", "One."));
}

#[test]
fn each_role_has_its_own_form() {
    let template = template(
        "{% for m in messages %}{% if m.role == 'user' and m.content is not string %}{% for p in m.content %}{{ p.text }}{% endfor %}\
         {% elif m.role == 'assistant' %}{{ m.content[0].text }}{{ m.content[1].text }}{% else %}{{ m.content }}{% endif %};{% endfor %}",
    );
    let said = |role: &str| json!({"role": role, "content": [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]});
    let messages = ["system", "user", "assistant", "tool"].map(said).to_vec();
    let text = template.render(&ChatInput { messages, ..ChatInput::default() }).unwrap().text;
    assert_eq!(text, "One.\nTwo.;One.Two.;One.Two.;One.\nTwo.;");
    assert_eq!(
        ["system", "user", "assistant", "tool"].map(|role| template.content_form(role)),
        [ContentForm::Text, ContentForm::TextOrParts, ContentForm::Parts, ContentForm::Text]
    );
}

#[test]
fn line_ends_are_those_of_jinja2() {
    let template = template("{% for m in messages %}\r\n{{ m.role }}\r\n\r{% endfor %}");
    let messages = vec![json!({"role": "user", "content": "A\r\nB"})];
    let text = template.render(&ChatInput { messages, ..ChatInput::default() }).unwrap().text;
    assert_eq!(text, "user\n\n");
}

#[test]
fn arguments_have_the_form_that_the_template_renders() {
    let calls = "{% for m in messages %}{% for c in m.tool_calls or [] %}[ARGS]{% endfor %}{% endfor %}";
    for (args, form) in [
        ("{{ c.function.arguments|tojson }}", ArgumentsForm::Object),
        ("{{ c.function.arguments }}", ArgumentsForm::Text),
        ("{{ c.function.arguments + '' }}", ArgumentsForm::Text),
        (
            "{% for k, v in c.function.arguments.items() %}\"{{ k }}\": \"{{ v }}\"{% endfor %}",
            ArgumentsForm::Object,
        ),
    ] {
        let template = template(&calls.replace("ARGS", args));
        assert_eq!(template.arguments_form(), form, "{args}");
        for arguments in [json!({"k": "v"}), json!("{\"k\": \"v\"}")] {
            let call = json!({"function": {"name": "f", "arguments": arguments}});
            let input = ChatInput {
                messages: vec![json!({"role": "assistant", "tool_calls": [call]})],
                ..ChatInput::default()
            };
            let text = template.render(&input).unwrap().text;
            assert!(text.contains("\"k\": \"v\""), "{args}: {text}");
        }
    }
}
