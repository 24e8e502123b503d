//! `rocm-port port`

use super::scan::Reading;
use super::Outcome;
use rocm_port::port::{self, Instance, PackageOptions, Place, Report};
use rocm_port::source;
use std::path::PathBuf;

/// Options of `port`.
#[derive(clap::Args)]
#[command(
    after_help = "Exit status: 0 nothing is left to be done by hand, 1 something is (PORTING.md says what), 2 it \
                        failed.\n\nExamples:\n  rocm-port port candle-rotary@0.0.1 --out rotary\n  rocm-port port . \
                        --in-place\n  rocm-port port candle-rotary@0.0.1 --verify rotary"
)]
pub(crate) struct Options {
    /// A folder, a .cu file, or a crate of the registry: NAME or NAME@VERSION.
    source: String,
    /// The folder for the ported copy; nothing is written outside of it.
    #[arg(long, value_name = "DIR", required_unless_present_any = ["in_place", "verify"])]
    out: Option<PathBuf>,
    /// Change the crate itself; its git tree must be clean.
    #[arg(long, conflicts_with = "out")]
    in_place: bool,
    /// Check that a ported copy is the original without the feature rocm, and write nothing.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "in_place"])]
    verify: Option<PathBuf>,
    /// Translate all files to HIP C++ for hipcc, host code too, and nothing else.
    #[arg(long, requires = "out", conflicts_with_all = ["instance", "candle_rocm"])]
    host: bool,
    /// Write into a folder that is not empty.
    #[arg(long)]
    force: bool,
    /// A kernel with template arguments that no host code names, such as "kernel<float, 128>".
    #[arg(long, value_name = "KERNEL<ARGUMENTS>")]
    instance: Vec<Instance>,
    /// Where candle-rocm comes from: the address of a git repository, or a folder [default: its own repository].
    #[arg(long, value_name = "URL|DIR")]
    candle_rocm: Option<String>,
    #[command(flatten)]
    reading: Reading,
    /// Print what was done as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(options: Options) -> Outcome {
    let sources = source::open(&options.source)?;
    if let Some(ported) = &options.verify {
        return verify(&sources, ported, options.json);
    }
    if let (true, Some(out)) = (options.host, &options.out) {
        return host(&sources, out.clone(), options.force, options.json);
    }
    let place = match options.out {
        Some(out) => Place::Folder(out, options.force),
        None => Place::InPlace,
    };
    let candle_rocm = match options.candle_rocm {
        // A folder is named in a manifest elsewhere.
        Some(folder) if !folder.contains("://") && !folder.starts_with("git@") => {
            let path = PathBuf::from(&folder);
            let path = path
                .canonicalize()
                .map_err(|error| format!("--candle-rocm {folder}: {error}"))?;
            Some(path.to_string_lossy().into_owned())
        }
        other => other,
    };
    let report = port::package(
        &sources,
        &PackageOptions {
            place,
            reading: options.reading.options(),
            instances: options.instance,
            candle_rocm,
            source: options.source,
        },
    )?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        print!("{}", summary(&report));
    }
    Ok(report.open.is_empty())
}

fn verify(sources: &source::Sources, ported: &std::path::Path, json: bool) -> Outcome {
    let found = port::verify(sources, ported)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&found)?);
    } else if found.is_empty() {
        println!("Without the feature rocm it is the original.");
    } else {
        found.iter().for_each(|line| println!("{line}"));
    }
    Ok(found.is_empty())
}

fn host(sources: &source::Sources, out: PathBuf, force: bool, json: bool) -> Outcome {
    let report = port::hip(sources, out, force)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        let (files, replaced) = (report.files.len(), report.replaced);
        println!(
            "{files} files in {}, {replaced} names replaced",
            report.out.display()
        );
        report.open.iter().for_each(|line| println!("{line}"));
    }
    Ok(report.open.is_empty())
}

fn summary(report: &Report) -> String {
    let mut text = format!("{} -> {}\n", report.package, report.out.display());
    for unit in &report.units {
        let edited = if unit.edited { ", with edits" } else { "" };
        text.push_str(&format!(
            "  src/rocm/{}.hip: {} kernels, {} launchers{edited}\n",
            unit.name,
            unit.kernels,
            unit.launchers.len(),
        ));
    }
    for mapped in &report.mapped {
        text.push_str(&format!("  {} -> {}\n", mapped.kernel, mapped.to));
    }
    match report.open.len() {
        0 => text.push_str("Nothing is left to be done by hand. PORTING.md says how it is used.\n"),
        count => text.push_str(&format!(
            "{count} places are left to be done by hand: see PORTING.md.\n"
        )),
    }
    text
}
