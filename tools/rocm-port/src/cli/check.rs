//! `rocm-port check`

use super::Outcome;

/// Options of `check`.
#[derive(clap::Args)]
pub(crate) struct Options {}

/// Runs the command.
pub(crate) fn run(_: Options) -> Outcome {
    Err("not yet".into())
}
