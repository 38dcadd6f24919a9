//! Buffers that exist on several devices, which of them have the newest content, and copies from one to another.

use super::segments::{Crossing, Segment};
use super::state::{ALL, State};
use super::*;
use crate::steps::REPLAY_TOKENS_MAX;
use crate::transfer::Part;

/// f32 values on all devices of a model.
pub struct Buf {
    pub(super) on: Vec<backend::Buf>,
    pub(super) state: Arc<State>,
}

/// A projection, or a stack of them, on one of the devices.
pub struct Weight {
    pub(super) device: usize,
    pub(super) inner: backend::Weight,
}

/// Memory of a device that the host copies from, and to: steps use it from the start, one part after the other.
pub(super) struct Exchange {
    pub(super) buffers: [Arc<Buffer>; 2],
    pub(super) used: [u64; 2],
}

const OUT: usize = 0;
const INTO: usize = 1;

impl Split {
    /// The device for a verb without weights that reads `inputs`: one that has them all, the last one used if it can be that one.
    pub(super) fn place_of(&self, inputs: &[&State]) -> usize {
        let valid = inputs.iter().fold(ALL, |all, state| all & state.valid());
        let valid = valid & ((1 << self.devices.len()) - 1);
        if valid == 0 || valid >> self.at & 1 == 1 { self.at } else { valid.trailing_zeros() as usize }
    }

    /// Makes the newest content of buffers readable on a device, on which the next verb runs.
    pub(super) fn bring(&mut self, device: usize, inputs: &[&Buf]) {
        self.at = device;
        for buf in inputs {
            if self.is_noting() || self.is_failed() {
                return;
            }
            let state = &buf.state;
            if let Some(recording) = &mut self.recording
                && !state.is_constant
                && !recording.written.iter().any(|w| Arc::ptr_eq(w, state))
            {
                // Where it is, depends on what ran before.
                recording.is_kept = false;
            }
            let valid = state.valid();
            if valid >> device & 1 == 0 {
                match self.copy_between(buf, valid.trailing_zeros() as usize, device) {
                    Ok(()) => state.set(valid | 1 << device, state.len()),
                    Err(e) => self.fault = Some(e),
                }
            }
        }
    }

    /// A verb has replaced the first `len` values of a buffer on a device.
    pub(super) fn wrote(&mut self, device: usize, state: &Arc<State>, len: usize) {
        if self.is_noting() {
            return;
        }
        state.set(1 << device, len);
        if let Some(recording) = &mut self.recording
            && !recording.written.iter().any(|w| Arc::ptr_eq(w, state))
        {
            recording.written.push(state.clone());
        }
    }

    /// A verb has changed some of the first `len` values of a buffer on a device that had its newest content.
    pub(super) fn changed(&mut self, device: usize, state: &Arc<State>, len: usize) {
        self.wrote(device, state, len.max(state.len()));
    }

    /// Copies the content of a buffer from one device to another.
    fn copy_between(&mut self, buf: &Buf, from: usize, to: usize) -> Result<(), Error> {
        let bytes = 4 * buf.state.len() as u64;
        if bytes == 0 {
            return Ok(());
        }
        let ends = [(from, &buf.on[from].buffer), (to, &buf.on[to].buffer)];
        let be = &mut self.devices[to];
        if be.prepared.as_ref().is_some_and(|p| Arc::ptr_eq(p, ends[1].1)) {
            be.prepared = None;
        }
        match self.recording.as_ref().map(|r| r.tokens) {
            None => self.copy_now(ends, bytes),
            Some(tokens) => {
                self.copy_in_step(ends, bytes)?;
                if tokens > REPLAY_TOKENS_MAX {
                    // The next copy of a long step takes the same memory.
                    self.devices[to].is_split = true;
                    let done = self.devices[to].recorder.flush();
                    done.map_err(|e| self.named(to, &e))?;
                    self.exchange[from].used[OUT] = 0;
                    self.exchange[to].used[INTO] = 0;
                }
                Ok(())
            }
        }
    }

    /// Copies between steps.
    fn copy_now(&mut self, ends: [(usize, &Arc<Buffer>); 2], bytes: u64) -> Result<(), Error> {
        let mut host = vec![0; bytes as usize];
        let [(from, source), (to, target)] = ends;
        let read = self.devices[from].download(source, 0, &mut host);
        read.map_err(|e| self.named(from, &e))?;
        let part = Part { buffer: target.clone(), at: 0, bytes: host.len() };
        let written = self.devices[to].upload_parts(&[part], &host);
        written.map_err(|e| self.named(to, &e))
    }

    /// Copies in a step: the device that has the content runs what it was given so far, the host copies, and the other device goes on with it.
    fn copy_in_step(&mut self, ends: [(usize, &Arc<Buffer>); 2], bytes: u64) -> Result<(), Error> {
        let [(from, source), (to, target)] = ends;
        let out = self.reserve(from, OUT, bytes)?;
        let into = self.reserve(to, INTO, bytes)?;
        let recorder = &mut self.devices[from].recorder;
        let copied = recorder.barrier().and_then(|()| recorder.copy((source, 0), (&out.0, out.1), bytes));
        let recorded = copied.and_then(|()| recorder.finish());
        if let Some(recording) = recorded.map_err(|e| self.named(from, &e))? {
            let done = self.devices[from].recorder.run(&recording);
            let crossing = Crossing { from: out, to: into.clone(), bytes };
            if done.is_ok() {
                crossing.copy();
            }
            let segment = Segment { device: from, recording, crossing: Some(crossing) };
            self.recording.as_mut().expect("a step is being recorded").segments.push(segment);
            done.map_err(|e| self.named(from, &e))?;
        }
        let recorder = &mut self.devices[to].recorder;
        let copied = recorder.barrier().and_then(|()| recorder.copy((&into.0, into.1), (target, 0), bytes));
        copied.and_then(|()| recorder.barrier()).map_err(|e| self.named(to, &e))
    }

    /// A part of the memory that the host copies from or to.
    fn reserve(&mut self, device: usize, side: usize, bytes: u64) -> Result<(Arc<Buffer>, u64), Error> {
        let Exchange { buffers, used } = &self.exchange[device];
        if used[side] + bytes > buffers[side].bytes {
            // Recordings that use the old one keep it.
            let larger = self.devices[device].memory.buffer(bytes.max(2 * buffers[side].bytes), Place::Host);
            let larger = larger.map_err(|e| self.named(device, &e))?;
            self.exchange[device].buffers[side] = larger;
            self.exchange[device].used[side] = 0;
        }
        let Exchange { buffers, used } = &mut self.exchange[device];
        let at = used[side];
        used[side] += bytes;
        Ok((buffers[side].clone(), at))
    }

    /// Makes room for the rows of a step, so that most steps allocate nothing.
    pub(super) fn reserve_rows(&mut self, batch_tokens: usize) -> Result<(), Error> {
        let bytes = 4 * (batch_tokens * self.devices[0].embed_cols) as u64;
        for device in 0..self.devices.len() {
            for side in [OUT, INTO] {
                self.exchange[device].used[side] = 0;
                self.reserve(device, side, bytes)?;
            }
        }
        Ok(())
    }

    /// A step begins: it uses the memory for copies from the start.
    pub(super) fn begin_exchange(&mut self) {
        self.exchange.iter_mut().for_each(|e| e.used = [0; 2]);
    }
}
