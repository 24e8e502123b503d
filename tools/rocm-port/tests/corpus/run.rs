//! From a crate of the registry to a row of the table in the docs: sources, parser, port, compilers, simulator.

use crate::case::case;
use crate::random::Random;
use crate::rows::Row;
use rocm_port::check::{Check, Finding, Report, Targets};
use rocm_port::model::PortedUnit;
use rocm_port::port::{unit, Instance, UnitOptions};
use rocm_port::{parse, source};
use std::collections::BTreeSet;

/// A CUDA file of a crate, and what is known of it.
pub struct File {
    /// Path in the crate.
    pub path: &'static str,
    /// The value of `__CUDA_ARCH__` that it is ported for.
    pub arch: u32,
    /// Macros.
    pub defines: &'static [&'static str],
    /// Folders with headers.
    pub includes: &'static [&'static str],
    /// Instances beside those that host code names.
    pub instances: Vec<Instance>,
    /// Launches of its kernels.
    pub rows: fn(&mut Random) -> Vec<Row>,
}

impl File {
    /// A file with nothing particular, for GPUs with 8-bit floats.
    pub fn new(path: &'static str, rows: fn(&mut Random) -> Vec<Row>) -> Self {
        Self {
            path,
            arch: 890,
            defines: &[],
            includes: &[],
            instances: Vec::new(),
            rows,
        }
    }
}

/// Whether everything is to run: all archs, several orders of threads.
pub fn full() -> bool {
    std::env::var_os("FULL").is_some()
}

/// What became of a file.
pub struct Outcome {
    pub path: &'static str,
    /// Kernels in its text.
    pub kernels: usize,
    /// Entries of the unit: instances of kernels.
    pub entries: usize,
    /// Archs that the unit compiled for.
    pub compiled_for: Vec<String>,
    /// Kernels of which an instance ran with right results in both widths.
    pub compared: usize,
    /// Launches, of all widths and orders.
    pub launches: usize,
    /// Faults of kernels that were known, and found.
    pub known: Vec<String>,
}

/// Template arguments, one form for each type.
fn normal(argument: &str) -> String {
    let mut words = String::new();
    let mut rest = argument;
    while let Some(c) = rest.chars().next() {
        let end = rest
            .find(|c: char| !(c.is_alphanumeric() || c == '_'))
            .unwrap_or(rest.len());
        if end == 0 {
            // Namespaces are dropped with what is before them.
            if rest.starts_with("::") {
                let word = words.trim_end_matches(|c: char| c.is_alphanumeric() || c == '_');
                words.truncate(word.len());
                rest = &rest[2..];
                continue;
            }
            if !c.is_whitespace() {
                words.push(c);
            }
            rest = &rest[c.len_utf8()..];
            continue;
        }
        words.push_str(match &rest[..end] {
            "half" | "__half" => "f16",
            "nv_bfloat16" | "__nv_bfloat16" => "bf16",
            "float" => "f32",
            "double" => "f64",
            word => word,
        });
        rest = &rest[end..];
    }
    words
}

/// The entry that a launch means: the kernel's name, and template arguments that contain the launch's, in order.
fn entry<'a>(unit: &'a PortedUnit, row: &Row) -> Result<&'a str, String> {
    let last = |name: &str| name.rsplit("::").next().unwrap_or(name).to_owned();
    let wanted: Vec<String> = row.template.iter().map(|a| normal(a)).collect();
    let fits = |given: &[String]| {
        let mut given = given.iter().map(|a| normal(a));
        wanted.iter().all(|want| given.any(|have| have == *want))
    };
    let mut found = unit
        .kernels
        .iter()
        .filter(|kernel| last(&kernel.kernel) == last(&row.kernel) && fits(&kernel.template));
    match (found.next(), found.next()) {
        (Some(kernel), None) => Ok(&kernel.entry),
        (None, _) => Err(format!("no entry of {} with {:?}", row.kernel, row.template)),
        (Some(a), Some(b)) => Err(format!(
            "{} with {:?} is {} and {}",
            row.kernel, row.template, a.entry, b.entry
        )),
    }
}

/// Ports a file, compiles it, and runs its launches.
///
/// # Panics
/// If anything is wrong.
pub fn run(package: &str, file: &File) -> Outcome {
    let sources = source::open(package).expect("the crate is there, or cargo fetches it");
    let mut sources = sources;
    sources.cuda.retain(|path| path == file.path);
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let options = parse::Options {
        cuda_arch: file.arch,
        defines: owned(file.defines),
        includes: owned(file.includes),
        ..Default::default()
    };
    let project = parse::project(&sources, &options).expect("the file can be read");
    let ported = unit(
        &project,
        file.path,
        &UnitOptions {
            cuda_arch: Some(file.arch),
            defines: owned(file.defines),
            includes: owned(file.includes),
            instances: file.instances.clone(),
        },
    )
    .expect("the file can be ported");
    let rows = (file.rows)(&mut Random(7));
    let mut missing = Vec::new();
    let mut cases = Vec::new();
    let mut numbers = std::collections::BTreeMap::new();
    for row in &rows {
        match entry(&ported.unit, row) {
            Ok(entry) => {
                let number = numbers.entry(entry.to_owned()).or_insert(0);
                *number += 1;
                let name = format!("{} {number} {}", row.kernel, row.about);
                cases.push(case(row, entry, name.trim().to_owned()));
            }
            Err(why) => missing.push(why),
        }
    }
    let targets = match full() {
        true => Targets::All,
        false => Targets::Only(vec!["gfx942".into(), "gfx1100".into()]),
    };
    let report = Check::new(&ported.unit)
        .compile_for(targets)
        .orders(if full() { 3 } else { 1 })
        .without_shrinking()
        .cases(cases)
        .run()
        .expect("a check can be made");
    outcome(file, &project.files[0].kernels, &ported.unit, &rows, &report, missing)
}

/// Counts what a report says, and fails for what it should not say.
fn outcome(
    file: &File,
    kernels: &[rocm_port::model::Kernel],
    unit: &PortedUnit,
    rows: &[Row],
    report: &Report,
    missing: Vec<String>,
) -> Outcome {
    let names: BTreeSet<&str> = kernels.iter().map(|k| k.name.as_str()).collect();
    let right = |entry: &str| {
        report.kernels.iter().any(|k| {
            k.entry == entry && k.is_clean && k.has_reference && k.widths == [32, 64] && k.launches > 0
        })
    };
    let compared: BTreeSet<&str> = unit
        .kernels
        .iter()
        .filter(|k| right(&k.entry))
        .map(|k| k.kernel.as_str())
        .collect();
    let known: BTreeSet<String> = report.findings.iter().filter_map(|f| f.known.clone()).collect();
    let failing: Vec<&Finding> = report.findings.iter().filter(|f| f.fails()).collect();
    let without: Vec<&&str> = names.difference(&compared).collect();
    println!(
        "{}: {} kernels, {} entries, {} launches made, {} compared, compiled for {:?}",
        file.path,
        names.len(),
        unit.kernels.len(),
        rows.len(),
        compared.len(),
        report.compiled_for
    );
    for finding in &failing {
        println!("{finding}");
    }
    println!("{}", report.notes.join("\n"));
    assert!(missing.is_empty(), "launches without an entry: {missing:#?}");
    assert!(failing.is_empty(), "{} findings", failing.len());
    assert!(without.is_empty(), "not compared: {without:?}");
    Outcome {
        path: file.path,
        kernels: names.len(),
        entries: unit.kernels.len(),
        compiled_for: report.compiled_for.clone(),
        compared: compared.len(),
        launches: report.kernels.iter().map(|k| k.launches).sum(),
        known: known.into_iter().collect(),
    }
}
