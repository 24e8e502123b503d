//! The command `doctor`: `rocm-doctor` with one more section, the decoding of a small model.

mod decode;

use clap::Args;
use decode::Decode;
use doctor::DoctorArgs;
use worker::Result;

pub use decode::{cases, Case, MODEL};

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorCommand {
    #[command(flatten)]
    doctor: DoctorArgs,
}

impl DoctorCommand {
    /// Examines GPU, driver and ROCm.
    ///
    /// # Errors
    /// Those of [`DoctorArgs::run`].
    pub fn run(self) -> Result<()> {
        self.doctor.run(&["doctor"], &[&Decode])
    }
}
