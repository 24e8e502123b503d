//! `llm-worker-rocm quantize`.

use super::source::SourceArgs;
use crate::model::open_weights;
use crate::quantize::{Conversion, NaturalOrder, Override, Plan, Summary, Target};
use clap::Args;
use std::path::PathBuf;
use worker::signal::Interrupt;
use worker::{Error, Result};

/// Arguments of `quantize`.
#[derive(Debug, Args)]
pub struct QuantizeArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// File to write.
    output: PathBuf,

    /// Type of the weight matrices: F32 F16 BF16, Q4_0 Q4_1 Q5_0 Q5_1 Q8_0, Q2_K to Q6_K, Q4_K_M and Q5_K_M (more bits
    /// where they matter), IQ*, TQ*, MXFP4.
    #[arg(long = "type", short, value_name = "TYPE", value_parser = str::parse::<Target>)]
    target: Target,

    /// Another type for tensors whose name contains PATTERN; the first that fits counts. For example
    /// output.weight=Q8_0.
    #[arg(long, value_name = "PATTERN=TYPE", value_parser = str::parse::<Override>)]
    tensor_type: Vec<Override>,

    /// Replace OUTPUT if it exists.
    #[arg(long)]
    force: bool,

    /// Only show what would be written.
    #[arg(long)]
    dry_run: bool,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

impl QuantizeArgs {
    pub(super) fn run(self) -> Result<()> {
        let path = self.source.resolve()?;
        if self.output.exists() {
            let same = path.canonicalize().ok() == self.output.canonicalize().ok();
            if same {
                return Err(Error::Usage("OUTPUT is the model that is read".to_string()));
            }
            if !self.force && !self.dry_run {
                return Err(Error::Usage(format!(
                    "{} exists; --force replaces it",
                    self.output.display()
                )));
            }
        }
        let file = open_weights(&path)?;
        let file = NaturalOrder::new(&*file)?;
        let conversion = Conversion::new(&file, &Plan::new(self.target, self.tensor_type))?;
        let summary = conversion.summary();
        if !self.dry_run {
            conversion.write(&self.output, &Interrupt::install()?)?;
        }
        let text = if self.json {
            serde_json::to_string(&summary)
                .map_err(|e| Error::Runtime(format!("cannot write JSON: {e}")))?
        } else {
            describe(&summary)
        };
        worker::cli::output::print_line(&text)
    }
}

fn describe(summary: &Summary) -> String {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let types: Vec<String> = summary
        .tensors
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    format!(
        "{:.1} MiB to {:.1} MiB, {:.2} bits per weight; tensors: {}",
        mib(summary.source_bytes),
        mib(summary.bytes),
        summary.bits_per_weight,
        types.join(", ")
    )
}
