//! What host code is looked through for: calls of CUDA's runtime, driver and libraries, and variables of the module.

use super::find::Sink;
use crate::libraries::{self, Place};
use crate::parse::declare::without_arguments;
use crate::parse::tree::{children, field, line, text, walk};
use std::collections::HashSet;
use tree_sitter::Node;

/// Beginnings of names of NVIDIA's host libraries.
const LIBRARIES: &[&str] = &[
    "cublas",
    "cudnn",
    "cusparse",
    "cusolver",
    "cufft",
    "nccl",
    "nvtx",
    "curandCreate",
    "curandGenerate",
    "nvjpeg",
];

/// Looks through a host function.
pub(super) fn function(node: Node, source: &str, declared: &HashSet<&str>, sink: &mut Sink) {
    walk(node, |node| {
        if node.kind() != "call_expression" {
            return true;
        }
        let Some(callee) = field(node, "function") else {
            return true;
        };
        let name = without_arguments(callee, source);
        if declared.contains(name.as_str()) {
            return true;
        }
        if let Some((rule, message)) = rule(&name, node, source) {
            sink.add(rule, node, message);
        }
        true
    });
}

/// The rule that a host call falls under.
fn rule(name: &str, node: Node, source: &str) -> Option<(&'static str, String)> {
    let name = name.trim_start_matches("::");
    // With what takes its place, if that is known.
    let said = || match libraries::place_of(name).map(|part| part.place) {
        Some(Place::Ours(ours)) => format!("{name}; ours: {ours}"),
        Some(Place::ByHand(how)) => format!("{name}; by hand: {how}"),
        _ => name.to_string(),
    };
    let capital = |rest: &str| rest.starts_with(|c: char| c.is_ascii_uppercase());
    if LIBRARIES.iter().any(|library| name.starts_with(library)) {
        return Some(("H3", said()));
    }
    if name.starts_with("cub::Device") || name.starts_with("thrust::") {
        // Pointers and iterators are no algorithms.
        let helper = [
            "device_pointer_cast",
            "raw_pointer_cast",
            "iterator",
            "make_",
            "cuda::par",
            "device_ptr",
        ];
        return (!helper.iter().any(|part| name.contains(part))).then(|| ("L2", said()));
    }
    if name.starts_with("cudaMemcpyToSymbol") || name.starts_with("cudaGetSymbolAddress") {
        return Some(("T2", said()));
    }
    if name == "cudaFuncSetAttribute" && text(node, source).contains("MaxDynamicSharedMemorySize") {
        return Some(("A2", said()));
    }
    if name.starts_with("cudaLaunchCooperative") || name == "cuLaunchCooperativeKernel" {
        return Some(("H4", said()));
    }
    if name.strip_prefix("cuda").is_some_and(capital) {
        return Some(("H1", said()));
    }
    if name.strip_prefix("cu").is_some_and(capital) {
        return Some(("H2", said()));
    }
    None
}

/// Looks at variables outside of functions.
pub(super) fn variables(root: Node, source: &str, sink: &mut Sink) {
    walk(root, |node| {
        match node.kind() {
            "function_definition" => return false,
            "declaration" => {
                let qualified = |word: &str| {
                    children(node)
                        .iter()
                        .any(|child| text(*child, source) == word)
                };
                if qualified("__managed__") {
                    sink.add("T4", node, head(node, source));
                }
                let kind = field(node, "type").map_or("", |kind| text(kind, source));
                if kind.starts_with("texture<") || kind.starts_with("surface<") {
                    sink.add("T1", node, head(node, source));
                }
            }
            _ => {}
        }
        true
    });
}

/// A declaration's beginning.
fn head(node: Node, source: &str) -> String {
    line(node, source).chars().take(60).collect()
}
