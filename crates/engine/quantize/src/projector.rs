//! The tower of a checkpoint as llama.cpp's projector files (`mmproj`) have it.
//!
//! | a checkpoint has | a projector file has |
//! |---|---|
//! | a convolution over two frames | a tensor for each |
//! | columns of a patch's projection by pixel (Gemma 4) | by channel |
//! | positions of columns and rows in pairs (Gemma 4 12B) | those of columns, then those of rows |
//! | halves of a head that turn together (Pixtral) | pairs side by side |
//! | queries, keys and values in one tensor (Qwen2.5-VL) | three |
//! | the end of a row of patches in the text's table (Pixtral) | a tensor |

use std::ops::Range;

use bytes::Bytes;
use octet_weights::{GgmlType, Metadata, Model, Source, TensorInfo, Value};

use crate::{Error, quantize};

const PATCHES: &str = "v.patch_embd.weight";
const POSITIONS: &str = "v.position_embd.weight";
/// Metadata of Octet's own: how a checkpoint's values lie.
const OWN: [&str; 3] = ["clip.vision.patch_order", "clip.vision.rope_pairing", "clip.vision.position_order"];
/// The token at the end of a row of patches, and the tensor for it.
const BREAK: (&str, &str) = ("[IMG_BREAK]", "v.token_embd.img_break");
/// Side of an image that llama.cpp warms up with, for towers that take any size.
const ANY_SIZE: u64 = 224;

/// A checkpoint's tower, as [`octet_weights::hf::open_tower`] gives it, in the form of a projector file. `text` is the model that it belongs to.
///
/// Matrices keep their type where GGUF has it; others become BF16, and what llama.cpp expects in f32 becomes that.
///
/// # Errors
/// If a tensor has another shape than its tower has.
pub fn projector(tower: Model, text: &Model) -> Result<Model, Error> {
    let mut metadata = tower.metadata.clone();
    let outs = outs(&tower, text)?;
    describe(&tower, &mut metadata)?;
    let (infos, contents) = outs.into_iter().unzip();
    let origin = tower.origin.clone();
    Ok(Model::new(origin, metadata, Box::new(Projector { tower, infos, contents }))?)
}

/// Where a tensor's values come from.
enum Content {
    /// This tensor of the tower, as it is.
    Whole(usize),
    /// Runs of this one's values.
    Chosen(usize, Vec<Range<usize>>),
    /// Values of the text model.
    Values(Vec<f32>),
}

/// The tensors of the file.
fn outs(tower: &Model, text: &Model) -> Result<Vec<(TensorInfo, Content)>, Error> {
    let meta = &tower.metadata;
    let is = |key: &str, value: &str| meta.get(key) == Some(&Value::Str(value.into()));
    let kind = meta.opt_str("clip.projector_type")?.unwrap_or_default();
    let mut all = Vec::new();
    for (i, info) in tower.tensors().iter().enumerate() {
        let mut shape = info.shape.clone();
        let ones = shape.iter().take_while(|d| **d == 1).count().min(shape.len() - 1);
        shape.drain(..ones);
        let mut put = |name: &str, shape: &[usize], from: Option<Vec<Range<usize>>>| {
            let ty = if from.is_some() { plain(info, shape) } else { kept(tower, info, shape)? };
            let content = from.map_or(Content::Whole(i), |from| Content::Chosen(i, from));
            all.push((TensorInfo { name: name.into(), ty, shape: shape.to_vec() }, content));
            Ok::<_, Error>(())
        };
        let name = info.name.as_str();
        let bad = |what: &str| {
            let what = format!("has shape {:?}, which {what}", info.shape);
            Error::from(octet_weights::Error::tensor(&tower.origin, name, what))
        };
        match shape[..] {
            // A convolution over images has three channels here.
            [rows, frames, high, wide] if name == PATCHES && frames != 3 => {
                if frames != 2 || rows % 3 != 0 {
                    return Err(bad("is not that of a convolution over two frames"));
                }
                let area = high * wide;
                for frame in 0..frames {
                    let name = if frame == 0 { PATCHES.to_string() } else { format!("{PATCHES}.{frame}") };
                    let planes = (0..rows).map(|row| (row * frames + frame) * area);
                    let from = planes.map(|at| at..at + area).collect();
                    put(&name, &[rows / 3, 3, high, wide], Some(from))?;
                }
            }
            [rows, cols] if name == PATCHES && is(OWN[0], "channels last") => {
                let order = by_channel(cols).ok_or_else(|| bad("is not that of squares of pixels"))?;
                let of_row = |row: usize| order.iter().map(move |i| row * cols + i).map(|i| i..i + 1);
                let from = Some((0..rows).flat_map(of_row).collect());
                let side = (cols / 3).isqrt();
                let convolution = [rows, 3, side, side];
                // The tower without blocks multiplies a matrix.
                put(name, if kind == "gemma4uv" { &shape } else { &convolution[..] }, from)?;
            }
            // The norm before it.
            [cols] if name.starts_with("v.patch_norm.1.") && is(OWN[0], "channels last") => {
                let order = by_channel(cols).ok_or_else(|| bad("is not that of a square of pixels"))?;
                put(name, &shape, Some(order.into_iter().map(|i| i..i + 1).collect()))?;
            }
            [count, 2, width] if name == POSITIONS && is(OWN[2], "pairs") => {
                let places = (0..2).flat_map(|axis| (0..count).map(move |i| (2 * i + axis) * width));
                put(name, &[2, count, width], Some(places.map(|at| at..at + width).collect()))?;
            }
            _ if is(OWN[1], "half") && is_turned(name) => {
                let heads = meta.u32("clip.vision.attention.head_count")?.max(1) as usize;
                if !shape[0].is_multiple_of(2 * heads) {
                    return Err(bad("is not that of heads with two halves"));
                }
                let (width, half) = (shape[1..].iter().product::<usize>(), shape[0] / heads / 2);
                let turned = |row: usize| {
                    let (head, i) = (row / (2 * half), row % (2 * half));
                    (head * 2 * half + i % 2 * half + i / 2) * width
                };
                let from = (0..shape[0]).map(turned).map(|at| at..at + width).collect();
                put(name, &shape, Some(from))?;
            }
            _ if kind == "qwen2.5vl_merger" && name.contains(".attn_qkv.") => {
                if !shape[0].is_multiple_of(3) {
                    return Err(bad("is not that of queries, keys and values"));
                }
                let part = [&[shape[0] / 3], &shape[1..]].concat();
                let len: usize = part.iter().product();
                for (i, letter) in ["q", "k", "v"].iter().enumerate() {
                    let name = name.replace("attn_qkv", &format!("attn_{letter}"));
                    put(&name, &part, Some(std::iter::once(i * len..(i + 1) * len).collect()))?;
                }
            }
            _ => put(name, &shape, None)?,
        }
    }
    if kind == "pixtral"
        && let Some(row) = row_end(text)?
    {
        let info = TensorInfo { name: BREAK.1.into(), ty: GgmlType::F32, shape: vec![row.len()] };
        all.push((info, Content::Values(row)));
    }
    Ok(all)
}

/// Where the values of a square patch are, in the order of channels, where each pixel has its three together.
fn by_channel(values: usize) -> Option<Vec<usize>> {
    let area = values / 3;
    (3 * area.isqrt().pow(2) == values).then(|| (0..values).map(|i| i % area * 3 + i / area).collect())
}

/// Whether rows of this tensor turn with positions.
fn is_turned(name: &str) -> bool {
    name.contains(".attn_q.") || name.contains(".attn_k.")
}

/// The embedding of a row's end.
fn row_end(text: &Model) -> Result<Option<Vec<f32>>, Error> {
    let tokens = text.metadata.opt_strs("tokenizer.ggml.tokens")?.unwrap_or_default();
    let Some(id) = tokens.iter().position(|t| t == BREAK.0) else { return Ok(None) };
    let Some(info) = text.info("token_embd.weight") else { return Ok(None) };
    let table = text.tensor(&info.name, &info.shape)?.matrix();
    if id >= table.rows {
        return Ok(None);
    }
    let mut row = vec![0.0; table.cols];
    table.dequantize_row(id, &mut row);
    Ok(Some(row))
}

/// The type of a tensor whose values change places.
fn plain(info: &TensorInfo, shape: &[usize]) -> GgmlType {
    match info.ty {
        _ if is_f32(&info.name, shape) => GgmlType::F32,
        GgmlType::F32 | GgmlType::F16 => info.ty,
        _ => GgmlType::BF16,
    }
}

/// The type of a tensor that stays.
fn kept(tower: &Model, info: &TensorInfo, shape: &[usize]) -> Result<GgmlType, Error> {
    let stays = info.ty.is_in_gguf() && tower.scales(&info.name)?.is_none();
    Ok(if stays && !is_f32(&info.name, shape) { info.ty } else { plain(info, shape) })
}

/// What llama.cpp does not multiply as a matrix.
fn is_f32(name: &str, shape: &[usize]) -> bool {
    shape.len() == 1 || name.starts_with("v.patch_embd.") || name.starts_with("v.position_embd.")
}

/// What llama.cpp wants to know besides what the tower's metadata say.
fn describe(tower: &Model, metadata: &mut Metadata) -> Result<(), Error> {
    OWN.iter().for_each(|key| drop(metadata.remove(key)));
    metadata.insert("general.type", Value::Str("mmproj".into()));
    metadata.insert("clip.has_vision_encoder", Value::Bool(true));
    if tower.metadata.get("clip.use_silu") != Some(&Value::Bool(true)) {
        metadata.insert("clip.use_gelu", Value::Bool(true));
    }
    if metadata.get("clip.vision.image_size").is_none() {
        let patch = u64::from(tower.metadata.opt_u32("clip.vision.patch_size")?.unwrap_or(0));
        let side = match tower.info(POSITIONS).map(|t| &t.shape[..]) {
            Some([rows, _]) if rows.isqrt().pow(2) == *rows => rows.isqrt() as u64 * patch,
            _ => ANY_SIZE,
        };
        metadata.insert("clip.vision.image_size", Value::U64(side));
    }
    // Blocks that see all of the image come at one distance in all released models.
    if let Some(&[first, ..]) = tower.metadata.opt_ints("clip.vision.full_attention_blocks")? {
        metadata.insert("clip.vision.n_wa_pattern", Value::U64(first.max(0) as u64 + 1));
    }
    let blocks = tower.metadata.opt_u32("clip.vision.block_count")?.unwrap_or(0).min(1024);
    let deep = "clip.vision.is_deepstack_layers";
    if tower.metadata.opt_str("clip.projector_type")? == Some("qwen3vl_merger")
        && metadata.get(deep).is_none()
    {
        metadata.insert(deep, Value::Array((0..blocks).map(|_| Value::Bool(false)).collect()));
    }
    // Without blocks there is nothing to say of them, but llama.cpp asks.
    for key in ["feed_forward_length", "block_count", "attention.head_count"] {
        let key = format!("clip.vision.{key}");
        if metadata.get(&key).is_none() {
            metadata.insert(&key, Value::U64(0));
        }
    }
    Ok(())
}

struct Projector {
    tower: Model,
    infos: Vec<TensorInfo>,
    contents: Vec<Content>,
}

impl Source for Projector {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn data(&self, index: usize) -> Result<Bytes, octet_weights::Error> {
        let to = &self.infos[index];
        let (i, from) = match &self.contents[index] {
            Content::Values(values) => return Ok(encoded(to, values)),
            Content::Whole(i) => (*i, None),
            Content::Chosen(i, from) => (*i, Some(from)),
        };
        let info = &self.tower.tensors()[i];
        let tensor = self.tower.tensor(&info.name, &info.shape)?;
        if from.is_none() && to.ty == info.ty {
            return Ok(tensor.data);
        }
        let values = tensor.to_f32();
        Ok(match from {
            None => encoded(to, &values),
            Some(from) => {
                let runs: Vec<&[f32]> = from.iter().map(|run| &values[run.clone()]).collect();
                encoded(to, &runs.concat())
            }
        })
    }

    fn check_files(&self) -> Result<(), octet_weights::Error> {
        self.tower.check_files()
    }

    fn release(&self, index: usize) {
        if let Content::Whole(i) | Content::Chosen(i, _) = &self.contents[index] {
            self.tower.release(&self.tower.tensors()[*i].name);
        }
    }
}

/// Values in the type of a tensor, which holds floats.
fn encoded(to: &TensorInfo, values: &[f32]) -> Bytes {
    let columns = to.shape.last().copied().unwrap_or(1);
    let mut out = vec![0; values.len() * to.ty.block_bytes()];
    quantize(to.ty, values, columns, None, &mut out);
    out.into()
}
