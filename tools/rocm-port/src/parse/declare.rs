//! Functions and kernels of a syntax tree.

use super::prepare::Attribute;
use super::text::Text;
use super::tree::{children, field, line, text, walk};
use crate::model::{Parameter, TemplateParameter};
use std::ops::Range;
use tree_sitter::Node;

/// A function with a body.
#[derive(Clone, Debug)]
pub(crate) struct Definition {
    /// With namespaces and classes.
    pub name: String,
    /// The class that it is a member of, without namespaces and template arguments.
    pub class: Option<String>,
    /// The whole definition, in bytes of the parsed text.
    pub range: Range<usize>,
    /// Where its name begins.
    pub name_at: usize,
    pub global: bool,
    pub device: bool,
    /// Neither `__global__` nor `__device__`, or `__host__` beside it.
    pub host: bool,
    pub extern_c: bool,
    /// Its own template parameters.
    pub template: Vec<TemplateParameter>,
    /// Those of the classes around it, outer ones first.
    pub class_template: Vec<TemplateParameter>,
    /// `template <>`
    pub specialised: bool,
    pub parameters: Vec<Parameter>,
}

impl Definition {
    /// The name without namespaces.
    pub(crate) fn last(&self) -> &str {
        last(&self.name)
    }

    /// The argument of an attribute of the definition's head.
    pub(crate) fn attribute<'a>(&self, attributes: &'a [Attribute], name: &str) -> Option<&'a str> {
        attributes
            .iter()
            .filter(|attribute| self.range.contains(&attribute.at) && attribute.at <= self.name_at)
            .find(|attribute| attribute.name == name)
            .and_then(|attribute| attribute.arguments.as_deref())
    }
}

/// The last part of a name with `::`.
pub(crate) fn last(name: &str) -> &str {
    name.rsplit("::").next().unwrap_or(name)
}

/// All definitions of functions, in the order of the text.
pub(crate) fn definitions(root: Node, source: &str) -> Vec<Definition> {
    let mut found = Vec::new();
    walk(root, |node| {
        if node.kind() == "function_definition" {
            found.extend(definition(node, source));
        }
        true
    });
    found
}

fn definition(node: Node, source: &str) -> Option<Definition> {
    let declarator = function_declarator(field(node, "declarator")?)?;
    let name_node = field(declarator, "declarator")?;
    let mut name = without_arguments(name_node, source);
    field(node, "body")?;
    let head = source.get(node.start_byte()..name_node.start_byte())?;
    let words: Vec<&str> = head
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .collect();
    let global = words.contains(&"__global__");
    let device = words.contains(&"__device__");
    let host = words.contains(&"__host__") || !(global || device);
    let mut this = Definition {
        name: String::new(),
        class: None,
        range: node.byte_range(),
        name_at: name_node.start_byte(),
        global,
        device,
        host,
        extern_c: false,
        template: Vec::new(),
        class_template: Vec::new(),
        specialised: false,
        parameters: parameters(declarator, source),
    };
    let mut own_template = true;
    let mut above = node.parent();
    while let Some(node) = above {
        match node.kind() {
            "template_declaration" => {
                let parameters =
                    field(node, "parameters").map_or(Vec::new(), |list| template(list, source));
                if own_template {
                    this.specialised |= parameters.is_empty();
                    this.template = parameters;
                } else {
                    this.class_template.splice(0..0, parameters);
                }
            }
            "class_specifier" | "struct_specifier" => {
                own_template = false;
                if let Some(class) = field(node, "name").map(|name| without_arguments(name, source))
                {
                    this.class.get_or_insert_with(|| last(&class).to_string());
                    name = format!("{class}::{name}");
                }
            }
            "namespace_definition" => {
                own_template = false;
                if let Some(space) = field(node, "name") {
                    name = format!("{}::{name}", text(space, source));
                }
            }
            "linkage_specification" => {
                this.extern_c |=
                    field(node, "value").is_some_and(|value| text(value, source) == "\"C\"");
            }
            "function_definition" | "lambda_expression" => own_template = false,
            _ => {}
        }
        above = node.parent();
    }
    // A member that is defined outside of its class.
    if this.class.is_none() && name_node.kind() == "qualified_identifier" {
        let own = without_arguments(name_node, source);
        this.class = own.rsplit("::").nth(1).map(String::from);
    }
    this.name = name;
    Some(this)
}

/// The function's declarator below pointers, references and parentheses.
fn function_declarator(mut node: Node) -> Option<Node> {
    for _ in 0..32 {
        if node.kind() == "function_declarator" {
            return Some(node);
        }
        node = field(node, "declarator").or_else(|| children(node).into_iter().next())?;
    }
    None
}

/// A name as the text says it, without template arguments and spaces.
pub(crate) fn without_arguments(node: Node, source: &str) -> String {
    let mut depth = 0usize;
    let mut name = String::new();
    let whole = text(node, source);
    if node.kind() == "operator_name" || whole.contains("operator") {
        return whole.split_whitespace().collect();
    }
    for c in whole.chars() {
        match c {
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            c if depth == 0 && !c.is_whitespace() => name.push(c),
            _ => {}
        }
    }
    name
}

/// The parameters of a template.
pub(crate) fn template(list: Node, source: &str) -> Vec<TemplateParameter> {
    children(list)
        .into_iter()
        .filter_map(|node| {
            let whole = line(node, source);
            let (head, default) = match (field(node, "default_type"), field(node, "default_value"))
            {
                (Some(default), _) | (_, Some(default)) => {
                    let head = source.get(node.start_byte()..default.start_byte())?;
                    let head = super::tree::squeezed(head.trim_end().trim_end_matches('='));
                    (head, Some(line(default, source)))
                }
                _ => (whole, None),
            };
            let head = head.trim();
            let start = head
                .rfind(|c: char| !(c.is_alphanumeric() || c == '_'))
                .map_or(0, |at| at + 1);
            let (kind, name) = head.split_at(start);
            // A parameter without a name is a kind only.
            let (kind, name) = match kind.trim().is_empty() {
                true => (name, ""),
                false => (kind, name),
            };
            Some(TemplateParameter {
                kind: kind.trim().to_string(),
                name: name.to_string(),
                default,
            })
        })
        .collect()
}

/// The parameters of a function.
pub(crate) fn parameters(declarator: Node, source: &str) -> Vec<Parameter> {
    let Some(list) = field(declarator, "parameters") else {
        return Vec::new();
    };
    children(list)
        .into_iter()
        .filter(|node| node.kind().contains("parameter"))
        .map(|node| parameter(node, source))
        .filter(|parameter| parameter.kind != "void" || !parameter.name.is_empty())
        .collect()
}

/// A declaration's type, with pointers and references, and its name.
pub(crate) fn parameter(node: Node, source: &str) -> Parameter {
    let end = match field(node, "default_value") {
        Some(default) => {
            let head = source
                .get(node.start_byte()..default.start_byte())
                .unwrap_or_default();
            node.start_byte() + head.trim_end().trim_end_matches('=').len()
        }
        None => node.end_byte(),
    };
    let name = field(node, "declarator").and_then(innermost);
    let kind = match name {
        Some(name) => {
            let before = source
                .get(node.start_byte()..name.start_byte())
                .unwrap_or_default();
            let after = source.get(name.end_byte()..end).unwrap_or_default();
            format!("{before} {after}")
        }
        None => source
            .get(node.start_byte()..end)
            .unwrap_or_default()
            .to_string(),
    };
    Parameter {
        kind: super::tree::squeezed(&kind),
        name: name.map_or(String::new(), |name| text(name, source).to_string()),
    }
}

/// The identifier inside of declarators.
pub(crate) fn innermost(mut node: Node) -> Option<Node> {
    for _ in 0..32 {
        match node.kind() {
            "identifier" | "field_identifier" | "type_identifier" => return Some(node),
            kind if kind.starts_with("abstract_") => return None,
            _ => {}
        }
        node = field(node, "declarator").or_else(|| {
            children(node).into_iter().find(|child| {
                child.kind().contains("identifier") || child.kind().contains("declarator")
            })
        })?;
    }
    None
}

/// The last line of a definition in its own file; for what a macro makes, the macro's line.
pub(crate) fn last_line(text: &Text, range: &Range<usize>) -> usize {
    let (start, end) = (
        text.place(range.start),
        text.place(range.end.saturating_sub(1)),
    );
    match start.file == end.file {
        true => end.line.max(start.line),
        false => start.line,
    }
}
