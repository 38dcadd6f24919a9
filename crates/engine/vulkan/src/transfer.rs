//! Copies bytes between the host and the device, through staging buffers; and weights, which are packed before.

use std::sync::Arc;

use octet_compute::Error;
use octet_weights::Matrix;

use crate::backend::{Vulkan, Weight};
use crate::device::{Device, Queue};
use crate::memory::{Buffer, Memory, Place};
use crate::pack;
use crate::record::Recorder;
use crate::weights::DeviceType;

/// Maximum number of bytes that a submission copies.
pub(crate) const STAGING_BYTES: u64 = 16 << 20;

/// A range of a buffer.
pub(crate) struct Part {
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) at: u64,
    pub(crate) bytes: usize,
}

/// A copy between a buffer and the staging buffer.
struct Piece<'a> {
    buffer: &'a Arc<Buffer>,
    at: u64,
    staged_at: u64,
    bytes: u64,
}

/// Cuts parts into submissions: each fills the staging buffer, from its start on, but the last one.
fn submissions(parts: &[Part]) -> Vec<Vec<Piece<'_>>> {
    let mut all = Vec::new();
    let (mut pieces, mut staged_at) = (Vec::new(), 0);
    for part in parts {
        let (mut at, end) = (part.at, part.at + part.bytes as u64);
        while at < end {
            let bytes = (end - at).min(STAGING_BYTES - staged_at);
            pieces.push(Piece { buffer: &part.buffer, at, staged_at, bytes });
            (at, staged_at) = (at + bytes, staged_at + bytes);
            if staged_at == STAGING_BYTES {
                all.push(std::mem::take(&mut pieces));
                staged_at = 0;
            }
        }
    }
    if !pieces.is_empty() {
        all.push(pieces);
    }
    all
}

/// Copies parts of buffers to the host, one after the other, after all that was recorded.
fn download(
    recorder: &mut Recorder,
    staging: &Arc<Buffer>,
    parts: &[Part],
    out: &mut [u8],
) -> Result<(), Error> {
    recorder.barrier()?;
    let mut rest = out;
    for pieces in submissions(parts) {
        for piece in &pieces {
            recorder.copy((piece.buffer, piece.at), (staging, piece.staged_at), piece.bytes)?;
        }
        recorder.flush()?;
        let bytes = pieces.iter().map(|piece| piece.bytes as usize).sum();
        let (now, later) = rest.split_at_mut(bytes);
        staging.read(0, now);
        rest = later;
    }
    Ok(())
}

/// Copies to the host on a queue of their own: by the card's copy engine, beside a step that runs.
pub(crate) struct Copies {
    pub(crate) recorder: Recorder,
    staging: Arc<Buffer>,
}

impl Copies {
    pub(crate) fn new(device: &Arc<Device>, memory: &Memory, queue: Queue) -> Result<Self, Error> {
        let recorder = Recorder::new(device.clone(), queue, &[])?;
        Ok(Self { recorder, staging: memory.buffer(STAGING_BYTES, Place::Host)? })
    }
}

impl Vulkan {
    /// Packs matrices of one shape and type, one after the other, and uploads them.
    pub(crate) fn pack(&mut self, all: &[Matrix], bias: Option<&[f32]>) -> Result<Weight, Error> {
        let first = all.first().ok_or_else(|| Error("a stack of experts is empty".into()))?;
        let (rows, cols) = (first.rows, first.cols);
        let has_factors = all.iter().any(|m| m.scales.is_some());
        let ty = match DeviceType::of(first.ty) {
            _ if self.exact => DeviceType::F32,
            DeviceType::Q8_0 if has_factors => DeviceType::Q8_Row,
            ty if has_factors && !ty.takes_factors() => DeviceType::F32,
            // Two scales share a word. Each expert, and each row that may be copied, starts with a whole word.
            DeviceType::Q8_0 if all.len() > 1 && !(rows * (cols / 32)).is_multiple_of(2) => {
                DeviceType::Q8_Row
            }
            DeviceType::Q8_0 if all.len() == 1 && !(cols / 32).is_multiple_of(2) => DeviceType::Q8_Row,
            ty => ty,
        };
        let planes = pack::pack(all, ty);
        self.cols_max = self.cols_max.max(cols);
        let bias = match bias {
            Some(b) => Some(self.floats(b)?),
            None => None,
        };
        Ok(Weight {
            ty,
            rows,
            cols,
            quants: self.words(&planes.quants)?,
            high: self.words(&planes.high)?,
            scales: self.words(&planes.scales)?,
            bias,
            count: all.len(),
            paged: None,
        })
    }

    /// Copies parts of buffers that no running step writes to, one after the other: beside that step if the card has a queue for copies, or
    /// after it.
    pub(crate) fn save_parts(&mut self, parts: &[Part], out: &mut [u8]) -> Result<(), Error> {
        self.recorder.flush()?;
        // On a lost device the queues do not wait for each other.
        let Some(copies) = self.copies.as_mut().filter(|_| !self.recorder.is_lost) else {
            return self.download_parts(parts, out);
        };
        copies.recorder.follow(&self.recorder);
        let done = download(&mut copies.recorder, &copies.staging, parts, out);
        if done.is_err() {
            copies.recorder.abandon();
        }
        self.recorder.is_lost |= copies.recorder.is_lost;
        done
    }

    /// Copies bytes into parts of buffers, one after the other.
    pub(crate) fn upload_parts(&mut self, parts: &[Part], data: &[u8]) -> Result<(), Error> {
        self.recorder.flush()?;
        let staging = self.staging.clone();
        let mut rest = data;
        for pieces in submissions(parts) {
            for piece in &pieces {
                let (now, later) = rest.split_at(piece.bytes as usize);
                staging.write(piece.staged_at, now);
                let from = (&staging, piece.staged_at);
                self.recorder.copy(from, (piece.buffer, piece.at), piece.bytes)?;
                rest = later;
            }
            self.recorder.flush()?;
        }
        Ok(())
    }

    /// Copies bytes from a buffer on the device, after all that was recorded.
    pub(crate) fn download(&mut self, from: &Arc<Buffer>, at: u64, out: &mut [u8]) -> Result<(), Error> {
        self.download_parts(&[Part { buffer: from.clone(), at, bytes: out.len() }], out)
    }

    /// Copies parts of buffers, one after the other, after all that was recorded.
    pub(crate) fn download_parts(&mut self, parts: &[Part], out: &mut [u8]) -> Result<(), Error> {
        if self.in_step {
            self.is_split = true;
        }
        download(&mut self.recorder, &self.staging, parts, out)
    }

    pub(crate) fn words(&mut self, words: &[u32]) -> Result<Arc<Buffer>, Error> {
        if words.is_empty() {
            return Ok(self.dummy.clone());
        }
        let buffer = self.memory.buffer(4 * words.len() as u64, Place::Device)?;
        self.recorder.flush()?;
        let staging = self.staging.clone();
        let each = STAGING_BYTES as usize / 4;
        for (i, part) in words.chunks(each).enumerate() {
            staging.write_words(0, part);
            self.recorder.copy((&staging, 0), (&buffer, (4 * i * each) as u64), 4 * part.len() as u64)?;
            self.recorder.flush()?;
        }
        Ok(buffer)
    }

    pub(crate) fn floats(&mut self, values: &[f32]) -> Result<Arc<Buffer>, Error> {
        let words: Vec<u32> = values.iter().map(|x| x.to_bits()).collect();
        self.words(&words)
    }

    pub(crate) fn zeroed(&mut self, bytes: u64) -> Result<Arc<Buffer>, Error> {
        let buffer = self.memory.buffer(bytes, Place::Device)?;
        self.recorder.clear(&buffer, 0, buffer.bytes)?;
        self.recorder.flush()?;
        Ok(buffer)
    }
}
