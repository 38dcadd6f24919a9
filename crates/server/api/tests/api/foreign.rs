//! Settings under other programs' names, and values that other servers accept: honoured where they mean something here, else refused by
//! name.

use octet_api::core::*;
use octet_api::{ApiError, Warning, anthropic, gemini, llama, ollama, openai};
use serde_json::{Value, json};

type Parse = fn(&[u8]) -> Result<GenerateRequest, ApiError>;

fn with(more: &Value, base: Value) -> Vec<u8> {
    let mut body = base;
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string().into_bytes()
}

fn chat(more: &Value) -> Result<GenerateRequest, ApiError> {
    openai::chat::parse(&with(more, json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]})))
}

fn completions(more: &Value) -> Result<GenerateRequest, ApiError> {
    openai::completions::parse(&with(more, json!({"model": "m", "prompt": "Hi"})))
}

fn responses(more: &Value) -> Result<GenerateRequest, ApiError> {
    openai::responses::parse(&with(more, json!({"model": "m", "input": "Hi"})))
}

fn llama(more: &Value) -> Result<GenerateRequest, ApiError> {
    llama::completion(&with(more, json!({"prompt": "Hi"})))
}

fn options(more: &Value) -> Result<GenerateRequest, ApiError> {
    let body = json!({"model": "m", "prompt": "Hi", "options": more});
    match ollama::generate::parse(body.to_string().as_bytes())? {
        ollama::Call::Generate(r) => Ok(*r),
        other => panic!("{other:?}"),
    }
}

type Dialect = (&'static str, fn(&Value) -> Result<GenerateRequest, ApiError>);
const DIALECTS: [Dialect; 5] = [
    ("chat", chat),
    ("completions", completions),
    ("responses", responses),
    ("llama", llama),
    ("ollama", options),
];

fn params(warnings: &[Warning]) -> Vec<&str> {
    warnings.iter().map(|w| &*w.param).collect()
}

#[test]
fn samplers_beyond_their_range_mean_its_end_as_in_llama_cpp() {
    for (name, parse) in DIALECTS {
        for (sent, same) in [
            (json!({"temperature": -1}), json!({"temperature": 0})),
            (json!({"top_p": 1.5}), json!({"top_p": 1})),
            (json!({"top_p": -1}), json!({"top_p": 0})),
            (json!({"min_p": -0.1}), json!({"min_p": 0})),
            (json!({"min_p": 2}), json!({"min_p": 1})),
            (json!({"top_k": -2}), json!({"top_k": 0})),
            (json!({"top_k": 1e12}), json!({"top_k": u32::MAX})),
            (json!({"typical_p": 2}), json!({"typical_p": 1})),
            (json!({"xtc_probability": -1}), json!({"xtc_probability": 0})),
            (json!({"dynatemp_range": -1}), json!({"dynatemp_range": 0})),
            (json!({"adaptive_target": -0.01}), json!({})),
            (json!({"random_seed": 7}), json!({"seed": 7})),
            (json!({"logit_bias": []}), json!({"logit_bias": {}})),
            (json!({"logit_bias": [[5, 1], [4, -150], [5, 2]]}), json!({"logit_bias": {"4": -100, "5": 2}})),
            (json!({"logit_bias": {"4": 150}}), json!({"logit_bias": {"4": 100}})),
        ] {
            let (sent, same) = (parse(&sent).expect(name), parse(&same).expect(name));
            assert_eq!(sent.sampling, same.sampling, "{name}");
            assert_eq!(sent.warnings, [], "{name}");
        }
        let banned = parse(&json!({"logit_bias": [[5, false]]})).unwrap();
        assert_eq!(banned.sampling.logit_bias, [(5, f64::NEG_INFINITY)], "{name}");
        if name == "chat" {
            let body = openai::chat::body(&banned, "m", openai::chat::Flavor::OpenAi).unwrap();
            assert_eq!(body.json["logit_bias"], json!({"5": -100.0}));
        }
        for wrong in [
            json!({"adaptive_target": 0.5}),
            json!({"frequency_penalty": 3}),
            json!({"repeat_penalty": 0}),
            json!({"seed": 1, "random_seed": 2}),
        ] {
            parse(&wrong).expect_err(name);
        }
    }
}

#[test]
fn lengths_beyond_every_context_are_the_room() {
    let all = Some(u32::MAX);
    for n in [json!(8_589_934_592_u64), json!(1e18), json!(u64::MAX)] {
        assert_eq!(chat(&json!({"max_tokens": n})).unwrap().max_tokens, all);
        assert_eq!(completions(&json!({"max_tokens": n})).unwrap().max_tokens, all);
        assert_eq!(responses(&json!({"max_output_tokens": n})).unwrap().max_tokens, all);
        assert_eq!(llama(&json!({"n_predict": n})).unwrap().max_tokens, all);
        assert_eq!(options(&json!({"num_predict": n})).unwrap().max_tokens, all);
        let of_anthropic =
            json!({"model": "m", "max_tokens": n, "messages": [{"role": "user", "content": "Hi"}]});
        let of_gemini =
            json!({"contents": [{"parts": [{"text": "Hi"}]}], "generationConfig": {"maxOutputTokens": n}});
        for (parse, body) in
            [(anthropic::messages::parse as Parse, of_anthropic), (gemini::parse as Parse, of_gemini)]
        {
            assert_eq!(parse(body.to_string().as_bytes()).unwrap().max_tokens, all);
        }
    }
    for n in [json!(0.5), json!(8_589_934_592.5), json!(-3), json!(0)] {
        chat(&json!({"max_tokens": n})).unwrap_err();
    }
}

#[test]
fn foreign_names_that_change_the_answer_are_refused() {
    let of_all = [
        (json!({"stop_sequences": ["a"]}), "send 'stop'"),
        (json!({"stopping_strings": ["a"]}), "send 'stop'"),
        (json!({"stop_regex": "a"}), "'stop'"),
        (json!({"banned_strings": ["a"]}), "'logit_bias'"),
        (json!({"negative_prompt": "a"}), "second prompt"),
        (json!({"image_data": [{"data": "AAAA", "id": 1}]}), "text only"),
        (json!({"system_prompt": "a"}), "system message"),
        (json!({"lora_path": "a"}), "adapters"),
        (json!({"adapter_id": "a"}), "adapters"),
        (json!({"return_hidden_states": true}), "answers are text"),
    ];
    let of_chat = [
        (json!({"system": "a"}), "role 'system'"),
        (json!({"instructions": "a"}), "role 'system'"),
        (json!({"format": "json"}), "'response_format'"),
        (json!({"options": {"num_ctx": 1}}), "beside 'messages'"),
        (json!({"parse_tool_calls": false}), "send true"),
    ];
    let of_both = [
        (json!({"max_new_tokens": 5}), "send 'max_tokens'"),
        (json!({"max_output_tokens": 5}), "send 'max_tokens'"),
        (json!({"num_predict": 5}), "send 'max_tokens'"),
    ];
    let refused = |parse: fn(&Value) -> Result<GenerateRequest, ApiError>, (more, why): &(Value, &str)| {
        let e = parse(more).unwrap_err();
        assert_eq!(e.param.as_ref(), more.as_object().unwrap().keys().next(), "{e}");
        assert!(e.message.contains(why), "{e}");
    };
    for case in &of_all {
        [chat, completions, responses, llama].iter().for_each(|parse| refused(*parse, case));
    }
    of_chat.iter().for_each(|case| refused(chat, case));
    of_both.iter().for_each(|case| [chat, completions].iter().for_each(|parse| refused(*parse, case)));
    // Neutral values, and what repeats a field of ours.
    for more in [
        json!({"stop_sequences": [], "image_data": [], "system": "", "negative_prompt": "", "options": {}}),
        json!({"parse_tool_calls": true, "t_max_predict_ms": 0, "n_indent": 0, "return_hidden_states": false}),
        json!({"stop": ["a"], "stopping_strings": ["a"], "max_tokens": 5, "max_new_tokens": 5}),
        json!({"max_completion_tokens": 5, "num_predict": 5}),
    ] {
        let r = chat(&more).unwrap();
        assert_eq!(params(&r.warnings), [""; 0], "{more}");
    }
}

#[test]
fn vectors_have_the_names_of_mistral_and_voyage() {
    let parse = |more: Value| openai::embeddings::parse(&with(&more, json!({"model": "m", "input": "Hi"})));
    let r = parse(json!({"output_dimension": 8, "output_dtype": "float"})).unwrap();
    assert_eq!((r.dimensions, params(&r.warnings)), (Some(8), vec![]));
    let e = parse(json!({"output_dtype": "int8"})).unwrap_err();
    assert_eq!(e.param.as_deref(), Some("output_dtype"));
}

#[test]
fn an_effort_yields_to_a_switch() {
    let off = Reasoning { enabled: Some(false), ..Reasoning::default() };
    for more in [
        json!({"reasoning_effort": "medium", "enable_thinking": false}),
        json!({"reasoning_effort": "medium", "chat_template_kwargs": {"enable_thinking": false}}),
        json!({"reasoning_effort": "medium", "thinking": {"type": "disabled"}}),
    ] {
        let r = chat(&more).unwrap();
        assert_eq!(r.chat().unwrap().reasoning, off, "{more}");
        assert_eq!(params(&r.warnings), ["reasoning_effort"]);
    }
    let r = responses(&json!({"reasoning": {"effort": "low"}, "enable_thinking": false})).unwrap();
    assert_eq!((&r.chat().unwrap().reasoning, params(&r.warnings)), (&off, vec!["reasoning.effort"]));
    let on = chat(&json!({"reasoning_effort": "low", "enable_thinking": true})).unwrap();
    assert_eq!(on.chat().unwrap().reasoning.effort, Some(Effort::Low));
}

#[test]
fn a_tool_that_the_model_may_call_is_a_tool() {
    let ask = |callers: Value| {
        let tool = json!({"name": "f", "input_schema": {"type": "object"}, "allowed_callers": callers});
        let messages = json!([{"role": "user", "content": "Hi"}]);
        let body = json!({"model": "m", "max_tokens": 1, "messages": messages, "tools": [tool]});
        anthropic::messages::parse(body.to_string().as_bytes())
    };
    assert_eq!(ask(json!(["direct"])).unwrap().warnings, []);
    let both = ask(json!(["direct", "code_execution_20250825"])).unwrap();
    assert_eq!(both.chat().unwrap().tools.len(), 1);
    assert_eq!(params(&both.warnings), ["tools[0].allowed_callers"]);
    let e = ask(json!(["code_execution_20250825"])).unwrap_err();
    assert_eq!(e.param.as_deref(), Some("tools[0].allowed_callers"));
}
