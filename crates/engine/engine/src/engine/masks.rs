//! The thread on which constraints compute their masks while the model computes the logits that they are for. Started
//! with the first constraint.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::choice::Masked;
use super::{JobId, Running};

/// A constraint on its way, and what came of it.
type Job = (usize, Box<Masked>);
type Reply = (usize, Box<Masked>, Result<(), String>, Duration);

/// What the masks of a step cost.
#[derive(Debug, Clone, Copy, Default)]
pub struct Cost {
    /// How many there were.
    pub masks: usize,
    /// How long they were computed.
    pub computed: Duration,
    /// How long the step waited for them when the logits were there.
    pub waited: Duration,
}

/// The worker, and how many masks it still owes. Dropped, it is joined.
#[derive(Default)]
pub struct MaskWorker {
    thread: Option<(Sender<Job>, Receiver<Reply>, JoinHandle<()>)>,
    owed: usize,
}

impl MaskWorker {
    /// Hands over the constraints of those that are in the step.
    pub(super) fn send(&mut self, running: &mut [Running]) {
        for (i, r) in running.iter_mut().enumerate() {
            if r.planned > 0
                && r.choice.wants_mask()
                && let Some(masked) = r.choice.masked.take()
            {
                let (to, ..) = self.thread.get_or_insert_with(start);
                match to.send((i, masked)) {
                    Ok(()) => self.owed += 1,
                    // The worker catches what constraints do, so it is there. If not, the mask is computed later.
                    Err(back) => r.choice.masked = Some(back.0.1),
                }
            }
        }
    }

    /// Takes the masks back, waiting for those that are not ready. Returns the requests whose constraints failed.
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
    /// Computes the mask of the next token. A grammar is made from a request: what it does wrong must not take the
    /// others down.
    pub fn compute(&mut self) -> Result<(), String> {
        let Masked { constraint, allowed, .. } = self;
        catch_unwind(AssertUnwindSafe(|| constraint.mask(allowed)))
            .unwrap_or_else(|_| Err("the constraint panicked".into()))?;
        self.fresh = true;
        Ok(())
    }

    /// Adds tokens that are likely to come next, at most `most`. What goes wrong here shows when the next mask is computed.
    pub fn forced(&mut self, most: usize, forced: &mut Vec<u32>) {
        let Self { constraint, .. } = self;
        if catch_unwind(AssertUnwindSafe(|| constraint.forced(most, forced))).is_err() {
            forced.clear();
        }
    }

    /// The answer goes on with `id`.
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
            // it has nothing to say that matters any more
            let _ = thread.join();
        }
    }
}
