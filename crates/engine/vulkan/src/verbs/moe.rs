//! A mixture of experts: route, group, gate and up, down, combine.

use octet_compute::Error;
use octet_compute::backend::Moe;

use super::linear::{Before, Experts, tile};
use crate::backend::{Buf, Vulkan};
use crate::kernel::Kernel;

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
        if let Some(shared) = &m.shared {
            self.project(n, &input, &shared.gate, &gate, false, None)?;
            self.project(n, &input, &shared.up, &up, false, None)?;
        }
        self.recorder.barrier();
        let push = [
            m.experts as u32,
            m.top_k as u32,
            hidden as u32,
            m.shared.is_some().into(),
            (layer * m.experts) as u32,
            m.norm_top_k.into(),
        ];
        let shared_router = m.shared.as_ref().map_or(&dummy, |s| &s.router.buffer);
        let buffers = [&router, &chosen, &share, &input.floats, shared_router, &shared_gate, &counts];
        self.recorder.dispatch(Kernel::Route, [0; 3], &buffers, &push, [n as u32, 1, 1])?;
        if let Some(shared) = &m.shared {
            let forms = Self::forms(&[&shared.down]);
            self.prepare_rows(n, shared.down.cols, &gate, Before::Swiglu(&up), None, forms, &inner)?;
        }
        self.recorder.barrier();
        let size = tile(n);
        let push = [m.experts as u32, pairs as u32, size];
        self.recorder.dispatch(Kernel::Group, [0; 3], &[&chosen, &tiles, &pair_list], &push, [1, 1, 1])?;
        if let Some(shared) = &m.shared {
            self.project(n, &inner, &shared.down, &shared_out, false, None)?;
        }
        self.recorder.barrier();
        let tiles_max = pairs.min(m.experts + pairs / size as usize);
        let per_token =
            Experts { tiles: &tiles, pairs: &pair_list, pairs_per_row: m.top_k as u32, tiles_max };
        self.project(n, &input, &m.gate, &e_gate, false, Some(&per_token))?;
        self.project(n, &input, &m.up, &e_up, false, Some(&per_token))?;
        self.recorder.barrier();
        let forms = Self::forms(&[&m.down]);
        self.prepare_rows(pairs, m.down.cols, &e_gate, Before::Swiglu(&e_up), None, forms, &e_inner)?;
        self.recorder.barrier();
        let per_pair = Experts { pairs_per_row: 1, ..per_token };
        self.project(n, &e_inner, &m.down, &e_out, false, Some(&per_pair))?;
        self.recorder.barrier();
        let push = [hidden as u32, m.top_k as u32, m.shared.is_some().into()];
        let buffers = [&e_out, &share, &shared_out, &shared_gate, &h.buffer];
        let groups = [hidden.div_ceil(128) as u32, n as u32, 1];
        self.recorder.dispatch(Kernel::Combine, [0; 3], &buffers, &push, groups)
    }
}
