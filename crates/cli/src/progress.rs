//! Progress bars on standard error for work that may take long; none if it is not a terminal.

use std::cell::OnceCell;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::stderr::note;
use crate::units::size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use octet_hub::Event;

/// Shorter work needs no bar.
const DELAY: Duration = Duration::from_millis(400);

/// A bar that appears if its work takes long, and disappears at its end.
pub struct Bar {
    message: String,
    started: Instant,
    style: ProgressStyle,
    bar: OnceCell<ProgressBar>,
}

/// A line that says what is done; it disappears when this is dropped.
pub struct Working(ProgressBar);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the template is valid").progress_chars("█▉▊▋▌▍▎▏ ")
}

impl Bar {
    /// For work of unknown length: shown until it is dropped.
    pub fn working(message: &str) -> Working {
        let bar = ProgressBar::new_spinner()
            .with_style(style("{spinner} {msg} …"))
            .with_message(message.to_string());
        bar.enable_steady_tick(DELAY / 4);
        Working(bar)
    }

    /// For work counted in bytes.
    pub fn bytes(message: impl Into<String>) -> Self {
        let template =
            "{msg} {bar:24} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
        Self::new(message, style(template))
    }

    /// For work counted in steps.
    pub fn steps(message: impl Into<String>) -> Self {
        Self::new(message, style("{msg} {bar:24} {pos} of {len}"))
    }

    fn new(message: impl Into<String>, style: ProgressStyle) -> Self {
        Self { message: message.into(), started: Instant::now(), style, bar: OnceCell::new() }
    }

    /// Updates the progress.
    pub fn update(&self, done: u64, all: u64) {
        if self.bar.get().is_none() && self.started.elapsed() < DELAY {
            return;
        }
        let bar = self.bar.get_or_init(|| {
            let bar = ProgressBar::with_draw_target(Some(all), ProgressDrawTarget::stderr_with_hz(10));
            bar.set_style(self.style.clone());
            bar.set_message(self.message.clone());
            bar
        });
        bar.set_length(all);
        bar.set_position(done);
    }

    /// Changes the text beside the bar.
    pub fn set_message(&mut self, message: impl Into<String>) {
        self.message = message.into();
        if let Some(bar) = self.bar.get() {
            bar.set_message(self.message.clone());
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }
}

/// Shows the progress of a pull; as lines of text if standard error is a file.
pub struct Pull(Mutex<Option<ProgressBar>>);

impl Pull {
    /// A new one.
    pub fn new() -> Self {
        Self(Mutex::new(None))
    }

    fn bar(&self) -> std::sync::MutexGuard<'_, Option<ProgressBar>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn line(&self, text: &str) {
        match &*self.bar() {
            Some(bar) => bar.suspend(|| note!("{text}")),
            None => note!("{text}"),
        }
    }
}

impl octet_hub::Progress for Pull {
    fn event(&self, event: Event<'_>) {
        match event {
            Event::Trying { source } => self.line(&format!("trying {source}")),
            Event::Failed { source, why } => self.line(&format!("  {source}: {why}")),
            Event::Waiting { file } => {
                self.line(&format!("{file} is being downloaded by another process; waiting for it"));
            }
            Event::Checking { file, bytes } => {
                self.line(&format!("{file}: going on after {}", size(bytes)));
            }
            Event::Started { file, position: (i, n), total, resumed } => {
                let nth = if n > 1 { format!(" ({i} of {n})") } else { String::new() };
                let template = "{bar:24} {binary_bytes} of {binary_total_bytes}, {msg}";
                if let Some(before) = self.bar().take() {
                    before.finish_and_clear();
                }
                // Before the bar exists, which would stay on this line.
                let size = total.map_or(String::new(), |t| format!(", {}", size(t)));
                self.line(&format!("fetching {file}{nth}{size}"));
                let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
                bar.set_style(style(if total.is_some() {
                    template
                } else {
                    "{spinner} {binary_bytes}, {msg}"
                }));
                bar.set_position(resumed);
                *self.bar() = Some(bar);
            }
            Event::Advanced { bytes, total, rate, .. } => {
                if let Some(bar) = &*self.bar() {
                    let left = total.filter(|_| rate > 0.0).map(|t| t.saturating_sub(bytes) as f64 / rate);
                    let left = left.map_or(String::new(), |s| format!(", {} left", duration(s)));
                    bar.set_message(format!("{}/s{left}", size(rate as u64)));
                    bar.set_position(bytes);
                }
            }
            Event::Retrying { file, why, delay } => {
                self.line(&format!("{file}: {why}; trying again in {:.1} s", delay.as_secs_f64()));
            }
            Event::Unpacking { file } => self.line(&format!("unpacking {file}")),
            Event::Finished { .. } => {
                if let Some(bar) = self.bar().take() {
                    bar.finish_and_clear();
                }
            }
            Event::Note(text) => self.line(text),
            _ => {} // one that this version does not know
        }
    }
}

impl Drop for Pull {
    /// Removes the bar of a failed pull.
    fn drop(&mut self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
        }
    }
}

/// `42 s`, `3 min 20 s`, `2 h 5 min`.
fn duration(seconds: f64) -> String {
    let s = seconds.round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min {} s", s / 60, s % 60),
        _ => format!("{} h {} min", s / 3600, s % 3600 / 60),
    }
}
