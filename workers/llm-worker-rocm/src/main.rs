//! The `llm-worker-rocm` program.

use llm_worker_rocm::cli::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    worker::cli::main::<Cli>()
}
