//! The memory that a tower takes beside its weights.

use octet_compute::backend::StepShape;

use super::plan::{FRAMES, Output, PIECE_TOKENS, Tower};
use crate::models::derive;
use crate::models::plan::Tensor;

impl Tower {
    /// Bytes of activations for the largest image: keys, values, queries and states of all patches, and embeddings; those of a piece in
    /// addition.
    pub fn work_bytes(&self) -> u64 {
        let piece = self.patch_len_max().max(self.hidden()) + 4 * self.hidden() + 2 * self.inner() + self.out;
        let values = self.rows_max() * 4 * self.hidden() + PIECE_TOKENS * piece;
        4 * values as u64 + self.host_bytes()
    }

    /// Those of them that are always in the machine's memory: embeddings, and the states that become their means.
    pub fn host_bytes(&self) -> u64 {
        let pooled = if matches!(self.output, Output::Pool(_)) { self.hidden() } else { 0 };
        4 * (self.rows_max() * pooled + self.tokens_max() * self.width()) as u64
    }

    /// The largest step of a piece.
    pub fn step_shape(&self) -> StepShape {
        let wide = match &self.output {
            Output::Merge(m) => {
                m.glu.as_ref().map_or(0, |g| g.inner).max(self.merged()).max(self.side_by_side())
            }
            Output::Pool(_) => 0,
        };
        let step = derive::step_shape(&self.blocks, self.piece_rows(), 0);
        StepShape { intermediate: step.intermediate.max(wide), ..step }
    }

    /// Columns of the widest projection.
    pub fn cols_max(&self) -> usize {
        let inside = [self.patch_len_max(), self.hidden(), self.side_by_side()];
        inside.into_iter().fold(self.step_shape().intermediate, usize::max)
    }

    /// Values of the patches of a token side by side.
    fn side_by_side(&self) -> usize {
        self.merge * self.merge * self.hidden()
    }

    /// How often the values of a tensor of the file are loaded in f32, whatever their type, since they are put into another order first. 0: it is
    /// loaded as it is.
    pub fn copies_in_f32(&self, tensor: &str) -> usize {
        let is = |t: &Tensor| tensor.strip_suffix(".weight") == Some(&*t.name);
        let of = |embed: &str| tensor.strip_prefix(embed).is_some_and(|rest| rest.starts_with(".weight"));
        match &self.output {
            // The sum of both frames, and both of them.
            _ if of(&self.embed.name) => {
                if self.video.is_some() {
                    FRAMES
                } else {
                    1
                }
            }
            Output::Merge(m) => usize::from(m.hidden_first && m.first.as_ref().is_some_and(is)),
            Output::Pool(p) => usize::from(p.inputs_first && is(&p.project)),
        }
    }
}
