//! From text to kernels, launches and functions.
//!
//! A file is preprocessed by a C++ compiler, if there is one, with empty stand-ins for CUDA's headers; the result is
//! parsed by tree-sitter, whose errors become [`SourceFile::problems`] while the rest of the file stands.

pub(crate) mod declare;
mod deduce;
mod instances;
mod launches;
mod locals;
mod meaning;
mod prepare;
mod preprocess;
mod reach;
mod reader;
mod text;
pub(crate) mod tree;

pub(crate) use declare::Definition;
pub(crate) use prepare::Attribute;
pub(crate) use reader::each;
pub(crate) use reader::text as file_text;
pub use reader::{file, project, PLAIN_ARCH};
pub(crate) use text::Text;

use crate::model::{Function, Kernel, Place, SourceFile};
use instances::{Instances, Resolver};
use std::collections::BTreeSet;
use std::path::PathBuf;
use tree_sitter::Tree;

/// How files are read.
#[derive(Clone, Debug)]
pub struct Options {
    /// The C++ compiler that preprocesses; by default `CANDLE_ROCM_CLANG`, else the first one that is found.
    pub compiler: Option<PathBuf>,
    /// Read the text as it is, without a preprocessor.
    pub raw: bool,
    /// The value of `__CUDA_ARCH__`: which branches of the text are taken.
    pub cuda_arch: u32,
    /// Other values for some files: a pattern with `*` over the path, and the value; the first that fits counts.
    pub cuda_arch_of: Vec<(String, u32)>,
    /// Read a file for [`PLAIN_ARCH`] if it uses NVIDIA's matrix instructions, and if that makes it do without.
    pub avoid_matrix: bool,
    /// Macros, as `NAME` or `NAME=VALUE`, after those of the build script.
    pub defines: Vec<String>,
    /// Folders with headers, relative to the root, after those of the build script.
    pub includes: Vec<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            compiler: None,
            raw: false,
            cuda_arch: 800,
            cuda_arch_of: Vec::new(),
            avoid_matrix: true,
            defines: Vec::new(),
            includes: Vec::new(),
        }
    }
}

/// The most errors of the grammar that are reported for one file.
const MOST_PROBLEMS: usize = 20;

/// How deep a syntax tree may be; looking for what is around a node takes time that grows with it.
const MOST_DEPTH: usize = 2_000;

/// A file with its syntax tree, for those who look at more than [`SourceFile`] says.
pub(crate) struct Parsed {
    pub file: SourceFile,
    pub text: Text,
    /// The text that was parsed: preprocessed, attributes replaced by spaces.
    pub source: String,
    pub tree: Tree,
    pub attributes: Vec<Attribute>,
    pub definitions: Vec<Definition>,
    /// For each definition, the ones that it may reach, directly and through others.
    pub reaches: Vec<BTreeSet<usize>>,
    /// For each of `file.kernels`, its definition.
    pub kernels: Vec<usize>,
}

/// Parses a text.
pub(crate) fn parse(text: Text, name: &str) -> Parsed {
    let (mut source, attributes) = prepare::prepare(&text.text);
    let mut problems = text.problems.clone();
    let tree = tree::parse(&source).filter(|tree| tree::depth(tree) <= MOST_DEPTH);
    let tree = tree.or_else(|| {
        let lost = prepare::count_kernels(&source);
        let what =
            format!("nested more than {MOST_DEPTH} deep, not understood; {lost} kernels are lost");
        problems.push((start_of(name), what));
        source.clear();
        tree::parse("")
    });
    // The grammar of this version is linked in, so that it parses at least nothing.
    let tree = tree.unwrap_or_else(|| unreachable!("the empty text parses"));
    let definitions = declare::definitions(tree.root_node(), &source);
    errors(&tree, &text, &source, &mut problems);
    let resolver = Resolver::new(&source, tree.root_node(), &definitions);
    let sites = resolver.sites();
    let found = resolver.run(&sites);
    let launches = launches::launches(&resolver, &sites, &found, &text);
    let mentions = reach::mentions(tree.root_node(), &source, &definitions);
    let mut reaches: Vec<BTreeSet<usize>> = (0..definitions.len())
        .map(|index| reach::closure([index], &mentions))
        .collect();
    let mut kernels = Vec::new();
    let mut numbers = Vec::new();
    for (index, definition) in definitions.iter().enumerate() {
        if !definition.global || definition.specialised {
            continue;
        }
        let instances = instances_of(definition, index, &found);
        // Functions that an instance names as its template arguments.
        let named = resolver.named(&instances);
        let more = reach::closure(named.iter().copied(), &mentions);
        reaches[index].extend(named.into_iter().chain(more));
        let reached: BTreeSet<String> = reaches[index]
            .iter()
            .map(|reached| definitions[*reached].name.clone())
            .collect();
        kernels.push(kernel(
            definition,
            &text,
            &source,
            &attributes,
            instances,
            reached.into_iter().collect(),
        ));
        numbers.push(index);
    }
    if found.limited {
        problems.push((
            start_of(name),
            "too many template instances of host functions: the rest is left out".into(),
        ));
    }
    let from_kernels: BTreeSet<usize> = numbers
        .iter()
        .flat_map(|index| reaches[*index].iter().copied())
        .collect();
    let functions = definitions
        .iter()
        .zip(&mentions)
        .enumerate()
        .filter(|(_, (definition, _))| !definition.global)
        .map(|(index, (definition, mentions))| Function {
            name: definition.name.clone(),
            place: text.place(definition.name_at),
            last_line: declare::last_line(&text, &definition.range),
            device: definition.device || from_kernels.contains(&index),
            extern_c: definition.extern_c,
            template: definition.template.clone(),
            parameters: definition.parameters.clone(),
            calls: mentions.calls.clone(),
        })
        .collect();
    let file = SourceFile {
        path: name.to_string(),
        cuda_arch: 0,
        includes: text.includes.clone(),
        kernels,
        launches,
        functions,
        problems,
    };
    Parsed {
        file,
        text,
        source,
        tree,
        attributes,
        definitions,
        reaches,
        kernels: numbers,
    }
}

fn instances_of(definition: &Definition, index: usize, found: &Instances) -> Vec<Vec<String>> {
    match definition.template.is_empty() {
        true => vec![Vec::new()],
        false => found
            .kernels
            .get(&index)
            .into_iter()
            .flatten()
            .cloned()
            .collect(),
    }
}

fn kernel(
    definition: &Definition,
    text: &Text,
    source: &str,
    attributes: &[Attribute],
    instances: Vec<Vec<String>>,
    reaches: Vec<String>,
) -> Kernel {
    let at = definition.name_at;
    let used = text.place(at);
    // The word itself is in the original text, or a macro made it.
    let head = source.get(definition.range.start..at).unwrap_or_default();
    let word = head
        .find("__global__")
        .map_or(at, |found| definition.range.start + found);
    let made = text.expanded && !text.says(word, "__global__");
    let macro_name: String = text
        .original(at)
        .trim_start()
        .chars()
        .take_while(|c| c.is_alphanumeric() || *c == '_')
        .collect();
    let place = made.then(|| text.definition(&macro_name)).flatten();
    let last_line = match &place {
        Some(place) => place.line,
        None => declare::last_line(text, &definition.range),
    };
    Kernel {
        name: definition.name.clone(),
        place: place.unwrap_or_else(|| used.clone()),
        last_line,
        expansion: made.then_some(used),
        extern_c: definition.extern_c,
        template: definition.template.clone(),
        parameters: definition.parameters.clone(),
        launch_bounds: definition
            .attribute(attributes, "__launch_bounds__")
            .map(String::from),
        instances,
        reaches,
    }
}

/// What the grammar did not understand, and kernels that are lost in it.
fn errors(tree: &Tree, text: &Text, source: &str, problems: &mut Vec<(Place, String)>) {
    let mut more = 0;
    tree::walk(tree.root_node(), |node| {
        if !node.has_error() {
            return false;
        }
        // Macros of CUDA's headers stand for whole statements: a `;` that is missed after them means nothing.
        if node.is_error() || (node.is_missing() && node.kind() != ";") {
            match problems.len() < MOST_PROBLEMS {
                true => {
                    let near: String = tree::line(node, source).chars().take(60).collect();
                    let what = match node.is_missing() {
                        true => format!("missing {}", node.kind()),
                        false => format!("not understood: {near}"),
                    };
                    problems.push((text.place(node.start_byte()), what));
                }
                false => more += 1,
            }
        }
        !node.is_error()
    });
    let lost = prepare::count_kernels(source).saturating_sub(
        declare::definitions(tree.root_node(), source)
            .iter()
            .filter(|definition| definition.global)
            .count(),
    );
    let mut say = |what: String| problems.push((text.place(0), what));
    if more > 0 {
        say(format!("{more} more places that are not understood"));
    }
    if lost > 0 {
        say(format!("{lost} kernels are in text that is not understood"));
    }
}

fn start_of(file: &str) -> Place {
    Place {
        file: file.to_string(),
        line: 1,
        column: 1,
    }
}
