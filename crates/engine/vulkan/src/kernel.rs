//! The kernels by name: their SPIR-V, and how many buffers each binds. Compiled from `shaders/` by `build-shaders.sh`.

/// Most buffers of a kernel.
pub(crate) const BUFFERS_MAX: usize = 16;

macro_rules! kernels {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $buffers:literal;)*) => {
        /// A kernel of `shaders/`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) enum Kernel {
            $($(#[$doc])* $variant,)*
        }

        impl Kernel {
            /// The file's name without its ending.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// Buffers that it binds, from 0 on.
            pub(crate) fn buffers(self) -> usize {
                match self { $(Self::$variant => $buffers,)* }
            }

            /// Its SPIR-V; `dot`: with the instruction that multiplies four bytes.
            pub(crate) fn spirv(self, dot: bool) -> Vec<u32> {
                let bytes: &[u8] = match (self, dot) {
                    $((Self::$variant, true) => include_bytes!(concat!("../spirv/", $name, ".dot.spv")),
                      (Self::$variant, false) => include_bytes!(concat!("../spirv/", $name, ".spv")),)*
                };
                bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect()
            }
        }

        /// The SPIR-V of all kernels.
        pub(crate) fn all_spirv() -> impl Iterator<Item = &'static [u8]> {
            let all = [$([
                include_bytes!(concat!("../spirv/", $name, ".dot.spv")) as &[u8],
                include_bytes!(concat!("../spirv/", $name, ".spv")) as &[u8],
            ],)*];
            all.into_iter().flatten()
        }
    };
}

kernels! {
    /// Projections; constants: type of the weights, tokens of a workgroup, whether experts are chosen by tiles.
    Linear, "linear", 13;
    /// Projections of many tokens, of quantised weights; buffers and constants: as `Linear`.
    LinearTile, "linear_tile", 13;
    /// Norm, activation or neither, then 8-bit quantisation; constants: mode, whether to quantise, whether to write or to add f32, activation.
    Norm, "norm", 7;
    /// Sums, products and activations of elements; constants: mode, -, -, activation.
    Map, "map", 2;
    /// Products of rows that depend on whole rows; constants: mode, -, -, activation.
    Rows, "rows", 2;
    /// Several residual streams; constants: mode.
    Streams, "streams", 6;
    /// A projection of each head; constants: type of the weights, tokens.
    PerHead, "per_head", 7;
    /// A projection of a few tokens that completes rows, and their norm; constants: type of the weights, tokens.
    LinearNorm, "linear_norm", 12;
    /// The router of a few tokens, their experts, and the pairs by expert; constants: as `LinearNorm`.
    Router, "router", 16;
    /// The router's choice of experts; constants: kind of score, factors.
    Route, "route", 9;
    /// Pairs of tokens and experts by expert.
    Group, "group", 3;
    /// Slots in the device's memory for the experts of a step.
    Resolve, "resolve", 3;
    /// Copies experts to their slots.
    Fill, "fill", 7;
    /// Gate and up projections of a block, and its quantisation; constants: as `Linear`, activation.
    GateUp, "gate_up", 12;
    /// Last projection of a few tokens' experts, and their sum; constants: type of the weights, whether the rows' norm follows.
    Down, "down", 15;
    /// Sums a token's experts.
    Combine, "combine", 5;
    /// Rotation, and storing keys and values; constants: types of keys and values, pairing.
    Rope, "rope", 11;
    /// Attention over one chunk, and the sum of the chunks; constants: types of keys and values, parts of a head, what is special.
    Attend, "attend", 10;
    /// Convolution and delta rule; constants: rows of the state per thread, order of the heads, whether the gated norm follows.
    Gdn, "gdn", 16;
    /// The gated norm after it, of many tokens.
    GdnOut, "gdn_out", 5;
    /// Mamba-2; constants: values of the state per thread.
    Ssm, "ssm", 13;
    /// A short convolution.
    ShortConv, "short_conv", 6;
    /// The states of a convolution, and the inputs of guesses; constants: whether its input is a product.
    ConvState, "conv_state", 6;
    /// The largest logits of each row.
    Pick, "pick", 5;
    /// Rows of the embedding table of the tokens that `Pick` found before; constants: type of the table.
    Embed, "embed", 3;
    /// Reads memory.
    Bandwidth, "bandwidth", 2;
}
