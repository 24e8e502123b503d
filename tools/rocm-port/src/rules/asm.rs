//! Inline PTX: the instructions of an `asm` statement, and which rule each falls under.

use super::find::Sink;
use crate::parse::tree::{field, line, text, walk};
use crate::ptx;
use tree_sitter::Node;

/// NVIDIA's matrix instructions.
const MATRIX: &[&str] = &["mma.", "ldmatrix.", "stmatrix.", "movmatrix.", "wmma."];

/// Hopper and Blackwell.
const NEWER: &[&str] = &[
    "wgmma.",
    "tcgen05.",
    "mbarrier.",
    "cp.async.bulk",
    "cp.reduce.async.bulk",
    "fence.proxy",
    "fence.mbarrier",
    "mapa.",
    "setmaxnreg.",
    "elect.",
];

/// Special registers that number hardware lanes.
const LANES: &[&str] = &["%laneid", "%lanemask", "%warpid", "%nwarpid", "%WARP_SZ"];

/// The instructions in the text of an `asm` statement, without operands.
pub(super) fn instructions(code: &str) -> Vec<String> {
    code.replace("\\n", ";")
        .replace("\\t", " ")
        .split([';', '{', '}', '\n'])
        .filter_map(|statement| {
            let mut words = statement.split_whitespace();
            let mut word = words.next()?;
            // A guard, `@p` or `@!p`.
            if word.starts_with('@') {
                word = words.next()?;
            }
            // Labels, declarations of registers, comments, and what is left of operand lists.
            let is_instruction =
                word.starts_with(|c: char| c.is_ascii_lowercase()) && !word.ends_with(':');
            let is_plain = ["trap", "exit", "ret", "brkpt", "bra"].contains(&word);
            (is_instruction && (word.contains('.') || is_plain)).then(|| word.to_string())
        })
        .collect()
}

/// The string of an `asm` statement, its parts joined.
fn code(node: Node, source: &str) -> String {
    let mut out = String::new();
    let Some(assembly) = field(node, "assembly_code") else {
        return out;
    };
    walk(assembly, |part| {
        if part.kind() == "string_literal" || part.kind() == "raw_string_literal" {
            let literal = text(part, source);
            out.push_str(literal.trim_start_matches(['R', '"']).trim_end_matches('"'));
            return false;
        }
        true
    });
    out
}

/// Looks at one `asm` statement.
pub(super) fn statement(node: Node, source: &str, sink: &mut Sink) {
    let code = code(node, source);
    let starts = |names: &[&str], name: &str| names.iter().any(|known| name.starts_with(known));
    let found = instructions(&code);
    if found.is_empty() && !code.trim().is_empty() {
        let what: String = line(node, source).chars().take(60).collect();
        sink.add("P2", node, format!("asm without a known form: {what}"));
    }
    for instruction in found {
        let rule = match instruction.as_str() {
            name if starts(NEWER, name) => "M4",
            name if starts(MATRIX, name) => "M1",
            name if name.starts_with("cp.async") && ptx::callee(name).is_some() => "M3",
            name if ptx::callee(name).is_some() => "P1",
            _ => "P2",
        };
        sink.add(rule, node, instruction);
    }
    for register in LANES.iter().filter(|register| code.contains(**register)) {
        sink.add("W7", node, format!("special register {register}"));
    }
    if code.contains("%clock") || code.contains("%globaltimer") {
        sink.add("G5", node, "clock register".into());
    }
}

#[cfg(test)]
mod tests {
    use super::instructions;

    #[test]
    fn instructions_of_statements() {
        let code = "{\\n .reg .pred p;\\n  setp.ne.b32 p, %0, 0;\\n @p cp.async.cg.shared.global [%1], [%2], %3;\\n}\\n";
        assert_eq!(
            instructions(code),
            ["setp.ne.b32", "cp.async.cg.shared.global"]
        );
        assert_eq!(instructions("mov.b32 {%0, %1}, %2;\\n"), ["mov.b32"]);
        assert_eq!(instructions("trap;"), ["trap"]);
        assert_eq!(
            instructions("mma.sync.aligned.m16n8k8.row.col.f32 {%0,%1}, {%2}, {%3}, {%0,%1};"),
            ["mma.sync.aligned.m16n8k8.row.col.f32"]
        );
        assert!(instructions("").is_empty());
    }
}
