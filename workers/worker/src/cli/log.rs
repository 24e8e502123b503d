//! Notes, warnings and errors on standard error, as text or as JSON.

use crate::{Error, Result};
use clap::{Args, ValueEnum};
use std::io::IsTerminal;
use tracing_subscriber::filter::EnvFilter;

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
    /// One JSON object a line, with time, level, message and fields.
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
        let builder = tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal());
        let started = match (self.log_format, timed) {
            (LogFormat::Json, _) => builder.json().flatten_event(true).try_init(),
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
            LogFormat::Text => eprintln!("error: {error}"),
            LogFormat::Json => tracing::error!(exit_code = error.exit_code(), "{error}"),
        }
    }
}
