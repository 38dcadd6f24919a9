//! A mixture of experts: route, group, gate and up, down, combine.

use octet_compute::Error;
use octet_compute::backend::{Moe, Norm, Score};

use super::linear::{Activation, Before, Experts, expert_tile, is_shared};
use super::{ROUTER_TICKET, Rows, TAIL_TOKENS_MAX, Target};
use crate::backend::{Buf, Vulkan, Weight};
use crate::kernel::Kernel;
use crate::record::Dispatch;

/// Groups of experts that `route.comp` takes.
const GROUPS_MAX: usize = 64;

impl Vulkan {
    /// Records what the verb reads.
    fn count_bytes(&mut self, m: &Moe<Self>, layer: usize) {
        self.recorder.traffic.add_weights(&[&m.router.weight]);
        if let Some(s) = &m.shared {
            self.recorder.traffic.add_weights(&[&s.glu.up]);
            s.glu.gate.iter().for_each(|w| self.recorder.traffic.add_weights(&[w]));
            self.recorder.traffic.add(s.gate.as_ref().map_or(0, |g| 4 * g.len as u64));
        }
        self.expert_bytes.resize(self.expert_bytes.len().max(layer + 1), 0);
        let parts = m.experts.gate.iter().chain([&m.experts.up, &m.experts.down]);
        self.expert_bytes[layer] = parts.map(Weight::bytes).sum();
    }

    pub(crate) fn mixture(
        &mut self,
        n: usize,
        x: &Buf,
        norm: Option<&Norm<Self>>,
        m: &Moe<Self>,
        layer: usize,
        to: Target<'_, Buf>,
    ) -> Result<(), Error> {
        self.count_bytes(m, layer);
        let (input, hidden) = (self.input()?, m.router.weight.cols);
        let forms = [hidden.is_multiple_of(32), true];
        if let Some(own) = &m.router.input {
            // Its logits come first, as the experts' input takes their input's place.
            self.norm_stage(n, hidden, &x.buffer, Some(own), forms, &input)?;
            let router = self.scratch()?.router.clone();
            self.project(n, &input, &m.router.weight, &router, None)?;
        }
        self.norm_stage(n, hidden, &x.buffer, norm, forms, &input)?;
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
        let chosen = pairs.min(m.router.experts);
        let traffic = &mut self.recorder.traffic;
        m.experts.gate.iter().chain([&m.experts.up]).for_each(|w| traffic.add_routed(w, chosen));
        self.experts_gate_up(n, m, &input, &experts)?;
        self.recorder.barrier()?;
        self.recorder.traffic.add_routed(&m.experts.down, chosen);
        self.experts_down(n, m, &experts, to)
    }

    /// Chooses the experts of each token and groups pairs of tokens and experts into tiles; computes the shared expert beside that.
    /// Returns the largest number of pairs in a tile.
    fn route(&mut self, n: usize, m: &Moe<Self>, layer: usize, input: &Rows) -> Result<u32, Error> {
        let s = self.scratch()?;
        let (chosen, tiles, pair_list) = (s.chosen.clone(), s.tiles.clone(), s.pairs.clone());
        let (inner, shared_out) = (s.inner.clone(), s.shared_out.clone());
        let choice = self.router(n, m, layer, input)?;
        let is_chosen = choice.is_none();
        let shared = m.shared.as_ref().map(|s| &s.glu);
        let fused = match shared {
            Some(shared) => self.gate_and_up(n, input, shared)?,
            None => false,
        };
        self.recorder.barrier()?;
        if let Some(choice) = choice {
            self.recorder.start(&choice)?;
        }
        if let Some(shared) = shared.filter(|_| !fused) {
            self.activate(n, shared)?;
        }
        if !is_chosen || !fused {
            self.recorder.barrier()?;
        }
        let pairs = n * m.router.top_k;
        let all = m.experts.gate.iter().chain([&m.experts.up, &m.experts.down]);
        let is_quantised = all.into_iter().all(|w| !w.ty.is_float());
        let size = expert_tile(n, pairs, m.router.experts, is_quantised);
        if !is_chosen {
            let push = [m.router.experts as u32, pairs as u32, size];
            let buffers = [&chosen, &tiles, &pair_list];
            self.recorder.dispatch(Kernel::Group, [0; 4], &buffers, &push, [1, 1, 1])?;
        }
        if let Some(shared) = shared {
            self.recorder.traffic.add_weights(&[&shared.down]);
            self.project(n, &inner, &shared.down, &shared_out, None)?;
        }
        if !is_chosen {
            self.recorder.barrier()?;
        }
        Ok(size)
    }

    /// Starts the router. For a few tokens its last workgroup also chooses and groups their experts, if a softmax chooses; else returns the
    /// kernel that chooses, for the next stage.
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
        let r = &m.router;
        let gate = m.shared.as_ref().map(|s| s.gate.as_ref());
        let shared_router = gate.flatten().map_or(&dummy, |g| &g.buffer);
        let choice =
            [&s.chosen, &s.share, &input.floats, shared_router, &s.shared_gate, &s.counts[self.side]]
                .map(|b| (*b).clone());
        let push = [
            r.experts as u32,
            r.top_k as u32,
            r.weight.cols as u32,
            // 2: without a gate.
            gate.map_or(0, |gate| if gate.is_some() { 1 } else { 2 }),
            (layer * r.experts) as u32,
            r.normalise.into(),
            (layers * experts + layer * tokens * (r.top_k + 1)) as u32,
        ];
        let by_scores = r.score != Score::Softmax
            || r.choice_bias.is_some()
            || r.groups.is_some()
            || r.scale != 1.0
            || r.per_expert.is_some();
        let mut kernel = self.projection(n, input, &r.weight, &router, 0.0, None);
        if n > TAIL_TOKENS_MAX || by_scores || r.input.is_some() {
            if r.input.is_none() {
                self.recorder.start(&kernel)?;
            }
            let [groups, kept] = r.groups.unwrap_or_default();
            if groups > GROUPS_MAX {
                return Err(Error(format!(
                    "{groups} groups of experts are not supported on this device: it takes up to {GROUPS_MAX}"
                )));
            }
            let factors = [&r.choice_bias, &r.per_expert].map(|b| b.as_ref().map(|b| b.buffer.clone()));
            let has = factors.each_ref().map(|f| u32::from(f.is_some()));
            let score = match r.score {
                _ if !by_scores => 0,
                Score::Softmax => 1,
                Score::Sigmoid => 2,
                Score::SparseMixer => 3,
            };
            let factors = factors.map(|f| f.unwrap_or_else(|| dummy.clone()));
            return Ok(Some(Dispatch {
                kernel: Kernel::Route,
                constants: [score, has[0] | has[1] << 1, 0, 0],
                buffers: [router].into_iter().chain(choice).chain(factors).collect(),
                push: push.into_iter().chain([r.scale.to_bits(), groups as u32, kept as u32]).collect(),
                groups: [n as u32, 1, 1],
            }));
        }
        kernel.kernel = Kernel::Router;
        kernel.groups[0] = kernel.push[0]; // a row each
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
        let (share, g, top_k) = (s.share.clone(), &m.experts, m.router.top_k);
        if !is_shared(experts.tile) && Self::can_fuse(g) && !m.router.weighs_input {
            return self.gate_up(n, x, g, &inner, Some(experts));
        }
        if let Some(w) = &g.gate {
            self.project(n, x, w, &gate, Some(experts))?;
        }
        self.project(n, x, &g.up, &up, Some(experts))?;
        self.recorder.barrier()?;
        let forms = Self::forms(&[&g.down]);
        let (x, up) = if g.gate.is_some() { (&gate, Some(&up)) } else { (&up, None) };
        let factors = m.router.weighs_input.then_some(&share);
        let before = Before::Act(Activation { act: g.act, up, factors });
        self.prepare_rows(n * top_k, g.down.cols, x, before, None, forms, &inner)
    }

    /// Down of the chosen experts, and their weighted sum with the shared one: `h (+)= ...`. A single kernel for a few tokens.
    fn experts_down(
        &mut self,
        n: usize,
        m: &Moe<Self>,
        experts: &Experts<'_>,
        to: Target<'_, Buf>,
    ) -> Result<(), Error> {
        let dummy = self.dummy.clone();
        let s = self.scratch()?;
        let (inner, out, chosen) = (s.expert_inner.clone(), s.expert_out.clone(), s.chosen.clone());
        let (share, shared_out, shared_gate) = (s.share.clone(), s.shared_out.clone(), s.shared_gate.clone());
        let (d, hidden, h) = (&m.experts.down, m.router.weight.cols, &to.buf.buffer);
        let has_shared = u32::from(m.shared.is_some());
        let is_plain = d.paged.is_none() && d.bias.is_none() && !d.ty.is_float();
        if n <= TAIL_TOKENS_MAX && is_plain && !m.router.weighs_input {
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
                h,
            ];
            return self.recorder.hold(Dispatch {
                kernel: Kernel::Down,
                constants: [d.ty as u32, 0, 0, 0],
                buffers: buffers.iter().chain(&unused).map(|b| (*b).clone()).collect(),
                push: vec![hidden as u32, d.cols as u32, m.router.top_k as u32, has_shared, to.add.to_bits()],
                groups: [hidden.div_ceil(8) as u32, n as u32, 1],
            });
        }
        let per_pair = Experts { pairs_per_row: 1, ..*experts };
        self.project(n, &inner, d, &out, Some(&per_pair))?;
        self.recorder.barrier()?;
        let is_weighted = u32::from(m.router.weighs_input);
        let push = [hidden as u32, m.router.top_k as u32, has_shared, is_weighted, to.add.to_bits()];
        let buffers = [&out, &share, &shared_out, &shared_gate, h];
        let groups = [hidden.div_ceil(128) as u32, n as u32, 1];
        self.recorder.dispatch(Kernel::Combine, [0; 4], &buffers, &push, groups)
    }
}
