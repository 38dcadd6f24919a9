//! Descriptions of feed-forward blocks and mixtures of experts.

use super::{Backend, Norm};

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Act {
    /// `x * sigmoid(x)`
    Silu,
    /// `x * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`
    Gelu,
    /// `x * (1 + erf(x / sqrt(2))) / 2`
    GeluErf,
    /// `max(x, 0)^2`
    Relu2,
    /// gpt-oss: with `g = min(gate, limit)` and `u = clamp(up, -limit, limit)`, `g * sigmoid(alpha g) * (u + 1)`.
    ClampedSwiglu {
        /// Factor inside of the sigmoid.
        alpha: f32,
        /// Bound of gate and up.
        limit: f32,
    },
    /// Step 3.5: `min(x * sigmoid(x), limit)`, and the other projection is bounded by `-limit` and `limit`.
    CappedSilu {
        /// The bound.
        limit: f32,
    },
    /// Apertus (xIELU, arXiv 2411.13010): `positive x^2 + x / 2` where `x > 0`, else `negative (e^x - 1 - x) + x / 2`.
    Xielu {
        /// Factor of the square.
        positive: f32,
        /// Factor of the exponential.
        negative: f32,
    },
}

/// A feed-forward block: `down . (act(gate . x) * (up . x))`, or without a gate `down . act(up . x)`. Its projections may have biases.
pub struct Glu<W> {
    /// `[intermediate, hidden]`
    pub gate: Option<W>,
    /// `[intermediate, hidden]`
    pub up: W,
    /// `[hidden, intermediate]`
    pub down: W,
    /// The activation.
    pub act: Act,
}

/// A function of what a gate's projection gives.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gate {
    /// `1 / (1 + e^-y)`
    Sigmoid,
    /// `ln(1 + e^y)`
    Softplus,
}

/// A product of two rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Times {
    /// `x * y`
    Itself,
    /// `x * gate(y)`
    Gated(Gate),
    /// `x * gate(y[0])`: a row of `y` is one value.
    GatedByOne(Gate),
    /// `act(x) * y`, as in a feed-forward block.
    Activated(Act),
    /// `act(max(x - bound, 0)) * y`, where `bound = mean(x) + deviations * sqrt(variance(x))` of the row: Gemma 3n's sparse activations. Only
    /// where [`super::Part::SparseActivation`] is supported.
    ActivatedAbove {
        /// Standard deviations above the mean.
        deviations: f32,
        /// The activation.
        act: Act,
    },
    /// `x * sqrt(mean(y^2) / max(mean(x^2), 1e-5))`: the row gets the root mean square of the other one. Only where [`super::Part::Streams`] is
    /// supported.
    Levelled,
}

/// The least mean square that [`Times::Levelled`] divides by.
pub const LEVEL_MIN: f32 = 1e-5;

/// How a router's logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Score {
    /// Softmax over all experts.
    Softmax,
    /// `sigmoid` of each.
    Sigmoid,
    /// SparseMixer-v2 (arXiv 2409.12136), as in evaluation: the largest logit is chosen, and then the largest of the others. Its weight
    /// is `e^l / sum(e^m)` over those not chosen before whose logit `m` is near to `l`: `(l - m) / max(|m|, l)` is at most
    /// [`SPARSE_MIXER_REACH`]. Biases of the choice, groups and the division by the sum are not for it.
    SparseMixer,
}

/// How near logits are that share a weight of [`Score::SparseMixer`]: twice the jitter that Phi-3.5-MoE was trained with.
pub const SPARSE_MIXER_REACH: f32 = 0.02;

/// Chooses the experts of a token and their weights.
pub struct Router<B: Backend> {
    /// `[experts, hidden]`. A bias is part of the logits.
    pub weight: B::Weight,
    /// The router's own norm of the block's input; `None`: it reads what the experts read.
    pub input: Option<Norm<B>>,
    /// Logits to scores.
    pub score: Score,
    /// Added to the scores for the choice only, `[experts]`.
    pub choice_bias: Option<B::Buf>,
    /// `[groups, kept]`: experts are chosen from the `kept` groups of the largest sums of their two best (biased) scores.
    pub groups: Option<[usize; 2]>,
    /// Number of experts, at most [`MAX_EXPERTS`].
    pub experts: usize,
    /// Experts chosen per token, at most [`MAX_TOP_K`].
    pub top_k: usize,
    /// The chosen experts' weights are divided by their sum.
    pub normalise: bool,
    /// Factor of the weights, after that.
    pub scale: f32,
    /// A further factor of each expert `[experts]`.
    pub per_expert: Option<B::Buf>,
    /// The weight multiplies the expert's input instead of its output (Llama 4).
    pub weighs_input: bool,
}

impl<B: Backend> Router<B> {
    /// The `top_k` largest of a softmax over all experts.
    pub fn softmax(weight: B::Weight, experts: usize, top_k: usize, normalise: bool) -> Self {
        Self {
            weight,
            input: None,
            score: Score::Softmax,
            choice_bias: None,
            groups: None,
            experts,
            top_k,
            normalise,
            scale: 1.0,
            per_expert: None,
            weighs_input: false,
        }
    }
}

/// A mixture of experts.
pub struct Moe<B: Backend> {
    /// Chooses the experts.
    pub router: Router<B>,
    /// The routed experts.
    pub experts: Glu<B::Experts>,
    /// An expert that processes every token.
    pub shared: Option<SharedExpert<B>>,
}

/// Maximum number of experts of a layer.
pub const MAX_EXPERTS: usize = 1024;
/// Maximum number of experts per token.
pub const MAX_TOP_K: usize = 32;

/// The shared expert.
pub struct SharedExpert<B: Backend> {
    /// `[hidden]`: the output, biases included, is multiplied by `sigmoid(gate . x)`; `None`: by 1.
    pub gate: Option<B::Buf>,
    /// Its block.
    pub glu: Glu<B::Weight>,
}
