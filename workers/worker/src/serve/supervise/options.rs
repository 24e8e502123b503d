//! Whether a server is supervised, and how.

use crate::device::DeviceRequest;
use clap::ValueEnum;
use std::time::Duration;

/// When a parent process supervises the one that serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Supervise {
    /// Where the server may compute on an AMD GPU.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// The arguments about supervision.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Crashes")]
pub struct SuperviseArgs {
    /// Whether a process of its own holds the port, answers 503 and starts the server anew when it crashes, as ROCm
    /// lets it after a GPU fault; auto does so on AMD GPUs.
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    supervise: Supervise,

    /// Crashes after which the server is started anew, within --crash-window; one more ends the program.
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub(in crate::serve) max_restarts: usize,

    /// Seconds after which a crash is forgotten.
    #[arg(long, default_value_t = 600, value_name = "SECONDS")]
    crash_window: u64,

    /// Let a crash leave core files as far as the system allows; the GPU's is as large as the memory in use.
    #[arg(long)]
    pub(in crate::serve) core_files: bool,
}

impl SuperviseArgs {
    /// Whether to supervise a server that is to compute on `device`. Does not touch the GPU.
    pub(in crate::serve) fn is_wanted(&self, device: DeviceRequest) -> bool {
        match self.supervise {
            Supervise::On => true,
            Supervise::Off => false,
            Supervise::Auto => device.may_be_rocm(),
        }
    }

    /// The same where something else starts all hosts of a model anew: not unless it is asked for.
    pub(in crate::serve) fn only_if_asked(mut self) -> Self {
        if self.supervise == Supervise::Auto {
            self.supervise = Supervise::Off;
        }
        self
    }

    /// How long a crash counts.
    pub(in crate::serve) fn window(&self) -> Duration {
        Duration::from_secs(self.crash_window)
    }
}
