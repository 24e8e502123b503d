//! The command line.
//!
//! Every option with a long name is read from the environment, too: `--max-steps` from `SD_MAX_STEPS`, unless it says
//! otherwise. The command line comes first.

mod batch;
mod bench;
mod faces;
mod generate;
mod loaded;
mod model;
mod output;
mod png_info;
mod preprocess;
mod request;
mod serve;
mod upscale;
mod wording;

use candle_core::rocm_backend::candle_rocm::CodeObject;
use clap::{Parser, Subcommand};
use worker::cli::{CommonCommand, LogArgs, Program};
use worker::Result;

/// Makes images from text on AMD GPUs.
#[derive(Debug, Parser)]
#[command(name = "sd-worker-rocm", version, about)]
#[command(
    after_help = "Every option can be given in the environment: --max-steps as SD_MAX_STEPS.\n\
                  Exit codes: 0 success, 1 failure while running, 2 bad arguments, picture or model file, 3 the device was lost while serving, \
                  128 and the signal that ended the server (134: a fault of the GPU).\n\
                  Without --model a small built-in model draws simple scenes: \
                  sd-worker-rocm generate \"a red house and a large green tree in a meadow\""
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,

    #[command(flatten)]
    log: LogArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Makes pictures from a prompt.
    Generate(Box<generate::GenerateArgs>),
    /// Makes pictures for each line of a file, and goes on where it stopped.
    Batch(Box<batch::BatchArgs>),
    /// Serves pictures over HTTP: rbee, OpenAI and web UI interfaces, and a page for people.
    Serve(Box<serve::ServeArgs>),
    /// Measures how long a step takes, and how much of it is enqueueing.
    Bench(Box<bench::BenchArgs>),
    /// Makes of a picture what ControlNets want to see.
    Preprocess(Box<preprocess::PreprocessArgs>),
    /// Makes pictures larger.
    Upscale(Box<upscale::UpscaleArgs>),
    /// Shows what a picture was made with.
    PngInfo(png_info::PngInfoArgs),
    #[command(flatten)]
    Common(CommonCommand),
}

impl Program for Cli {
    const PREFIX: &'static str = "SD";

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn usual_kernels() -> Vec<CodeObject> {
        crate::kernels::usual()
    }

    fn is_service(&self) -> bool {
        matches!(self.command, Command::Serve(_))
    }

    fn check(&self) -> Result<()> {
        match &self.command {
            Command::Serve(args) => args.check(),
            _ => Ok(()),
        }
    }

    fn run(self) -> Result<()> {
        match self.command {
            Command::Generate(args) => args.run(),
            Command::Batch(args) => args.run(),
            Command::Serve(args) => args.run(),
            Command::Bench(args) => args.run(),
            Command::Preprocess(args) => args.run(),
            Command::Upscale(args) => args.run(),
            Command::PngInfo(args) => args.run(),
            Command::Common(command) => command.run::<Cli>(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use worker::cli::env::command;

    #[test]
    fn the_command_line_is_consistent() {
        command::<Cli>().debug_assert();
    }

    #[test]
    fn every_flag_is_also_in_the_environment() {
        // What a call is about, not how it is done.
        let exceptions = [
            "json",
            "again",
            "help",
            "version",
            "output",
            "prompt",
            "init-image",
            "mask",
            "from-picture",
            "reference",
        ];
        for command in command::<Cli>().get_subcommands() {
            if !["generate", "batch", "serve", "bench"].contains(&command.get_name()) {
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
