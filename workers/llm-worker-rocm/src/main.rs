//! The `llm-worker-rocm` program.

use llm_worker_rocm::cli::Cli;
use llm_worker_rocm::grammar::trial;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: worker::memory::Allocator = worker::memory::Allocator;

fn main() -> ExitCode {
    trial::begin().unwrap_or_else(worker::cli::main::<Cli>)
}
