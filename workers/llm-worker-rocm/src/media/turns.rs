//! What the tokens of a prompt are turned by, where rows of a picture have a time, a row and a column (M-RoPE).

use crate::engine::media::{Content, Span, Turn};
use crate::vision::{Kind, Video, VisionConfig};

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
            // Time goes on from tile to tile where all of them are one span.
            let (pixels, interval) = match &span.item.content {
                Content::Picture(pixels) => (pixels, 1.0),
                Content::Video(video) => (&video.pixels, self.positions_of(video)),
                // Rows of a sound are turned as text.
                Content::Sound(_) => continue,
            };
            plain(&mut turns, &mut next, span.start);
            let merge = self.merge;
            let rows_of_tile = self.rows_of_tile(&pixels.tiles[0]).max(1);
            let first = span.first / rows_of_tile;
            let mut end = next;
            for tile in first..first + span.len / rows_of_tile {
                let tile = (&pixels.tiles[tile], tile - first);
                let (rows, columns) = (tile.0.rows / merge, tile.0.columns / merge);
                let time = next + (tile.1 as f64 * interval) as u32;
                for row in 0..rows as u32 {
                    let columns = 0..columns as u32;
                    turns.extend(columns.map(|column| [time, next + row, next + column]));
                }
                end = end.max(time + 1).max(next + rows.max(columns) as u32);
            }
            next = end;
        }
        plain(&mut turns, &mut next, tokens);
        turns
    }

    /// Positions from a tile of a video to the next: Qwen 2.5-VL counts seconds.
    fn positions_of(&self, video: &Video) -> f64 {
        match self.traits.kind {
            Kind::Qwen25Vl => self.tokens_per_second * video.interval,
            _ => 1.0,
        }
    }
}
