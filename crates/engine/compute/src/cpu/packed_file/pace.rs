//! How fast a thread works beside the steps of loaded models: at once while none runs, else a small part of the time.

use std::sync::atomic::{AtomicBool, Ordering::*};
use std::time::{Duration, Instant};

use crate::cpu::Arbiter;

/// After a step, so long without another one is a pause: sampling and a client's next request take less.
const QUIET: Duration = Duration::from_millis(100);
/// While steps run, a thread rests so many times as long as its last piece of work took. With two cores it takes 1% of their time.
const REST: u32 = 48;
/// The same for a copy to memory: steps are slower until all is copied, by more than what the copy takes from them.
pub(super) const COPY_REST: u32 = 4;
/// A model that was just loaded soon has its first step: so long its thread waits for it, as the rest of the start needs all processors.
const FIRST: Duration = Duration::from_secs(2);
/// The longest rest, so that the work ends in any case, and the longest time until it is seen that steps have paused.
const REST_MAX: Duration = Duration::from_secs(1);
const NAP: Duration = Duration::from_millis(10);

/// Lets a thread wait for its turn.
pub(super) struct Pace {
    arbiter: Arbiter,
    quiet: Duration,
    nap: fn(Duration),
    /// While steps run, a rest lasts so many times as long as the work before it.
    pub rest: u32,
    /// Steps so far when it last looked, and since when there are no more; `None`: since it began.
    steps: u64,
    since: Option<Instant>,
    /// The thread's own time when its last turn began.
    began: Duration,
}

impl Pace {
    /// For the calling thread. Until the next step it does not wait: there may be much time before the first one of a model.
    pub fn new(arbiter: &Arbiter) -> Self {
        let (arbiter, quiet, nap) = (arbiter.clone(), QUIET, std::thread::sleep);
        let (steps, _) = arbiter.activity();
        Self { arbiter, quiet, nap, rest: REST, steps, since: None, began: own_time() }
    }

    /// Waits for the first step after a load, if it comes soon; false if the thread is to `stop`.
    pub fn after_first(&mut self, stop: &AtomicBool) -> bool {
        let mut left = FIRST;
        while !stop.load(Acquire) {
            let (steps, runs) = self.arbiter.activity();
            if left.is_zero() || runs || steps != self.steps {
                return true;
            }
            (self.nap)(NAP);
            left = left.saturating_sub(NAP);
        }
        false
    }

    /// Waits until the next piece of work may be done; false if the thread is to `stop`.
    pub fn turn(&mut self, stop: &AtomicBool) -> bool {
        let mut rest = REST_MAX.min(own_time().saturating_sub(self.began) * self.rest);
        while !stop.load(Acquire) {
            if self.is_quiet() || rest.is_zero() {
                self.began = own_time();
                return true;
            }
            let nap = rest.min(NAP);
            (self.nap)(nap);
            rest -= nap;
        }
        false
    }

    /// Whether no step has run for some time.
    fn is_quiet(&mut self) -> bool {
        let (steps, runs) = self.arbiter.activity();
        if steps != self.steps {
            (self.steps, self.since) = (steps, Some(Instant::now()));
        }
        !runs && self.since.is_none_or(|since| since.elapsed() >= self.quiet)
    }
}

/// The time that this thread has computed: waiting for a drive is not work.
#[cfg(target_os = "linux")]
fn own_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(t.tv_sec).unwrap_or(0), u32::try_from(t.tv_nsec).unwrap_or(0))
}

#[cfg(not(target_os = "linux"))]
fn own_time() -> Duration {
    Duration::ZERO // only Linux keeps packed weights
}

/// Lets other threads of this process compute first.
pub(super) fn yield_to_others() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), 19); // a hint
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        static NAPS: Cell<Duration> = const { Cell::new(Duration::ZERO) };
    }

    fn pace(arbiter: &Arbiter) -> Pace {
        let nap = |nap| NAPS.with(|all| all.set(all.get() + nap));
        Pace { quiet: Duration::ZERO, nap, ..Pace::new(arbiter) }
    }

    /// Work of some of the thread's own time.
    fn work() {
        let start = own_time();
        while own_time() - start < Duration::from_micros(300) {
            std::hint::spin_loop();
        }
    }

    #[test]
    fn a_thread_waits_for_the_first_step_but_not_without_end() {
        let (arbiter, go, stop) = (Arbiter::default(), AtomicBool::new(false), AtomicBool::new(true));
        let naps = || NAPS.with(|all| all.replace(Duration::ZERO));
        assert!(pace(&arbiter).after_first(&go));
        assert_eq!(naps(), FIRST, "no step comes");
        assert!(!pace(&arbiter).after_first(&stop));
        let mut waits = pace(&arbiter);
        drop(arbiter.acquire());
        assert!(waits.after_first(&go), "there was one");
        let permit = arbiter.acquire();
        assert!(pace(&arbiter).after_first(&go), "one runs");
        drop(permit);
        assert_eq!(naps(), Duration::ZERO);
    }

    #[test]
    fn work_waits_for_steps_but_not_without_end() {
        let (arbiter, go, stop) = (Arbiter::default(), AtomicBool::new(false), AtomicBool::new(true));
        let mut pace = pace(&arbiter);
        let naps = || NAPS.with(|all| all.replace(Duration::ZERO));
        for _ in 0..3 {
            work();
            assert!(pace.turn(&go));
        }
        assert_eq!(naps(), Duration::ZERO, "no step runs");
        let permit = arbiter.acquire();
        for _ in 0..3 {
            work();
            assert!(pace.turn(&go));
            let rest = naps();
            assert!(rest >= Duration::from_micros(300) * REST && rest <= REST_MAX, "{rest:?}");
        }
        work();
        assert!(!pace.turn(&stop));
        assert_eq!(naps(), Duration::ZERO, "it stops at once");
        drop(permit);
        assert!(pace.turn(&go));
        assert_eq!(naps(), Duration::ZERO, "the step has ended");
        // With a pause that never comes, as right after a step.
        pace.quiet = Duration::MAX;
        work();
        assert!(pace.turn(&go));
        assert!(naps() >= Duration::from_micros(300) * REST);
    }
}
