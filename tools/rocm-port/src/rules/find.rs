//! What device code is looked through for: calls, types, operators and declarations on the syntax tree.

use super::table::Rule;
use super::value::{number, Constants};
use super::{asm, names};
use crate::libraries::{self, Place};
use crate::model::{Finding, Severity};
use crate::parse::declare::{last, without_arguments};
use crate::parse::tree::{above, children, field, line, text, walk};
use crate::parse::Parsed;
use std::collections::{HashMap, HashSet};
use tree_sitter::Node;

/// Takes findings of one function.
pub(super) struct Sink<'p> {
    pub parsed: &'p Parsed,
    pub function: String,
    pub findings: Vec<Finding>,
    /// Other names of namespaces in this text.
    pub aliases: &'p HashMap<String, String>,
    /// Rules that are said once for a function.
    pub said: HashSet<&'static str>,
}

impl<'p> Sink<'p> {
    pub(super) fn new(
        parsed: &'p Parsed,
        aliases: &'p HashMap<String, String>,
        function: &str,
    ) -> Self {
        Self {
            parsed,
            function: function.to_string(),
            findings: Vec::new(),
            aliases,
            said: HashSet::new(),
        }
    }

    pub(super) fn add(&mut self, rule: &'static str, node: Node, message: String) {
        self.at(rule, node.start_byte(), message);
    }

    pub(super) fn at(&mut self, rule: &'static str, byte: usize, message: String) {
        let finding = Finding {
            place: self.parsed.text.place(byte),
            rule: rule.to_string(),
            severity: Rule::find(rule).map_or(Severity::Error, |rule| rule.severity),
            message,
            function: self.function.clone(),
        };
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    /// As `add`, the first time in this function only.
    fn once(&mut self, rule: &'static str, node: Node, message: String) {
        if self.said.insert(rule) {
            self.add(rule, node, message);
        }
    }
}

/// Functions whose first argument is a mask of lanes.
const MASKED: &[&str] = &["_sync"];

/// Warp functions that CUDA took out.
const WITHOUT_SYNC: &[&str] = &[
    "__shfl",
    "__shfl_up",
    "__shfl_down",
    "__shfl_xor",
    "__ballot",
    "__any",
    "__all",
];

/// Calls and the rule that they fall under.
const CALLS: &[(&str, &str)] = &[
    ("__ballot_sync", "W3"),
    ("__activemask", "W3"),
    ("__match_any_sync", "W3"),
    ("__match_all_sync", "W3"),
    ("__syncwarp", "W4"),
    ("__isShared", "G2"),
    ("__isGlobal", "G2"),
    ("__isLocal", "G2"),
    ("__isConstant", "G2"),
    ("__cvta_generic_to_shared", "G2"),
    ("__cvta_generic_to_global", "G2"),
    ("__cvta_shared_to_generic", "G2"),
    ("__cvta_global_to_generic", "G2"),
    ("load_matrix_sync", "M2"),
    ("mma_sync", "M2"),
    ("store_matrix_sync", "M2"),
    ("printf", "G4"),
    ("clock", "G5"),
    ("clock64", "G5"),
    ("__pipeline_memcpy_async", "L6"),
    ("__pipeline_commit", "L6"),
    ("__pipeline_wait_prior", "L6"),
    ("this_grid", "L4"),
    ("this_multi_grid", "L4"),
    ("this_cluster", "A4"),
    ("tex1D", "T1"),
    ("tex1Dfetch", "T1"),
    ("tex2D", "T1"),
    ("tex2DLod", "T1"),
    ("tex3D", "T1"),
    ("surf1Dread", "T1"),
    ("surf2Dread", "T1"),
    ("surf2Dwrite", "T1"),
    ("surf3Dread", "T1"),
];

/// Namespaces and the rule that their use falls under.
const NAMESPACES: &[(&str, &str)] = &[
    ("cub", "L1"),
    ("cooperative_groups", "L3"),
    ("thrust", "L7"),
    ("nvcuda", "M2"),
    ("wmma", "M2"),
    ("cutlass", "C1"),
    ("cute", "C1"),
];

/// Beginnings of names and the rule that they fall under.
const BEGINNINGS: &[(&str, &str)] = &[
    ("__nv_fp8", "F1"),
    ("__nv_cvt_fp8", "F1"),
    ("__nv_fp4", "F2"),
    ("__nv_fp6", "F2"),
    ("__nv_cvt_fp4", "F2"),
    ("__nv_cvt_fp6", "F2"),
    ("curand", "L5"),
    ("cudaTextureObject_t", "T1"),
    ("cudaSurfaceObject_t", "T1"),
];

/// Looks through a device function or kernel.
pub(super) fn device<'t>(
    parsed: &'t Parsed,
    node: Node<'t>,
    declared: &HashSet<&str>,
    constants: &Constants,
    bound: &[HashMap<String, i64>],
    sink: &mut Sink,
) {
    let source = parsed.source.as_str();
    let mut shared = Vec::new();
    walk(node, |node| {
        match node.kind() {
            "call_expression" => call(node, source, declared, sink),
            "gnu_asm_expression" => {
                asm::statement(node, source, sink);
                return false;
            }
            "binary_expression" => lanes(node, source, sink),
            "declaration" => declaration(node, source, &mut shared, sink),
            "cast_expression" => cast(field(node, "type"), source, sink),
            "field_expression" => dimensions(node, source, sink),
            "namespace_identifier" | "type_identifier" | "identifier" => {
                name(node, source, declared, sink)
            }
            _ => {}
        }
        true
    });
    names::unknown(node, source, declared, sink);
    let none = [HashMap::new()];
    let bound = if bound.is_empty() { &none[..] } else { bound };
    let bytes = |bound: &HashMap<String, i64>| -> i64 {
        let sizes = shared
            .iter()
            .filter_map(|array| array_bytes(*array, source, constants, bound));
        sizes.fold(0, i64::saturating_add)
    };
    let most = bound.iter().map(bytes).max().unwrap_or(0);
    if let (true, Some(first)) = (most > 64 << 10, shared.first()) {
        sink.add("A1", *first, format!("{most} bytes of shared memory"));
    }
}

fn call(node: Node, source: &str, declared: &HashSet<&str>, sink: &mut Sink) {
    let Some(callee) = field(node, "function") else {
        return;
    };
    if children(node)
        .iter()
        .any(|child| child.kind() == "kernel_call_syntax")
    {
        sink.add("T3", node, line(callee, source));
        return;
    }
    let arguments = field(node, "arguments").map_or(Vec::new(), children);
    let whole = without_arguments(callee, source);
    let name = last(&whole);
    if declared.contains(name) && callee.kind() != "field_expression" {
        return;
    }
    if name.starts_with("__") && MASKED.iter().any(|end| name.ends_with(end)) {
        if let Some(mask) = arguments
            .first()
            .and_then(|mask| number(text(*mask, source)))
        {
            match u32::try_from(mask) {
                Ok(u32::MAX) => sink.once("W1", node, format!("full mask of {name}")),
                Ok(_) => {}
                Err(_) => sink.add("W7", node, format!("mask of more than 32 bits in {name}")),
            }
        }
    }
    if WITHOUT_SYNC.contains(&name) {
        sink.add("W6", node, name.to_string());
    }
    if let Some((_, rule)) = CALLS.iter().find(|(call, _)| *call == name) {
        match *rule {
            "L4" | "A4" | "T1" => sink.add(rule, node, name.to_string()),
            rule => sink.once(rule, node, name.to_string()),
        }
    }
    if name.ends_with("_cast") {
        let kind = match callee.kind() {
            "template_function" => {
                field(callee, "arguments").and_then(|list| children(list).into_iter().next())
            }
            _ => None,
        };
        cast(kind, source, sink);
    }
    // Barriers of types whose name says which.
    if whole == "cuda::memcpy_async" {
        sink.once("L6", node, whole.clone());
    }
}

/// `threadIdx.x & 31` and its kin.
fn lanes(node: Node, source: &str, sink: &mut Sink) {
    let (Some(left), Some(right)) = (field(node, "left"), field(node, "right")) else {
        return;
    };
    let operator = field(node, "operator").map_or("", |operator| text(operator, source));
    let of_threads = ["threadIdx", "tid", "lane", "thread", "warp"]
        .iter()
        .any(|word| {
            text(left, source)
                .to_ascii_lowercase()
                .contains(word.to_ascii_lowercase().as_str())
        });
    let value = number(text(right, source));
    let named = text(right, source)
        .to_ascii_lowercase()
        .replace('_', "")
        .ends_with("warpsize");
    let width = match operator {
        "&" => value == Some(31),
        "%" | "/" => value == Some(32) || named,
        ">>" => value == Some(5),
        _ => false,
    };
    if width && (of_threads || named) {
        sink.once("W2", node, line(node, source));
    }
}

/// Shared arrays, and masks kept in 64 bits.
fn declaration<'t>(node: Node<'t>, source: &str, shared: &mut Vec<Node<'t>>, sink: &mut Sink) {
    let is_shared = children(node)
        .iter()
        .any(|child| child.kind() == "type_qualifier" && text(*child, source) == "__shared__");
    if is_shared {
        shared.push(node);
        let whole = text(node, source);
        let size = whole
            .split_once('[')
            .map_or("", |(_, size)| size)
            .to_ascii_lowercase();
        let sized = size.starts_with("32]") || size.contains("warp");
        if sized {
            sink.once("W5", node, line(node, source));
        }
    }
    let kind = field(node, "type").map_or("", |kind| text(kind, source));
    if ["unsigned long long", "uint64_t", "unsigned long", "size_t"].contains(&kind) {
        let whole = text(node, source);
        if ["__ballot", "__activemask"]
            .iter()
            .any(|call| whole.contains(call))
        {
            sink.add("W7", node, line(node, source));
        }
    }
}

/// Vector types of 8 bytes and more that are read and written as one.
fn cast(kind: Option<Node>, source: &str, sink: &mut Sink) {
    let Some(kind) = kind else { return };
    let whole = line(kind, source);
    let Some(element) = whole.trim_end().strip_suffix('*') else {
        return;
    };
    let element = element.replace("const", "").replace("volatile", "");
    let element = element.trim();
    let digit = element.chars().next_back();
    let vector = [
        "float",
        "int",
        "uint",
        "double",
        "longlong",
        "ulonglong",
        "short",
        "ushort",
        "char",
        "uchar",
    ]
    .iter()
    .any(|base| {
        element
            .strip_prefix(base)
            .is_some_and(|rest| ["2", "3", "4"].contains(&rest))
    });
    if vector && digit.is_some() {
        sink.once("G3", kind, format!("access as {element}"));
    }
}

fn dimensions(node: Node, source: &str, sink: &mut Sink) {
    let whole = text(node, source);
    if ["threadIdx.y", "threadIdx.z", "blockDim.y", "blockDim.z"].contains(&whole) {
        sink.once("N1", node, whole.to_string());
    }
}

/// Names that a rule is about.
fn name(node: Node, source: &str, declared: &HashSet<&str>, sink: &mut Sink) {
    let name = text(node, source);
    let alias = sink.aliases.get(name).map(String::as_str);
    if declared.contains(name) && alias.is_none() {
        return;
    }
    let name = alias.map_or(name, |target| target.split("::").next().unwrap_or(target));
    if node.kind() == "namespace_identifier" {
        if let Some((_, rule)) = NAMESPACES.iter().find(|(space, _)| *space == name) {
            let whole = above(node, &["qualified_identifier"])
                .map_or(name.to_string(), |whole| without_arguments(whole, source));
            // Parts of libraries that the shim leaves out.
            if let Some(Place::ByHand(how)) = libraries::place_of(&whole).map(|part| part.place) {
                if *rule == "L1" || *rule == "L3" {
                    sink.add(
                        "S1",
                        node,
                        format!("not in the shim: {whole}; by hand: {how}"),
                    );
                }
            }
            match *rule {
                "C1" => sink.add(rule, node, whole),
                rule => sink.once(rule, node, whole),
            }
        }
        if name == "cuda" {
            let whole =
                above(node, &["qualified_identifier"]).map_or("", |whole| text(whole, source));
            if ["pipeline", "barrier", "memcpy_async"]
                .iter()
                .any(|part| whole.contains(part))
            {
                sink.once("L6", node, whole.to_string());
            }
        }
        return;
    }
    if alias.is_some() {
        return;
    }
    if name == "grid_group" || name == "cluster_group" {
        let rule = if name == "grid_group" { "L4" } else { "A4" };
        sink.add(rule, node, name.to_string());
    }
    if let Some((_, rule)) = BEGINNINGS.iter().find(|(start, _)| name.starts_with(start)) {
        match *rule {
            "F2" | "T1" => sink.add(rule, node, name.to_string()),
            rule => sink.once(rule, node, name.to_string()),
        }
    }
}

/// The bytes of a `__shared__` array, if the text says them; an `extern` one has none of its own.
fn array_bytes(
    node: Node,
    source: &str,
    constants: &Constants,
    bound: &HashMap<String, i64>,
) -> Option<i64> {
    let kind = field(node, "type")?;
    let element = super::value::size(&line(kind, source))?;
    let mut declarator = field(node, "declarator")?;
    if declarator.kind() == "init_declarator" {
        declarator = field(declarator, "declarator")?;
    }
    let mut bytes = element;
    while declarator.kind() == "array_declarator" {
        bytes = bytes.checked_mul(constants.value(field(declarator, "size")?, bound)?)?;
        declarator = field(declarator, "declarator")?;
    }
    Some(bytes)
}
