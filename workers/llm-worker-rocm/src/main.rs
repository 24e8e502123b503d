//! The `llm-worker-rocm` program.

use llm_worker_rocm::cli::Cli;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: worker::memory::Allocator = worker::memory::Allocator;

fn main() -> ExitCode {
    worker::cli::main::<Cli>()
}
