//! Other programs' names of settings that this server has under another name, or not at all. Used by the parsers of chat, completions,
//! Responses and llama.cpp's completions.

use crate::json::Object;
use crate::rules::{Rules, refused, tuning_but};

/// They change the answer, so they are refused by name.
pub(crate) const FOREIGN: Rules = &[
    ("stop_sequences", refused("send 'stop'")),
    ("stopping_strings", refused("send 'stop'")),
    ("system_prompt", refused("send a system message, or put it into 'prompt'")),
    ("stop_regex", refused("send texts as 'stop'")),
    ("banned_strings", refused("use 'logit_bias'")),
    ("negative_prompt", refused("there is no second prompt to keep away from")),
    ("image_data", refused("this model reads text only")),
    ("lora_path", refused("adapters are not supported")),
    ("adapter_id", refused("adapters are not supported")),
    ("return_hidden_states", refused("answers are text")),
];

/// The same for chats and completions.
pub(super) const LENGTHS: Rules = &[
    ("max_new_tokens", refused("send 'max_tokens'")),
    ("max_output_tokens", refused("send 'max_tokens'")),
    ("num_predict", refused("send 'max_tokens'")),
    // Editors' plugins send them with a length.
    (
        "t_max_predict_ms",
        tuning_but("[0, -1]", "only '/completion' and '/infill' have it: send 'max_tokens'"),
    ),
    ("t_max_prompt_ms", tuning_but("[0, -1]", "prompts have no time limit")),
    ("n_indent", tuning_but("[0]", "only '/completion' and '/infill' have it")),
];

/// Names of one setting: ours first. Programs that serve many kinds of servers send several.
const NAMES: &[(&[&str], &[&str])] = &[
    (&["stop"], &["stop_sequences", "stopping_strings"]),
    (
        &["max_tokens", "max_completion_tokens", "n_predict"],
        &["max_new_tokens", "max_output_tokens", "num_predict"],
    ),
];

/// Removes fields that repeat what a field of ours says.
pub(crate) fn drop_repeated(o: &mut Object) {
    for (ours, foreign) in NAMES {
        for name in *foreign {
            let is_repeated = o.has(name) && ours.iter().any(|ours| o.peek(ours) == o.peek(name));
            if is_repeated {
                o.take(name);
            }
        }
    }
}
