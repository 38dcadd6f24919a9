//! A mixture of experts: route, group, gate and up, down, combine.

use octet_compute::Error;
use octet_compute::backend::{Moe, Norm};

use super::linear::{Before, Experts, expert_tile, gate_of, is_shared, tile};
use super::{ROUTER_TICKET, Rows, TAIL_TOKENS_MAX};
use crate::backend::{Buf, Vulkan, Weight};
use crate::kernel::Kernel;
use crate::record::Dispatch;

impl Vulkan {
    /// Records what the verb reads.
    fn count_bytes(&mut self, m: &Moe<Self>, layer: usize) {
        self.traffic.add_weights(&[&m.router.weight]);
        if let Some(s) = &m.shared {
            self.traffic.add_weights(&[&s.glu.up, &s.glu.down]);
            s.glu.gate.iter().for_each(|w| self.traffic.add_weights(&[w]));
            self.traffic.add(s.gate.as_ref().map_or(0, |g| 4 * g.len as u64));
        }
        self.expert_bytes.resize(self.expert_bytes.len().max(layer + 1), 0);
        let parts = m.experts.gate.iter().chain([&m.experts.up, &m.experts.down]);
        self.expert_bytes[layer] = parts.map(Weight::bytes).sum();
    }

    pub(crate) fn mixture(
        &mut self,
        n: usize,
        m: &Moe<Self>,
        norm: &Norm<Self>,
        layer: usize,
        h: &Buf,
    ) -> Result<(), Error> {
        self.count_bytes(m, layer);
        let (input, hidden) = (self.input()?, m.router.weight.cols);
        let forms = [hidden.is_multiple_of(32), true];
        self.norm_stage(n, hidden, &h.buffer, (&norm.weight.buffer, norm.eps), forms, &input)?;
        let tile = self.route(n, m, layer, &input)?;
        let s = self.scratch()?;
        let (tiles, pair_list, pairs) = (s.tiles.clone(), s.pairs.clone(), n * m.router.top_k);
        let tiles_max = pairs.min(m.router.experts + pairs / tile as usize);
        let slots_at = match m.experts.up.paged {
            Some(_) => Some(self.resolve_experts(m, layer, tiles_max)?),
            None => None,
        };
        let pairs_per_row = m.router.top_k as u32;
        let experts = Experts { tiles: &tiles, pairs: &pair_list, pairs_per_row, tiles_max, tile, slots_at };
        self.experts_gate_up(n, m, &input, &experts)?;
        self.recorder.barrier()?;
        self.experts_down(n, m, &experts, h)
    }

    /// Chooses the experts of each token and groups pairs of tokens and experts into tiles; computes the shared expert beside that.
    /// Returns the largest number of pairs in a tile.
    fn route(&mut self, n: usize, m: &Moe<Self>, layer: usize, input: &Rows) -> Result<u32, Error> {
        let s = self.scratch()?;
        let (chosen, tiles, pair_list) = (s.chosen.clone(), s.tiles.clone(), s.pairs.clone());
        let (gate, up, inner, shared_out) =
            (s.gate.clone(), s.up.clone(), s.inner.clone(), s.shared_out.clone());
        let is_few = n <= TAIL_TOKENS_MAX;
        let choice = self.router(n, m, layer, input)?;
        let fused = !is_shared(tile(n))
            && m.shared.as_ref().is_some_and(|s| {
                let g = &s.glu;
                g.gate.as_ref().is_some_and(|gate| Self::can_fuse(gate, &g.up, &g.down))
            });
        if let Some(shared) = m.shared.as_ref().map(|s| &s.glu) {
            if fused {
                self.gate_up(n, input, gate_of(shared)?, &shared.up, &inner, None)?;
            } else {
                self.project(n, input, gate_of(shared)?, &gate, None)?;
                self.project(n, input, &shared.up, &up, None)?;
            }
        }
        self.recorder.barrier()?;
        if let Some(choice) = choice {
            self.recorder.start(&choice)?;
        }
        if let Some(shared) = m.shared.as_ref().map(|s| &s.glu).filter(|_| !fused) {
            let forms = Self::forms(&[&shared.down]);
            self.prepare_rows(n, shared.down.cols, &gate, Before::Swiglu(&up), None, forms, &inner)?;
        }
        if !is_few || !fused {
            self.recorder.barrier()?;
        }
        let pairs = n * m.router.top_k;
        let all = [gate_of(&m.experts)?, &m.experts.up, &m.experts.down];
        let is_quantised = all.iter().all(|w| !w.ty.is_float());
        let size = expert_tile(n, pairs, m.router.experts, is_quantised);
        if !is_few {
            let push = [m.router.experts as u32, pairs as u32, size];
            let buffers = [&chosen, &tiles, &pair_list];
            self.recorder.dispatch(Kernel::Group, [0; 3], &buffers, &push, [1, 1, 1])?;
        }
        if let Some(shared) = &m.shared {
            self.project(n, &inner, &shared.glu.down, &shared_out, None)?;
        }
        if !is_few {
            self.recorder.barrier()?;
        }
        Ok(size)
    }

    /// Starts the router. For a few tokens its last workgroup also chooses and groups their experts; for more, returns the kernel that
    /// chooses, for the next stage.
    fn router(
        &mut self,
        n: usize,
        m: &Moe<Self>,
        layer: usize,
        input: &Rows,
    ) -> Result<Option<Dispatch>, Error> {
        let dummy = self.dummy.clone();
        let s = self.scratch()?;
        let (router, tiles, pair_list, tickets) =
            (s.router.clone(), s.tiles.clone(), s.pairs.clone(), s.tickets.clone());
        let [layers, experts, tokens, _] = s.counted;
        let shared_router = m.shared.as_ref().and_then(|s| s.gate.as_ref()).map_or(&dummy, |g| &g.buffer);
        let choice =
            [&s.chosen, &s.share, &input.floats, shared_router, &s.shared_gate, &s.counts[self.side]]
                .map(|b| (*b).clone());
        let push = [
            m.router.experts as u32,
            m.router.top_k as u32,
            m.router.weight.cols as u32,
            m.shared.is_some().into(),
            (layer * m.router.experts) as u32,
            m.router.normalise.into(),
            (layers * experts + layer * tokens * (m.router.top_k + 1)) as u32,
        ];
        let mut kernel = self.projection(n, input, &m.router.weight, &router, false, None);
        if n > TAIL_TOKENS_MAX {
            self.recorder.start(&kernel)?;
            return Ok(Some(Dispatch {
                kernel: Kernel::Route,
                constants: [0; 3],
                buffers: [router].into_iter().chain(choice).collect(),
                push: push.to_vec(),
                groups: [n as u32, 1, 1],
            }));
        }
        kernel.kernel = Kernel::Router;
        kernel.buffers.truncate(7);
        kernel.buffers.extend(choice.iter().chain([&tiles, &pair_list, &tickets]).cloned());
        kernel.push.truncate(7);
        kernel.push.extend(push.iter().chain([&ROUTER_TICKET]));
        self.recorder.start(&kernel)?;
        Ok(None)
    }

    /// Gate and up of the chosen experts, and the preparation of their product.
    fn experts_gate_up(
        &mut self,
        n: usize,
        m: &Moe<Self>,
        x: &Rows,
        experts: &Experts<'_>,
    ) -> Result<(), Error> {
        let s = self.scratch()?;
        let (gate, up, inner) = (s.expert_gate.clone(), s.expert_up.clone(), s.expert_inner.clone());
        let (g, top_k) = (&m.experts, m.router.top_k);
        let m_gate = gate_of(g)?;
        if !is_shared(experts.tile) && Self::can_fuse(m_gate, &g.up, &g.down) {
            return self.gate_up(n, x, m_gate, &g.up, &inner, Some(experts));
        }
        self.project(n, x, m_gate, &gate, Some(experts))?;
        self.project(n, x, &g.up, &up, Some(experts))?;
        self.recorder.barrier()?;
        let forms = Self::forms(&[&g.down]);
        self.prepare_rows(n * top_k, g.down.cols, &gate, Before::Swiglu(&up), None, forms, &inner)
    }

    /// Down of the chosen experts, and their weighted sum with the shared one: `h += ...`. A single kernel for a few tokens.
    fn experts_down(&mut self, n: usize, m: &Moe<Self>, experts: &Experts<'_>, h: &Buf) -> Result<(), Error> {
        let dummy = self.dummy.clone();
        let s = self.scratch()?;
        let (inner, out, chosen) = (s.expert_inner.clone(), s.expert_out.clone(), s.chosen.clone());
        let (share, shared_out, shared_gate) = (s.share.clone(), s.shared_out.clone(), s.shared_gate.clone());
        let (d, hidden) = (&m.experts.down, m.router.weight.cols);
        if n <= TAIL_TOKENS_MAX && d.paged.is_none() && !d.ty.is_float() {
            // The tail's buffers are unused without a tail.
            let unused = [&dummy; 5];
            let buffers = [
                &d.quants,
                &d.high,
                &d.scales,
                &inner.quants,
                &inner.scales,
                &chosen,
                &share,
                &shared_out,
                &shared_gate,
                &h.buffer,
            ];
            return self.recorder.hold(Dispatch {
                kernel: Kernel::Down,
                constants: [d.ty as u32, 0, 0],
                buffers: buffers.iter().chain(&unused).map(|b| (*b).clone()).collect(),
                push: vec![hidden as u32, d.cols as u32, m.router.top_k as u32, m.shared.is_some().into()],
                groups: [hidden.div_ceil(8) as u32, n as u32, 1],
            });
        }
        let per_pair = Experts { pairs_per_row: 1, ..*experts };
        self.project(n, &inner, d, &out, Some(&per_pair))?;
        self.recorder.barrier()?;
        let push = [hidden as u32, m.router.top_k as u32, m.shared.is_some().into()];
        let buffers = [&out, &share, &shared_out, &shared_gate, &h.buffer];
        let groups = [hidden.div_ceil(128) as u32, n as u32, 1];
        self.recorder.dispatch(Kernel::Combine, [0; 3], &buffers, &push, groups)
    }
}
