//! Times operations on the first device and prints one tab-separated line for each: `group name size microseconds rate
//! unit`.
//!
//! The programs under `benches/peers` print the same lines for PyTorch and for candle's CUDA backend; `benches/compare`
//! joins them.

mod attention;
mod convolution;
mod experts;
mod host;
mod images;
mod latent;
mod measure;
mod operations;
mod products;
mod quantized;
mod recurrent;
mod scaled;

use candle_rocm::{Device, Result};
use clap::Parser;
use measure::Bench;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Times operations on the first device.")]
struct Cli {
    /// Groups to run; all without any.
    groups: Vec<String>,
    /// Milliseconds of work per measurement.
    #[arg(long, default_value_t = 20)]
    milliseconds: u64,
    /// Divides every size, for a quick look on a slow device.
    #[arg(long, default_value_t = 1)]
    shrink: usize,
    /// Only measurements whose name and size contain this text.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
}

type Group = (&'static str, fn(&Bench) -> Result<()>);

const GROUPS: &[Group] = &[
    ("ceiling", products::ceilings),
    ("host", host::run),
    ("operation", operations::run),
    ("product", products::run),
    ("multiplier", products::by_whom),
    ("quantized", quantized::run),
    ("recorded", quantized::recorded),
    ("scaled", scaled::run),
    ("attention", attention::run),
    ("latent", latent::run),
    ("experts", experts::run),
    ("recurrent", recurrent::run),
    ("convolution", convolution::run),
    ("image", images::run),
    ("compile", host::compile),
];

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Some(unknown) = cli
        .groups
        .iter()
        .find(|name| !GROUPS.iter().any(|group| group.0 == **name))
    {
        let known: Vec<&str> = GROUPS.iter().map(|group| group.0).collect();
        eprintln!(
            "there is no group {unknown}; the groups are {}",
            known.join(", ")
        );
        return ExitCode::FAILURE;
    }
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    let device = Device::new(0)?;
    let properties = device.properties();
    println!(
        "# {} ({}), {} compute units",
        properties.name, properties.full_arch, properties.compute_units
    );
    let wanted = |name: &str| cli.groups.is_empty() || cli.groups.iter().any(|group| group == name);
    for (name, group) in GROUPS {
        if wanted(name) {
            group(&Bench::new(&device, name, cli))?;
        }
    }
    Ok(())
}
