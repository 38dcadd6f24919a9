//! What a checkpoint's JSON files say about its quantisation, in the places where different tools write it.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Objects in config.json.
const KEYS: &[&str] = &["quantization_config", "compression_config", "quantization"];
/// Files beside it: ModelOpt's, GPTQ's, AWQ's and AutoRound's.
pub(crate) const FILES: &[&str] =
    &["hf_quant_config.json", "quantize_config.json", "quant_config.json", "quantization_config.json"];

/// What tensors leave open. All of it may be absent or wrong.
#[derive(Default)]
pub(crate) struct Settings {
    /// The method's name, for messages and for what only the name says.
    pub method: Option<String>,
    /// Group sizes that occur, the usual one first: where the last group is shorter, scales alone do not say it.
    pub group_sizes: Vec<usize>,
    /// Sizes of tiles `[rows, columns]`.
    pub tile: Option<[usize; 2]>,
    /// GPTQ's first form: zero points are stored less one.
    pub stores_zero_less_one: bool,
    /// Whether zero points are the middle of the range.
    pub symmetric: Option<bool>,
    /// MLX: bits of each module, and of those without an entry of their own (below "").
    pub bits: BTreeMap<String, usize>,
}

/// Methods that are refused by name: their tensors say nothing that could be mistaken for another.
const REFUSED: &[&str] =
    &["exl2", "exl3", "aqlm", "quip", "vptq", "hqq", "higgs", "spqr", "torchao", "quanto", "bitnet"];

/// Rotations of weights and activations: the second half is not applied.
const ROTATIONS: &[&str] = &["transform_config", "spinquant_config", "rotation_config"];

impl Settings {
    /// From config.json, and from the other files in the order of [`FILES`]. Fails with the field and what is wrong with it where the
    /// method is one that cannot be read.
    pub fn new(config: &Map<String, Value>, files: &[Map<String, Value>]) -> Result<Self, (String, String)> {
        let text = config.get("text_config").and_then(Value::as_object);
        let own = [Some(config), text]
            .into_iter()
            .flatten()
            .flat_map(|c| KEYS.iter().filter_map(move |k| Some((*k, c.get(*k)?.as_object()?))));
        let mut found: Vec<(&str, &Map<String, Value>)> = own.collect();
        // ModelOpt has it one level further down.
        found.extend(files.iter().map(|f| match f.get("quantization").and_then(Value::as_object) {
            Some(inner) => ("quantization", inner),
            None => ("", f),
        }));
        found.retain(|(_, q)| !q.is_empty());
        let Some(&(key, first)) = found.first() else { return Ok(Self::default()) };
        for (_, q) in &found {
            refuse(key, q)?;
        }
        let mut settings = Self::default();
        let string =
            |q: &Map<String, Value>, k: &str| q.get(k).and_then(Value::as_str).map(str::to_lowercase);
        settings.method =
            found.iter().find_map(|(_, q)| string(q, "quant_method").or_else(|| string(q, "quant_algo")));
        settings.symmetric = found.iter().find_map(|(_, q)| q.get("sym").and_then(Value::as_bool));
        let packing = string(first, "packing_format").unwrap_or_default();
        let form = found.iter().find_map(|(_, q)| string(q, "checkpoint_format")).unwrap_or_default();
        settings.stores_zero_less_one = match settings.method.as_deref() {
            Some("gptq") | None => form != "gptq_v2",
            Some(_) => packing.contains("gptq") && !packing.contains("gptqmodel"),
        };
        for (_, q) in found.iter().rev() {
            settings.mlx_bits(q);
        }
        found.iter().for_each(|(_, q)| settings.sizes(q, 0));
        Ok(settings)
    }

    /// Numbers of bits at the top and below modules' names.
    fn mlx_bits(&mut self, q: &Map<String, Value>) {
        let bits = |q: &Map<String, Value>| usize::try_from(q.get("bits")?.as_u64()?).ok();
        if let Some(bits) = bits(q) {
            self.bits.insert(String::new(), bits);
        }
        for (name, module) in q {
            if let Some(bits) = module.as_object().and_then(bits) {
                self.bits.insert(name.clone(), bits);
            }
        }
    }

    /// Sizes of groups and tiles, wherever they stand: the outermost first.
    fn sizes(&mut self, q: &Map<String, Value>, depth: usize) {
        let size = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        if let Some(n) = q.get("group_size").and_then(size)
            && !self.group_sizes.contains(&n)
        {
            self.group_sizes.push(n);
        }
        for key in ["weight_block_size", "block_structure"] {
            let Some(Value::Array(sizes)) = q.get(key) else { continue };
            let sizes: Vec<usize> = sizes.iter().filter_map(size).collect();
            if let (None, [rows, cols]) = (self.tile, &sizes[..]) {
                self.tile = Some([*rows, *cols]);
            }
        }
        if depth < 4 {
            q.values().filter_map(Value::as_object).for_each(|inner| self.sizes(inner, depth + 1));
        }
    }

    /// Size of the groups of a row of `n` values that has `groups` of them.
    pub fn group_size(&self, n: usize, groups: usize) -> usize {
        let usual = [128, 64, 32, 16, 256, 512, 1024];
        let fits = |g: &usize| n.div_ceil(*g) == groups;
        let whole = (groups > 0 && n.is_multiple_of(groups)).then(|| n / groups.max(1));
        let known = self.group_sizes.iter().copied().find(fits);
        known
            .or_else(|| usual.into_iter().find(fits))
            .or(whole)
            .unwrap_or_else(|| n.div_ceil(groups.max(1)).max(1))
    }
}

/// Fails for a method that is refused by name.
fn refuse(key: &str, q: &Map<String, Value>) -> Result<(), (String, String)> {
    let field = |name: &str| if key.is_empty() { name.to_string() } else { format!("{key}.{name}") };
    if let Some(method) = q.get("quant_method").and_then(Value::as_str)
        && REFUSED.contains(&method.to_lowercase().as_str())
    {
        let what = format!("is '{method}', which is not supported: take another quantisation of the model");
        return Err((field("quant_method"), what));
    }
    for name in ROTATIONS {
        let is_set = match q.get(*name) {
            None | Some(Value::Null | Value::Bool(false)) => false,
            Some(Value::Object(o)) => o.values().any(|v| !is_empty(v)),
            Some(v) => !is_empty(v),
        };
        if is_set {
            let what = "rotates activations, which is not applied; without it the output would be wrong: take another \
                        quantisation of the model";
            return Err((field(name), what.into()));
        }
    }
    Ok(())
}

fn is_empty(v: &Value) -> bool {
    match v {
        Value::Null => true,
        Value::Object(o) => o.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::String(s) => s.is_empty(),
        _ => false,
    }
}
