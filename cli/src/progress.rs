//! Progress on standard error: a bar on a terminal, otherwise a line every 5 seconds.

use super::common::Common;
use super::output::{bytes, complain, count};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// Interval of lines in a log: short enough to show progress, long enough not to flood it.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Reports the progress of a job; silent with `--quiet` and `--json`. Any thread may call it.
pub(crate) struct Reporter(Face);

enum Face {
    Silent,
    Bar(ProgressBar),
    Lines(Mutex<Lines>),
}

struct Lines {
    verb: &'static str,
    start: Instant,
    last: Instant,
}

impl Reporter {
    /// Creates a reporter for a job called `verb` ("writing", "reading footers").
    pub(crate) fn new(common: &Common, verb: &'static str) -> Self {
        if common.json || common.quiet {
            return Self(Face::Silent);
        }
        if !std::io::stderr().is_terminal() {
            let now = Instant::now();
            return Self(Face::Lines(Mutex::new(Lines { verb, start: now, last: now })));
        }
        let bar = ProgressBar::no_length();
        let shape = "{msg:>16} {wide_bar} {human_pos}/{human_len} {per_sec} eta {eta}";
        bar.set_style(ProgressStyle::with_template(shape).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(verb);
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(Face::Bar(bar))
    }

    /// Reports `done` items of `total` (if known), and the `size` in bytes so far (if it applies).
    pub(crate) fn tell(&self, verb: &'static str, done: u64, total: Option<u64>, size: Option<u64>) {
        match &self.0 {
            Face::Silent => {}
            Face::Bar(bar) => {
                match total {
                    Some(total) => bar.set_length(total),
                    None => bar.unset_length(),
                }
                bar.set_message(verb);
                bar.set_position(done);
            }
            Face::Lines(lines) => {
                let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                if lines.last.elapsed() >= LINE_EVERY {
                    lines.verb = verb;
                    lines.last = Instant::now();
                    complain(&lines.describe(done, total, size));
                }
            }
        }
    }

    /// Removes the bar.
    pub(crate) fn end(&self) {
        if let Face::Bar(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.end(); // an error message must not follow half a bar on the same line
    }
}

impl Lines {
    fn describe(&self, done: u64, total: Option<u64>, size: Option<u64>) -> String {
        let of = total.map_or(String::new(), |total| format!(" of {}", count(total)));
        let size = size.map_or(String::new(), |size| format!(", {}", bytes(size)));
        let seconds = self.start.elapsed().as_secs_f64();
        format!("{}: {}{of}{size} after {seconds:.0} s", self.verb, count(done))
    }
}
