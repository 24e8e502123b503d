//! The `llm-worker-rocm` program.

use llm_worker_rocm::cli::Cli;
use std::process::ExitCode;

fn main() -> ExitCode {
    match Cli::read().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(error.exit_code()),
    }
}
