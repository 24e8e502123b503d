//! Launches: `<<<…>>>`, and the calls of the runtime that launch.

use super::declare::last;
use super::instances::{is_launch, Instances, Resolver, Site};
use super::locals::Meaning;
use super::text::Text;
use super::tree::{children, field, line, walk};
use crate::model::Launch;
use std::collections::{BTreeSet, HashMap};
use tree_sitter::Node;

/// Calls of the runtime that launch, with the places of grid, block, arguments, shared bytes and stream.
const LAUNCHERS: &[(&str, [usize; 5])] = &[
    ("cudaLaunchKernel", [1, 2, 3, 4, 5]),
    ("cudaLaunchCooperativeKernel", [1, 2, 3, 4, 5]),
];

/// All launches of a text.
pub(super) fn launches(
    resolver: &Resolver,
    sites: &[Site],
    found: &Instances,
    text: &Text,
) -> Vec<Launch> {
    let mut launches = Vec::new();
    for site in sites {
        let Some(arguments) = &site.arguments else {
            continue;
        };
        let source = resolver.source;
        if is_launch(site.node) {
            let Some(syntax) = children(site.node)
                .into_iter()
                .find(|child| child.kind() == "kernel_call_syntax")
            else {
                continue;
            };
            let configuration: Vec<String> = children(syntax)
                .iter()
                .map(|node| line(*node, source))
                .collect();
            let said = |index: usize| configuration.get(index).cloned();
            let Some(callee) = field(site.node, "function") else {
                continue;
            };
            let base = Launch {
                place: text.place(syntax.start_byte()),
                function: owner(resolver, site),
                kernel: String::new(),
                template: Vec::new(),
                instances: Vec::new(),
                grid: said(0).unwrap_or_default(),
                block: said(1).unwrap_or_default(),
                shared: said(2).unwrap_or_else(|| "0".into()),
                stream: said(3),
                arguments: arguments.iter().map(|node| line(*node, source)).collect(),
            };
            push(resolver, found, site, callee, base, &mut launches);
        }
    }
    runtime(resolver, found, text, &mut launches);
    merged(launches)
}

/// Launches that differ in instances only are one: macros such as `BOOL_SWITCH` repeat the text of a launch.
fn merged(launches: Vec<Launch>) -> Vec<Launch> {
    let mut out: Vec<Launch> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for mut launch in launches {
        let instances = std::mem::take(&mut launch.instances);
        let index = *known.entry(format!("{launch:?}")).or_insert_with(|| {
            out.push(launch);
            out.len() - 1
        });
        let all = &mut out[index].instances;
        all.extend(instances);
        all.sort();
        all.dedup();
    }
    out
}

fn owner(resolver: &Resolver, site: &Site) -> String {
    site.owner.map_or(String::new(), |owner| {
        resolver.definitions[owner].name.clone()
    })
}

/// Adds a launch for each kernel that its callee may mean.
fn push(
    resolver: &Resolver,
    found: &Instances,
    site: &Site,
    callee: Node,
    base: Launch,
    launches: &mut Vec<Launch>,
) {
    let said = |site: &Site| -> Vec<String> {
        site.explicit
            .iter()
            .flatten()
            .map(|node| line(*node, resolver.source))
            .collect()
    };
    let kernels = |site: &Site| -> Vec<usize> {
        resolver
            .targets(&site.name)
            .into_iter()
            .filter(|index| resolver.definitions[*index].global)
            .collect()
    };
    let instances = |site: &Site, target: usize| -> Vec<Vec<String>> {
        let key = (site.node.start_byte(), target);
        found
            .sites
            .get(&key)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    };
    let direct = kernels(site);
    let several = direct.len() > 1;
    for target in &direct {
        let instances = instances(site, *target);
        // Of overloads, those that the arguments fit.
        if several && instances.is_empty() {
            continue;
        }
        launches.push(Launch {
            kernel: resolver.definitions[*target].name.clone(),
            template: said(site),
            instances,
            ..base.clone()
        });
    }
    if !direct.is_empty() {
        return;
    }
    // A variable or parameter that holds the kernel.
    let mut known = BTreeSet::new();
    for mention in held(resolver, callee) {
        for target in kernels(&mention) {
            let template = said(&mention);
            if known.insert((target, template.clone())) {
                launches.push(Launch {
                    kernel: resolver.definitions[target].name.clone(),
                    template,
                    instances: instances(&mention, target),
                    ..base.clone()
                });
            }
        }
    }
    if known.is_empty() {
        launches.push(Launch {
            kernel: site.name.clone(),
            template: said(site),
            ..base
        });
    }
}

/// The kernels that an expression may hold: what its variable begins with, what is assigned to it, or, for a
/// parameter, what callers pass.
fn held<'t>(resolver: &Resolver<'_, 't>, callee: Node<'t>) -> Vec<Site<'t>> {
    let name = super::tree::text(callee, resolver.source);
    let at = callee.start_byte();
    let Some(Meaning::Variable(_, first)) = resolver.locals.find(name, at) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    if let Some(node) = first
        .as_ref()
        .and_then(|range| resolver.node(range.start, range.end))
    {
        found.extend(resolver.mentions(node));
        found.extend(returned(resolver, node));
    }
    let owner = resolver
        .definitions
        .iter()
        .filter(|definition| definition.range.contains(&at))
        .max_by_key(|definition| definition.range.start);
    let Some(owner) = owner else { return found };
    let position = owner
        .parameters
        .iter()
        .position(|parameter| parameter.name == name);
    walk(resolver.root, |node| {
        match node.kind() {
            "assignment_expression" if owner.range.contains(&node.start_byte()) => {
                let left = field(node, "left").map(|left| super::tree::text(left, resolver.source));
                if let (true, Some(right)) = (left == Some(name), field(node, "right")) {
                    found.extend(resolver.mentions(right));
                }
            }
            "call_expression" => {
                let called = field(node, "function").and_then(|callee| resolver.callee(callee));
                let passed = position
                    .filter(|_| called.is_some_and(|(called, _, _)| last(&called) == owner.last()))
                    .and_then(|position| {
                        children(field(node, "arguments")?)
                            .into_iter()
                            .nth(position)
                    });
                if let Some(passed) = passed {
                    found.extend(resolver.mentions(passed));
                }
            }
            _ => {}
        }
        true
    });
    found
}

/// The kernels that functions called in an expression mention: one that picks a kernel returns it.
fn returned<'t>(resolver: &Resolver<'_, 't>, node: Node<'t>) -> Vec<Site<'t>> {
    let called = (node.kind() == "call_expression")
        .then(|| resolver.callee(field(node, "function")?))
        .flatten();
    let Some((name, _, _)) = called else {
        return Vec::new();
    };
    resolver
        .targets(&name)
        .into_iter()
        .filter(|target| !resolver.definitions[*target].global)
        .filter_map(|target| {
            let range = &resolver.definitions[target].range;
            resolver.node(range.start, range.end)
        })
        .flat_map(|body| resolver.mentions(body))
        .collect()
}

/// `cudaLaunchKernel(…)` and its kin; their arguments are one array, which stands as it is.
fn runtime(resolver: &Resolver, found: &Instances, text: &Text, launches: &mut Vec<Launch>) {
    let source = resolver.source;
    walk(resolver.root, |node| {
        if node.kind() != "call_expression" {
            return true;
        }
        let called = field(node, "function").map(|callee| super::tree::text(callee, source));
        let Some((_, places)) = LAUNCHERS.iter().find(|(name, _)| Some(*name) == called) else {
            return true;
        };
        let arguments = field(node, "arguments").map_or(Vec::new(), children);
        let said = |index: usize| arguments.get(index).map(|node| line(*node, source));
        let Some(function) = arguments.first().copied() else {
            return true;
        };
        let owner = resolver
            .definitions
            .iter()
            .filter(|definition| definition.range.contains(&node.start_byte()))
            .max_by_key(|definition| definition.range.start);
        let base = Launch {
            place: text.place(node.start_byte()),
            function: owner.map_or(String::new(), |owner| owner.name.clone()),
            kernel: String::new(),
            template: Vec::new(),
            instances: Vec::new(),
            grid: said(places[0]).unwrap_or_default(),
            block: said(places[1]).unwrap_or_default(),
            shared: said(places[3]).unwrap_or_else(|| "0".into()),
            stream: said(places[4]),
            arguments: said(places[2]).into_iter().collect(),
        };
        let mut callee = function;
        while [
            "cast_expression",
            "pointer_expression",
            "parenthesized_expression",
        ]
        .contains(&callee.kind())
        {
            let next = field(callee, "value")
                .or_else(|| field(callee, "argument"))
                .or_else(|| children(callee).into_iter().next());
            match next {
                Some(next) => callee = next,
                None => break,
            }
        }
        let mention = resolver.mentions(callee).into_iter().next();
        let site = mention.unwrap_or(Site {
            node: callee,
            owner: None,
            name: line(callee, source),
            explicit: None,
            class: None,
            arguments: None,
        });
        push(resolver, found, &site, callee, base, launches);
        true
    });
}
