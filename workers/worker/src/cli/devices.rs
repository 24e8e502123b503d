//! The command `devices`.

use super::output::print_line;
use crate::report::DeviceReport;
use crate::{Error, Result};
use clap::Args;

/// Arguments of `devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl DevicesArgs {
    /// Prints what there is.
    ///
    /// # Errors
    /// [`Error::Runtime`] if standard output fails.
    pub fn run(self) -> Result<()> {
        let report = DeviceReport::gather();
        let text = if self.json {
            serde_json::to_string_pretty(&report)
                .map_err(|e| Error::Runtime(format!("cannot write JSON: {e}")))?
        } else {
            report.to_string()
        };
        print_line(text.trim_end())
    }
}
