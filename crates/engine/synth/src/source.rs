//! Tensors that are generated when they are requested. Called through [`octet_weights::Model`].
//!
//! A tensor is generated in pieces, each from its own seed, so that several threads give the same bytes as one.

use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use octet_weights::quant::random_blocks;
use octet_weights::{Error, GgmlType, Source, TensorInfo};

use crate::plan::{Fill, Planned};

/// Bytes of a piece, less than a block more or less: large enough that threads seldom meet, small enough for a cache.
const PIECE_BYTES: usize = 1 << 20;

/// Random weights, by name and seed.
pub(crate) struct SyntheticSource {
    infos: Vec<TensorInfo>,
    fills: Vec<Fill>,
    seed: u64,
    /// How unequally routers choose: see [`crate::skewed`].
    skew: f32,
    spare: Spare,
}

/// The seeds of routers' factors are others than those of their weights.
const SKEW_SEED: u64 = 0x736b_6577;

/// The buffer of the last dropped tensor, for reuse: new memory costs more than the values in it, as the system clears it and maps it
/// page by page.
type Spare = Arc<Mutex<Option<Vec<u8>>>>;

/// A tensor's bytes, whose buffer is kept for reuse when dropped.
struct Made {
    data: Vec<u8>,
    spare: Spare,
}

impl AsRef<[u8]> for Made {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Ok(mut spare) = self.spare.lock()
            && spare.as_ref().is_none_or(|s| s.capacity() < self.data.capacity())
        {
            *spare = Some(std::mem::take(&mut self.data));
        }
    }
}

impl SyntheticSource {
    pub fn new(plan: Vec<Planned>, seed: u64, skew: f32) -> Self {
        let (infos, fills) = plan.into_iter().map(|p| (p.info, p.fill)).unzip();
        Self { infos, fills, seed, skew, spare: Spare::default() }
    }

    /// The spare buffer, if the tensor is large and the buffer is large enough.
    fn take_spare(&self, len: usize) -> Option<Vec<u8>> {
        self.spare.lock().ok()?.take_if(|s| len >= PIECE_BYTES && s.capacity() >= len)
    }

    /// Generates all blocks of a tensor on all cores.
    fn random_tensor(&self, info: &TensorInfo, scale: f32) -> Made {
        let len = info.size_bytes() as usize;
        let mut data = match self.take_spare(len) {
            Some(mut spare) => {
                spare.resize(len, 0);
                spare
            }
            None => vec![0; len],
        };
        let piece_bytes = PIECE_BYTES / info.ty.block_bytes() * info.ty.block_bytes();
        let fill = |(i, piece): (usize, &mut [u8])| {
            random_blocks(info.ty, &mut piece_seed(&info.name, self.seed, i), scale, piece);
        };
        on_every_core(data.chunks_mut(piece_bytes).enumerate(), fill);
        Made { data, spare: self.spare.clone() }
    }
}

fn is_router(info: &TensorInfo) -> bool {
    info.ty == GgmlType::F32 && info.name.ends_with(".ffn_gate_inp.weight")
}

impl SyntheticSource {
    /// Multiplies each row of a router, which is F32, with a factor of its own.
    fn skew_rows(&self, info: &TensorInfo, data: &mut [u8]) {
        let row = 4 * info.shape.last().copied().unwrap_or(1);
        for (expert, row) in data.chunks_exact_mut(row).enumerate() {
            // About normally distributed: the sum of twelve uniform numbers has a variance of 1.
            let mut state = piece_seed(&info.name, self.seed ^ SKEW_SEED, expert);
            let mut uniform = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (state >> 40) as f32 / (1u64 << 24) as f32
            };
            let normal = (0..12).map(|_| uniform()).sum::<f32>() - 6.0;
            let factor = (self.skew * normal).exp();
            for value in row.as_chunks_mut::<4>().0 {
                *value = (factor * f32::from_le_bytes(*value)).to_le_bytes();
            }
        }
    }
}

impl Source for SyntheticSource {
    fn tensors(&self) -> &[TensorInfo] {
        &self.infos
    }

    fn data(&self, index: usize) -> Result<Bytes, Error> {
        let info = &self.infos[index];
        let mapped = |f: fn(f32) -> f32| {
            let mut made = self.random_tensor(info, 1.0);
            for value in made.data.as_chunks_mut::<4>().0 {
                *value = f(f32::from_le_bytes(*value)).to_le_bytes();
            }
            Bytes::from_owner(made)
        };
        Ok(match &self.fills[index] {
            Fill::Random(scale) if self.skew > 0.0 && is_router(info) => {
                let mut made = self.random_tensor(info, *scale);
                self.skew_rows(info, &mut made.data);
                Bytes::from_owner(made)
            }
            Fill::Random(scale) => Bytes::from_owner(self.random_tensor(info, *scale)),
            Fill::NearOne => mapped(|x| 1.0 + 0.1 * x),
            Fill::Decay => mapped(|x| -(0.7 + 0.8 * x).exp()),
            Fill::TimeStep => mapped(|x| -3.0 + 1.15 * x),
            Fill::Exactly(values) => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        })
    }
}

/// Processes `pieces` on as many threads as there are cores, at most one per piece.
fn on_every_core<P>(pieces: impl ExactSizeIterator<Item = P> + Send, work: impl Fn(P) + Sync) {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(pieces.len());
    if threads < 2 {
        return pieces.for_each(work);
    }
    let todo = Mutex::new(pieces);
    // A poisoned lock means that another thread panicked, and that the scope will panic too.
    let next = || todo.lock().ok().and_then(|mut pieces| pieces.next());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(piece) = next() {
                    work(piece);
                }
            });
        }
    });
}

/// FNV-1a over all that distinguishes a piece.
fn piece_seed(name: &str, seed: u64, piece: usize) -> u64 {
    let bytes = name.bytes().chain(seed.to_le_bytes()).chain((piece as u64).to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, b| (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(ty: GgmlType, shape: &[usize], fill: Fill, seed: u64) -> SyntheticSource {
        let info = TensorInfo { name: "x".into(), ty, shape: shape.to_vec() };
        SyntheticSource::new(vec![Planned { info, fill }], seed, 0.0)
    }

    fn values(ty: GgmlType, shape: &[usize], fill: Fill) -> Vec<f32> {
        let source = source(ty, shape, fill, 1);
        let data = source.data(0).unwrap();
        octet_weights::Tensor::new("x", source.infos[0].clone(), data).unwrap().to_f32()
    }

    #[test]
    fn threads_and_repetitions_give_the_same_bytes() {
        let fill = Fill::Random(0.1);
        let (ty, shape) = (GgmlType::Q6_K, [3000, 2048]); // several pieces and a part of one
        let a = source(ty, &shape, fill.clone(), 1);
        let made = a.data(0).unwrap();
        assert_eq!(made, a.data(0).unwrap());
        let piece_bytes = PIECE_BYTES / 210 * 210;
        for (i, piece) in made.chunks(piece_bytes).enumerate() {
            let mut one = vec![0; piece.len()];
            random_blocks(ty, &mut piece_seed("x", 1, i), 0.1, &mut one);
            assert_eq!(one, piece, "piece {i}");
        }
        assert_ne!(made, source(ty, &shape, fill, 2).data(0).unwrap());
        // memory that was used before gives the same bytes too
        let want = made.to_vec();
        drop(made);
        assert!(a.spare.lock().unwrap().is_some());
        assert_eq!(a.data(0).unwrap(), want);
    }

    #[test]
    fn values_are_of_the_wanted_size() {
        for ty in [GgmlType::F32, GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::BF16, GgmlType::IQ4_XS] {
            let x = values(ty, &[64, 1024], Fill::Random(0.02));
            let rms = (x.iter().map(|v| v * v).sum::<f32>() / x.len() as f32).sqrt();
            assert!((0.019..0.021).contains(&rms), "{ty}: {rms}");
        }
        let within = |fill, low: f32, high: f32| {
            let x = values(GgmlType::F32, &[4096], fill);
            assert!(x.iter().all(|v| (low..high).contains(v)));
        };
        within(Fill::NearOne, 0.6, 1.4);
        within(Fill::Decay, -40.0, -0.1);
        within(Fill::TimeStep, -7.5, 1.5);
        assert_eq!(values(GgmlType::F32, &[2], Fill::Exactly(vec![1.0, 8.0])), [1.0, 8.0]);
    }
}
