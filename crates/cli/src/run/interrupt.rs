//! Ctrl-C: stops the current answer, or the program if there is none.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const STOP: u8 = 2;

/// The exit code after Ctrl-C: 128 + SIGINT.
pub const EXIT_CODE: u8 = 130;

/// Whether Ctrl-C was pressed during the answer.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// Handles Ctrl-C for the whole program. A second one during the same answer ends the program unless `patient`: a chat must not be
    /// lost by accident.
    pub fn install(patient: bool) -> anyhow::Result<Self> {
        let state = Arc::new(AtomicU8::new(IDLE));
        let seen = Arc::clone(&state);
        ctrlc::set_handler(move || {
            let answering = seen.compare_exchange(ANSWERING, STOP, Ordering::SeqCst, Ordering::SeqCst);
            if answering == Err(IDLE) || (answering == Err(STOP) && !patient) {
                std::process::exit(EXIT_CODE.into());
            }
        })?;
        Ok(Self(state))
    }

    /// Starts an answer.
    pub fn begin(&self) {
        self.0.store(ANSWERING, Ordering::SeqCst);
    }

    /// Ends an answer. True if it was stopped.
    pub fn end(&self) -> bool {
        self.0.swap(IDLE, Ordering::SeqCst) == STOP
    }

    /// Whether the answer should continue.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// True if the answer should stop.
    fn stopped(&self) -> bool {
        self.0.load(Ordering::SeqCst) == STOP
    }
}
