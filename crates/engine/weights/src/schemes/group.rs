//! The tensors of a checkpoint by the matrix that they belong to.

use std::collections::{BTreeMap, HashSet};

use super::Settings;
use crate::Error;
use crate::map::Mapped;
use crate::quant::{float, fp8};
use crate::safetensors::Entry;

/// Last parts of names below `NAME.` that belong to a quantised matrix, beside `weight` itself.
const LEAVES: &[&str] = &[
    "qweight",
    "qzeros",
    "scales",
    "biases",
    "g_idx",
    "weight_packed",
    "weight_scale",
    "weight_shape",
    "weight_zero_point",
    "weight_global_scale",
    "weight_g_idx",
    "weight_scale_2",
    "weight_scale_inv",
    "pre_quant_scale",
    "SCB",
    "trellis",
    "suh",
    "svh",
    "mcg",
    "mul1",
];

/// The same for what only concerns quantised activations or keys and values: not needed, as both stay in higher precision here.
const IGNORED: &[&str] = &[
    "input_scale",
    "input_global_scale",
    "input_zero_point",
    "activation_scale",
    "output_scale",
    "k_scale",
    "v_scale",
    "q_scale",
    "k_zero_point",
    "v_zero_point",
    "weight_format",
];

/// Ends of names of fused experts, `experts.gate_up_proj` and what follows.
const SUFFIXES: &[&str] = &["_scale_inv", "_blocks", "_scales"];

/// A tensor of the file that belongs to a matrix.
pub(crate) struct Part<'a> {
    /// What it is below the matrix's name: `qweight`, `weight`, `weight.absmax`, `_blocks`, or nothing.
    pub label: String,
    pub entry: Entry,
    pub file: usize,
    /// Its bytes.
    pub bytes: &'a [u8],
    /// Its shape.
    pub shape: Vec<usize>,
}

/// What is wrong with a part, named in full.
pub(crate) struct Bad {
    pub file: usize,
    pub tensor: String,
    pub what: String,
}

impl<'a> Part<'a> {
    fn new(files: &'a [Mapped], file: usize, entry: Entry, label: String) -> Self {
        // Dimensions fit: their product is that of the tensor's bytes, or one of them is 0.
        let shape = entry.shape.iter().map(|&d| d as usize).collect();
        Self { label, bytes: &files[file].bytes[entry.range.clone()], shape, file, entry }
    }

    pub fn bad(&self, what: impl Into<String>) -> Bad {
        Bad { file: self.file, tensor: self.entry.name.clone(), what: what.into() }
    }

    pub fn dtype(&self) -> &str {
        &self.entry.dtype
    }

    pub fn is(&self, dtypes: &[&str]) -> bool {
        dtypes.contains(&self.dtype())
    }

    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Fails, naming the part, if its shape is not `shape`.
    pub fn expect(&self, shape: &[usize], why: &str) -> Result<(), Bad> {
        if self.shape == shape {
            return Ok(());
        }
        Err(self.bad(format!("has shape {:?}; expected {shape:?}, {why}", self.shape)))
    }

    /// Fails if its type is none of `dtypes`.
    pub fn expect_type(&self, dtypes: &[&str]) -> Result<(), Bad> {
        if self.is(dtypes) {
            return Ok(());
        }
        Err(self.bad(format!("is stored as {}; expected {}", self.dtype(), dtypes.join(" or "))))
    }

    /// Its two dimensions, none of them 0.
    pub fn matrix(&self) -> Result<[usize; 2], Bad> {
        match self.shape[..] {
            [rows, cols] if rows > 0 && cols > 0 => Ok([rows, cols]),
            _ => {
                Err(self.bad(format!("has shape {:?}; expected two dimensions, none of them 0", self.shape)))
            }
        }
    }

    /// Its values as little-endian 32-bit words.
    pub fn words(&self) -> impl Iterator<Item = u32> + '_ {
        self.bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b))
    }

    /// All values of a float type, finite ones.
    pub fn floats(&self) -> Result<Vec<f32>, Bad> {
        self.expect_type(Floats::TYPES)?;
        let floats = Floats::new(self.dtype());
        let mut out = vec![0.0; self.len()];
        floats.read(self.bytes, 0, &mut out);
        match out.iter().position(|v| !v.is_finite()) {
            None => Ok(out),
            Some(i) => Err(self.bad(format!("holds {} at place {i}; expected finite numbers", out[i]))),
        }
    }

    /// Whether nothing that weights depend on is in it.
    pub fn is_ignorable(&self) -> bool {
        IGNORED.contains(&&*self.label)
    }
}

/// A float type of the file, of scales above all.
#[derive(Clone, Copy)]
pub(crate) enum Floats {
    F32,
    F16,
    Bf16,
    E4m3,
    E8m0,
}

impl Floats {
    /// Types of scales.
    pub const TYPES: &'static [&'static str] = &["F32", "F16", "BF16", "F8_E4M3", "F8_E8M0", "U8"];

    /// A name of [`Floats::TYPES`]; bytes without a type are E8M0.
    pub fn new(dtype: &str) -> Self {
        match dtype {
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            "F8_E4M3" => Self::E4m3,
            "F8_E8M0" | "U8" => Self::E8m0,
            _ => Self::F32,
        }
    }

    /// Whether an F16 holds a usual scale of this type.
    pub fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16)
    }

    /// Values `first..` of `bytes`.
    pub fn read(self, bytes: &[u8], first: usize, out: &mut [f32]) {
        let size = match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::E4m3 | Self::E8m0 => 1,
        };
        let bytes = &bytes[first * size..(first + out.len()) * size];
        match self {
            Self::F32 => float::f32_from_le(bytes, out),
            Self::F16 => float::f16_to_f32(bytes, out),
            Self::Bf16 => float::bf16_to_f32(bytes, out),
            Self::E4m3 => fp8::e4m3_to_f32(bytes, out),
            Self::E8m0 => out.iter_mut().zip(bytes).for_each(|(v, &b)| *v = fp8::e8m0(b)),
        }
    }
}

/// The tensors of one matrix.
pub(crate) struct Group<'a> {
    /// The name that they share.
    pub stem: String,
    pub parts: Vec<Part<'a>>,
}

impl<'a> Group<'a> {
    pub fn part(&self, label: &str) -> Option<&Part<'a>> {
        self.parts.iter().find(|p| p.label == label)
    }

    /// A part that the scheme cannot do without; `beside` is what the file has of it.
    pub fn need(&self, label: &str, beside: &Part) -> Result<&Part<'a>, Bad> {
        self.part(label).ok_or_else(|| {
            let dot = if label.starts_with('_') { "" } else { "." };
            beside.bad(format!("is quantised, but '{}{dot}{label}' is missing", self.stem))
        })
    }

    /// The matrix's name as an unquantised checkpoint has it.
    pub fn name(&self) -> String {
        let is_bare = self.parts.iter().any(|p| p.label.is_empty() || p.label.starts_with('_'));
        if is_bare { self.stem.clone() } else { format!("{}.weight", self.stem) }
    }

    /// Whether it is a tensor like any other.
    pub fn is_plain(&self) -> bool {
        let [part] = &self.parts[..] else { return false };
        let is_float = part.is(&["F32", "F16", "BF16"]);
        // Counters and masks, which the names say what to do with.
        let is_other = part.is(&["F64", "I64", "U64", "BOOL", "C64"]);
        (part.label.is_empty() || part.label == "weight") && (is_float || is_other)
    }

    pub fn into_single(mut self) -> Part<'a> {
        self.parts.swap_remove(0)
    }

    pub fn error(&self, files: &[Mapped], bad: Bad) -> Error {
        Error::tensor(&files[bad.file].name, &bad.tensor, bad.what)
    }

    /// The error for a part that no scheme reads.
    pub fn unreadable(&self, part: &Part, settings: &Settings) -> Bad {
        if self.part("trellis").is_some() {
            return part.bad(
                "is of an EXL3 checkpoint, which is not supported: take another quantisation of the model",
            );
        }
        let has_weight = self.part("weight").is_some_and(|w| w.is(&["F32", "F16", "BF16"]));
        if has_weight && part.label != "weight" {
            return part.bad(format!(
                "scales a quantised matrix, but '{}.weight' is stored as plain {}; the file is damaged",
                self.stem,
                self.part("weight").map_or("", |w| w.dtype())
            ));
        }
        let method = match &settings.method {
            Some(method) => format!(" (config.json says '{method}')"),
            None => String::new(),
        };
        let others: Vec<&str> =
            self.parts.iter().filter(|p| p.label != part.label).map(|p| p.entry.name.as_str()).collect();
        let beside = match others.is_empty() {
            true => "nothing that says how it is scaled".to_string(),
            false => others.join(", "),
        };
        part.bad(format!(
            "is stored as {} {:?} beside {beside}; no supported quantisation is like that{method}",
            part.dtype(),
            part.shape
        ))
    }
}

/// Splits a name into that of its matrix, and what it is of it.
fn split(name: &str) -> (&str, &str) {
    if let Some((stem, leaf)) = name.rsplit_once('.') {
        if leaf == "weight" || LEAVES.contains(&leaf) || IGNORED.contains(&leaf) {
            return (stem, leaf);
        }
        // bitsandbytes: NAME.weight.absmax, NAME.weight.quant_state.bitsandbytes__nf4
        if let Some(at) = name.find(".weight.") {
            return (&name[..at], &name[at + 1..]);
        }
    }
    match SUFFIXES.iter().find_map(|s| Some((name.strip_suffix(s)?, *s))) {
        Some((stem, suffix)) if !stem.is_empty() => (stem, suffix),
        _ => (name, ""),
    }
}

/// Every tensor by its matrix, in the order of names.
pub(crate) fn groups(files: &[Mapped], entries: Vec<Vec<Entry>>) -> Vec<Group<'_>> {
    // Some files say `scale` for a matrix's scales; elsewhere that is a tensor of its own.
    let packed: HashSet<String> = entries
        .iter()
        .flatten()
        .filter(|e| !matches!(e.dtype.as_str(), "F32" | "F16" | "BF16"))
        .filter_map(|e| e.name.strip_suffix(".weight").map(str::to_string))
        .collect();
    let mut groups: BTreeMap<String, Vec<Part>> = BTreeMap::new();
    let mut twice = Vec::new();
    for (file, entry) in
        entries.into_iter().enumerate().flat_map(|(i, es)| es.into_iter().map(move |e| (i, e)))
    {
        let (stem, label) = match entry.name.strip_suffix(".scale").filter(|stem| packed.contains(*stem)) {
            Some(stem) => (stem, "weight_scale_inv"),
            None => split(&entry.name),
        };
        let (stem, label) = (stem.to_string(), label.to_string());
        let part = Part::new(files, file, entry, label);
        let parts = groups.entry(stem.clone()).or_default();
        if parts.iter().any(|p| p.label == part.label) {
            twice.push(Group { stem, parts: vec![part] }); // refused where names are compared
        } else {
            parts.push(part);
        }
    }
    let mut groups: Vec<Group> = groups.into_iter().flat_map(|(stem, parts)| apart(stem, parts)).collect();
    groups.append(&mut twice);
    for group in &mut groups {
        // A plain matrix may have scales of its activations.
        if group.parts.iter().filter(|p| !p.is_ignorable()).count() == 1 {
            group.parts.retain(|p| !p.is_ignorable());
        }
    }
    groups
}

/// Tensors that only share a name with a matrix: `NAME.bias` has its own stem, but a bare `NAME` and `NAME.weight` do not.
fn apart(stem: String, parts: Vec<Part<'_>>) -> Vec<Group<'_>> {
    let (bare, dotted): (Vec<_>, Vec<_>) =
        parts.into_iter().partition(|p| p.label.is_empty() || p.label.starts_with('_'));
    [bare, dotted]
        .into_iter()
        .filter(|parts| !parts.is_empty())
        .map(|parts| Group { stem: stem.clone(), parts })
        .collect()
}
