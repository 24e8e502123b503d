//! What the shim headers declare, and which names of a text nobody declares.

use super::find::Sink;
use crate::parse::tree::{above, field, text, walk};
use crate::parse::Parsed;
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use tree_sitter::Node;

/// All identifiers of the shim headers after their macros, one a line; made by `tests/scan/names.rs`.
const NAMES: &str = include_str!("names.txt");

/// Names of C++ and of the preprocessor that no header declares.
const LANGUAGE: &[&str] = &[
    "this",
    "std",
    "decltype",
    "alignof",
    "__func__",
    "__FUNCTION__",
    "__PRETTY_FUNCTION__",
    "__FILE__",
    "__LINE__",
    "asm",
    "defined",
    "override",
    "final",
    "auto",
    "typename",
    "nullptr",
    "void",
    "bool",
    "signed",
    "unsigned",
    "__nv_bool",
    "__inline__",
    "__inline",
    "__host__",
    "__device__",
    "__global__",
    "__forceinline__",
    "__noinline__",
    "__volatile__",
    "inline",
    "constexpr",
    "consteval",
    "static_cast",
    "reinterpret_cast",
    "const_cast",
    "dynamic_cast",
];

/// Whether the shim headers have a name, or every compiler for AMD GPUs does.
pub(crate) fn in_shim(name: &str) -> bool {
    if name.starts_with("__builtin_") {
        return !name.starts_with("__builtin_nv");
    }
    static KNOWN: OnceLock<HashSet<&str>> = OnceLock::new();
    KNOWN.get_or_init(|| NAMES.lines().collect()).contains(name)
}

/// All names that a text declares anywhere: functions, types, variables, parameters, fields, enumerators.
pub(super) fn declared(parsed: &Parsed) -> HashSet<&str> {
    let source = parsed.source.as_str();
    let mut names: HashSet<&str> = HashSet::new();
    walk(parsed.tree.root_node(), |node| {
        if matches!(
            node.kind(),
            "identifier"
                | "type_identifier"
                | "namespace_identifier"
                | "field_identifier"
                | "statement_identifier"
        ) && is_declaration(node)
        {
            names.insert(text(node, source));
        }
        true
    });
    names
}

/// Whether an identifier is the declared name of what is around it.
fn is_declaration(node: Node) -> bool {
    let mut child = node;
    for _ in 0..16 {
        let Some(parent) = child.parent() else {
            return false;
        };
        let is = |name: &str| field(parent, name) == Some(child);
        match parent.kind() {
            // Definitions outside of their class or namespace.
            "qualified_identifier" | "template_type" | "template_function" | "template_method"
                if is("name") => {}
            "init_declarator"
            | "function_declarator"
            | "array_declarator"
            | "pointer_declarator"
            | "parenthesized_declarator"
            | "attributed_declarator"
            | "reference_declarator"
            | "bitfield_clause" => {
                if parent.kind() == "init_declarator" && !is("declarator")
                    || parent.kind() == "function_declarator" && !is("declarator")
                    || parent.kind() == "array_declarator" && !is("declarator")
                {
                    return false;
                }
            }
            "structured_binding_declarator" => return true,
            "declaration"
            | "field_declaration"
            | "parameter_declaration"
            | "optional_parameter_declaration"
            | "variadic_parameter_declaration"
            | "function_definition"
            | "type_definition"
            | "for_range_loop"
            | "template_instantiation" => {
                let mut cursor = parent.walk();
                let mut declarators = parent.children_by_field_name("declarator", &mut cursor);
                return declarators.any(|declarator| declarator == child);
            }
            "class_specifier"
            | "struct_specifier"
            | "union_specifier"
            | "enum_specifier"
            | "enumerator"
            | "namespace_definition"
            | "nested_namespace_specifier"
            | "namespace_alias_definition"
            | "alias_declaration"
            | "optional_type_parameter_declaration"
            | "concept_definition"
            | "preproc_def"
            | "preproc_function_def" => {
                return is("name") || parent.kind() == "nested_namespace_specifier"
            }
            "type_parameter_declaration"
            | "variadic_type_parameter_declaration"
            | "variadic_declarator"
            | "labeled_statement"
            | "lambda_capture_initializer"
            | "template_template_parameter_declaration"
            | "preproc_params" => return true,
            _ => return false,
        }
        child = parent;
    }
    false
}

/// Other names of namespaces: `namespace cg = cooperative_groups;`
pub(super) fn aliases(root: Node, source: &str) -> HashMap<String, String> {
    let mut found = HashMap::new();
    walk(root, |node| {
        if node.kind() == "namespace_alias_definition" {
            let target = crate::parse::tree::children(node).into_iter().last();
            if let (Some(name), Some(target)) = (field(node, "name"), target) {
                found.insert(
                    text(name, source).to_string(),
                    text(target, source).to_string(),
                );
            }
        }
        true
    });
    found
}

/// Reports the names in a function that neither the text nor the shim declares.
pub(super) fn unknown(body: Node, source: &str, declared: &HashSet<&str>, sink: &mut Sink) {
    walk(body, |node| {
        let named = match node.kind() {
            "identifier" | "type_identifier" => true,
            // `a` of `a::b`.
            "namespace_identifier" => true,
            _ => false,
        };
        let name = text(node, source);
        if !named
            || name.is_empty()
            || declared.contains(name)
            || in_shim(name)
            || LANGUAGE.contains(&name)
        {
            return true;
        }
        // `b` of `a::b`, where `a` is known, is the business of what `a` is; operands of asm name registers.
        let parent = node.parent();
        let is_part = parent.is_some_and(|parent| {
            parent.kind() == "qualified_identifier" && field(parent, "name") == Some(node)
        });
        let within = |kinds: &[&str]| above(node, kinds).is_some();
        let scope_known = is_part
            && parent
                .and_then(|parent| field(parent, "scope"))
                .is_some_and(|scope| scope_is_known(scope, source, declared));
        if scope_known
            || within(&[
                "attribute",
                "attribute_specifier",
                "attribute_declaration",
                "gnu_asm_clobber_list",
            ])
        {
            return true;
        }
        sink.add("S1", node, format!("not in the shim: {name}"));
        true
    });
}

/// Whether `a` of `a::b` is declared by the text: a class or a template parameter, whose members are its own.
fn scope_is_known(scope: Node, source: &str, declared: &HashSet<&str>) -> bool {
    let name = text(scope, source)
        .split('<')
        .next()
        .unwrap_or_default()
        .trim();
    declared.contains(name)
}
