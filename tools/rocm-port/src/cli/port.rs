//! `rocm-port port`

use super::Outcome;

/// Options of `port`.
#[derive(clap::Args)]
pub(crate) struct Options {}

/// Runs the command.
pub(crate) fn run(_: Options) -> Outcome {
    Err("not yet".into())
}
