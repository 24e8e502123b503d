//! The command line.

mod bench;
mod devices;
mod generate;
mod model;
mod output;
mod png_info;
mod request;
mod serve;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use worker::Result;

/// Makes images from text on AMD GPUs.
#[derive(Debug, Parser)]
#[command(name = "sd-worker-rocm", version, about)]
#[command(
    after_help = "Exit codes: 0 success, 1 failure while running, 2 bad arguments, picture or model file. Without --model a small built-in model draws plain shapes: \
                  sd-worker-rocm generate \"two green squares on a white background\""
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Makes pictures from a prompt.
    Generate(Box<generate::GenerateArgs>),
    /// Serves pictures over HTTP: rbee, OpenAI and web UI interfaces, and a page for people.
    Serve(Box<serve::ServeArgs>),
    /// Measures how long a step takes, and how much of it is enqueueing.
    Bench(Box<bench::BenchArgs>),
    /// Shows what a picture was made with.
    PngInfo(png_info::PngInfoArgs),
    /// Shows the GPUs that can be used, and what the others lack.
    Devices(devices::DevicesArgs),
    /// Prints a completion script for a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// Whatever the command failed with; [`worker::Error::exit_code`] gives the exit code.
    pub fn run(self) -> Result<()> {
        match self.command {
            Command::Generate(args) => args.run(),
            Command::Serve(args) => args.run(),
            Command::Bench(args) => args.run(),
            Command::PngInfo(args) => args.run(),
            Command::Devices(args) => args.run(),
            Command::Completions { shell } => {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut Self::command(), "sd-worker-rocm", &mut script);
                output::print(&script)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_flag_is_also_in_the_environment() {
        // What a call is about, not how it is done.
        let exceptions = [
            "json",
            "help",
            "version",
            "output",
            "prompt",
            "init-image",
            "mask",
        ];
        for command in Cli::command().get_subcommands() {
            if !["generate", "serve", "bench"].contains(&command.get_name()) {
                continue;
            }
            for argument in command.get_arguments() {
                let Some(long) = argument.get_long() else {
                    continue;
                };
                assert!(
                    argument.get_env().is_some() || exceptions.contains(&long),
                    "{} --{long}",
                    command.get_name()
                );
            }
        }
    }
}
