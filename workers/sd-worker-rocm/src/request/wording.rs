//! How the prompts of a request come about: styles, choices that are drawn, parts of the picture.

use super::limits::InvalidRequest;
use super::seed::random_seed;
use crate::lora::Lora;
use crate::prompt::dynamic;
use crate::prompt::lora::take_loras;
use crate::prompt::styles::Styles;
use crate::prompt::wildcards::Wildcards;
use image::GrayImage;
use std::str::FromStr;

/// Most pictures for which prompts are drawn before the request is checked.
const MOST_DRAWN: usize = 1024;

/// What the prompts of an installation can speak of.
#[derive(Debug, Clone, Default)]
pub struct Library {
    /// Named texts.
    pub styles: Styles,
    /// Files of lines.
    pub wildcards: Wildcards,
}

/// Whether `{a|b}` and `__name__` in prompts are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Drawn {
    /// They are text.
    #[default]
    No,
    /// Once for each picture.
    Random,
    /// All combinations, a picture each.
    All,
}

impl Drawn {
    /// The kind of this name: `no`, `random` or `all`.
    ///
    /// # Errors
    /// [`worker::Error::Usage`] that lists the names.
    pub fn from_name(name: &str) -> worker::Result<Self> {
        match name {
            "no" => Ok(Self::No),
            "random" => Ok(Self::Random),
            "all" => Ok(Self::All),
            _ => Err(worker::Error::Usage(format!(
                "{name:?} is no way to draw prompts; there are no, random and all"
            ))),
        }
    }
}

/// What a client said about its prompts.
#[derive(Debug, Clone, Default)]
pub struct Wording {
    /// Names of styles.
    pub styles: Vec<String>,
    /// Whether prompts are drawn.
    pub drawn: Drawn,
    /// Whether `[a:b:10]`, `[a|b]` and `AND` change prompts; they do where nothing is said.
    pub scheduled: Option<bool>,
    /// Parts of the picture with prompts of their own.
    pub regions: Vec<RegionPrompt>,
    /// Whether `<lora:…>` in prompts is taken out and has no effect.
    pub without_loras: bool,
}

/// A part of the picture with a prompt of its own, beside the request's prompt, which is for all of it.
#[derive(Debug, Clone)]
pub struct RegionPrompt {
    /// What to paint there.
    pub prompt: String,
    /// Where it begins, as a share of the picture's width.
    pub left: f64,
    /// Where it begins, as a share of the picture's height.
    pub top: f64,
    /// Share of the picture's width.
    pub width: f64,
    /// Share of the picture's height.
    pub height: f64,
    /// White where the region is, in the place of the rectangle; scaled to the picture.
    pub mask: Option<GrayImage>,
    /// Weight beside the request's prompt, which has 1.
    pub strength: f64,
}

impl Default for RegionPrompt {
    /// The whole picture.
    fn default() -> Self {
        Self {
            prompt: String::new(),
            left: 0.0,
            top: 0.0,
            width: 1.0,
            height: 1.0,
            mask: None,
            strength: 1.0,
        }
    }
}

impl FromStr for RegionPrompt {
    type Err = String;

    /// `LEFT,TOP,WIDTH,HEIGHT[,STRENGTH]:PROMPT`, in shares of the picture.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is not LEFT,TOP,WIDTH,HEIGHT[,STRENGTH]:PROMPT");
        let (place, prompt) = text.split_once(':').ok_or_else(wrong)?;
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|n| n.is_finite());
        let numbers: Option<Vec<f64>> = place.split(',').map(number).collect();
        let (left, top, width, height, strength) = match numbers.ok_or_else(wrong)?[..] {
            [left, top, width, height] => (left, top, width, height, 1.0),
            [left, top, width, height, strength] => (left, top, width, height, strength),
            _ => return Err(wrong()),
        };
        Ok(Self {
            prompt: prompt.to_string(),
            left,
            top,
            width,
            height,
            mask: None,
            strength,
        })
    }
}

/// The prompts of one picture, where each of a request has its own.
#[derive(Debug, Clone, PartialEq)]
pub struct PicturePrompt {
    /// The prompt.
    pub prompt: String,
    /// The negative prompt.
    pub negative_prompt: String,
    /// All LoRAs.
    pub loras: Vec<Lora>,
}

/// How the noise that pictures begin with differs from that of their seeds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NoiseChange {
    /// Seed of the noise that is mixed in; the next pictures have the numbers after it, all with the request's one seed.
    /// Random where nothing is said.
    pub variation_seed: Option<u64>,
    /// How far the noise goes to that of [`Self::variation_seed`], 0 to 1; 0 is off.
    pub variation: f64,
    /// Width and height in pixels of a picture whose noise stands in the middle of this one's.
    pub from_size: Option<(usize, usize)>,
    /// Added to seeds for noise that samplers draw on the way.
    pub step_seed_delta: u64,
    /// Factor of the noise that a picture to start from is covered with; `None` is 1.
    pub multiplier: Option<f64>,
}

/// A request's prompts, drawn.
pub(super) struct Prompts {
    pub(super) first: PicturePrompt,
    /// Of every picture, where they differ.
    pub(super) each: Vec<PicturePrompt>,
    /// The seed, if drawing has needed one.
    pub(super) seed: Option<u64>,
    pub(super) batch: usize,
}

impl Wording {
    /// The prompts of a request of so many pictures; steps are for LoRAs that come and go.
    pub(super) fn prompts(
        &self,
        (prompt, negative): (&str, &str),
        loras: &[Lora],
        (seed, batch, steps): (Option<u64>, usize, usize),
        library: &Library,
    ) -> Result<Prompts, InvalidRequest> {
        let wrong = |e: worker::Error| InvalidRequest::new("prompt", e.to_string());
        let styled = library.styles.apply(&self.styles, prompt, negative);
        let (prompt, negative) =
            styled.map_err(|e| InvalidRequest::new("styles", e.to_string()))?;
        let picture = |prompt: &str, negative: &str| {
            let (prompt, marked) =
                take_loras(prompt, steps).map_err(|e| InvalidRequest::new("prompt", e))?;
            let mut loras = loras.to_vec();
            loras.extend(marked.into_iter().filter(|_| !self.without_loras));
            Ok::<_, InvalidRequest>(PicturePrompt {
                prompt,
                negative_prompt: negative.to_string(),
                loras,
            })
        };
        let is_drawn = dynamic::is_dynamic(&prompt) || dynamic::is_dynamic(&negative);
        if self.drawn == Drawn::No || !is_drawn {
            return Ok(Prompts {
                first: picture(&prompt, &negative)?,
                each: Vec::new(),
                seed,
                batch,
            });
        }
        let seed = seed.unwrap_or_else(random_seed);
        let wildcards = &library.wildcards;
        let mut each = Vec::new();
        let count = match self.drawn {
            Drawn::All => {
                let all = dynamic::all(&prompt, MOST_DRAWN, wildcards).map_err(wrong)?;
                for prompt in &all {
                    let at = seed.wrapping_add(each.len() as u64);
                    let negative = dynamic::draw(&negative, at, wildcards).map_err(wrong)?;
                    each.push(picture(prompt, &negative)?);
                }
                all.len()
            }
            _ => {
                for i in 0..batch.min(MOST_DRAWN) as u64 {
                    // A picture's prompt is a function of its own seed.
                    let at = seed.wrapping_add(i);
                    let draw = |text: &str| dynamic::draw(text, at, wildcards).map_err(wrong);
                    each.push(picture(&draw(&prompt)?, &draw(&negative)?)?);
                }
                batch
            }
        };
        let Some(first) = each.first().cloned() else {
            return Err(InvalidRequest::new(
                "batch",
                "there are no pictures to draw prompts for",
            ));
        };
        if each.iter().all(|one| *one == first) {
            each.clear();
        }
        Ok(Prompts {
            first,
            each,
            seed: Some(seed),
            batch: count,
        })
    }
}
