//! `llm-worker-rocm completions`.

use super::output::print_line;
use clap::Args;
use clap_complete::Shell;
use worker::Result;

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompleteArgs {
    /// The shell: its start-up file is to evaluate what is printed.
    shell: Shell,
}

impl CompleteArgs {
    pub(super) fn run(self) -> Result<()> {
        let mut command = super::command();
        let name = command.get_name().to_string();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        print_line(String::from_utf8_lossy(&script).trim_end())
    }
}
