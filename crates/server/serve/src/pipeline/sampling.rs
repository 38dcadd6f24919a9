//! Sampling settings: what the client says, on top of what the server and the model's makers recommend; and the same again as llama.cpp's
//! clients read it.

use octet_api::core::{GenerateRequest, MoreSampling, ResponseFormat};
use octet_engine::engine::Request;
use octet_engine::sampler::{
    Dry, DynamicTemperature, Mirostat, MirostatVersion, SamplerParams, Stage, Xtc, dry_breakers,
};
use octet_engine::tokenizer::{Special, Tokenizer};
use serde_json::{Map, Value, json};

use crate::models::Loaded;

/// What no repetition reaches across, where the client does not say: llama.cpp's.
const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// The settings of a request.
pub fn sampling(model: &Loaded, request: &GenerateRequest) -> SamplerParams {
    let rules = model.handle.rules();
    let more = &request.sampling.more;
    let mut out = merged(&rules.sampling, request);
    out.logprobs = out.logprobs.map(|n| n.min(rules.vocab));
    if out.dry.multiplier > 0.0 {
        let given = more.dry_sequence_breakers.as_ref();
        let texts: Vec<&str> = given.map_or(BREAKERS.to_vec(), |b| b.iter().map(String::as_str).collect());
        out.dry.breakers = texts.into_iter().flat_map(|t| dry_breakers(model.tokenizer(), t)).collect();
    }
    for (text, bias) in &more.text_bias {
        out.logit_bias.extend(tokens_of(model.tokenizer(), text).map(|id| (id, *bias as f32)));
    }
    out
}

/// The settings of a request, and the model's where it sets none; without those that need the tokenizer.
fn merged(base: &SamplerParams, request: &GenerateRequest) -> SamplerParams {
    let asked = &request.sampling;
    let more = &asked.more;
    let float = |asked: Option<f64>, base: f32| asked.map_or(base, |x| x as f32);
    // Below zero is all.
    let last_n = |n: i32| usize::try_from(n).unwrap_or(usize::MAX);
    SamplerParams {
        temperature: float(asked.temperature, base.temperature),
        top_k: asked.top_k.unwrap_or(base.top_k),
        top_p: float(asked.top_p, base.top_p),
        min_p: float(asked.min_p, base.min_p),
        repetition_penalty: float(asked.repetition_penalty, base.repetition_penalty),
        penalty_last_n: asked.penalty_last_n.map_or(base.penalty_last_n, last_n),
        presence_penalty: float(asked.presence_penalty, base.presence_penalty),
        frequency_penalty: float(asked.frequency_penalty, base.frequency_penalty),
        logit_bias: asked.logit_bias.iter().map(|(id, bias)| (*id, *bias as f32)).collect(),
        seed: asked.seed.or(base.seed),
        logprobs: request.logprobs.map(|n| n as usize),
        post_sampling: request.report.post_sampling,
        typical_p: float(more.typical_p, base.typical_p),
        top_n_sigma: float(more.top_n_sigma, base.top_n_sigma),
        xtc: Xtc {
            probability: float(more.xtc_probability, base.xtc.probability),
            threshold: float(more.xtc_threshold, base.xtc.threshold),
        },
        dynamic_temperature: DynamicTemperature {
            range: float(more.dynatemp_range, base.dynamic_temperature.range),
            exponent: float(more.dynatemp_exponent, base.dynamic_temperature.exponent),
        },
        dry: Dry {
            multiplier: float(more.dry_multiplier, base.dry.multiplier),
            base: float(more.dry_base, base.dry.base),
            allowed_length: more.dry_allowed_length.map_or(base.dry.allowed_length, |n| n as usize),
            last_n: more.dry_penalty_last_n.map_or(base.dry.last_n, last_n),
            breakers: Vec::new(),
        },
        mirostat: mirostat(more, base.mirostat),
        min_keep: more.min_keep.map_or(base.min_keep, |n| n as usize),
        order: match &more.samplers {
            // They were looked at when the request was read.
            Some(names) => names.iter().filter_map(|n| Stage::from_name(n)).collect(),
            None => base.order.clone(),
        },
    }
}

fn mirostat(more: &MoreSampling, base: Option<Mirostat>) -> Option<Mirostat> {
    let version = match more.mirostat {
        Some(1) => MirostatVersion::V1,
        Some(2) => MirostatVersion::V2,
        Some(_) => return None,
        None => base?.version,
    };
    let tau = base.map_or(Mirostat::TAU, |b| b.tau);
    let eta = base.map_or(Mirostat::ETA, |b| b.eta);
    let given = |asked: Option<f64>, base: f32| asked.map_or(base, |x| x as f32);
    Some(Mirostat { version, tau: given(more.mirostat_tau, tau), eta: given(more.mirostat_eta, eta) })
}

/// The tokens that a text is made of, as llama.cpp biases them.
fn tokens_of(tokenizer: &Tokenizer, text: &str) -> impl Iterator<Item = u32> + use<> {
    tokenizer.encode(text, Special::Text).unwrap_or_default().into_iter()
}

/// Settings in llama.cpp's names, as `/props` and answers show them.
pub fn described(s: &SamplerParams) -> Map<String, Value> {
    let last_n = |n: usize| if n == usize::MAX { json!(-1) } else { json!(n) };
    let version = s.mirostat.map_or(0, |m| if m.version == MirostatVersion::V1 { 1 } else { 2 });
    let order: Vec<&str> = s.order.iter().map(|stage| stage.name()).collect();
    let all = json!({
        "seed": s.seed.map_or(json!(-1), Value::from),
        "temperature": decimal(s.temperature),
        "dynatemp_range": decimal(s.dynamic_temperature.range),
        "dynatemp_exponent": decimal(s.dynamic_temperature.exponent),
        "top_k": s.top_k,
        "top_p": decimal(s.top_p),
        "min_p": decimal(s.min_p),
        "top_n_sigma": decimal(s.top_n_sigma),
        "xtc_probability": decimal(s.xtc.probability),
        "xtc_threshold": decimal(s.xtc.threshold),
        "typical_p": decimal(s.typical_p),
        "repeat_last_n": last_n(s.penalty_last_n),
        "repeat_penalty": decimal(s.repetition_penalty),
        "presence_penalty": decimal(s.presence_penalty),
        "frequency_penalty": decimal(s.frequency_penalty),
        "dry_multiplier": decimal(s.dry.multiplier),
        "dry_base": decimal(s.dry.base),
        "dry_allowed_length": s.dry.allowed_length,
        "dry_penalty_last_n": last_n(s.dry.last_n),
        "mirostat": version,
        "mirostat_tau": decimal(s.mirostat.map_or(Mirostat::TAU, |m| m.tau)),
        "mirostat_eta": decimal(s.mirostat.map_or(Mirostat::ETA, |m| m.eta)),
        // There is none: below zero is llama.cpp's way to say so.
        "adaptive_target": -1.0,
        "adaptive_decay": 0.0,
        "min_keep": s.min_keep,
        "samplers": order,
    });
    match all {
        Value::Object(all) => all,
        _ => Map::new(),
    }
}

/// The decimal number that a user typed: 0.8, where the `f32` widened to an `f64` is 0.800000011920929.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or_else(|_| x.into())
}

/// What a request came to: all that is asked of the engine, in llama.cpp's names.
pub fn settings(request: &GenerateRequest, engine: &Request) -> Map<String, Value> {
    let mut out = described(&engine.sampling);
    let most = engine.max_tokens.map_or(json!(-1), Value::from);
    let breakers = request.sampling.more.dry_sequence_breakers.clone();
    let bias = |(id, bias): &(u32, f32)| json!({"token": id, "bias": decimal(*bias)});
    let grammar = match &request.response_format {
        ResponseFormat::Gbnf(text) => text.as_str(),
        _ => "",
    };
    let more = json!({
        "dry_sequence_breakers": breakers.unwrap_or_else(|| BREAKERS.map(str::to_string).to_vec()),
        "stop": request.stop,
        "max_tokens": most,
        "n_predict": most,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": engine.ignore_eos,
        "n_indent": request.lines.indent,
        "t_max_predict_ms": request.lines.time_ms.map_or(json!(-1), Value::from),
        "stream": request.stream,
        "logit_bias": engine.sampling.logit_bias.iter().map(bias).collect::<Vec<_>>(),
        "n_probs": request.logprobs.unwrap_or(0),
        "grammar": grammar,
        "timings_per_token": request.report.timings_per_token,
        "post_sampling_probs": request.report.post_sampling,
        "lora": [],
    });
    if let Value::Object(more) = more {
        out.extend(more);
    }
    out
}
