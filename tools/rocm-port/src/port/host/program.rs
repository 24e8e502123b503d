//! What a preprocessed file declares for its host code: functions, constants, names of types.

use crate::parse::tree::{children, field, text, walk};
use std::collections::BTreeMap;
use tree_sitter::Node;

/// A function of the file.
#[derive(Clone, Debug)]
pub(super) struct HostFunction<'t> {
    /// Without namespaces.
    pub name: String,
    pub extern_c: bool,
    /// Its template's parameters.
    pub template: Vec<TemplateName>,
    pub parameters: Vec<HostParameter>,
    /// What it gives back, as text.
    pub result: String,
    pub body: Node<'t>,
    pub launches: bool,
    /// `__global__` or `__device__` alone.
    pub device: bool,
}

/// A parameter of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TemplateName {
    pub name: String,
    pub default: Option<String>,
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HostParameter {
    pub kind: String,
    pub name: String,
    pub default: Option<String>,
}

/// The declarations of a file.
#[derive(Debug, Default)]
pub(super) struct Program<'t> {
    pub functions: Vec<HostFunction<'t>>,
    /// Constants at file scope: what they are set to.
    pub constants: BTreeMap<String, Node<'t>>,
    /// Values of enumerators.
    pub enumerators: BTreeMap<String, i64>,
    /// Names of enumerations.
    pub enumerations: Vec<String>,
    /// `using A = B` and `typedef B A`.
    pub aliases: Vec<(String, String)>,
}

impl<'t> Program<'t> {
    /// Reads a tree; nothing inside of functions and types.
    pub fn of(root: Node<'t>, source: &str) -> Self {
        let mut program = Program::default();
        let text = |node: Node| text(node, source).to_string();
        walk(root, |node| {
            match node.kind() {
                "function_definition" => {
                    program.functions.extend(function(node, source));
                    return false;
                }
                "declaration" => {
                    program.declaration(node, source);
                    return children(node)
                        .iter()
                        .any(|child| child.kind() == "enum_specifier");
                }
                "enum_specifier" => program.enumeration(node, source),
                "alias_declaration" => {
                    if let (Some(name), Some(kind)) = (field(node, "name"), field(node, "type")) {
                        program.aliases.push((text(name), text(kind)));
                    }
                }
                "type_definition" => {
                    let name =
                        field(node, "declarator").filter(|name| name.kind() == "type_identifier");
                    if let (Some(name), Some(kind)) = (name, field(node, "type")) {
                        program.aliases.push((text(name), text(kind)));
                    }
                }
                "struct_specifier" | "class_specifier" | "union_specifier" => return false,
                _ => {}
            }
            true
        });
        program
    }

    fn declaration(&mut self, node: Node<'t>, source: &str) {
        let list = children(node);
        if !list
            .iter()
            .any(|child| matches!(text(*child, source), "const" | "constexpr"))
        {
            return;
        }
        for declarator in list
            .into_iter()
            .filter(|child| child.kind() == "init_declarator")
        {
            if let (Some(name), Some(value)) =
                (field(declarator, "declarator"), field(declarator, "value"))
            {
                self.constants.insert(text(name, source).to_string(), value);
            }
        }
    }

    fn enumeration(&mut self, node: Node, source: &str) {
        if let Some(name) = field(node, "name") {
            self.enumerations.push(text(name, source).to_string());
        }
        let Some(body) = field(node, "body") else {
            return;
        };
        let mut next = Some(0i64);
        for enumerator in children(body) {
            let Some(name) = field(enumerator, "name") else {
                continue;
            };
            let value = match field(enumerator, "value") {
                Some(value) => crate::port::number::evaluate(text(value, source)),
                None => next,
            };
            if let Some(value) = value {
                self.enumerators
                    .insert(text(name, source).to_string(), value);
            }
            next = value.and_then(|value| value.checked_add(1));
        }
    }
}

fn function<'t>(node: Node<'t>, source: &str) -> Option<HostFunction<'t>> {
    let body = field(node, "body")?;
    let mut declarator = field(node, "declarator")?;
    let mut pointer = String::new();
    while declarator.kind() != "function_declarator" {
        if declarator.kind() == "pointer_declarator" {
            pointer.push('*');
        }
        declarator = field(declarator, "declarator")?;
    }
    let name = text(field(declarator, "declarator")?, source);
    let head = source.get(node.start_byte()..body.start_byte())?;
    let mut launches = false;
    walk(body, |node| {
        launches |= node.kind() == "kernel_call_syntax";
        !launches
    });
    let parent = node.parent();
    let linkage = parent.is_some_and(|parent| {
        let above = parent.parent();
        parent.kind() == "linkage_specification"
            || (parent.kind() == "declaration_list"
                && above.is_some_and(|above| above.kind() == "linkage_specification"))
    });
    let template = parent.filter(|parent| parent.kind() == "template_declaration");
    let template = template.and_then(|parent| field(parent, "parameters"));
    let only_device =
        head.contains("__global__") || (head.contains("__device__") && !head.contains("__host__"));
    let result = field(node, "type").map_or("", |kind| text(kind, source));
    Some(HostFunction {
        name: name.rsplit("::").next().unwrap_or(name).to_string(),
        extern_c: linkage || head.contains("extern \"C\""),
        template: template
            .map(|list| templates(list, source))
            .unwrap_or_default(),
        parameters: parameters(field(declarator, "parameters")?, source),
        result: format!("{result}{pointer}"),
        body,
        launches,
        device: only_device,
    })
}

fn templates(list: Node, source: &str) -> Vec<TemplateName> {
    let of = |parameter: Node| {
        let (name, default) = match parameter.kind() {
            "type_parameter_declaration" => (children(parameter).first().copied(), None),
            "optional_type_parameter_declaration" => {
                (field(parameter, "name"), field(parameter, "default_type"))
            }
            _ => (
                field(parameter, "declarator"),
                field(parameter, "default_value"),
            ),
        };
        TemplateName {
            name: name.map_or("", |name| text(name, source)).to_string(),
            default: default.map(|default| text(default, source).to_string()),
        }
    };
    children(list).into_iter().map(of).collect()
}

fn parameters(list: Node, source: &str) -> Vec<HostParameter> {
    let declarations = children(list);
    let declarations = declarations
        .into_iter()
        .filter(|node| node.kind().ends_with("parameter_declaration"));
    let mut found: Vec<HostParameter> = declarations.map(|node| parameter(node, source)).collect();
    if found.len() == 1 && found[0].name.is_empty() && found[0].kind.trim() == "void" {
        found.clear();
    }
    found
}

fn parameter(node: Node, source: &str) -> HostParameter {
    let default = field(node, "default_value");
    let mut name = field(node, "declarator");
    let mut kind = String::new();
    for child in children(node) {
        if Some(child) != name && default != Some(child) {
            kind.push_str(text(child, source));
            kind.push(' ');
        }
    }
    while let Some(declarator) = name.filter(|node| node.kind() != "identifier") {
        match declarator.kind() {
            "pointer_declarator" | "abstract_pointer_declarator" => kind.push('*'),
            "reference_declarator" | "abstract_reference_declarator" => kind.push('&'),
            "array_declarator" | "abstract_array_declarator" => kind.push_str("[]"),
            _ => {}
        }
        let inner = children(declarator);
        let inner = inner
            .into_iter()
            .rfind(|node| node.kind().ends_with("declarator") || node.kind() == "identifier");
        name = field(declarator, "declarator").or(inner);
    }
    HostParameter {
        kind,
        name: name.map_or("", |name| text(name, source)).to_string(),
        default: default.map(|value| text(value, source).to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_are_found() {
        let source = "\
namespace a { constexpr int N = 128; enum Kind { A, B = 4, C }; using T = float; typedef unsigned u32_t;
template <typename T, int M = 2> void launch(T* x, const int64_t n = 3, cudaStream_t s) { k<T><<<1, 2>>>(x); } }
extern \"C\" int run(const void *x, float const & y, int z[]) { return 0; }
extern \"C\" { void other(void) {} }
__global__ void k() {}
struct S { void method() {} };
";
        let tree = crate::parse::tree::parse(source).expect("a tree");
        let program = Program::of(tree.root_node(), source);
        let of = |f: &HostFunction| (f.name.clone(), f.extern_c, f.launches, f.device);
        let names: Vec<_> = program.functions.iter().map(of).collect();
        let name = |name: &str, c, launches, device| (name.to_string(), c, launches, device);
        assert_eq!(
            names,
            [
                name("launch", false, true, false),
                name("run", true, false, false),
                name("other", true, false, false),
                name("k", false, false, true)
            ]
        );
        let template = |name: &str, default: Option<&str>| TemplateName {
            name: name.into(),
            default: default.map(Into::into),
        };
        assert_eq!(
            program.functions[0].template,
            [template("T", None), template("M", Some("2"))]
        );
        let kinds = |index: usize| -> Vec<(String, String)> {
            let squeezed = |kind: &str| kind.split_whitespace().collect::<Vec<_>>().join(" ");
            let parameters = program.functions[index].parameters.iter();
            parameters
                .map(|p| (squeezed(&p.kind), p.name.clone()))
                .collect()
        };
        let pair = |a: &str, b: &str| (a.to_string(), b.to_string());
        assert_eq!(
            kinds(0),
            [
                pair("T *", "x"),
                pair("const int64_t", "n"),
                pair("cudaStream_t", "s")
            ]
        );
        assert_eq!(
            kinds(1),
            [
                pair("const void *", "x"),
                pair("float const &", "y"),
                pair("int []", "z")
            ]
        );
        assert_eq!(kinds(2), []);
        assert_eq!(program.enumerators["C"], 5);
        assert_eq!(
            program.aliases,
            [pair("T", "float"), pair("u32_t", "unsigned")]
        );
        assert!(program.constants.contains_key("N"));
    }
}
