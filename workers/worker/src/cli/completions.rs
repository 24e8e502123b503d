//! The command `completions`.

use super::output::print_line;
use super::Program;
use crate::Result;
use clap::Args;
use clap_complete::Shell;

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell: its start-up file is to evaluate what is printed.
    shell: Shell,
}

impl CompletionsArgs {
    /// Prints the script of a program.
    ///
    /// # Errors
    /// [`crate::Error::Runtime`] if standard output fails.
    pub fn run<P: Program>(self) -> Result<()> {
        let mut command = super::env::command::<P>();
        let name = command.get_name().to_string();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        print_line(String::from_utf8_lossy(&script).trim_end())
    }
}
