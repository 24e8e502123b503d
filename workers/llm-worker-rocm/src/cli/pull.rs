//! `llm-worker-rocm pull`.

use super::source::SourceArgs;
use clap::Args;
use worker::cli::output::print_line;
use worker::Result;

/// Arguments of `pull`.
#[derive(Debug, Args)]
pub struct PullArgs {
    #[command(flatten)]
    source: SourceArgs,
}

impl PullArgs {
    /// Prints where the model lies.
    pub(super) fn run(self) -> Result<()> {
        let path = self.source.resolve()?;
        print_line(&path.display().to_string())
    }
}
