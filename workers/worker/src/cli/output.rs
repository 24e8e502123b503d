//! Standard output carries data and nothing else.

use crate::text::on_terminal;
use crate::{Error, Result};
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};

/// Writes text at once, on a terminal with control characters shown, so that what a model says cannot steer it; raw
/// into files and pipes. A reader that has seen enough, such as `head`, ends it with `Ok(false)`.
///
/// # Errors
/// [`Error::Runtime`] if it cannot be written.
pub fn print(text: &str) -> Result<bool> {
    match std::io::stdout().is_terminal() {
        true => print_own(&on_terminal(text)),
        false => print_own(text),
    }
}

/// As [`print`], for text that is the program's own: escape sequences for colours work.
///
/// # Errors
/// [`Error::Runtime`] if it cannot be written.
pub fn print_own(text: &str) -> Result<bool> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Error::Runtime(format!("standard output: {e}"))),
    }
}

/// Writes a line.
///
/// # Errors
/// [`Error::Runtime`] if it cannot be written.
pub fn print_line(text: &str) -> Result<()> {
    print(&format!("{text}\n")).map(drop)
}

/// Writes a value as a line of JSON.
///
/// # Errors
/// [`Error::Runtime`] if it cannot be written.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string(value)
        .map_err(|e| Error::Runtime(format!("cannot write JSON: {e}")))?;
    print_line(&json)
}
