//! Times the f32 vector kernels at the sizes of Qwen3.5-35B-A3B, on one thread: `cargo run --release --example vector [ISA]`.

use std::hint::black_box;
use std::time::Instant;

use octet_compute::batch::PAGE_TOKENS;
use octet_compute::cpu::isa::Isa;
use octet_compute::cpu::vector::{
    Conv, GDN_COLUMNS, GdnColumns, KvData, KvPages, QueryTile, VectorKernels, attend_chunks,
    attend_scratch_len, gdn_scratch_len, partial_len,
};

const K_HEADS: usize = 16;
const V_HEADS: usize = 32;
const DIM: usize = 128;
const CHANNELS: usize = (2 * K_HEADS + V_HEADS) * DIM;
const TAPS: usize = 4;
const GDN_LAYERS: usize = 30;

const HEADS: usize = 16;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 256;

/// Seconds of `parts` parts of some work: of each the fastest of `repeats` runs, so that what else the machine does at
/// times leaves no mark. `prepare` is not timed.
fn seconds(repeats: usize, parts: usize, mut prepare: impl FnMut(usize), mut body: impl FnMut(usize)) -> f64 {
    let mut best = vec![f64::INFINITY; parts];
    for _ in 0..repeats {
        for (part, best) in best.iter_mut().enumerate() {
            prepare(part);
            let start = Instant::now();
            body(part);
            *best = best.min(start.elapsed().as_secs_f64());
        }
    }
    best.iter().sum()
}

/// Values that start at a cache line, as the backend's buffers do.
struct Lines(Vec<f32>);

impl std::ops::Deref for Lines {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.0[self.0.as_ptr().align_offset(64)..][..self.0.len() - 16]
    }
}

impl std::ops::DerefMut for Lines {
    fn deref_mut(&mut self) -> &mut [f32] {
        let (skip, len) = (self.0.as_ptr().align_offset(64), self.0.len() - 16);
        &mut self.0[skip..][..len]
    }
}

fn noise(n: usize) -> Lines {
    let mut x = 1u32;
    let n = n + 16;
    let values = (0..n)
        .map(|_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    Lines(values)
}

/// Value head `h` of a layer over `tokens` tokens, in items of `columns` columns. `y` is head by head: queries, keys, values.
fn recurrence(
    k: VectorKernels,
    h: usize,
    tokens: usize,
    columns: usize,
    y: *mut f32,
    state: *mut f32,
    scratch: &mut [f32],
) {
    let (kq, gates) = (vec![0.1; tokens], vec![0.9; tokens * V_HEADS]);
    for column in (0..DIM).step_by(columns) {
        let head = |i: usize| y.wrapping_add(i * tokens * DIM);
        let item = GdnColumns {
            state: state.wrapping_add(h * DIM * DIM + column),
            state_stride: DIM,
            q: head(h / 2),
            k: head(K_HEADS + h / 2),
            qk_stride: DIM,
            kq: kq.as_ptr(),
            beta: gates[h..].as_ptr(),
            decay: gates[h..].as_ptr(),
            gate_stride: V_HEADS,
            v: head(2 * K_HEADS + h).wrapping_add(column),
            v_stride: DIM,
            tokens,
            k_dim: DIM,
            columns,
        };
        // SAFETY: the callers' `y` has CHANNELS * tokens values and their `state` V_HEADS states.
        unsafe { k.gdn_columns(&item, scratch) };
    }
}

fn delta_net(k: VectorKernels) {
    let tokens = 512;
    let head = tokens * DIM;
    let input = noise(tokens * CHANNELS);
    let weights = noise(TAPS * CHANNELS);
    let (mut conv_state, mut y) = (noise(TAPS * CHANNELS), noise(tokens * CHANNELS));
    let mut state = noise(V_HEADS * DIM * DIM);
    let mut scratch = vec![0.0; gdn_scratch_len(DIM)];

    let conv = seconds(
        20,
        CHANNELS / DIM,
        |_| {},
        |h| {
            let item = Conv {
                weights: weights[h * DIM..].as_ptr(),
                weights_stride: CHANNELS,
                input: input[h * DIM..].as_ptr(),
                input_stride: CHANNELS,
                state: conv_state[h * DIM..].as_mut_ptr(),
                state_stride: CHANNELS,
                out: y[h * head..].as_mut_ptr(),
                out_stride: DIM,
                tokens,
                channels: DIM,
                taps: TAPS,
            };
            // SAFETY: every buffer has room for all heads.
            unsafe { k.conv_silu(&item) };
        },
    );
    let mut kq = vec![0.0; tokens];
    let keys = seconds(
        20,
        K_HEADS,
        |_| {},
        |h| {
            let (q, rest) = y.split_at_mut(K_HEADS * head);
            k.gdn_keys(DIM, &mut q[h * head..][..head], &mut rest[h * head..][..head], &mut kq);
        },
    );
    // Values become outputs in place: put the values back each time.
    let clean = y.to_vec();
    let (y_at, state_at) = (y.as_mut_ptr(), state.as_mut_ptr());
    let columns = seconds(
        20,
        V_HEADS,
        |h| {
            let at = (2 * K_HEADS + h) * head;
            // SAFETY: the values of head `h`.
            unsafe { std::ptr::copy_nonoverlapping(clean[at..].as_ptr(), y_at.add(at), head) };
        },
        |h| recurrence(k, h, tokens, GDN_COLUMNS, y_at, state_at, &mut scratch),
    );
    let (z, w) = (noise(V_HEADS * head), noise(DIM));
    let mut out = noise(z.len());
    let norm = seconds(
        20,
        V_HEADS,
        |_| {},
        |h| {
            let (o, z) = (&y[(2 * K_HEADS + h) * head..], &z[h * head..][..head]);
            for ((o, z), out) in o.chunks(DIM).zip(z.chunks(DIM)).zip(out[h * head..].chunks_mut(DIM)) {
                k.gated_rms_norm(o, &w, 1e-6, z, out);
            }
        },
    );
    println!("gdn prefill, {tokens} tokens              ns/token/layer    ms/token, {GDN_LAYERS} layers");
    for (name, seconds) in [
        ("convolution + silu", conv),
        ("norm of queries and keys", keys),
        ("recurrence", columns),
        ("gated norm", norm),
        ("all", conv + keys + columns + norm),
    ] {
        let ns = seconds * 1e9 / tokens as f64;
        println!("  {name:38} {ns:10.0}  {:18.3}", ns * GDN_LAYERS as f64 * 1e-6);
    }

    // As many layers as a model has, so that no state is still in a cache.
    let mut states = noise(GDN_LAYERS * V_HEADS * DIM * DIM);
    let bytes = 2 * 4 * states.len();
    for columns in [GDN_COLUMNS, DIM] {
        let time = seconds(
            20,
            GDN_LAYERS,
            |_| {},
            |layer| {
                let state = states[layer * V_HEADS * DIM * DIM..].as_mut_ptr();
                (0..V_HEADS).for_each(|h| recurrence(k, h, 1, columns, y_at, state, &mut scratch));
            },
        );
        println!(
            "gdn decode, items of {columns} columns: {:.2} ms/token, {:.1} GB/s read and written",
            time * 1e3,
            bytes as f64 / time * 1e-9
        );
    }
}

fn attention(k: VectorKernels) {
    let pages = 4096 / PAGE_TOKENS;
    // Several layers' caches, so that none is still in a cache of the CPU.
    let layers = 12;
    let layer = pages * KV_HEADS * PAGE_TOKENS * HEAD_DIM;
    let half: Vec<u16> = noise(layers * layer).iter().map(|x| half::f16::from_f32(*x).to_bits()).collect();
    let table: Vec<u32> = (0..pages as u32).collect();
    let data = |i: usize| KvData::F16(&half[i * layer..][..layer]);
    let kv = |i: usize| KvPages {
        keys: data(2 * i),
        values: data(2 * i + 1),
        kv_heads: KV_HEADS,
        head_dim: HEAD_DIM,
        table: &table,
    };
    let group = HEADS / KV_HEADS;
    let q = noise(4096 * HEADS * HEAD_DIM);
    let mut out = noise(q.len());

    let position = 4095;
    let chunks = attend_chunks(position);
    let stride = HEADS * partial_len(HEAD_DIM);
    let mut partials = noise(chunks * stride);
    let mut scratch = vec![0.0; attend_scratch_len(64, HEAD_DIM)];
    let time = seconds(
        20,
        layers / 2,
        |_| {},
        |i| {
            for kv_head in 0..KV_HEADS {
                let tile = QueryTile { q: &q, heads: HEADS, gated: false, tokens: 1, position, kv_head };
                for chunk in 0..chunks {
                    let at = chunk * stride + kv_head * group * partial_len(HEAD_DIM);
                    k.attend_chunk(&kv(i), &tile, chunk, &mut scratch, &mut partials[at..]);
                }
            }
            for (head, out) in out.chunks_mut(HEAD_DIM).take(HEADS).enumerate() {
                let at = head * partial_len(HEAD_DIM);
                k.attend_merge(&partials[at..], stride, chunks, None, &mut scratch, out);
            }
            black_box(&mut out);
        },
    ) / (layers / 2) as f64;
    println!(
        "attention decode at depth {}: {:.0} us/layer, {:.1} GB/s",
        position + 1,
        time * 1e6,
        (4 * layer) as f64 / time * 1e-9
    );

    for tokens in [512, 3500] {
        let step = QueryTile::good_tokens(group);
        let tiles = tokens / step * KV_HEADS;
        let time = seconds(
            5,
            tiles,
            |_| {},
            |i| {
                let (position, kv_head) = (i / KV_HEADS * step, i % KV_HEADS);
                let at = position * HEADS * HEAD_DIM;
                let tile =
                    QueryTile { q: &q[at..], heads: HEADS, gated: false, tokens: step, position, kv_head };
                // SAFETY: `out` has room for 4096 tokens.
                unsafe { k.attend_tile(&kv(0), &tile, &mut scratch, out[at..].as_mut_ptr()) };
                black_box(&mut out);
            },
        );
        let flop = (4 * HEADS * HEAD_DIM) as f64 * (tokens * (tokens + 1) / 2) as f64;
        println!(
            "attention prefill of {tokens} tokens: {:.1} ms/layer, {:.1} GFLOP/s",
            time * 1e3,
            flop / time * 1e-9
        );
    }
}

fn rows(k: VectorKernels) {
    let (x, w) = (noise(2048), noise(2048));
    let mut out = noise(2048);
    let (mut chosen, mut p) = ([0; 8], [0.0; 8]);
    let run = |name: &str, mut body: Box<dyn FnMut() + '_>| {
        let time = seconds(20, 1, |_| {}, |_| (0..1000).for_each(|_| body()));
        println!("{name:38} {:10.0} ns", time * 1e6);
    };
    run("rms_norm of 2048", Box::new(|| k.rms_norm(&x, &w, 1e-6, &mut out)));
    run(
        "silu_mul of 2048, and a copy",
        Box::new(|| {
            out.copy_from_slice(&w);
            k.silu_mul(&mut out, &x);
        }),
    );
    run(
        "route 8 of 256",
        Box::new(|| {
            out[..256].copy_from_slice(&x[..256]);
            k.route(&mut out[..256], true, &mut chosen, &mut p);
        }),
    );
}

fn main() {
    let wanted = std::env::args().nth(1);
    for isa in Isa::ALL {
        let asked = wanted.as_ref().map_or(isa == Isa::detect(), |w| w == isa.name() || w == "all");
        if let Some(k) = VectorKernels::for_isa(isa).filter(|_| asked) {
            println!("-- {}", isa.name());
            delta_net(k);
            attention(k);
            rows(k);
        }
    }
}
