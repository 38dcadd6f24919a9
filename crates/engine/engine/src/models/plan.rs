//! What a forward pass is, as data: a list of residual blocks. An architecture reads a [`Plan`] of names from a file's metadata
//! (`architectures/`), and the loader turns it into the verbs of a
//! [`super::decoder::Decoder`]. Loading, the refusal of unused tensors, memory reports, cache
//! shapes and scratch memory are derived from it.

use octet_compute::backend::{Act, Axes, Gate, HeadOrder, RopePairing, Score, Window};

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Its name, for matrices without `.weight`.
    pub name: String,
    /// Its shape: `[rows, cols]` of a matrix, `[experts, rows, cols]` of a stack.
    pub shape: Vec<usize>,
    /// Only some rows of the tensor in the file, one part after the other; empty: all.
    pub parts: Vec<Part>,
    /// What is done with the values.
    pub change: Change,
}

impl Tensor {
    /// Some values.
    pub fn vector(name: impl Into<String>, len: usize) -> Self {
        Self { name: name.into(), shape: vec![len], parts: Vec::new(), change: Change::None }
    }

    /// A projection.
    pub fn matrix(name: impl Into<String>, rows: usize, cols: usize) -> Self {
        Self { shape: vec![rows, cols], ..Self::vector(name, 0) }
    }

    /// The projections of all experts or heads.
    pub fn stack(name: impl Into<String>, count: usize, rows: usize, cols: usize) -> Self {
        Self { shape: vec![count, rows, cols], ..Self::vector(name, 0) }
    }

    /// Rows `from..from + rows` of this matrix.
    pub fn rows(&self, from: usize, rows: usize) -> Self {
        self.every(from, rows, self.shape[0])
    }

    /// `len` rows from `from` on, and so on every `stride` rows.
    pub fn every(&self, from: usize, len: usize, stride: usize) -> Self {
        let whole = self.shape[0];
        let parts = vec![Part { from, len, stride, whole }];
        Self { shape: vec![whole / stride * len, self.shape[1]], parts, ..self.clone() }
    }

    /// These rows, then those of `other`, which are of the same tensor.
    pub fn then(mut self, other: Self) -> Self {
        self.shape[0] += other.shape[0];
        self.parts.extend(other.parts);
        self
    }

    /// These rows as `count` matrices, each transposed if `transposed`.
    pub fn split(self, count: usize, transposed: bool) -> Self {
        let (rows, cols) = (self.shape[0] / count, self.shape[1]);
        match transposed {
            false => Self { shape: vec![count, rows, cols], ..self },
            true => Self { shape: vec![count, cols, rows], change: Change::Transpose, ..self },
        }
    }

    /// Rows of the tensor in the file.
    pub fn whole(&self) -> usize {
        self.parts.first().map_or(self.shape[0], |p| p.whole)
    }

    /// The runs of rows, in order.
    pub fn runs(&self) -> Vec<std::ops::Range<usize>> {
        self.parts.iter().flat_map(|p| p.runs()).collect()
    }

    /// The same values, changed.
    pub fn change(self, change: Change) -> Self {
        Self { change, ..self }
    }
}

/// Rows of a tensor: `len` from row `from` on, and so on every `stride` rows up to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Part {
    pub from: usize,
    pub len: usize,
    pub stride: usize,
    /// Rows of the whole tensor.
    pub whole: usize,
}

impl Part {
    /// The runs of rows.
    pub fn runs(self) -> impl Iterator<Item = std::ops::Range<usize>> {
        (self.from..self.whole).step_by(self.stride).map(move |from| from..from + self.len)
    }
}

/// What a loader does with the values of a vector.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Change {
    /// Nothing.
    None,
    /// No tensor: all values are this one.
    Constant(f32),
    /// `[channels, taps]` becomes `[taps, channels]`; so does each matrix of a stack that is made of rows.
    Transpose,
    /// Multiplied by this.
    Scale(f32),
    /// Each value so many times.
    Repeat(usize),
}

/// A whole model.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Rows of the embedding table.
    pub vocab: usize,
    /// Tokens to the residual stream.
    pub embed: Embed,
    /// Rotations; a layer names one.
    pub ropes: Vec<RopeTable>,
    /// The residual blocks, in order.
    pub blocks: Vec<Block>,
    /// Number of layers that the blocks belong to.
    pub layers: usize,
    /// The residual stream to logits.
    pub head: Head,
    /// What an encoder has in place of logits; its tokens see each other in both directions.
    pub pool: Option<Pool>,
    /// The block for multi-token prediction.
    pub mtp: Option<Mtp>,
    /// Blocks in the file after the layers, for multi-token prediction.
    pub further: usize,
    /// Gate and up projections of experts in one tensor alternate by rows.
    pub alternating: bool,
    /// Tensors whose values are numbers of this plan.
    pub numbers: Vec<String>,
}

/// The embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Embed {
    /// `[vocabulary, hidden]`
    pub table: Tensor,
    /// Factor of its rows.
    pub scale: f32,
    /// Embeddings of positions `[positions, hidden]`, which are added.
    pub positions: Option<Tensor>,
    /// Embeddings of token types `[types, hidden]`, which are added.
    pub types: Option<Tensor>,
    /// A norm after it.
    pub norm: Option<Norm>,
    /// A second embedding, of which each layer gets a part.
    pub per_layer: Option<PerLayer>,
}

/// What an encoder does with the states of a text after the last norm: one of them, or their mean, goes through these layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Pool {
    /// The state that goes in.
    pub pooling: Pooling,
    /// Projections, in order.
    pub layers: Vec<Dense>,
    /// The result is the score of a pair of texts, and not a vector.
    pub ranks: bool,
}

/// Pooling of the states of a text's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The first token's. Only encoders are trained for it: in a causal model the first token cannot see the others.
    Cls,
    /// The last token's.
    Last,
    /// The mean of all tokens.
    Mean,
}

/// `norm(act(matrix . x))`
#[derive(Debug, Clone, PartialEq)]
pub struct Dense {
    /// `[outputs, inputs]`, perhaps with a bias.
    pub matrix: Tensor,
    /// The activation.
    pub act: DenseAct,
    /// A norm after it.
    pub norm: Option<Norm>,
}

/// An activation of [`Dense`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum DenseAct {
    None,
    Tanh,
    /// `x * (1 + erf(x / sqrt(2))) / 2`
    Gelu,
    /// `x * sigmoid(x)`
    Silu,
}

impl DenseAct {
    /// Applies it to values, in place.
    pub fn apply(self, x: &mut [f32]) {
        let each: fn(f32) -> f32 = match self {
            Self::None => return,
            Self::Tanh => f32::tanh,
            Self::Gelu => octet_compute::reference::gelu,
            Self::Silu => |x| x / (1.0 + (-x).exp()),
        };
        x.iter_mut().for_each(|x| *x = each(*x));
    }
}

/// Embeddings of each layer: `(table[token] * scales[0] + norm(project . h * scales[1])) * scales[2]`, `[layers, width]`.
#[derive(Debug, Clone, PartialEq)]
pub struct PerLayer {
    /// Width of a layer's part.
    pub width: usize,
    /// `[vocabulary, layers * width]`
    pub table: Tensor,
    /// `[layers * width, hidden]`
    pub project: Tensor,
    /// Norm of each part.
    pub norm: Norm,
    /// Factors of the table's rows, of the projection, and of the sum.
    pub scales: [f32; 3],
}

/// The output head.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// The norm before it.
    pub norm: Norm,
    /// `[vocabulary, hidden]`; `None`: the embedding table.
    pub matrix: Option<Tensor>,
    /// Factor of the logits.
    pub scale: f32,
    /// Logits become `cap * tanh(logit / cap)`.
    pub softcap: Option<f32>,
}

/// The multi-token-prediction block (`nextn`): blocks over `fc . [norm(embed(next token)) | norm(hidden)]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Mtp {
    /// Norm of the next token's embedding.
    pub embed_norm: Norm,
    /// Norm of the trunk's hidden state, which its last norm was applied to.
    pub hidden_norm: Norm,
    /// Columns of the projection that take the embedding `[hidden, hidden]`, and those that take the hidden state.
    pub fc: Tensor,
    /// One layer.
    pub blocks: Vec<Block>,
    /// Norm before the shared head.
    pub norm: Norm,
}

/// `h = norm((h + add * post(sum of branches)) * keep)`
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    /// The layer that it belongs to.
    pub layer: usize,
    /// What is added up; mostly one.
    pub branches: Vec<Branch>,
    /// A norm of the sum.
    pub post: Option<Norm>,
    /// Factor of the sum.
    pub add: f32,
    /// Factor of the residual stream afterwards.
    pub keep: f32,
    /// A norm of the residual stream afterwards (BERT).
    pub norm: Option<Norm>,
}

/// `post(op(pre(h)))`
#[derive(Debug, Clone, PartialEq)]
pub struct Branch {
    /// The norm before it.
    pub pre: Option<Norm>,
    /// The operation.
    pub op: Op,
    /// A norm after it.
    pub post: Option<Norm>,
}

/// A norm over rows.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// `[len]`
    pub weight: Tensor,
    /// `[len]`
    pub bias: Option<Tensor>,
    /// Added to the mean square.
    pub eps: f32,
    /// LayerNorm: the mean is subtracted first.
    pub centred: bool,
    /// Length of a row.
    pub len: usize,
}

impl Block {
    /// `h += op(pre(h))`
    pub fn new(layer: usize, pre: Norm, op: Op) -> Self {
        Self {
            layer,
            branches: vec![Branch { pre: Some(pre), op, post: None }],
            post: None,
            add: 1.0,
            keep: 1.0,
            norm: None,
        }
    }

    /// `h += op(h)`
    pub fn plain(layer: usize, op: Op) -> Self {
        let branches = vec![Branch { pre: None, op, post: None }];
        Self { layer, branches, post: None, add: 1.0, keep: 1.0, norm: None }
    }

    /// The same with a norm of the result.
    pub fn post(self, norm: Norm) -> Self {
        Self { post: Some(norm), ..self }
    }

    /// The same with another factor of the result.
    pub fn scaled(self, add: f32) -> Self {
        Self { add, ..self }
    }
}

/// What a branch computes.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Softmax attention.
    Attention(Box<Attention>),
    /// Gated DeltaNet, Kimi Delta Attention.
    Delta(Box<Delta>),
    /// Mamba-2.
    Ssm(Box<Ssm>),
    /// A gated short convolution.
    ShortConv(ShortConv),
    /// A dense feed-forward block.
    Glu(Glu),
    /// A mixture of experts.
    Moe(Box<Moe>),
    /// `out . (act(gate . h) * e)` with this layer's part `e` of [`PerLayer`].
    PerLayer {
        /// `[width, hidden]`
        gate: Tensor,
        /// `[hidden, width]`
        out: Tensor,
        /// The activation.
        act: Act,
    },
}

/// Softmax attention; see [`octet_compute::backend::Attention`].
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Attention {
    pub project: Project,
    pub heads: usize,
    pub kv_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub sinks: Option<Tensor>,
    /// The query projection has a gate after each head.
    pub gated: bool,
    /// A gate of the output with a projection of its own: `[heads * v_dim, hidden]`, or of whole heads `[heads, hidden]`.
    pub gate: Option<(Tensor, Gate)>,
    pub norms: [Option<Norm>; 3],
    pub norm_last: bool,
    /// Index in [`Plan::ropes`].
    pub rope: Option<usize>,
    pub window: Window,
    /// Tokens of an image see each other.
    pub two_way: bool,
    pub position_scale: Option<[f32; 3]>,
    pub value_scale: f32,
    pub keeps: Keeps,
    pub out: Tensor,
}

/// Projections of queries, keys and values.
#[allow(clippy::large_enum_variant)] // one a layer
#[derive(Debug, Clone, PartialEq)]
pub enum Project {
    /// `k` absent: another layer's keys and values; `v` alone absent: the keys before their norm.
    #[allow(missing_docs)]
    Direct { q: Tensor, k: Option<Tensor>, v: Option<Tensor> },
    /// Multi-head latent attention (arXiv 2405.04434), absorbed: one key head of `[latent | rotated]`, whose first part is also the value.
    Latent {
        /// A projection of low rank before that of queries, with the norm between them.
        down_q: Option<(Tensor, Norm)>,
        /// `[heads * (plain + rotated), hidden or rank]`
        q: Tensor,
        /// `[latent + rotated, hidden]`
        down_kv: Tensor,
        /// Query heads to the latent space: `[heads, latent, plain]`.
        heads_k: Tensor,
        /// From the latent space to values: `[heads, value, latent]`.
        heads_v: Tensor,
        /// Rotated dimensions.
        rotated: usize,
        /// Dimensions of a head of `heads_v`.
        value: usize,
    },
}

/// Whose keys and values a layer attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeps {
    /// Its own.
    Own,
    /// Those of another layer. With projections of its own, they are overwritten.
    Of(usize),
}

/// Gated DeltaNet, or Kimi Delta Attention; see [`octet_compute::backend::Gdn`].
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Delta {
    /// One projection of queries, keys and values, or three.
    pub qkv: Vec<Tensor>,
    pub z: Tensor,
    pub beta: Tensor,
    pub alpha: Tensor,
    /// Projections of low rank before `z` and `alpha`.
    pub down: Option<[Tensor; 2]>,
    /// The taps, in as many parts as `qkv`.
    pub conv: Vec<Tensor>,
    /// Each row of the state decays by itself: `alpha` has a row for it, and so has `dt_bias`.
    pub row_decay: bool,
    pub sigmoid_gate: bool,
    pub a: Tensor,
    pub dt_bias: Tensor,
    pub norm: Norm,
    pub taps: usize,
    pub k_heads: usize,
    pub v_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    pub order: HeadOrder,
    pub out: Tensor,
}

impl Delta {
    /// Channels of the convolution.
    pub fn channels(&self) -> usize {
        2 * self.k_heads * self.k_dim + self.v_heads * self.v_dim
    }

    /// What such layers are called.
    pub fn name(&self) -> &'static str {
        if self.row_decay { "Kimi Delta Attention" } else { "Gated DeltaNet" }
    }

    /// Decays of a token.
    pub fn decays(&self) -> usize {
        self.v_heads * if self.row_decay { self.k_dim } else { 1 }
    }
}

/// Mamba-2; see [`octet_compute::backend::Ssm`].
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Ssm {
    pub z: Tensor,
    pub xbc: Tensor,
    pub dt: Tensor,
    pub conv: Tensor,
    pub conv_bias: Option<Tensor>,
    pub a: Tensor,
    pub dt_bias: Tensor,
    pub d: Tensor,
    pub norm: Option<Norm>,
    pub taps: usize,
    pub groups: usize,
    pub heads: usize,
    pub dim: usize,
    pub state: usize,
    pub out: Tensor,
}

/// A gated short convolution; see [`octet_compute::backend::ShortConv`].
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct ShortConv {
    /// `[3 * width, hidden]`
    pub bcx: Tensor,
    pub conv: Tensor,
    pub taps: usize,
    pub width: usize,
    pub out: Tensor,
}

/// `down . (act(gate . x) * (up . x))`, or `down . act(up . x)`; see [`octet_compute::backend::Glu`].
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Glu {
    pub gate: Option<Tensor>,
    pub up: Tensor,
    pub down: Tensor,
    pub act: Act,
    /// Rows of `up`.
    pub inner: usize,
}

/// A mixture of experts; see [`octet_compute::backend::Moe`].
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Moe {
    pub router: Router,
    pub experts: Glu,
    /// The shared expert, and its gate.
    pub shared: Option<(Option<Tensor>, Glu)>,
}

/// See [`octet_compute::backend::Router`].
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct Router {
    pub matrix: Tensor,
    pub input: Option<Norm>,
    pub score: Score,
    pub choice_bias: Option<Tensor>,
    pub groups: Option<[usize; 2]>,
    pub experts: usize,
    pub top_k: usize,
    pub normalise: bool,
    pub scale: f32,
    pub per_expert: Option<Tensor>,
    pub weighs_input: bool,
}

/// A rotation of queries and keys.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Rotated dimensions of each head.
    pub dims: usize,
    /// How dimensions are paired.
    pub pairing: RopePairing,
    /// Radians per position of each pair `[dims / 2]`.
    pub inv_freq: Vec<f32>,
    /// Factor of sines and cosines.
    pub scale: f32,
    /// Pairs that turn by several coordinates.
    pub axes: Option<Axes>,
}
