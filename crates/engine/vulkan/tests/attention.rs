//! Kinds of attention on the Vulkan backend against the scalar oracle, on random shapes: windows, caps, sinks, values in the keys, sizes of
//! heads, norms, rotations. And against itself: a token's result may not depend, to the bit, on the rest of the batch or on how a prompt
//! was split.

#[path = "../../compute/tests/support/layers.rs"]
mod layers;

use layers::{Random, worst};
use octet_compute::backend::*;
use octet_compute::batch::{Batch, Tables};
use octet_compute::reference::Reference;
use octet_vulkan::{Vulkan, VulkanOptions};
use proptest::prelude::*;

const TOKENS: usize = 160;
const PAGES: usize = 40;

/// The choices of one layer.
#[derive(Debug, Clone)]
struct Choices {
    seed: u64,
    heads: usize,
    kv_heads: usize,
    k_dim: usize,
    v_dim: usize,
    values_in_keys: bool,
    softcap: Option<f32>,
    sinks: bool,
    gated: bool,
    window: Window,
    /// Pages of its own.
    windowed: bool,
    /// Norms of queries, keys and values.
    norms: [Normed; 3],
    norm_last: bool,
    rope: Option<(usize, RopePairing)>,
    position_scale: bool,
    value_scale: f32,
    kv: KvType,
    /// Positions that see each other in both directions.
    block: Option<[usize; 2]>,
    /// Rotations by rows and columns, of the two halves each within itself.
    axes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Normed {
    No,
    Head,
    Part,
    Whole,
}

fn choices() -> impl Strategy<Value = Choices> {
    use Normed::*;
    let windows = vec![Window::All, Window::Last(1), Window::Last(9), Window::Last(70), Window::Chunk(32)];
    let windows = (prop::sample::select(windows), any::<bool>());
    let sizes = (
        1..4usize,
        1..3usize,
        prop::sample::select(vec![(32, 32), (64, 32), (32, 64), (96, 96), (576, 512)]),
    );
    let kinds = prop::sample::select(vec![No, Head, Part, Whole]);
    let norms = (kinds.clone(), kinds, prop::sample::select(vec![No, Head]), any::<bool>());
    let pairings = prop::sample::select(vec![RopePairing::Half, RopePairing::Adjacent]);
    let rope = prop::option::of((prop::sample::select(vec![0usize, 8]), pairings));
    let kv = prop::sample::select(vec![KvType::F32, KvType::F32, KvType::F16, KvType::Q8_0]);
    let others = (prop::array::uniform5(any::<bool>()), rope, kv);
    (0..1000u64, windows, sizes, norms, others).prop_map(
        |(seed, (window, windowed), (group, kv_heads, (k_dim, v_dim)), norms, (flags, rope, kv))| {
            let values_in_keys = flags[0] && v_dim <= k_dim;
            let gated = flags[1] && k_dim == v_dim;
            // A norm of all heads does not go with a gate, nor after a rotation: no model has that.
            let norm_last = norms.3;
            let of = |n| if n == Whole && (gated || norm_last) { Head } else { n };
            Choices {
                seed,
                heads: group * kv_heads,
                kv_heads,
                k_dim,
                v_dim,
                values_in_keys,
                softcap: flags[2].then_some(3.0),
                sinks: flags[3],
                gated,
                window,
                windowed: windowed && window != Window::All,
                norms: [of(norms.0), of(norms.1), norms.2],
                norm_last,
                rope,
                position_scale: flags[4],
                value_scale: if flags[4] { 0.7 } else { 1.0 },
                kv,
                block: None,
                axes: false,
            }
        },
    )
}

/// An attention layer in one backend.
struct Layer<B: Backend> {
    be: B,
    c: Choices,
    a: Attention<B>,
    cache: B::Cache,
}

impl<B: Backend> Layer<B> {
    fn new(mut be: B, c: &Choices) -> Self {
        let r = &mut Random(c.seed);
        let inv_freq: Vec<f32> = (0..8).map(|j| 0.7f32.powi(j)).collect();
        let rope = c.rope.map(|(at, pairing)| Rope {
            at,
            dims: 16,
            pairing,
            inv_freq: be.vector(&inv_freq).unwrap(),
            scale: 1.1,
            axes: c.axes.then(|| Axes { of_pair: [[1; 4], [2; 4]].concat(), parts: 2 }),
        });
        let dims = [(c.heads, c.k_dim), (c.kv_heads, c.k_dim), (c.kv_heads, c.v_dim)];
        let norms = [0, 1, 2].map(|i| {
            let (heads, dim) = dims[i];
            let len = match c.norms[i] {
                Normed::No => return None,
                Normed::Head => dim,
                Normed::Part => dim - 8,
                Normed::Whole => heads * dim,
            };
            Some(Norm::rms(be.vector(&r.near_one(len)).unwrap(), len, 1e-5))
        });
        let a = Attention {
            v_dim: c.v_dim,
            values_in_keys: c.values_in_keys,
            scale: 0.3,
            softcap: c.softcap,
            sinks: c.sinks.then(|| be.vector(&r.vec(c.heads)).unwrap()),
            gated: c.gated,
            norms,
            norm_last: c.norm_last,
            rope,
            window: c.window,
            two_way: c.block.is_some(),
            position_scale: c.position_scale.then_some([0.1, 8.0, 1.0]),
            value_scale: c.value_scale,
            ..Attention::plain(c.heads, c.kv_heads, c.k_dim)
        };
        // Projections tell the backend how wide rows are.
        let width = c.heads * c.v_dim;
        be.weight(&r.matrix(octet_weights::GgmlType::F32, 32, width), None).unwrap();
        let group = if c.windowed { PageGroup::Windowed } else { PageGroup::All };
        let shape = CacheShape {
            layers: vec![a.cache().in_group(group)],
            pages: PAGES,
            windowed: c.windowed.then_some(WindowedPages { pages: PAGES, window: c.window }),
            slots: 4,
            guesses: 0,
            kv: c.kv.into(),
        };
        let step = StepShape { tokens: TOKENS, outputs: 1, heads: c.heads, ..StepShape::default() };
        let cache = be.cache(&shape, step).unwrap();
        Self { be, c: c.clone(), a, cache }
    }

    /// Outputs of the attention of all tokens.
    fn run(&mut self, batch: &Batch) -> Vec<f32> {
        let c = self.c.clone();
        let mut rows = |seed: u64, width: usize| {
            let row = |t: &u32, p: &u32| Random(seed * 100_000 + u64::from(t * 997 + p)).vec(width);
            let all = batch.tokens().iter().zip(batch.positions()).flat_map(|(t, p)| row(t, p));
            self.be.vector(&all.collect::<Vec<f32>>()).unwrap()
        };
        let gate = if c.gated { 2 } else { 1 };
        let (mut q, mut k, v) =
            (rows(1, gate * c.heads * c.k_dim), rows(2, c.kv_heads * c.k_dim), rows(3, c.kv_heads * c.v_dim));
        let n = batch.len() * c.heads * c.v_dim;
        let mut out = self.be.buf(n).unwrap();
        self.be.rope_store(batch, &self.a, 0, &mut self.cache, &mut q, Some((&mut k, &v)));
        self.be.attend(batch, &self.a, 0, &self.cache, &q, &mut out);
        let mut values = vec![0.0; n];
        self.be.read(&out, &mut values);
        values
    }
}

/// Tokens `range` of a sequence, perhaps after some of another one. Pages of layers with a window are others, and those before it are not there.
fn batch(c: &Choices, range: std::ops::Range<usize>, beside: bool) -> Batch {
    let mut batch = Batch::default();
    let all = |s: u32| (20 * s..20 * (s + 1)).rev().collect::<Vec<u32>>();
    let windowed = |s: u32, past: usize| {
        let mut pages: Vec<u32> = (20 * s..20 * (s + 1)).collect();
        pages[..c.window.first(past) / 64].fill(u32::MAX);
        if c.windowed { pages } else { Vec::new() }
    };
    if beside {
        batch.push(&[3, 1, 2], 0, 1, Tables { all: &all(1), windowed: &windowed(1, 0) }, 0);
    }
    let tokens: Vec<u32> = range.clone().map(|p| (p * 7 % 70) as u32).collect();
    let (all, windowed) = (all(0), windowed(0, range.start));
    batch.push(&tokens, range.start, 0, Tables { all: &all, windowed: &windowed }, 0);
    if c.axes {
        batch.turn(range.map(|p| [0, p as u32 / 7, p as u32 % 7]));
    }
    if let Some([from, end]) = c.block {
        batch.see(from..end);
    }
    batch
}

fn vulkan() -> Option<Vulkan> {
    let index = octet_testkit::vulkan_device()?;
    Some(Vulkan::new(&VulkanOptions { index, ..VulkanOptions::default() }).expect("the device opens"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn attention_equals_the_oracle(c in choices(), n in 1..150usize) {
        let Some(be) = vulkan() else { return Ok(()) };
        let all = batch(&c, 0..n, false);
        let (got, want) = (Layer::new(be, &c).run(&all), Layer::new(Reference, &c).run(&all));
        let d = worst(&got, &want);
        // Stored keys and values may round to another neighbour.
        let bound = match c.kv {
            KvType::F32 => 1e-4,
            KvType::F16 => 5e-3,
            KvType::Q8_0 => 0.05,
        };
        prop_assert!(d <= bound, "differs by {d}");
    }

    #[test]
    fn attention_does_not_depend_on_the_batch_or_the_split(c in choices(), n in 2..150usize, cut in 1..149usize) {
        let Some(be) = vulkan() else { return Ok(()) };
        let mut m = Layer::new(be, &c);
        let whole = m.run(&batch(&c, 0..n, false));
        let mut parts = Vec::new();
        for range in [0..cut.min(n - 1), cut.min(n - 1)..n] {
            let got = m.run(&batch(&c, range.clone(), true));
            parts.extend_from_slice(&got[got.len() / (3 + range.len()) * 3..]);
        }
        prop_assert!(parts == whole, "cut at {cut} of {n}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Tokens of a block see all of it, also what comes later, as soon as that is in the cache: then a part has the bits of the whole.
    #[test]
    fn blocks_are_seen_in_both_directions(
        c in choices(),
        window in prop::sample::select(vec![Window::All, Window::Last(1), Window::Last(9), Window::Around(5), Window::Around(80)]),
        (from, len, n, cut) in (0..100usize, 1..100usize, 2..150usize, 1..149usize),
        axes in any::<bool>(),
    ) {
        let Some(be) = vulkan() else { return Ok(()) };
        let block = Some([from.min(n - 1), (from + len).min(n)]);
        let rope = c.rope.map(|(at, pairing)| (at, if axes { RopePairing::Half } else { pairing }));
        let c = Choices { window, windowed: false, kv: KvType::F32, block, axes, rope, ..c };
        let whole = batch(&c, 0..n, false);
        let mut m = Layer::new(be, &c);
        let (got, want) = (m.run(&whole), Layer::new(Reference, &c).run(&whole));
        let d = worst(&got, &want);
        prop_assert!(d <= 1e-4, "differs by {d}");
        let mut parts = Vec::new();
        for range in [0..cut.min(n - 1), cut.min(n - 1)..n] {
            let some = m.run(&batch(&c, range.clone(), true));
            parts.extend_from_slice(&some[some.len() / (3 + range.len()) * 3..]);
        }
        prop_assert!(parts == got, "cut at {cut} of {n}");
    }
}

/// A block of several chunks, whose first tokens see positions of later chunks.
#[test]
fn blocks_may_be_longer_than_a_chunk() {
    let Some(be) = vulkan() else { return };
    let c = Choices { window: Window::Last(20), block: Some([30, 1100]), ..plain() };
    let (mut got, mut want) = (Layer::new(be, &c), Layer::new(Reference, &c));
    // First all are stored.
    for start in (0..1100).step_by(150) {
        let batch = batch(&c, start..(start + 150).min(1100), false);
        want.run(&batch);
        got.run(&batch);
    }
    for start in [0, 500, 1000] {
        let batch = batch(&c, start..start + 80, false);
        let d = worst(&got.run(&batch), &want.run(&batch));
        assert!(d <= 1e-4, "from {start} on: differs by {d}");
    }
}

fn plain() -> Choices {
    Choices {
        seed: 5,
        heads: 2,
        kv_heads: 1,
        k_dim: 32,
        v_dim: 32,
        values_in_keys: false,
        softcap: None,
        sinks: true,
        gated: false,
        window: Window::All,
        windowed: false,
        norms: [Normed::No; 3],
        norm_last: false,
        rope: None,
        position_scale: false,
        value_scale: 1.0,
        kv: KvType::F32,
        block: None,
        axes: false,
    }
}

/// A window that begins behind the first chunk of 512 positions.
#[test]
fn a_window_may_skip_chunks() {
    for window in [Window::Last(100), Window::Chunk(600)] {
        let Some(be) = vulkan() else { return };
        let c = Choices { window, windowed: true, ..plain() };
        let (mut got, mut want) = (Layer::new(be, &c), Layer::new(Reference, &c));
        for start in (0..1100).step_by(150) {
            let batch = batch(&c, start..(start + 150).min(1100), false);
            let d = worst(&got.run(&batch), &want.run(&batch));
            assert!(d <= 1e-4, "{window:?} differs by {d} from {start} on");
        }
    }
}
