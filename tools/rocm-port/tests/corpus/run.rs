//! From a crate of the registry to a row of the table in the docs: sources, parser, port, compilers, simulator.

use crate::case::case;
use crate::random::Random;
use crate::rows::Row;
use crate::table;
use rocm_port::check::{Case, Check, Finding, Report, Targets};
use rocm_port::model::{Kernel, PortedUnit, Scan, Verdict};
use rocm_port::port::{unit, Instance, UnitOptions};
use rocm_port::{parse, rules, source};
use std::collections::{BTreeMap, BTreeSet};

/// The path of a CUDA file in its crate, and launches of its kernels.
pub type Rows = (&'static str, fn(&mut Random) -> Vec<Row>);

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
    /// Whether launches are of some kernels only, unless everything is to run: the others get no entry then, and
    /// numbers of the docs are not looked at.
    pub sampled: bool,
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
            sampled: false,
            rows,
        }
    }
}

impl File {
    /// Whether this run is of a part of its kernels.
    fn is_part(&self) -> bool {
        self.sampled && !full()
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
    /// What the rules say: portable, with edits, mapped, by hand.
    pub verdicts: [usize; 4],
    /// Kernels that ran with right results in both widths.
    pub compared: usize,
    /// Kernels that are known to be wrong in every launch.
    pub faulty: usize,
    /// Kernels that no host code launches, and no row.
    pub never: usize,
    /// Instances that host code launches.
    pub instances: usize,
    /// Faults of kernels that were known, and found.
    pub known: Vec<String>,
}

impl Outcome {
    /// The columns of the table.
    pub fn numbers(&self) -> [usize; 9] {
        let [portable, edited, mapped, by_hand] = self.verdicts;
        let ran = [self.compared, self.faulty, self.never, self.instances];
        let [compared, faulty, never, instances] = ran;
        [
            self.kernels,
            portable,
            edited,
            mapped,
            by_hand,
            compared,
            faulty,
            never,
            instances,
        ]
    }
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

/// A kernel's name without namespaces.
fn last(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

/// Whether template arguments contain those of a launch, in order.
fn fits(given: &[String], row: &Row) -> bool {
    let mut given = given.iter().map(|argument| normal(argument));
    let mut wanted = row.template.iter().map(|argument| normal(argument));
    wanted.all(|want| given.any(|have| have == want))
}

/// The entry that a launch means.
fn entry<'a>(unit: &'a PortedUnit, row: &Row) -> Result<&'a str, String> {
    let mut found = unit
        .kernels
        .iter()
        .filter(|kernel| last(&kernel.kernel) == last(&row.kernel) && fits(&kernel.template, row));
    match (found.next(), found.next()) {
        (Some(kernel), None) => Ok(&kernel.entry),
        (None, _) => Err(format!(
            "no entry of {} with {:?}",
            row.kernel, row.template
        )),
        (Some(a), Some(b)) => Err(format!(
            "{} with {:?} is {} and {}",
            row.kernel, row.template, a.entry, b.entry
        )),
    }
}

/// Leaves the instances that launches name, unless everything is to run, and gives those that no host code names.
fn choose(kernels: &mut [Kernel], rows: &[Row]) -> Vec<Instance> {
    let mut added: Vec<Instance> = Vec::new();
    for row in rows.iter().filter(|row| !row.template.is_empty()) {
        let mut named = kernels
            .iter()
            .filter(|kernel| last(&kernel.name) == last(&row.kernel));
        let has = |kernel: &Kernel| kernel.instances.iter().any(|given| fits(given, row));
        if named.clone().count() > 0 && !named.any(has) {
            let instance = Instance {
                kernel: row.kernel.clone(),
                template: row.template.clone(),
            };
            if !added.contains(&instance) {
                added.push(instance);
            }
        }
    }
    for kernel in kernels.iter_mut().filter(|_| !full()) {
        let of_kernel = |row: &&Row| last(&kernel.name) == last(&row.kernel);
        let rows: Vec<&Row> = rows.iter().filter(of_kernel).collect();
        let named = |given: &Vec<String>| rows.iter().any(|row| fits(given, row));
        kernel.instances.retain(named);
    }
    added
}

/// Ports a file, compiles it, and runs its launches.
///
/// # Panics
/// If anything is wrong.
pub fn run(package: &str, file: &File) {
    let mut sources = source::open(package).expect("the crate is there, or cargo fetches it");
    sources.cuda.retain(|path| path == file.path);
    let owned = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    let options = parse::Options {
        cuda_arch: file.arch,
        defines: owned(file.defines),
        includes: owned(file.includes),
        ..Default::default()
    };
    let scan = rules::scan(&sources, &options).expect("the file can be read");
    let verdicts = verdicts(&scan, file.path);
    let mut project = scan.project;
    // Headers that nothing includes are no part of it.
    project.files.retain(|source| source.path == file.path);
    let kernels = &mut project.files[0].kernels;
    let rows = (file.rows)(&mut Random(7));
    let instances = kernels.iter().map(|kernel| kernel.instances.len()).sum();
    let added = choose(kernels, &rows);
    let named = |row: &Row| Instance {
        kernel: row.kernel.clone(),
        template: Vec::new(),
    };
    let only = match file.is_part() {
        true => rows.iter().map(named).collect(),
        false => Vec::new(),
    };
    let ported = unit(
        &project,
        file.path,
        &UnitOptions {
            cuda_arch: Some(file.arch),
            defines: owned(file.defines),
            includes: owned(file.includes),
            instances: added,
            only,
        },
    )
    .expect("the file can be ported");
    let mut run = Run {
        file,
        unit: &ported.unit,
        known: BTreeMap::new(),
        missing: Vec::new(),
    };
    let cases = run.cases(&rows);
    // A race is seen in some orders only.
    let orders = if full() || !run.known.is_empty() {
        3
    } else {
        1
    };
    // That it compiles is seen as well without all of the optimiser's work. CUDA's texts read memory of one type as
    // another.
    let (targets, level) = match full() {
        true => (Targets::All, "-O3"),
        false => (Targets::Only(vec!["gfx942".into()]), "-O1"),
    };
    let report = Check::new(&ported.unit)
        .compile_for(targets)
        .options([level, "-fno-strict-aliasing"])
        .orders(orders)
        .without_shrinking()
        .cases(cases)
        .run()
        .expect("a check can be made");
    let outcome = run.outcome(&project.files[0].kernels, instances, &rows, &report);
    // The docs have the numbers of whole files.
    if !file.is_part() {
        table::record(
            package,
            &Outcome {
                verdicts,
                ..outcome
            },
        );
    }
}

/// How many kernels of a file are portable, portable with edits, mapped, and by hand.
fn verdicts(scan: &Scan, path: &str) -> [usize; 4] {
    let mut counts = [0; 4];
    let mut seen = BTreeSet::new();
    for kernel in scan.kernels.iter().filter(|kernel| kernel.file == path) {
        if seen.insert(&kernel.kernel) {
            counts[match kernel.verdict {
                Verdict::Portable => 0,
                Verdict::WithEdits => 1,
                Verdict::Mapped { .. } => 2,
                Verdict::ByHand => 3,
            }] += 1;
        }
    }
    counts
}

/// A check of a file.
struct Run<'a> {
    file: &'a File,
    unit: &'a PortedUnit,
    /// Cases of launches in which the kernel is known to be wrong, with the reason.
    known: BTreeMap<String, &'static str>,
    /// Launches of what the unit does not have.
    missing: Vec<String>,
}

impl Run<'_> {
    fn cases(&mut self, rows: &[Row]) -> Vec<Case> {
        let mut numbers = BTreeMap::new();
        let mut cases = Vec::new();
        for row in rows {
            match entry(self.unit, row) {
                Ok(entry) => {
                    let number = numbers.entry(entry.to_owned()).or_insert(0);
                    *number += 1;
                    let name = format!("{entry} {number} {}", row.about);
                    let name = name.trim().to_owned();
                    if let Some(reason) = row.known {
                        self.known.insert(name.clone(), reason);
                    }
                    cases.push(case(row, entry, name));
                }
                Err(why) => self.missing.push(why),
            }
        }
        cases
    }

    /// Counts what a report says, and fails for what it should not say.
    fn outcome(
        &self,
        kernels: &[Kernel],
        instances: usize,
        rows: &[Row],
        report: &Report,
    ) -> Outcome {
        let of_known = |finding: &Finding| {
            let case = finding.case.as_ref()?;
            self.known.get(case).copied()
        };
        let failing: Vec<&Finding> = report
            .findings
            .iter()
            .filter(|finding| finding.fails() && of_known(finding).is_none())
            .collect();
        let found: BTreeSet<&str> = report.findings.iter().filter_map(of_known).collect();
        let lost: Vec<&str> = self
            .known
            .values()
            .copied()
            .filter(|k| !found.contains(k))
            .collect();

        // A kernel is right if one of its entries ran in both widths, and nothing was found that is not known.
        let wrong = |entry: &str| failing.iter().any(|finding| finding.kernel == entry);
        let ran = |kernel: &Kernel, known: bool| {
            self.unit
                .kernels
                .iter()
                .filter(|k| k.kernel == kernel.name)
                .any(|k| {
                    let reported = report.kernels.iter().find(|each| each.entry == k.entry);
                    reported.is_some_and(|each| {
                        let cases = || each.cases.iter();
                        each.widths == [32, 64]
                            && each.launches > 0
                            && !wrong(&each.entry)
                            && cases().any(|case| self.known.contains_key(case) == known)
                    })
                })
        };
        let named = |kernel: &Kernel| {
            rows.iter()
                .any(|row| last(&row.kernel) == last(&kernel.name))
        };
        let launched = |kernel: &&Kernel| !kernel.instances.is_empty() || named(kernel);
        let count = |what: &dyn Fn(&Kernel) -> bool| {
            let names = kernels.iter().filter(|k| what(k)).map(|k| &k.name);
            names.collect::<BTreeSet<_>>().len()
        };
        let compared = count(&|kernel| ran(kernel, false));
        let faulty = count(&|kernel| ran(kernel, true) && !ran(kernel, false));
        let never = count(&|kernel| !launched(&kernel));
        println!(
            "{}: {} kernels, {compared} compared, {faulty} faulty, {never} never launched, {} entries of {instances} \
             instances, {} launches, compiled for {:?}",
            self.file.path,
            count(&|_| true),
            self.unit.kernels.len(),
            rows.len(),
            report.compiled_for
        );
        failing.iter().for_each(|finding| println!("{finding}"));
        report.notes.iter().for_each(|note| println!("{note}"));
        assert!(
            self.missing.is_empty(),
            "launches without an entry: {:#?}",
            self.missing
        );
        assert!(failing.is_empty(), "{} findings", failing.len());
        assert!(lost.is_empty(), "known, but not found: {lost:#?}");
        let unseen: Vec<&str> = kernels
            .iter()
            .filter(|k| named(k) || !self.file.is_part())
            .filter(|k| launched(k) && !ran(k, false) && !ran(k, true))
            .map(|k| k.name.as_str())
            .collect();
        assert!(unseen.is_empty(), "not compared: {unseen:#?}");
        Outcome {
            path: self.file.path,
            kernels: count(&|_| true),
            verdicts: [0; 4],
            compared,
            faulty,
            never,
            instances,
            known: found.into_iter().map(str::to_owned).collect(),
        }
    }
}
