//! `rocm-port repair`

use super::Outcome;

/// Options of `repair`.
#[derive(clap::Args)]
pub(crate) struct Options {}

/// Runs the command.
pub(crate) fn run(_: Options) -> Outcome {
    Err("not yet".into())
}
