//! Tensors that a model does not use, which are refused: without them its output would be another.

use octet_weights::Model;

use crate::Error;
use crate::models::derive;
use crate::models::plan::Plan;

/// Fails if the file has a tensor of the text model that is not in `is_used`. Ignores blocks of multi-token prediction, encoders for images and
/// sound, and stored frequencies.
pub(super) fn refuse(model: &Model, plan: &Plan, is_used: impl Fn(&str) -> bool) -> Result<(), Error> {
    // The first of them has the projection of an embedding beside the state.
    let first = format!("blk.{}.nextn.", plan.layers);
    let has_blocks = model.tensors().iter().any(|t| t.name.starts_with(&first));
    let further = if has_blocks { plan.further } else { 0 };
    let of_further = |name: &str| {
        layer(name)
            .is_some_and(|i| name.starts_with("blk.") && (plan.layers..plan.layers + further).contains(&i))
    };
    let known = model.tensors().iter().map(|t| t.name.as_str()).filter(|name| !is_used(name));
    let all = known.chain(model.ignored().iter().map(String::as_str));
    all.filter(|name| !is_elsewhere(name))
        .find(|name| !of_further(name))
        .map_or(Ok(()), |name| Err(refused(model, name, plan.layers)))
}

/// Tensors of other parts of a file.
fn is_elsewhere(name: &str) -> bool {
    ["v.", "mm.", "a.", "mtp.", "rope_f"].iter().any(|part| name.starts_with(part))
}

/// The layer of a tensor, under GGUF's or a checkpoint's name.
fn layer(name: &str) -> Option<usize> {
    let rest = name.strip_prefix("blk.").or_else(|| Some(name.split_once("layers.")?.1));
    rest?.split('.').next()?.parse().ok()
}

fn refused(model: &Model, name: &str, layers: usize) -> Error {
    let meta = &model.metadata;
    let arch = meta.str("general.architecture").unwrap_or_default();
    let what = match layer(name).filter(|i| *i >= layers) {
        Some(i) => {
            let is_gguf = model.info(name).is_some() && !meta.file().ends_with("config.json");
            let key = if is_gguf { format!("{arch}.block_count") } else { "num_hidden_layers".into() };
            format!(
                "is of layer {i}, and the model has {layers} by {key} in {}; it is not a block for multi-token \
                 prediction, and ignoring it would change the output",
                meta.file()
            )
        }
        None => format!(
            "is not used by architecture '{arch}'; ignoring it would change the output{}",
            derive::purpose(name).map(|p| format!(" ({p} are not supported)")).unwrap_or_default()
        ),
    };
    octet_weights::Error::tensor(&model.origin, name, what).into()
}
