//! What a denoiser is told of a request, and what it is asked in every step.

use super::replay::Course;
use crate::models::time::Level;
use crate::pipeline::text::Encoded;
use crate::request::{ImageRequest, Perturbation};
use candle_core::{Device, Result as CandleResult, Tensor};

/// What a network sees of the pictures that a video starts and ends with, each with a first dimension of 1.
#[derive(Debug, Clone, Default)]
pub struct Ends {
    /// The first frame's latent, which is there from the beginning: `(1, channels, 1, height, width)`.
    pub first: Option<Tensor>,
    /// Channels behind the latents, `(1, channels, frames, height, width)`.
    pub channels: Option<Tensor>,
    /// What CLIP sees, `(pictures, rows, width)`.
    pub views: Option<Tensor>,
    /// Latents of further frames that are there from the beginning, each with its number in the video.
    pub later: Vec<(usize, Tensor)>,
    /// How much noise the frames that are there have at the beginning.
    pub noise: f64,
}

impl Ends {
    /// The same with each tensor changed.
    ///
    /// # Errors
    /// Those of `change`.
    pub fn each(&self, change: impl Fn(&Tensor) -> CandleResult<Tensor>) -> CandleResult<Self> {
        let changed = |x: &Option<Tensor>| x.as_ref().map(&change).transpose();
        Ok(Self {
            first: changed(&self.first)?,
            channels: changed(&self.channels)?,
            views: changed(&self.views)?,
            later: (self.later.iter())
                .map(|(at, x)| Ok((*at, change(x)?)))
                .collect::<CandleResult<_>>()?,
            noise: self.noise,
        })
    }
}

/// A picture that a ControlNet of a transformer follows.
#[derive(Debug, Clone)]
pub struct Hint {
    /// Its latents as the denoiser has them, `(1, channels, height, width)`.
    pub latents: Tensor,
    /// What their scale has added to them, in which networks were trained that want it left out.
    pub shift: f64,
    /// Where it is hidden: 1 for latents that are shown, 0 for others, `(1, 1, height, width)`.
    pub shown: Option<Tensor>,
    /// Its pixels in -1..1, `(1, 3, height, width)`.
    pub pixels: Tensor,
}

impl Hint {
    /// The same on another device.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn to_device(&self, device: &Device) -> CandleResult<Self> {
        let shown = self.shown.as_ref();
        Ok(Self {
            latents: self.latents.to_device(device)?,
            shift: self.shift,
            shown: shown.map(|x| x.to_device(device)).transpose()?,
            pixels: self.pixels.to_device(device)?,
        })
    }
}

/// What a run needs to know about its request.
pub struct Setting<'a> {
    /// The request.
    pub request: &'a ImageRequest,
    /// The prompt.
    pub positive: &'a Encoded,
    /// The negative prompt.
    pub negative: &'a Encoded,
    /// Several prompts in the place of [`Self::positive`].
    pub composition: Option<&'a Composition>,
    /// Channels that some networks want behind the latents, `(1, channels, height, width)`: mask and masked picture for
    /// inpainting, the picture for instructions, depths.
    pub channels: Option<&'a Tensor>,
    /// Latents of the request's pictures to look at, `(1, channels, height, width)` each.
    pub references: &'a [Tensor],
    /// The pictures that a video starts and ends with.
    pub ends: &'a Ends,
    /// How the network is made worse, for guidance away from that.
    pub perturbation: Option<&'a Perturbation>,
    /// The pictures that ControlNets of transformers follow.
    pub hints: &'a [Hint],
}

/// Where a run is.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Steps done.
    pub step: usize,
    /// Steps in all.
    pub steps: usize,
}

impl Part {
    /// Whether the whole of the present step lies between two shares of the run, 0 to 1, as diffusers counts: a step
    /// that begins before the first or ends after the second does not.
    pub fn lies_within(self, (start, end): (f64, f64)) -> bool {
        let share = |step: usize| step as f64 / self.steps as f64;
        share(self.step) >= start && share(self.step + 1) <= end
    }
}

impl Setting<'_> {
    /// Whether both prompts fit into one batch: texts of several lengths do not.
    pub fn fits_one_batch(&self) -> bool {
        self.positive.text.dims() == self.negative.text.dims()
    }
}

/// Several prompts whose predictions are added.
#[derive(Debug, Clone)]
pub struct Composition {
    /// Prompts, each with its share of the sum: `(1, 1, height, width)`, or 1 for both.
    pub parts: Vec<(Encoded, Tensor)>,
    /// The negative prompt's share, if it has one.
    pub negative: Option<Tensor>,
}

impl Composition {
    /// The same on another device.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn to_device(&self, device: &Device) -> CandleResult<Self> {
        let parts = self.parts.iter();
        Ok(Self {
            parts: parts
                .map(|(text, share)| Ok((text.to_device(device)?, share.to_device(device)?)))
                .collect::<CandleResult<_>>()?,
            negative: (self.negative.as_ref())
                .map(|share| share.to_device(device))
                .transpose()?,
        })
    }
}

/// What a request's prompts are for its networks, on the networks' device.
#[derive(Debug, Clone)]
pub struct Conditions {
    /// The prompt.
    pub positive: Encoded,
    /// The negative prompt.
    pub negative: Encoded,
    /// As [`Setting::composition`].
    pub composition: Option<Composition>,
    /// As [`Setting::channels`].
    pub channels: Option<Tensor>,
    /// As [`Setting::references`].
    pub references: Vec<Tensor>,
    /// As [`Setting::ends`].
    pub ends: Ends,
    /// As [`Setting::hints`].
    pub hints: Vec<Hint>,
}

impl Conditions {
    /// The same on another device.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn to_device(&self, device: &Device) -> CandleResult<Self> {
        let channels = self.channels.as_ref();
        Ok(Self {
            positive: self.positive.to_device(device)?,
            negative: self.negative.to_device(device)?,
            composition: (self.composition.as_ref())
                .map(|several| several.to_device(device))
                .transpose()?,
            channels: channels.map(|x| x.to_device(device)).transpose()?,
            references: (self.references.iter())
                .map(|x| x.to_device(device))
                .collect::<CandleResult<_>>()?,
            ends: self.ends.each(|x| x.to_device(device))?,
            hints: (self.hints.iter())
                .map(|hint| hint.to_device(device))
                .collect::<CandleResult<_>>()?,
        })
    }

    /// What a run of this request needs to know.
    pub fn setting<'a>(&'a self, request: &'a ImageRequest) -> Setting<'a> {
        Setting {
            request,
            positive: &self.positive,
            negative: &self.negative,
            composition: self.composition.as_ref(),
            channels: self.channels.as_ref(),
            references: &self.references,
            ends: &self.ends,
            perturbation: None,
            hints: &self.hints,
        }
    }
}

/// The prompts that a network is asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prompts {
    /// The prompt alone.
    Positive,
    /// The negative prompt alone.
    Negative,
    /// In one batch, the negative prompt's pictures first.
    Both,
}

impl Prompts {
    /// Each with what it is of a setting, in the order of the batch.
    pub fn of<'a>(self, setting: &Setting<'a>) -> Vec<&'a Encoded> {
        match self {
            Self::Positive => vec![setting.positive],
            Self::Negative => vec![setting.negative],
            Self::Both => vec![setting.negative, setting.positive],
        }
    }
}

/// A network that is ready to be asked about latents under some prompts.
pub trait Evaluate: Send {
    /// The network's output, f32, for latents `x`, f32 `(batch, channels, height, width)` on its device, at a noise
    /// level in this part of the run; for [`Prompts::Both`] of twice as many pictures.
    fn evaluate(&self, x: &Tensor, level: &Level, part: Part) -> CandleResult<Tensor>;

    /// Numbers that are equal where evaluations of latents of the same dimensions enqueue the same launches in this part of
    /// the run, or why they are not to be recorded.
    fn course(&self, part: Part) -> Course;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_run_are_whole_steps() {
        let active = |steps, share| -> Vec<usize> {
            let part = |step| Part { step, steps };
            (0..steps)
                .filter(|step| part(*step).lies_within(share))
                .collect()
        };
        assert_eq!(active(4, (0.0, 1.0)), [0, 1, 2, 3]);
        assert_eq!(active(4, (0.0, 0.5)), [0, 1]);
        assert_eq!(active(4, (0.0, 0.3)), [0]);
        assert_eq!(active(4, (0.3, 1.0)), [2, 3]);
        assert_eq!(active(10, (0.3, 0.7)), [3, 4, 5, 6]);
        assert_eq!(active(3, (0.0, 0.2)), [0usize; 0]);
    }
}
