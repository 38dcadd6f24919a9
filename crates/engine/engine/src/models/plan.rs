//! What a forward pass is, as data: a list of residual blocks. An architecture reads a [`Plan`] of names from a file's metadata
//! (`architectures/`), and the loader turns it into the verbs of a
//! [`super::decoder::Decoder`]. Loading, the refusal of unused tensors, memory reports, cache
//! shapes and scratch memory are derived from it.

use octet_compute::backend::{Act, Axes, Gate, HeadOrder, RopePairing, Score, Window};

pub use super::tensor::{Change, Part, Tensor};

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
    /// Residual streams beside that of the blocks.
    pub streams: Option<Streams>,
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
    /// Tensors that are not loaded: their values are numbers of this plan, or the model does not use them.
    pub aside: Vec<String>,
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
    /// `[rows, layers * width]`; tokens that have no row get the first one.
    pub table: Tensor,
    /// `[layers * width, hidden]`
    pub project: Tensor,
    /// Norm of each part.
    pub norm: Norm,
    /// Factors of the table's rows, of the projection, and of the sum.
    pub scales: [f32; 3],
}

/// Residual streams of which one goes through the blocks (AltUp, arXiv 2301.13310). The others begin as projections of the embedding, with its
/// root mean square. Each layer predicts all streams from all, and corrects them by what its blocks change. At last the others are projected
/// again, get the root mean square of the first, and the mean of all goes into the head.
#[derive(Debug, Clone, PartialEq)]
pub struct Streams {
    /// Streams, with that of the blocks.
    pub count: usize,
    /// The embedding to the other streams: `[count - 1, hidden, hidden]`.
    pub expand: Tensor,
    /// The other streams to what goes into the mean.
    pub merge: Tensor,
    /// Each layer's part.
    pub layers: Vec<AltUp>,
}

/// A layer's part of [`Streams`]; see [`octet_compute::backend::AltUp`]. Then `post(out . (act(gate . (scale * h)) * e))` is added to the other streams,
/// with this layer's part `e` of [`PerLayer`].
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub struct AltUp {
    /// Reads `norm(h)`: `[count, hidden]`.
    pub router: Tensor,
    pub norm: Norm,
    pub predict: Tensor,
    pub correct: Tensor,
    pub scale: Tensor,
    pub gate: Tensor,
    pub out: Tensor,
    pub act: Act,
    pub post: Norm,
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
    /// One with a gate whose activation is that of what exceeds the mean of a token's gates by so many standard deviations.
    SparseGlu(Glu, f32),
    /// `up . down . x`
    #[allow(missing_docs)]
    LowRank { down: Tensor, up: Tensor },
    /// `norm(x)`
    Norm(Norm),
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
