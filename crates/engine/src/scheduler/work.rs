//! The engine's thread: takes in what was submitted, does a step, and waits when there is nothing to do.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};

use super::handle::Shared;
use crate::Error;
use crate::engine::{Engine, Event, EventSink, Prepared, Step};

/// What handles send.
pub enum Command {
    /// A request that has been checked.
    Submit(Box<Prepared>, Box<dyn EventSink>),
    /// Look at the flags.
    Wake,
}

/// Works until it is told to end, or all handles are gone and everything is done.
pub(super) fn work(engine: &mut Engine, commands: &Receiver<Command>, shared: &Shared) {
    run(engine, commands, shared);
    // What was sent too late hears of it.
    for command in commands.try_iter() {
        if let Command::Submit(_, mut sink) = command {
            let _ = sink.send(Event::Failed(Error::Stopped)); // over either way
        }
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
            shared.publish(&engine.stats());
            return;
        }
        let step = engine.step();
        shared.publish(&engine.stats());
        if step == Step::Idle {
            if orphaned || shared.draining.load(Ordering::Acquire) {
                return;
            }
            match commands.recv() {
                Ok(command) => take(engine, command, shared),
                Err(_) => return,
            }
        }
    }
}

fn take(engine: &mut Engine, command: Command, shared: &Shared) {
    if let Command::Submit(request, sink) = command {
        engine.submit(*request, sink);
        // Counted there before it is not counted here, so that the queue is never longer than it may be.
        shared.publish(&engine.stats());
        shared.sent.fetch_sub(1, Ordering::AcqRel);
    }
}
