//! What is known of a model before it is asked for a picture.

use crate::sampling::{Sampler, Schedule};
use std::ops::RangeInclusive;

/// Families of models, told apart by their configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Stable Diffusion 1.x: UNet with one CLIP encoder.
    Sd1,
    /// Stable Diffusion 2.x.
    Sd2,
    /// Stable Diffusion XL: UNet with two CLIP encoders, sizes and crops as conditions.
    Sdxl,
    /// Stable Diffusion 3 and 3.5.
    Sd3,
    /// FLUX.1.
    Flux,
    /// FLUX.2.
    Flux2,
    /// Chroma.
    Chroma,
    /// Z-Image.
    ZImage,
    /// Qwen-Image and Qwen-Image-Edit.
    QwenImage,
    /// Lumina Image 2.
    Lumina2,
    /// HiDream-I1.
    HiDream,
    /// Wan 2.1 and 2.2.
    Wan,
    /// LTX-Video.
    Ltx,
    /// Sana.
    Sana,
}

/// Whether a model takes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// It has no place for it.
    Never,
    /// With it or without.
    May,
    /// It makes nothing without.
    Must,
}

/// What videos a model makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VideoInfo {
    /// Frames a latent: there are a multiple of it, and one frame more.
    pub time_factor: usize,
    /// Frames of a request that does not say how many.
    pub frames: usize,
    /// Frames a second of a request that does not say how many.
    pub fps: usize,
    /// A picture as the first frame.
    pub first: Takes,
    /// A picture as the last frame, beside the first.
    pub last: Takes,
    /// Whether late steps are another network's, which may have a guidance of its own.
    pub late: bool,
    /// Whether pictures may be any frames.
    pub key_frames: bool,
    /// Whether frames that are given have some noise.
    pub frame_noise: bool,
    /// Whether the decoder takes out the last noise itself.
    pub denoising_decoder: bool,
}

impl Takes {
    /// What requests are told of it.
    pub fn label(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::May => "may",
            Self::Must => "must",
        }
    }
}

impl Family {
    /// Whether the denoiser is a UNet.
    pub fn has_unet(self) -> bool {
        matches!(self, Self::Sd1 | Self::Sd2 | Self::Sdxl)
    }

    /// Whether perturbed-attention guidance is implemented for it.
    pub fn has_attention_guidance(self) -> bool {
        self.has_unet() || matches!(self, Self::Sd3 | Self::Sana)
    }

    /// Whether ControlNets are implemented for it.
    pub fn is_steered(self) -> bool {
        self.has_unet() || matches!(self, Self::Flux | Self::Sd3)
    }

    /// Whether IP-Adapters are implemented for it; FLUX.1's is Redux.
    pub fn takes_ip_adapters(self) -> bool {
        self.has_unet() || self == Self::Flux
    }

    /// Whether there is classifier-free guidance beside the guidance that is a condition of the network.
    pub fn has_true_guidance(self) -> bool {
        matches!(self, Self::Flux)
    }
}

/// What a denoiser is trained for besides pictures from a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Purpose {
    /// Pictures from a prompt, or from a prompt and a picture.
    #[default]
    Pictures,
    /// A picture changed as the prompt instructs: the picture is a condition, the steps begin with noise
    /// (InstructPix2Pix).
    Instructions,
    /// A picture that a map of depths shapes.
    Depth,
    /// The last steps of another model's pictures (Stable Diffusion XL's refiner).
    Refiner,
}

/// Settings that suit a model, used where a request leaves them open.
#[derive(Debug, Clone, PartialEq)]
pub struct Defaults {
    /// Pixels.
    pub width: usize,
    /// Pixels.
    pub height: usize,
    /// Denoising steps.
    pub steps: usize,
    /// Guidance.
    pub guidance: f64,
    /// Sampler.
    pub sampler: Sampler,
    /// Schedule; `None` is the sampler's own.
    pub schedule: Option<Schedule>,
    /// How much of a picture to start from is changed; `None` is the interface's own.
    pub strength: Option<f64>,
    /// The scheduler that the model's configuration names, where it is not implemented: `sampler` is then no
    /// substitute, a request must name one.
    pub unknown_scheduler: Option<String>,
    /// Its videos, if it makes such.
    pub video: Option<VideoInfo>,
}

impl Defaults {
    /// The schedule that is followed.
    pub fn schedule(&self) -> Schedule {
        self.schedule
            .unwrap_or_else(|| self.sampler.default_schedule())
    }
}

/// What a loaded model is.
#[derive(Debug, Clone)]
pub struct ModelInfo {
    /// Name: the last part of the path, without extension.
    pub name: String,
    /// Its family.
    pub family: Family,
    /// Its denoiser takes mask and masked picture as conditions.
    pub inpainting: bool,
    /// Whether brackets in prompts are weights, unless a request says otherwise; if not, they are text.
    pub prompt_weights: bool,
    /// How many pictures to look at a request must and may have.
    pub references: RangeInclusive<usize>,
    /// What it is trained for.
    pub purpose: Purpose,
    /// Whether a refiner was loaded beside it.
    pub refined: bool,
    /// Arithmetic of the denoiser: `f32`, `f16`, `bf16`, or the GGUF type.
    pub precision: String,
    /// Width and height must be multiples of this.
    pub size_multiple: usize,
    /// Settings that suit it.
    pub defaults: Defaults,
}
