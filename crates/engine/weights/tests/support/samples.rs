//! Small quantised matrices in the layout of each method, packed here number by number, with the values that its documentation says they
//! have.

use std::collections::BTreeMap;

use bytes::Bytes;
use half::{bf16, f16};
use octet_weights::{Error, Model, hf};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::{Value as Json, json};

/// A tensor of a checkpoint.
#[derive(Clone)]
pub struct Stored {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// A checkpoint with one quantised matrix, and its values.
#[derive(Clone)]
pub struct Sample {
    pub what: String,
    pub config: Json,
    pub tensors: Vec<Stored>,
    /// The matrix's name.
    pub name: String,
    pub values: Vec<f32>,
}

pub const ROWS: usize = 24;

pub fn stored(name: &str, dtype: Dtype, shape: &[usize], bytes: Vec<u8>) -> Stored {
    Stored { name: name.into(), dtype, shape: shape.to_vec(), bytes }
}

/// The files of a checkpoint.
pub fn files(config: &Json, tensors: &[Stored]) -> BTreeMap<String, Bytes> {
    let views = tensors.iter().map(|t| {
        (
            t.name.clone(),
            TensorView::new(t.dtype, t.shape.clone(), &t.bytes).expect("bytes that fit the shape"),
        )
    });
    let weights = safetensors::serialize(views, None).expect("a well-formed file");
    BTreeMap::from([
        ("config.json".to_string(), config.to_string().into()),
        ("model.safetensors".into(), weights.into()),
    ])
}

impl Sample {
    pub fn open(&self) -> Result<Model, Error> {
        hf::tensors_from_files("dir", files(&self.config, &self.tensors))
    }
    /// What reading all of it gives.
    pub fn read(&self) -> Result<Vec<f32>, Error> {
        let model = self.open()?;
        let tensor = model.optional(&self.name)?;
        Ok(tensor.unwrap_or_else(|| panic!("{}: no {}", self.what, self.name)).to_f32())
    }
}

/// Random numbers.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
    fn ints(&mut self, n: usize, below: u64) -> Vec<u32> {
        (0..n).map(|_| self.below(below) as u32).collect()
    }
    /// Scales as a BF16 has them.
    fn scales(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| (1 + self.below(250)) as f32 / 4096.0).collect()
    }
}

fn f16s(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect()
}
fn bf16s(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect()
}
pub fn f32s(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}
fn words(x: &[u32]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Numbers of `bits` bits one after the other, in words.
fn string(q: impl IntoIterator<Item = u32>, bits: usize) -> Vec<u32> {
    let mut out = Vec::new();
    for (i, q) in q.into_iter().enumerate() {
        for b in 0..bits {
            let at = i * bits + b;
            if at / 32 == out.len() {
                out.push(0);
            }
            out[at / 32] |= (q >> b & 1) << (at % 32);
        }
    }
    out
}

/// `[a][b]` to `[b][a]`.
fn turned<T: Copy>(x: &[T], b: usize) -> Vec<T> {
    (0..b).flat_map(|i| x.chunks(b).map(move |line| line[i])).collect()
}

const AWQ: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

fn awq_words(line: &[u32]) -> Vec<u32> {
    let word = |eight: &[u32]| (0..8).fold(0, |w, i| w | eight[AWQ[i]] << (4 * i));
    line.chunks(8).map(word).collect()
}

/// Integers `[ROWS][cols]` and zero points and scales `[ROWS][groups]`.
struct Ints {
    cols: usize,
    q: Vec<u32>,
    z: Vec<u32>,
    s: Vec<f32>,
    /// The group of each column.
    of: Vec<usize>,
    groups: usize,
}

impl Ints {
    fn new(r: &mut Random, bits: usize, cols: usize, group: usize, symmetric: bool) -> Self {
        let groups = cols.div_ceil(group);
        let q = r.ints(ROWS * cols, 1 << bits);
        let z = match symmetric {
            true => vec![1 << (bits - 1); ROWS * groups],
            false => r.ints(ROWS * groups, 1 << bits),
        };
        Self { cols, q, z, s: r.scales(ROWS * groups), of: (0..cols).map(|c| c / group).collect(), groups }
    }
    fn values(&self) -> Vec<f32> {
        let value = |i: usize| {
            let g = i / self.cols * self.groups + self.of[i % self.cols];
            (self.q[i] as i32 - self.z[g] as i32) as f32 * self.s[g]
        };
        (0..self.q.len()).map(value).collect()
    }
}

fn sample(
    what: impl Into<String>,
    config: Json,
    name: &str,
    tensors: Vec<Stored>,
    values: Vec<f32>,
) -> Sample {
    Sample {
        what: what.into(),
        config: json!({"quantization_config": config}),
        tensors,
        name: name.into(),
        values,
    }
}

/// GPTQ in both forms; `ordered`: with groups in another order.
fn gptq(r: &mut Random, bits: usize, group: usize, symmetric: bool, v2: bool, ordered: bool) -> Sample {
    let mut m = Ints::new(r, bits, 128, group, symmetric);
    if ordered {
        m.of.reverse();
    }
    let columns: Vec<u32> = m.q.chunks(m.cols).flat_map(|row| string(row.iter().copied(), bits)).collect();
    let lines = m.cols * bits / 32;
    let ones = u32::MAX / ((1 << bits) - 1);
    let zeros = turned(&m.z, m.groups);
    let zeros = zeros.chunks(ROWS).flat_map(|line| string(line.iter().copied(), bits));
    // The first form's writers subtract from whole words.
    let zeros: Vec<u32> = zeros.map(|w| if v2 { w } else { w.wrapping_sub(ones) }).collect();
    let mut tensors = vec![
        stored("m.qweight", Dtype::I32, &[lines, ROWS], words(&turned(&columns, lines))),
        stored("m.qzeros", Dtype::I32, &[m.groups, (ROWS * bits).div_ceil(32)], words(&zeros)),
        stored("m.scales", Dtype::F16, &[m.groups, ROWS], f16s(&turned(&m.s, m.groups))),
    ];
    let index: Vec<u32> = m.of.iter().map(|g| *g as u32).collect();
    if ordered {
        tensors.push(stored("m.g_idx", Dtype::I32, &[m.cols], words(&index)));
    }
    let form = if v2 { "gptq_v2" } else { "gptq" };
    let config =
        json!({"quant_method": "gptq", "group_size": group, "checkpoint_format": form, "sym": symmetric});
    let what =
        format!("{form}, {bits} bits, groups of {group}, symmetric: {symmetric}, act-order: {ordered}");
    sample(what, config, "m.weight", tensors, m.values())
}

fn awq(r: &mut Random, group: usize) -> Sample {
    let m = Ints::new(r, 4, 128, group, false);
    let line = |x: &[u32], n: usize| -> Vec<u32> { turned(x, n).chunks(ROWS).flat_map(awq_words).collect() };
    let tensors = vec![
        stored("m.qweight", Dtype::I32, &[m.cols, ROWS / 8], words(&line(&m.q, m.cols))),
        stored("m.qzeros", Dtype::I32, &[m.groups, ROWS / 8], words(&line(&m.z, m.groups))),
        stored("m.scales", Dtype::BF16, &[m.groups, ROWS], bf16s(&turned(&m.s, m.groups))),
    ];
    // The method's name says less than the tensors do.
    sample(
        format!("awq, groups of {group}"),
        json!({"quant_method": "auto-round"}),
        "m.weight",
        tensors,
        m.values(),
    )
}

fn packed(r: &mut Random, bits: usize, cols: usize, group: usize, symmetric: bool) -> Sample {
    let m = Ints::new(r, bits, cols, group, symmetric);
    let rows: Vec<u32> = m.q.chunks(cols).flat_map(|row| string(row.iter().copied(), bits)).collect();
    let width = (cols * bits).div_ceil(32);
    let shape: Vec<u8> = [ROWS as u64, cols as u64].iter().flat_map(|n| n.to_le_bytes()).collect();
    let mut tensors = vec![
        stored("m.weight_packed", Dtype::I32, &[ROWS, width], words(&rows)),
        stored("m.weight_scale", Dtype::BF16, &[ROWS, m.groups], bf16s(&m.s)),
        stored("m.weight_shape", Dtype::I64, &[2], shape),
    ];
    if !symmetric {
        let lines = (ROWS * bits).div_ceil(32);
        let columns: Vec<u32> =
            turned(&m.z, m.groups).chunks(ROWS).flat_map(|z| string(z.iter().copied(), bits)).collect();
        let zeros = words(&turned(&columns, lines));
        tensors.push(stored("m.weight_zero_point", Dtype::I32, &[lines, m.groups], zeros));
    }
    let config = json!({"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"group_size": group}}}});
    let what =
        format!("pack-quantized, {bits} bits, {cols} columns, groups of {group}, symmetric: {symmetric}");
    sample(what, config, "m.weight", tensors, m.values())
}

/// Signed bytes under scales of rows.
fn bytes_of_rows(r: &mut Random) -> [Sample; 2] {
    let q: Vec<i8> = (0..ROWS * 64).map(|_| (r.below(255) as i16 - 127) as i8).collect();
    let s = r.scales(ROWS);
    let bytes: Vec<u8> = q.iter().map(|q| *q as u8).collect();
    let values = |f: &dyn Fn(f32) -> f32| -> Vec<f32> {
        q.iter().enumerate().map(|(i, q)| f32::from(*q) * f(s[i / 64])).collect()
    };
    let weight = stored("m.weight", Dtype::I8, &[ROWS, 64], bytes);
    let scale = stored("m.weight_scale", Dtype::BF16, &[ROWS, 1], bf16s(&s));
    let scb = stored("m.SCB", Dtype::F32, &[ROWS], f32s(&s));
    [
        sample("int-quantized", json!({}), "m.weight", vec![weight.clone(), scale], values(&|s| s)),
        sample("bitsandbytes int8", json!({}), "m.weight", vec![weight, scb], values(&|s| s / 127.0)),
    ]
}

/// An E4M3 byte's value, by its definition.
fn e4m3(byte: u8) -> f32 {
    let (e, m) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let size = if e == 0 { m / 8.0 * 2f32.powi(-6) } else { (1.0 + m / 8.0) * 2f32.powi(e - 7) };
    if byte & 0x80 == 0 { size } else { -size }
}

const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Bytes of E4M3, none of them NaN.
fn e4m3s(r: &mut Random, n: usize) -> Vec<u8> {
    (0..n).map(|_| (r.below(127) | r.below(2) << 7) as u8).collect()
}

/// 8-bit floats under tiles of 128 x 128, the last of which are smaller; `experts` matrices.
fn fp8_tiles(r: &mut Random, rows: usize, cols: usize, experts: usize, scales: Dtype) -> Sample {
    let q = e4m3s(r, experts * rows * cols);
    let (down, across) = (rows.div_ceil(128), cols.div_ceil(128));
    let exponents: Vec<u8> = (0..experts * down * across).map(|_| 118 + r.below(8) as u8).collect();
    let (s, bytes) = match scales {
        Dtype::F8_E8M0 => (exponents.iter().map(|e| 2f32.powi(i32::from(*e) - 127)).collect(), exponents),
        _ => {
            let s = r.scales(experts * down * across);
            (s.clone(), f32s(&s))
        }
    };
    let value = |i: usize| {
        let (e, row, col) = (i / (rows * cols), i / cols % rows, i % cols);
        e4m3(q[i]) * s[(e * down + row / 128) * across + col / 128]
    };
    let values = (0..q.len()).map(value).collect();
    let what = format!("fp8, tiles of {experts} x [{rows}, {cols}], scales in {scales:?}");
    let config = json!({"quant_method": "fp8", "weight_block_size": [128, 128]});
    let (name, scale, outer) = match experts {
        1 => ("m.weight", "m.weight_scale_inv", vec![]),
        n => ("experts.gate_up_proj", "experts.gate_up_proj_scale_inv", vec![n]),
    };
    let tensors = vec![
        stored(name, Dtype::F8_E4M3, &[&outer[..], &[rows, cols]].concat(), q),
        stored(scale, scales, &[&outer[..], &[down, across]].concat(), bytes),
    ];
    sample(what, config, name, tensors, values)
}

/// 8-bit floats under one scale, one a row, and powers of two of 32 columns.
fn fp8_others(r: &mut Random) -> Vec<Sample> {
    let q = e4m3s(r, ROWS * 64);
    let weight = stored("m.weight", Dtype::F8_E4M3, &[ROWS, 64], q.clone());
    let s = r.scales(ROWS);
    let values = |f: &dyn Fn(usize) -> f32| -> Vec<f32> { (0..q.len()).map(|i| e4m3(q[i]) * f(i)).collect() };
    let exponents: Vec<u8> = (0..ROWS * 2).map(|_| 120 + r.below(8) as u8).collect();
    let mx = |i: usize| 2f32.powi(i32::from(exponents[i / 32]) - 127);
    let one =
        |scale: Stored| vec![weight.clone(), scale, stored("m.input_scale", Dtype::F32, &[], f32s(&[0.5]))];
    vec![
        sample(
            "fp8, one scale",
            json!({}),
            "m.weight",
            one(stored("m.weight_scale_inv", Dtype::F32, &[], f32s(&s[..1]))),
            values(&|_| s[0]),
        ),
        sample(
            "fp8, a scale a row",
            json!({}),
            "m.weight",
            one(stored("m.weight_scale", Dtype::BF16, &[ROWS, 1], bf16s(&s))),
            values(&|i| s[i / 64]),
        ),
        sample(
            "mxfp8",
            json!({}),
            "m.weight",
            one(stored("m.weight_scale", Dtype::U8, &[ROWS, 2], exponents.clone())),
            values(&mx),
        ),
    ]
}

/// 4-bit floats in everybody's spelling.
fn fp4(r: &mut Random) -> Vec<Sample> {
    const COLS: usize = 128;
    let q = r.ints(ROWS * COLS, 16);
    let two: Vec<u8> = q.chunks(2).map(|two| (two[0] | two[1] << 4) as u8).collect();
    let scales: Vec<u8> = (0..ROWS * COLS / 16).map(|_| 1 + r.below(0x7e) as u8).collect();
    let exponents: Vec<u8> = (0..ROWS * COLS / 32).map(|_| 110 + r.below(20) as u8).collect();
    let factor = 0.000_123_f32;
    let values =
        |f: &dyn Fn(usize) -> f32| -> Vec<f32> { (0..q.len()).map(|i| E2M1[q[i] as usize] * f(i)).collect() };
    let mx = values(&|i| 2f32.powi(i32::from(exponents[i / 32]) - 127));
    let half = [ROWS, COLS / 2];
    let (u8s, e8m0) = (Dtype::U8, Dtype::F8_E8M0);
    let weight = |name: &str, dtype| stored(name, dtype, &half, two.clone());
    let nv = |name: &str| stored(name, Dtype::F8_E4M3, &[ROWS, COLS / 16], scales.clone());
    let powers = |name: &str, dtype| stored(name, dtype, &[ROWS, COLS / 32], exponents.clone());
    let one = |name: &str| stored(name, Dtype::F32, &[1], f32s(&[factor]));
    let none = || json!({});
    vec![
        sample(
            "ModelOpt nvfp4",
            none(),
            "m.weight",
            vec![weight("m.weight", u8s), nv("m.weight_scale"), one("m.weight_scale_2")],
            values(&|i| e4m3(scales[i / 16]) * factor),
        ),
        sample(
            "compressed-tensors nvfp4",
            none(),
            "m.weight",
            vec![weight("m.weight_packed", u8s), nv("m.weight_scale"), one("m.weight_global_scale")],
            values(&|i| e4m3(scales[i / 16]) / factor),
        ),
        sample(
            "mxfp4",
            none(),
            "m.weight",
            vec![weight("m.weight_packed", u8s), powers("m.weight_scale", u8s)],
            mx.clone(),
        ),
        sample(
            "DeepSeek's fp4",
            none(),
            "m.weight",
            vec![weight("m.weight", Dtype::I8), powers("m.scale", e8m0)],
            mx.clone(),
        ),
        sample(
            "gpt-oss",
            none(),
            "experts.down_proj",
            vec![
                stored("experts.down_proj_blocks", u8s, &[2, ROWS / 2, COLS / 32, 16], two.clone()),
                stored("experts.down_proj_scales", u8s, &[2, ROWS / 2, COLS / 32], exponents.clone()),
            ],
            mx.clone(),
        ),
        sample(
            "MLX mxfp4",
            none(),
            "m.weight",
            vec![stored("m.weight", Dtype::U32, &[ROWS, COLS / 8], two.clone()), powers("m.scales", u8s)],
            mx,
        ),
        sample(
            "MLX nvfp4",
            none(),
            "m.weight",
            vec![
                stored("m.weight", Dtype::U32, &[ROWS, COLS / 8], two.clone()),
                stored("m.scales", u8s, &[ROWS, COLS / 16], scales.clone()),
            ],
            values(&|i| e4m3(scales[i / 16])),
        ),
    ]
}

/// MLX's affine integers, as a stack of two experts.
fn mlx(r: &mut Random, bits: usize, group: usize) -> Sample {
    const COLS: usize = 128;
    let m = Ints::new(r, bits, COLS, group, true);
    let biases: Vec<f32> = m.s.iter().map(|s| -3.0 * s).collect();
    let biases: Vec<f32> = biases.iter().map(|b| bf16::from_f32(*b).to_f32()).collect();
    let value = |i: usize| {
        let g = i / COLS * m.groups + m.of[i % COLS];
        m.q[i] as f32 * m.s[g] + biases[g]
    };
    let rows: Vec<u32> = m.q.chunks(COLS).flat_map(|row| string(row.iter().copied(), bits)).collect();
    let shape = |n: usize| [2, ROWS / 2, n];
    let tensors = vec![
        stored("m.weight", Dtype::U32, &shape(COLS * bits / 32), words(&rows)),
        stored("m.scales", Dtype::BF16, &shape(m.groups), bf16s(&m.s)),
        stored("m.biases", Dtype::BF16, &shape(m.groups), bf16s(&biases)),
    ];
    let values = (0..m.q.len()).map(value).collect();
    // The module's own entry, and not the usual one, is right.
    let config = json!({"bits": if bits == 8 { 4 } else { 8 }, "group_size": 64, "m": {"bits": bits, "group_size": group}});
    sample(format!("MLX affine, {bits} bits, groups of {group}"), config, "m.weight", tensors, values)
}

/// The tables that bitsandbytes 0.49 writes as `quant_map`: the normalised lists of its `get_4bit_type`.
fn nf4_levels() -> Vec<f32> {
    let above: [f64; 9] = [
        0.0,
        0.07958029955625534,
        0.16093020141124725,
        0.24611230194568634,
        0.33791524171829224,
        0.44070982933044434,
        0.5626170039176941,
        0.7229568362236023,
        1.0,
    ];
    let below = [
        -1.0,
        -0.6961928009986877,
        -0.5250730514526367,
        -0.39491748809814453,
        -0.28444138169288635,
        -0.18477343022823334,
        -0.09105003625154495,
    ];
    below.into_iter().chain(above).map(|v| v as f32).collect()
}

fn fp4_levels() -> Vec<f32> {
    let above = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0];
    above.into_iter().chain(above.map(|v| -v)).map(|v: f32| v / 12.0).collect()
}

/// bitsandbytes in 4 bits, with maxima as they are or nested.
fn table(r: &mut Random, kind: &str, map: Vec<f32>, cols: usize, nested: bool) -> Sample {
    let q = r.ints(ROWS * cols, 16);
    let blocks = ROWS * cols / 64;
    let two: Vec<u8> = q.chunks(2).map(|two| (two[0] << 4 | two[1]) as u8).collect();
    let state =
        json!({"shape": [ROWS, cols], "blocksize": 64, "nested_blocksize": 16, "nested_offset": 0.25})
            .to_string();
    let maxima: Vec<u8> = (0..blocks).map(|_| r.below(256) as u8).collect();
    let outer = r.scales(blocks.div_ceil(16));
    let values_of: Vec<f32> = (0..256).map(|i| i as f32 / 256.0).collect();
    let absmax: Vec<f32> = match nested {
        true => (0..blocks).map(|b| values_of[maxima[b] as usize] * outer[b / 16] + 0.25).collect(),
        false => r.scales(blocks),
    };
    let state_name = format!("m.weight.quant_state.bitsandbytes__{}", kind.to_lowercase());
    let mut tensors = vec![
        stored("m.weight", Dtype::U8, &[two.len(), 1], two),
        stored("m.weight.quant_map", Dtype::F32, &[16], f32s(&map)),
        stored(&state_name, Dtype::U8, &[state.len()], state.into_bytes()),
    ];
    if nested {
        tensors.push(stored("m.weight.absmax", Dtype::U8, &[blocks], maxima));
        tensors.push(stored("m.weight.nested_absmax", Dtype::F32, &[outer.len()], f32s(&outer)));
        tensors.push(stored("m.weight.nested_quant_map", Dtype::F32, &[256], f32s(&values_of)));
    } else {
        tensors.push(stored("m.weight.absmax", Dtype::F32, &[blocks], f32s(&absmax)));
    }
    let values = (0..q.len()).map(|i| map[q[i] as usize] * absmax[i / 64]).collect();
    sample(
        format!("bitsandbytes {kind}, {cols} columns, nested: {nested}"),
        json!({"quant_method": "bitsandbytes"}),
        "m.weight",
        tensors,
        values,
    )
}

/// A sample of each scheme and form.
pub fn all() -> Vec<Sample> {
    let r = &mut Random(34);
    let mut all = vec![
        gptq(r, 4, 32, true, false, false),
        gptq(r, 4, 32, false, false, false),
        gptq(r, 4, 64, false, true, false),
        gptq(r, 4, 32, false, false, true),
        gptq(r, 8, 128, true, false, false),
        gptq(r, 8, 64, false, true, false),
        gptq(r, 2, 32, false, false, false),
        awq(r, 32),
        awq(r, 128),
        packed(r, 4, 64, 16, true),
        packed(r, 8, 128, 64, false),
        fp8_tiles(r, 130, 256, 1, Dtype::F32),
        fp8_tiles(r, 96, 352, 1, Dtype::F8_E8M0),
        fp8_tiles(r, 160, 128, 2, Dtype::F32),
        fp8_tiles(r, 24, 40, 1, Dtype::F32),
        table(r, "NF4", nf4_levels(), 96, false),
        table(r, "NF4", nf4_levels(), 128, false),
        table(r, "NF4", nf4_levels(), 128, true),
        table(r, "NF4", (0..16).map(|i| i as f32 / 7.5 - 1.0).collect(), 64, true),
        table(r, "FP4", fp4_levels(), 64, false),
    ];
    for bits in 2..=8 {
        all.push(packed(r, bits, 160, 32, true));
        all.push(packed(r, bits, 160, 64, false));
    }
    for (bits, group) in [(2, 32), (3, 64), (4, 64), (5, 32), (6, 64), (8, 128)] {
        all.push(mlx(r, bits, group));
    }
    all.extend(bytes_of_rows(r));
    all.extend(fp8_others(r));
    all.extend(fp4(r));
    all
}
