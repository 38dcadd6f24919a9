//! Compiles a tower's kernels when it is loaded, where its backend compiles any: otherwise the first image would wait for them.

use std::sync::Arc;

use octet_compute::backend::Backend;

use super::Picture;
use super::encoder::Work;
use super::plan::PIECE_TOKENS;
use super::resized::Resized;
use crate::Error;

impl<B: Backend> Work<B> {
    /// Compiles the kernels of pieces of all sizes.
    ///
    /// # Errors
    /// If the device does not support one of them, or has no memory for an image.
    pub(super) fn compile_kernels(&mut self, be: &mut B) -> Result<(), Error> {
        let mut done = Ok(());
        be.compile_kernels(|be| done = self.small_images(be))?;
        done
    }

    /// Runs a piece of each size through all parts of the tower.
    fn small_images(&mut self, be: &mut B) -> Result<(), Error> {
        // As many patches as the largest piece has, where the tower leaves images as they are.
        let side = self.tower.patch * PIECE_TOKENS.isqrt();
        let picture = Picture { width: side, height: side, rgb: vec![0; 3 * side * side] };
        let image: Arc<Resized> = Arc::new(self.tower.resize(&picture)?);
        let (each, tile) = (self.tower.merge * self.tower.merge, self.tower.tile_patches(&image));
        // Backends choose kernels by powers of two.
        let sizes = std::iter::successors(Some(each), |n| Some(2 * n));
        for patches in sizes.take_while(|n| *n <= PIECE_TOKENS.max(each)).map(|n| n.min(tile)) {
            // The end of a tile, after which its further state comes.
            let part = tile - patches..tile;
            let mut job = self.job(be, Arc::clone(&image), std::iter::once(part))?;
            while !self.step(be, &mut job)? {}
        }
        Ok(())
    }
}
