//! The engine's thread: receives requests, runs steps, and waits when idle.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use super::handle::{QueueSlot, Shared};
use crate::Error;
use crate::engine::{Engine, Event, EventSink, Prepared, Step};

/// A command from a handle.
pub enum Command {
    /// A checked request.
    Submit(Submission),
    /// Check the flags.
    Wake,
}

/// A request on its way to the engine. If it is dropped before it arrives, its sink is notified that it was stopped; otherwise its client
/// would wait forever.
pub struct Submission(Option<(Box<Prepared>, Box<dyn EventSink>, QueueSlot)>);

impl Submission {
    pub fn new(request: Prepared, sink: Box<dyn EventSink>, place: QueueSlot) -> Self {
        Self(Some((Box::new(request), sink, place)))
    }

    /// Drops the request without an event: the submitter gets an error instead.
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

/// Idle time before the cache is stored on disk: a conversation that continues soon would supersede most of it.
const QUIET: Duration = Duration::from_secs(3);
/// Pause between parts of storing, and between checks for draining.
const PAUSE: Duration = Duration::from_millis(5);

/// Runs until shutdown, or until all handles are dropped and all requests are finished. If the engine panics, all sinks are notified
/// before the thread panics, too.
pub(super) fn work(engine: &mut Engine, commands: &Receiver<Command>, shared: &Shared) {
    let result = catch_unwind(AssertUnwindSafe(|| run(engine, commands, shared)));
    shared.draining.store(true, Ordering::Release);
    if result.is_err() {
        // A sink itself may be what panics.
        while catch_unwind(AssertUnwindSafe(|| engine.fail_all(|| Error::Panicked))).is_err() {}
    }
    // Requests that arrive too late get an error when dropped: here, or with the channel.
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
                Ok(command) => apply(engine, command, shared),
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
            // The owner of the model opens it again, with the device in its new state. Waiting requests are notified that it was stopped.
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
                // Slots are reserved for requests in preparation. These count as accepted.
                match commands.recv_timeout(PAUSE) {
                    Ok(command) => apply(engine, command, shared),
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => orphaned = true,
                }
                continue;
            }
            match rest(engine, commands, shared) {
                Ok(command) => apply(engine, command, shared),
                Err(RecvError) => orphaned = true,
            }
        }
    }
}

/// Waits for the next command. After a while without any, stores the cache meanwhile.
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

/// Measures the memory bandwidth, if requested, while no request is running.
fn measure(engine: &mut Engine, shared: &Shared) {
    if shared.bandwidth_wanted.load(Ordering::Relaxed) && shared.bandwidth.load(Ordering::Relaxed) == 0 {
        let measured = engine.backend().quick_bandwidth().unwrap_or(0.0);
        shared.bandwidth.store(measured as u64, Ordering::Relaxed);
    }
}

fn apply(engine: &mut Engine, command: Command, shared: &Shared) {
    if let Command::Submit(mut submission) = command
        && let Some((request, sink, place)) = submission.0.take()
    {
        engine.submit(*request, sink);
        // Counted there before it is subtracted here, so that the queue never exceeds its limit.
        shared.publish(&engine.stats());
        drop(place);
    }
}
