//! Templates that try to exhaust the stack, the memory or the time: each is refused with an error.

use octet_engine::template::{ChatInput, ChatTemplate, ProbeBudget};
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

/// Every construct that nests in the parser or its tree; `n` levels of it.
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
    // The deepest accepted nesting: the result does not matter, as long as rendering ends.
    for template in deep(9_000) {
        let _ = render(&template);
    }
}

#[test]
fn deeply_nested_lists_run_out_of_steps() {
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
        "{{ 'x\n'|indent('a' * 50000000, blank=true, first=true) }}",
        "{{ '%99999999999d' % 1 }}",
        "{{ ('a ' * 3000000).split(' ')|length }}",
        "{{ ('a ' * 3000000).split()|length }}",
        "{{ ('a ' * 3000000)|split|length }}",
        "{{ ('a\n' * 3000000).splitlines()|length }}",
    ] {
        let e = render(template).unwrap_err();
        let named = ["longer than 64 MiB", "at most", "its constants would take", "more than 1048576 items"];
        assert!(named.iter().any(|n| e.contains(n)), "{template}: {e}");
    }
}

/// Each of these would exhaust memory or time if only steps were counted.
#[test]
fn what_grows_with_each_step_is_refused() {
    let loops = |before: &str, each: &str| {
        format!(
            "{{% set ns = namespace() %}}{before}{{% for i in range(60) %}}{each}{{% endfor %}}{{{{ ns.x|length }}}}"
        )
    };
    let set = |of: &str, value: &str| {
        loops(&format!("{{% set ns.x = {of} %}}"), &format!("{{% set ns.x = {value} %}}"))
    };
    let all = [
        set("'ab'", "ns.x ~ ns.x"),
        set("'ab'", "ns.x + ns.x"),
        set("'ab'", "ns.x * 2"),
        set("'ab'", "[ns.x, ns.x]|join"),
        set("'ab'", "ns.x.replace('a', 'aa')"),
        set("'ab'", "'%s%s'|format(ns.x, ns.x)"),
        set("'ab'", "'{0}{0}'.format(ns.x)"),
        set("'ab'", "ns.x.join([ns.x, ns.x])"),
        set("[1]", "ns.x + ns.x"),
        set("[1]", "ns.x * 2"),
        set("(1, 2)", "ns.x + ns.x"),
        set("[1, 2, 3]", "(ns.x + ns.x)[1:]"),
        set("[1]", "(ns.x + ns.x)|list"),
        set("'ab'", "[ns.x, ns.x]|map('upper')|join"),
        loops("{% set ns.x = 'ab' %}", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
        loops(
            "{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns.x = 'ab' %}",
            "{% set ns.x = twice(ns.x) %}",
        ),
    ];
    all_refused(&all);
}

/// A list that contains another one twice, and so on: small in memory, but large when it is traversed.
#[test]
fn nested_lists_are_searched_within_bounds() {
    let mut all = Vec::new();
    for look in [
        "ns.x == ns.y",
        "ns.x in [ns.y]",
        "ns.x < ns.y",
        "[ns.x, ns.y]|sort|string",
        "[ns.x, ns.y]|unique|list",
        "{ns.x: 1}|length",
        "{'a': 1, 'b': 2}[ns.x]",
        "{'a': 1, 'b': 2}.get(ns.x)",
        "[ns.x].count(ns.y)",
        "messages[0]|attr(ns.x)",
        "messages[0].get(ns.x)",
        "ns.x|upper",
        "ns.x|lower",
        "ns.x|title",
        "ns.x|capitalize",
        "ns.x|safe",
        "ns.x|indent",
        "ns.x|replace('b', 'c')",
        "'a'|replace(ns.x, 'c')",
        "'a'|replace('a', ns.x)",
        "'a,b'|join(ns.x)",
        "'a'|trim(ns.x)",
        "'a' is startingwith ns.x",
        "ns.x is endingwith 'a'",
        "'%s' % ns.x",
        "'%s' % (1, ns.x)",
    ] {
        all.push(format!(
            "{{% set a = ['a' * 100000] %}}{{% set ns = namespace(x=a, y=a) %}}{{% for i in range(60) %}}{{% set ns.x = [ns.x, ns.x] %}}\
             {{% set ns.y = [ns.y, ns.y] %}}{{% endfor %}}{{{{ {look} }}}}"
        ));
    }
    all.push(
        all[0].replace("{{ ns.x == ns.y }}", "{% for v in [ns.x, ns.y] %}{{ loop.changed(v) }}{% endfor %}"),
    );
    assert_ne!(all.first(), all.last());
    all_refused(&all);
}

/// The engine computes constants before a rendering has limits, also in branches that never run.
#[test]
fn large_constants_are_refused() {
    for template in [
        "{% if false %}{% set x = 'a' * 90000000 %}{% endif %}",
        "{% if false %}{% set x = 'a' * 40000000 %}{% set y = 'a' * 40000000 %}{% endif %}",
        "{% if false %}{% set x = (['aaaaaaaaaa'] * 100000000) ~ '' %}{% endif %}",
        "{{ ([1] * 100000000) == ([1] * 100000000) }}",
        "{{ x if false else ('a' * 1000) * 1000 * 1000 }}",
        "{{ messages[0]['a' * (30000 ** 2)] }}",
        "{% macro m(a=('a' * (9999 * 9999))) %}{% endmacro %}",
        "{% for i in [1] if 3 in (1, 2) * 90000000 %}{% endfor %}",
    ] {
        let e = render(template).unwrap_err();
        assert!(e.contains("its constants would take"), "{template}: {e}");
    }
    let lines = "{{ '=' * 80 ~ '-' * 1000 }}".repeat(50);
    assert_eq!(render(&lines).unwrap().len(), 50 * 1080);
}

/// Each step does much, and makes little or nothing.
#[test]
fn work_in_loops_is_bounded() {
    let steps = [
        "s|safe|length",
        "l is startingwith 'a'",
        "s|float",
        "s|int",
        "l|sum",
        "e|join",
        "'' % l",
        "'%.1s'|format(l)",
        "s|length",
        "s is lower",
        "l|string|length",
    ];
    let mut all: Vec<String> = Vec::new();
    for step in steps {
        all.push(format!(
            "{{% set s = 'b' * 4000000 ~ '' %}}{{% set l = [1] * 99999 + [2] %}}{{% set e = [''] * 99999 + [''] %}}\
             {{% for i in range(9999) %}}{{% for j in range(99) %}}{{% set z = {step} %}}{{% endfor %}}{{% endfor %}}"
        ));
    }
    // Lists and mappings that are kept.
    for made in ["l|slice(2)|list", "l|batch(2)|list", "range(100000)|list", "dict(m)", "namespace(m)"] {
        all.push(format!(
            "{{% set l = [1] * 100000 %}}{{% set m = {{'a': 1, 'b': 2, 'c': 3, 'd': 4}} %}}{{% set ns = namespace(x=[]) %}}\
             {{% for i in range(9999) %}}{{% for j in range(999) %}}{{% set ns.x = [{made}] %}}{{% endfor %}}{{% endfor %}}"
        ));
    }
    all_refused(&all);
}

/// What is replaced by functions that are charged works as in jinja2, whose results these are.
#[test]
fn replaced_operators_and_filters_are_as_in_jinja2() {
    for (template, text) in [
        (
            "{{ '{\n'|indent(4, first=true) }}|{{ 'a\n\nb\n'|indent(2) }}|{{ 'a\nb'|indent('>>', true) }}",
            "    {\n|a\n\n  b\n|>>a\n>>b",
        ),
        ("{{ 'a\n\nb'|indent(width=1, blank=true) }}|{{ ''|indent }}", "a\n \n b|"),
        // With variables, since the engine computes constants in advance.
        (
            "{% set a, n, x = 'a', 5, 2.25 %}{{ '%s-%d' % (a, n) }} {{ '%d%%' % n }} {{ '%.1f' % x }} {{ '%(k)s' % {'k': n} }}",
            "a-5 5% 2.2 5",
        ),
        (
            "{% set a, b, c, d, three = 7, -7, 7.5, 1e17, 3 %}{{ a % three }} {{ b % three }} {{ a % -three }} {{ c % 2 }} {{ -c % 2 }} {{ d % three }}",
            "1 2 -2 1.5 0.5 1.0",
        ),
        (
            "{{ 'x'|int }} {{ ' 42 '|int }} {{ '3.7'|int }} {{ 'x'|int(7) }} {{ 'x'|int(default=3) }} {{ 'ff'|int(0, 16) }} {{ '-0xff'|int(0, 16) }} {{ 2.9|int }} {{ true|int }} {{ 18446744073709551615|int }}",
            "0 42 3 7 3 255 -255 2 1 18446744073709551615",
        ),
        (
            "{{ 'x'|float }} {{ '1.5'|float }} {{ 2|float }} {{ 'x'|float(1.25) }} {{ true|float }}",
            "0.0 1.5 2.0 1.25 1.0",
        ),
        (
            "{{ [1, 2]|upper }}{{ none|lower }}{{ 'ab'|capitalize|safe }}{{ 'abc' is startingwith 'ab' }}",
            "[1, 2]noneAbTrue",
        ),
        (
            "{{ [1, 2]|join(3) }} {{ ['a']|join(none) }} {{ ' a '|trim(none) }} {{ 'xax'|trim('x') }}",
            "132 a a a",
        ),
        ("{{ {'b': 1, 'a': 2, 'b': 3} }}", "{'b': 3, 'a': 2}"),
        ("{{ {} }}{{ {'a': {'b': [1, {}]}}.a.b[0] }}{{ {1: 'x', (1, 2): 'y'}[(1, 2)] }}", "{}1y"),
        ("{% for v in [1, 1, 2, 2, 1] %}{{ loop.changed(v) }} {% endfor %}", "True False True False True "),
    ] {
        assert_eq!(render(template).unwrap(), text, "{template}");
    }
}

/// Expensive single steps, repeated.
#[test]
fn large_values_are_searched_within_bounds() {
    let mut all = Vec::new();
    let large = "{% set a = 'a' * 10000000 %}{% set b = a ~ '' %}{% set l = [1] * 200000 %}{% for i in range(99999) %}{% for j in range(99) %}";
    for each in
        ["a == b", "a < b", "'b' in a", "2 in l", "a[::-1]", "a[5]", "a|upper", "a.find('b')", "l == l"]
    {
        all.push(format!("{large}{{% set z = {each} %}}{{% endfor %}}{{% endfor %}}"));
    }
    // Pieces of the template's own text.
    all.push(format!(
        "{{% set x %}}{{% for i in range(99999) %}}{{% for j in range(99999) %}}{}{{% endfor %}}{{% endfor %}}{{% endset %}}",
        "long ".repeat(20_000)
    ));
    all_refused(&all);
}

#[track_caller]
fn all_refused(templates: &[String]) {
    for template in templates {
        let e = render(template).expect_err(template);
        let named = [
            "longer than",
            "makes more than",
            "more than 1048576 items",
            "too many steps",
            "nested more than",
            "takes longer than",
            "its constants would take",
        ];
        assert!(named.iter().any(|n| e.contains(n)), "{template}: {e}");
    }
}

/// The number of `probes` of a template that are rendered, and what was missed.
fn probed(source: &str, probes: usize) -> (usize, Vec<&'static str>) {
    let (m, t) = tokenizer();
    let template = ChatTemplate::new(source, &m, &t).unwrap();
    let input =
        ChatInput { messages: vec![json!({"role": "user", "content": "hi"})], ..ChatInput::default() };
    let budget = ProbeBudget::default();
    let rendered = (0..probes).filter(|_| template.probe(&input, &budget, "the test").is_some()).count();
    // Requests have a budget of their own.
    assert_eq!(template.render(&input).is_ok(), rendered > 0);
    (rendered, budget.missed())
}

/// Each rendering takes about a fiftieth of the steps that all probes have together.
#[test]
fn probes_share_their_steps() {
    let slow = |end: &str| {
        format!(
            "{{% for i in range(30000) %}}{{% set x = i + 1 %}}{{% endfor %}}{{{{ messages[0].content }}}}{end}"
        )
    };
    let (rendered, missed) = probed(&slow(""), 100);
    assert!((1..60).contains(&rendered), "{rendered}");
    assert_eq!(missed, ["the test"]);
    // Those that the template ends by itself count, too.
    assert_eq!(probed(&slow("{{ raise_exception('no') }}"), 100), (0, vec!["the test"]));
    assert_eq!(probed(&slow("{{ none.no.such }}"), 100), (0, vec!["the test"]));
    // An endless one is rendered once.
    let endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    assert_eq!(probed(endless, 3), (0, vec!["the form of content and arguments", "the test"]));
    assert_eq!(probed("{{ messages[0].content }}", 100), (100, vec![]));
}

/// Expectations from jinja2 3.1.
#[test]
fn operators_are_pythons() {
    for (template, want) in [
        (
            "{{ 'abcdef'[1:3] }} {{ 'abc'[::-1] }} {{ 'abc'[-2:] }} {{ 'äöü'[1:] }} {{ 'abc'[5:] }} {{ 'abc'[:-9] }}",
            "bc cba bc öü  ",
        ),
        (
            "{{ [1,2,3][1:] }} {{ [1,2,3][::-2] }} {{ (1,2,3)[:2] }} {{ [1,2,3][-1] }} {{ 'abc'[1] }}",
            "[2, 3] [3, 1] (1, 2) 3 b",
        ),
        (
            "{{ [1] + [2] }} {{ (1,) + (2,) }} {{ [0] * 3 }} {{ 'ab' * 2 }} {{ 2 * 'ab' }} {{ 'a' * -1 }}",
            "[1, 2] (1, 2) [0, 0, 0] abab abab ",
        ),
        (
            "{{ 1 + 2 }} {{ 1 + 2.5 }} {{ true + 1 }} {{ 3 * 4 }} {{ 3 * 0.5 }} {{ 'a' ~ 1.0 ~ none ~ true }}",
            "3 3.5 2 12 1.5 a1.0NoneTrue",
        ),
        (
            "{{ 1 == 1.0 }} {{ 'a' != 'b' }} {{ 2 > 1 }} {{ 'a' < 'b' }} {{ [1] == [1] }} {{ 1 in [1] }} {{ 'b' in 'abc' }} {{ 'k' in {'k': none} }}",
            "True True True True True True True True",
        ),
        (
            "{{ none is iterable }} {{ [] is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }}",
            "False True True False",
        ),
        ("{{ '<a href=\"x\">'|e }}", "&lt;a href=&#34;x&#34;&gt;"),
    ] {
        assert_eq!(render(template).as_deref(), Ok(want), "{template}");
    }
}

/// Expectations from jinja2 3.1.
#[test]
fn nothing_changes_within_the_limits() {
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
