//! A whole crate: units and launchers in `src/rocm`, the feature `rocm`, and notes on what is left.

pub(super) mod files;
mod manifest;
mod notes;
mod rust;
mod verify;

pub use verify::verify;

use super::host::{launchers, Declared};
use super::{unit, Instance, UnitOptions};
use crate::model::{Project, Scan, SourceFile, Verdict};
use crate::source::Sources;
use crate::{parse, rules};
use manifest::Origin;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Brackets inside of brackets in Rust that is still read.
const MAX_NESTING: usize = 200;

/// Why a crate could not be ported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    /// A file or folder could not be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// The CUDA could not be read.
    #[error(transparent)]
    Source(#[from] crate::source::Error),
    /// There is something in the folder already.
    #[error("{} is not empty; choose another folder, or overwrite what is there with --force", .0.display())]
    NotEmpty(PathBuf),
    /// The folder for the result is in the crate itself.
    #[error("{} is inside of the crate; choose a folder outside, or --in-place", .0.display())]
    Inside(PathBuf),
    /// Changes in place need a way back.
    #[error("{} has changes that are not committed, or is no git repository: --in-place needs a clean one", .0.display())]
    NotClean(PathBuf),
    /// The crate has no kernels.
    #[error("no kernel was found; `rocm-port scan` says what is there")]
    NoKernels,
    /// The manifest cannot be ported.
    #[error("{0}")]
    Manifest(String),
}

/// Where the result goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A copy in a new folder; `true` overwrites what is there.
    Folder(PathBuf, bool),
    /// The crate itself, whose git tree must be clean.
    InPlace,
}

/// How a crate is ported.
#[derive(Clone, Debug)]
pub struct PackageOptions {
    /// Where the result goes.
    pub place: Place,
    /// How CUDA is read.
    pub reading: parse::Options,
    /// Instances that no host code names.
    pub instances: Vec<Instance>,
    /// Where candle-rocm comes from: an address of a git repository or a folder; the project's own if not said.
    pub candle_rocm: Option<String>,
    /// What the notes call the source: a folder, or a crate with its version.
    pub source: String,
}

/// What became of a crate.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The crate's name.
    pub package: String,
    /// What was ported, as it was named.
    pub source: String,
    /// The folder of the result.
    pub out: PathBuf,
    /// One for each CUDA file with kernels.
    pub units: Vec<UnitReport>,
    /// Kernels whose place others take.
    pub mapped: Vec<Mapped>,
    /// Rust files with counterparts of their CUDA items.
    pub rust: Vec<String>,
    /// What somebody has to do, with places.
    pub open: Vec<String>,
    /// What else was changed.
    pub notes: Vec<String>,
}

/// A unit of a crate.
#[derive(Clone, Debug, Default, Serialize)]
pub struct UnitReport {
    /// The module in `src/rocm`.
    pub name: String,
    /// The CUDA file.
    pub file: String,
    /// Entries.
    pub kernels: usize,
    /// Host functions that became launchers.
    pub launchers: Vec<String>,
    /// Host functions that did not.
    pub refused: Vec<String>,
    /// Whether device code was edited; `src/rocm/NAME.patch` shows it.
    pub edited: bool,
}

/// A kernel and what takes its place.
#[derive(Clone, Debug, Serialize)]
pub struct Mapped {
    /// The kernel.
    pub kernel: String,
    /// A function or type of the crates here.
    pub to: String,
    /// How it is called.
    pub example: String,
}

/// What takes the place of a C function of the CUDA files.
#[derive(Clone, Debug)]
enum Foreign {
    Launcher { unit: String },
    Refused { reason: String },
}

/// Ports a crate.
///
/// # Errors
/// [`PackageError`]; what cannot be ported of a crate that can be read is in [`Report::open`] instead.
pub fn package(sources: &Sources, options: &PackageOptions) -> Result<Report, PackageError> {
    let scan = rules::scan(sources, &options.reading)?;
    let with_kernels: Vec<&SourceFile> = scan
        .project
        .files
        .iter()
        .filter(|file| !file.kernels.is_empty())
        .collect();
    if with_kernels.is_empty() {
        return Err(PackageError::NoKernels);
    }
    let out = files::prepare(sources, &options.place)?;
    let mut report = Report {
        package: scan
            .project
            .package
            .as_ref()
            .map_or_else(|| "These kernels".into(), |(name, _)| name.clone()),
        source: options.source.clone(),
        out: out.clone(),
        ..Report::default()
    };
    map(&scan, &mut report);
    let declared = declarations(sources);
    let folder = out.join("src/rocm");
    let mut foreign = BTreeMap::new();
    let mut names = BTreeSet::from(["support".to_string(), "cuda".to_string(), "mod".to_string()]);
    for file in with_kernels {
        one_unit(
            sources,
            options,
            &scan.project,
            file,
            &declared,
            &folder,
            &mut names,
            &mut foreign,
            &mut report,
        )?;
    }
    let crate_root = ["src/lib.rs", "src/main.rs"]
        .into_iter()
        .find(|root| out.join(root).is_file());
    match (out.join("Cargo.toml").is_file(), crate_root) {
        (true, Some(root)) => whole_crate(sources, options, &out, root, &foreign, &mut report)?,
        _ => report.notes.push("There is no Cargo.toml with a library or program: only units and launchers were written.".into()),
    }
    files::write(&out.join("PORTING.md"), &notes::notes(&report))?;
    Ok(report)
}

/// Notes the kernels whose place others take, and those that are to be done by hand.
fn map(scan: &Scan, report: &mut Report) {
    let mut seen = BTreeSet::new();
    for kernel in scan.kernels.iter().filter(|kernel| kernel.used) {
        let place = format!("{}:{}", kernel.place.file, kernel.place.line);
        if !seen.insert((kernel.kernel.clone(), place.clone())) {
            continue;
        }
        match &kernel.verdict {
            Verdict::Mapped { to } => {
                let example = rules::replacement(&kernel.kernel)
                    .map_or("", |replacement| replacement.example);
                report.mapped.push(Mapped {
                    kernel: kernel.kernel.clone(),
                    to: to.clone(),
                    example: example.to_string(),
                });
            }
            Verdict::ByHand => {
                let findings = kernel
                    .findings
                    .iter()
                    .filter_map(|index| scan.findings.get(*index));
                let rules: BTreeSet<&str> = findings.map(|finding| finding.rule.as_ref()).collect();
                let rules: Vec<&str> = rules.into_iter().collect();
                report.open.push(format!(
                    "{place}: the kernel `{}` ({})",
                    kernel.kernel,
                    rules.join(", ")
                ));
            }
            Verdict::Portable | Verdict::WithEdits => {}
        }
    }
}

/// The C functions that the crate's Rust declares.
fn declarations(sources: &Sources) -> Vec<Declared> {
    let mut found = Vec::new();
    for name in &sources.rust {
        if let Some(text) = sources.read(name).ok().filter(|text| is_shallow(text)) {
            found.extend(rust::declared(&text));
        }
    }
    found
}

/// Whether brackets are not nested so deeply that reading them could exhaust the stack.
fn is_shallow(text: &str) -> bool {
    let mut depth = 0usize;
    text.bytes().all(|byte| {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth <= MAX_NESTING
    })
}

#[allow(clippy::too_many_arguments)]
fn one_unit(
    sources: &Sources,
    options: &PackageOptions,
    project: &Project,
    file: &SourceFile,
    declared: &[Declared],
    folder: &Path,
    names: &mut BTreeSet<String>,
    foreign: &mut BTreeMap<String, Foreign>,
    report: &mut Report,
) -> Result<(), PackageError> {
    let unit_options = UnitOptions {
        cuda_arch: Some(file.cuda_arch),
        defines: options.reading.defines.clone(),
        includes: options.reading.includes.clone(),
        instances: options
            .instances
            .iter()
            .filter(|instance| instance.is_of(file))
            .cloned()
            .collect(),
        only: Vec::new(),
    };
    let mut ported = match unit(project, &file.path, &unit_options) {
        Ok(ported) => ported,
        Err(error) => {
            report.open.push(format!("{}: {error}", file.path));
            return Ok(());
        }
    };
    let name = module_name(&ported.unit.name, names);
    ported.unit.name.clone_from(&name);
    report.open.extend(ported.problems.iter().cloned());
    let text = parse::file_text(sources, &options.reading, &file.path)?;
    let written = launchers(
        &text.text,
        &file.path,
        &ported.unit,
        &format!("{name}.hip"),
        declared,
    );
    files::write(&folder.join(format!("{name}.hip")), &ported.unit.source)?;
    let json = serde_json::to_string_pretty(&ported.unit)
        .map_err(|error| PackageError::Manifest(error.to_string()))?;
    files::write(&folder.join(format!("{name}.json")), &json)?;
    files::write(&folder.join(format!("{name}.rs")), &written.source)?;
    if !ported.edits.is_empty() {
        files::write(&folder.join(format!("{name}.patch")), &ported.edits)?;
    }
    for function in &written.functions {
        foreign.insert(function.clone(), Foreign::Launcher { unit: name.clone() });
    }
    let mut refused = Vec::new();
    for (function, refusal) in written.refused {
        let place = text.place(refusal.byte);
        let reason = format!("{}:{}: {}", place.file, place.line, refusal.reason);
        report
            .open
            .push(format!("{reason} (in the host function `{function}`)"));
        foreign
            .entry(function.clone())
            .or_insert(Foreign::Refused { reason });
        refused.push(function);
    }
    report.units.push(UnitReport {
        name,
        file: file.path.clone(),
        kernels: ported.unit.kernels.len(),
        launchers: written.functions,
        refused,
        edited: !ported.edits.is_empty(),
    });
    Ok(())
}

/// A name for a module that no other unit has.
fn module_name(unit: &str, names: &mut BTreeSet<String>) -> String {
    let word = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '_'
        }
    };
    let mut base: String = unit.chars().map(word).collect();
    if base.is_empty() || base.starts_with(|c: char| c.is_ascii_digit()) {
        base.insert(0, '_');
    }
    let mut name = base.clone();
    let mut number = 2;
    while syn::parse_str::<syn::Ident>(&name).is_err() || !names.insert(name.clone()) {
        name = format!("{base}_{number}");
        number += 1;
    }
    name
}

/// Cargo.toml, build.rs, Rust files and the module `rocm`.
fn whole_crate(
    sources: &Sources,
    options: &PackageOptions,
    out: &Path,
    crate_root: &str,
    foreign: &BTreeMap<String, Foreign>,
    report: &mut Report,
) -> Result<(), PackageError> {
    let origin = options
        .candle_rocm
        .as_deref()
        .unwrap_or(env!("CARGO_PKG_REPOSITORY"));
    let origin = match origin.contains("://") || origin.starts_with("git@") {
        true => Origin::Git(origin),
        false => Origin::Folder(origin),
    };
    let text = files::read(&out.join("Cargo.toml"))?;
    let alone = options.place != Place::InPlace;
    let manifest = manifest::port(&text, &origin, alone).map_err(PackageError::Manifest)?;
    files::write(&out.join("Cargo.toml"), &manifest.text)?;
    report.notes.extend(manifest.notes);
    for name in &sources.rust {
        let text = files::read(&out.join(name))?;
        if !is_shallow(&text) {
            report.open.push(format!(
                "{name}: its brackets are nested too deeply, so it was left as it is"
            ));
            continue;
        }
        let changed = match name.ends_with("build.rs") {
            true => build_script(name, &text, report),
            false => rust_file(name, &text, foreign, report),
        };
        let mut changed = changed.unwrap_or_default();
        if name == crate_root {
            let text = if changed.is_empty() { text } else { changed };
            changed = with_module(&text);
        }
        if !changed.is_empty() {
            files::write(&out.join(name), &changed)?;
        }
    }
    let folder = out.join("src/rocm");
    let own = |template: &str| template.replace("candle::", &format!("{}::", manifest.candle));
    files::write(
        &folder.join("support.rs"),
        &own(include_str!("templates/support.rs")),
    )?;
    files::write(
        &folder.join("cuda.rs"),
        &own(include_str!("templates/cuda.rs")),
    )?;
    let mut module = String::from(
        "//! The crate's CUDA kernels on AMD GPUs, written by rocm-port: see PORTING.md.\n\npub(crate) mod cuda;\npub(crate) mod support;\n",
    );
    for unit in &report.units {
        module.push_str(&format!("pub(crate) mod {};\n", unit.name));
    }
    files::write(&folder.join("mod.rs"), &module)
}

fn build_script(name: &str, text: &str, report: &mut Report) -> Option<String> {
    match manifest::build_script(text) {
        Ok(script) => {
            report.notes.push(format!(
                "`{name}` does nothing with the feature `rocm`: no nvcc is run."
            ));
            script
        }
        Err(error) => {
            report.open.push(format!("{name}: {error}"));
            None
        }
    }
}

fn rust_file(
    name: &str,
    text: &str,
    foreign: &BTreeMap<String, Foreign>,
    report: &mut Report,
) -> Option<String> {
    match rust::rewrite(text, foreign) {
        Ok(rewritten) => {
            let rewritten = rewritten?;
            report.rust.push(name.to_string());
            let open = rewritten.open.into_iter();
            report
                .open
                .extend(open.map(|(line, reason)| format!("{name}:{line}: {reason}")));
            Some(rewritten.text)
        }
        Err(error) => {
            report.open.push(format!("{name}: {error}"));
            None
        }
    }
}

/// The crate's root with the module `rocm`, before its first item.
fn with_module(text: &str) -> String {
    use syn::spanned::Spanned;
    let Ok(file) = syn::parse_file(text) else {
        return String::new();
    };
    let at = file
        .items
        .first()
        .map_or(text.len(), |item| item.span().byte_range().start);
    let module = "#[cfg(feature = \"rocm\")]\nmod rocm;\n\n";
    format!("{}{module}{}", &text[..at], &text[at..])
}

#[cfg(test)]
mod tests;
