//! Small helpers over tree-sitter's nodes, none of them recursive.

use tree_sitter::{Node, Parser, Tree};

/// Parses CUDA.
pub(crate) fn parse(text: &str) -> Option<Tree> {
    let mut parser = Parser::new();
    parser
        .set_language(&tree_sitter_cuda::LANGUAGE.into())
        .ok()?;
    parser.parse(text, None)
}

/// All nodes below and with `root`, parents before children; `enter` says whether to go into a node.
pub(crate) fn walk<'t>(root: Node<'t>, mut enter: impl FnMut(Node<'t>) -> bool) {
    let mut cursor = root.walk();
    loop {
        if enter(cursor.node()) && cursor.goto_first_child() {
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() || cursor.node() == root {
                return;
            }
        }
    }
}

/// How deep a tree is.
pub(super) fn depth(tree: &Tree) -> usize {
    let mut cursor = tree.walk();
    let (mut depth, mut most) = (0usize, 0usize);
    loop {
        if cursor.goto_first_child() {
            depth += 1;
            most = most.max(depth);
            continue;
        }
        while !cursor.goto_next_sibling() {
            if !cursor.goto_parent() {
                return most;
            }
            depth -= 1;
        }
    }
}

/// A node's text.
pub(crate) fn text<'s>(node: Node, source: &'s str) -> &'s str {
    source.get(node.byte_range()).unwrap_or_default()
}

/// A node's text on one line, with single spaces.
pub(crate) fn line(node: Node, source: &str) -> String {
    squeezed(text(node, source))
}

/// Text on one line, with single spaces.
pub(crate) fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A child by its field.
pub(crate) fn field<'t>(node: Node<'t>, name: &str) -> Option<Node<'t>> {
    node.child_by_field_name(name)
}

/// The named children, without comments.
pub(crate) fn children<'t>(node: Node<'t>) -> Vec<Node<'t>> {
    let mut cursor = node.walk();
    let children = node.named_children(&mut cursor);
    children.filter(|child| child.kind() != "comment").collect()
}

/// The nearest node above of one of these kinds.
pub(crate) fn above<'t>(node: Node<'t>, kinds: &[&str]) -> Option<Node<'t>> {
    let mut node = node.parent()?;
    while !kinds.contains(&node.kind()) {
        node = node.parent()?;
    }
    Some(node)
}
