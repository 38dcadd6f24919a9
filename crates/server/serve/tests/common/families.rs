//! Chat templates that have a syntax of calls of their own: ours, each in the form of a family.

/// ChatML, with tools as a list of JSON objects, and calls as `calls` writes those of `message.tool_calls`.
pub fn template(calls: &str) -> String {
    format!(
        "{{% if tools %}}<|im_start|>system\n{{{{ tools | tojson }}}}<|im_end|>\n{{% endif %}}\
         {{% for message in messages %}}<|im_start|>{{{{ message.role }}}}\n{{{{ message.content }}}}\
         {{% if message.tool_calls %}}{calls}{{% endif %}}<|im_end|>\n{{% endfor %}}\
         {{% if add_generation_prompt %}}<|im_start|>assistant\n{{% endif %}}"
    )
}

/// Messages in channels.
pub const HARMONY: &str = "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}{% for m in messages %}\
    {% if m.tool_calls %}{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}\
    <|start|>assistant to=functions.{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>\
    {{ m.tool_calls[0].function.arguments | tojson }}<|call|>\
    {% else %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endif %}\
    {% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}";

/// Text and calls each after a mark, with which prompts end.
pub const MARKS: &str = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}\
    <|im_start|>{{ m.role }}\n{% if m.role != 'assistant' %}{{ m.content }}{% else %}{% if m.content %}>>>all\n{{ m.content }}\
    {% endif %}{% for c in m.tool_calls or [] %}>>>{{ c.function.name }}\n{{ c.function.arguments }}{% endfor %}{% endif %}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n>>>{% endif %}";

/// Messages to the model itself, to the user and to functions.
pub const RECIPIENTS: &str = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{% for m in messages %}\
    {% if m.role != 'assistant' %}<|im_start|>{{ m.role }}\n{{ m.content }}{% else %}\
    {% if m.reasoning_content %}<|im_start|>assistant to=self<|message|>{{ m.reasoning_content }}<|eom|>{% endif %}\
    {% if m.tool_calls %}{% for c in m.tool_calls %}<|im_start|>assistant to={{ c.function.name }}<|message|><call>\
    {% for k, v in c.function.arguments.items() %}<arg name=\"{{ k }}\">{{ v if v is string else v | tojson }}</arg>{% endfor %}\
    </call>{% if not loop.last %}<|eom|>{% endif %}{% endfor %}\
    {% else %}<|im_start|>assistant to=user<|message|>{{ m.content }}{% endif %}{% endif %}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}";

/// A list of calls after a word. Tools and the time come in variables of its own, which it requires.
pub const WORD: &str = "{% for m in messages %}{% if loop.first %}<|im_start|>system\n{{ 'Functions: ' + functions }}\n\
    {{ 'Today is ' + datetime }}<|im_end|>\n{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}{% if m.tool_calls %} functools[\
    {% for c in m.tool_calls %}{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments | tojson }}}\
    {% if not loop.last %}, {% endif %}{% endfor %}]{% endif %}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// The name of a family, how its templates write calls, whether one message has several, and how a call with these arguments begins.
pub const FAMILIES: [(&str, &str, bool, &str); 11] = [
    ("FireFunction 2", WORD, true, " functools[{\"name\": \"set_light\", \"arguments\": {"),
    (
        "MiniMax M3",
        "{% macro nest(v) %}{% if v is mapping %}{% for k, x in v.items() %}]<]mark[>[<{{ k }}>{{ nest(x) }}]<]mark[>[</{{ k }}>\
         {% endfor %}{% elif v is string %}{{ v }}{% elif v is iterable %}{% for x in v %}]<]mark[>[<item>{{ nest(x) }}\
         ]<]mark[>[</item>{% endfor %}{% else %}{{ v | tojson }}{% endif %}{% endmacro %}]<]mark[>[<calls>\n\
         {% for c in message.tool_calls %}]<]mark[>[<call name=\"{{ c.function.name }}\">{{ nest(c.function.arguments) }}\
         ]<]mark[>[</call>\n{% endfor %}]<]mark[>[</calls>",
        true,
        "]<]mark[>[<calls>\n]<]mark[>[<call name=\"set_light\">]<]mark[>[<room>A]<]mark[>[</room>",
    ),
    ("Functionary 3.2", MARKS, true, ">>>set_light\n{"),
    (
        "Muse Glimmer",
        RECIPIENTS,
        false,
        "<|im_start|>assistant to=set_light<|message|><call><arg name=\"room\">",
    ),
    (
        "gpt-oss",
        HARMONY,
        false,
        "<|start|>assistant to=functions.set_light<|channel|>commentary json<|message|>{",
    ),
    (
        "Mistral",
        "{% for c in message.tool_calls %}{% if c.id|length != 9 %}{{ raise_exception('ids have 9 characters') }}{% endif %}\
         [TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}",
        true,
        "[TOOL_CALLS]set_light[CALL_ID]",
    ),
    (
        "Llama 3",
        "{% if message.tool_calls|length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}\
         {% set f = message.tool_calls[0].function %}{\"name\": \"{{ f.name }}\", \"parameters\": {{ f.arguments | tojson }}}",
        false,
        "{\"name\": \"set_light\", \"parameters\": {",
    ),
    (
        "Nemotron",
        "<TOOLCALL>[{% for c in message.tool_calls %}{\"name\": \"{{ c.function.name }}\", \"arguments\": \
         {{ c.function.arguments | tojson }}}{% if not loop.last %}, {% endif %}{% endfor %}]</TOOLCALL>",
        true,
        "<TOOLCALL>[{\"name\": \"set_light\", \"arguments\": {",
    ),
    (
        "GLM",
        "{% for c in message.tool_calls %}\n<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments.items() %}\
         <arg_key>{{ k }}</arg_key>\n<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}",
        true,
        "<tool_call>set_light\n<arg_key>",
    ),
    (
        "DeepSeek",
        "<|calls_begin|>{% for c in message.tool_calls %}<|call_begin|>{{ c.function.name }}<|call_sep|>\
         {{ c.function.arguments | tojson }}<|call_end|>{% endfor %}<|calls_end|>",
        true,
        "<|calls_begin|><|call_begin|>set_light<|call_sep|>{",
    ),
    (
        "Kimi K2",
        "<|section_begin|>{% for c in message.tool_calls %}<|call_begin|>{{ c.id }}<|args|>{{ c.function.arguments | tojson }}\
         <|call_end|>{% endfor %}<|section_end|>",
        true,
        "<|section_begin|><|call_begin|>functions.set_light:0<|args|>{",
    ),
];

/// The template of one of them.
pub fn source((_, calls, ..): &(&str, &str, bool, &str)) -> String {
    if calls.contains("add_generation_prompt") { calls.to_string() } else { template(calls) }
}
