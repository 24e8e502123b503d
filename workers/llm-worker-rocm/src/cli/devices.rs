//! `llm-worker-rocm devices`.

use clap::Args;
use worker::report::DeviceReport;
use worker::{Error, Result};

/// Arguments of `devices`.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl DevicesArgs {
    pub(super) fn run(self) -> Result<()> {
        let report = DeviceReport::gather();
        let text = if self.json {
            serde_json::to_string_pretty(&report)
                .map_err(|e| Error::Runtime(format!("cannot write JSON: {e}")))?
        } else {
            report.to_string()
        };
        super::output::print_line(text.trim_end())
    }
}
