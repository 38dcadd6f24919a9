//! The bodies of `/completion` and `/infill`.

use crate::core::{Completion, GenerateRequest, Infill, Input, Prompt};
use crate::json::{self, Field, Object, Result};
use crate::openai;
use crate::rules::{Rules, refused, tuning, tuning_but};

/// Maximum number of alternatives per token.
const PROBS_MAX: u32 = 1000;
/// Maximum number of answers to one prompt.
const N_MAX: u32 = 128;
/// Maximum number of `response_fields`, and of other files of `/infill`.
const LIST_MAX: usize = 1024;

/// See [`rules`](crate::rules) for what the rules mean.
const RULES: Rules = &[
    ("id_slot", tuning_but("[-1, 0]", "the server places requests itself")),
    ("n_keep", tuning_but("[0, -1]", "a context is never cut")),
    ("n_discard", tuning_but("[0]", "a context is never cut")),
    ("n_cache_reuse", tuning_but("[0]", "shared prefixes are found without it")),
    ("sse_ping_interval", tuning("the server sends a keep-alive every 10 seconds")),
    ("backend_sampling", tuning("there is one way to sample")),
    ("verbose", tuning("start the server with --verbose")),
    ("max_new_tokens", refused("send 'n_predict'")),
    ("max_output_tokens", refused("send 'n_predict'")),
    ("num_predict", refused("send 'n_predict'")),
    // Editors' plugins send it with every request.
    ("t_max_prompt_ms", tuning_but("[0, -1]", "prompts are always processed completely")),
    ("lora", refused("adapters are not supported")),
    ("grammar_lazy", refused("grammars hold from the first token on")),
    ("grammar_triggers", refused("grammars hold from the first token on")),
];

/// Parses the body of a `POST /completion`. The model may be omitted.
///
/// # Errors
/// Fields of the wrong type or out of range, and unsupported ones that change the answer, by name.
pub fn completion(body: &[u8]) -> Result<GenerateRequest> {
    let mut o = json::parse(body)?;
    let prompts = openai::prompts(o.require("prompt")?)?;
    read(o, Completion { prompts, ..Completion::default() })
}

/// Parses the body of a `POST /infill`: the answer stands between `input_prefix` plus `prompt`, and `input_suffix`.
///
/// # Errors
/// As [`completion`].
pub fn infill(body: &[u8]) -> Result<GenerateRequest> {
    let mut o = json::parse(body)?;
    let mut prefix = o.require("input_prefix")?.string()?;
    let suffix = o.require("input_suffix")?.string()?;
    prefix.push_str(&o.read("prompt", Field::string)?.unwrap_or_default());
    let file = |f: Field| {
        let mut o = f.object()?;
        let text = o.require("text")?.string()?;
        let name = o.read("filename", Field::string)?.unwrap_or_default();
        o.finish(&[])?;
        Ok((name, text))
    };
    let files = match o.take("input_extra") {
        Some(f) => openai::at_most(f, LIST_MAX)?.list(file)?,
        None => Vec::new(),
    };
    let infill = Some(Infill { suffix, files });
    read(o, Completion { prompts: vec![Prompt::Text(prefix)], infill, echo: false })
}

fn read(mut o: Object, completion: Completion) -> Result<GenerateRequest> {
    let model = o.model()?;
    openai::drop_repeated(&mut o);
    let text_bias = o.read("logit_bias", |f| openai::biases(f, true))?;
    let mut r = GenerateRequest::new(model, Input::Completion(completion));
    r.sampling = openai::sampling(&mut o)?;
    if let Some((ids, texts)) = text_bias {
        r.sampling.logit_bias = ids;
        r.sampling.more.text_bias = texts;
    }
    if let Some(f) = o.take_any(&["n_predict", "max_tokens", "max_completion_tokens"])? {
        r.max_tokens = f.limit(0)?;
    }
    r.n = o.take_any(&["n_cmpl", "n"])?.map(|f| f.count(1..=N_MAX)).transpose()?.unwrap_or(1);
    let probs = o.take_any(&["n_probs", "logprobs"])?.map(|f| f.count(0..=PROBS_MAX)).transpose()?;
    r.logprobs = probs.filter(|n| *n > 0);
    r.stop = o.read("stop", openai::stop)?.unwrap_or_default();
    r.ignore_eos = o.read("ignore_eos", Field::bool)?.unwrap_or(false);
    r.lines.indent = o.read("n_indent", |f| f.limit(0))?.flatten().unwrap_or(0);
    r.lines.time_ms = o.read("t_max_predict_ms", |f| f.limit(0))?.flatten().filter(|ms| *ms > 0);
    r.stream = o.read("stream", Field::bool)?.unwrap_or(false);
    r.cache.prompt = o.read("cache_prompt", Field::bool)?;
    // Both at once are refused by name there.
    openai::structured(&mut o, &mut r)?;
    let mut switch = |name: &'static str| Ok(o.read(name, Field::bool)?.unwrap_or(false));
    r.report.progress = switch("return_progress")?;
    r.report.timings_per_token = switch("timings_per_token")?;
    r.report.post_sampling = switch("post_sampling_probs")?;
    r.report.applied = true;
    r.report.whole_tokens = switch("return_tokens")?;
    // Streams always have them, and several answers are counted by them.
    r.report.tokens = true;
    if let Some(f) = o.take("response_fields") {
        r.report.fields = openai::at_most(f, LIST_MAX)?.list(Field::string)?;
    }
    r.timeout = o.timeout()?;
    let warnings = o.warnings();
    r.extra = o.finish(&[RULES, openai::FOREIGN, openai::SAMPLERS])?;
    r.warnings = warnings.take();
    Ok(r)
}
