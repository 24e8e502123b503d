//! Installs the library as a ROCm folder, which has HIP and hiprtc only.

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Write DIR/lib with the library under ROCm's names; ROCM_PATH=DIR makes programs use it.
    Install {
        /// Folder to create or update.
        dir: PathBuf,
    },
}

fn main() -> ExitCode {
    let Action::Install { dir } = Cli::parse().action;
    let installed = std::env::current_exe()
        .and_then(|program| hip_on_kfd::install::find_library(&program))
        .and_then(|library| hip_on_kfd::install::install(&library, &dir));
    match installed {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("hip-on-kfd: {e}");
            ExitCode::FAILURE
        }
    }
}
