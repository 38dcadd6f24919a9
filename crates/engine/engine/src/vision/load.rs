//! Loads a tower into a backend, with every shape checked.

use octet_compute::backend::{Backend, CacheShape, KvType, LayerCache, PageGroup, Part};
use octet_compute::batch::PAGE_TOKENS;
use octet_compute::cpu::{Arbiter, Cpu, CpuOptions};
use octet_compute::inspect::Inspect;
use octet_weights::{GgmlType, Matrix, Model};

use super::encoder::{Encoder, Loaded};
use super::fit::refuse_unused;
use super::plan::{self, FRAMES, Positions, Tower};
use super::weights::{Bounds, Merge, Middle, Output, Pool, Weights};
use crate::Error;
use crate::models::derive;
use crate::models::loader::Loader;
use crate::models::plan::{Block, Op, Project};

/// Loads the tower of a projector onto the processor.
///
/// # Errors
/// If the file is damaged or there is no memory for it.
pub fn open(
    model: &Model,
    tower: Tower,
    cpu: &CpuOptions,
    arbiter: &Arbiter,
) -> Result<Box<dyn Encoder>, Error> {
    open_on(Cpu::new(cpu)?.with_arbiter(arbiter), model, tower)
}

/// Loads the tower of a projector into a backend.
///
/// # Errors
/// If the file is damaged, or the backend lacks memory or a part.
pub fn open_on<B: Backend + Inspect>(
    mut be: B,
    model: &Model,
    tower: Tower,
) -> Result<Box<dyn Encoder>, Error> {
    let mut parts = derive::parts(&tower.blocks);
    if tower.bounded {
        parts.insert(Part::Bounds);
    }
    if let Some(part) = parts.into_iter().find(|p| !be.supports(*p)) {
        let what = format!("{}: {part} are not supported on this device", model.origin);
        return Err(octet_compute::Error(what).into());
    }
    let embed = patch_embed(model, &tower)?;
    let of_frames = tower.video.is_some().then(|| frames_embed(model, &tower)).transpose()?;
    let mut silent = |_, _| {};
    let mut l = Loader::new(model, &mut be, &tower.blocks, &mut silent);
    let bias = match tower.embed.bias {
        true => Some(values(&mut l, &format!("{}.bias", tower.embed.name), &[tower.hidden()])?),
        false => None,
    };
    let name = format!("{}.weight", tower.embed.name);
    let patch = l.pack(&name, &embed, bias.as_deref())?;
    let frames = of_frames.map(|w| l.pack(&name, &w, bias.as_deref())).transpose()?;
    let blocks = l.blocks(&tower.blocks.blocks)?;
    let bounds = match tower.bounded {
        true => tower.blocks.blocks.iter().map(|b| bounds(model, &mut l, b)).collect::<Result<_, _>>()?,
        false => Vec::new(),
    };
    let output = match &tower.output {
        plan::Output::Merge(m) => Output::Merge(merge(model, &mut l, &tower, m)?),
        plan::Output::Pool(p) => Output::Pool(Box::new(pool(model, &mut l, p)?)),
    };
    let deep = tower
        .deep
        .iter()
        .map(|(i, m)| Ok((*i, merge(model, &mut l, &tower, m)?)))
        .collect::<Result<_, Error>>()?;
    let mut norms = [None, None, None];
    for (norm, plan) in norms.iter_mut().zip(&tower.embed.norms) {
        *norm = plan.as_ref().map(|n| l.norm(n)).transpose()?;
    }
    let scales = tower.scales.iter().map(|t| vector(&mut l, t)).collect::<Result<_, Error>>()?;
    let table = match &tower.positions {
        Positions::None => Vec::new(),
        Positions::Stretched { table, .. }
        | Positions::Fixed { table }
        | Positions::Axes { table, .. }
        | Positions::Cubic { table, .. } => values(&mut l, &table.name, &table.shape)?,
    };
    let class = match &tower.class {
        None => None,
        Some(t) => {
            let mut state = values(&mut l, &t.name, &t.shape)?;
            state.iter_mut().zip(&table).for_each(|(state, position)| *state += position);
            Some(l.buffer(&state)?)
        }
    };
    refuse_unused(model, &tower, |name| l.is_used(name))?;
    model.check_files()?;

    let first = tower.blocks.ops().find_map(|(_, op)| (op.cache() != LayerCache::None).then(|| op.cache()));
    let shape = CacheShape {
        layers: vec![first.unwrap_or(LayerCache::None).in_group(PageGroup::All)],
        pages: tower.rows_max().div_ceil(PAGE_TOKENS),
        windowed: None,
        slots: 1,
        guesses: 0,
        kv: KvType::F32.into(),
    };
    let cache = be.cache(&shape, tower.step_shape())?;
    Ok(Box::new(Loaded::new(
        be,
        tower,
        Weights { patch, frames, norms, class, blocks, bounds, scales, output, deep, table },
        cache,
        model.size_bytes(),
    )?))
}

/// The projection of patches in f32, `[hidden, 3 * patch * patch]`: the frames of an image are equal, so their weights add up.
fn patch_embed(model: &Model, tower: &Tower) -> Result<Matrix, Error> {
    let (name, hidden, side) = (format!("{}.weight", tower.embed.name), tower.hidden(), tower.patch);
    let len = tower.patch_len();
    let shape = model.info(&name).map(|t| t.shape.clone()).unwrap_or_default();
    let mut values = vec![0.0; hidden * len];
    match shape[..] {
        // A checkpoint's convolution over frames.
        [rows, frames, _, _] if rows == 3 * hidden && (1..=8).contains(&frames) => {
            let all = model.tensor(&name, &[rows, frames, side, side])?.to_f32();
            let area = side * side;
            for (i, plane) in all.chunks_exact(area).enumerate() {
                // [hidden, 3, frames] to [hidden, 3]
                let to = i / frames * area;
                values[to..to + area].iter_mut().zip(plane).for_each(|(v, x)| *v += x);
            }
        }
        [_, _] => values = model.tensor(&name, &[hidden, len])?.to_f32(),
        _ => {
            for name in [name.clone(), format!("{name}.1")] {
                if name.ends_with(".1") && model.info(&name).is_none() {
                    continue;
                }
                let all = model.tensor(&name, &[hidden, 3, side, side])?.to_f32();
                values.iter_mut().zip(all).for_each(|(v, x)| *v += x);
            }
        }
    }
    Ok(floats(hidden, len, &values))
}

/// The projection of two frames in f32, `[hidden, 2 * 3 * patch * patch]`.
fn frames_embed(model: &Model, tower: &Tower) -> Result<Matrix, Error> {
    let (name, hidden, side) = (format!("{}.weight", tower.embed.name), tower.hidden(), tower.patch);
    let (len, area) = (tower.patch_len(), side * side);
    let mut values = vec![0.0; hidden * FRAMES * len];
    if let Some([rows, FRAMES, _, _]) = model.info(&name).map(|t| &t.shape[..]) {
        let all = model.tensor(&name, &[*rows, FRAMES, side, side])?.to_f32();
        for (i, plane) in all.chunks_exact(area).enumerate() {
            // [hidden, 3, frames] to [hidden, frames, 3]
            let (row, channel, frame) = (i / FRAMES / 3, i / FRAMES % 3, i % FRAMES);
            values[((row * FRAMES + frame) * 3 + channel) * area..][..area].copy_from_slice(plane);
        }
    } else {
        for (frame, name) in [name.clone(), format!("{name}.1")].iter().enumerate() {
            let all = model.tensor(name, &[hidden, 3, side, side])?.to_f32();
            for (row, all) in all.chunks_exact(len).enumerate() {
                values[(row * FRAMES + frame) * len..][..len].copy_from_slice(all);
            }
        }
    }
    Ok(floats(hidden, FRAMES * len, &values))
}

fn floats(rows: usize, cols: usize, values: &[f32]) -> Matrix {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    Matrix::new(GgmlType::F32, rows, cols, bytes.into())
}

/// A tensor that the host reads.
fn values<B: Backend>(l: &mut Loader<'_, B>, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
    let values = l.values(name, shape)?;
    l.done(name);
    Ok(values)
}

/// A tensor of which each value is multiplied with one of a row.
fn vector<B: Backend>(l: &mut Loader<'_, B>, t: &crate::models::plan::Tensor) -> Result<B::Buf, Error> {
    let values = values(l, &t.name, &t.shape)?;
    l.buffer(&values)
}

/// The bounds of the projections of a block, in the order of [`Bounds`].
fn bounds<B: Backend>(model: &Model, l: &mut Loader<'_, B>, block: &Block) -> Result<Vec<Bounds>, Error> {
    let projections = match &block.branches[0].op {
        Op::Attention(a) => match &a.project {
            Project::Direct { q, k: Some(k), v: Some(v) } => vec![q, k, v, &a.out],
            _ => Vec::new(),
        },
        Op::Glu(glu) if glu.gate.is_none() => {
            let what = "is bounded; such a projection has a gate beside it";
            return Err(octet_weights::Error::tensor(&model.origin, &glu.up.name, what).into());
        }
        Op::Glu(glu) => glu.gate.iter().chain([&glu.up, &glu.down]).collect(),
        _ => Vec::new(),
    };
    let mut pair = |name: &str, part: &str| {
        let [min, max] = [format!("{name}.{part}_min"), format!("{name}.{part}_max")];
        let bounds = [values(l, &min, &[1])?[0], values(l, &max, &[1])?[0]];
        match bounds[0] <= bounds[1] {
            true => Ok(bounds),
            false => {
                let what = format!("is {}, and {max} is {}", bounds[0], bounds[1]);
                Err(Error::from(octet_weights::Error::tensor(&model.origin, &min, what)))
            }
        }
    };
    let of = |p: &crate::models::plan::Tensor| {
        Ok(Bounds { input: pair(&p.name, "input")?, output: pair(&p.name, "output")? })
    };
    projections.into_iter().map(of).collect()
}

fn merge<B: Backend>(
    model: &Model,
    l: &mut Loader<'_, B>,
    tower: &Tower,
    m: &plan::Merge,
) -> Result<Merge<B>, Error> {
    let first = match &m.first {
        Some(t) if m.hidden_first => {
            let (name, rows, cols) = (format!("{}.weight", t.name), t.shape[0], t.shape[1]);
            let (hidden, patches) = (tower.hidden(), cols / tower.hidden());
            let shape = match model.info(&name).map(|t| t.shape.len()) {
                // A convolution.
                Some(4) => vec![rows, hidden, tower.merge, tower.merge],
                _ => vec![rows, cols],
            };
            let all = model.tensor(&name, &shape)?.to_f32();
            // [hidden, patches] to [patches, hidden]
            let at = |i: usize| all[i / cols * cols + i % hidden * patches + i % cols / hidden];
            let turned: Vec<f32> = (0..rows * cols).map(at).collect();
            let bias = format!("{}.bias", t.name);
            let bias = match model.info(&bias) {
                Some(_) => Some(values(l, &bias, &[rows])?),
                None => None,
            };
            Some(l.pack(&name, &floats(rows, cols, &turned), bias.as_deref())?)
        }
        Some(t) => Some(l.matrix(t)?),
        None => None,
    };
    let middle = match &m.middle {
        None => None,
        Some(middle) => Some(Middle {
            project: l.matrix(&middle.project)?,
            norm: l.norm(&middle.norm)?,
            act: middle.act,
            ones: l.buffer(&vec![1.0; middle.norm.len])?,
        }),
    };
    let glu = m.glu.as_ref().map(|glu| l.glu(glu)).transpose()?;
    Ok(Merge { norm: m.norm.as_ref().map(|n| l.norm(n)).transpose()?, first, middle, glu })
}

fn pool<B: Backend>(model: &Model, l: &mut Loader<'_, B>, p: &plan::Pool) -> Result<Pool<B>, Error> {
    let shift = match &p.shift {
        None => None,
        Some([bias, scale]) => {
            Some([values(l, &bias.name, &bias.shape)?, values(l, &scale.name, &scale.shape)?])
        }
    };
    let (rows, cols) = (p.project.shape[0], p.project.shape[1]);
    let project = if p.inputs_first {
        let name = format!("{}.weight", p.project.name);
        let all = model.tensor(&name, &[cols, rows])?.to_f32();
        let turned: Vec<f32> = (0..rows * cols).map(|i| all[i % cols * rows + i / cols]).collect();
        l.pack(&name, &floats(rows, cols, &turned), None)?
    } else {
        l.matrix(&p.project)?
    };
    let norm = p.norm.as_ref().map(|n| l.norm(n)).transpose()?;
    Ok(Pool { norm, factor: p.factor, shift, last: l.norm(&p.last)?, project })
}
