//! The allow-list on the syntax tree of a changed piece.

use super::items::{Part, Piece};
use super::{names, Reason, Words};
use crate::repair::syntax;
use std::collections::HashSet;
use tree_sitter::Node;

/// Kinds of nodes that compute. What has no name (operators, punctuation) is part of them.
const ALLOWED: &str = "translation_unit function_definition template_declaration template_parameter_list \
    type_parameter_declaration parameter_declaration optional_parameter_declaration optional_type_parameter_declaration \
    parameter_list pointer_declarator reference_declarator array_declarator abstract_pointer_declarator \
    abstract_reference_declarator abstract_array_declarator init_declarator declaration compound_statement \
    expression_statement if_statement else_clause condition_clause init_statement for_statement while_statement \
    do_statement switch_statement case_statement break_statement continue_statement return_statement comma_expression \
    binary_expression unary_expression update_expression pointer_expression assignment_expression \
    conditional_expression call_expression argument_list subscript_expression subscript_argument_list field_expression \
    field_identifier parenthesized_expression cast_expression sizeof_expression compound_literal_expression \
    initializer_list number_literal char_literal character escape_sequence string_literal string_content true false \
    null identifier type_identifier namespace_identifier primitive_type sized_type_specifier placeholder_type_specifier \
    auto type_qualifier storage_class_specifier type_descriptor template_type template_function template_argument_list \
    dependent_type dependent_name qualified_identifier template_method lambda_expression lambda_capture_specifier \
    lambda_default_capture lambda_declarator comment preproc_call preproc_directive preproc_arg noexcept";

/// Namespaces of which functions and types may be named anew.
const SCOPES: &str = "std::min std::max std::numeric_limits math:: device:: port:: ptx::";

type Found = Result<(), (usize, Reason)>;

/// Checks a changed function, body or constant; places are those of `new`.
pub(super) fn piece(piece: &Piece, was: &str, new: &str, before: &Words) -> Found {
    let (prefix, start, head) = match piece.part {
        // The head has stayed, so that its words are known.
        Part::Body => (
            "__device__ void body() ",
            piece.body,
            &new[piece.start..piece.body],
        ),
        _ => ("", piece.start, ""),
    };
    let text = new[start..piece.end]
        .replace("DEVICE_FN", "inline   ")
        .replace("PORT_FN", "inline ");
    let mut checked = Checked::new(was, before);
    for token in crate::repair::lexer::tokens(head) {
        checked.declared.insert(token.text.to_string());
    }
    checked.read(prefix, &text, "", start)
}

/// Checks what a macro stands for when it is no function: a statement, or an expression. Places are those of `is`.
pub(super) fn fragment(was: &str, is: &str, before: &Words) -> Found {
    let as_statements = ("__device__ void body() {", ";}");
    let as_expression = ("auto value = (", ");");
    let errors = |(prefix, suffix): (&str, &str)| {
        syntax::parse(&format!("{prefix}{is}{suffix}"))
            .map_or(usize::MAX, |tree| syntax::errors(&tree))
    };
    let (prefix, suffix) = match errors(as_expression) <= errors(as_statements) {
        true => as_expression,
        false => as_statements,
    };
    Checked::new(was, before).read(prefix, is, suffix, 0)
}

/// The state of one check.
struct Checked<'a> {
    /// The piece before the change.
    was: &'a str,
    /// The same without blanks.
    was_squeezed: String,
    before: &'a Words,
    declared: HashSet<String>,
}

impl<'a> Checked<'a> {
    fn new(was: &'a str, before: &'a Words) -> Self {
        Self {
            was,
            was_squeezed: squeezed(was),
            before,
            declared: HashSet::new(),
        }
    }

    fn read(&mut self, prefix: &str, text: &str, suffix: &str, start: usize) -> Found {
        let source = format!("{prefix}{text}{suffix}");
        let place = |at: usize| start + at.saturating_sub(prefix.len()).min(text.len());
        let broken = |at: usize| {
            (
                place(at),
                Reason::Broken(shown(&source[at.min(source.len())..])),
            )
        };
        let tree = syntax::parse(&source).ok_or_else(|| broken(prefix.len()))?;
        let errors = syntax::errors(&tree);
        if errors > 0 {
            // What the grammar does not know (macros as statements) may stay.
            let old = syntax::parse(&format!("{prefix}{}{suffix}", self.was));
            if old.map_or(0, |tree| syntax::errors(&tree)) < errors {
                let first = syntax::nodes(&tree).find(|n| n.is_error() || n.is_missing());
                return Err(broken(first.map_or(prefix.len(), |n| n.start_byte())));
            }
        }
        let declares = |text: &str| {
            let mut names = HashSet::new();
            if let Some(tree) = syntax::parse(text) {
                syntax::nodes(&tree).for_each(|n| declared(n, text, &mut names));
            }
            names
        };
        let (old, new) = (
            declares(&format!("{prefix}{}{suffix}", self.was)),
            declares(&source),
        );
        let hides = [
            "threadIdx",
            "blockIdx",
            "blockDim",
            "gridDim",
            "warpSize",
            "WAVE",
        ];
        let mut fresh = new.difference(&old);
        if let Some(name) = fresh.find(|n| n.starts_with("__") || hides.contains(&n.as_str())) {
            return Err((place(prefix.len()), Reason::Reserved(name.clone())));
        }
        self.declared.extend(new);
        for node in syntax::nodes(&tree).filter(|n| n.start_byte() >= prefix.len()) {
            self.node(node, &source)
                .map_err(|reason| (place(node.start_byte()), reason))?;
        }
        Ok(())
    }

    fn node(&self, node: Node, source: &str) -> Result<(), Reason> {
        let text = &source[node.byte_range()];
        let kind = node.kind();
        if !node.is_named() || node.is_error() || node.is_missing() {
            return Ok(());
        }
        let of_a_head = kind == "function_declarator"
            && node.parent().is_some_and(|p| {
                p.kind() == "function_definition"
                    || p.parent()
                        .is_some_and(|p| p.kind() == "function_definition")
            });
        let of_a_lambda = kind == "abstract_function_declarator"
            && node
                .parent()
                .is_some_and(|p| p.kind() == "lambda_expression");
        let allowed = of_a_head
            || of_a_lambda
            || ALLOWED.split_whitespace().any(|known| known == kind)
            || self.was_squeezed.contains(&squeezed(text));
        if !allowed {
            return Err(Reason::Syntax {
                kind: kind.replace('_', " "),
                text: shown(text),
            });
        }
        match kind {
            "identifier" | "type_identifier" | "namespace_identifier" if !self.knows(text) => {
                Err(Reason::Unknown(text.into()))
            }
            "call_expression" => self.call(node, source),
            "qualified_identifier" => self.scope(node, text),
            "binary_expression" => probe(node, source),
            _ => Ok(()),
        }
    }

    fn knows(&self, name: &str) -> bool {
        names::is_known(name)
            || self.declared.contains(name)
            || self.before.words.contains(name)
            || name == "std"
            || name == "body"
    }

    fn call(&self, node: Node, source: &str) -> Result<(), Reason> {
        let Some(function) = node.child_by_field_name("function") else {
            return Ok(());
        };
        let text = &source[function.byte_range()];
        let name = match function.kind() {
            "identifier" => text,
            "template_function" => function
                .child_by_field_name("name")
                .map_or(text, |n| &source[n.byte_range()]),
            // Methods belong to a type of the file or of the shim; names with a scope are looked at by themselves.
            "field_expression"
            | "qualified_identifier"
            | "primitive_type"
            | "lambda_expression"
            | "sized_type_specifier" => return Ok(()),
            _ if self.was_squeezed.contains(&squeezed(text)) => return Ok(()),
            _ => return Err(Reason::Call(shown(text))),
        };
        let cast = ["static_cast", "reinterpret_cast"].contains(&name);
        let allowed = cast || names::may_call(name) || self.before.calls.contains(name);
        match allowed || self.is_type_of_file(name) {
            true => Ok(()),
            false => Err(Reason::Call(name.into())),
        }
    }

    /// `T(x)` with a type parameter.
    fn is_type_of_file(&self, name: &str) -> bool {
        let short = name.len() <= 2 && name.starts_with(char::is_uppercase);
        short || (name.ends_with("_t") && self.before.words.contains(name))
    }

    fn scope(&self, node: Node, text: &str) -> Result<(), Reason> {
        let inner = node
            .parent()
            .is_some_and(|p| p.kind() == "qualified_identifier");
        let squeezed_text = squeezed(text);
        let plain = squeezed_text.split('<').next().unwrap_or_default();
        let known = SCOPES
            .split_whitespace()
            .any(|s| plain == s || (s.ends_with("::") && plain.starts_with(s)))
            || plain.starts_with("std::numeric_limits");
        let used = plain
            .split("::")
            .all(|part| !part.is_empty() && part != "std" && self.before.words.contains(part));
        match inner || known || used || self.was_squeezed.contains(&squeezed_text) {
            true => Ok(()),
            false => Err(Reason::Call(shown(text))),
        }
    }
}

/// A comparison of the wave's width with a number: the text would do different things on different GPUs.
fn probe(node: Node, source: &str) -> Result<(), Reason> {
    let operator = node.child_by_field_name("operator");
    let compares = operator.is_some_and(|o| ["==", "!=", "<", ">", "<=", ">="].contains(&o.kind()));
    let side = |name| node.child_by_field_name(name);
    let (Some(left), Some(right), true) = (side("left"), side("right"), compares) else {
        return Ok(());
    };
    let is_wave = |n: Node| ["warpSize", "WAVE"].contains(&&source[n.byte_range()]);
    let is_number = |n: Node| n.kind() == "number_literal";
    match (is_wave(left) && is_number(right)) || (is_number(left) && is_wave(right)) {
        true => Err(Reason::Target(shown(&source[node.byte_range()]))),
        false => Ok(()),
    }
}

/// The names that a node declares.
fn declared(node: Node, source: &str, names: &mut HashSet<String>) {
    let declares = [
        "declaration",
        "init_declarator",
        "parameter_declaration",
        "optional_parameter_declaration",
        "pointer_declarator",
        "reference_declarator",
        "array_declarator",
        "function_declarator",
        "type_parameter_declaration",
        "optional_type_parameter_declaration",
    ];
    if !declares.contains(&node.kind()) {
        return;
    }
    let mut cursor = node.walk();
    let fields = node.children_by_field_name("declarator", &mut cursor);
    let mut found: Vec<Node> = fields.collect();
    if found.is_empty() && node.kind() != "declaration" {
        found.extend(node.named_child(node.named_child_count().saturating_sub(1) as u32));
    }
    if node.kind().ends_with("type_parameter_declaration") {
        found.extend(node.named_child(0));
    }
    for name in found {
        if ["identifier", "type_identifier"].contains(&name.kind()) {
            names.insert(source[name.byte_range()].to_string());
        }
    }
}

fn squeezed(text: &str) -> String {
    text.chars().filter(|c| !c.is_whitespace()).collect()
}

fn shown(text: &str) -> String {
    text.chars().take(80).collect()
}
