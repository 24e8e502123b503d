//! What the tokens of a prompt are turned by, where rows of a picture have a time, a row and a column (M-RoPE).

use crate::engine::media::{Content, Span, Turn};
use crate::vision::VisionConfig;

impl VisionConfig {
    /// What the tokens of a prompt are turned by: text by its place, rows of a picture from there on by their row and
    /// column, and what follows by the next place that none of these has.
    pub(super) fn turns(&self, tokens: usize, spans: &[Span]) -> Vec<Turn> {
        let mut turns = Vec::with_capacity(tokens);
        let mut next = 0u32;
        let plain = |turns: &mut Vec<Turn>, next: &mut u32, end: usize| {
            while turns.len() < end {
                turns.push([*next; 3]);
                *next += 1;
            }
        };
        for span in spans {
            // Rows of a sound are turned as text.
            let Content::Picture(pixels) = &span.item.content else {
                continue;
            };
            plain(&mut turns, &mut next, span.start);
            let tile = &pixels.tiles[0];
            let merge = self.merge;
            let (rows, columns) = (tile.rows / merge, tile.columns / merge);
            for row in 0..rows as u32 {
                turns.extend((0..columns as u32).map(|column| [next, next + row, next + column]));
            }
            next += rows.max(columns) as u32;
        }
        plain(&mut turns, &mut next, tokens);
        turns
    }
}
