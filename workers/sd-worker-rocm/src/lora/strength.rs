//! How strongly a LoRA acts, on which networks and blocks, and when.

use super::names::Network;
use std::fmt;
use worker::{Error, Result};

/// Most blocks that one LoRA can have factors for.
const MOST_BLOCKS: usize = 256;

/// A LoRA of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    /// A path to a safetensors file, or a name (without `.safetensors`) in the folders of LoRAs.
    pub name: String,
    /// Strength on the denoiser; 1 is as trained.
    pub strength: f64,
    /// Strength on the text encoders; `None` is that on the denoiser.
    pub text_strength: Option<f64>,
    /// Factors of the strength in parts of the denoiser: the beginning of tensors' names (`down_blocks.1`,
    /// `transformer_blocks.0.attn`), or a block as web UIs name it (`IN04`, `MID`, `OUT03`; `BASE` is the text encoders).
    /// The longest that fits a tensor counts.
    pub blocks: Vec<(String, f64)>,
    /// Share of the steps, 0 to 1, at which it starts to act on the denoiser.
    pub start: f64,
    /// Share of the steps, 0 to 1, at which it ceases to act on the denoiser.
    pub end: f64,
}

impl Lora {
    /// A LoRA that acts on all networks in all steps.
    pub fn new(name: impl Into<String>, strength: f64) -> Self {
        Self {
            name: name.into(),
            strength,
            text_strength: None,
            blocks: Vec::new(),
            start: 0.0,
            end: 1.0,
        }
    }

    /// Reads what stands behind a LoRA's name: up to two strengths, of the text encoders and of the denoiser as
    /// AUTOMATIC1111 has them (one is for both), and settings `NAME=VALUE`. `te` and `unet` are the strengths, `start`,
    /// `stop` and `step` (`5-10`) when it acts, `lbw` factors of all blocks in their order; other names are blocks.
    /// Numbers of steps without a point are steps of `steps`, with one shares.
    ///
    /// # Errors
    /// Says which part cannot be read.
    pub fn read(name: &str, parts: &[&str], steps: usize) -> std::result::Result<Self, String> {
        let mut lora = Self::new(name, 1.0);
        let number = |text: &str| {
            let number = text.trim().parse::<f64>().ok().filter(|n| n.is_finite());
            number.ok_or_else(|| format!("{text:?} of the LoRA {name:?} is not a number"))
        };
        let share = |text: &str| {
            let value = number(text)?;
            Ok::<_, String>(match text.contains('.') {
                true => value,
                false => (value / steps.max(1) as f64).min(1.0),
            })
        };
        let mut positions = 0;
        for part in parts {
            let Some((key, value)) = part.split_once('=') else {
                positions += 1;
                match positions {
                    1 => lora.strength = number(part)?,
                    2 => lora.text_strength = Some(std::mem::replace(&mut lora.strength, number(part)?)),
                    _ => {
                        return Err(format!(
                            "{part:?} of the LoRA {name:?}: there are two strengths, of text encoders and denoiser; a dynamic rank is not implemented"
                        ))
                    }
                }
                continue;
            };
            match key.trim() {
                "te" => lora.text_strength = Some(number(value)?),
                "unet" => {
                    lora.text_strength.get_or_insert(lora.strength);
                    lora.strength = number(value)?;
                }
                "start" => lora.start = share(value)?,
                "stop" => lora.end = share(value)?,
                "step" => {
                    let ends = value.split_once('-');
                    let (start, end) = ends.ok_or_else(|| {
                        format!("step={value} of the LoRA {name:?}; it is written step=5-10")
                    })?;
                    (lora.start, lora.end) = (share(start)?, share(end)?);
                }
                "lbw" => lora.blocks.extend(listed(value)?),
                block if is_block(block) => lora.blocks.push((block.to_string(), number(value)?)),
                other => {
                    return Err(format!(
                        "{other:?} of the LoRA {name:?} is not a setting; there are te, unet, start, stop, step, lbw and blocks"
                    ))
                }
            }
        }
        Ok(lora)
    }

    /// Whether it acts in all steps.
    pub fn is_always_active(&self) -> bool {
        self.start <= 0.0 && self.end >= 1.0
    }

    /// Checks what cannot be checked by itself: that there is a time when it acts, and not too many blocks.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn check(&self) -> std::result::Result<(), String> {
        let (name, start, end) = (&self.name, self.start, self.end);
        if !(0.0..=1.0).contains(&start) || !(start..=1.0).contains(&end) {
            return Err(format!(
                "the LoRA {name:?} acts from {start} to {end}; it must be from a start to a later end, both from 0 to 1"
            ));
        }
        match self.blocks.len() > MOST_BLOCKS {
            true => Err(format!(
                "the LoRA {name:?} has more than {MOST_BLOCKS} blocks"
            )),
            false => Ok(()),
        }
    }

    /// Its strengths for a denoiser with tensors of these names.
    ///
    /// # Errors
    /// [`Error::Usage`] for blocks that it does not have.
    pub(super) fn strengths(&self, denoiser: &[String]) -> Result<Strengths> {
        let mut strengths = Strengths {
            denoiser: self.strength,
            text: self.text_strength.unwrap_or(self.strength),
            blocks: Vec::new(),
        };
        for (block, factor) in &self.blocks {
            if block == "BASE" {
                strengths.text *= factor;
                continue;
            }
            let begins = beginnings(block).unwrap_or_else(|| vec![block.clone()]);
            let is_there = |begin: &String| denoiser.iter().any(|name| is_below(name, begin));
            if !begins.iter().any(is_there) {
                return Err(Error::Usage(format!(
                    "the LoRA {:?} has a factor for {block}, which is not a block of this model",
                    self.name
                )));
            }
            strengths
                .blocks
                .extend(begins.into_iter().map(|begin| (begin, *factor)));
        }
        // The longest first.
        strengths
            .blocks
            .sort_by_key(|(begin, _)| std::cmp::Reverse(begin.len()));
        Ok(strengths)
    }
}

impl fmt::Display for Lora {
    /// What [`Lora::read`] reads, without the name.
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.text_strength {
            Some(text) if text != self.strength => write!(f, "{text}:{}", self.strength)?,
            _ => write!(f, "{}", self.strength)?,
        }
        for (block, factor) in &self.blocks {
            write!(f, ":{block}={factor}")?;
        }
        // A share has a point.
        if self.start > 0.0 {
            write!(f, ":start={:?}", self.start)?;
        }
        if self.end < 1.0 {
            write!(f, ":stop={:?}", self.end)?;
        }
        Ok(())
    }
}

/// A LoRA's strengths on a model.
pub(super) struct Strengths {
    denoiser: f64,
    text: f64,
    /// Beginnings of the denoiser's names with factors, the longest first.
    blocks: Vec<(String, f64)>,
}

impl Strengths {
    /// The strength on a tensor.
    pub(super) fn of(&self, network: Network, tensor: &str) -> f64 {
        if network != Network::Denoiser {
            return self.text;
        }
        let found = self
            .blocks
            .iter()
            .find(|(begin, _)| is_below(tensor, begin));
        self.denoiser * found.map_or(1.0, |(_, factor)| *factor)
    }
}

/// Whether a name begins with these parts.
fn is_below(name: &str, begin: &str) -> bool {
    let rest = name.strip_prefix(begin);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether this may be a block's name.
fn is_block(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    name.chars().all(plain) && (name.contains('_') || name == "BASE" || beginnings(name).is_some())
}

/// What a block of a UNet, as web UIs name it, is in diffusers' names. Originals count the blocks of a level as one
/// for each residual layer and one for the change of size behind them, of two layers on the way down and three on the
/// way up, as all models have that web UIs know.
fn beginnings(block: &str) -> Option<Vec<String>> {
    let number = |prefix: &str| block.strip_prefix(prefix)?.parse::<usize>().ok();
    if let "MID" | "M00" | "mid" = block {
        return Some(vec!["mid_block".to_string()]);
    }
    if let "down" | "up" = block {
        return Some(vec![format!("{block}_blocks")]);
    }
    if let Some(n) = number("IN") {
        let level = n / 3;
        return Some(match (n, n % 3) {
            (0, _) => vec!["conv_in".to_string()],
            (_, 0) => vec![format!("down_blocks.{}.downsamplers.0", level - 1)],
            (_, i) => both(&format!("down_blocks.{level}"), i - 1),
        });
    }
    let n = number("OUT")?;
    let level = format!("up_blocks.{}", n / 3);
    let mut found = both(&level, n % 3);
    if n % 3 == 2 {
        found.push(format!("{level}.upsamplers.0"));
    }
    Some(found)
}

/// A level's residual layer of this number, and its attention.
fn both(level: &str, i: usize) -> Vec<String> {
    vec![
        format!("{level}.resnets.{i}"),
        format!("{level}.attentions.{i}"),
    ]
}

/// The factors of all blocks in the order of the extension LoRA Block Weight: 12 and 17 numbers are for the blocks with
/// attention of Stable Diffusion XL and 1, 20 and 26 for all of their blocks.
fn listed(text: &str) -> std::result::Result<Vec<(String, f64)>, String> {
    let numbers: Vec<f64> = text
        .split(',')
        .map(|n| n.trim().parse::<f64>().ok().filter(|n| n.is_finite()))
        .collect::<Option<_>>()
        .ok_or_else(|| {
            format!("lbw={text} is not a list of numbers; names of lists are not known")
        })?;
    let (down, up): (Vec<usize>, Vec<usize>) = match numbers.len() {
        12 => (vec![4, 5, 7, 8], (0..6).collect()),
        17 => (vec![1, 2, 4, 5, 7, 8], (3..12).collect()),
        20 => ((0..9).collect(), (0..9).collect()),
        26 => ((0..12).collect(), (0..12).collect()),
        count => {
            return Err(format!(
                "lbw={text} has {count} numbers; there must be 12 or 20 for Stable Diffusion XL, 17 or 26 for 1 and 2"
            ))
        }
    };
    let name = |kind: &'static str| move |n: usize| format!("{kind}{n:02}");
    let blocks = std::iter::once("BASE".to_string())
        .chain(down.into_iter().map(name("IN")))
        .chain(std::iter::once("MID".to_string()))
        .chain(up.into_iter().map(name("OUT")));
    Ok(blocks.zip(numbers).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> std::result::Result<Lora, String> {
        let parts: Vec<&str> = text.split(':').filter(|part| !part.is_empty()).collect();
        Lora::read("x", &parts, 20)
    }

    #[test]
    fn strengths_of_the_parts() {
        let of = |text: &str| {
            let lora = read(text).unwrap();
            (lora.strength, lora.text_strength)
        };
        assert_eq!(of(""), (1.0, None));
        assert_eq!(of("0.5"), (0.5, None));
        assert_eq!(of("0.5:0.8"), (0.8, Some(0.5)));
        assert_eq!(of("0.5:te=0"), (0.5, Some(0.0)));
        assert_eq!(of("0.5:unet=0"), (0.0, Some(0.5)));
        for wrong in [
            "much", "1:1:1", "1:x=2", "step=3", "lbw=1,2", "te=nan", "lbw=XYZ",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn steps_and_shares() {
        let of = |text: &str| {
            let lora = read(text).unwrap();
            (lora.start, lora.end)
        };
        assert_eq!(of("1:start=5"), (0.25, 1.0));
        assert_eq!(of("1:step=5-10"), (0.25, 0.5));
        assert_eq!(of("1:start=0.1:stop=0.9"), (0.1, 0.9));
        assert_eq!(of("1:stop=40"), (0.0, 1.0));
        assert!(read("1:step=10-5").unwrap().check().is_err());
    }

    #[test]
    fn what_is_written_is_read() {
        for text in [
            "1",
            "0.5:0.8",
            "1:IN04=0:up_blocks.1=0.5:start=0.25:stop=0.5",
        ] {
            assert_eq!(read(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn blocks_of_a_unet() {
        let names = [
            "conv_in.weight",
            "down_blocks.1.resnets.0.conv1.weight",
            "down_blocks.1.attentions.0.proj_in.weight",
            "down_blocks.1.attentions.1.proj_in.weight",
            "down_blocks.0.downsamplers.0.conv.weight",
            "mid_block.attentions.0.proj_in.weight",
            "up_blocks.1.attentions.0.proj_in.weight",
            "up_blocks.1.upsamplers.0.conv.weight",
        ]
        .map(String::from);
        let lora = read("2:IN04=0.5:IN03=0:OUT05=3:up_blocks.1.upsamplers=4:down=7:BASE=0.25");
        let strengths = lora.unwrap().strengths(&names).unwrap();
        let found = names
            .each_ref()
            .map(|name| strengths.of(Network::Denoiser, name));
        assert_eq!(found, [2.0, 1.0, 1.0, 14.0, 0.0, 2.0, 2.0, 6.0]);
        assert_eq!(strengths.of(Network::Text(0), "x"), 0.5);
        let error = read("1:OUT11=0").unwrap().strengths(&names).err().unwrap();
        assert!(error.to_string().contains("OUT11"), "{error}");
        assert_eq!(
            read("1:lbw=1,0,0,0,0,0,1,1,1,1,1,1,1,1,1,1,0.5")
                .unwrap()
                .blocks
                .len(),
            17
        );
    }
}
