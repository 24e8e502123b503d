//! tree-sitter's view of a text, within bounds of time.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use tree_sitter::{Node, ParseOptions, Parser, Tree};

/// The grammar is error-tolerant; what takes longer than this was made to.
const TIME: Duration = Duration::from_secs(10);

/// The tree of a text; `None` if it takes too long.
pub(crate) fn parse(text: &str) -> Option<Tree> {
    let mut parser = Parser::new();
    parser
        .set_language(&tree_sitter_cuda::LANGUAGE.into())
        .ok()?;
    let begun = Instant::now();
    let mut progress = |_: &tree_sitter::ParseState| match begun.elapsed() > TIME {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let options = ParseOptions::new().progress_callback(&mut progress);
    let bytes = text.as_bytes();
    let mut read = |at: usize, _| bytes.get(at..).unwrap_or_default();
    parser.parse_with_options(&mut read, None, Some(options))
}

/// All nodes, parents before children. Without recursion: hostile texts are deep.
pub(crate) fn nodes(tree: &Tree) -> impl Iterator<Item = Node<'_>> {
    let mut cursor = tree.walk();
    let mut next = Some(tree.root_node());
    std::iter::from_fn(move || {
        let node = next?;
        let mut moved = cursor.goto_first_child() || cursor.goto_next_sibling();
        while !moved && cursor.goto_parent() {
            moved = cursor.goto_next_sibling();
        }
        next = moved.then(|| cursor.node());
        Some(node)
    })
}

/// The number of places that the grammar does not understand.
pub(crate) fn errors(tree: &Tree) -> usize {
    match tree.root_node().has_error() {
        true => nodes(tree)
            .filter(|n| n.is_error() || n.is_missing())
            .count(),
        false => 0,
    }
}
