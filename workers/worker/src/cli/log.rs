//! Notes, warnings and errors on standard error, as text or as JSON.

mod json;

use crate::observe::request::TARGET;
use crate::text::indented;
use crate::{Error, Result};
use clap::{Args, ValueEnum};
use json::JsonLines;
use std::io::{IsTerminal, Write};
use tracing_subscriber::filter::EnvFilter;
use tracing_subscriber::fmt::format::JsonFields;

/// How to log.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// What notes, warnings and errors on standard error look like.
    #[arg(long, global = true, value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    log_format: LogFormat,

    /// What to log: off, error, warn, info, debug, trace, or TARGET=LEVEL, separated by commas.
    #[arg(long, global = true, default_value = "info", value_name = "LEVELS")]
    log_level: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object a line, with time, level, message, fields and the request's name.
    Json,
}

impl LogArgs {
    /// Takes standard error for log lines. `timed` gives lines of text their time and level: for what runs long.
    ///
    /// # Errors
    /// [`Error::Usage`] for levels that do not parse; [`Error::Runtime`] if the process logs already.
    pub fn start(&self, timed: bool) -> Result<()> {
        let filter = EnvFilter::try_new(&self.log_level)
            .map_err(|e| Error::Usage(format!("--log-level {}: {e}", self.log_level)))?;
        // Lines that are asked for have their request's name, whatever else is left out.
        let filter = match format!("{TARGET}=error").parse() {
            Ok(names) => filter.add_directive(names),
            Err(_) => filter,
        };
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(|| Sink)
            // Where standard error fails, there is nobody to tell.
            .log_internal_errors(false)
            .with_ansi(std::io::stderr().is_terminal());
        let started = match (self.log_format, timed) {
            (LogFormat::Json, _) => builder
                .with_ansi(false)
                .fmt_fields(JsonFields::new())
                .event_format(JsonLines)
                .try_init(),
            (LogFormat::Text, true) => builder.with_target(false).try_init(),
            (LogFormat::Text, false) => builder
                .with_target(false)
                .with_level(false)
                .without_time()
                .try_init(),
        };
        started.map_err(|e| Error::Runtime(format!("cannot log: {e}")))?;
        candle_rocm::verify::on_warning(|text| tracing::warn!("{text}"));
        Ok(())
    }

    /// Tells why the program ends.
    pub fn report(&self, error: &Error) {
        match self.log_format {
            LogFormat::Text => tell(&format!("error: {error}")),
            LogFormat::Json => tracing::error!(exit_code = error.exit_code(), "{error}"),
        }
    }
}

/// Writes text to standard error as one note: what it quotes of files and models can neither steer a terminal nor begin
/// a line of its own. A standard error that is closed or full is no reason to end.
pub fn tell(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", indented(text));
}

/// Standard error for log lines.
struct Sink;

impl Write for Sink {
    /// Takes one log line at a time, as the logger gives them. Of its escape sequences only colours are left, those that
    /// the logger puts in itself; it shows those of messages.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        // A closed or full standard error loses the line, and the program goes on.
        let _ = writeln!(std::io::stderr(), "{}", plain(&text));
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A log line with everything shown that could steer a terminal or begin another line, but for colours.
fn plain(line: &str) -> String {
    let mut pieces = line.trim_end_matches('\n').split("\u{1b}[");
    let mut plain = indented(pieces.next().unwrap_or_default()).into_owned();
    for piece in pieces {
        let end = piece.find(|c: char| !c.is_ascii_digit() && c != ';');
        let is_colour = end.is_some_and(|end| piece[end..].starts_with('m'));
        plain.push_str(if is_colour { "\u{1b}[" } else { "\\u{1b}[" });
        plain.push_str(&indented(piece));
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_keep_their_colours_and_nothing_else() {
        assert_eq!(
            plain("\u{1b}[32m INFO\u{1b}[0m name=a\u{1b}[2J\u{1b}]0;x\u{7}\nINFO fake\n"),
            "\u{1b}[32m INFO\u{1b}[0m name=a\\u{1b}[2J\\u{1b}]0;x\\u{7}\n  INFO fake"
        );
    }
}
