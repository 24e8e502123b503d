//! The command line.

mod check;
mod port;
mod repair;
mod scan;

use clap::{Parser, Subcommand};
use std::error::Error;
use std::process::ExitCode;

/// What a command answers: whether all was well, or why it could not be done.
type Outcome = Result<bool, Box<dyn Error>>;

/// Takes the CUDA kernels of a Rust crate to AMD GPUs, without CUDA and without hipcc.
#[derive(Parser)]
#[command(name = "rocm-port", version, max_term_width = 120)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Finds CUDA kernels and says of each whether it can go over as it is, and what stands in its way.
    Scan(scan::Options),
    /// Writes ported units, launchers in Rust and the feature `rocm`.
    Port(port::Options),
    /// Compiles ported units for every arch and runs them on the simulator, in waves of 32 and of 64.
    Check(check::Options),
    /// Repairs a kernel with a language model, in a loop that may touch the kernel only.
    Repair(repair::Options),
    /// Starts a program within bounds: what `repair` puts before checks of what a model wrote.
    #[command(hide = true)]
    Confined(repair::Confined),
}

/// Exit status: 0 all is well, 1 something was found, 2 it could not be done.
pub(crate) fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Scan(options) => scan::run(options),
        Command::Port(options) => port::run(options),
        Command::Check(options) => check::run(options),
        Command::Repair(options) => repair::run(options),
        Command::Confined(options) => repair::confined(options),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("rocm-port: {error}");
            ExitCode::from(2)
        }
    }
}
