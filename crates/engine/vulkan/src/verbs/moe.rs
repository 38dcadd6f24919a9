//! A mixture of experts: route, group, gate and up, down, combine.

use octet_compute::Error;
use octet_compute::backend::Moe;

use super::linear::{Before, Experts, expert_tile, is_shared, tile};
use super::{ROUTER_TICKET, TAIL_TOKENS_MAX};
use crate::backend::{Buf, Vulkan};
use crate::kernel::Kernel;
use crate::record::Dispatch;

impl Vulkan {
    /// Notes what the verb reads.
    fn count_bytes(&mut self, m: &Moe<Self>, layer: usize) {
        self.traffic.add_weights(&[&m.router]);
        if let Some(s) = &m.shared {
            self.traffic.add_weights(&[&s.gate, &s.up, &s.down]);
            self.traffic.add(4 * s.router.len as u64);
        }
        self.expert_bytes.resize(self.expert_bytes.len().max(layer + 1), 0);
        self.expert_bytes[layer] = m.gate.bytes() + m.up.bytes() + m.down.bytes();
    }

    pub(crate) fn mixture(&mut self, n: usize, m: &Moe<Self>, layer: usize, h: &Buf) -> Result<(), Error> {
        let input = self.input()?;
        self.count_bytes(m, layer);
        let dummy = self.dummy.clone();
        let s = self.scratch.as_ref().expect("`input` found it");
        let (router, chosen, share, shared_gate) =
            (s.router.clone(), s.chosen.clone(), s.share.clone(), s.shared_gate.clone());
        let (tiles, pair_list, counts) = (s.tiles.clone(), s.pairs.clone(), s.counts.clone());
        let tickets = s.tickets.clone();
        let (gate, up, inner) = (s.gate.clone(), s.up.clone(), s.inner.clone());
        let (e_gate, e_up, e_inner) = (s.expert_gate.clone(), s.expert_up.clone(), s.expert_inner.clone());
        let (e_out, shared_out) = (s.expert_out.clone(), s.shared_out.clone());
        let (hidden, pairs) = (m.router.cols, n * m.top_k);
        let [layers, experts, tokens, _] = s.counted;

        let forms = [hidden.is_multiple_of(32), true];
        self.norm_stage(n, hidden, &h.buffer, (&m.norm.buffer, m.eps), forms, &input)?;
        let is_few = n <= TAIL_TOKENS_MAX;
        let shared_router = m.shared.as_ref().map_or(&dummy, |s| &s.router.buffer);
        let choice =
            [&chosen, &share, &input.floats, shared_router, &shared_gate, &counts].map(|b| (*b).clone());
        let choice_push = [
            m.experts as u32,
            m.top_k as u32,
            hidden as u32,
            m.shared.is_some().into(),
            (layer * m.experts) as u32,
            m.norm_top_k.into(),
            (layers * experts + layer * tokens * (m.top_k + 1)) as u32,
        ];
        let mut kernel = self.projection(n, &input, &m.router, &router, false, None);
        if is_few {
            kernel.kernel = Kernel::Router;
            kernel.buffers.truncate(7);
            kernel.buffers.extend(choice.iter().chain([&tiles, &pair_list, &tickets]).cloned());
            kernel.push.truncate(7);
            kernel.push.extend(choice_push.iter().chain([&ROUTER_TICKET]));
        }
        self.recorder.start(&kernel)?;
        let fused =
            !is_shared(tile(n)) && m.shared.as_ref().is_some_and(|s| Self::can_fuse(&s.gate, &s.up, &s.down));
        if let Some(shared) = &m.shared {
            if fused {
                self.gate_up(n, &input, &shared.gate, &shared.up, &inner, None)?;
            } else {
                self.project(n, &input, &shared.gate, &gate, None)?;
                self.project(n, &input, &shared.up, &up, None)?;
            }
        }
        self.recorder.barrier()?;
        if !is_few {
            let buffers: Vec<_> = [&router].into_iter().chain(&choice).collect();
            self.recorder.dispatch(Kernel::Route, [0; 3], &buffers, &choice_push, [n as u32, 1, 1])?;
        }
        if let Some(shared) = m.shared.as_ref().filter(|_| !fused) {
            let forms = Self::forms(&[&shared.down]);
            self.prepare_rows(n, shared.down.cols, &gate, Before::Swiglu(&up), None, forms, &inner)?;
        }
        if !is_few || !fused {
            self.recorder.barrier()?;
        }
        let is_quantised = [&m.gate, &m.up, &m.down].iter().all(|w| !w.ty.is_float());
        let size = expert_tile(n, pairs, m.experts, is_quantised);
        if !is_few {
            let push = [m.experts as u32, pairs as u32, size];
            let buffers = [&chosen, &tiles, &pair_list];
            self.recorder.dispatch(Kernel::Group, [0; 3], &buffers, &push, [1, 1, 1])?;
        }
        if let Some(shared) = &m.shared {
            self.project(n, &inner, &shared.down, &shared_out, None)?;
        }
        let tiles_max = pairs.min(m.experts + pairs / size as usize);
        if !is_few {
            self.recorder.barrier()?;
        }
        let slots_at = match m.gate.paged {
            Some(_) => Some(self.resolve_experts(m, layer, tiles_max)?),
            None => None,
        };
        let pairs_per_row = m.top_k as u32;
        let per_token =
            Experts { tiles: &tiles, pairs: &pair_list, pairs_per_row, tiles_max, tile: size, slots_at };
        if !is_shared(size) && Self::can_fuse(&m.gate, &m.up, &m.down) {
            self.gate_up(n, &input, &m.gate, &m.up, &e_inner, Some(&per_token))?;
        } else {
            self.project(n, &input, &m.gate, &e_gate, Some(&per_token))?;
            self.project(n, &input, &m.up, &e_up, Some(&per_token))?;
            self.recorder.barrier()?;
            let forms = Self::forms(&[&m.down]);
            self.prepare_rows(pairs, m.down.cols, &e_gate, Before::Swiglu(&e_up), None, forms, &e_inner)?;
        }
        self.recorder.barrier()?;
        if is_few && m.down.paged.is_none() && !m.down.ty.is_float() {
            let d = &m.down;
            // those of the tail are not read without one
            let unused = [&dummy; 5];
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
            return self.recorder.hold(Dispatch {
                kernel: Kernel::Down,
                constants: [d.ty as u32, 0, 0],
                buffers: buffers.iter().chain(&unused).map(|b| (*b).clone()).collect(),
                push: vec![hidden as u32, d.cols as u32, m.top_k as u32, m.shared.is_some().into()],
                groups: [hidden.div_ceil(8) as u32, n as u32, 1],
            });
        }
        let per_pair = Experts { pairs_per_row: 1, ..per_token };
        self.project(n, &e_inner, &m.down, &e_out, Some(&per_pair))?;
        self.recorder.barrier()?;
        let push = [hidden as u32, m.top_k as u32, m.shared.is_some().into()];
        let buffers = [&e_out, &share, &shared_out, &shared_gate, &h.buffer];
        let groups = [hidden.div_ceil(128) as u32, n as u32, 1];
        self.recorder.dispatch(Kernel::Combine, [0; 3], &buffers, &push, groups)
    }
}
