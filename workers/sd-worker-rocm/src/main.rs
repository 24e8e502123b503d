//! The `sd-worker-rocm` program.

use sd_worker_rocm::cli::Cli;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: worker::memory::Allocator = worker::memory::Allocator;

fn main() -> ExitCode {
    worker::cli::main::<Cli>()
}
