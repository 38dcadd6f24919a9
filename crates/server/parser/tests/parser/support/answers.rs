//! Answers as models write them, right and wrong, and what they mean.

use octet_parser::ToolSyntax::{self, Harmony, Hermes, None, Qwen3Coder};

/// An answer.
pub struct Answer {
    pub name: &'static str,
    pub syntax: ToolSyntax,
    /// Its prompt ends with `<think>`.
    pub in_reasoning: bool,
    pub text: &'static str,
    pub reasoning: &'static str,
    pub content: &'static str,
    /// Names and arguments.
    pub calls: &'static [(&'static str, &'static str)],
}

/// The answer is all content.
const fn plain(name: &'static str, syntax: ToolSyntax, text: &'static str) -> Answer {
    Answer { name, syntax, in_reasoning: false, text, reasoning: "", content: text, calls: &[] }
}

/// The answer is all reasoning.
const fn thought(name: &'static str, syntax: ToolSyntax, text: &'static str) -> Answer {
    Answer { name, syntax, in_reasoning: true, text, reasoning: text, content: "", calls: &[] }
}

/// The answer is calls alone.
const fn calls(
    name: &'static str,
    syntax: ToolSyntax,
    text: &'static str,
    calls: &'static [(&'static str, &'static str)],
) -> Answer {
    Answer { name, syntax, in_reasoning: false, text, reasoning: "", content: "", calls }
}

const PARIS: &[(&str, &str)] = &[PARIS_CALL];
const PARIS_CALL: (&str, &str) = ("get_weather", r#"{"city": "Paris"}"#);

pub const ANSWERS: &[Answer] = &[
    // Reasoning.
    Answer {
        name: "thinks, then answers",
        syntax: None,
        in_reasoning: true,
        text: "It is 4.\n</think>\n\n4.\n",
        reasoning: "It is 4.",
        content: "4.\n",
        calls: &[],
    },
    Answer {
        name: "writes the opening tag itself, behind white space",
        syntax: Qwen3Coder,
        in_reasoning: false,
        text: " \n<think>\nIt is 4.\n\n2 < 4, née </b>\n</think>\n\n4.",
        reasoning: "It is 4.\n\n2 < 4, née </b>",
        content: "4.",
        calls: &[],
    },
    Answer {
        name: "thinks nothing",
        syntax: Hermes,
        in_reasoning: false,
        text: "<think>\n\n</think>\n\n4.",
        reasoning: "",
        content: "4.",
        calls: &[],
    },
    Answer {
        name: "more white space than templates write stays",
        syntax: None,
        in_reasoning: true,
        text: "\n  A\n\n\n</think>\n\n\n  B\n",
        reasoning: "  A\n\n",
        content: "\n  B\n",
        calls: &[],
    },
    Answer {
        name: "no white space at all",
        syntax: Qwen3Coder,
        in_reasoning: true,
        text: "x</think>y</think>z",
        reasoning: "x",
        content: "y</think>z",
        calls: &[],
    },
    thought("ends while it thinks", Qwen3Coder, "Let me see.\n"),
    thought("ends in the closing tag", None, "Let me see.\n</thin"),
    thought("opens its thoughts twice", Qwen3Coder, "<think> again"),
    // Nothing is filtered.
    plain("a heading", Qwen3Coder, "# Thinking Process\n\n1. First\n2. Second\n"),
    plain("a list", None, "1. **Analyse**: x\n2. y"),
    plain("the words", Hermes, "Thinking Process:\n\nI think."),
    plain("a closing tag without an opening one", Qwen3Coder, "4. </think> is a tag.\n\n"),
    plain("an opening tag in the middle", Qwen3Coder, "x <think> y </think> z"),
    plain("white space in front", Qwen3Coder, " \n\n  4."),
    plain("white space alone", Hermes, " \n\n"),
    plain("another tag", Hermes, "<thinking> is no tag"),
    plain("half a tag", None, "<thi"),
    plain("many brackets", Qwen3Coder, "<<<think> <tool<tool_call <<tool_call\n> a<b \u{1f600}<"),
    // Calls.
    calls(
        "one call",
        Qwen3Coder,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        PARIS,
    ),
    calls(
        "one call",
        Hermes,
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>\n",
        PARIS,
    ),
    calls(
        "a call in one line",
        Qwen3Coder,
        "<tool_call><function=get_weather><parameter=city>Paris</parameter></function></tool_call>",
        PARIS,
    ),
    calls(
        "no parameters",
        Qwen3Coder,
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        &[("now", "{}")],
    ),
    calls("no arguments", Hermes, "<tool_call>\n{\"name\": \"now\"}\n</tool_call>", &[("now", "{}")]),
    calls(
        "null for arguments",
        Hermes,
        "<tool_call>{\"arguments\": null, \"name\": \"now\"}</tool_call>",
        &[("now", "{}")],
    ),
    calls(
        "arguments as a string of JSON",
        Hermes,
        r#"<tool_call>{"name": "get_weather", "arguments": "{\"city\": \"Z\u00fcrich\"}"}</tool_call>"#,
        &[("get_weather", r#"{"city": "Zürich"}"#)],
    ),
    calls(
        "arguments stay as they were written",
        Hermes,
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"n\":1.0,  \"big\": 123456789012345678901234567890,\n\"a\": [1e-07, {}]}, \"id\": 7}\n</tool_call>",
        &[("now", "{\"n\":1.0,  \"big\": 123456789012345678901234567890,\n\"a\": [1e-07, {}]}")],
    ),
    calls(
        "tags in a JSON string",
        Hermes,
        r#"<tool_call>{"name": "write_file", "arguments": {"content": "</tool_call> <tool_call>{\"name\": \"now\"}</tool_call> \\"}}</tool_call>"#,
        &[("write_file", r#"{"content": "</tool_call> <tool_call>{\"name\": \"now\"}</tool_call> \\"}"#)],
    ),
    calls(
        "all types",
        Qwen3Coder,
        "<tool_call>\n<function=write_file>\n<parameter=path>\n 7 \n</parameter>\n<parameter=mode>\n420\n</parameter>\n<parameter=tags>\n[\"a\", \"ü\"]\n</parameter>\n<parameter=meta>\n{\"x\": null}\n</parameter>\n<parameter=force>\nTrue\n</parameter>\n<parameter=new>\n1.50\n</parameter>\n</function>\n</tool_call>",
        &[(
            "write_file",
            r#"{"path": " 7 ", "mode": 420, "tags": ["a", "ü"], "meta": {"x": null}, "force": true, "new": 1.50}"#,
        )],
    ),
    calls(
        "what does not fit is a string; of two the last counts; required ones may lack",
        Qwen3Coder,
        "<tool_call>\n<function=get_weather>\n<parameter=days>\nmany\n</parameter>\n<parameter=unit>\nkelvin\n</parameter>\n<parameter=days>\nfew\n</parameter>\n</function>\n</tool_call>",
        &[("get_weather", r#"{"days": "few", "unit": "kelvin"}"#)],
    ),
    calls(
        "only one newline on either side is the syntax's",
        Qwen3Coder,
        "<tool_call>\n<function=write_file>\n<parameter=content>\n\n  a\n\n</parameter>\n<parameter=path>\n\n</parameter>\n</function>\n</tool_call>",
        &[("write_file", r#"{"content": "\n  a\n", "path": ""}"#)],
    ),
    calls(
        "what looks like a value's end",
        Qwen3Coder,
        "<tool_call>\n<function=write_file>\n<parameter=content>\na </parameter> b\n</parameter>\n</function> c\n</parameter>\n<parameter=\n</parameter>\n<para </function>\nd <tool_call> <function=x> e\n</parameter>\n</function>\n</tool_call>",
        &[(
            "write_file",
            r#"{"content": "a </parameter> b\n</parameter>\n</function> c\n</parameter>\n<parameter=\n</parameter>\n<para </function>\nd <tool_call> <function=x> e"}"#,
        )],
    ),
    calls(
        "a call inside a value",
        Qwen3Coder,
        "<tool_call>\n<function=write_file>\n<parameter=content>\nSo:\n<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n<function=f></function>\nDone.\n</parameter>\n<parameter=path>\nx\n</parameter>\n</function>\n</tool_call>",
        &[(
            "write_file",
            r#"{"content": "So:\n<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n<function=f></function>\nDone.", "path": "x"}"#,
        )],
    ),
    calls(
        "half a call inside a value",
        Qwen3Coder,
        "<tool_call>\n<function=write_file>\n<parameter=content>\n<function=now>\n<parameter=a>\n...\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        &[("write_file", r#"{"content": "<function=now>\n<parameter=a>\n..."}"#), ("now", "{}")],
    ),
    calls(
        "two calls",
        Qwen3Coder,
        "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        &[("now", "{}"), ("get_weather", r#"{"city": "Paris"}"#)],
    ),
    calls(
        "tags that were forgotten",
        Qwen3Coder,
        "<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n<tool_call>\n<function=now></function>\n<function=now>\n</function>",
        &[("now", "{}"), ("now", "{}"), ("now", "{}"), ("now", "{}")],
    ),
    calls(
        "closing tags that were forgotten",
        Hermes,
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n",
        &[("now", "{}"), ("now", "{}")],
    ),
    calls(
        "ends of values that were forgotten or garbled",
        Qwen3Coder,
        "<tool_call>\n<function=write_file>\n<parameter=path>\na\n<parameter=mode>\n7\n</parameter1>\n<parameter=content>\nb\n<parameter=x>\n<parameter=mode>\n</parameter/>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
        &[
            ("write_file", r#"{"path": "a", "mode": 7, "content": "b\n<parameter=x>\n<parameter=mode>"}"#),
            ("get_weather", r#"{"city": "Paris"}"#),
        ],
    ),
    calls(
        "a value's parameters are not the call's",
        Qwen3Coder,
        "<tool_call>\n<function=write_file>\n<parameter=content>\n\n<parameter=path\n<function=f>\n<parameter=path>\n1\n</parameter>\n</function>\n</parameter>\n</function>\n</tool_call>",
        &[(
            "write_file",
            r#"{"content": "\n<parameter=path\n<function=f>\n<parameter=path>\n1\n</parameter>\n</function>"}"#,
        )],
    ),
    Answer {
        name: "thinks, speaks and calls",
        syntax: Qwen3Coder,
        in_reasoning: true,
        text: "Need the tool.\n</think>\n\nLet me check.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        reasoning: "Need the tool.",
        content: "Let me check.",
        calls: PARIS,
    },
    Answer {
        name: "thinks, speaks and calls",
        syntax: Hermes,
        in_reasoning: false,
        text: "<think>\nNeed the tool.\n</think>\n\nLet me check.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
        reasoning: "Need the tool.",
        content: "Let me check.",
        calls: PARIS,
    },
    Answer {
        name: "white space around calls alone is no content",
        syntax: Qwen3Coder,
        in_reasoning: true,
        text: "x\n</think>\n\n\n \n<tool_call>\n<function=now>\n</function>\n</tool_call>\n\n",
        reasoning: "x",
        content: "",
        calls: &[("now", "{}")],
    },
    Answer {
        name: "text between and behind calls",
        syntax: Qwen3Coder,
        in_reasoning: false,
        text: "First.\n\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>\nSecond. <tool_call>\n<function=now>\n</function>\n</tool_call> Third.\n",
        reasoning: "",
        content: "First.\n\n\n\nSecond.  Third.\n",
        calls: &[("now", "{}"), ("now", "{}")],
    },
    Answer {
        name: "text only behind the call",
        syntax: Hermes,
        in_reasoning: false,
        text: "<tool_call>{\"name\": \"now\"}</tool_call>\n\nNow you know.",
        reasoning: "",
        content: "Now you know.",
        calls: &[("now", "{}")],
    },
    // Messages in channels.
    Answer {
        name: "thinks, then answers",
        syntax: Harmony,
        in_reasoning: false,
        text: "<|channel|>analysis<|message|>It is 4 < 5.<|end|><|start|>assistant<|channel|>final<|message|>4.\n",
        reasoning: "It is 4 < 5.",
        content: "4.\n",
        calls: &[],
    },
    Answer {
        name: "thinks, says what it does, and calls",
        syntax: Harmony,
        in_reasoning: false,
        text: "<|channel|>analysis<|message|>Need it.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>",
        reasoning: "Need it.",
        content: "I look.",
        calls: PARIS,
    },
    calls(
        "a call as the template writes it",
        Harmony,
        " to=functions.get_weather<|channel|>commentary json<|message|>{\"city\": \"Paris\"}",
        PARIS,
    ),
    plain("no message at all", Harmony, "Hello <b>"),
    Answer {
        name: "a call of an unknown tool is text",
        syntax: Harmony,
        in_reasoning: false,
        text: "<|channel|>commentary to=functions.nope json<|message|>{}<|call|>",
        reasoning: "",
        content: "{}",
        calls: &[],
    },
    // Calls inside the reasoning.
    Answer {
        name: "calls while it thinks",
        syntax: Qwen3Coder,
        in_reasoning: true,
        text: "I call it.\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n</think>\n\nDone.</think>",
        reasoning: "I call it.",
        content: "Done.</think>",
        calls: &[("now", "{}")],
    },
    Answer {
        name: "calls while it thinks",
        syntax: Hermes,
        in_reasoning: true,
        text: "I call it.\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>",
        reasoning: "I call it.",
        content: "",
        calls: &[("now", "{}")],
    },
    Answer {
        name: "thinks of a call and of its end",
        syntax: Qwen3Coder,
        in_reasoning: true,
        text: "Maybe <tool_call>\n<function=write_file>\n<parameter=content>\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n... no.\n</think>\n\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        reasoning: "Maybe <tool_call>\n<function=write_file>\n<parameter=content>\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n... no.",
        content: "",
        calls: &[("now", "{}")],
    },
    Answer {
        name: "thinks of unknown and malformed calls",
        syntax: Qwen3Coder,
        in_reasoning: true,
        text: "<tool_call>\n<function=other>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call> {} <function=now></function>\n</think>4",
        reasoning: "<tool_call>\n<function=other>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n<tool_call> {} <function=now></function>",
        content: "4",
        calls: &[],
    },
    thought("thinks of half a call", Hermes, "<tool_call>\n{\"name\": \"now\", "),
    // Text that is not a call.
    plain(
        "a tool that there is not",
        Qwen3Coder,
        "A\n<tool_call>\n<function=other>\n<parameter=a>\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n</parameter>\n</function>\n</tool_call>\n\n",
    ),
    plain(
        "a tool that there is not",
        Hermes,
        "A\n<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call> B",
    ),
    plain("broken JSON", Hermes, "<tool_call>\n{\"name\": \"now\", arguments: {}}\n</tool_call>"),
    plain(
        "a newline in a JSON string",
        Hermes,
        "<tool_call>\n{\"name\": \"now\n\", \"arguments\": {}}\n</tool_call>",
    ),
    plain(
        "arguments that are no object",
        Hermes,
        "<tool_call>{\"name\": \"now\", \"arguments\": [1]}</tool_call><tool_call>{\"name\": \"now\", \"arguments\": \"[1]\"}</tool_call>",
    ),
    plain(
        "arguments that cannot be parsed",
        Hermes,
        r#"<tool_call>{"name": "now", "arguments": {"a": "\ud800", "b": 1e999}}</tool_call>"#,
    ),
    plain(
        "arguments under another name",
        Hermes,
        r#"<tool_call>{"name": "now", "parameters": {}}</tool_call>"#,
    ),
    plain(
        "a name that is no string",
        Hermes,
        r#"<tool_call>{"name": 1}</tool_call><tool_call>{}</tool_call>"#,
    ),
    plain("text behind the object", Hermes, "<tool_call>{\"name\": \"now\"} and </tool_call>"),
    plain(
        "a parameter that does not end",
        Qwen3Coder,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n",
    ),
    plain(
        "text in the wrong places",
        Qwen3Coder,
        "<tool_call>x<function=>\n<tool_call>\n<function=now>x</function>\n</tool_call><tool_call>\n<function=now\n></function> <tool_call>\n<function=now><parameter=></parameter></function></tool_call>",
    ),
    plain(
        "text behind the function",
        Qwen3Coder,
        "<tool_call>\n<function=other>\n</function>\nx</tool_call>",
    ),
    plain(
        "ends within a call",
        Qwen3Coder,
        "Wait.\n\n<tool_call>\n<function=write_file>\n<parameter=content>\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n",
    ),
    plain(
        "ends within a call",
        Hermes,
        "Wait.\n<tool_call>\n{\"name\": \"write_file\", \"arguments\": {\"content\": \"\u{1f600}",
    ),
    plain("ends within the opening tag", Qwen3Coder, "Wait.\n\n<tool_ca"),
    plain(
        "the other syntax",
        Qwen3Coder,
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
    ),
    plain("the other syntax", Hermes, "<tool_call>\n<function=now>\n</function>\n</tool_call>"),
    plain("no syntax", None, "<tool_call>\n<function=now>\n</function>\n</tool_call>"),
    Answer {
        name: "a second try",
        syntax: Qwen3Coder,
        in_reasoning: false,
        text: "<tool_call>\n<function=now>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        reasoning: "",
        content: "<tool_call>\n<function=now>",
        calls: &[("now", "{}")],
    },
    Answer {
        name: "a second try",
        syntax: Hermes,
        in_reasoning: false,
        text: "<tool_call>\n{\"name\" <tool_call>\n{\"name\": \"now\"}\n</tool_call>",
        reasoning: "",
        content: "<tool_call>\n{\"name\" ",
        calls: &[("now", "{}")],
    },
    // Markup out of place.
    Answer {
        name: "closes its reasoning again",
        syntax: Qwen3Coder,
        in_reasoning: true,
        text: "plan\n</think>\n\n</think>\n\nFinal.",
        reasoning: "plan",
        content: "Final.",
        calls: &[],
    },
    Answer {
        name: "closes its reasoning again, without tools and more than once",
        syntax: None,
        in_reasoning: true,
        text: "plan</think></think> \n</think>Final </think>.",
        reasoning: "plan",
        content: "Final </think>.",
        calls: &[],
    },
    Answer {
        name: "closes its reasoning again, and calls",
        syntax: Hermes,
        in_reasoning: true,
        text: "plan\n</think>\n\n</think>\n\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>\n</think>\n",
        reasoning: "plan",
        content: "",
        calls: &[("now", "{}")],
    },
    calls(
        "forgets to close a function",
        Qwen3Coder,
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n1\n</parameter>\n</tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=days>\n2\n</parameter>\n</tool_call>",
        &[("get_weather", r#"{"days": 1}"#), ("get_weather", r#"{"days": 2}"#)],
    ),
    calls(
        "forgets to close all of a call",
        Qwen3Coder,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</tool_call>\n<tool_call>\n<function=now>\n</function>",
        &[PARIS_CALL, PARIS_CALL, ("now", "{}")],
    ),
    Answer {
        name: "forgets to close a function, and goes on",
        syntax: Qwen3Coder,
        in_reasoning: false,
        text: "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</tool_call>\nAnd now:\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
        reasoning: "",
        content: "And now:",
        calls: &[PARIS_CALL, PARIS_CALL],
    },
    calls(
        "writes tags twice, or beside calls",
        Qwen3Coder,
        "</tool_call>\n<tool_call>\n<tool_call>\n<function=get_weather>\n<function=get_weather>\n<parameter=days>\n<parameter=days>\n1\n</parameter>\n</parameter>\n</function>\n</function>\n</tool_call>\n</tool_call>\n</function>\n<tool_call>\n",
        &[("get_weather", r#"{"days": 1}"#)],
    ),
    calls(
        "writes tags twice, or beside calls",
        Hermes,
        "<tool_call>\n<tool_call>\n{\"name\": \"now\"}\n</tool_call>\n</tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
        &[("now", "{}"), ("now", "{}")],
    ),
    calls(
        "wraps a call",
        Qwen3Coder,
        "<function_invocation>\n<tool_call>\n<function=now>\n</function>\n</tool_call>\n</function_invocation>",
        &[("now", "{}")],
    ),
    calls(
        "wraps calls",
        Hermes,
        "<tool_calls>\n<tool_call>{\"name\": \"now\"}</tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>\n</tool_calls>\n",
        &[("now", "{}"), ("now", "{}")],
    ),
    plain("a wrapper around text", Qwen3Coder, "<tool_calls>\nnone\n</tool_calls>\n<function_calls>"),
    plain(
        "an object that names no tool, or is no call",
        Hermes,
        "{\"name\": \"no\", \"arguments\": {}}\n</tool_call>{\"name\": \"now\"} is one.",
    ),
    plain(
        "a number that is none",
        Qwen3Coder,
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n1\n</parameter> 2\n</parameter>\n</function>\n</tool_call>",
    ),
    calls(
        "integers",
        Hermes,
        "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"days\": 5.0, \"city\": \"5.0\"}}</tool_call><tool_call>{\"name\": \"write_file\", \"arguments\": {\"mode\": 1e3, \"new\": 5.0}}</tool_call>",
        &[("get_weather", r#"{"days": 5, "city": "5.0"}"#), ("write_file", r#"{"mode": 1000, "new": 5.0}"#)],
    ),
    calls(
        "integers",
        Qwen3Coder,
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n1e3\n</parameter>\n<parameter=city>\n5.0\n</parameter>\n</function>\n</tool_call>",
        &[("get_weather", r#"{"days": 1000, "city": "5.0"}"#)],
    ),
    calls(
        "integers",
        Harmony,
        " to=functions.get_weather<|channel|>commentary json<|message|>{\"days\": 5.0}",
        &[("get_weather", r#"{"days": 5}"#)],
    ),
    Answer {
        name: "forgets to end its analysis",
        syntax: Harmony,
        in_reasoning: false,
        text: "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|><|message|>4.",
        reasoning: "Hm.",
        content: "4.",
        calls: &[],
    },
];
