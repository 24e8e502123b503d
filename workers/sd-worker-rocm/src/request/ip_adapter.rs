//! Pictures as prompts.

use image::{GrayImage, RgbImage};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

/// Pictures that an IP-Adapter looks at.
#[derive(Debug, Clone)]
pub struct IpAdapter {
    /// The adapter: a safetensors file; for FLUX.1 the folder of Redux.
    pub model: PathBuf,
    /// The pictures.
    pub images: Vec<RgbImage>,
    /// Embeddings of faces instead, for FaceID.
    pub faces: Vec<Vec<f32>>,
    /// How strongly it steers.
    pub strength: f64,
    /// By what that is multiplied in each block.
    pub blocks: BlockStrengths,
    /// Where in the picture: all of it without.
    pub mask: Option<GrayImage>,
    /// Share of the steps, 0 to 1, at which it starts to act.
    pub start: f64,
    /// Share of the steps, 0 to 1, at which it ceases to act.
    pub end: f64,
}

impl IpAdapter {
    /// An adapter at full strength everywhere and in all steps.
    pub fn new(model: PathBuf, images: Vec<RgbImage>) -> Self {
        Self {
            model,
            images,
            faces: Vec::new(),
            strength: 1.0,
            blocks: BlockStrengths::default(),
            mask: None,
            start: 0.0,
            end: 1.0,
        }
    }
}

/// Strengths of blocks, as diffusers writes them: `{"down": 0.5, "mid": 1, "up": {"block_0": [0, 1, 0]}}`; what is left out
/// is 0. `style` and `layout` stand for the blocks of Stable Diffusion XL that InstantStyle (Wang et al. 2024) names.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BlockStrengths(Option<Named>);

#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Named {
    down: Side,
    mid: One,
    up: Side,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum Side {
    All(f64),
    Blocks(BTreeMap<String, One>),
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
enum One {
    All(f64),
    Each(Vec<f64>),
}

impl Default for Side {
    fn default() -> Self {
        Self::All(0.0)
    }
}

impl Default for One {
    fn default() -> Self {
        Self::All(0.0)
    }
}

impl One {
    fn at(&self, attention: usize) -> f64 {
        match self {
            Self::All(strength) => *strength,
            Self::Each(only) if only.len() == 1 => only[0],
            Self::Each(each) => each.get(attention).copied().unwrap_or(0.0),
        }
    }

    fn all(&self) -> &[f64] {
        match self {
            Self::All(strength) => std::slice::from_ref(strength),
            Self::Each(each) => each,
        }
    }
}

impl Side {
    fn at(&self, block: usize, attention: usize) -> f64 {
        match self {
            Self::All(strength) => *strength,
            Self::Blocks(blocks) => {
                let one = blocks.get(&format!("block_{block}"));
                one.map_or(0.0, |one| one.at(attention))
            }
        }
    }

    fn sound(&self) -> bool {
        match self {
            Self::All(strength) => strength.is_finite(),
            Self::Blocks(blocks) => blocks.iter().all(|(name, one)| {
                let number = name.strip_prefix("block_");
                number.is_some_and(|n| n.parse::<u8>().is_ok())
                    && one.all().iter().all(|strength| strength.is_finite())
            }),
        }
    }
}

/// Where an attention is in a UNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// In a block on the way down, by number.
    Down(usize),
    /// Between.
    Mid,
    /// In a block on the way up, by number, innermost first.
    Up(usize),
}

impl BlockStrengths {
    /// By what the strength is multiplied in an attention of a block.
    pub fn at(&self, way: Way, attention: usize) -> f64 {
        let Some(named) = &self.0 else {
            return 1.0;
        };
        match way {
            Way::Down(block) => named.down.at(block, attention),
            Way::Mid => named.mid.at(0),
            Way::Up(block) => named.up.at(block, attention),
        }
    }
}

impl FromStr for BlockStrengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = match text.trim() {
            "" | "all" => return Ok(Self::default()),
            "style" => r#"{"up": {"block_0": [0, 1, 0]}}"#,
            "layout" => r#"{"down": {"block_2": [0, 1]}}"#,
            "style+layout" => r#"{"down": {"block_2": [0, 1]}, "up": {"block_0": [0, 1, 0]}}"#,
            other => other,
        };
        let named: Named = serde_json::from_str(text).map_err(|e| {
            format!("{text:?} is neither all, style, layout, style+layout nor JSON such as {{\"up\": {{\"block_0\": [0, 1, 0]}}}}: {e}")
        })?;
        let mid = named.mid.all();
        if !named.down.sound() || !named.up.sound() || mid.len() != 1 || !mid[0].is_finite() {
            return Err(format!(
                "{text:?}: blocks are named block_0 and so on, mid has one strength, all are numbers"
            ));
        }
        Ok(Self(Some(named)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strengths_of_blocks() {
        let all = BlockStrengths::default();
        assert_eq!(all.at(Way::Up(3), 7), 1.0);
        let style: BlockStrengths = "style".parse().unwrap();
        let at = |way, attention| style.at(way, attention);
        assert_eq!((at(Way::Up(0), 1), at(Way::Up(0), 0)), (1.0, 0.0));
        assert_eq!((at(Way::Mid, 0), at(Way::Down(2), 1)), (0.0, 0.0));
        let text = r#"{"down": 0.5, "mid": [2], "up": {"block_1": 3, "block_2": [4]}}"#;
        let own: BlockStrengths = text.parse().unwrap();
        assert_eq!(own.at(Way::Down(9), 9), 0.5);
        assert_eq!(own.at(Way::Mid, 0), 2.0);
        assert_eq!(own.at(Way::Up(1), 2), 3.0);
        assert_eq!(own.at(Way::Up(2), 2), 4.0);
        assert_eq!(own.at(Way::Up(0), 0), 0.0);
        for wrong in [
            "stile",
            r#"{"sideways": 1}"#,
            r#"{"up": {"block": 1}}"#,
            r#"{"up": {"block_0": ["x"]}}"#,
            r#"{"mid": [1, 2]}"#,
        ] {
            assert!(wrong.parse::<BlockStrengths>().is_err(), "{wrong}");
        }
    }
}
