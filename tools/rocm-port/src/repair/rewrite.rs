//! Rewrites that need no model: what ports from CUDA get wrong in the same way everywhere.
//!
//! Each is found on the syntax tree. Whether it helps is for the checks to say: one after which not less is wrong is
//! taken back.

use super::syntax::{nodes, parse};
use std::collections::HashSet;
use tree_sitter::Node;

/// A text with a rewrite applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rewrite {
    pub title: &'static str,
    pub text: String,
}

/// What is replaced, by what.
type Edit = (std::ops::Range<usize>, String);

/// The rewrites that a text has a place for: those for all places of a kind first, then barriers one by one.
pub(crate) fn rewrites(text: &str) -> Vec<Rewrite> {
    let Some(tree) = parse(text) else {
        return Vec::new();
    };
    let all: Vec<Node> = nodes(&tree).collect();
    let source = Source { text, all };
    let mut found = Vec::new();
    let mut add = |title, edits: Vec<Edit>| {
        if !edits.is_empty() {
            found.push(Rewrite {
                title,
                text: edited(text, edits),
            });
        }
    };
    // The shim gives CUDA's warps of 32 lanes on every GPU: there these are right as they are.
    if !text.contains("port/cuda.h") {
        add("masks of lanes have 64 bits", source.wide_masks());
        add("a wave has warpSize lanes", source.wave_widths());
        let both = [source.wide_masks(), source.wave_widths()].concat();
        add("masks of 64 bits and waves of warpSize lanes", both);
    }
    for edit in source.barriers() {
        add(
            "a barrier between writing and reading shared memory",
            vec![edit],
        );
    }
    let all_barriers = source.barriers();
    if all_barriers.len() > 1 {
        add(
            "barriers between all writes and reads of shared memory",
            all_barriers,
        );
    }
    found
}

fn edited(text: &str, mut edits: Vec<Edit>) -> String {
    edits.sort_by_key(|(range, _)| (range.start, range.end));
    edits.dedup();
    let mut result = text.to_string();
    let mut before = usize::MAX;
    for (range, with) in edits.into_iter().rev() {
        if range.end <= before {
            before = range.start;
            result.replace_range(range, &with);
        }
    }
    result
}

struct Source<'a> {
    text: &'a str,
    all: Vec<Node<'a>>,
}

impl<'a> Source<'a> {
    fn of(&self, node: Node) -> &'a str {
        &self.text[node.byte_range()]
    }

    fn kind(&self, kind: &'static str) -> impl Iterator<Item = Node<'a>> + '_ {
        self.all.iter().copied().filter(move |n| n.kind() == kind)
    }

    /// The name of the function that a call means, and its arguments.
    fn call(&self, node: Node<'a>) -> Option<(&'a str, Vec<Node<'a>>)> {
        let function = node.child_by_field_name("function")?;
        let arguments = node.child_by_field_name("arguments")?;
        let mut cursor = arguments.walk();
        let arguments = arguments
            .named_children(&mut cursor)
            .filter(|n| n.kind() != "comment");
        Some((self.of(function), arguments.collect()))
    }

    /// W3, W1: ballots kept in 32 bits, counted and searched as such, and full masks of 32 bits.
    fn wide_masks(&self) -> Vec<Edit> {
        let mut edits = Vec::new();
        let mut wide: HashSet<&str> = HashSet::new();
        let ballot = |node: Node<'a>| {
            node.kind() == "call_expression"
                && self.call(node).is_some_and(|(name, _)| {
                    ["__ballot", "__ballot_sync", "__activemask"].contains(&name)
                })
        };
        for declaration in self.kind("declaration") {
            let (Some(kind), Some(declarator)) = (
                declaration.child_by_field_name("type"),
                declaration.child_by_field_name("declarator"),
            ) else {
                continue;
            };
            let (name, value) = (
                declarator.child_by_field_name("declarator"),
                declarator.child_by_field_name("value"),
            );
            let narrow =
                ["unsigned", "unsigned int", "uint32_t", "int", "uint"].contains(&self.of(kind));
            if let (Some(name), Some(value), true) = (name, value, narrow) {
                if ballot(value) {
                    wide.insert(self.of(name));
                    edits.push((kind.byte_range(), "unsigned long long".into()));
                }
            }
        }
        for node in self.kind("call_expression") {
            let Some((name, arguments)) = self.call(node) else {
                continue;
            };
            let Some(function) = node.child_by_field_name("function") else {
                continue;
            };
            let of_mask = arguments.first().is_some_and(|a| {
                ballot(*a) || self.words(*a).iter().any(|word| wide.contains(word))
            });
            let longer = match name {
                "__popc" => Some("__popcll"),
                "__ffs" => Some("__ffsll"),
                "__clz" => Some("__clzll"),
                _ => None,
            };
            if let (Some(longer), true) = (longer, of_mask) {
                edits.push((function.byte_range(), longer.into()));
            }
            if name.ends_with("_sync") {
                let full = arguments.first().filter(|a| {
                    let text = self.of(**a).to_ascii_lowercase();
                    ["0xffffffff", "0xffffffffu", "0xfffffffful"].contains(&text.as_str())
                });
                edits.extend(full.map(|a| (a.byte_range(), "0xffffffffffffffffull".to_string())));
            }
        }
        edits
    }

    /// W2: lanes and waves counted in 32s, and reductions that begin at 16.
    fn wave_widths(&self) -> Vec<Edit> {
        let mut edits = Vec::new();
        let threads = self.named_after("threadIdx");
        for node in self.kind("binary_expression") {
            let side = |name| node.child_by_field_name(name);
            let (Some(left), Some(operator), Some(right)) =
                (side("left"), side("operator"), side("right"))
            else {
                continue;
            };
            let name = self.of(left);
            if !name.starts_with("threadIdx.") && !threads.contains(name) {
                continue;
            }
            match (operator.kind(), self.of(right)) {
                ("&", "31" | "0x1f" | "31u" | "0x1F") | ("%", "32" | "32u") => {
                    edits.push((operator.start_byte()..right.end_byte(), "% warpSize".into()));
                }
                (">>", "5") | ("/", "32" | "32u") => {
                    edits.push((operator.start_byte()..right.end_byte(), "/ warpSize".into()));
                }
                _ => {}
            }
        }
        for node in self.kind("for_statement") {
            let Some(body) = node.child_by_field_name("body") else {
                continue;
            };
            let shuffles = self
                .kind("call_expression")
                .filter(|c| body.byte_range().contains(&c.start_byte()))
                .any(|c| {
                    self.call(c)
                        .is_some_and(|(name, _)| name.starts_with("__shfl"))
                });
            let first = node
                .child_by_field_name("initializer")
                .and_then(|i| i.child_by_field_name("declarator"))
                .and_then(|d| d.child_by_field_name("value"))
                .filter(|v| self.of(*v) == "16");
            if let (Some(value), true) = (first, shuffles) {
                edits.push((value.byte_range(), "warpSize / 2".into()));
            }
        }
        edits
    }

    /// W5: shared memory that is read behind a write with no barrier between. Only where all threads of a block pass:
    /// statements of a function's own body, and loops there whose bounds are the same for all threads.
    fn barriers(&self) -> Vec<Edit> {
        let shared = self.named_shared();
        let varying = self.named_after("threadIdx");
        let mut edits = Vec::new();
        for function in self.kind("function_definition") {
            if let Some(body) = function.child_by_field_name("body") {
                self.in_block(body, &shared, &varying, &mut edits);
            }
        }
        edits
    }

    fn in_block(
        &self,
        block: Node<'a>,
        shared: &HashSet<&str>,
        varying: &HashSet<&str>,
        edits: &mut Vec<Edit>,
    ) {
        let mut cursor = block.walk();
        let statements = block
            .named_children(&mut cursor)
            .filter(|n| n.kind() != "comment");
        let mut written: HashSet<&str> = HashSet::new();
        for statement in statements {
            if statement.kind() == "expression_statement" && self.has_barrier(statement) {
                written.clear();
            } else if self
                .touched(statement, shared, false)
                .iter()
                .any(|name| written.contains(name))
            {
                let indent = self.indent(statement.start_byte());
                let at = statement.start_byte();
                edits.push((at..at, format!("__syncthreads();\n{indent}")));
                written.clear();
            }
            let body = statement
                .child_by_field_name("body")
                .filter(|b| b.kind() == "compound_statement");
            if let (Some(body), "for_statement") = (body, statement.kind()) {
                let head = &self.text[statement.start_byte()..body.start_byte()];
                let uniform = !head.contains("threadIdx")
                    && !self
                        .words_of(head)
                        .iter()
                        .any(|word| varying.contains(word));
                let writes = !self.touched(body, shared, true).is_empty();
                if uniform && writes && !self.has_barrier(body) {
                    let at = body.end_byte() - 1;
                    let outer = self.indent(statement.start_byte());
                    edits.push((at..at, format!("    __syncthreads();\n{outer}")));
                    continue;
                }
            }
            // What a loop with barriers leaves behind is the business of its last one.
            match self.has_barrier(statement) {
                true => written.clear(),
                false => written.extend(self.touched(statement, shared, true)),
            }
        }
    }

    fn has_barrier(&self, node: Node) -> bool {
        self.words(node)
            .iter()
            .any(|word| word.starts_with("__syncthreads"))
    }

    /// The shared arrays whose elements a statement writes, or uses at all.
    fn touched(&self, node: Node<'a>, shared: &HashSet<&str>, written: bool) -> HashSet<&'a str> {
        let inside =
            |n: &Node| node.start_byte() <= n.start_byte() && n.end_byte() <= node.end_byte();
        self.kind("subscript_expression")
            .filter(inside)
            .filter(|n| {
                let assigned = n.parent().is_some_and(|p| {
                    (p.kind() == "assignment_expression"
                        && p.child_by_field_name("left") == Some(*n))
                        || p.kind() == "update_expression"
                });
                !written || assigned
            })
            .filter_map(|n| n.child_by_field_name("argument"))
            .map(|n| self.of(n))
            .filter(|name| shared.contains(name))
            .collect()
    }

    fn named_shared(&self) -> HashSet<&'a str> {
        let declarations = self
            .kind("declaration")
            .filter(|d| self.words(*d).contains(&"__shared__"));
        let mut names = HashSet::new();
        for declaration in declarations {
            let inside = declaration.byte_range();
            names.extend(
                self.kind("array_declarator")
                    .filter(|n| inside.contains(&n.start_byte()))
                    .filter_map(|n| n.child_by_field_name("declarator"))
                    .map(|n| self.of(n)),
            );
        }
        names
    }

    /// Variables whose initial value mentions a word.
    fn named_after(&self, word: &str) -> HashSet<&'a str> {
        let mut names = HashSet::new();
        for node in self.kind("init_declarator") {
            let (name, value) = (
                node.child_by_field_name("declarator"),
                node.child_by_field_name("value"),
            );
            if let (Some(name), Some(value)) = (name, value) {
                if self.of(value).contains(word) {
                    names.insert(self.of(name));
                }
            }
        }
        names
    }

    fn words(&self, node: Node) -> Vec<&'a str> {
        self.words_of(self.of(node))
    }

    fn words_of(&self, text: &'a str) -> Vec<&'a str> {
        super::lexer::tokens(text).iter().map(|t| t.text).collect()
    }

    /// The blanks that the line of a byte begins with.
    fn indent(&self, at: usize) -> &'a str {
        let line = self.text[..at].rfind('\n').map_or(0, |n| n + 1);
        let blanks = self.text[line..at].len() - self.text[line..at].trim_start().len();
        &self.text[line..line + blanks]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_after(title: &str, text: &str) -> Option<String> {
        rewrites(text)
            .into_iter()
            .find(|r| r.title.contains(title))
            .map(|r| r.text)
    }

    #[test]
    fn masks_and_widths_of_plain_hip() {
        let text = "__global__ void k(int *y) {\n    unsigned m = __ballot(y[0] > 0);\n    \
                    int lane = threadIdx.x & 31;\n    y[threadIdx.x >> 5] = __popc(m) + lane;\n    \
                    for (int o = 16; o > 0; o >>= 1) y[0] += __shfl_down(y[0], o);\n}\n";
        let both = text_after("64 bits and waves", text).unwrap_or_default();
        for wanted in [
            "unsigned long long m = __ballot",
            "__popcll(m)",
            "lane = threadIdx.x % warpSize",
            "y[threadIdx.x / warpSize]",
            "o = warpSize / 2",
        ] {
            assert!(both.contains(wanted), "{wanted}: {both}");
        }
        assert_eq!(rewrites(&format!("#include \"port/cuda.h\"\n{text}")), []);
    }

    #[test]
    fn barriers_only_where_all_threads_pass() {
        let text = "__global__ void k(float *y) {\n    __shared__ float s[64];\n    int t = threadIdx.x;\n    \
                    s[t] = y[t];\n    for (int o = 32; o > 0; o >>= 1) {\n        if (t < o) s[t] += s[t + o];\n    }\n    \
                    y[t] = s[0];\n}\n";
        let found = rewrites(text);
        assert!(
            found[0]
                .text
                .contains("s[t] = y[t];\n    __syncthreads();\n    for"),
            "{}",
            found[0].text
        );
        let all = text_after("barriers between all", text).unwrap_or_default();
        assert!(
            all.contains("s[t + o];\n        __syncthreads();\n    }"),
            "{all}"
        );
        // A barrier inside of the loop is none before it.
        let inside = text.replace("s[t + o];\n", "s[t + o];\n        __syncthreads();\n");
        assert!(rewrites(&inside)[0]
            .text
            .contains("s[t] = y[t];\n    __syncthreads();\n    for"));
        let divergent = text.replace(
            "for (int o = 32; o > 0; o >>= 1)",
            "for (int o = t; o > 0; o >>= 1)",
        );
        assert!(!rewrites(&divergent)
            .iter()
            .any(|r| r.text.contains("s[t + o];\n        __sync")));
        assert_eq!(rewrites("__global__ void k(float *y) { y[0] = 1; }"), []);
    }
}
