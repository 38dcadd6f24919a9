//! The CPU backend: its thread team, its kernels, and information about it. `backend` runs verbs on it.

use std::time::Instant;

use bytes::Bytes;
use octet_weights::{GgmlType, Matrix};

use super::arbiter::{Arbiter, Permit};
use super::bandwidth::{self, Probe};
use super::huge::HugeVec;
use super::isa::Isa;
use super::kernels::Kernels;
use super::kind::ROWS;
use super::map::HUGE_BYTES;
use super::memory::Weight;
use super::pack::{Layout, Packed};
use super::packed_file::{PackedFile, PackedFiles};
use super::profile::Profile;
use super::scratch::Scratch;
use super::store::Store;
use super::team::{Shards, Team};
use super::topology::Topology;
use super::vector::VectorKernels;
use super::watch::Watch;
use crate::backend::{Error, StoreStats};

/// Options of the CPU backend.
#[derive(Debug, Clone)]
pub struct CpuOptions {
    /// Threads; `None` is one for each physical core that the calling thread may use.
    pub threads: Option<usize>,
    /// Bind each thread to a processor of its own, the calling one during a step (on Linux; elsewhere the system
    /// decides where threads run).
    pub pin: bool,
    /// Instruction set; `None` is the widest that this machine has.
    pub isa: Option<Isa>,
    /// Compute with dequantised f32 weights and f32 activations: exact, large and slow.
    pub exact: bool,
    /// Experts of each layer for which there is memory; the others are read from the model's files when a step needs them. `None`: all. Not
    /// with `exact`.
    pub expert_slots: Option<usize>,
    /// Where packed weights are kept for the next time, and experts are read from. `None`: nowhere. Not with `exact`. Linux only.
    pub packed_files: Option<PackedFiles>,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self { threads: None, pin: true, isa: None, exact: false, expert_slots: None, packed_files: None }
    }
}

/// Runs the verbs on the processor's cores.
pub struct Cpu {
    pub(super) team: Team,
    pub(super) kernels: Kernels,
    pub(super) vector: VectorKernels,
    pub(super) scratch: Option<Scratch>,
    pub(super) exact: bool,
    pub(super) isa: Isa,
    pub(super) expert_slots: Option<usize>,
    /// The experts that are read when they are needed, if there are some.
    pub(super) store: Option<Store>,
    pub(super) packed_files: Option<PackedFiles>,
    /// The file of the loaded model's packed weights, if they are kept.
    pub(super) packed_file: Option<PackedFile>,
    /// Widest input of any projection loaded so far.
    pub(super) widest: usize,
    pub(super) profile: Profile,
    pub(super) arbiter: Arbiter,
    /// While a step runs.
    pub(super) permit: Option<Permit>,
    /// Sums up the inputs of projections, if wanted.
    pub(super) watch: Option<Box<Watch>>,
}

impl Cpu {
    /// A backend with its thread team. The thread that runs a step is part of it.
    pub fn new(options: &CpuOptions) -> Result<Self, Error> {
        let isa = options.isa.unwrap_or_else(Isa::detect);
        let missing = || Error(format!("this processor does not have the instruction set {}", isa.name()));
        let topology = Topology::of_this_thread();
        let threads = options.threads.unwrap_or_else(|| topology.default_threads());
        Ok(Self {
            team: Team::new(threads, if options.pin { topology.cpus() } else { &[] })?,
            kernels: Kernels::for_isa(isa).ok_or_else(missing)?,
            vector: VectorKernels::for_isa(isa).ok_or_else(missing)?,
            scratch: None,
            exact: options.exact,
            isa,
            expert_slots: options.expert_slots,
            store: None,
            packed_files: options
                .packed_files
                .clone()
                .filter(|_| !options.exact && cfg!(target_os = "linux")),
            packed_file: None,
            widest: 0,
            profile: Profile::default(),
            arbiter: Arbiter::default(),
            permit: None,
            watch: None,
        })
    }

    /// Takes turns with the other backends of the same arbiter.
    #[must_use]
    pub fn with_arbiter(self, arbiter: &Arbiter) -> Self {
        Self { arbiter: arbiter.clone(), ..self }
    }

    /// Starts a verb: lets a waiting backend compute first, and returns the time.
    pub(super) fn begin(&mut self) -> Instant {
        if let Some(permit) = &mut self.permit {
            permit.yield_if_due();
        }
        Instant::now()
    }

    /// A description: instruction set and threads.
    pub fn describe(&self) -> String {
        let exact = if self.exact { ", f32 weights" } else { "" };
        format!("CPU ({}, {} threads{exact})", self.isa.name(), self.team.threads())
    }

    /// Everything that results depend on to the last bit: instruction set and precision. Not threads: they only divide the work.
    pub fn numerics(&self) -> String {
        format!("cpu {}{}", self.isa.name(), if self.exact { " exact" } else { "" })
    }

    /// Time and bytes of each verb since the last call.
    pub fn take_profile(&mut self) -> Profile {
        std::mem::take(&mut self.profile)
    }

    /// Bytes that the verbs had to read since the profile was last taken.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.profile.total().bytes
    }

    /// Bytes per second that the team reads from memory, in each of `passes` passes.
    pub fn measure_bandwidth(&mut self, passes: usize) -> Result<Vec<f64>, Error> {
        bandwidth::measure(&mut self.team, &self.vector, bandwidth::BYTES, passes)
    }

    /// The best of a few passes over less memory; `None` if it cannot be allocated.
    pub(crate) fn quick_bandwidth(&mut self) -> Option<f64> {
        const PASSES: usize = 4;
        let passes = bandwidth::measure(&mut self.team, &self.vector, bandwidth::FEW_BYTES, PASSES).ok()?;
        passes.into_iter().reduce(f64::max)
    }

    /// Bytes per second of one pass over `probe`, which is allocated at the first call.
    pub(crate) fn probe_memory(&mut self, probe: &mut Option<Probe>) -> Result<f64, Error> {
        let probe = match probe {
            Some(made) => made,
            None => probe.insert(Probe::new()?),
        };
        let _pinned = self.team.pin_caller();
        Ok(probe.read(&mut self.team, &self.vector))
    }

    /// What was read of experts that are not all in memory; `None` if they are.
    pub fn store_stats(&self) -> Option<StoreStats> {
        self.store.as_ref().map(Store::stats)
    }

    /// Distance of the kernels' software prefetch, in bytes.
    pub fn prefetch_distance(&self) -> usize {
        self.kernels.prefetch_distance()
    }

    /// Threads of the team.
    pub fn threads(&self) -> usize {
        self.team.threads()
    }

    /// A weight of packed matrices; `watched` if inputs are.
    pub(super) fn weight_of(&mut self, packed: Packed, bias: Option<&[f32]>) -> Weight {
        let cols = packed.layout().cols();
        self.widest = self.widest.max(cols);
        let watched = self.watch.as_mut().map(|w| w.add(packed.count(), cols));
        Weight { packed, bias: bias.map(<[f32]>::to_vec), watched, stored: None }
    }

    /// Packed matrices that were kept, to be checked now or `later`.
    pub(super) fn kept(
        &mut self,
        name: &str,
        ty: GgmlType,
        shape: [usize; 3],
        bias: Option<&[f32]>,
        later: bool,
    ) -> Result<Option<Weight>, Error> {
        let Some(file) = &mut self.packed_file else { return Ok(None) };
        let packed = file.take(&mut self.team, name, ty, shape, later)?;
        Ok(packed.map(|packed| self.weight_of(packed, bias)))
    }

    /// The same matrix in memory of its own, as its file may be truncated while the model is loaded. Copied by all threads: one alone would
    /// take longer than a start from packed weights.
    pub(super) fn copy(&mut self, m: &Matrix) -> std::io::Result<Matrix> {
        let mut copy = HugeVec::zeroed(m.data.len())?;
        let shards = Shards::new(&mut copy[..]);
        self.team.run(|w| {
            for part in w.chunks(m.data.len(), HUGE_BYTES) {
                // SAFETY: chunks do not overlap.
                unsafe { shards.part(part.start, part.len()) }.copy_from_slice(&m.data[part]);
            }
        });
        Ok(Matrix { data: Bytes::from_owner(copy), ..m.clone() })
    }

    /// Packs matrices of one shape into one allocation, on all threads.
    pub(super) fn pack(&mut self, matrices: &[Matrix]) -> Result<Packed, Error> {
        let Some(first) = matrices.first() else { return Err(Error("no expert".into())) };
        if let Some(odd) =
            matrices.iter().find(|m| (m.ty, m.rows, m.cols) != (first.ty, first.rows, first.cols))
        {
            let shape = |m: &Matrix| format!("{} [{}, {}]", m.ty, m.rows, m.cols);
            return Err(Error(format!("experts differ: {} and {}", shape(first), shape(odd))));
        }
        let ty = if self.exact { GgmlType::F32 } else { first.ty };
        let layout = Layout::new(ty, first.rows, first.cols)?;
        let mut packed = Packed::zeroed(layout, matrices.len())?;
        let (groups, bytes, exact) = (layout.groups(), layout.group_bytes(), self.exact);
        let shards = Shards::new(packed.bytes_mut());
        self.team.run(|w| {
            for i in w.items(matrices.len() * groups) {
                let (m, group) = (&matrices[i / groups], i % groups);
                // SAFETY: each item is a group of its own.
                let out = unsafe { shards.part(i * bytes, bytes) };
                if exact {
                    let rows = m.slice_rows(group * ROWS, m.rows.min((group + 1) * ROWS));
                    let data = rows.to_f32().iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
                    let one =
                        Layout::new(ty, rows.rows, rows.cols).expect("a part of a layout that was checked");
                    one.pack_group(&Matrix::new(ty, rows.rows, rows.cols, data.into()), 0, out);
                } else {
                    layout.pack_group(m, group, out);
                }
            }
        });
        if !exact {
            packed.set_scales(matrices);
        }
        if let Some(file) = &mut self.packed_file {
            file.add(&packed);
        }
        Ok(packed)
    }
}
