//! With which template arguments kernels are launched.
//!
//! Host functions are followed from those that are no templates through their calls, with what their template
//! parameters stand for; local aliases and constants are replaced by what they mean, and what a call does not say is
//! deduced from the types of its arguments, as far as the text shows them.

use super::declare::{last, without_arguments, Definition};
use super::deduce::unify;
use super::locals::Locals;
use super::meaning::replace_words;
use super::tree::{children, field, walk};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use tree_sitter::Node;

/// The largest number of template instances of host functions that are followed.
const MOST_STATES: usize = 20_000;

/// A use of a function or kernel.
#[derive(Clone, Debug)]
pub(super) struct Site<'t> {
    /// The node of the whole expression.
    pub node: Node<'t>,
    /// The definition that it is in; none at the top level.
    pub owner: Option<usize>,
    /// The name as said, without template arguments.
    pub name: String,
    /// Template arguments as said.
    pub explicit: Option<Vec<Node<'t>>>,
    /// Template arguments of the class that the name is qualified with.
    pub class: Option<Vec<Node<'t>>>,
    /// Arguments of the call; none for a mere mention.
    pub arguments: Option<Vec<Node<'t>>>,
}

/// What template parameters stand for.
pub(super) type Binding = BTreeMap<String, String>;

/// What was found.
#[derive(Debug, Default)]
pub(super) struct Instances {
    /// By definition: the argument lists.
    pub kernels: HashMap<usize, BTreeSet<Vec<String>>>,
    /// By the first byte of a site, and definition.
    pub sites: HashMap<(usize, usize), BTreeSet<Vec<String>>>,
    /// Whether the limit of states was met.
    pub limited: bool,
}

/// The tables that names are looked up in.
pub(super) struct Resolver<'a, 't> {
    pub source: &'a str,
    pub root: Node<'t>,
    pub definitions: &'a [Definition],
    pub locals: Locals,
    by_name: HashMap<&'a str, Vec<usize>>,
}

impl<'a, 't> Resolver<'a, 't> {
    pub(super) fn new(source: &'a str, root: Node<'t>, definitions: &'a [Definition]) -> Self {
        let mut by_name: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, definition) in definitions.iter().enumerate() {
            by_name.entry(definition.last()).or_default().push(index);
        }
        Self {
            source,
            root,
            definitions,
            locals: Locals::collect(root, source),
            by_name,
        }
    }

    /// The definitions that a name may mean, without specialisations.
    pub(super) fn targets(&self, name: &str) -> Vec<usize> {
        let name = name.trim_start_matches("::");
        let named = self.by_name.get(last(name)).map_or(&[][..], Vec::as_slice);
        let primary = |index: &&usize| !self.definitions[**index].specialised;
        let all: Vec<usize> = named.iter().filter(primary).copied().collect();
        let exact: Vec<usize> = all
            .iter()
            .filter(|index| {
                let full = &self.definitions[**index].name;
                full == name || full.ends_with(&format!("::{name}"))
            })
            .copied()
            .collect();
        match exact.is_empty() {
            true => all,
            false => exact,
        }
    }

    /// The innermost definition around a byte.
    pub(super) fn owner(&self, at: usize) -> Option<usize> {
        self.definitions
            .iter()
            .enumerate()
            .filter(|(_, definition)| definition.range.contains(&at))
            .max_by_key(|(_, definition)| definition.range.start)
            .map(|(index, _)| index)
    }

    /// All calls and mentions of known functions in host code.
    pub(super) fn sites(&self) -> Vec<Site<'t>> {
        let mut sites = Vec::new();
        walk(self.root, |node| {
            let (callee, arguments) = match node.kind() {
                "call_expression" => (
                    field(node, "function"),
                    field(node, "arguments").map(children),
                ),
                "template_function" | "template_method" => (Some(node), None),
                // A kernel without template arguments, as a value.
                "identifier" => (Some(node), None),
                _ => (None, None),
            };
            let Some((name, explicit, class)) = callee.and_then(|callee| self.callee(callee))
            else {
                return true;
            };
            let known = self.by_name.contains_key(last(&name));
            let launch = arguments.is_some() && is_launch(node);
            let Some(owner) = (known || launch).then(|| self.owner(node.start_byte())) else {
                return true;
            };
            // Calls of kernels' own code lead to no launch.
            if owner.is_some_and(|owner| !self.definitions[owner].host) {
                return true;
            }
            sites.push(Site {
                node,
                owner,
                name,
                explicit,
                class,
                arguments,
            });
            true
        });
        sites
    }

    /// A callee's name, its template arguments and those of its class.
    #[allow(clippy::type_complexity)]
    pub(super) fn callee(
        &self,
        node: Node<'t>,
    ) -> Option<(String, Option<Vec<Node<'t>>>, Option<Vec<Node<'t>>>)> {
        let name = without_arguments(node, self.source);
        let mut explicit = None;
        let mut class = None;
        let mut inner = node;
        for _ in 0..16 {
            match inner.kind() {
                "qualified_identifier" => {
                    if let Some(scope) =
                        field(inner, "scope").filter(|scope| scope.kind() == "template_type")
                    {
                        class = field(scope, "arguments").map(children);
                    }
                    inner = field(inner, "name")?;
                }
                "template_function" | "template_method" => {
                    explicit = field(inner, "arguments").map(children);
                    inner = field(inner, "name")?;
                }
                "field_expression" => {
                    inner = field(inner, "field")?;
                    let (name, explicit, class) = self.callee(inner)?;
                    return Some((name, explicit, class));
                }
                "dependent_name" | "parenthesized_expression" => {
                    inner = children(inner).into_iter().next()?
                }
                "identifier" | "field_identifier" => return Some((name, explicit, class)),
                _ => return None,
            }
        }
        None
    }

    /// Kernels that an expression mentions: their definitions, with the sites.
    pub(super) fn mentions(&self, node: Node<'t>) -> Vec<Site<'t>> {
        let mut found: Vec<Site<'t>> = Vec::new();
        walk(node, |node| {
            let whole =
                ["template_function", "identifier", "qualified_identifier"].contains(&node.kind());
            if let Some((name, explicit, class)) = whole.then(|| self.callee(node)).flatten() {
                let kernel = |index: &usize| self.definitions[*index].global;
                if self.targets(&name).iter().any(kernel) {
                    found.push(Site {
                        node,
                        owner: self.owner(node.start_byte()),
                        name,
                        explicit,
                        class,
                        arguments: None,
                    });
                    return false;
                }
            }
            true
        });
        found
    }

    /// Follows all host functions.
    pub(super) fn run(&self, sites: &[Site<'t>]) -> Instances {
        let mut by_owner: HashMap<Option<usize>, Vec<&Site>> = HashMap::new();
        for site in sites {
            by_owner.entry(site.owner).or_default().push(site);
        }
        let mut found = Instances::default();
        let mut known: BTreeSet<(Option<usize>, Vec<String>)> = BTreeSet::new();
        let mut queue: Vec<(Option<usize>, Vec<String>)> = vec![(None, Vec::new())];
        for (index, definition) in self.definitions.iter().enumerate() {
            if definition.host
                && definition.template.is_empty()
                && definition.class_template.is_empty()
            {
                queue.push((Some(index), Vec::new()));
            }
        }
        queue.extend(self.explicit(&mut found));
        while let Some(state) = queue.pop() {
            if known.len() >= MOST_STATES {
                found.limited = true;
                break;
            }
            if !known.insert(state.clone()) {
                continue;
            }
            let (owner, values) = state;
            let binding: Binding = owner.map_or_else(Binding::new, |owner| {
                self.all_parameters(owner).into_iter().zip(values).collect()
            });
            for site in by_owner.get(&owner).into_iter().flatten() {
                for target in self.targets(&site.name) {
                    let Some(values) = self.bind(site, target, &binding) else {
                        continue;
                    };
                    let definition = &self.definitions[target];
                    if definition.global {
                        let key = (site.node.start_byte(), target);
                        found.sites.entry(key).or_default().insert(values.clone());
                        found.kernels.entry(target).or_default().insert(values);
                    } else if definition.host {
                        queue.push((Some(target), values));
                    }
                }
            }
        }
        found
    }

    /// Explicit instantiations: `template void f<float>(…);`
    fn explicit(&self, found: &mut Instances) -> Vec<(Option<usize>, Vec<String>)> {
        let mut states = Vec::new();
        walk(self.root, |node| {
            if node.kind() != "template_instantiation" {
                return true;
            }
            walk(node, |inner| {
                if inner.kind() != "template_function" {
                    return true;
                }
                let Some((name, Some(explicit), class)) = self.callee(inner) else {
                    return true;
                };
                let site = Site {
                    node: inner,
                    owner: None,
                    name,
                    explicit: Some(explicit),
                    class,
                    arguments: None,
                };
                for target in self.targets(&site.name) {
                    let Some(values) = self.bind(&site, target, &Binding::new()) else {
                        continue;
                    };
                    match self.definitions[target].global {
                        true => {
                            found.kernels.entry(target).or_default().insert(values);
                        }
                        false => states.push((Some(target), values)),
                    }
                }
                false
            });
            false
        });
        states
    }

    /// Names of the parameters of a definition's classes and of its own.
    pub(super) fn all_parameters(&self, index: usize) -> Vec<String> {
        let definition = &self.definitions[index];
        definition
            .class_template
            .iter()
            .chain(&definition.template)
            .map(|parameter| parameter.name.clone())
            .collect()
    }

    /// The template arguments of a definition at a site; nothing if one of them is not known.
    pub(super) fn bind(
        &self,
        site: &Site<'t>,
        target: usize,
        outer: &Binding,
    ) -> Option<Vec<String>> {
        let definition = &self.definitions[target];
        let mut binding = Binding::new();
        let lists = [
            (&definition.class_template, &site.class),
            (&definition.template, &site.explicit),
        ];
        for (parameters, nodes) in lists {
            for (parameter, node) in parameters.iter().zip(nodes.iter().flatten()) {
                binding.insert(parameter.name.clone(), self.substitute(*node, outer, 0)?);
            }
        }
        let names = self.all_parameters(target);
        if let Some(arguments) = site
            .arguments
            .as_ref()
            .filter(|_| binding.len() < names.len())
        {
            for (parameter, argument) in definition.parameters.iter().zip(arguments) {
                if let Some(kind) = self.type_of(*argument, outer, 0) {
                    unify(&parameter.kind, &kind, &names, &mut binding);
                }
            }
        }
        for parameter in definition.class_template.iter().chain(&definition.template) {
            if let (false, Some(default)) =
                (binding.contains_key(&parameter.name), &parameter.default)
            {
                let value = replace_words(default, &binding);
                binding.insert(parameter.name.clone(), value);
            }
        }
        names
            .iter()
            .map(|name| binding.get(name).cloned())
            .collect()
    }

    /// Functions and operators of classes that template arguments name.
    pub(super) fn named(&self, instances: &[Vec<String>]) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let words: BTreeSet<&str> = instances
            .iter()
            .flatten()
            .flat_map(|argument| argument.split(|c: char| !(c.is_alphanumeric() || c == '_')))
            .collect();
        for (index, definition) in self.definitions.iter().enumerate() {
            let free = definition.class.is_none() && words.contains(definition.last());
            let member = definition
                .class
                .as_deref()
                .is_some_and(|class| words.contains(class));
            if (free || member) && !definition.global {
                found.insert(index);
            }
        }
        found
    }
}

/// Whether a call is a `<<<…>>>`.
pub(super) fn is_launch(node: Node) -> bool {
    children(node)
        .iter()
        .any(|child| child.kind() == "kernel_call_syntax")
}
