//! What a pipeline is asked for and what it gives.

use crate::rng::RngKind;
use image::{GrayImage, RgbImage};
use std::path::PathBuf;
use std::time::Duration;

/// Arithmetic of the denoiser and the text encoders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// On a GPU bf16 where the weights are, else f16; on the CPU f32.
    #[default]
    Auto,
    /// 32 bits.
    F32,
    /// 16 bits, IEEE half.
    F16,
    /// 16 bits, bfloat16.
    Bf16,
}

/// A choice that may be left to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Switch {
    /// As the size of the picture suggests.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

/// How a model is loaded and run.
#[derive(Debug, Clone, Default)]
pub struct PipelineOptions {
    /// Arithmetic of denoiser and text encoders.
    pub precision: Precision,
    /// Decode and encode pictures in overlapping tiles.
    pub vae_tiling: Switch,
    /// Keep weights in host memory and bring each part to the device only while it runs.
    pub offload: bool,
    /// A VAE to use instead of the model's own: file or folder.
    pub vae: Option<PathBuf>,
    /// A transformer to use instead of the model's own: safetensors or GGUF.
    pub transformer: Option<PathBuf>,
    /// A folder with text encoders and tokenizers that a single file lacks.
    pub text_encoders: Option<PathBuf>,
    /// A TAESD decoder for previews: file or folder. Without it previews are a linear guess.
    pub taesd: Option<PathBuf>,
    /// Where the names in [`Lora::name`] are looked for.
    pub lora_dirs: Vec<PathBuf>,
    /// Textual inversions: files, or folders of such files. A file's stem is the word that stands for it.
    pub embeddings: Vec<PathBuf>,
}

/// A picture to start from.
#[derive(Debug, Clone)]
pub struct Init {
    /// The picture; it is scaled to the size of the request.
    pub image: RgbImage,
    /// How much of the way is walked again: 0 keeps the picture, 1 forgets it.
    pub strength: f32,
    /// What to paint anew: white is painted, black is kept. Scaled like the picture.
    pub mask: Option<GrayImage>,
    /// Standard deviation in pixels by which the mask is softened.
    pub mask_blur: f32,
    /// Paint what is black in the mask instead.
    pub mask_invert: bool,
}

/// A low-rank adaptation to be merged for this request.
#[derive(Debug, Clone, PartialEq)]
pub struct Lora {
    /// A path to a safetensors file, or a name (without `.safetensors`) in [`PipelineOptions::lora_dirs`].
    pub name: String,
    /// Strength on the denoiser and the text encoders; 1 is as trained.
    pub strength: f32,
}

/// A picture that a ControlNet follows.
#[derive(Debug, Clone)]
pub struct Control {
    /// The ControlNet: safetensors file or diffusers folder.
    pub model: PathBuf,
    /// The conditioning picture (edges, depth, pose, …) as the ControlNet wants it.
    pub image: RgbImage,
    /// Weight of its residuals.
    pub strength: f32,
    /// Part of the steps, 0 to 1, at which it starts to act.
    pub start: f32,
    /// Part of the steps, 0 to 1, at which it ceases to act.
    pub end: f32,
}

/// One order: `batch` pictures of one prompt.
#[derive(Debug, Clone)]
pub struct ImageRequest {
    /// What to paint; `(words:1.2)` weights, `BREAK` starts a new chunk.
    pub prompt: String,
    /// What to keep away from; needs a guidance above 1.
    pub negative_prompt: String,
    /// Pixels; a multiple of 8.
    pub width: usize,
    /// Pixels; a multiple of 8.
    pub height: usize,
    /// Denoising steps.
    pub steps: usize,
    /// Classifier-free guidance; 1 switches it off. For guidance-distilled FLUX the embedded guidance.
    pub guidance: f32,
    /// Part, 0 to 1, of the guided prediction that is scaled back to the spread of the unguided one; 0 is off.
    pub guidance_rescale: f32,
    /// A name of [`crate::sampling::Sampler`].
    pub sampler: String,
    /// A name of [`crate::sampling::Schedule`].
    pub schedule: String,
    /// Seed of the first picture; the next ones have the numbers after it.
    pub seed: u64,
    /// Whose random numbers.
    pub rng: RngKind,
    /// Number of pictures.
    pub batch: usize,
    /// Layers of the CLIP text encoder left out at its end, as web UIs count: 1 leaves none out, 0 is the model's own choice.
    pub clip_skip: usize,
    /// Noise added again in each step, 0 to 1, by samplers that have the choice; `None` is the sampler's own.
    pub eta: Option<f32>,
    /// Start from a picture.
    pub init: Option<Init>,
    /// LoRAs of this request only.
    pub loras: Vec<Lora>,
    /// ControlNets of this request.
    pub controls: Vec<Control>,
    /// Give a preview with every n-th step; 0 never does. Each preview waits for the device.
    pub preview_every: usize,
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Prompts go through the text encoders.
    Encode,
    /// Steps of the sampler.
    Denoise,
    /// Latents become pixels.
    Decode,
}

/// Told before the first and after every step. Steps are told as they are enqueued: the device may be behind.
#[derive(Debug)]
pub struct Progress {
    /// What is being done.
    pub stage: Stage,
    /// Steps done.
    pub step: usize,
    /// Steps in all.
    pub total: usize,
    /// What the first picture looks like so far.
    pub preview: Option<RgbImage>,
}

/// Where the time went.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timings {
    /// LoRAs merged and undone.
    pub lora: Duration,
    /// Text encoding; nearly nothing when cached.
    pub encode: Duration,
    /// All steps, the device's work included.
    pub denoise: Duration,
    /// Host time spent to enqueue the steps.
    pub enqueue: Duration,
    /// Latents to pixels.
    pub decode: Duration,
    /// Evaluations of the denoiser.
    pub evaluations: usize,
    /// Kernels, products and convolutions that the steps enqueued; 0 on the CPU.
    pub launches: u64,
}

/// The outcome of a request.
#[derive(Debug, Default)]
pub struct Generated {
    /// The pictures; none if cancelled.
    pub images: Vec<RgbImage>,
    /// The seed of each picture.
    pub seeds: Vec<u64>,
    /// Where the time went.
    pub timings: Timings,
    /// The progress function asked to stop.
    pub cancelled: bool,
}

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
    /// Z-Image.
    ZImage,
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
    pub guidance: f32,
    /// Sampler.
    pub sampler: String,
    /// Schedule.
    pub schedule: String,
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
    /// Arithmetic of the denoiser: `f32`, `f16`, `bf16`, or the GGUF type.
    pub precision: String,
    /// Width and height must be multiples of this.
    pub size_multiple: usize,
    /// Settings that suit it.
    pub defaults: Defaults,
}
