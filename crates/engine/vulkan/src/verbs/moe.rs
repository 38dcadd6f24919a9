//! A mixture of experts: route, group, gate and up, down, combine.

use octet_compute::Error;
use octet_compute::backend::Moe;

use super::linear::{Before, Experts, tile};
use crate::backend::{Buf, Vulkan};
use crate::kernel::Kernel;

/// Up to so many tokens, the experts' last projection and their sum are one kernel: each token reads its experts for itself.
const DOWN_TOKENS_MAX: usize = 4;

impl Vulkan {
    pub(crate) fn mixture(&mut self, n: usize, m: &Moe<Self>, layer: usize, h: &Buf) -> Result<(), Error> {
        let input = self.input()?;
        let dummy = self.dummy.clone();
        let s = self.scratch.as_ref().expect("`input` found it");
        let (router, chosen, share, shared_gate) =
            (s.router.clone(), s.chosen.clone(), s.share.clone(), s.shared_gate.clone());
        let (tiles, pair_list, counts) = (s.tiles.clone(), s.pairs.clone(), s.counts.clone());
        let (gate, up, inner) = (s.gate.clone(), s.up.clone(), s.inner.clone());
        let (e_gate, e_up, e_inner) = (s.expert_gate.clone(), s.expert_up.clone(), s.expert_inner.clone());
        let (e_out, shared_out) = (s.expert_out.clone(), s.shared_out.clone());
        let (hidden, pairs) = (m.router.cols, n * m.top_k);

        self.recorder.barrier();
        let before = Before::Norm(&m.norm.buffer, m.eps);
        self.prepare_rows(n, hidden, &h.buffer, before, None, [hidden.is_multiple_of(32), true], &input)?;
        self.recorder.barrier();
        self.project(n, &input, &m.router, &router, false, None)?;
        let fused = m.shared.as_ref().is_some_and(|s| Self::can_fuse(&s.gate, &s.up, &s.down));
        if let Some(shared) = &m.shared {
            if fused {
                self.gate_up(n, &input, &shared.gate, &shared.up, &inner, None)?;
            } else {
                self.project(n, &input, &shared.gate, &gate, false, None)?;
                self.project(n, &input, &shared.up, &up, false, None)?;
            }
        }
        self.recorder.barrier();
        let alone = n == 1; // then there is nothing to group
        let push = [
            m.experts as u32,
            m.top_k as u32,
            hidden as u32,
            m.shared.is_some().into(),
            (layer * m.experts) as u32,
            m.norm_top_k.into(),
            alone.into(),
        ];
        let shared_router = m.shared.as_ref().map_or(&dummy, |s| &s.router.buffer);
        let buffers = [
            &router,
            &chosen,
            &share,
            &input.floats,
            shared_router,
            &shared_gate,
            &counts,
            &tiles,
            &pair_list,
        ];
        self.recorder.dispatch(Kernel::Route, [0; 3], &buffers, &push, [n as u32, 1, 1])?;
        if let Some(shared) = m.shared.as_ref().filter(|_| !fused) {
            let forms = Self::forms(&[&shared.down]);
            self.prepare_rows(n, shared.down.cols, &gate, Before::Swiglu(&up), None, forms, &inner)?;
        }
        self.recorder.barrier();
        let size = tile(n);
        if !alone {
            let push = [m.experts as u32, pairs as u32, size];
            let buffers = [&chosen, &tiles, &pair_list];
            self.recorder.dispatch(Kernel::Group, [0; 3], &buffers, &push, [1, 1, 1])?;
        }
        if let Some(shared) = &m.shared {
            self.project(n, &inner, &shared.down, &shared_out, false, None)?;
        }
        let tiles_max = pairs.min(m.experts + pairs / size as usize);
        if !alone || m.gate.paged.is_some() {
            self.recorder.barrier();
        }
        let slots_at = match m.gate.paged {
            Some(_) => Some(self.resolve_experts(m, layer, tiles_max)?),
            None => None,
        };
        let pairs_per_row = m.top_k as u32;
        let per_token = Experts { tiles: &tiles, pairs: &pair_list, pairs_per_row, tiles_max, slots_at };
        if Self::can_fuse(&m.gate, &m.up, &m.down) {
            self.gate_up(n, &input, &m.gate, &m.up, &e_inner, Some(&per_token))?;
        } else {
            self.project(n, &input, &m.gate, &e_gate, false, Some(&per_token))?;
            self.project(n, &input, &m.up, &e_up, false, Some(&per_token))?;
            self.recorder.barrier();
            let forms = Self::forms(&[&m.down]);
            self.prepare_rows(pairs, m.down.cols, &e_gate, Before::Swiglu(&e_up), None, forms, &e_inner)?;
        }
        self.recorder.barrier();
        if n <= DOWN_TOKENS_MAX && m.down.paged.is_none() && !m.down.ty.is_float() {
            let d = &m.down;
            let buffers = [
                &d.quants,
                &d.high,
                &d.scales,
                &e_inner.quants,
                &e_inner.scales,
                &chosen,
                &share,
                &shared_out,
                &shared_gate,
                &h.buffer,
            ];
            let push = [hidden as u32, d.cols as u32, m.top_k as u32, m.shared.is_some().into()];
            let groups = [hidden.div_ceil(8) as u32, n as u32, 1];
            return self.recorder.dispatch(Kernel::Down, [d.ty as u32, 0, 0], &buffers, &push, groups);
        }
        let per_pair = Experts { pairs_per_row: 1, ..per_token };
        self.project(n, &e_inner, &m.down, &e_out, false, Some(&per_pair))?;
        self.recorder.barrier();
        let push = [hidden as u32, m.top_k as u32, m.shared.is_some().into()];
        let buffers = [&e_out, &share, &shared_out, &shared_gate, &h.buffer];
        let groups = [hidden.div_ceil(128) as u32, n as u32, 1];
        self.recorder.dispatch(Kernel::Combine, [0; 3], &buffers, &push, groups)
    }
}
