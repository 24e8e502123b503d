//! How far a run is: a bar on a terminal, lines elsewhere, and a summary.

use crate::batch::figures::Figures;
use serde::Serialize;
use std::io::IsTerminal;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::progress::count_bar;
use worker::{Error, Result};

/// How often a bar is drawn.
const BAR_INTERVAL: Duration = Duration::from_millis(250);
/// How often a line is logged where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Shows how far a run is, until dropped.
pub(super) struct Show {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Show {
    /// Begins. `lines` is how many there are, if that is known.
    ///
    /// # Errors
    /// [`Error::Runtime`] if there is no thread.
    pub fn start(figures: Arc<Figures>, lines: Option<u64>) -> Result<Self> {
        let (stop, stopped) = channel();
        let begun = Instant::now();
        let thread = std::thread::Builder::new()
            .name("progress".to_string())
            .spawn(move || {
                let is_terminal = std::io::stderr().is_terminal();
                let bar = count_bar("", lines.unwrap_or(0), "lines");
                let interval = match is_terminal {
                    true => BAR_INTERVAL,
                    false => LINE_INTERVAL,
                };
                while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
                    let all = lines.unwrap_or_else(|| figures.read());
                    if !is_terminal {
                        tracing::info!("{}", line(&figures, lines, begun.elapsed()));
                        continue;
                    }
                    bar.set_length(all);
                    bar.set_position(figures.done());
                    bar.set_message(rates(&figures, begun.elapsed()));
                }
                bar.finish_and_clear();
            })
            .map_err(|e| Error::Runtime(format!("cannot start a thread: {e}")))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Show {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // What it shows is nothing that could be wanting.
            let _ = thread.join();
        }
    }
}

/// Failures and tokens a second.
fn rates(figures: &Figures, elapsed: Duration) -> String {
    let tokens = figures.tokens();
    let failed = figures.failed() + figures.earlier_failed();
    let rate = per_second(tokens.prompt + tokens.completion, elapsed);
    format!("{failed} failed, {rate:.1} tokens/s")
}

/// How far a run is, in a line.
fn line(figures: &Figures, lines: Option<u64>, elapsed: Duration) -> String {
    let done = figures.done();
    let of = lines.map_or(String::new(), |lines| format!(" of {lines}"));
    let own = done - figures.skipped();
    let left = lines.filter(|_| own > 0).map(|lines| {
        let seconds = elapsed.as_secs_f64() / own as f64 * lines.saturating_sub(done) as f64;
        format!(", {} left", words(Duration::from_secs_f64(seconds)))
    });
    let left = left.unwrap_or_default();
    format!("{done}{of} lines, {}{left}", rates(figures, elapsed))
}

fn per_second(count: u64, elapsed: Duration) -> f64 {
    match elapsed.as_secs_f64() {
        0.0 => 0.0,
        seconds => count as f64 / seconds,
    }
}

fn words(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60) {
        (0, 0) => format!("{seconds} s"),
        (0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (hours, minutes) => format!("{hours} h {minutes} min"),
    }
}

/// How a run went.
#[derive(Debug, Serialize)]
pub(super) struct Summary {
    /// Lines of the input that are not empty; of a pipe, those that were read.
    pub lines: u64,
    /// Requests that this run has answered.
    pub answered: u64,
    /// Lines that have failed in this run.
    pub failed: u64,
    /// Lines whose results were there before.
    pub skipped: u64,
    /// Tokens of this run's prompts.
    pub prompt_tokens: u64,
    /// Of these, those that were known.
    pub cached_tokens: u64,
    /// Tokens of this run's answers.
    pub completion_tokens: u64,
    /// How long this run took once the model was loaded.
    pub seconds: f64,
    /// Tokens of prompts and answers by that time.
    pub tokens_per_second: f64,
    /// Whether lines are left.
    pub is_interrupted: bool,
}

impl Summary {
    /// Of what was counted.
    pub fn new(
        figures: &Figures,
        lines: Option<u64>,
        elapsed: Duration,
        interrupted: bool,
    ) -> Self {
        let tokens = figures.tokens();
        Self {
            lines: lines.unwrap_or_else(|| figures.read()),
            answered: figures.answered(),
            failed: figures.failed(),
            skipped: figures.skipped(),
            prompt_tokens: tokens.prompt,
            cached_tokens: tokens.cached,
            completion_tokens: tokens.completion,
            seconds: elapsed.as_secs_f64(),
            tokens_per_second: per_second(tokens.prompt + tokens.completion, elapsed),
            is_interrupted: interrupted,
        }
    }
}

impl std::fmt::Display for Summary {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} lines: {} answered, {} failed, {} had their results before; {:.1} s, {} tokens of prompts ({} known), {} \
             of answers, {:.1} tokens/s",
            self.lines,
            self.answered,
            self.failed,
            self.skipped,
            self.seconds,
            self.prompt_tokens,
            self.cached_tokens,
            self.completion_tokens,
            self.tokens_per_second,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_words() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (61, "1 min 1 s"),
            (7260, "2 h 1 min"),
        ] {
            assert_eq!(words(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_line_tells_how_long_it_takes() {
        let figures = Figures::default();
        let written = crate::batch::outcome::Outcome::Unasked {
            custom_id: "a".to_string(),
            code: "x",
            message: String::new(),
        };
        assert_eq!(
            line(&figures, Some(4), Duration::from_secs(2)),
            "0 of 4 lines, 0 failed, 0.0 tokens/s"
        );
        figures.wrote(&written.written());
        assert_eq!(
            line(&figures, Some(4), Duration::from_secs(2)),
            "1 of 4 lines, 1 failed, 0.0 tokens/s, 6 s left"
        );
        assert_eq!(
            line(&figures, None, Duration::from_secs(2)),
            "1 lines, 1 failed, 0.0 tokens/s"
        );
    }
}
