//! A checkpoint's tensors as converters write them to GGUF files: experts in stacks, gate and up apart, rows and heads in GGUF's order.
//!
//! | a checkpoint has | a GGUF file has |
//! |---|---|
//! | `ffn_gate.E`, one tensor an expert | `ffn_gate_exps`, a stack |
//! | `ffn_gate_up_exps`: gate rows then up rows, or alternating | `ffn_gate_exps`, `ffn_up_exps` |
//! | pairs of rotary dimensions half a head apart (Llama, Granite) | side by side, where llama.cpp rotates such pairs |
//! | pairs side by side, turning in sections (GLM-4.1V) | half of the rotated dimensions apart, as all of llama.cpp's sections |
//! | value heads of Gated DeltaNet by key head (Qwen3.5) | every key head once, then again |
//! | scaling of rotary frequencies like Llama 3's as parameters | `rope_freqs.weight`, the divisors |
//! | queries, keys and values in one tensor, by key/value head (InternLM 2, Falcon) | all queries, all keys, all values |
//! | multipliers (Falcon-H1) | weights that include them |

use std::collections::BTreeMap;

use bytes::Bytes;
use octet_weights::{GgmlType, Metadata, Model, RowScales, Source, TensorInfo, Value};

use crate::Error;

const PAIRING: &str = "octet.rope_pairing";
const ORDER: &str = "octet.gdn_head_order";
const GATE_UP: &str = "octet.gate_up_rows";
const QKV: &str = "octet.qkv_rows";
/// Factors of rows that weights include once they are read.
const ROW_FACTORS: &str = "octet.row_factors";
/// Architectures whose GGUF files have queries, keys and values in tensors of their own.
const APART: &[&str] = &["bailingmoe", "internlm2"];
/// Architectures with Mamba-2, whose GGUF files have numbers of heads as matrices of one column.
const MAMBA_2: &[&str] = &["falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe"];
/// Names that lack their usual end in an architecture's GGUF files.
const WITHOUT_END: &[(&str, &str, &str)] =
    &[("falcon-h1", "ffn_norm", ".weight"), ("hy_v3", "exp_probs_b", ".bias")];
/// Architectures whose GGUF files have pairs side by side.
const ADJACENT: &[&str] = &[
    "arcee",
    "bailingmoe",
    "chatglm",
    "cohere2",
    "cohere2moe",
    "command-r",
    "deci",
    "deepseek",
    "deepseek2",
    "ernie4_5",
    "ernie4_5-moe",
    "glm4",
    "granite",
    "granitehybrid",
    "granitemoe",
    "internlm2",
    "llama",
    "llama4",
    "minicpm",
    "mistral3",
    "mistral4",
    "muse-glimmer",
    "olmo",
    "smollm3",
];

/// The model in GGUF's conventions, without the blocks for multi-token prediction unless they are kept.
pub fn canonical(model: Model, keep_mtp: bool) -> Result<Model, Error> {
    let mut metadata = model.metadata.clone();
    let architecture = metadata.opt_str("general.architecture")?.unwrap_or_default().to_string();
    let mut outs: Vec<Out> = model.tensors().iter().enumerate().map(|(i, t)| Out::whole(i, t)).collect();
    if !keep_mtp {
        drop_mtp(&architecture, &mut metadata, &mut outs);
    }
    stack_experts(&mut outs);
    split_gate_up(&mut metadata, &mut outs);
    order_qkv(&architecture, &mut metadata, &mut outs);
    multipliers(&architecture, &mut metadata, &mut outs);
    shorten(&architecture, &mut outs);
    pair_rows(&architecture, &mut metadata, &mut outs);
    tile_heads(&architecture, &mut metadata, &mut outs);
    frequencies(&architecture, &mut metadata, &mut outs);
    for out in &mut outs {
        let ones = out.info.shape.iter().take_while(|d| **d == 1).count().min(out.info.shape.len() - 1);
        out.info.shape.drain(..ones);
        out.settle(&model);
    }
    if MAMBA_2.contains(&architecture.as_str()) {
        mamba2_shapes(&architecture, &metadata, &mut outs);
    }
    let origin = model.origin.clone();
    let infos = outs.iter().map(|o| o.info.clone()).collect();
    Ok(Model::new(origin, metadata, Box::new(Converted { model, infos, outs }))?)
}

/// Rows of a tensor of the model, all or these.
#[derive(Clone)]
struct Part {
    source: usize,
    rows: Option<Vec<usize>>,
}

/// A tensor of the file.
struct Out {
    info: TensorInfo,
    parts: Vec<Part>,
    /// The columns in another order: pieces of so many, and which of them.
    columns: Option<(usize, Vec<usize>)>,
    /// Values that no tensor of the model has.
    bytes: Option<Bytes>,
    /// What all values are multiplied with.
    factor: Option<f64>,
}

impl Out {
    fn whole(source: usize, info: &TensorInfo) -> Self {
        let parts = vec![Part { source, rows: None }];
        Self { info: info.clone(), parts, columns: None, bytes: None, factor: None }
    }

    /// Number of rows; each value of a vector is a row.
    fn rows(&self) -> usize {
        match self.info.shape.len() {
            1 => self.info.shape[0],
            n => self.info.shape[..n - 1].iter().product(),
        }
    }

    /// These of the present rows, in this order.
    fn select(&mut self, chosen: Vec<usize>) {
        if let [Part { rows, .. }] = &mut self.parts[..] {
            *rows = Some(match rows {
                None => chosen,
                Some(old) => chosen.into_iter().map(|r| old[r]).collect(),
            });
        }
    }

    /// Rows of one tensor, in any order.
    fn is_of_rows(&self) -> bool {
        self.bytes.is_none() && self.columns.is_none() && self.parts.len() == 1
    }

    fn is_unchanged(&self) -> bool {
        self.bytes.is_none() && self.columns.is_none() && matches!(self.parts[..], [Part { rows: None, .. }])
    }

    /// F32, where its parts have several types or its blocks would have to be cut.
    fn settle(&mut self, model: &Model) {
        let types = || self.parts.iter().map(|p| model.tensors()[p.source].ty);
        let is_cut = |piece: usize| types().any(|ty| !piece.is_multiple_of(ty.block_len()));
        let differ = types().any(|ty| ty != self.info.ty);
        if self.bytes.is_none() && (differ || self.columns.as_ref().is_some_and(|c| is_cut(c.0))) {
            self.info.ty = GgmlType::F32;
        }
    }
}

/// `blk.3.attn_q.weight` is layer 3, `attn_q.weight`.
fn place(name: &str) -> Option<(usize, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, rest))
}

fn count(metadata: &Metadata, architecture: &str, key: &str) -> usize {
    metadata.opt_u32(&format!("{architecture}.{key}")).ok().flatten().unwrap_or(0) as usize
}

fn drop_mtp(architecture: &str, metadata: &mut Metadata, outs: &mut Vec<Out>) {
    let (all, mtp) =
        (count(metadata, architecture, "block_count"), count(metadata, architecture, "nextn_predict_layers"));
    if mtp == 0 || mtp >= all {
        return;
    }
    let layers = all - mtp;
    outs.retain(|o| place(&o.info.name).is_none_or(|(i, _)| i < layers));
    metadata.remove(&format!("{architecture}.nextn_predict_layers"));
    metadata.insert(&format!("{architecture}.block_count"), Value::U64(layers as u64));
    let keys: Vec<String> = metadata.iter().map(|(k, _)| k.to_string()).collect();
    for key in keys.iter().filter(|k| k.starts_with(&format!("{architecture}."))) {
        let shorter = match metadata.get(key) {
            Some(Value::Ints(v)) if v.len() == all => Value::Ints(v[..layers].to_vec()),
            Some(Value::Floats(v)) if v.len() == all => Value::Floats(v[..layers].to_vec()),
            Some(Value::Array(v)) if v.len() == all => Value::Array(v[..layers].to_vec()),
            _ => continue,
        };
        metadata.insert(key, shorter);
    }
}

/// `blk.0.ffn_gate.7.weight` of all experts becomes `blk.0.ffn_gate_exps.weight`.
fn stack_experts(outs: &mut Vec<Out>) {
    let mut stacks: BTreeMap<String, BTreeMap<usize, usize>> = BTreeMap::new();
    for (i, out) in outs.iter().enumerate() {
        let Some((stem, end)) =
            out.info.name.rsplit_once('.').filter(|(_, end)| matches!(*end, "weight" | "bias"))
        else {
            continue;
        };
        let Some((stem, expert)) = stem.rsplit_once('.').filter(|(stem, _)| stem.contains(".ffn_")) else {
            continue;
        };
        if let Ok(expert) = expert.parse() {
            stacks.entry(format!("{stem}_exps.{end}")).or_default().insert(expert, i);
        }
    }
    let mut gone = vec![false; outs.len()];
    let mut new = Vec::new();
    for (name, experts) in stacks {
        let members: Vec<usize> = experts.values().copied().collect();
        let shape = &outs[members[0]].info.shape;
        // Experts that are missing, or differ, are the loader's to refuse.
        if experts.keys().copied().ne(0..members.len())
            || members.iter().any(|&i| outs[i].info.shape != *shape)
        {
            continue;
        }
        let info =
            TensorInfo { name, ty: outs[members[0]].info.ty, shape: [&[members.len()], &shape[..]].concat() };
        let parts = members.iter().flat_map(|&i| outs[i].parts.clone()).collect();
        members.iter().for_each(|&i| gone[i] = true);
        new.push((members[0], Out { info, parts, columns: None, bytes: None, factor: None }));
    }
    for (at, out) in new {
        outs[at] = out;
        gone[at] = false;
    }
    let mut gone = gone.into_iter();
    outs.retain(|_| !gone.next().unwrap_or(false));
}

fn split_gate_up(metadata: &mut Metadata, outs: &mut Vec<Out>) {
    let alternating = metadata.opt_str(GATE_UP).ok().flatten() == Some("alternating");
    let mut split = Vec::with_capacity(outs.len());
    for out in outs.drain(..) {
        let rank = out.info.shape.len();
        let rows_at = if out.info.name.ends_with(".bias") { rank - 1 } else { rank.saturating_sub(2) };
        let fused = out.info.name.contains(".ffn_gate_up_exps.")
            && rank >= 2
            && out.info.shape[rows_at].is_multiple_of(2);
        if !fused || !out.is_unchanged() {
            split.push(out);
            continue;
        }
        let both = out.info.shape[rows_at];
        let half = both / 2;
        let experts: usize = out.info.shape[..rows_at].iter().product();
        for (n, name) in ["ffn_gate_exps", "ffn_up_exps"].into_iter().enumerate() {
            let row = |r: usize| if alternating { 2 * r + n } else { n * half + r };
            let rows = (0..experts)
                .flat_map(|e| (0..half).map(move |r| (e, r)))
                .map(|(e, r)| e * both + row(r))
                .collect();
            let mut info =
                TensorInfo { name: out.info.name.replace("ffn_gate_up_exps", name), ..out.info.clone() };
            info.shape[rows_at] = half;
            let parts = vec![Part { source: out.parts[0].source, rows: Some(rows) }];
            split.push(Out { info, parts, columns: None, bytes: None, factor: None });
        }
    }
    *outs = split;
    metadata.remove(GATE_UP);
}

/// Queries of all heads, then keys, then values; in tensors of their own where GGUF files have these.
fn order_qkv(architecture: &str, metadata: &mut Metadata, outs: &mut Vec<Out>) {
    let is_grouped = metadata.opt_str(QKV).ok().flatten() == Some("grouped");
    let are_apart = APART.contains(&architecture);
    if !is_grouped && !are_apart {
        return;
    }
    let number = |key: &str| count(metadata, architecture, key);
    let (heads, kv) = (number("attention.head_count"), number("attention.head_count_kv"));
    let (dim, value) = (number("attention.key_length"), number("attention.value_length"));
    if kv == 0 || !heads.is_multiple_of(kv) || dim == 0 || value == 0 {
        return;
    }
    let rows = |n: usize, each: usize| n.checked_mul(each);
    let all = rows(heads, dim).and_then(|q| q.checked_add(rows(kv, dim.checked_add(value)?)?));
    let Some(all) = all else { return };
    let queries = heads / kv * dim;
    let is_fused = |o: &Out| place(&o.info.name).is_some_and(|(_, stem)| stem.starts_with("attn_qkv."));
    if outs.iter().any(|o| is_fused(o) && !(o.rows() == all && o.is_unchanged())) {
        return;
    }
    // The first row and the number of rows of each part: of one key/value head, and of all heads.
    let parts = [(0, queries), (queries, dim), (queries + dim, value)];
    let rows = |(from, n): (usize, usize)| -> Vec<usize> {
        match is_grouped {
            true => (0..kv).flat_map(|g| (0..n).map(move |r| g * (all / kv) + from + r)).collect(),
            false => (from * kv..(from + n) * kv).collect(),
        }
    };
    let mut made = Vec::with_capacity(outs.len());
    for mut out in outs.drain(..) {
        match is_fused(&out) {
            false => made.push(out),
            true if !are_apart => {
                out.select(parts.into_iter().flat_map(rows).collect());
                made.push(out);
            }
            true => {
                made.extend(["attn_q.", "attn_k.", "attn_v."].into_iter().zip(parts).map(|(name, part)| {
                    let mut one = Out::whole(out.parts[0].source, &out.info);
                    one.info.name = one.info.name.replace("attn_qkv.", name);
                    one.info.shape[0] = part.1 * kv;
                    one.select(rows(part));
                    one
                }))
            }
        }
    }
    *outs = made;
    metadata.remove(QKV);
}

fn position(outs: &[Out], name: &str) -> Option<usize> {
    outs.iter().position(|o| o.info.name == name)
}

/// Falcon-H1's multipliers of embeddings and logits, for which GGUF files have no keys.
fn multipliers(architecture: &str, metadata: &mut Metadata, outs: &mut Vec<Out>) {
    metadata.remove(ROW_FACTORS);
    if architecture != "falcon-h1" {
        return;
    }
    let mut take = |key: &str| {
        let key = format!("{architecture}.{key}");
        let factor = metadata.opt_f32(&key).ok().flatten().map(f64::from).filter(|f| *f != 1.0 && *f != 0.0);
        metadata.remove(&key);
        factor
    };
    let (of_embedding, of_logits) = (take("embedding_scale"), take("logit_scale"));
    let Some(embedding) = position(outs, "token_embd.weight") else { return };
    // One table cannot have both factors.
    if position(outs, "output.weight").is_none() && of_embedding != of_logits {
        let mut head = Out::whole(outs[embedding].parts[0].source, &outs[embedding].info);
        head.info.name = "output.weight".into();
        outs.push(head);
    }
    outs[embedding].factor = of_embedding;
    if let Some(head) = position(outs, "output.weight") {
        outs[head].factor = of_logits;
    }
}

/// Names as llama.cpp has them.
fn shorten(architecture: &str, outs: &mut [Out]) {
    for (_, stem, end) in WITHOUT_END.iter().filter(|(a, ..)| *a == architecture) {
        for out in outs.iter_mut() {
            if place(&out.info.name).and_then(|(_, rest)| rest.strip_suffix(*end)) == Some(*stem) {
                out.info.name.truncate(out.info.name.len() - end.len());
            }
        }
    }
}

/// Numbers of heads as columns, and norms by group.
fn mamba2_shapes(architecture: &str, metadata: &Metadata, outs: &mut [Out]) {
    let groups = count(metadata, architecture, "ssm.group_count").max(1);
    for out in outs {
        let stem = place(&out.info.name).map_or("", |(_, stem)| stem).to_string();
        match (stem.as_str(), &out.info.shape[..]) {
            ("ssm_a" | "ssm_d", &[heads]) => out.info.shape = vec![heads, 1],
            ("ssm_norm.weight", &[width]) if width.is_multiple_of(groups) => {
                out.info.shape = vec![groups, width / groups];
            }
            _ => {}
        }
    }
}

/// Rows `j` and `j + dim/2` of each head become rows `2j` and `2j + 1`, or, of the rotated rows, the other way round.
fn pair_rows(architecture: &str, metadata: &mut Metadata, outs: &mut [Out]) {
    let Some(pairing) = metadata.opt_str(PAIRING).ok().flatten().map(String::from) else { return };
    // But for GLM-4.1V, whose rotations have sections.
    let has_sections = metadata.get(&format!("{architecture}.rope.dimension_sections")).is_some();
    let wants_adjacent = ADJACENT.contains(&architecture) && !(architecture == "glm4" && has_sections);
    if (pairing == "adjacent") == wants_adjacent {
        metadata.remove(PAIRING);
        return;
    }
    let dim = count(metadata, architecture, "attention.key_length");
    let rotated = count(metadata, architecture, "rope.dimension_count");
    let is_whole = wants_adjacent && rotated == dim || !wants_adjacent && rotated <= dim;
    if dim == 0 || rotated == 0 || !is_whole || !dim.is_multiple_of(2) || !rotated.is_multiple_of(2) {
        return; // the key stays, and says it
    }
    let is_rotated = |o: &Out| {
        let stem = place(&o.info.name).map_or("", |(_, stem)| stem);
        matches!(stem, "attn_q.weight" | "attn_k.weight" | "attn_q.bias" | "attn_k.bias")
    };
    if outs.iter().any(|o| is_rotated(o) && !(o.rows().is_multiple_of(dim) && o.is_of_rows())) {
        return;
    }
    for out in outs.iter_mut().filter(|o| is_rotated(o)) {
        let from = |i: usize| match wants_adjacent {
            true => i / 2 + i % 2 * dim / 2,
            false if i < rotated => i % (rotated / 2) * 2 + i / (rotated / 2),
            false => i,
        };
        out.select((0..out.rows()).map(|r| r / dim * dim + from(r % dim)).collect());
    }
    metadata.remove(PAIRING);
}

fn tile_heads(architecture: &str, metadata: &mut Metadata, outs: &mut [Out]) {
    if metadata.get(ORDER).is_none() || !architecture.starts_with("qwen35") {
        if architecture == "qwen3next" {
            metadata.remove(ORDER);
        }
        return;
    }
    let number = |key: &str| count(metadata, architecture, key);
    let (k_heads, v_heads) = (number("ssm.group_count"), number("ssm.time_step_rank"));
    let (k_dim, inner) = (number("ssm.state_size"), number("ssm.inner_size"));
    if k_heads == 0 || v_heads == 0 || !v_heads.is_multiple_of(k_heads) || !inner.is_multiple_of(v_heads) {
        return;
    }
    let (v_dim, group) = (inner / v_heads, v_heads / k_heads);
    let heads: Vec<usize> = (0..v_heads).map(|t| t % k_heads * group + t / k_heads).collect();
    let rows = |before: usize, each: usize| -> Vec<usize> {
        let moved = heads.iter().flat_map(|h| (0..each).map(move |r| before + h * each + r));
        (0..before).chain(moved).collect()
    };
    let keys = 2 * k_heads * k_dim;
    for out in outs.iter_mut() {
        let wanted = match place(&out.info.name).map_or("", |(_, stem)| stem) {
            "attn_gate.weight" => rows(0, v_dim),
            "ssm_alpha.weight" | "ssm_beta.weight" | "ssm_a" | "ssm_dt.bias" => rows(0, 1),
            "attn_qkv.weight" | "ssm_conv1d.weight" => rows(keys, v_dim),
            "ssm_out.weight" if out.info.shape.last() == Some(&inner) => {
                out.columns = Some((v_dim, heads.clone()));
                continue;
            }
            _ => continue,
        };
        if wanted.len() == out.rows() {
            out.select(wanted);
        }
    }
    metadata.remove(ORDER);
}

/// Llama 3's scaling: wavelengths above one limit are stretched by the factor, below another not at all, and between by a part of it.
fn frequencies(architecture: &str, metadata: &mut Metadata, outs: &mut Vec<Out>) {
    let key = |name: &str| format!("{architecture}.rope.scaling.{name}");
    let is_llama3 = metadata.opt_str(&key("type")).ok().flatten() == Some("llama3");
    if !is_llama3 || outs.iter().any(|o| o.info.name == "rope_freqs.weight") {
        return;
    }
    let number = |key: String| metadata.opt_f32(&key).ok().flatten().map(f64::from);
    let parameters =
        [key("factor"), key("low_freq_factor"), key("high_freq_factor"), key("original_context_length")]
            .map(number);
    let [Some(factor), Some(low), Some(high), Some(length)] = parameters else { return };
    let Some(base) = number(format!("{architecture}.rope.freq_base")) else { return };
    let dims = count(metadata, architecture, "rope.dimension_count");
    let divisor = |i: usize| {
        let wavelength = std::f64::consts::TAU * base.powf(2.0 * i as f64 / dims as f64);
        let smooth = ((length / wavelength - low) / (high - low)).clamp(0.0, 1.0);
        (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
    };
    let bytes: Vec<u8> = (0..dims / 2).flat_map(|i| divisor(i).to_le_bytes()).collect();
    let info = TensorInfo { name: "rope_freqs.weight".into(), ty: GgmlType::F32, shape: vec![dims / 2] };
    outs.push(Out { info, parts: Vec::new(), columns: None, bytes: Some(bytes.into()), factor: None });
    for name in ["type", "factor", "low_freq_factor", "high_freq_factor", "original_context_length"] {
        metadata.remove(&key(name));
    }
}

struct Converted {
    model: Model,
    infos: Vec<TensorInfo>,
    outs: Vec<Out>,
}

impl Source for Converted {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn data(&self, index: usize) -> Result<Bytes, octet_weights::Error> {
        let out = &self.outs[index];
        if let Some(bytes) = &out.bytes {
            return Ok(bytes.clone());
        }
        let mut all = Vec::new();
        for part in &out.parts {
            let info = &self.model.tensors()[part.source];
            let tensor = self.model.tensor(&info.name, &info.shape)?;
            if out.is_unchanged() {
                return Ok(tensor.data);
            }
            let mut matrix = tensor.matrix();
            // Rows of a bias are its values, also where each expert has one.
            if part.rows.is_some() && (info.shape.len() == 1 || info.name.ends_with(".bias")) {
                (matrix.rows, matrix.cols) = (matrix.rows * matrix.cols, 1);
            }
            let mut values = vec![0.0; matrix.cols];
            let rows: Box<dyn Iterator<Item = usize>> = match &part.rows {
                Some(rows) => Box::new(rows.iter().copied()),
                None => Box::new(0..matrix.rows),
            };
            for r in rows {
                let widened: Vec<u8>;
                let (row, ty) = if out.info.ty == info.ty {
                    (matrix.row(r), info.ty)
                } else {
                    matrix.dequantize_row(r, &mut values);
                    widened = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                    (&widened[..], GgmlType::F32)
                };
                match &out.columns {
                    None => all.extend_from_slice(row),
                    Some((piece, order)) => {
                        let bytes = piece / ty.block_len() * ty.block_bytes();
                        order.iter().for_each(|p| all.extend_from_slice(&row[p * bytes..(p + 1) * bytes]));
                    }
                }
            }
            self.model.release(&info.name);
        }
        Ok(all.into())
    }

    fn scales(&self, index: usize) -> Result<Option<RowScales>, octet_weights::Error> {
        let out = &self.outs[index];
        let own = self.own_scales(out)?;
        Ok(match (own, out.factor) {
            (own, None) => own,
            (None, Some(factor)) => Some(vec![factor; out.rows()].into()),
            (Some(own), Some(factor)) => Some(own.iter().map(|s| s * factor).collect()),
        })
    }

    fn check_files(&self) -> Result<(), octet_weights::Error> {
        self.model.check_files()
    }

    fn release(&self, index: usize) {
        for part in &self.outs[index].parts {
            self.model.release(&self.model.tensors()[part.source].name);
        }
    }
}

impl Converted {
    /// The factors that a tensor's rows have in the model.
    fn own_scales(&self, out: &Out) -> Result<Option<RowScales>, octet_weights::Error> {
        let mut all: Vec<f64> = Vec::new();
        for part in &out.parts {
            let info = &self.model.tensors()[part.source];
            // Widened rows have their factors in them.
            if out.info.ty != info.ty {
                return Ok(None);
            }
            let Some(scales) = self.model.scales(&info.name)? else { continue };
            match &part.rows {
                Some(rows) => all.extend(rows.iter().map(|&r| scales[r])),
                None => all.extend(scales.iter()),
            }
        }
        if all.is_empty() {
            return Ok(None);
        }
        if all.len() != out.rows() {
            let what = "has factors of some rows and not of others";
            return Err(octet_weights::Error::tensor(&self.model.origin, &out.info.name, what));
        }
        Ok(Some(all.into()))
    }
}
