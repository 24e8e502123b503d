//! Textures: pictures whose opposite edges meet.

use crate::models::wrap::Wrap;
use clap::builder::BoolishValueParser;
use clap::Args;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which edges are to meet: one set of fields for requests, the command line and `/v1/jobs`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Args, Deserialize, Serialize, JsonSchema)]
#[serde(default)]
pub struct Seamless {
    /// Make pictures that can be laid side by side in both directions (models with a UNet).
    #[arg(long, value_parser = BoolishValueParser::new())]
    pub tiling: bool,

    /// The same from left to right only.
    #[arg(long, value_parser = BoolishValueParser::new())]
    pub tile_x: bool,

    /// The same from top to bottom only.
    #[arg(long, value_parser = BoolishValueParser::new())]
    pub tile_y: bool,
}

impl Seamless {
    /// Which edges meet.
    pub fn wrap(self) -> Wrap {
        Wrap {
            x: self.tiling || self.tile_x,
            y: self.tiling || self.tile_y,
        }
    }

    /// The field that asks for it, if one does.
    pub fn field(self) -> Option<&'static str> {
        let asked = [
            (self.tiling, "tiling"),
            (self.tile_x, "tile_x"),
            (self.tile_y, "tile_y"),
        ];
        asked
            .into_iter()
            .find_map(|(on, field)| on.then_some(field))
    }

    /// Names and values for a picture's parameters text; `Tiling` is AUTOMATIC1111's.
    pub fn settings(self) -> Vec<(&'static str, String)> {
        let on = || "True".to_string();
        match self.wrap() {
            Wrap { x: false, y: false } => Vec::new(),
            Wrap { x: true, y: true } => vec![("Tiling", on())],
            Wrap { x: true, y: false } => vec![("Tile X", on())],
            Wrap { x: false, y: true } => vec![("Tile Y", on())],
        }
    }
}
