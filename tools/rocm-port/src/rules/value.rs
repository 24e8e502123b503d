//! Constants that the text itself says.

use crate::parse::tree::{children, field, text, walk};
use std::collections::HashMap;
use tree_sitter::Node;

/// Values of names.
pub(super) struct Constants<'t> {
    source: &'t str,
    nodes: HashMap<&'t str, Node<'t>>,
}

/// How deep expressions and names may lead.
const DEPTH: usize = 32;

impl<'t> Constants<'t> {
    /// All constants and enumerators with a value.
    pub(super) fn collect(root: Node<'t>, source: &'t str) -> Self {
        let mut nodes = HashMap::new();
        walk(root, |node| {
            let pair = match node.kind() {
                "enumerator" => (field(node, "name"), field(node, "value")),
                "init_declarator" => (field(node, "declarator"), field(node, "value")),
                "field_declaration" => (field(node, "declarator"), field(node, "default_value")),
                _ => (None, None),
            };
            if let (Some(name), Some(value)) = pair {
                let head = match node.kind() {
                    "init_declarator" => node.parent().unwrap_or(node),
                    _ => node,
                };
                let constant = node.kind() == "enumerator"
                    || children(head).iter().any(|child| {
                        child.kind() == "type_qualifier"
                            && ["const", "constexpr"].contains(&text(*child, source))
                    });
                if constant {
                    nodes.insert(text(name, source), value);
                }
            }
            true
        });
        Self { source, nodes }
    }

    /// The value of an expression; `bound` knows template parameters.
    pub(super) fn value(&self, node: Node, bound: &HashMap<String, i64>) -> Option<i64> {
        self.at(node, bound, 0)
    }

    fn at(&self, node: Node, bound: &HashMap<String, i64>, depth: usize) -> Option<i64> {
        if depth > DEPTH {
            return None;
        }
        let inner = |node: Node| self.at(node, bound, depth + 1);
        match node.kind() {
            "number_literal" => number(text(node, self.source)),
            "true" => Some(1),
            "false" => Some(0),
            "parenthesized_expression" | "type_descriptor" | "template_argument_list" => {
                inner(children(node).into_iter().next()?)
            }
            "cast_expression" => inner(field(node, "value")?),
            "identifier" | "type_identifier" => {
                let name = text(node, self.source);
                match bound.get(name) {
                    Some(value) => Some(*value),
                    None => inner(*self.nodes.get(name)?),
                }
            }
            "qualified_identifier" => inner(field(node, "name")?),
            "sizeof_expression" => size(text(children(node).into_iter().next()?, self.source)),
            "unary_expression" => {
                let value = inner(field(node, "argument")?)?;
                match text(field(node, "operator")?, self.source) {
                    "-" => value.checked_neg(),
                    "+" => Some(value),
                    _ => None,
                }
            }
            "conditional_expression" => match inner(field(node, "condition")?)? {
                0 => inner(field(node, "alternative")?),
                _ => inner(field(node, "consequence")?),
            },
            "binary_expression" => {
                let (left, right) = (inner(field(node, "left")?)?, inner(field(node, "right")?)?);
                match text(field(node, "operator")?, self.source) {
                    "+" => left.checked_add(right),
                    "-" => left.checked_sub(right),
                    "*" => left.checked_mul(right),
                    "/" => left.checked_div(right),
                    "%" => left.checked_rem(right),
                    "<<" => left.checked_shl(u32::try_from(right).ok()?),
                    ">>" => left.checked_shr(u32::try_from(right).ok()?),
                    "<" => Some(i64::from(left < right)),
                    ">" => Some(i64::from(left > right)),
                    "==" => Some(i64::from(left == right)),
                    _ => None,
                }
            }
            _ => None,
        }
    }
}

/// A literal's value.
pub(super) fn number(literal: &str) -> Option<i64> {
    let plain: String = literal.replace('\'', "").to_ascii_lowercase();
    let digits = plain.trim_end_matches(['u', 'l', 'z']);
    match digits.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16)
            .ok()
            .map(|value| value as i64),
        None => digits.parse().ok(),
    }
}

/// Bytes of a type that is known by its name.
pub(super) fn size(kind: &str) -> Option<i64> {
    let kind = kind
        .trim_matches(['(', ')', ' '])
        .trim_start_matches("const ")
        .trim();
    if kind.ends_with('*') {
        return Some(8);
    }
    Some(match kind {
        "char" | "int8_t" | "uint8_t" | "unsigned char" | "signed char" | "bool" | "std::byte" => 1,
        "half" | "__half" | "__nv_bfloat16" | "nv_bfloat16" | "short" | "int16_t" | "uint16_t"
        | "unsigned short" => 2,
        "float" | "int" | "unsigned" | "unsigned int" | "int32_t" | "uint32_t" | "half2"
        | "__half2" | "nv_bfloat162" | "__nv_bfloat162" => 4,
        "double" | "int64_t" | "uint64_t" | "size_t" | "long long" | "unsigned long long"
        | "float2" | "int2" | "uint2" | "long" | "unsigned long" => 8,
        "float4" | "int4" | "uint4" | "double2" | "longlong2" | "ulonglong2" => 16,
        _ => return None,
    })
}
