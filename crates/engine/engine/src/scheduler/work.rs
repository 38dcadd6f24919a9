//! The engine's thread: takes in what was submitted, does a step, and waits when there is nothing to do.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use super::handle::{Place, Shared};
use crate::Error;
use crate::engine::{Engine, Event, EventSink, Prepared, Step};

/// What handles send.
pub enum Command {
    /// A request that has been checked.
    Submit(Submission),
    /// Look at the flags.
    Wake,
}

/// A request on its way to the engine. Wherever it is dropped before it gets there, its listener hears that it was stopped:
/// one that nobody tells waits for ever.
pub struct Submission(Option<(Box<Prepared>, Box<dyn EventSink>, Place)>);

impl Submission {
    pub fn new(request: Prepared, sink: Box<dyn EventSink>, place: Place) -> Self {
        Self(Some((Box::new(request), sink, place)))
    }

    /// Drops the request without an event: its submitter learns of it in another way.
    pub fn refuse(mut self) {
        self.0 = None;
    }
}

impl Drop for Submission {
    fn drop(&mut self) {
        if let Some((_, sink, _)) = &mut self.0 {
            let _ = sink.send(Event::Failed(Error::Stopped)); // over either way
        }
    }
}

/// After so long without work the cache is stored: a conversation that goes on at once would pass most of it.
const QUIET: Duration = Duration::from_secs(3);
/// Between two parts of that; and between looks at whether those that drain have all come.
const PAUSE: Duration = Duration::from_millis(5);

/// Works until the shutdown message, or until all handles are gone and everything is done. Should the engine panic, everybody
/// hears of it before the thread does so too.
pub(super) fn work(engine: &mut Engine, commands: &Receiver<Command>, shared: &Shared) {
    let result = catch_unwind(AssertUnwindSafe(|| run(engine, commands, shared)));
    shared.draining.store(true, Ordering::Release);
    if result.is_err() {
        // One of the listeners may be what panicked.
        while catch_unwind(AssertUnwindSafe(|| engine.fail_all(|| Error::Panicked))).is_err() {}
    }
    // What was sent too late hears of it as it is dropped: here, or with the channel.
    for command in commands.try_iter() {
        if let (Command::Submit(mut submission), Some(why)) = (command, engine.lost().get())
            && let Some((_, sink, _)) = &mut submission.0
        {
            let _ = sink.send(Event::Failed(Error::Device(why.clone()))); // over either way
            submission.0 = None;
        }
    }
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

fn run(engine: &mut Engine, commands: &Receiver<Command>, shared: &Shared) {
    let mut orphaned = false;
    loop {
        loop {
            match commands.try_recv() {
                Ok(command) => take(engine, command, shared),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    orphaned = true;
                    break;
                }
            }
        }
        if shared.stop.load(Ordering::Acquire) {
            engine.stop();
            shared.publish_at_rest(&engine.stats());
            return;
        }
        let step = engine.step();
        if engine.is_broken() {
            // Whoever owns the model opens it again, on the device as it is then. Those who wait hear that it was stopped.
            engine.stop();
            shared.publish_at_rest(&engine.stats());
            return;
        }
        if step == Step::Worked {
            shared.publish(&engine.stats());
        } else {
            shared.publish_at_rest(&engine.stats());
            if orphaned || shared.is_drained() {
                engine.flush();
                shared.publish_at_rest(&engine.stats());
                return;
            }
            if shared.draining.load(Ordering::SeqCst) {
                // Places are taken for requests that are still being made. They count as accepted.
                match commands.recv_timeout(PAUSE) {
                    Ok(command) => take(engine, command, shared),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => orphaned = true,
                }
                continue;
            }
            match rest(engine, commands, shared) {
                Ok(command) => take(engine, command, shared),
                Err(RecvError) => orphaned = true,
            }
        }
    }
}

/// Waits for the next command. Where that takes long, the cache is stored meanwhile.
fn rest(engine: &mut Engine, commands: &Receiver<Command>, shared: &Shared) -> Result<Command, RecvError> {
    let mut wait = QUIET;
    loop {
        match commands.recv_timeout(wait) {
            Ok(command) => return Ok(command),
            Err(RecvTimeoutError::Disconnected) => return Err(RecvError),
            Err(RecvTimeoutError::Timeout) => {
                let more = engine.save_some();
                shared.publish_at_rest(&engine.stats());
                if !more {
                    measure(engine, shared);
                    return commands.recv();
                }
                wait = PAUSE;
            }
        }
    }
}

/// Looks once at what the memory gives, where somebody wants to know: while nobody waits for an answer.
fn measure(engine: &mut Engine, shared: &Shared) {
    if shared.bandwidth_wanted.load(Ordering::Relaxed) && shared.bandwidth.load(Ordering::Relaxed) == 0 {
        let measured = engine.backend().quick_bandwidth().unwrap_or(0.0);
        shared.bandwidth.store(measured as u64, Ordering::Relaxed);
    }
}

fn take(engine: &mut Engine, command: Command, shared: &Shared) {
    if let Command::Submit(mut submission) = command
        && let Some((request, sink, place)) = submission.0.take()
    {
        engine.submit(*request, sink);
        // Counted there before it is not counted here, so that the queue is never longer than it may be.
        shared.publish(&engine.stats());
        drop(place);
    }
}
