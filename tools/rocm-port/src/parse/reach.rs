//! Which functions a function reaches.

use super::declare::{last, without_arguments, Definition};
use super::tree::{above, field, text, walk};
use std::collections::{BTreeSet, HashMap};
use tree_sitter::Node;

/// What a definition says about others.
#[derive(Clone, Debug, Default)]
pub(super) struct Mentions {
    /// Called names, without template arguments, in the order of the text.
    pub calls: Vec<String>,
    /// Definitions that it may reach directly.
    pub targets: BTreeSet<usize>,
}

/// Looks through all definitions once.
pub(super) fn mentions(root: Node, source: &str, definitions: &[Definition]) -> Vec<Mentions> {
    let mut by_name: HashMap<&str, Vec<usize>> = HashMap::new();
    // Operators and constructors are used without being named.
    let mut by_class: HashMap<&str, Vec<usize>> = HashMap::new();
    for (index, definition) in definitions.iter().enumerate() {
        by_name.entry(definition.last()).or_default().push(index);
        if let Some(class) = &definition.class {
            if definition.last().starts_with("operator") || definition.last() == class {
                by_class.entry(class).or_default().push(index);
            }
        }
    }
    let mut found = vec![Mentions::default(); definitions.len()];
    // Functions that a class names outside of its own functions: pointers in traits, such as `vec_dot = dot<4>`.
    let mut in_classes: HashMap<&str, BTreeSet<usize>> = HashMap::new();
    let mut classes: Vec<BTreeSet<&str>> = vec![BTreeSet::new(); definitions.len()];
    // Definitions come in the order of the text: the stack of those that are open.
    let mut open: Vec<usize> = Vec::new();
    let mut next = 0;
    walk(root, |node| {
        let at = node.start_byte();
        while definitions
            .get(next)
            .is_some_and(|definition| definition.range.start <= at)
        {
            open.push(next);
            next += 1;
        }
        open.retain(|index| definitions[*index].range.contains(&at));
        let Some(&owner) = open.last() else {
            let is_name = node.kind() == "identifier";
            let named = is_name.then(|| by_name.get(text(node, source))).flatten();
            let class = named.and_then(|_| above(node, &["class_specifier", "struct_specifier"]));
            if let (Some(named), Some(class)) =
                (named, class.and_then(|class| field(class, "name")))
            {
                let class = text(class, source)
                    .split('<')
                    .next()
                    .unwrap_or_default()
                    .trim();
                in_classes.entry(class).or_default().extend(named);
            }
            return true;
        };
        let entry = &mut found[owner];
        match node.kind() {
            "call_expression" => {
                if let Some(callee) = field(node, "function") {
                    let mut name = without_arguments(callee, source);
                    if let Some(member) = name.rfind(['.', '>']) {
                        name = name[member + 1..].to_string();
                    }
                    let called = by_name.get(last(&name)).into_iter().flatten();
                    entry.targets.extend(qualified(called, &name, definitions));
                    if !entry.calls.contains(&name) {
                        entry.calls.push(name);
                    }
                }
            }
            // Functions are passed on by name, as template arguments too.
            "identifier" | "type_identifier" => {
                let name = text(node, source);
                classes[owner].insert(name);
                let is_member = |index: &&usize| definitions[**index].class.is_some();
                let named = by_name.get(name).into_iter().flatten();
                entry
                    .targets
                    .extend(named.filter(|index| !is_member(index)));
                entry
                    .targets
                    .extend(by_class.get(name).into_iter().flatten());
            }
            _ => {}
        }
        true
    });
    for (index, mentions) in found.iter_mut().enumerate() {
        for class in &classes[index] {
            mentions
                .targets
                .extend(in_classes.get(class).into_iter().flatten());
        }
        mentions.targets.remove(&index);
    }
    found
}

/// Of the definitions with a name, those that a qualified one can mean; all if none fits (a template parameter's).
fn qualified<'i>(
    named: impl Iterator<Item = &'i usize> + Clone,
    name: &str,
    definitions: &[Definition],
) -> Vec<usize> {
    let tail = format!("::{name}");
    let exact: Vec<usize> = named
        .clone()
        .filter(|index| {
            name.contains("::") && format!("::{}", definitions[**index].name).ends_with(&tail)
        })
        .copied()
        .collect();
    match exact.is_empty() {
        true => named.copied().collect(),
        false => exact,
    }
}

/// All definitions that are reached from some, without these.
pub(super) fn closure(
    start: impl IntoIterator<Item = usize>,
    mentions: &[Mentions],
) -> BTreeSet<usize> {
    let mut queue: Vec<usize> = start.into_iter().collect();
    let mut known = BTreeSet::new();
    while let Some(index) = queue.pop() {
        for target in &mentions[index].targets {
            if known.insert(*target) {
                queue.push(*target);
            }
        }
    }
    known
}
