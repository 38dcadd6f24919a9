//! Projectors of published models: the keys and tensors of their files as llama.cpp's converter writes them in F16, to know the memory of images
//! before a download. Sizes are those of the published config.json.

use octet_weights::{GgmlType, Metadata, Model, TensorInfo, Value};

use crate::Error;
use crate::known;
use crate::plan::{Fill, Planned};
use crate::source::SyntheticSource;

/// What towers of one kind differ in.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Tower {
    kind: Kind,
    hidden: usize,
    layers: usize,
    heads: usize,
    inner: usize,
    /// Blocks whose results are added to the text's first layers.
    deep: &'static [usize],
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Qwen3,
    Gemma3,
    Gemma4,
    /// Of the smaller models: projections are bounded, and tokens are not scaled.
    Gemma4Small,
    Pixtral,
}

/// SigLIP so400m's sizes, which larger models have.
const LARGE: Tower = Tower { kind: Kind::Qwen3, hidden: 1152, layers: 27, heads: 16, inner: 4304, deep: &[] };
const MIDDLE: Tower = Tower { hidden: 1024, layers: 24, inner: 4096, ..LARGE };
const SMALL: Tower = Tower { hidden: 768, layers: 12, heads: 12, inner: 3072, ..LARGE };

/// The tower of a published model, by the names of [`known`].
fn tower(name: &str) -> Option<Tower> {
    let wanted = name.to_ascii_lowercase().replace([':', '_'], "-");
    Some(match wanted.as_str() {
        "qwen3.5-0.8b" => SMALL,
        "qwen3.5-2b" | "qwen3.5-4b" => MIDDLE,
        name if name.starts_with("qwen3.5-") || name.starts_with("qwen3.6-") => LARGE,
        "qwen3-vl-8b" | "qwen3-vl-30b-a3b" => Tower { deep: &[8, 16, 24], ..LARGE },
        "ministral3-3b" | "ministral3-8b" | "ministral3-14b" => Tower { kind: Kind::Pixtral, ..MIDDLE },
        "gemma4-e2b" | "gemma4-e4b" => Tower { kind: Kind::Gemma4Small, layers: 16, ..SMALL },
        "gemma3-4b" | "gemma3-12b" | "gemma3-27b" => Tower { kind: Kind::Gemma3, ..LARGE },
        "gemma4-26b-a4b" | "gemma4-31b" => Tower { kind: Kind::Gemma4, ..LARGE },
        _ => return None,
    })
}

/// The projector of a published model, without useful values; `None` if it has none that is known.
///
/// # Errors
/// If no such model is known.
pub fn projector(name: &str) -> Result<Option<Model>, Error> {
    let (shape, Some(tower)) = (known::shape(name)?, tower(name)) else { return Ok(None) };
    let mut file = File { tower, out: shape.hidden, tensors: Vec::new() };
    file.fill();
    let origin = format!("projector of {}", shape.name);
    let source = SyntheticSource::new(file.tensors, 0, 0.0);
    Ok(Some(Model::new(origin.clone(), metadata(&origin, tower, shape.hidden), Box::new(source))?))
}

fn metadata(origin: &str, t: Tower, out: usize) -> Metadata {
    let mut m = Metadata::new(origin);
    let text = |s: &str| Value::Str(s.into());
    m.insert("general.architecture", text("clip"));
    m.insert("general.type", text("mmproj"));
    m.insert("clip.has_vision_encoder", Value::Bool(true));
    let mut put = |key: &str, value| {
        m.insert(&format!("clip.vision.{key}"), value);
    };
    let number = |n: usize| Value::U64(n as u64);
    let (kind, patch, side) = match t.kind {
        Kind::Qwen3 => ("qwen3vl_merger", 16, 768),
        Kind::Gemma3 => ("gemma3", 14, 896),
        Kind::Gemma4 | Kind::Gemma4Small => ("gemma4v", 16, 224),
        Kind::Pixtral => ("pixtral", 14, 1540),
    };
    put("projector_type", text(kind));
    put("embedding_length", number(t.hidden));
    put("feed_forward_length", number(t.inner));
    put("block_count", number(t.layers));
    put("attention.head_count", number(t.heads));
    put("attention.layer_norm_epsilon", Value::F64(1e-6));
    put("patch_size", number(patch));
    put("image_size", number(side));
    put("projection_dim", number(out));
    put("image_mean", Value::Floats(vec![0.5; 3]));
    put("image_std", Value::Floats(vec![0.5; 3]));
    match t.kind {
        Kind::Qwen3 | Kind::Pixtral => put("spatial_merge_size", number(2)),
        Kind::Gemma4 | Kind::Gemma4Small => put("projector.scale_factor", number(3)),
        Kind::Gemma3 => {}
    }
    if !t.deep.is_empty() {
        let deep = (0..t.layers).map(|i| Value::Bool(t.deep.contains(&i))).collect();
        put("is_deepstack_layers", Value::Array(deep));
    }
    let act = if t.kind == Kind::Pixtral { "clip.use_silu" } else { "clip.use_gelu" };
    m.insert(act, Value::Bool(true));
    m
}

/// A projector's tensors.
struct File {
    tower: Tower,
    /// Width of the text model.
    out: usize,
    tensors: Vec<Planned>,
}

impl File {
    fn push(&mut self, name: impl Into<String>, ty: GgmlType, shape: &[usize]) {
        let info = TensorInfo { name: name.into(), ty, shape: shape.to_vec() };
        self.tensors.push(Planned { info, fill: Fill::Random(0.02) });
    }

    fn matrix(&mut self, name: &str, shape: &[usize]) {
        self.push(format!("{name}.weight"), GgmlType::F16, shape);
    }

    /// A matrix with its bias.
    fn linear(&mut self, name: &str, rows: usize, cols: usize) {
        self.matrix(name, &[rows, cols]);
        self.vector(&format!("{name}.bias"), rows);
    }

    fn vector(&mut self, name: &str, len: usize) {
        self.push(name, GgmlType::F32, &[len]);
    }

    /// A norm with its bias.
    fn layer_norm(&mut self, name: &str, len: usize) {
        self.vector(&format!("{name}.weight"), len);
        self.vector(&format!("{name}.bias"), len);
    }

    fn fill(&mut self) {
        for i in 0..self.tower.layers {
            let block = format!("v.blk.{i}");
            match self.tower.kind {
                Kind::Qwen3 => self.qwen_block(&block),
                Kind::Gemma3 => self.siglip_block(&block),
                Kind::Gemma4 | Kind::Gemma4Small => self.gemma4_block(&block),
                Kind::Pixtral => self.pixtral_block(&block),
            }
        }
        let (h, out) = (self.tower.hidden, self.out);
        match self.tower.kind {
            Kind::Qwen3 => {
                self.matrix("v.patch_embd", &[h, 3, 16, 16]);
                self.push("v.patch_embd.weight.1", GgmlType::F16, &[h, 3, 16, 16]);
                self.vector("v.patch_embd.bias", h);
                self.push("v.position_embd.weight", GgmlType::F32, &[48 * 48, h]);
                self.layer_norm("v.post_ln", h);
                self.linear("mm.0", 4 * h, 4 * h);
                self.linear("mm.2", out, 4 * h);
                for i in self.tower.deep {
                    let name = |n: &str| format!("v.deepstack.{i}.{n}");
                    self.layer_norm(&name("norm"), 4 * h);
                    self.linear(&name("fc1"), 4 * h, 4 * h);
                    self.linear(&name("fc2"), out, 4 * h);
                }
            }
            Kind::Gemma3 => {
                self.push("v.patch_embd.weight", GgmlType::F32, &[h, 3, 14, 14]);
                self.vector("v.patch_embd.bias", h);
                self.push("v.position_embd.weight", GgmlType::F32, &[64 * 64, h]);
                self.layer_norm("v.post_ln", h);
                self.vector("mm.soft_emb_norm.weight", h);
                self.matrix("mm.input_projection", &[h, out]);
            }
            kind @ (Kind::Gemma4 | Kind::Gemma4Small) => {
                self.matrix("v.patch_embd", &[h, 3, 16, 16]);
                self.push("v.position_embd.weight", GgmlType::F32, &[2, 10_240, h]);
                if kind == Kind::Gemma4 {
                    self.vector("v.std_bias", h);
                    self.vector("v.std_scale", h);
                }
                self.matrix("mm.input_projection", &[out, h]);
            }
            Kind::Pixtral => {
                self.matrix("v.patch_embd", &[h, 3, 14, 14]);
                self.vector("v.pre_ln.weight", h);
                self.vector("v.token_embd.img_break", out);
                self.vector("mm.input_norm.weight", h);
                self.matrix("mm.patch_merger", &[h, 4 * h]);
                self.matrix("mm.1", &[out, h]);
                self.matrix("mm.2", &[out, out]);
            }
        }
    }

    fn qwen_block(&mut self, block: &str) {
        let Tower { hidden: h, inner, .. } = self.tower;
        self.layer_norm(&format!("{block}.ln1"), h);
        self.linear(&format!("{block}.attn_qkv"), 3 * h, h);
        self.linear(&format!("{block}.attn_out"), h, h);
        self.layer_norm(&format!("{block}.ln2"), h);
        self.linear(&format!("{block}.ffn_up"), inner, h);
        self.linear(&format!("{block}.ffn_down"), h, inner);
    }

    fn siglip_block(&mut self, block: &str) {
        let Tower { hidden: h, inner, .. } = self.tower;
        self.layer_norm(&format!("{block}.ln1"), h);
        for name in ["attn_q", "attn_k", "attn_v", "attn_out"] {
            self.linear(&format!("{block}.{name}"), h, h);
        }
        self.layer_norm(&format!("{block}.ln2"), h);
        self.linear(&format!("{block}.ffn_up"), inner, h);
        self.linear(&format!("{block}.ffn_down"), h, inner);
    }

    fn pixtral_block(&mut self, block: &str) {
        let Tower { hidden: h, inner, .. } = self.tower;
        for name in ["ln1", "ln2"] {
            self.vector(&format!("{block}.{name}.weight"), h);
        }
        for name in ["attn_q", "attn_k", "attn_v", "attn_out"] {
            self.matrix(&format!("{block}.{name}"), &[h, h]);
        }
        for name in ["ffn_gate", "ffn_up"] {
            self.matrix(&format!("{block}.{name}"), &[inner, h]);
        }
        self.matrix(&format!("{block}.ffn_down"), &[h, inner]);
    }

    fn gemma4_block(&mut self, block: &str) {
        let Tower { hidden: h, inner, heads, .. } = self.tower;
        for name in ["ln1", "attn_post_norm", "ln2", "ffn_post_norm"] {
            self.vector(&format!("{block}.{name}.weight"), h);
        }
        for name in ["attn_q_norm", "attn_k_norm"] {
            self.vector(&format!("{block}.{name}.weight"), h / heads);
        }
        for name in ["attn_q", "attn_k", "attn_v", "attn_out"] {
            self.matrix(&format!("{block}.{name}"), &[h, h]);
        }
        self.matrix(&format!("{block}.ffn_gate"), &[inner, h]);
        self.matrix(&format!("{block}.ffn_up"), &[inner, h]);
        self.matrix(&format!("{block}.ffn_down"), &[h, inner]);
        if self.tower.kind != Kind::Gemma4Small {
            return;
        }
        for name in ["attn_q", "attn_k", "attn_v", "attn_out", "ffn_gate", "ffn_up", "ffn_down"] {
            for end in ["input_min", "input_max", "output_min", "output_max"] {
                self.vector(&format!("{block}.{name}.{end}"), 1);
            }
        }
    }
}
