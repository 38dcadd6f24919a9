//! Applies a configuration's parameters, which have OpenAI's names, to a neutral request: so `temperature: 0.2` means the same for
//! Anthropic, Gemini and Ollama. Created with an endpoint; used by `generate`.

use octet_api::core::{Chat, GenerateRequest, Input, ResponseFormat, ToolChoice};
use octet_api::openai;
use serde_json::{Map, Value, json};

/// The parameters that a request has fields for, as a request.
#[derive(Debug)]
pub(crate) struct Overlay {
    known: Box<GenerateRequest>,
    /// The other parameters: fields of the provider.
    pub(crate) rest: Map<String, Value>,
}

impl Overlay {
    pub(crate) fn new(params: &Map<String, Value>) -> Self {
        let blank = GenerateRequest::new("m", Input::Chat(Chat::default()));
        let mut known = blank.clone();
        let mut rest = Map::new();
        for (name, value) in params {
            let mut wire = json!({"model": "m", "messages": [{"role": "user", "content": ""}]});
            let protected = ["model", "messages", "stream", "stream_options"].contains(&name.as_str());
            wire[name] = value.clone();
            let read = openai::chat::parse(wire.to_string().as_bytes()).ok().filter(|_| !protected);
            let read = read.map(|mut r| {
                if let Input::Chat(chat) = &mut r.input {
                    chat.messages.clear();
                }
                r
            });
            // A value that is parsed but not applied below would be lost.
            let mut again = blank.clone();
            match read {
                Some(read)
                    if {
                        lay(&read, &mut again, true);
                        again == read && read != blank
                    } =>
                {
                    lay(&read, &mut known, true);
                }
                _ => {
                    rest.insert(name.clone(), value.clone());
                }
            }
        }
        Self { known: Box::new(known), rest }
    }

    /// Sets what the request leaves open; with `force` also what it sets.
    pub(crate) fn apply(&self, r: &mut GenerateRequest, force: bool) {
        lay(&self.known, r, force);
    }
}

fn lay(k: &GenerateRequest, r: &mut GenerateRequest, force: bool) {
    macro_rules! options {
        ($from:expr, $to:expr, $($field:ident),*) => {$(
            if $from.$field.is_some() && (force || $to.$field.is_none()) {
                $to.$field = $from.$field.clone();
            }
        )*};
    }
    macro_rules! lists {
        ($from:expr, $to:expr, $($field:ident),*) => {$(
            if !$from.$field.is_empty() && (force || $to.$field.is_empty()) {
                $to.$field = $from.$field.clone();
            }
        )*};
    }
    options!(k.sampling, r.sampling, temperature, top_k, top_p, min_p, repetition_penalty, penalty_last_n);
    options!(k.sampling, r.sampling, presence_penalty, frequency_penalty, seed);
    lists!(k.sampling, r.sampling, logit_bias);
    options!(k, r, max_tokens, min_tokens, logprobs, user);
    lists!(k, r, stop, stop_token_ids, metadata);
    options!(k.cache, r.cache, prompt, salt);
    if k.n != 1 && (force || r.n == 1) {
        r.n = k.n;
    }
    r.ignore_eos |= k.ignore_eos;
    if k.response_format != ResponseFormat::Text && (force || r.response_format == ResponseFormat::Text) {
        r.response_format = k.response_format.clone();
    }
    for (name, value) in &k.extra {
        if force || !r.extra.contains_key(name) {
            r.extra.insert(name.clone(), value.clone());
        }
    }
    let (Input::Chat(from), Input::Chat(to)) = (&k.input, &mut r.input) else { return };
    lists!(from, to, tools);
    options!(from, to, parallel_tool_calls);
    if from.tool_choice != ToolChoice::Auto && (force || to.tool_choice == ToolChoice::Auto) {
        to.tool_choice = from.tool_choice.clone();
    }
    // Reasoning settings belong together: a client that disables it gets no effort or budget.
    let (from, to) = (&from.reasoning, &mut to.reasoning);
    let is_set = to.enabled.is_some() || to.effort.is_some() || to.budget_tokens.is_some();
    if *from != Default::default() && (force || !is_set) {
        let hide = to.hide || from.hide;
        *to = from.clone();
        to.hide = hide;
    }
}

/// Removes a parameter by its name in OpenAI's dialect; false if requests have no such field.
pub(crate) fn clear(r: &mut GenerateRequest, name: &str) -> bool {
    let s = &mut r.sampling;
    match name {
        "temperature" => s.temperature = None,
        "top_k" => s.top_k = None,
        "top_p" => s.top_p = None,
        "min_p" => s.min_p = None,
        "repetition_penalty" | "repeat_penalty" => s.repetition_penalty = None,
        "repeat_last_n" => s.penalty_last_n = None,
        "presence_penalty" => s.presence_penalty = None,
        "frequency_penalty" => s.frequency_penalty = None,
        "seed" => s.seed = None,
        "logit_bias" => s.logit_bias.clear(),
        "max_tokens" | "max_completion_tokens" => r.max_tokens = None,
        "min_tokens" => r.min_tokens = None,
        "stop" => r.stop.clear(),
        "stop_token_ids" => r.stop_token_ids.clear(),
        "ignore_eos" => r.ignore_eos = false,
        "n" => r.n = 1,
        "logprobs" | "top_logprobs" => r.logprobs = None,
        "response_format" => r.response_format = ResponseFormat::Text,
        "user" => r.user = None,
        "metadata" => r.metadata.clear(),
        "tools"
        | "tool_choice"
        | "parallel_tool_calls"
        | "reasoning_effort"
        | "thinking"
        | "chat_template_kwargs" => {
            let Input::Chat(chat) = &mut r.input else { return true };
            match name {
                "tools" => chat.tools.clear(),
                "tool_choice" => chat.tool_choice = ToolChoice::Auto,
                "parallel_tool_calls" => chat.parallel_tool_calls = None,
                "chat_template_kwargs" => chat.template_kwargs.clear(),
                _ => chat.reasoning = Default::default(),
            }
        }
        _ => return r.extra.shift_remove(name).is_some(),
    }
    true
}

#[cfg(test)]
mod tests {
    use octet_api::core::Effort;

    use super::*;

    fn request() -> GenerateRequest {
        GenerateRequest::new("m", Input::Chat(Chat::default()))
    }

    #[test]
    fn defaults_fill_in_and_settings_win() {
        let params = json!({
            "temperature": 0.2, "max_tokens": 100, "stop": ["x"], "reasoning_effort": "low", "seed": 7,
            "provider": {"order": ["a"]}, "messages": [],
        });
        let overlay = Overlay::new(params.as_object().unwrap());
        assert_eq!(overlay.rest.keys().collect::<Vec<_>>(), ["provider", "messages"]);
        let mut r = request();
        r.sampling.temperature = Some(1.0);
        overlay.apply(&mut r, false);
        assert_eq!((r.sampling.temperature, r.max_tokens, r.sampling.seed), (Some(1.0), Some(100), Some(7)));
        assert_eq!(r.stop, ["x"]);
        assert_eq!(r.chat().unwrap().reasoning.effort, Some(Effort::Low));
        overlay.apply(&mut r, true);
        assert_eq!(r.sampling.temperature, Some(0.2));
    }

    #[test]
    fn a_client_that_does_not_want_thoughts_is_not_given_an_effort() {
        let overlay = Overlay::new(json!({"reasoning_effort": "high"}).as_object().unwrap());
        let mut r = request();
        if let Input::Chat(chat) = &mut r.input {
            chat.reasoning.enabled = Some(false);
        }
        overlay.apply(&mut r, false);
        assert_eq!(r.chat().unwrap().reasoning.effort, None);
    }

    #[test]
    fn parameters_are_taken_out_by_name() {
        let params = json!({"temperature": 0.2, "top_p": 0.5, "n": 3, "logprobs": true});
        let mut r = request();
        Overlay::new(params.as_object().unwrap()).apply(&mut r, true);
        assert_ne!(r, request());
        for name in ["temperature", "top_p", "n", "logprobs"] {
            assert!(clear(&mut r, name), "{name}");
        }
        assert_eq!(r, request());
        assert!(!clear(&mut r, "unheard_of"));
    }
}
