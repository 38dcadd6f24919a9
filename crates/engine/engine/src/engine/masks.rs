//! The thread that computes constraints' masks while the model computes the logits. Started with the first constraint.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::choice::Masked;
use super::{JobId, Running};

/// A constraint being computed, and its result.
type Job = (usize, Box<Masked>);
type Reply = (usize, Box<Masked>, Result<(), String>, Duration);

/// Cost of a step's masks.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// Their number.
    pub masks: usize,
    /// Time to compute them.
    pub computed: Duration,
    /// Time that the step waited for them after its logits were ready.
    pub waited: Duration,
}

/// The worker, and the number of masks that it has not returned. Joined when dropped.
#[derive(Default)]
pub struct MaskWorker {
    thread: Option<(Sender<Job>, Receiver<Reply>, JoinHandle<()>)>,
    owed: usize,
}

impl MaskWorker {
    /// Sends the constraints of the step's sequences to the worker.
    pub(super) fn send(&mut self, running: &mut [Running]) {
        for (i, r) in running.iter_mut().enumerate() {
            if r.planned > 0
                && r.choice.needs_mask()
                && let Some(masked) = r.choice.masked.take()
            {
                let (to, ..) = self.thread.get_or_insert_with(start);
                match to.send((i, masked)) {
                    Ok(()) => self.owed += 1,
                    // The worker catches panics of constraints, so it exists; otherwise the mask is computed later.
                    Err(back) => r.choice.masked = Some(back.0.1),
                }
            }
        }
    }

    /// Receives the masks, waiting if necessary. Returns the requests whose constraints failed.
    pub(super) fn receive(&mut self, running: &mut [Running]) -> (Vec<(JobId, String)>, Cost) {
        let (mut failed, mut cost) = (Vec::new(), Cost::default());
        if let Some((_, from, _)) = &self.thread
            && self.owed > 0
        {
            let began = Instant::now();
            while self.owed > 0
                && let Ok((i, masked, result, time)) = from.recv()
            {
                self.owed -= 1;
                cost.masks += 1;
                cost.computed += time;
                if let Err(e) = result {
                    failed.push((running[i].job, e));
                }
                running[i].choice.masked = Some(masked);
            }
            cost.waited = began.elapsed();
        }
        (failed, cost)
    }
}

impl Masked {
    /// Computes the mask of the next token. Grammars come from requests: a panic in one must not affect others.
    pub fn compute(&mut self) -> Result<(), String> {
        let Masked { constraint, allowed, .. } = self;
        catch_unwind(AssertUnwindSafe(|| constraint.mask(allowed)))
            .unwrap_or_else(|_| Err("the constraint panicked".into()))?;
        self.fresh = true;
        Ok(())
    }

    /// Adds up to `most` tokens that will probably come next. Errors here show up when the next mask is computed.
    pub fn forced(&mut self, most: usize, forced: &mut Vec<u32>) {
        let Self { constraint, .. } = self;
        if catch_unwind(AssertUnwindSafe(|| constraint.forced(most, forced))).is_err() {
            forced.clear();
        }
    }

    /// The answer continues with `id`.
    pub fn accept(&mut self, id: u32) -> Result<(), String> {
        self.fresh = false;
        catch_unwind(AssertUnwindSafe(|| self.constraint.accept(id)))
            .unwrap_or_else(|_| Err("the constraint panicked".into()))
    }
}

fn start() -> (Sender<Job>, Receiver<Reply>, JoinHandle<()>) {
    let (to, jobs) = channel::<Job>();
    let (reply, from) = channel();
    let thread = std::thread::spawn(move || {
        for (i, mut masked) in jobs {
            let began = Instant::now();
            let result = masked.compute();
            if reply.send((i, masked, result, began.elapsed())).is_err() {
                return;
            }
        }
    });
    (to, from, thread)
}

impl Drop for MaskWorker {
    fn drop(&mut self) {
        if let Some((to, from, thread)) = self.thread.take() {
            drop((to, from));
            // Its result does not matter any more.
            let _ = thread.join();
        }
    }
}
