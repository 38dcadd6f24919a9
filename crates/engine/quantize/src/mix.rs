//! Which tensor of a file gets which type: what llama-quantize of llama.cpp v0.5.0 chooses, for every file type.
//!
//! Tensors are judged in the order of layers, and by name in a layer: some rules count the value projections, or the down projections,
//! that came before.

use octet_weights::{GgmlType as T, Metadata, TensorInfo};

use crate::FileType as F;

/// What the rules ask about a model.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Layers, with those for multi-token prediction.
    pub layers: usize,
    /// Experts of a layer; 0 without.
    pub experts: usize,
    /// Query heads that share a key head.
    pub sharing: usize,
    /// Llama and Qwen2 of 80 layers: 8 heads share a value projection, so it is small, and gets more bits.
    pub is_70b: bool,
    /// There is an importance matrix.
    pub importance: bool,
}

impl Facts {
    /// From a model's metadata; what is missing counts as absent.
    pub fn new(metadata: &Metadata, importance: bool) -> Self {
        let architecture = metadata.opt_str("general.architecture").ok().flatten().unwrap_or_default();
        let most = |key: &str| {
            let key = format!("{architecture}.{key}");
            let one = metadata.opt_u32(&key).ok().flatten().map(i64::from);
            let list = metadata.opt_ints(&key).ok().flatten().and_then(|v| v.iter().copied().max());
            one.or(list).unwrap_or(0).max(0) as usize
        };
        let layers = most("block_count");
        let heads = most("attention.head_count");
        Self {
            layers,
            experts: most("expert_count"),
            sharing: heads / most("attention.head_count_kv").max(1),
            is_70b: layers == 80 && matches!(architecture, "llama" | "qwen2"),
            importance,
        }
    }
}

/// A tensor's layer and what it is: `blk.3.ffn_down_exps.weight` is layer 3, `ffn_down_exps`.
fn place(name: &str) -> (Option<usize>, &str) {
    let stem = name.strip_suffix(".weight").unwrap_or(name);
    let inner = stem.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    match inner.and_then(|(i, stem)| Some((i.parse().ok()?, stem))) {
        Some((layer, stem)) => (Some(layer), stem),
        None => (None, stem),
    }
}

/// Whether a tensor is one that quantising changes: matrices, but for small ones on which much depends.
pub fn is_quantised(info: &TensorInfo) -> bool {
    let (_, stem) = place(&info.name);
    let dims = info.shape.iter().skip_while(|d| **d == 1).count();
    let kept = [
        "_norm",
        "ffn_gate_inp",
        "altup",
        "laurel",
        "per_layer_model_proj",
        "ssm_conv1d",
        "shortconv.conv",
        "token_types",
        "position_embd",
        "attn_rel_b",
        "time_mix_",
        "indexer.proj",
    ];
    info.name.ends_with(".weight") && dims >= 2 && !kept.iter().any(|k| stem.contains(k))
}

/// The first and the last eighth, and each third between.
fn more_bits(i: usize, n: usize) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

/// The types of all tensors in the order given; `None` for those that are not quantised.
pub fn types(file_type: F, facts: &Facts, tensors: &[TensorInfo]) -> Vec<Option<T>> {
    let mut order: Vec<usize> = (0..tensors.len()).filter(|&i| is_quantised(&tensors[i])).collect();
    order.sort_by_key(|&i| (place(&tensors[i].name).0.map_or(0, |l| l + 1), tensors[i].name.as_str()));
    let has_head = tensors.iter().any(|t| t.name == "output.weight");
    let is_value = |stem: &str| matches!(stem, "attn_v" | "attn_qkv" | "attn_kv_b");
    let mut chooser = Chooser {
        file_type,
        facts,
        values: order.iter().filter(|&&i| is_value(place(&tensors[i].name).1)).count(),
        value: 0,
        down: 0,
    };
    let mut types = vec![None; tensors.len()];
    for i in order {
        let t = &tensors[i];
        let (layer, stem) = place(&t.name);
        let columns = t.shape.last().copied().unwrap_or(0);
        let wanted = match stem {
            _ if matches!(file_type, F::F32 | F::F16 | F::Bf16) => file_type.base(),
            "output" => chooser.head(columns),
            "token_embd" if !has_head => chooser.head(columns),
            _ if file_type == F::Mxfp4Moe => {
                if stem.ends_with("_exps") {
                    T::MXFP4
                } else {
                    T::Q8_0
                }
            }
            "token_embd" => chooser.embedding(),
            _ if is_value(stem) => chooser.value(),
            "attn_q" | "attn_k" => chooser.query_or_key(stem == "attn_k"),
            "attn_output" => chooser.output(),
            _ if stem.starts_with("ffn_down") => chooser.down(layer),
            _ if stem.starts_with("ffn_gate") || stem.starts_with("ffn_up") => chooser.gate_or_up(layer),
            _ => file_type.base(),
        };
        types[i] = Some(fit(wanted, columns));
    }
    types
}

struct Chooser<'a> {
    file_type: F,
    facts: &'a Facts,
    /// Value projections of the file, and those before this one.
    values: usize,
    value: usize,
    /// Down projections before this one.
    down: usize,
}

impl Chooser<'_> {
    /// The output head, or the embedding in its place.
    fn head(&self, columns: usize) -> T {
        match self.file_type {
            _ if !columns.is_multiple_of(256) => T::Q8_0,
            F::Iq3Xxs => T::Q5_K,
            f if f.is_tiny() => T::Q5_K,
            f if f.base() == T::Q8_0 => T::Q8_0,
            _ => T::Q6_K,
        }
    }

    fn embedding(&self) -> T {
        match self.file_type {
            F::Iq2Xxs | F::Iq2Xs | F::Iq1S | F::Iq1M => T::Q2_K,
            F::Iq2S | F::Iq2M | F::Iq3Xxs => T::IQ3_S,
            F::Tq1_0 | F::Tq2_0 | F::Q2_0 => T::Q4_K,
            f => f.base(),
        }
    }

    /// Value projections, and those that are fused with others.
    fn value(&mut self) -> T {
        let i = self.value;
        self.value += 1;
        let (f, shared) = (self.file_type, self.facts.sharing >= 4);
        if f.is_tiny() {
            return match f {
                _ if shared || self.facts.experts >= 4 => T::Q4_K,
                F::Iq2S | F::Iq2M => T::IQ3_S,
                _ => T::Q2_K,
            };
        }
        let ty = match f {
            F::Q2K if !shared => T::Q3_K,
            F::Iq3Xxs if !shared => {
                if self.facts.importance {
                    T::IQ3_XXS
                } else {
                    T::IQ3_S
                }
            }
            F::Q2K | F::Q2KS | F::Iq3Xxs | F::Iq3Xs | F::Iq3S if shared => T::Q4_K,
            F::Iq3M => T::Q4_K,
            F::Q3KM => {
                if i < 2 {
                    T::Q5_K
                } else {
                    T::Q4_K
                }
            }
            F::Q3KL => T::Q5_K,
            F::Iq4Nl | F::Iq4Xs if shared => T::Q5_K,
            F::Q4KM | F::Q5KM if more_bits(i, self.values) => T::Q6_K,
            F::Q4KS if i < 4 => T::Q5_K,
            f => f.base(),
        };
        match ty {
            _ if self.facts.experts == 8 => T::Q8_0,
            T::Q3_K | T::Q4_K if self.facts.is_70b => T::Q5_K,
            ty => ty,
        }
    }

    fn query_or_key(&self, is_key: bool) -> T {
        let eight = is_key && self.facts.experts == 8;
        match self.file_type {
            f if f.is_tiny() => {
                if eight {
                    T::Q4_K
                } else {
                    f.base()
                }
            }
            _ if eight => T::Q8_0,
            F::Iq3Xs => T::IQ3_XXS,
            F::Iq3Xxs => T::IQ2_S,
            f => f.base(),
        }
    }

    fn output(&self) -> T {
        let f = self.file_type;
        if self.facts.experts == 8 {
            return match f {
                F::Q2K
                | F::Iq3Xs
                | F::Iq3Xxs
                | F::Q3KS
                | F::Q3KM
                | F::Iq4Nl
                | F::Q4KS
                | F::Q4KM
                | F::Iq3S
                | F::Iq3M
                | F::Iq4Xs => T::Q5_K,
                f if f.is_tiny() => T::Q5_K,
                f => f.base(),
            };
        }
        match f {
            F::Iq1S | F::Iq1M => T::IQ2_XXS,
            F::Iq2S | F::Iq2M | F::Iq3Xxs => T::IQ3_S,
            F::Q2K => T::Q3_K,
            F::Q3KM | F::Iq3M => T::Q4_K,
            F::Q3KL => T::Q5_K,
            f => f.base(),
        }
    }

    /// Down projections: by layer, but the smallest types count them, a layer's shared experts by themselves.
    fn down(&mut self, layer: Option<usize>) -> T {
        let counted = self.down;
        self.down += 1;
        let (f, n, importance) = (self.file_type, self.facts.layers, self.facts.importance);
        let i = layer.filter(|_| self.facts.experts > 1).unwrap_or(counted);
        if f.is_tiny() {
            return match f {
                F::Iq2S | F::Iq2M if counted < n / 8 => T::IQ3_S,
                _ if counted < n / 8 => T::Q2_K,
                f => f.base(),
            };
        }
        let first = i < n / 8;
        match f {
            F::Q2K => T::Q3_K,
            F::Q2KS if first => T::Q4_K,
            F::Iq3Xxs if !importance => {
                if first {
                    T::Q4_K
                } else {
                    T::Q3_K
                }
            }
            F::Q3KM => {
                if i < n / 16 {
                    T::Q5_K
                } else {
                    T::Q4_K
                }
            }
            F::Q3KL => T::Q5_K,
            F::Iq3M if first || self.facts.experts == 8 && more_bits(i, n) => T::Q4_K,
            F::Q4KM | F::Q5KM if more_bits(i, n) => T::Q6_K,
            F::Iq4Nl | F::Iq4Xs if first && !importance => T::Q5_K,
            F::Q4KS if first => T::Q5_K,
            F::Q4_0 if first && importance => T::Q4_1,
            F::Q5_0 if first && importance => T::Q5_1,
            f => f.base(),
        }
    }

    fn gate_or_up(&self, layer: Option<usize>) -> T {
        let n = self.facts.layers;
        let is_middle = layer.is_some_and(|i| i >= n / 8 && i < 7 * n / 8);
        if self.file_type == F::Iq3Xs && is_middle { T::IQ3_XXS } else { self.file_type.base() }
    }
}

/// The type itself, or the next that has blocks which the rows divide into.
pub fn fit(ty: T, columns: usize) -> T {
    if columns.is_multiple_of(ty.block_len()) {
        return ty;
    }
    let small = match ty {
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        T::Q6_K => T::Q8_0,
        T::Q2_K | T::Q3_K | T::TQ1_0 | T::TQ2_0 | T::Q1_0 | T::Q2_0 => T::Q4_0,
        T::NVFP4 => T::MXFP4,
        _ => T::IQ4_NL,
    };
    if columns.is_multiple_of(small.block_len()) { small } else { T::F16 }
}
