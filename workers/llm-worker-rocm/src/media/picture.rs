//! What stands for a picture in a prompt.

use super::Expansion;
use crate::vision::{Kind, Pixels, VisionConfig};

impl VisionConfig {
    /// A picture's part of a prompt; `is_alone` where the template has left no place for it.
    pub(super) fn expansion(&self, pixels: &Pixels, token: &str, is_alone: bool) -> Expansion {
        let traits = self.traits;
        let (before, behind) = if is_alone {
            traits.alone
        } else {
            traits.around
        };
        let runs: Vec<usize> = pixels
            .tiles
            .iter()
            .map(|tile| self.rows_of_tile(tile))
            .collect();
        match traits.kind {
            Kind::Idefics3 => {
                const EDGE: &str = "<fake_token_around_image>";
                let (rows, columns) = pixels.grid;
                let mut text = String::new();
                for row in 1..=rows {
                    for column in 1..=columns {
                        text += &format!("{EDGE}<row_{row}_col_{column}>{token}");
                    }
                    text += "\n";
                }
                if rows > 0 {
                    text += "\n";
                }
                text += &format!("{EDGE}<global-img>{token}{EDGE}");
                Expansion { text, runs }
            }
            Kind::Pixtral => {
                let tile = &pixels.tiles[0];
                let rows = tile.rows / self.merge;
                Expansion {
                    text: vec![token; rows].join("[IMG_BREAK]") + "[IMG_END]",
                    runs: vec![tile.columns / self.merge; rows],
                }
            }
            // Parts beside the whole, in words of the family's processor.
            Kind::Gemma3 if runs.len() > 1 => {
                let one = format!("{before}{token}{behind}");
                let parts = vec![one.as_str(); runs.len() - 1].join(" ");
                Expansion {
                    text: format!(
                        "Here is the original image {one} and here are some crops to help you see better {parts}"
                    ),
                    runs,
                }
            }
            // Tiles behind each other.
            _ => Expansion {
                text: format!("{before}{token}{behind}"),
                runs: vec![self.rows_of(pixels)],
            },
        }
    }
}
