//! The request itself.

use super::highres::Highres;
use super::ip_adapter::IpAdapter;
use super::tuning::Tuning;
use super::wording::{NoiseChange, PicturePrompt, RegionPrompt};
use crate::editing::Editing;
use crate::faces::RestoreFaces;
use crate::lora::Lora;
use crate::rng::RngKind;
use crate::sampling::{Sampler, Schedule};
use crate::video::VideoFormat;
use image::{GrayImage, RgbImage};
use std::path::PathBuf;

/// A picture to start from.
#[derive(Debug, Clone)]
pub struct Init {
    /// The picture; it is scaled to the size of the request.
    pub image: RgbImage,
    /// How much of the way is walked again: 0 keeps the picture, 1 forgets it.
    pub strength: f64,
    /// What to paint anew: white is painted, black is kept. Scaled like the picture.
    pub mask: Option<GrayImage>,
    /// Which latents are painted, where that is another place than the pixels of [`Self::mask`]; it is neither softened
    /// nor inverted, nor cut with the picture.
    pub latent_mask: Option<GrayImage>,
    /// Standard deviation in pixels by which the mask is softened.
    pub mask_blur: f64,
    /// Paint what is black in the mask instead.
    pub mask_invert: bool,
    /// What is done to the picture before and after.
    pub editing: Editing,
}

impl Init {
    /// A picture without a mask.
    pub fn new(image: RgbImage, strength: f64) -> Self {
        Self {
            image,
            strength,
            mask: None,
            latent_mask: None,
            mask_blur: 0.0,
            mask_invert: false,
            editing: Editing::default(),
        }
    }
}

/// Whether the prompt or a ControlNet's picture counts more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ControlMode {
    /// Both.
    #[default]
    Balanced,
    /// The prompt: residuals further out are weaker.
    Prompt,
    /// The picture: besides, guidance does not lead away from it.
    Control,
    /// The picture alone, for requests without a prompt: as the authors and diffusers have it (`guess_mode`).
    Guess,
}

impl ControlMode {
    /// All, with the names by which they are asked for: ours, then the web UI's.
    const NAMES: [(Self, [&'static str; 2]); 4] = [
        (Self::Balanced, ["balanced", "Balanced"]),
        (Self::Prompt, ["prompt", "My prompt is more important"]),
        (Self::Control, ["control", "ControlNet is more important"]),
        (Self::Guess, ["guess", "guess_mode"]),
    ];

    /// The mode of this name.
    ///
    /// # Errors
    /// Lists the names.
    pub fn from_name(name: &str) -> Result<Self, String> {
        let found = Self::NAMES
            .iter()
            .find(|(_, names)| names.iter().any(|own| own.eq_ignore_ascii_case(name)));
        found.map(|(mode, _)| *mode).ok_or_else(|| {
            let names: Vec<_> = Self::NAMES.iter().map(|(_, names)| names[0]).collect();
            format!("there is no mode {name:?}; there are {}", names.join(", "))
        })
    }

    /// The names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::NAMES.iter().map(|(_, names)| names[0])
    }

    /// Its name.
    pub fn label(self) -> &'static str {
        let found = Self::NAMES.iter().find(|(mode, _)| *mode == self);
        found.map_or("", |(_, names)| names[0])
    }
}

/// What is hidden of the picture that a ControlNet follows: those that paint what is missing were trained so.
#[derive(Debug, Clone, Default)]
pub enum Hidden {
    /// Nothing.
    #[default]
    Nothing,
    /// What the request's mask has to be painted.
    Masked,
    /// What is white here; scaled like the picture.
    White(GrayImage),
}

/// A picture that a ControlNet or T2I-Adapter follows.
#[derive(Debug, Clone)]
pub struct Control {
    /// The network: safetensors file or diffusers folder.
    pub model: PathBuf,
    /// The conditioning picture (edges, depth, pose, …) as the ControlNet wants it.
    pub image: RgbImage,
    /// Weight of its residuals.
    pub strength: f64,
    /// Whether prompt or picture counts more.
    pub mode: ControlMode,
    /// What the picture is (`depth`, `canny`, …), for unions of ControlNets.
    pub kind: Option<String>,
    /// Share of the steps, 0 to 1, at which it starts to act.
    pub start: f64,
    /// Share of the steps, 0 to 1, at which it ceases to act.
    pub end: f64,
    /// What is hidden of the picture.
    pub hidden: Hidden,
}

impl Control {
    /// A network at full strength in all steps.
    pub fn new(model: PathBuf, image: RgbImage) -> Self {
        Self {
            model,
            image,
            strength: 1.0,
            mode: ControlMode::Balanced,
            kind: None,
            start: 0.0,
            end: 1.0,
            hidden: Hidden::Nothing,
        }
    }
}

/// What Stable Diffusion XL is told of a picture besides the prompt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MicroConditions {
    /// Width and height that the picture had before it was scaled; `None` is the request's.
    pub original_size: Option<(usize, usize)>,
    /// Pixels cut off at the left and at the top.
    pub crop: (usize, usize),
    /// Width and height that it was scaled to; `None` is the request's. A refiner is not told of it.
    pub target_size: Option<(usize, usize)>,
    /// How beautiful it is, 0 to 10: of refiners only.
    pub aesthetic_score: f64,
    /// The same for the negative prompt.
    pub negative_aesthetic_score: f64,
}

impl Default for MicroConditions {
    /// A picture of the request's size, uncut, with diffusers' scores.
    fn default() -> Self {
        Self {
            original_size: None,
            crop: (0, 0),
            target_size: None,
            aesthetic_score: 6.0,
            negative_aesthetic_score: 2.5,
        }
    }
}

/// What a video is to be.
#[derive(Debug, Clone)]
pub struct VideoRequest {
    /// Frames; 1 is a picture.
    pub frames: usize,
    /// Frames a second.
    pub fps: usize,
    /// The first frame; it is scaled to the size of the request.
    pub first: Option<RgbImage>,
    /// The last frame, for models that go from one picture to another.
    pub last: Option<RgbImage>,
    /// Pictures that are frames in between, each with its number; they are scaled to the size of the request.
    pub key_frames: Vec<(usize, RgbImage)>,
    /// How much noise frames that are given have at the beginning, 0 to 1, where they have some; `None` is the model's.
    pub frame_noise: Option<f64>,
    /// Guidance of the late steps, where another network makes them; `None` is the request's.
    pub late_guidance: Option<f64>,
    /// The time, 0 to 1, that a decoder which takes out the last noise is told; `None` is
    /// [`DECODE_TIMESTEP`](crate::models::codec::DECODE_TIMESTEP).
    pub decode_timestep: Option<f64>,
    /// The share of noise, 0 to 1, that is mixed into its latents; `None` is
    /// [`DECODE_NOISE`](crate::models::codec::DECODE_NOISE).
    pub decode_noise: Option<f64>,
    /// How it is written.
    pub format: VideoFormat,
}

/// One request: `batch` pictures of one prompt.
#[derive(Debug, Clone)]
pub struct ImageRequest {
    /// What to paint; `(words:1.2)` weights, `BREAK` starts a new chunk.
    pub prompt: String,
    /// Parts of the picture with prompts of their own.
    pub regions: Vec<RegionPrompt>,
    /// Whether `[a:b:10]`, `[a|b]` and `AND` change prompts, as web UIs have them.
    pub scheduled_prompts: bool,
    /// Prompts of each picture, where they differ; the first one's are those of the request.
    pub each: Vec<PicturePrompt>,
    /// Whether brackets in prompts are weights; if not, they are text; `None` is the model's own way.
    pub prompt_weights: Option<bool>,
    /// What to keep away from; needs a guidance above 1.
    pub negative_prompt: String,
    /// Pixels; a multiple of 8.
    pub width: usize,
    /// Pixels; a multiple of 8.
    pub height: usize,
    /// Denoising steps.
    pub steps: usize,
    /// Classifier-free guidance; 1 switches it off. For guidance-distilled FLUX the embedded guidance.
    pub guidance: f64,
    /// Classifier-free guidance of models that have [`Self::guidance`] as a condition of the network; 1 switches it off.
    pub true_guidance: f64,
    /// Share, 0 to 1, of the guided prediction that is scaled back to the spread of the unguided one; 0 is off.
    pub guidance_rescale: f64,
    /// How a step goes from one noise level to the next.
    pub sampler: Sampler,
    /// Which noise levels are visited; `None` is the sampler's own choice.
    pub schedule: Option<Schedule>,
    /// Seed of the first picture; the next ones have the numbers after it.
    pub seed: u64,
    /// Whose random numbers.
    pub rng: RngKind,
    /// How the noise differs from the seeds'.
    pub noise: NoiseChange,
    /// Number of pictures.
    pub batch: usize,
    /// Layers of the CLIP text encoder left out at its end, as web UIs count: 1 leaves none out, 0 is the model's own
    /// choice.
    pub clip_skip: usize,
    /// Noise added again in each step, 0 to 1, by samplers that have the choice; `None` is the sampler's own.
    pub eta: Option<f64>,
    /// Finer settings of sampling.
    pub tuning: Tuning,
    /// Start from a picture.
    pub init: Option<Init>,
    /// A second pass over a larger picture.
    pub highres: Option<Highres>,
    /// Faces of the pictures restored.
    pub restore_faces: Option<RestoreFaces>,
    /// Pictures to look at, in the order in which the prompt speaks of them, for models that take such.
    pub references: Vec<RgbImage>,
    /// Look at these pictures in their own size, cut down to what the model can take, instead of the model's choice.
    pub keep_reference_size: bool,
    /// How strongly a model for instructions keeps to the picture; `None` is 1.5.
    pub image_guidance: Option<f64>,
    /// Depths for a model that wants them: white is near.
    pub depth: Option<RgbImage>,
    /// What Stable Diffusion XL is told besides.
    pub micro: MicroConditions,
    /// Share of the steps, 0 to 1, at which the refiner takes over; `None` is 0.8 where there is one.
    pub refiner_start: Option<f64>,
    /// A video instead of a picture.
    pub video: Option<VideoRequest>,
    /// LoRAs of this request only.
    pub loras: Vec<Lora>,
    /// ControlNets of this request.
    pub controls: Vec<Control>,
    /// IP-Adapters of this request.
    pub ip_adapters: Vec<IpAdapter>,
    /// Give a preview with every n-th step; 0 never does. Each preview waits for the device.
    pub preview_every: usize,
}

impl Default for ImageRequest {
    /// A picture of nothing, 512 x 512, with what changes pictures switched off.
    fn default() -> Self {
        Self {
            prompt: String::new(),
            regions: Vec::new(),
            scheduled_prompts: true,
            each: Vec::new(),
            prompt_weights: None,
            negative_prompt: String::new(),
            width: 512,
            height: 512,
            steps: 20,
            guidance: 1.0,
            true_guidance: 1.0,
            guidance_rescale: 0.0,
            sampler: Sampler::Euler,
            schedule: None,
            seed: 0,
            rng: RngKind::default(),
            noise: NoiseChange::default(),
            batch: 1,
            clip_skip: 0,
            eta: None,
            tuning: Tuning::default(),
            init: None,
            highres: None,
            restore_faces: None,
            references: Vec::new(),
            keep_reference_size: false,
            image_guidance: None,
            depth: None,
            micro: MicroConditions::default(),
            refiner_start: None,
            video: None,
            loras: Vec::new(),
            controls: Vec::new(),
            ip_adapters: Vec::new(),
            preview_every: 0,
        }
    }
}

impl ImageRequest {
    /// Frames of each of its videos; pictures have one.
    pub fn frames(&self) -> usize {
        self.video.as_ref().map_or(1, |video| video.frames)
    }

    /// The seed of a picture, and that of its variation; pictures of a variation share their seed.
    pub fn seeds_of(&self, picture: usize) -> (u64, Option<u64>) {
        let step = picture as u64;
        match self.noise.variation != 0.0 {
            true => {
                let variation = self.noise.variation_seed.unwrap_or(0);
                (self.seed, Some(variation.wrapping_add(step)))
            }
            false => (self.seed.wrapping_add(step), None),
        }
    }

    /// The request in parts of one prompt each, in their order.
    pub fn of_one_prompt(&self) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut from = 0;
        while from < self.batch {
            let own = self.each.get(from);
            let same = |at: &usize| self.each.get(*at) == own;
            let to = (from..self.batch)
                .find(|at| !same(at))
                .unwrap_or(self.batch);
            let part = self.pictures(from, to - from);
            parts.push(Self {
                each: Vec::new(),
                ..part
            });
            from = to;
        }
        parts
    }

    /// The request for `count` of its pictures, from its `first` on.
    #[must_use]
    pub fn pictures(&self, first: usize, count: usize) -> Self {
        let (seed, variation) = self.seeds_of(first);
        let each: Vec<PicturePrompt> = self.each.iter().skip(first).take(count).cloned().collect();
        let mut part = Self {
            seed,
            batch: count,
            ..self.clone()
        };
        part.noise.variation_seed = variation.or(self.noise.variation_seed);
        if let Some(own) = each.first().cloned() {
            part.prompt = own.prompt;
            part.negative_prompt = own.negative_prompt;
            part.loras = own.loras;
        }
        part.each = each;
        part
    }

    /// The schedule that is followed.
    pub fn schedule(&self) -> Schedule {
        self.schedule
            .unwrap_or_else(|| self.sampler.default_schedule())
    }
}
