//! What `scan` found, as text, JSON, SARIF or Markdown.

mod markdown;
mod sarif;
mod text;

use crate::model::{KernelVerdict, Scan, Verdict};
use serde::Serialize;

/// The form of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Tables for a terminal.
    Text,
    /// All that was found: the project, findings and verdicts.
    Json,
    /// SARIF 2.1.0, as editors and code hosts read it.
    Sarif,
    /// Tables for a page.
    Markdown,
}

/// How much a text says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Detail {
    /// Each kernel, and not only those that are not portable as they are.
    pub kernels: bool,
    /// Each finding, and not only one example of a rule.
    pub findings: bool,
}

/// Kernels by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    /// All kernels.
    pub kernels: usize,
    /// As they are.
    pub portable: usize,
    /// With edits that `port` makes.
    pub with_edits: usize,
    /// A kernel of ours takes their place.
    pub mapped: usize,
    /// Somebody has to write something.
    pub by_hand: usize,
    /// Templates that nothing instantiates; they are in none of the other numbers but the first.
    pub unused: usize,
}

impl Sums {
    /// Counts kernels.
    pub fn of<'k>(kernels: impl IntoIterator<Item = &'k KernelVerdict>) -> Self {
        let mut sums = Self::default();
        for kernel in kernels {
            sums.kernels += 1;
            match (&kernel.verdict, kernel.used) {
                (_, false) => sums.unused += 1,
                (Verdict::Portable, _) => sums.portable += 1,
                (Verdict::WithEdits, _) => sums.with_edits += 1,
                (Verdict::Mapped { .. }, _) => sums.mapped += 1,
                (Verdict::ByHand, _) => sums.by_hand += 1,
            }
        }
        sums
    }

    /// Whether all kernels that are used go over by themselves.
    pub fn all_go(&self) -> bool {
        self.mapped == 0 && self.by_hand == 0
    }

    /// Of the kernels that are used, those that go over by themselves, in percent; 100 if there are none.
    pub fn percent(&self) -> f64 {
        match self.kernels - self.unused {
            0 => 100.0,
            used => 100.0 * (self.portable + self.with_edits) as f64 / used as f64,
        }
    }
}

/// Writes a report.
pub fn write(scan: &Scan, format: Format, detail: Detail) -> String {
    match format {
        Format::Text => text::write(scan, detail),
        Format::Json => json(scan),
        Format::Sarif => sarif::write(scan),
        Format::Markdown => markdown::write(scan),
    }
}

fn json(scan: &Scan) -> String {
    #[derive(Serialize)]
    struct Report<'s> {
        sums: Sums,
        #[serde(flatten)]
        scan: &'s Scan,
    }
    let report = Report {
        sums: Sums::of(&scan.kernels),
        scan,
    };
    // Strings, numbers and lists only: there is nothing that JSON could not say.
    serde_json::to_string_pretty(&report).unwrap_or_default() + "\n"
}

/// Name and version of the project, or its folder.
fn title(scan: &Scan) -> String {
    match &scan.project.package {
        Some((name, version)) => format!("{name} {version}").trim_end().to_string(),
        None => scan.project.root.display().to_string(),
    }
}

/// A verdict in words.
fn words(kernel: &KernelVerdict) -> String {
    match (&kernel.verdict, kernel.used) {
        (_, false) => "not instantiated".into(),
        (Verdict::Portable, _) => "portable".into(),
        (Verdict::WithEdits, _) => "with edits".into(),
        (Verdict::Mapped { to }, _) => format!("mapped to {to}"),
        (Verdict::ByHand, _) => "by hand".into(),
    }
}

/// The rules of a kernel's findings, each once, the worst first.
fn rules(scan: &Scan, kernel: &KernelVerdict) -> Vec<String> {
    let mut found: Vec<_> = kernel
        .findings
        .iter()
        .map(|number| &scan.findings[*number])
        .collect();
    found.sort_by(|a, b| b.severity.cmp(&a.severity).then(a.rule.cmp(&b.rule)));
    let mut rules: Vec<String> = found.iter().map(|finding| finding.rule.clone()).collect();
    let mut known = std::collections::HashSet::new();
    rules.retain(|rule| known.insert(rule.clone()));
    rules
}

/// Files with their kernels, in the order of the project.
fn by_file(scan: &Scan) -> Vec<(&str, Vec<&KernelVerdict>)> {
    scan.project
        .files
        .iter()
        .map(|file| {
            let kernels = scan
                .kernels
                .iter()
                .filter(|kernel| kernel.file == file.path);
            (file.path.as_str(), kernels.collect())
        })
        .collect()
}
