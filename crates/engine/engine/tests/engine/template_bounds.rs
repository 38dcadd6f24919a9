//! Templates made to use up the stack, the memory or the time of whoever renders them: each is refused, and in words.

use octet_engine::template::{ChatInput, ChatTemplate};
use octet_engine::tokenizer::Tokenizer;
use octet_weights::{Metadata, Value};
use serde_json::json;

fn tokenizer() -> (Metadata, Tokenizer) {
    let mut m = Metadata::new("test");
    m.insert("tokenizer.ggml.model", Value::Str("llama".into()));
    m.insert("tokenizer.ggml.tokens", Value::Strs(vec!["<unk>".into(), "a".into()]));
    m.insert("tokenizer.ggml.token_type", Value::Ints(vec![2, 1]));
    m.insert("tokenizer.ggml.scores", Value::Floats(vec![0.0, 0.0]));
    let t = Tokenizer::from_metadata(&m).unwrap();
    (m, t)
}

fn render(source: &str) -> Result<String, String> {
    let (m, t) = tokenizer();
    let input = ChatInput {
        messages: vec![json!({"role": "user", "content": "hi"})],
        add_generation_prompt: true,
        ..ChatInput::default()
    };
    let template = ChatTemplate::new(source, &m, &t).map_err(|e| e.to_string())?;
    template.render(&input).map(|p| p.text).map_err(|e| e.to_string())
}

/// Every way to make the parser, or what walks its tree, go deeper; `n` levels of it.
fn deep(n: usize) -> Vec<String> {
    let around = |before: &str, link: &str, after: &str| format!("{before}{}{after}", link.repeat(n));
    vec![
        around("{{ 1", "|string", " }}"),
        around("{{ ", "not ", "1 }}"),
        around("{{ 1", "+1", " }}"),
        around("{{ 1", "~1", " }}"),
        around("{{ 1", "**1", " }}"),
        around("{{ ", "-", "1 }}"),
        around("{{ x", ".a", " }}"),
        around("{{ x", "[0]", " }}"),
        around("{{ x", "()", " }}"),
        around("{{ 1", " and 1", " }}"),
        around("{{ 1", " is odd", " }}"),
        around("{{ 1", " if 1", " }}"),
        around("{{ ", "1 if 0 else ", "1 }}"),
        around("{% if 0 %}", "{% elif 0 %}", "{% endif %}"),
        around("{% for ", "(", "x in [] %}{% endfor %}"),
        around("{{ ", "[", " }}"),
        around("", "{% if 1 %}", ""),
    ]
}

#[test]
fn deep_templates_are_refused_or_done() {
    for template in deep(100_000) {
        let e = render(&template).unwrap_err();
        assert!(e.contains("at most") || e.contains("recursion"), "{}: {e}", &template[..40]);
    }
    // As deep as is let through: what comes of it does not matter, as long as it comes.
    for template in deep(9_000) {
        let _ = render(&template);
    }
}

#[test]
fn lists_within_lists_come_down() {
    let e = render(
        "{% set ns = namespace(x=0) %}{% for i in range(99999) %}{% for j in range(99999) %}{% set ns.x = [ns.x] %}\
         {% endfor %}{% endfor %}",
    );
    assert!(e.unwrap_err().contains("too many steps"));
}

#[test]
fn long_texts_are_refused_before_they_are_made() {
    for template in [
        "{{ [1,2]|slice(100000000000)|list }}",
        "{{ [1,2]|batch(100000000000, 0) }}",
        "{{ ([1] * 100000000)|list }}",
        "{{ 'x'|indent(10000000000, true) }}",
        "{{ 'x'|indent(width=10000000000, first=true) }}",
        "{{ '{:>99999999999}'.format(1) }}",
        "{{ '%99999999999d'|format(1) }}",
        "{{ '%*d'|format(99999999999, 1) }}",
        "{{ '%.99999999999f'|format(1.5) }}",
        "{{ ('{0}' * 1000000).format('a' * 1000000) }}",
        "{{ ('{a}' * 1000000).format(a='a' * 1000000) }}",
        "{{ ('%s' * 1000000)|format('a' * 1000000) }}",
        "{{ ('a' * 1000000)|replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}",
        "{{ ('a' * 1000000)|replace('', 'b' * 1000000) }}",
        "{{ range(10000)|join('b' * 1000000) }}",
        "{{ ('b' * 1000000).join(range(10000)) }}",
        "{{ (['a' * 1000000] * 10000)|string }}",
        "{{ (['a' * 1000000] * 10000)|tojson }}",
        "{{ messages|tojson(indent='a' * 1000000) }}",
    ] {
        let e = render(template).unwrap_err();
        assert!(e.contains("longer than 64 MiB") || e.contains("at most"), "{template}: {e}");
    }
}

/// Expectations from jinja2 3.1.
#[test]
fn within_bounds_nothing_changes() {
    for (template, want) in [
        ("{{ [1,2,3]|slice(2)|list }}", "[[1, 2], [3]]"),
        ("{{ [1,2,3]|batch(2, 0)|list }}", "[[1, 2], [3, 0]]"),
        ("{{ 'a\nb'|indent }}", "a\n    b"),
        ("{{ 'a\nb'|indent(2, true) }}", "  a\n  b"),
        ("{{ '{:>4}|{}'.format(1, 'x') }}", "   1|x"),
        ("{{ '{a}'.format(a=3) }}", "3"),
        ("{{ '%4d|%s'|format(7, 'y') }}", "   7|y"),
        ("{{ '%(n)03d'|format(n=7) }}", "007"),
        ("{{ 'aXbX'|replace('X', '--') }}", "a--b--"),
        ("{{ 'aXbX'.replace('X', '-', 1) }}", "a-bX"),
        ("{{ 'ab'.replace('', '.') }}", ".a.b."),
        ("{{ [1, 'x', none, true, 1.0]|join(', ') }}", "1, x, None, True, 1.0"),
        ("{{ [1, 2]|join(d='-') }}", "1-2"),
        ("{{ messages|join(' ', attribute='role') }}", "user"),
        ("{{ ', '.join(['a', 'b']) }}", "a, b"),
        ("{{ 'abc'|list }}", "['a', 'b', 'c']"),
    ] {
        assert_eq!(render(template).as_deref(), Ok(want), "{template}");
    }
}
