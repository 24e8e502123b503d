//! The command line.

mod devices;
mod generate;
mod perplexity;
mod quantize;
mod source;

use clap::{Parser, Subcommand};
use worker::Result;

/// Runs large language models on AMD GPUs.
#[derive(Debug, Parser)]
#[command(name = "llm-worker-rocm", version, about)]
#[command(
    after_help = "Exit codes: 0 success, 1 failure while running, 2 bad arguments, prompt or model file."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Generates text from a prompt or a chat message.
    Generate(Box<generate::GenerateArgs>),
    /// Measures how well a model predicts a text.
    Perplexity(perplexity::PerplexityArgs),
    /// Writes a model with its weights in another type.
    Quantize(quantize::QuantizeArgs),
    /// Shows the GPUs that can be used, and what the others lack.
    Devices(devices::DevicesArgs),
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// Whatever the command failed with; [`worker::Error::exit_code`] gives the exit code.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Generate(args) => args.run(),
            Command::Perplexity(args) => args.run(),
            Command::Quantize(args) => args.run(),
            Command::Devices(args) => args.run(),
        }
    }
}
