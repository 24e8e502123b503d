//! Rules: what stands in a kernel's way to AMD GPUs, found on the syntax tree.
//!
//! [`RULES`] is the table; [`scan`] looks through a project and gives every kernel its verdict, through all that the
//! kernel reaches. What the shim headers declare is in `names.txt`, so that an unknown name is found and not hoped for.

mod asm;
mod find;
mod host;
mod mapping;
mod names;
mod table;
mod value;

pub use mapping::{replacement, Replacement, REPLACEMENTS};
pub use table::{Rule, RULES};

use crate::model::{Finding, KernelVerdict, Place, Scan, Severity, Verdict};
use crate::parse::{each, Options, Parsed};
use crate::source::{Error, Sources};
use find::Sink;
use std::collections::{BTreeSet, HashMap};
use tree_sitter::Node;
use value::Constants;

/// Looks through a project.
///
/// # Errors
/// If its files cannot be read.
pub fn scan(sources: &Sources, options: &Options) -> Result<Scan, Error> {
    scan_with(sources, options, |_, _| {})
}

/// As [`scan`]; `progress` hears of each file that is done, with how many there have been.
///
/// # Errors
/// If files cannot be read.
pub fn scan_with(
    sources: &Sources,
    options: &Options,
    mut progress: impl FnMut(&str, usize),
) -> Result<Scan, Error> {
    let mut all = Findings::default();
    let mut kernels = Vec::new();
    let mut files = Vec::new();
    let project = each(sources, options, |parsed| {
        if parsed.file.cuda_arch != options.cuda_arch {
            let place = Place {
                file: parsed.file.path.clone(),
                line: 1,
                column: 1,
            };
            let message = format!(
                "read for __CUDA_ARCH__ {}, not {}",
                parsed.file.cuda_arch, options.cuda_arch
            );
            all.add(finding("R2", place, message));
        }
        file(&parsed, &mut all, &mut kernels);
        files.push(parsed.file);
        progress(&files[files.len() - 1].path, files.len());
    })?;
    for build in &project.builds {
        let message = format!("{} compiles {} files", build.builder, build.inputs.len());
        all.add(finding("B1", build.place.clone(), message));
    }
    for found in &project.rust {
        all.add(finding("U1", found.place.clone(), found.what.clone()));
    }
    let (findings, order) = all.sorted();
    for kernel in &mut kernels {
        for number in &mut kernel.findings {
            *number = order[*number];
        }
        kernel.findings.sort_unstable();
        kernel.findings.dedup();
    }
    Ok(Scan {
        project: crate::model::Project { files, ..project },
        findings,
        kernels,
    })
}

fn finding(rule: &str, place: Place, message: String) -> Finding {
    Finding {
        severity: Rule::find(rule).map_or(Severity::Error, |rule| rule.severity),
        rule: rule.to_string(),
        place,
        message,
        function: String::new(),
    }
}

/// Findings without repetition: headers are read with every file that includes them.
#[derive(Default)]
struct Findings {
    list: Vec<Finding>,
    known: HashMap<(String, Place, String), usize>,
}

impl Findings {
    fn add(&mut self, finding: Finding) -> usize {
        let key = (
            finding.rule.clone(),
            finding.place.clone(),
            finding.message.clone(),
        );
        *self.known.entry(key).or_insert_with(|| {
            self.list.push(finding);
            self.list.len() - 1
        })
    }

    /// In the order of places, and for each old number the new one.
    fn sorted(self) -> (Vec<Finding>, Vec<usize>) {
        let mut order: Vec<usize> = (0..self.list.len()).collect();
        order.sort_by(|a, b| self.list[*a].cmp(&self.list[*b]));
        let mut new = vec![0; order.len()];
        for (position, old) in order.iter().enumerate() {
            new[*old] = position;
        }
        let findings = order.iter().map(|old| self.list[*old].clone()).collect();
        (findings, new)
    }
}

/// Looks through one file.
fn file(parsed: &Parsed, all: &mut Findings, kernels: &mut Vec<KernelVerdict>) {
    let source = parsed.source.as_str();
    let root = parsed.tree.root_node();
    let declared = names::declared(parsed);
    let constants = Constants::collect(root, source);
    let aliases = names::aliases(root, source);
    for (place, message) in &parsed.file.problems {
        all.add(finding("R1", place.clone(), message.clone()));
    }
    let mut variables = Sink::new(parsed, &aliases, "");
    host::variables(root, source, &mut variables);
    let variables: Vec<usize> = variables
        .findings
        .into_iter()
        .map(|found| all.add(found))
        .collect();
    let reached: BTreeSet<usize> = parsed
        .kernels
        .iter()
        .flat_map(|kernel| parsed.reaches[*kernel].iter().copied().chain([*kernel]))
        .collect();
    // Findings of each definition, as numbers.
    let mut found: HashMap<usize, Vec<usize>> = HashMap::new();
    for (index, definition) in parsed.definitions.iter().enumerate() {
        let Some(node) = node_of(root, &definition.range) else {
            continue;
        };
        let mut sink = Sink::new(parsed, &aliases, &definition.name);
        if reached.contains(&index) || definition.global || definition.device {
            let bound = match parsed.kernels.iter().position(|kernel| *kernel == index) {
                Some(position) => bindings(parsed, position),
                None => Vec::new(),
            };
            find::device(parsed, node, &declared, &constants, &bound, &mut sink);
            attributes(parsed, index, &mut sink);
        } else {
            host::function(node, source, &declared, &mut sink);
        }
        let numbers = sink
            .findings
            .into_iter()
            .map(|found| all.add(found))
            .collect();
        found.insert(index, numbers);
    }
    for (kernel, index) in parsed.file.kernels.iter().zip(&parsed.kernels) {
        let through = parsed.reaches[*index].iter().copied().chain([*index]);
        let mut numbers: Vec<usize> = through
            .filter_map(|index| found.get(&index))
            .flatten()
            .copied()
            .collect();
        let named = |number: &usize| {
            let finding = &all.list[*number];
            let name = finding
                .message
                .split_whitespace()
                .last()
                .unwrap_or_default();
            source[parsed.definitions[*index].range.clone()].contains(name.trim_end_matches(';'))
        };
        numbers.extend(variables.iter().copied().filter(named));
        let used = !kernel.instances.is_empty();
        if !used {
            numbers.push(all.add(Finding {
                function: kernel.name.clone(),
                ..finding("S2", kernel.place.clone(), kernel.name.clone())
            }));
        }
        kernels.push(KernelVerdict {
            file: parsed.file.path.clone(),
            kernel: kernel.name.clone(),
            place: kernel
                .expansion
                .clone()
                .unwrap_or_else(|| kernel.place.clone()),
            used,
            instances: kernel.instances.len(),
            verdict: verdict(
                &kernel.name,
                numbers.iter().map(|number| &all.list[*number]),
            ),
            findings: numbers,
        });
    }
}

/// The verdict that findings lead to.
fn verdict<'f>(kernel: &str, findings: impl Iterator<Item = &'f Finding>) -> Verdict {
    match findings.map(|finding| finding.severity).max() {
        Some(Severity::Error) => match replacement(kernel) {
            Some(replacement) => Verdict::Mapped {
                to: replacement.to.to_string(),
            },
            None => Verdict::ByHand,
        },
        Some(Severity::Edit) => Verdict::WithEdits,
        _ => Verdict::Portable,
    }
}

/// The node of a definition.
fn node_of<'t>(root: Node<'t>, range: &std::ops::Range<usize>) -> Option<Node<'t>> {
    let mut node = root.named_descendant_for_byte_range(range.start, range.end)?;
    while node.kind() != "function_definition" {
        node = crate::parse::tree::children(node)
            .into_iter()
            .find(|child| child.byte_range() == *range)?;
    }
    Some(node)
}

/// Numbers that template parameters of a kernel stand for, for each of its instances.
fn bindings(parsed: &Parsed, kernel: usize) -> Vec<HashMap<String, i64>> {
    let kernel = &parsed.file.kernels[kernel];
    kernel
        .instances
        .iter()
        .map(|arguments| {
            let pairs = kernel.template.iter().zip(arguments);
            pairs
                .filter_map(|(parameter, value)| {
                    Some((parameter.name.clone(), value::number(value)?))
                })
                .collect()
        })
        .collect()
}

/// `__launch_bounds__` and `__cluster_dims__`.
fn attributes(parsed: &Parsed, index: usize, sink: &mut Sink) {
    let definition = &parsed.definitions[index];
    let head = parsed.attributes.iter().filter(|attribute| {
        definition.range.contains(&attribute.at) && attribute.at <= definition.name_at
    });
    for attribute in head {
        match attribute.name.as_str() {
            "__cluster_dims__" => sink.at("A4", attribute.at, "__cluster_dims__".into()),
            "__launch_bounds__" => {
                let arguments = attribute.arguments.as_deref().unwrap_or_default();
                let mut parts = arguments.split(',').map(str::trim);
                let threads = parts.next().and_then(value::number);
                if let Some(threads) = threads.filter(|threads| *threads > 1024) {
                    sink.at("A3", attribute.at, format!("{threads} threads"));
                }
                if parts.nth(1).is_some() {
                    sink.at(
                        "A4",
                        attribute.at,
                        "blocks of a cluster in __launch_bounds__".into(),
                    );
                }
            }
            _ => {}
        }
    }
}
