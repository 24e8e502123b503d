//! Installs the simulator as a ROCm folder, or runs a command with it.

use clap::{Parser, Subcommand};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

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
    /// Run a command with the simulator in place of ROCm.
    Run {
        /// Architecture of the device, or a comma list for several devices.
        #[arg(long)]
        arch: Option<String>,
        /// Check every load and store of kernels.
        #[arg(long)]
        check: bool,
        /// The command and its arguments.
        #[arg(required = true, last = true)]
        command: Vec<String>,
    },
}

fn main() -> ExitCode {
    match act(Cli::parse().action) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("hip-sim: {e}");
            ExitCode::FAILURE
        }
    }
}

fn act(action: Action) -> std::io::Result<()> {
    let library = hip_sim::install::find_library(&std::env::current_exe()?)?;
    match action {
        Action::Install { dir } => hip_sim::install::install(&library, &dir),
        Action::Run {
            arch,
            check,
            command,
        } => {
            // Kept beside the library, since the command replaces this process and nobody could remove a temporary
            // folder.
            let root = library.with_file_name("hip-sim-rocm");
            hip_sim::install::install(&library, &root)?;
            let mut child = Command::new(&command[0]);
            child
                .args(&command[1..])
                .env("ROCM_PATH", &root)
                .env("HIP_PATH", &root);
            if let Some(arch) = arch {
                child.env("HIP_SIM_ARCH", arch);
            }
            if check {
                child.env("HIP_SIM_CHECK", "1");
            }
            Err(child.exec())
        }
    }
}
