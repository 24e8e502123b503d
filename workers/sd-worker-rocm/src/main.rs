//! The `sd-worker-rocm` program.

use sd_worker_rocm::cli::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    worker::cli::main::<Cli>()
}
