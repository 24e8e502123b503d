//! Families of transformers. Each has a file here, which says everything that the pipeline needs to know of it, and a
//! row in [`FAMILIES`]; the network itself is in `models::transformer`. To add one:
//!
//! 1. Write the network and its configuration, with a `check` that refuses by name what is not implemented.
//! 2. Implement [`TransformerFamily`] for the configuration: text encoders, defaults, guidance, how the network is
//!    built. What most families share has a default.
//! 3. Implement [`Network`] for the network: [`Network::prepare`] is asked once a picture and gives the function that
//!    is asked in every step. Latents have whatever shape [`TransformerFamily::latents`] says; videos' have five
//!    dimensions with the batch.
//! 4. Write a [`Row`]: class names in folders, marks of single files, their names under diffusers'. Add it to
//!    [`FAMILIES`], before rows whose marks its files have, too; and a variant to [`Family`].

mod chroma;
mod flux;
mod flux2;
mod hidream;
mod ltx;
mod lumina2;
mod qwen_image;
mod sana;
mod sd3;
mod wan;
mod z_image;

use super::denoiser::block_controls::BlockControl;
use super::denoiser::run::Ends;
use super::denoiser::Part;
use super::load::{TextModels, TextSource};
use crate::info::{Family, Takes};
use crate::models::time::Level;
use crate::models::VarBuilder;
use crate::request::ImageRequest;
use crate::sampling::guidance::Length;
use crate::sampling::NoiseSchedule;
use crate::weights::folder::Folder;
use crate::weights::Weights;
use candle_core::{Result as CandleResult, Tensor};
use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::sync::Arc;
use worker::Result;

/// All families, each before those whose marks its files have, too.
pub const FAMILIES: &[Row] = &[
    chroma::ROW,
    flux2::ROW,
    flux::ROW,
    sd3::ROW,
    qwen_image::ROW,
    lumina2::ROW,
    sana::ROW,
    ltx::ROW,
    wan::ROW,
    hidream::ROW,
    z_image::ROW,
];

/// How a family's models are told and opened.
pub struct Row {
    /// Name for messages.
    pub label: &'static str,
    /// `_class_name` of transformers in folders.
    pub classes: &'static [&'static str],
    /// Parts of tensors' names that its single files have, the originals' or diffusers'.
    pub marks: &'static [&'static str],
    /// Reads and checks a folder's configuration: `transformer/config.json`, and what else tells variants apart.
    pub of_folder: fn(&Folder) -> Result<Box<dyn TransformerFamily>>,
    /// What the tensors of a single file, under diffusers' names, tell.
    pub of_tensors: fn(&Weights) -> std::result::Result<Box<dyn TransformerFamily>, String>,
    /// A single file's tensors under diffusers' names, which it may have already.
    pub renamed: fn(&Weights) -> Weights,
}

impl Row {
    /// The family of a folder's transformer.
    pub fn of_class(class: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|row| row.classes.contains(&class))
    }

    /// The family of a file, and its transformer under diffusers' names; other parts that the file has are left out.
    pub fn take(weights: &Weights) -> Option<(&'static Self, Weights)> {
        let below = weights.under("model.diffusion_model.");
        let weights = match below.is_empty() {
            true => weights.clone(),
            false => below,
        };
        let has = |mark: &&str| weights.names().any(|name| name.contains(mark));
        let row = FAMILIES.iter().find(|row| row.marks.iter().any(has))?;
        Some((row, (row.renamed)(&weights)))
    }

    /// All families' names, for messages.
    pub fn labels() -> String {
        let labels: Vec<&str> = FAMILIES.iter().map(|row| row.label).collect();
        labels.join(", ")
    }
}

/// How the pictures that a video starts and ends with come into the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Not at all.
    Nothing,
    /// As channels behind the latents: which frames are given, and the latents of a video of them, grey where there is
    /// none.
    Channels,
    /// As the first frame's latent, which is there from the beginning.
    FirstLatent,
    /// As latents that are there from the beginning, the first frame's and those of others.
    Latents,
}

/// What a family of videos makes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VideoTraits {
    /// Frames of requests that do not say how many.
    pub frames: usize,
    /// Frames a second of requests that do not say how many.
    pub fps: usize,
    /// How pictures to start from come in.
    pub start: Start,
    /// A picture as the first frame.
    pub first: Takes,
    /// A picture as the last frame.
    pub last: Takes,
    /// Whether CLIP looks at these pictures, too.
    pub views: bool,
    /// How much noise frames that are there from the beginning have, unless a request says otherwise, where they have
    /// some.
    pub frame_noise: Option<f64>,
}

/// A model of a family: its transformer's configuration, and what follows from it.
pub trait TransformerFamily: Debug + Send + Sync {
    /// The row.
    fn row(&self) -> &'static Row;

    /// The family of models.
    fn family(&self) -> Family;

    /// Takes over what a transformer that replaces the model's own tells of itself, under diffusers' names.
    fn adopt(&mut self, _weights: &Weights) {}

    /// Channels of a head, in the shares that turn with each coordinate where they do: single files of ControlNets do not
    /// tell theirs. None where there are no ControlNets.
    fn head_shares(&self) -> &[usize] {
        &[]
    }

    /// Opens the text encoders, and says how they are read.
    ///
    /// # Errors
    /// If files are missing or damaged.
    fn text(&self, source: &TextSource) -> Result<TextModels>;

    /// Steps and guidance of requests that have none; `name` is the model's.
    fn defaults(&self, name: &str) -> (usize, f64);

    /// Width and height of requests that have none, for a codec of so many pixels a latent.
    fn size(&self, factor: usize) -> (usize, usize) {
        (128 * factor, 128 * factor)
    }

    /// What videos it makes; its latents then have frames in front of height and width.
    fn video(&self) -> Option<VideoTraits> {
        None
    }

    /// The time step below which steps are a second network's, `transformer_2` of folders.
    fn boundary(&self) -> Option<f64> {
        None
    }

    /// `scheduler_config.json` of single files, which have none.
    fn scheduler(&self) -> &'static str;

    /// Changes to the schedule that the family's pipeline makes.
    fn schedule(&self, schedule: NoiseSchedule) -> NoiseSchedule {
        schedule
    }

    /// Latents of a patch, each way: pictures' sides are multiples of it.
    fn patch(&self) -> usize {
        2
    }

    /// Dimensions of a request's latents without the batch, for a codec of so many channels and pixels a latent.
    fn latents(&self, request: &ImageRequest, channels: usize, factor: usize) -> Vec<usize> {
        vec![channels, request.height / factor, request.width / factor]
    }

    /// The picture's tokens, by which schedules are shifted, of latents of these dimensions.
    fn image_tokens(&self, latents: &[usize]) -> usize {
        latents[1..].iter().product::<usize>() / self.patch().pow(2)
    }

    /// Whether guidance usually is a second evaluation.
    fn evaluates_twice(&self) -> bool {
        true
    }

    /// How strongly the prompt's evaluation moves away from the negative prompt's; up to 1 there is only the prompt's.
    fn guidance_scale(&self, request: &ImageRequest) -> f64 {
        request.guidance
    }

    /// Whether brackets in prompts are weights, as web UIs have it, unless a request says otherwise; diffusers' pipelines
    /// take them as text.
    fn prompt_weights(&self) -> bool {
        false
    }

    /// How many pictures to look at a request must and may have.
    fn references(&self) -> RangeInclusive<usize> {
        0..=0
    }

    /// Width and height at which such a picture of this width and height is looked at; a latent has `factor` pixels each
    /// way.
    fn reference_size(
        &self,
        _picture: (usize, usize),
        request: &ImageRequest,
        _factor: usize,
    ) -> (usize, usize) {
        (request.width, request.height)
    }

    /// Whether what makes such a picture no whole number of patches is cut off on all sides, instead of scaling it.
    fn cuts_references(&self) -> bool {
        false
    }

    /// Whether the network sees the mask and what it leaves of the picture.
    fn inpaints(&self) -> bool {
        false
    }

    /// What such a network sees, `(1, channels, height, width)` of latents, of a mask in pixels `(1, 1, height, width)`,
    /// 1 where something new is to come, and the latents of the picture without what is there.
    ///
    /// # Errors
    /// If the device fails.
    fn masked(&self, _mask: &Tensor, _latents: &Tensor) -> CandleResult<Tensor> {
        candle_core::bail!("the model takes no masks")
    }

    /// What keeps its length under guidance.
    fn guidance_length(&self) -> Length {
        Length::Free
    }

    /// Builds the network from tensors under diffusers' names.
    ///
    /// # Errors
    /// If tensors are missing or of other shapes.
    fn build(&self, vb: VarBuilder) -> CandleResult<Arc<dyn Network>>;
}

/// What a picture's evaluations have in common. Tensors are on the network's device, of its type, and have a row for
/// each picture of the evaluation's batch.
pub struct Inputs<'a> {
    /// The request.
    pub request: &'a ImageRequest,
    /// `(rows, tokens, width)`.
    pub text: Tensor,
    /// `(rows, width)`.
    pub pooled: Tensor,
    /// Further texts, as the family composes them.
    pub more: Vec<Tensor>,
    /// Dimensions of the latents without the batch.
    pub latents: &'a [usize],
    /// Latents of the request's pictures to look at, `(1, channels, height, width)` each.
    pub references: Vec<Tensor>,
    /// As [`TransformerFamily::masked`] has it, for each row.
    pub masked: Option<Tensor>,
    /// The pictures that a video starts and ends with, with a first dimension of 1.
    pub ends: Ends,
    /// ControlNets.
    pub controls: Vec<BlockControl>,
}

/// The network's output for latents, of its type, at a noise level in this part of the run. It is recorded, and repeated
/// at other levels, unless it reads the level by other means than [`Level::time`].
pub type Evaluation = Box<dyn Fn(&Tensor, &Level, Part) -> CandleResult<Tensor> + Send>;

/// A network that can be made ready for pictures.
pub trait Network: Send + Sync {
    /// Computes what all steps share. What the evaluations read of the host has to be brought to the device here, but for
    /// [`Level::time`]: else they cannot be recorded, and are enqueued kernel by kernel.
    ///
    /// # Errors
    /// If inputs do not fit the network, or the device fails.
    fn prepare(self: Arc<Self>, inputs: Inputs) -> CandleResult<Evaluation>;

    /// The same network in whose blocks of these names, or in the usual one, the picture's tokens do not see one another.
    ///
    /// # Errors
    /// If it has no such blocks, or that is not implemented for it.
    fn without_attention(&self, _blocks: &[String]) -> CandleResult<Arc<dyn Network>> {
        candle_core::bail!("perturbed attention is not implemented for this model")
    }

    /// The same network without some of its layers.
    ///
    /// # Errors
    /// If it has no such layers, or none of them can be left out.
    fn without_layers(&self, _layers: &[usize]) -> CandleResult<Arc<dyn Network>> {
        candle_core::bail!("this model's layers cannot be left out")
    }
}
