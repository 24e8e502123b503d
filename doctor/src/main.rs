//! The `rocm-doctor` program.

use clap::Parser;
use doctor::DoctorArgs;
use std::process::ExitCode;
use worker::cli::{LogArgs, Program};

/// Checks an AMD GPU, its driver and its ROCm, and writes a report that can be sent.
#[derive(Debug, Parser)]
#[command(name = "rocm-doctor", version, about, after_help = doctor::command::EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    doctor: DoctorArgs,

    #[command(flatten)]
    log: LogArgs,
}

impl Program for Cli {
    const PREFIX: &'static str = "DOCTOR";

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn is_service(&self) -> bool {
        false
    }

    fn run(self) -> worker::Result<()> {
        self.doctor.run(&[], &[])
    }
}

fn main() -> ExitCode {
    worker::cli::main::<Cli>()
}
