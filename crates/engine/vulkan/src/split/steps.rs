//! Steps over several devices: segments, each a recording of one device, and the copy of the host after it.

use octet_compute::backend::Pass;
use octet_compute::batch::Batch;

use super::segments::Segment;
use super::state::State;
use super::*;
use crate::steps::{Prologue, StepKey};
use crate::traffic::Traffic;

/// Maximum number of recorded steps to keep.
const RECORDINGS_MAX: usize = 64;

/// A recorded step.
pub(super) struct Recorded {
    key: StepKey,
    segments: Vec<Segment>,
    /// Of each device.
    prologues: Vec<Vec<Prologue>>,
    traffic: Vec<Traffic>,
    /// What is known of buffers after it.
    after: Vec<(Arc<State>, u32, usize)>,
    /// The device of its last verb.
    at: usize,
}

impl Split {
    /// Verbs only note their kernels.
    pub(super) fn is_noting(&self) -> bool {
        self.devices[0].is_noting_kernels()
    }

    /// See [`octet_compute::Backend::step`].
    pub(super) fn run_step(
        &mut self,
        pass: Pass,
        batch: &Batch,
        body: impl FnOnce(&mut Self),
    ) -> Result<(), Error> {
        if self.is_noting() {
            self.at = 0;
            self.devices.iter_mut().for_each(Vulkan::begin_noted_step);
            body(self);
            self.devices.iter_mut().for_each(Vulkan::end_noted_step);
            return Ok(());
        }
        self.take_fault()?;
        self.devices.iter_mut().for_each(|be| (be.tokens, be.side, be.read_side) = (batch.len(), 0, 0));
        let key = StepKey::new(pass, batch, 0, false);
        // Where given embeddings go differs from step to step.
        let known = batch.given().0.is_empty().then(|| self.steps.iter().position(|s| s.key == key));
        let done = match known.flatten().and_then(|i| self.steps.remove(i)) {
            Some(step) => {
                let done = self.replay(&step, batch);
                self.steps.push_back(step);
                done
            }
            None => self.record(key, batch, body),
        };
        done.inspect_err(|_| self.clear_counts())
    }

    /// Counts of experts of a step that failed do not count.
    fn clear_counts(&mut self) {
        for be in self.devices.iter_mut().filter(|be| !be.recorder.is_lost) {
            // Before the first step there is no memory for counts.
            if be.scratch.is_some()
                && let Err(e) = be.recorder.wait_for_all().and_then(|()| be.clear_counts(0))
            {
                be.fault.get_or_insert(e);
            }
        }
    }

    /// Runs a recorded step with another batch.
    fn replay(&mut self, step: &Recorded, batch: &Batch) -> Result<(), Error> {
        self.each(|i, be| be.begin_replay(batch, &step.prologues[i]))?;
        for Segment { device, recording, crossing } in &step.segments {
            let recorder = &mut self.devices[*device].recorder;
            let sent = recorder.submit(recording);
            let done = sent.and_then(|number| {
                if let Some(crossing) = crossing {
                    recorder.wait_for(number)?;
                    crossing.copy();
                }
                Ok(())
            });
            done.map_err(|e| self.named(*device, &e))?;
        }
        self.finish(&step.segments, &step.traffic, batch)?;
        step.after.iter().for_each(|(state, valid, len)| state.set(*valid, *len));
        self.at = step.at;
        Ok(())
    }

    /// Waits for the end of a step.
    fn finish(&mut self, segments: &[Segment], traffic: &[Traffic], batch: &Batch) -> Result<(), Error> {
        self.each(|i, be| {
            be.recorder.wait_for_all()?;
            be.bytes_read += traffic[i].of(batch);
            Ok(())
        })?;
        let recordings = segments.iter().map(|s| &s.recording);
        self.last_step = recordings.fold((0, 0), |(b, d), r| (b + r.barriers, d + r.dispatches));
        Ok(())
    }

    /// Records a step and runs it. Keeps the recording if the step can be replayed.
    fn record(&mut self, key: StepKey, batch: &Batch, body: impl FnOnce(&mut Self)) -> Result<(), Error> {
        let is_kept = key.is_short() && batch.given().0.is_empty();
        if let Err(e) = self.each(|_, be| be.begin_recording(batch)) {
            for be in &mut self.devices {
                be.recorder.abandon();
                be.in_step = false;
            }
            return Err(e);
        }
        self.begin_exchange();
        self.at = 0;
        let (segments, written) = (Vec::new(), Vec::new());
        self.recording = Some(Recording { tokens: batch.len(), segments, written, is_kept });
        body(self);
        let Recording { mut segments, written, is_kept, .. } =
            self.recording.take().expect("the step is being recorded");
        let mut done = self.end_recordings(batch, &mut segments);
        let traffic: Vec<Traffic> = self.devices.iter().map(|be| be.recorder.traffic).collect();
        done = done.and_then(|()| self.finish(&segments, &traffic, batch));
        let is_whole = self.devices.iter().all(|be| !be.is_split && be.recorder.timer.is_none());
        if done.is_err() || !is_kept || !is_whole {
            self.recycle(segments);
            return done;
        }
        if self.steps.len() == RECORDINGS_MAX
            && let Some(old) = self.steps.pop_front()
        {
            self.recycle(old.segments);
        }
        let prologues = self.devices.iter().map(|be| be.prologue.clone()).collect();
        let after = written.into_iter().map(|w| (w.clone(), w.valid(), w.len())).collect();
        self.steps.push_back(Recorded { key, segments, prologues, traffic, after, at: self.at });
        Ok(())
    }

    /// Submits what devices have recorded since the last copies.
    fn end_recordings(&mut self, batch: &Batch, segments: &mut Vec<Segment>) -> Result<(), Error> {
        let mut done = self.fault.take().map_or(Ok(()), Err);
        for device in 0..self.devices.len() {
            let ended = self.devices[device].end_recording(batch.len());
            done = done.and(ended.map_err(|e| self.named(device, &e)));
        }
        if done.is_err() {
            self.devices.iter_mut().for_each(|be| be.recorder.abandon());
            return done;
        }
        for device in 0..self.devices.len() {
            let recorder = &mut self.devices[device].recorder;
            let sent = recorder.finish().and_then(|recording| {
                let Some(recording) = recording else { return Ok(()) };
                let sent = recorder.submit(&recording);
                segments.push(Segment { device, recording, crossing: None });
                sent.map(|_| ())
            });
            sent.map_err(|e| self.named(device, &e))?;
        }
        Ok(())
    }

    /// Frees the recordings of a step, which has ended.
    fn recycle(&mut self, segments: Vec<Segment>) {
        for Segment { device, recording, .. } in segments {
            let recorder = &mut self.devices[device].recorder;
            // If that fails, the device is marked as lost, and the recording is kept until it has stopped.
            let _ = recorder.wait_for_all();
            recorder.recycle(recording);
        }
    }

    /// Forgets all recorded steps.
    pub(super) fn forget_steps(&mut self) {
        for step in std::mem::take(&mut self.steps) {
            self.recycle(step.segments);
        }
    }
}
