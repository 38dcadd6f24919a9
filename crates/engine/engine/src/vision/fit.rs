//! Whether a projector is whole, and which text models it belongs to. Reads headers only.

use octet_weights::Model;

use super::plan::{FRAMES, Merge, Output, Pool, Positions, Tower};
use super::towers::TOWERS;
use crate::Error;
use crate::models::loader::whole::Found;
use crate::models::plan::{Attention, Block, Op, Project, Tensor};

/// Names of the token for images in files whose tokens were renamed.
pub(super) const RENAMED: [&str; 3] = ["<|image_pad|>", "<image_soft_token>", "<|image|>"];

/// Fails unless the file has every tensor of the tower in its shape, and no other.
///
/// # Errors
/// If a tensor is missing, has another shape, or is not used by such towers.
pub fn check(model: &Model, tower: &Tower) -> Result<(), Error> {
    let mut w = Walk { model, found: Found::new(model) };
    w.patches(tower)?;
    for block in &tower.blocks.blocks {
        w.found.block(block)?;
        if tower.bounded {
            w.bounds(block)?;
        }
    }
    match &tower.output {
        Output::Merge(m) => w.merge(tower, m)?,
        Output::Pool(p) => w.pool(p)?,
    }
    tower.deep.iter().try_for_each(|(_, m)| w.merge(tower, m))?;
    tower.embed.norms.iter().flatten().try_for_each(|n| w.found.norm(n))?;
    tower.scales.iter().chain(&tower.class).try_for_each(|t| w.found.vector(t))?;
    match &tower.positions {
        Positions::None => {}
        Positions::Stretched { table, .. }
        | Positions::Fixed { table }
        | Positions::Axes { table, .. }
        | Positions::Cubic { table, .. } => w.found.vector(table)?,
    }
    refuse_unused(model, tower, |name| w.found.used.contains(name))
}

/// Fails if a text model is not one that reads images with this tower: by its architecture, its width and its tokens. What its metadata do not
/// say is not compared.
///
/// # Errors
/// Why not, to follow the file's name.
pub fn belongs(tower: &Tower, text: &Model) -> Result<(), String> {
    let meta = &text.metadata;
    let Ok(arch) = meta.str("general.architecture") else { return Ok(()) };
    let of_kind = TOWERS.iter().find(|t| t.kind == tower.kind);
    if let Some(row) = of_kind.filter(|row| !row.architectures.contains(&arch)) {
        let (kind, known) = (tower.kind, row.architectures.join(", "));
        return Err(format!("'{kind}' is a projector for {known}; the model is '{arch}'"));
    }
    let width = meta.opt_u32(&format!("{arch}.embedding_length")).ok().flatten();
    if let Some(width) = width.filter(|w| *w as usize != tower.out) {
        return Err(format!("its embeddings have {} values, and those of the model {width}", tower.out));
    }
    let token = tower.prompt.token;
    match meta.opt_strs("tokenizer.ggml.tokens") {
        Ok(Some(tokens)) if !names_of(token).any(|name| tokens.iter().any(|t| t == name)) => {
            Err(format!("the model has no token {token}, which stands for an image"))
        }
        _ => Ok(()),
    }
}

/// Whether any supported tower is for text models of this architecture.
pub fn reads_images(architecture: &str) -> bool {
    TOWERS.iter().any(|t| t.architectures.contains(&architecture))
}

/// Names that a token for images may have.
fn names_of(token: &str) -> impl Iterator<Item = &str> {
    let is_renamed = RENAMED.contains(&token);
    std::iter::once(token).chain(RENAMED.into_iter().filter(move |_| is_renamed))
}

/// Fails if the file has a tensor for images for which `is_used` is false.
pub(super) fn refuse_unused(
    model: &Model,
    tower: &Tower,
    is_used: impl Fn(&str) -> bool,
) -> Result<(), Error> {
    let frames = format!("{}.weight.1", tower.embed.name);
    // A row of the text model's table, which reads it there.
    let row = "v.token_embd.img_break";
    // Sound has a tower of its own.
    let elsewhere =
        |name: &str| name == frames || name == row || name.starts_with("a.") || name.starts_with("mm.a.");
    let unused = |name: &&String| !is_used(name) && !elsewhere(name);
    match model.tensors().iter().map(|t| &t.name).chain(model.ignored()).find(unused) {
        None => Ok(()),
        Some(name) => {
            let what = format!(
                "is not used by towers of kind '{}'; ignoring it would change the result",
                tower.kind
            );
            Err(octet_weights::Error::tensor(&model.origin, name, what).into())
        }
    }
}

/// The tensors of a tower, looked up in a file.
struct Walk<'a> {
    model: &'a Model,
    found: Found<'a>,
}

impl Walk<'_> {
    /// The bounds of a block's projections.
    fn bounds(&mut self, b: &Block) -> Result<(), Error> {
        // As they are loaded: of the first branch.
        let all = match b.branches.first().map(|branch| &branch.op) {
            Some(Op::Attention(a)) => projections(a),
            Some(Op::Glu(g)) => g.gate.iter().chain([&g.up, &g.down]).collect(),
            _ => Vec::new(),
        };
        for t in all {
            for end in ["input_min", "input_max", "output_min", "output_max"] {
                self.found.values(&format!("{}.{end}", t.name), &[1])?;
            }
        }
        Ok(())
    }

    /// The projection of patches: a checkpoint's convolution over frames, a matrix, or a convolution for each frame.
    fn patches(&mut self, tower: &Tower) -> Result<(), Error> {
        let (name, hidden, side) = (format!("{}.weight", tower.embed.name), tower.hidden(), tower.patch);
        let shape = self.model.info(&name).map(|t| t.shape.clone()).unwrap_or_default();
        match shape[..] {
            [rows, frames, _, _] if rows == 3 * hidden && (1..=8).contains(&frames) => {
                self.found.tensor(&name, &[rows, frames, side, side])?;
            }
            [_, _] => self.found.tensor(&name, &[hidden, tower.patch_len()])?,
            _ => {
                let frames = if tower.video.is_some() { FRAMES } else { 1 };
                let further = (1..frames).map(|i| format!("{name}.{i}"));
                std::iter::once(name.clone())
                    .chain(further)
                    .try_for_each(|name| self.found.tensor(&name, &[hidden, 3, side, side]))?;
            }
        }
        if tower.embed.bias {
            self.found.values(&format!("{}.bias", tower.embed.name), &[hidden])?;
        }
        Ok(())
    }

    fn merge(&mut self, tower: &Tower, m: &Merge) -> Result<(), Error> {
        match &m.first {
            Some(t) if m.hidden_first => {
                let name = format!("{}.weight", t.name);
                let (rows, cols) = (t.shape[0], t.shape[1]);
                let shape = match self.model.info(&name).map(|t| t.shape.len()) {
                    Some(4) => vec![rows, tower.hidden(), tower.merge, tower.merge],
                    _ => vec![rows, cols],
                };
                self.found.tensor(&name, &shape)?;
                self.found.bias(&t.name, &[rows])?;
            }
            Some(t) => self.found.matrix(t)?,
            None => {}
        }
        if let Some(middle) = &m.middle {
            self.found.matrix(&middle.project)?;
            self.found.norm(&middle.norm)?;
        }
        m.glu.as_ref().map_or(Ok(()), |g| self.found.glu(g))?;
        m.norm.as_ref().map_or(Ok(()), |n| self.found.norm(n))
    }

    fn pool(&mut self, p: &Pool) -> Result<(), Error> {
        p.shift.iter().flatten().try_for_each(|t| self.found.vector(t))?;
        p.norm.iter().chain([&p.last]).try_for_each(|n| self.found.norm(n))?;
        match p.inputs_first {
            true => self
                .found
                .tensor(&format!("{}.weight", p.project.name), &[p.project.shape[1], p.project.shape[0]]),
            false => self.found.matrix(&p.project),
        }
    }
}

/// The projections of attention in a tower.
fn projections(a: &Attention) -> Vec<&Tensor> {
    match &a.project {
        Project::Direct { q, k, v } => std::iter::once(q).chain(k).chain(v).chain([&a.out]).collect(),
        Project::Latent { .. } => Vec::new(),
    }
}
