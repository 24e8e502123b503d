//! What names mean inside of functions: aliases, constants, variables and parameters.

use super::declare::{innermost, parameter};
use super::tree::{children, field, line, walk};
use std::collections::HashMap;
use std::ops::Range;
use tree_sitter::Node;

/// What a local name stands for.
#[derive(Clone, Debug)]
pub(super) enum Meaning {
    /// A type: the text of it.
    Alias(Range<usize>),
    /// A constant: the text of its value, and its type.
    Constant(Range<usize>, String),
    /// A variable or parameter: its type, and the text that it begins with.
    Variable(String, Option<Range<usize>>),
}

/// A name's declaration.
#[derive(Clone, Debug)]
struct Local {
    /// Where the name is known: from the end of its declaration to the end of its block.
    known: Range<usize>,
    meaning: Meaning,
}

/// All local names of a text.
#[derive(Debug, Default)]
pub(super) struct Locals {
    names: HashMap<String, Vec<Local>>,
}

/// Nodes that end the life of a name.
const BLOCKS: &[&str] = &[
    "compound_statement",
    "for_statement",
    "for_range_loop",
    "if_statement",
    "while_statement",
    "lambda_expression",
    "function_definition",
    "template_declaration",
];

impl Locals {
    pub(super) fn collect(root: Node, source: &str) -> Self {
        let mut this = Self::default();
        walk(root, |node| {
            match node.kind() {
                "alias_declaration" => this.alias(node, source),
                "type_definition" => this.typedef(node, source),
                "declaration" => this.declaration(node, source),
                // What a template parameter stands for is known at its calls only.
                "template_parameter_list" => return false,
                "parameter_declaration" | "optional_parameter_declaration" => {
                    this.parameter(node, source)
                }
                _ => {}
            }
            true
        });
        this
    }

    /// The declaration of a name that is nearest before a byte, of those in whose block the byte is.
    pub(super) fn find(&self, name: &str, at: usize) -> Option<&Meaning> {
        self.names
            .get(name)?
            .iter()
            .filter(|local| local.known.contains(&at))
            .max_by_key(|local| local.known.start)
            .map(|local| &local.meaning)
    }

    fn add(&mut self, name: Node, declaration: Node, source: &str, meaning: Meaning) {
        let Some(block) = super::tree::above(declaration, BLOCKS) else {
            return;
        };
        let name = super::tree::text(name, source).to_string();
        self.names.entry(name).or_default().push(Local {
            known: declaration.end_byte()..block.end_byte(),
            meaning,
        });
    }

    fn alias(&mut self, node: Node, source: &str) {
        if let (Some(name), Some(kind)) = (field(node, "name"), field(node, "type")) {
            self.add(name, node, source, Meaning::Alias(kind.byte_range()));
        }
    }

    fn typedef(&mut self, node: Node, source: &str) {
        let Some(kind) = field(node, "type") else {
            return;
        };
        let mut cursor = node.walk();
        for declarator in node.children_by_field_name("declarator", &mut cursor) {
            if declarator.kind() == "type_identifier" {
                self.add(declarator, node, source, Meaning::Alias(kind.byte_range()));
            }
        }
    }

    fn declaration(&mut self, node: Node, source: &str) {
        let Some(kind) = field(node, "type") else {
            return;
        };
        let constant = children(node).iter().any(|child| {
            child.kind() == "type_qualifier"
                && ["const", "constexpr"].contains(&super::tree::text(*child, source))
        });
        let mut cursor = node.walk();
        for declarator in node.children_by_field_name("declarator", &mut cursor) {
            let value = (declarator.kind() == "init_declarator")
                .then(|| field(declarator, "value"))
                .flatten();
            let Some(name) = innermost(declarator) else {
                continue;
            };
            // Pointers and references stand between the type and the name.
            let stars: String = source
                .get(declarator.start_byte()..name.start_byte())
                .unwrap_or_default()
                .chars()
                .filter(|c| "*&".contains(*c))
                .collect();
            let kind = format!("{}{stars}", line(kind, source));
            let meaning = match value {
                Some(value) if constant && stars.is_empty() && value.kind() != "argument_list" => {
                    Meaning::Constant(value.byte_range(), kind)
                }
                value => Meaning::Variable(kind, value.map(|value| value.byte_range())),
            };
            self.add(name, node, source, meaning);
        }
    }

    fn parameter(&mut self, node: Node, source: &str) {
        let Some(name) = field(node, "declarator").and_then(innermost) else {
            return;
        };
        let kind = parameter(node, source).kind;
        self.add(name, node, source, Meaning::Variable(kind, None));
    }
}
