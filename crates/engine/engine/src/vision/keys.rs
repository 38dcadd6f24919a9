//! Reads a projector's metadata with bounds, for `towers/`, and the parts that towers share.

use octet_compute::backend::{Act, Axes, RopePairing, Window};
use octet_weights::{Metadata, Model, Value};

use super::plan::{PatchEmbed, Tower};
use crate::Error;
use crate::models::keys::{MAX_DIM, MAX_HEAD_DIM};
use crate::models::plan::*;

const MAX_LAYERS: usize = 256;

/// A projector's metadata.
pub struct Keys<'a> {
    /// The file.
    pub model: &'a Model,
    /// Width of a patch's state.
    pub hidden: usize,
    /// Width of the feed-forward blocks.
    pub inner: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Pixels of a patch's side.
    pub patch: usize,
    /// Width of the text model.
    pub out: usize,
    /// Added to the variance in norms.
    pub eps: f32,
    meta: &'a Metadata,
}

impl<'a> Keys<'a> {
    /// Reads the sizes that every tower has; those of blocks are 0 where there need be none.
    pub fn new(model: &'a Model, has_blocks: bool) -> Result<Self, Error> {
        let meta = &model.metadata;
        let mut k =
            Self { model, hidden: 0, inner: 0, layers: 0, heads: 0, patch: 0, out: 0, eps: 0.0, meta };
        k.hidden = k.size("embedding_length", MAX_DIM)?;
        if has_blocks {
            k.inner = k.size("feed_forward_length", MAX_DIM)?;
            k.layers = k.size("block_count", MAX_LAYERS)?;
            k.heads = k.size("attention.head_count", 1024)?;
        }
        k.patch = k.size("patch_size", 64)?;
        k.out = k.size("projection_dim", MAX_DIM)?;
        k.eps = meta.f32(&name("attention.layer_norm_epsilon"))?;
        if has_blocks && !k.has_usable_heads() {
            let what =
                format!("is {}, which does not divide {} into heads of a multiple of 4", k.heads, k.hidden);
            return Err(k.bad("attention.head_count", what));
        }
        if !(0.0..1.0).contains(&k.eps) {
            return Err(k.bad("attention.layer_norm_epsilon", format!("is {}", k.eps)));
        }
        Ok(k)
    }

    fn has_usable_heads(&self) -> bool {
        self.hidden.is_multiple_of(self.heads) && self.dim() <= MAX_HEAD_DIM && self.dim().is_multiple_of(4)
    }

    /// A key with a value that cannot be used.
    pub fn bad(&self, key: &str, what: String) -> Error {
        octet_weights::Error::key(self.meta.file(), &name(key), what).into()
    }

    /// A value.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.meta.get(&name(key))
    }

    /// A number from 1 to `max`.
    pub fn size(&self, key: &str, max: usize) -> Result<usize, Error> {
        match self.meta.u32(&name(key))? as usize {
            n if (1..=max).contains(&n) => Ok(n),
            n => Err(self.bad(key, format!("is {n}; expected 1 to {max}"))),
        }
    }

    /// The same, if the key is present.
    pub fn opt_size(&self, key: &str, max: usize) -> Result<Option<usize>, Error> {
        if self.meta.get(&name(key)).is_none() { Ok(None) } else { self.size(key, max).map(Some) }
    }

    /// A key of the whole file that is true or false; absent: false.
    pub fn flag(&self, key: &str) -> Result<bool, Error> {
        match self.meta.get(key) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => {
                let what = "is neither true nor false";
                Err(octet_weights::Error::key(self.meta.file(), key, what).into())
            }
        }
    }

    /// Queries and keys are as in a checkpoint: a dimension is paired with the one half a head further.
    pub fn has_halves(&self) -> bool {
        self.meta.get(&name("rope_pairing")) == Some(&Value::Str("half".into()))
    }

    /// Positions of columns and rows are pairs, as in a checkpoint.
    pub fn has_pairs(&self) -> bool {
        self.meta.get(&name("position_order")) == Some(&Value::Str("pairs".into()))
    }

    /// True or false for each block, if the key is present.
    pub fn pattern(&self, key: &str) -> Result<Vec<bool>, Error> {
        let wrong = || self.bad(key, format!("is not an array of {} booleans", self.layers));
        match self.meta.get(&name(key)) {
            None => Ok(vec![false; self.layers]),
            Some(Value::Array(v)) if v.len() == self.layers => {
                v.iter().map(|v| if let Value::Bool(b) = v { Ok(*b) } else { Err(wrong()) }).collect()
            }
            Some(_) => Err(wrong()),
        }
    }

    /// Means and deviations of the channels.
    pub fn normal(&self) -> Result<[[f32; 3]; 2], Error> {
        let read = |key: &str| match self.meta.get(&name(key)) {
            Some(Value::Floats(v)) if v.len() == 3 && v.iter().all(|x| (0.0..=1.0).contains(x)) => {
                Ok([v[0], v[1], v[2]].map(|x| x as f32))
            }
            _ => Err(self.bad(key, "is not an array of three numbers from 0 to 1".into())),
        };
        let [mean, std] = [read("image_mean")?, read("image_std")?];
        match std.contains(&0.0) {
            true => Err(self.bad("image_std", "has a 0".into())),
            false => Ok([mean, std]),
        }
    }

    /// Rows of a tensor `[.., rows, cols]`.
    pub fn rows(&self, tensor: &str, cols: usize) -> Result<usize, Error> {
        let what = match self.model.info(tensor).map(|t| &t.shape[..]) {
            Some([.., rows, c]) if *c == cols && (1..=MAX_DIM).contains(rows) => return Ok(*rows),
            Some(shape) => format!("has shape {shape:?}; expected rows of {cols}"),
            None => "is missing".into(),
        };
        Err(octet_weights::Error::tensor(&self.model.origin, tensor, what).into())
    }

    /// Dimensions of a head.
    pub fn dim(&self) -> usize {
        self.hidden / self.heads
    }

    /// Whether the file has this tensor.
    pub fn has(&self, tensor: &str) -> bool {
        self.model.info(tensor).is_some()
    }

    /// LayerNorm `{stem}` with a bias.
    pub fn layer_norm(&self, stem: &str, len: usize) -> Norm {
        let bias = Some(Tensor::vector(format!("{stem}.bias"), len));
        Norm { bias, centred: true, ..self.rms_norm(stem, len) }
    }

    /// RMS norm `{stem}`.
    pub fn rms_norm(&self, stem: &str, len: usize) -> Norm {
        let weight = Tensor::vector(format!("{stem}.weight"), len);
        Norm { weight, bias: None, eps: self.eps, centred: false, len }
    }

    /// LayerNorm with what PyTorch adds to the variance by itself.
    pub fn torch_norm(&self, stem: &str, len: usize) -> Norm {
        Norm { eps: 1e-5, ..self.layer_norm(stem, len) }
    }

    /// RMS norm without a weight.
    pub fn plain_norm(&self, len: usize) -> Norm {
        Norm { weight: Tensor::vector("", len).change(Change::Constant(1.0)), ..self.rms_norm("", len) }
    }

    /// Attention of block `i` to the whole image: separate projections, or rows of one.
    pub fn attention(&self, i: usize) -> Attention {
        let (h, name) = (self.hidden, |n: &str| format!("v.blk.{i}.{n}"));
        let [q, k, v] = match self.has(&name("attn_qkv.weight")) {
            true => [0, 1, 2].map(|part| Tensor::matrix(name("attn_qkv"), 3 * h, h).rows(part * h, h)),
            false => ["attn_q", "attn_k", "attn_v"].map(|n| Tensor::matrix(name(n), h, h)),
        };
        Attention {
            project: Project::Direct { q, k: Some(k), v: Some(v) },
            heads: self.heads,
            kv_heads: self.heads,
            k_dim: self.dim(),
            v_dim: self.dim(),
            scale: 1.0 / (self.dim() as f32).sqrt(),
            softcap: None,
            sinks: None,
            gated: false,
            gate: None,
            norms: [None, None, None],
            norm_last: false,
            rope: None,
            window: Window::All,
            two_way: true,
            position_scale: None,
            value_scale: 1.0,
            keeps: Keeps::Own,
            out: Tensor::matrix(name("attn_out"), h, h),
        }
    }

    /// The feed-forward block of block `i`, gated if the file has a gate.
    pub fn glu(&self, i: usize, act: Act) -> Glu {
        self.glu_of(i, self.inner, act)
    }

    /// The same with another width.
    pub fn glu_of(&self, i: usize, inner: usize, act: Act) -> Glu {
        let name = |n: &str| format!("v.blk.{i}.ffn_{n}");
        let up = |n: &str| Tensor::matrix(name(n), inner, self.hidden);
        Glu {
            gate: self.has(&format!("{}.weight", name("gate"))).then(|| up("gate")),
            up: up("up"),
            down: Tensor::matrix(name("down"), self.hidden, inner),
            act,
            inner,
        }
    }

    /// Blocks of attention and feed-forward with LayerNorms before them.
    pub fn pre_norm_blocks(&self, act: Act, rope: Option<usize>) -> Vec<Block> {
        let norm = |i: usize, n: &str| self.layer_norm(&format!("v.blk.{i}.{n}"), self.hidden);
        let of = |i: usize| {
            let attention = Attention { rope, ..self.attention(i) };
            [
                Block::new(i, norm(i, "ln1"), Op::Attention(Box::new(attention))),
                Block::new(i, norm(i, "ln2"), Op::Glu(self.glu(i, act))),
            ]
        };
        (0..self.layers).flat_map(of).collect()
    }

    /// A rotation whose first half of the pairs turns by one coordinate, the second by another (1 is the row, 2 the column); each with the
    /// frequencies `base^(-2j / (dim / 2))`. The two halves of a head are paired within themselves where `apart`.
    pub fn rope(&self, base: f32, axes: [u8; 2], apart: bool) -> RopeTable {
        let (dims, pairs) = (self.dim(), self.dim() / 4);
        let freq = |j: usize| 1.0 / base.powf(2.0 * j as f32 / (dims / 2) as f32);
        let of_pair = axes.into_iter().flat_map(|axis| std::iter::repeat_n(axis, pairs)).collect();
        RopeTable {
            dims,
            pairing: RopePairing::Half,
            inv_freq: (0..2 * pairs).map(|j| freq(j % pairs)).collect(),
            scale: 1.0,
            axes: Some(Axes { of_pair, parts: if apart { 2 } else { 1 } }),
        }
    }

    /// These blocks as a plan without a vocabulary.
    pub fn blocks(&self, ropes: Vec<RopeTable>, blocks: Vec<Block>) -> Plan {
        let none = || Tensor::matrix("", 0, self.hidden);
        Plan {
            hidden: self.hidden,
            vocab: 0,
            embed: Embed {
                table: none(),
                scale: 1.0,
                positions: None,
                types: None,
                norm: None,
                per_layer: None,
            },
            ropes,
            blocks,
            streams: None,
            layers: self.layers,
            head: Head { norm: self.plain_norm(self.hidden), matrix: None, scale: 1.0, softcap: None },
            pool: None,
            mtp: None,
            further: 0,
            alternating: false,
            aside: Vec::new(),
        }
    }

    /// Whether the projection of patches `name` has weights for a second frame of a video.
    pub fn has_frames(&self, name: &str) -> bool {
        let shape = self.model.info(&format!("{name}.weight")).map(|t| &t.shape[..]);
        let is_whole = matches!(shape, Some([rows, 2, _, _]) if *rows == 3 * self.hidden);
        is_whole || self.has(&format!("{name}.weight.1"))
    }

    /// The projection of patches.
    pub fn patch_embed(&self) -> PatchEmbed {
        let name = "v.patch_embd".to_string();
        let channels_last =
            self.meta.get(&self::name("patch_order")) == Some(&Value::Str("channels last".into()));
        let norms = [None, None, None];
        PatchEmbed { bias: self.has(&format!("{name}.bias")), name, channels_last, norms }
    }
}

fn name(key: &str) -> String {
    format!("clip.vision.{key}")
}

/// A plan of a tower.
pub type Read = fn(&Keys) -> Result<Tower, Error>;
