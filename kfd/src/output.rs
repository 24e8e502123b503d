//! What the program says: lines for people, or an object of JSON a line.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value};
use std::io::{ErrorKind, IsTerminal, Write};

/// Where results go.
#[derive(Debug)]
pub struct Output {
    json: bool,
    bar: ProgressBar,
}

impl Output {
    /// Text, or JSON.
    pub fn new(json: bool) -> Self {
        Output {
            json,
            bar: ProgressBar::hidden(),
        }
    }

    /// Says something: `text` to people; to programs an object with `event` and the fields.
    pub fn say(&self, event: &str, text: &str, fields: Value) {
        let line = if self.json {
            let mut object = Map::new();
            object.insert("event".to_string(), event.into());
            if let Value::Object(fields) = fields {
                object.extend(fields);
            }
            Value::Object(object).to_string()
        } else {
            text.to_string()
        };
        self.bar.suspend(|| print(&line));
    }

    /// Says something to programs only.
    pub fn event(&self, event: &str, fields: Value) {
        if self.json {
            self.say(event, "", fields);
        }
    }

    /// Says something to people only.
    pub fn note(&self, text: &str) {
        if !self.json {
            self.bar.suspend(|| print(text));
        }
    }

    /// A warning, on standard error.
    pub fn warn(&self, text: &str) {
        self.bar.suspend(|| eprintln!("warning: {text}"));
    }

    /// Shows on a terminal how far work of so many steps is.
    pub fn begin(&mut self, what: &str, steps: u64) {
        self.bar.finish_and_clear();
        if !std::io::stderr().is_terminal() {
            return;
        }
        self.bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} [{wide_bar}] {percent}% ({eta})");
        self.bar
            .set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.set_message(what.to_string());
    }

    /// Steps are done.
    pub fn step(&self, steps: u64) {
        self.bar.inc(steps);
    }

    /// The work is done.
    pub fn end(&mut self) {
        self.bar.finish_and_clear();
        self.bar = ProgressBar::hidden();
    }
}

/// A line on standard output. A reader that has seen enough, such as `head`, ends the program quietly.
fn print(line: &str) {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("error: standard output: {error}");
            std::process::exit(1);
        }
        Ok(()) => {}
    }
}

/// A number of bytes for people, exact where it is a whole number of a unit.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut scaled = bytes as f64;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    if scaled.fract() == 0.0 {
        format!("{scaled:.0} {}", UNITS[unit])
    } else {
        format!("{scaled:.1} {}", UNITS[unit])
    }
}

/// Bytes in a time, in GB/s.
pub fn rate(bytes: u64, seconds: f64) -> f64 {
    bytes as f64 / seconds.max(1e-9) / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_at_a_glance() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(4096), "4 KiB");
        assert_eq!(size(1_500_000), "1.4 MiB");
        assert_eq!(size(64 << 30), "64 GiB");
        assert_eq!(size(u64::MAX), "16777216 TiB");
    }
}
