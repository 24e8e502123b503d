//! How a model is loaded, and what a pipeline tells and gives.

use image::RgbImage;
use std::path::PathBuf;
use std::time::Duration;
use worker::graphs::GraphUse;

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
    /// Turn weights in 8-bit floats into those of `precision` when they are loaded.
    pub expand_fp8: bool,
    /// A model that does the last steps of the pictures: a refiner of Stable Diffusion XL, or another model with the same
    /// latents.
    pub refiner: Option<PathBuf>,
    /// The folder of an image encoder that IP-Adapters look through; without it one beside them is looked for.
    pub image_encoder: Option<PathBuf>,
    /// A VAE to use instead of the model's own: file or folder.
    pub vae: Option<PathBuf>,
    /// A transformer to use instead of the model's own: safetensors or GGUF.
    pub transformer: Option<PathBuf>,
    /// The same for the second transformer of models that have one for late steps.
    pub late_transformer: Option<PathBuf>,
    /// A folder with text encoders and tokenizers that a single file lacks.
    pub text_encoders: Option<PathBuf>,
    /// A TAESD decoder for previews: file or folder. Without it previews are a linear guess.
    pub taesd: Option<PathBuf>,
    /// Where the names in [`crate::lora::Lora::name`] are looked for.
    pub lora_dirs: Vec<PathBuf>,
    /// Textual inversions: files, or folders of such files. A file's stem is the word that stands for it.
    pub embeddings: Vec<PathBuf>,
    /// Whether the denoiser's evaluations are recorded and repeated as graphs.
    pub graphs: GraphUse,
}

/// What is being done, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Prompts go through the text encoders.
    Encode,
    /// Steps of the sampler.
    Denoise,
    /// Latents become pixels.
    Decode,
}

/// MicroConditions before the first and after every step. Steps are told as they are enqueued: the device may be behind.
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
    /// Evaluations that were enqueued as graphs.
    pub graphs: usize,
    /// Graphs that were recorded.
    pub recorded: usize,
    /// Kernels, products and convolutions that the steps enqueued, a graph being one; 0 on the CPU.
    pub launches: u64,
}

impl Timings {
    /// Of parts of a request that were made one after the other.
    #[must_use]
    pub fn after(self, other: Self) -> Self {
        Self {
            lora: self.lora + other.lora,
            encode: self.encode + other.encode,
            denoise: self.denoise + other.denoise,
            enqueue: self.enqueue + other.enqueue,
            decode: self.decode + other.decode,
            evaluations: self.evaluations + other.evaluations,
            graphs: self.graphs + other.graphs,
            recorded: self.recorded + other.recorded,
            launches: self.launches + other.launches,
        }
    }

    /// Of parts of a request that were made at the same time: each stage took as long as the longest, work adds up.
    #[must_use]
    pub fn beside(self, other: Self) -> Self {
        Self {
            lora: self.lora.max(other.lora),
            encode: self.encode.max(other.encode),
            denoise: self.denoise.max(other.denoise),
            enqueue: self.enqueue.max(other.enqueue),
            decode: self.decode.max(other.decode),
            evaluations: self.evaluations + other.evaluations,
            graphs: self.graphs + other.graphs,
            recorded: self.recorded + other.recorded,
            launches: self.launches + other.launches,
        }
    }
}

/// The outcome of a request.
#[derive(Debug, Default)]
pub struct Generated {
    /// The pictures; none if cancelled.
    pub images: Vec<RgbImage>,
    /// The videos as files of the format that was asked for, if such were; `images` then has the first frame of each.
    pub videos: Vec<Vec<u8>>,
    /// The seed of each picture.
    pub seeds: Vec<u64>,
    /// Where the time went.
    pub timings: Timings,
    /// The progress function asked to stop.
    pub cancelled: bool,
}
