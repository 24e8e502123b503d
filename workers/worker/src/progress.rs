//! Progress on a terminal, silence elsewhere.

use crate::text::one_line;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// A bar over a known number of bytes, drawn on standard error.
///
/// Hidden where standard error is not a terminal, so that logs and pipes stay clean.
pub fn byte_bar(message: &str, total_bytes: u64) -> ProgressBar {
    let template = "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} ({eta})";
    bar(message, total_bytes, template)
}

/// The same over a number of things named by `unit`.
pub fn count_bar(message: &str, total: u64, unit: &str) -> ProgressBar {
    let template = format!("{{msg}} [{{wide_bar}}] {{pos}}/{{len}} {unit} ({{eta}})");
    bar(message, total, &template)
}

fn bar(message: &str, total: u64, template: &str) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() {
        ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr())
    } else {
        ProgressBar::hidden()
    };
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar.set_message(one_line(message).into_owned());
    bar
}
