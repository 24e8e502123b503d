//! What a check tells: for people, for scripts, and for docs.

use super::case::Case;
use super::compile::{lds_limit, Compiled, Resources};
use super::finding::{Finding, Kind};
use super::run::{has_reference, Runs};
use super::session::Setup;
use super::size_of_argument;
use super::wire::{Launch, Passed};
use crate::model::PortedUnit;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// What is known of an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelReport {
    /// The entry.
    pub entry: String,
    /// Registers, LDS and so on, arch by arch.
    pub resources: Vec<Resources>,
    /// Its cases.
    pub cases: Vec<String>,
    /// Launches that were carried out.
    pub launches: usize,
    /// Archs that it ran on.
    pub ran_on: Vec<String>,
    /// Widths of waves that it ran in.
    pub widths: Vec<u32>,
    /// Whether all of its cases have a reference.
    pub has_reference: bool,
    /// Whether it ran and nothing failed; of a unit that does not compile no kernel is.
    pub is_clean: bool,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The unit.
    pub unit: String,
    /// Whether nothing failed.
    pub is_clean: bool,
    /// What compiled the unit for AMD GPUs; none if nothing did.
    pub compiler: Option<String>,
    /// Archs that it compiled for.
    pub compiled_for: Vec<String>,
    /// Archs that kernels ran on; `GPU` for the machine's.
    pub archs: Vec<String>,
    /// Orders of threads that were tried.
    pub orders: Vec<String>,
    /// What random inputs were made from.
    pub seed: u64,
    /// The unit's entries.
    pub kernels: Vec<KernelReport>,
    /// What was found.
    pub findings: Vec<Finding>,
    /// What else there is to say, such as what could not be done.
    pub notes: Vec<String>,
}

/// A report in the making.
pub(super) struct Parts<'a> {
    unit: &'a PortedUnit,
    cases: &'a [Case],
    compiled: Compiled,
    pub findings: Vec<Finding>,
    pub runs: Runs,
}

impl<'a> Parts<'a> {
    pub fn new(unit: &'a PortedUnit, cases: &'a [Case], mut compiled: Compiled) -> Self {
        let findings = std::mem::take(&mut compiled.findings);
        Parts {
            unit,
            cases,
            compiled,
            findings,
            runs: Runs::default(),
        }
    }

    /// What does not fit between a launch and its kernel, as far as the unit and compilers tell.
    pub fn against(&self, case: &Case, launch: &Launch, unit: &PortedUnit) -> Option<Finding> {
        let found = |kind: Kind, arch: Option<&str>, message: String| {
            let mut finding = Finding::of_unit(kind, &case.kernel, arch, message);
            finding.case = Some(case.name.clone());
            Some(finding)
        };
        let sizes = launch.arguments.iter().map(|argument| match argument {
            Passed::Value { bytes, .. } => bytes.len(),
            _ => 8,
        });
        let sizes: Vec<usize> = sizes.collect();
        let name = |at: usize| case.arguments.get(at).map_or("", |(name, _)| name.as_str());
        let entry = unit
            .kernels
            .iter()
            .find(|kernel| kernel.entry == case.kernel);
        if let Some(entry) = entry.filter(|entry| !entry.arguments.is_empty()) {
            if entry.arguments.len() != sizes.len() {
                let (has, takes) = (sizes.len(), entry.arguments.len());
                return found(
                    Kind::Case,
                    None,
                    format!("it has {has} arguments; the kernel takes {takes}"),
                );
            }
            for (at, (argument, &has)) in entry.arguments.iter().zip(&sizes).enumerate() {
                let takes = size_of_argument(&argument.kind).unwrap_or(has);
                if takes != has {
                    let message = format!(
                        "argument {} has {has} bytes; the kernel takes {takes} for {}",
                        name(at),
                        argument.name
                    );
                    return found(Kind::Case, None, message);
                }
            }
            let bound = entry.max_block.map_or(u64::MAX, u64::from);
            if launch.threads() > bound {
                let message = format!(
                    "a block of {} threads; the kernel is made for {bound}",
                    launch.threads()
                );
                return found(Kind::LaunchBounds, None, message);
            }
        }
        let of_entry = self
            .compiled
            .kernels
            .iter()
            .find(|(name, _)| *name == case.kernel);
        let Some((_, all)) = of_entry else {
            // A name that no code object has is a mistake, if there are code objects.
            let has_none = !self.compiled.archs.is_empty();
            return has_none
                .then(|| found(Kind::Case, None, "the unit has no such kernel".to_string()))
                .flatten();
        };
        for resources in all {
            let arch = Some(resources.arch.as_str());
            let takes: Vec<usize> = resources
                .arguments
                .iter()
                .map(|(_, size)| *size as usize)
                .collect();
            if takes.len() != sizes.len() {
                let message = format!(
                    "it has {} arguments; the kernel takes {}",
                    sizes.len(),
                    takes.len()
                );
                return found(Kind::Case, None, message);
            }
            if let Some(at) = (0..takes.len()).find(|&at| takes[at] != sizes[at]) {
                let message = format!(
                    "argument {} has {} bytes; the kernel takes {}",
                    name(at),
                    sizes[at],
                    takes[at]
                );
                return found(Kind::Case, None, message);
            }
            if launch.threads() > resources.max_block.into() {
                let (has, bound) = (launch.threads(), resources.max_block);
                let message =
                    format!("a block of {has} threads; the kernel is compiled for {bound}");
                return found(Kind::LaunchBounds, arch, message);
            }
            let (takes, limit) = (
                u64::from(resources.lds_bytes) + u64::from(launch.shared),
                lds_limit(&resources.arch),
            );
            if takes > limit.into() {
                let message =
                    format!("{takes} bytes of LDS with the dynamic part; a block can have {limit}");
                return found(Kind::Lds, arch, message);
            }
        }
        None
    }

    /// The report.
    pub fn report(mut self, setups: &[Setup], seed: u64) -> Report {
        self.known();
        let mut entries: Vec<String> = self
            .unit
            .kernels
            .iter()
            .map(|kernel| kernel.entry.clone())
            .collect();
        for name in self
            .compiled
            .kernels
            .iter()
            .map(|(name, _)| name)
            .chain(self.cases.iter().map(|case| &case.kernel))
        {
            if !entries.contains(name) {
                entries.push(name.clone());
            }
        }
        let fails_all = self
            .findings
            .iter()
            .any(|finding| finding.kernel.is_empty() && finding.fails());
        let kernels: Vec<KernelReport> = entries
            .into_iter()
            .map(|entry| self.kernel(entry, fails_all))
            .collect();
        let mut archs = Vec::new();
        let mut orders = Vec::new();
        for setup in setups.iter().filter(|_| !self.runs.launches.is_empty()) {
            let arch = setup.arch.clone().unwrap_or_else(|| "GPU".to_string());
            for (all, one) in [(&mut archs, arch), (&mut orders, setup.order())] {
                if !all.contains(&one) {
                    all.push(one);
                }
            }
        }
        let mut notes = self.compiled.notes;
        let without: Vec<&str> = kernels
            .iter()
            .filter(|kernel| kernel.cases.is_empty())
            .map(|kernel| kernel.entry.as_str())
            .collect();
        if !without.is_empty() {
            notes.push(format!("no case runs {}", without.join(", ")));
        }
        Report {
            unit: self.unit.name.clone(),
            is_clean: !self.findings.iter().any(Finding::fails),
            compiler: self.compiled.compiler,
            compiled_for: self.compiled.archs,
            archs,
            orders,
            seed,
            kernels,
            findings: self.findings,
            notes,
        }
    }

    /// What cases say is known, and was not found.
    fn known(&mut self) {
        for (index, case) in self.cases.iter().enumerate() {
            for (kind, reason) in &case.known {
                let found = self.findings.iter().any(|finding| {
                    finding.kind == *kind
                        && finding.case.as_ref() == Some(&case.name)
                        && finding.kernel == case.kernel
                });
                if !found && self.runs.launches.contains_key(&index) {
                    let message =
                        format!("{kind} is said to be known ({reason}), but was not found");
                    let mut finding = Finding::of_unit(Kind::NotFound, &case.kernel, None, message);
                    finding.case = Some(case.name.clone());
                    self.findings.push(finding);
                }
            }
        }
    }

    fn kernel(&self, entry: String, fails_all: bool) -> KernelReport {
        let own = || {
            self.cases
                .iter()
                .enumerate()
                .filter(|(_, case)| case.kernel == entry)
        };
        let launches: usize = own()
            .filter_map(|(index, _)| self.runs.launches.get(&index))
            .sum();
        let ran_on: BTreeSet<String> = own()
            .filter_map(|(index, _)| self.runs.archs.get(&index))
            .flatten()
            .cloned()
            .collect();
        let widths: BTreeSet<u32> = ran_on.iter().map(|arch| width(arch)).collect();
        let fails = self
            .findings
            .iter()
            .any(|finding| finding.kernel == entry && finding.fails());
        let resources = self
            .compiled
            .kernels
            .iter()
            .find(|(name, _)| *name == entry);
        KernelReport {
            resources: resources.map(|(_, all)| all.clone()).unwrap_or_default(),
            cases: own().map(|(_, case)| case.name.clone()).collect(),
            launches,
            ran_on: ran_on.into_iter().collect(),
            widths: widths.into_iter().collect(),
            has_reference: own().count() > 0 && own().all(|(_, case)| has_reference(case)),
            is_clean: launches > 0 && !fails && !fails_all,
            entry,
        }
    }
}

/// Lanes of a wave.
fn width(arch: &str) -> u32 {
    match arch.starts_with("gfx9") {
        true => 64,
        false => 32,
    }
}

impl Report {
    /// Whether nothing failed.
    pub fn is_clean(&self) -> bool {
        self.is_clean
    }

    /// Findings that fail the check.
    pub fn failures(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.fails())
    }

    /// The report as JSON.
    pub fn json(&self) -> String {
        // Nothing in it has keys that are no text, or numbers that JSON does not have.
        serde_json::to_string_pretty(self)
            .unwrap_or_else(|error| format!("{{\"error\": {:?}}}", error.to_string()))
    }

    /// A table of the kernels in Markdown, and the findings below it.
    pub fn markdown(&self) -> String {
        let mut text = format!("### {}\n\n", self.unit);
        text += "| Kernel | Compiled for | VGPRs | LDS | Waves of | Launches | Compared with | Result |\n";
        text += "|---|---|---|---|---|---|---|---|\n";
        for kernel in &self.kernels {
            let range = |of: fn(&Resources) -> u32| {
                let all = || kernel.resources.iter().map(of);
                match (all().min(), all().max()) {
                    (Some(low), Some(high)) if low == high => low.to_string(),
                    (Some(low), Some(high)) => format!("{low} to {high}"),
                    _ => String::new(),
                }
            };
            let widths: Vec<String> = kernel.widths.iter().map(u32::to_string).collect();
            let with = match (kernel.launches, kernel.has_reference) {
                (0, _) => "",
                (_, true) => "reference",
                (_, false) => "each other",
            };
            let result = match (kernel.launches, kernel.is_clean) {
                (_, true) => "right".to_string(),
                (0, false)
                    if !self
                        .findings
                        .iter()
                        .any(|f| f.fails() && f.kernel == kernel.entry) =>
                {
                    "not run".to_string()
                }
                _ => {
                    let own = self
                        .failures()
                        .filter(|finding| finding.kernel == kernel.entry);
                    let kinds: BTreeSet<&str> = own.map(|finding| finding.kind.name()).collect();
                    kinds.into_iter().collect::<Vec<_>>().join(", ")
                }
            };
            text += &format!(
                "| `{}` | {} | {} | {} | {} | {} | {with} | {result} |\n",
                kernel.entry,
                kernel.resources.len(),
                range(|r| r.vgprs),
                range(|r| r.lds_bytes),
                widths.join(" and "),
                kernel.launches
            );
        }
        for finding in &self.findings {
            let words = finding.to_string().replace('|', "\\|");
            text += &format!(
                "\n* {}\n",
                words
                    .lines()
                    .take(2)
                    .map(str::trim)
                    .collect::<Vec<_>>()
                    .join(" ")
            );
        }
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        text
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {} kernels", self.unit, self.kernels.len())?;
        if let Some(compiler) = &self.compiler {
            writeln!(
                f,
                "compiled by {compiler} for {} archs",
                self.compiled_for.len()
            )?;
        }
        if !self.archs.is_empty() {
            let launches: usize = self.kernels.iter().map(|kernel| kernel.launches).sum();
            let orders = self.orders.len();
            writeln!(
                f,
                "{launches} launches on {}, {orders} orders of threads, seed {}",
                self.archs.join(", "),
                self.seed
            )?;
        }
        for finding in &self.findings {
            writeln!(f, "\n{finding}")?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        let failures = self.failures().count();
        match failures {
            0 => writeln!(f, "nothing is wrong"),
            1 => writeln!(f, "1 finding"),
            more => writeln!(f, "{more} findings"),
        }
    }
}
