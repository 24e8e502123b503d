//! What to make: the arguments that `generate` and `bench` share.

mod parse;
mod parts;

use super::faces::FaceArgs;
use super::png_info::read_picture;
use super::wording::WordingArgs;
use crate::editing::options::USUAL_PADDING;
use crate::editing::{Fill, Fit, Sides, SoftInpainting};
use crate::image_io;
use crate::info::ModelInfo;
use crate::preprocess::Kind;
use crate::recall::{Recalled, Without};
use crate::request::fields::DEFAULT_BATCH;
use crate::request::{
    BlockStrengths, ControlMode, InterfaceDefaults, Limits, MicroConditions, RequestFields, Tuning,
    ValidRequest,
};
use crate::rng::RngKind;
use crate::upscale::Method;
use crate::video::VideoFormat;
use clap::builder::BoolishValueParser;
use clap::Args;
use parse::{parse_crop, parse_key_frame, parse_lora, parse_size, LoraArg};
use parts::picture;
use std::path::PathBuf;
use worker::cli::log::tell;
use worker::{Error, Result};

/// Settings of a request; what is left out is the model's own.
#[derive(Debug, Clone, Args)]
pub struct RequestArgs {
    /// What to keep away from.
    #[arg(long, short, default_value = "", value_name = "TEXT")]
    negative_prompt: String,

    #[command(flatten)]
    wording: WordingArgs,

    /// Whether brackets in prompts are weights (true) or text (false); without it models with a UNet and Stable Diffusion
    /// 3 weight them.
    #[arg(long, value_name = "BOOL")]
    prompt_weights: Option<bool>,

    /// Pixels, a multiple of 8.
    #[arg(long, short = 'W', value_name = "N")]
    width: Option<usize>,

    /// Pixels, a multiple of 8.
    #[arg(long, short = 'H', value_name = "N")]
    height: Option<usize>,

    /// Sampler steps.
    #[arg(long, value_name = "N")]
    steps: Option<usize>,

    /// How strongly the prompt steers; 1 is not at all.
    #[arg(long, visible_alias = "cfg-scale", value_name = "X")]
    guidance: Option<f64>,

    /// Guidance by the negative prompt, for models like FLUX.1 that have --guidance as a condition of the network; 1 is
    /// none, more takes twice the time.
    #[arg(long, visible_alias = "true-cfg-scale", value_name = "X")]
    true_guidance: Option<f64>,

    /// Share of the guided prediction that is scaled back, 0 to 1, against overexposure.
    #[arg(long, default_value_t = 0.0, value_name = "X")]
    guidance_rescale: f64,

    /// How a step is made, as `samplers` of docs/images lists them, such as "Euler a", "DPM++ 2M" or "UniPC"; with or
    /// without a schedule behind it ("DPM++ 2M Karras").
    #[arg(long, value_name = "NAME")]
    sampler: Option<String>,

    /// discrete (the model's own), normal, karras, exponential, polyexponential, sgm_uniform, simple, beta, ddim_uniform,
    /// turbo, align_your_steps, kl_optimal, linear_quadratic or bong_tangent; automatic is the sampler's own.
    #[arg(long, visible_alias = "scheduler", value_name = "NAME")]
    schedule: Option<String>,

    /// Makes pictures repeatable; random if absent. Each further picture of a batch has the next number.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Whose random numbers: philox (web UIs on a GPU) or torch-cpu (diffusers).
    #[arg(long, default_value = "philox", value_parser = RngKind::from_name)]
    rng: RngKind,

    /// Number of pictures.
    #[arg(long, short, default_value_t = DEFAULT_BATCH, value_name = "N")]
    batch: usize,

    /// Which of the text encoder's last layers counts, as web UIs have it: 1 the last, 2 the one before; 0 is the
    /// model's own.
    #[arg(long, default_value_t = 0, value_name = "N")]
    clip_skip: usize,

    /// Fresh noise in each step, 0 to 1, for samplers that have the choice.
    #[arg(long, value_name = "X")]
    eta: Option<f64>,

    #[command(flatten)]
    tuning: Tuning,

    /// Ask for what this picture says that it was made with (web UIs' text, or ComfyUI's graph); other options count more.
    #[arg(long, value_name = "FILE")]
    from_picture: Option<PathBuf>,

    /// Start from this picture.
    #[arg(long, value_name = "FILE")]
    init_image: Option<PathBuf>,

    /// How much of --init-image is changed: 0 nothing, 1 all. Left out, 0.8; 1 for models that follow instructions.
    #[arg(long, value_name = "X")]
    strength: Option<f64>,

    /// Paint only what is white in this picture.
    #[arg(long, requires = "init_image", value_name = "FILE")]
    mask: Option<PathBuf>,

    /// Softens the mask by so many pixels.
    #[arg(long, default_value_t = InterfaceDefaults::OWN.mask_blur, value_name = "X")]
    mask_blur: f64,

    /// Paint what is black in the mask.
    #[arg(long, value_parser = BoolishValueParser::new())]
    mask_invert: bool,

    /// A picture that the prompt speaks of, for models that look at such (FLUX.1 Kontext, FLUX.1 Depth); may be given
    /// several times.
    #[arg(long, value_name = "FILE")]
    reference: Vec<PathBuf>,

    /// Look at --reference in its own size, instead of the one that suits the model.
    #[arg(long, requires = "reference", value_parser = BoolishValueParser::new())]
    keep_reference_size: bool,
    /// How strongly a model that follows instructions (InstructPix2Pix) keeps to --init-image, from 1; 1.5 if absent.
    #[arg(long, requires = "init_image", value_name = "X")]
    image_guidance: Option<f64>,

    /// Depths for a model that follows them: near is white.
    #[arg(long, value_name = "FILE")]
    depth_image: Option<PathBuf>,

    /// Size that Stable Diffusion XL is told the picture had before scaling; the picture's own if absent.
    #[arg(long, value_name = "WxH", value_parser = parse_size)]
    original_size: Option<(usize, usize)>,

    /// Size that Stable Diffusion XL is told the picture was scaled to; the picture's own if absent.
    #[arg(long, value_name = "WxH", value_parser = parse_size)]
    target_size: Option<(usize, usize)>,

    /// Pixels that Stable Diffusion XL is told were cut off at the left and at the top.
    #[arg(long, default_value = "0,0", value_name = "LEFT,TOP", value_parser = parse_crop)]
    crop: (usize, usize),

    /// How beautiful a refiner makes the picture, 0 to 10.
    #[arg(long, default_value_t = MicroConditions::default().aesthetic_score, value_name = "X")]
    aesthetic_score: f64,

    /// The same for the negative prompt.
    #[arg(long, default_value_t = MicroConditions::default().negative_aesthetic_score, value_name = "X")]
    negative_aesthetic_score: f64,

    /// Share of the steps, 0 to 1, at which the refiner (--refiner) takes over; 0.8 if absent, 1 leaves it out.
    #[arg(long, value_name = "X")]
    refiner_start: Option<f64>,

    /// Paint what is transparent in --init-image.
    #[arg(long, requires = "init_image", conflicts_with = "mask", value_parser = BoolishValueParser::new())]
    mask_from_alpha: bool,

    /// What stands in the mask before the first step: original, colors (from around it), noise or nothing.
    #[arg(long, default_value = "original", value_parser = Fill::from_name, value_name = "NAME")]
    mask_fill: Fill,

    /// Paint only the part that the mask needs, in the size of --width and --height, and put it back.
    #[arg(long, value_parser = BoolishValueParser::new())]
    only_masked: bool,

    /// Pixels around the mask that --only-masked cuts out, too.
    #[arg(long, default_value_t = USUAL_PADDING, value_name = "N")]
    mask_padding: usize,

    /// Grey of the mask says when its pixels begin to be painted (differential diffusion).
    #[arg(long, value_parser = BoolishValueParser::new())]
    soft_mask: bool,

    /// Mix the picture and what is painted in every step where the mask is grey, as the web UI's Soft inpainting does; `usual`,
    /// or NAME=NUMBER,…: schedule-bias, preservation-strength, transition-contrast-boost, mask-influence,
    /// difference-threshold, difference-contrast.
    #[arg(long, requires = "init_image", num_args = 0..=1, default_missing_value = "usual", value_name = "SETTINGS")]
    soft_inpainting: Option<SoftInpainting>,

    /// Which latents are painted, where that is another place than the pixels of --mask; it is not softened.
    #[arg(long, requires = "init_image", value_name = "FILE")]
    latent_mask: Option<PathBuf>,

    /// Paint on beyond the sides of --init-image: pixels for all sides, or left=N,right=N,top=N,bottom=N.
    #[arg(long, requires = "init_image", value_name = "SIDES")]
    outpaint: Option<Sides>,

    #[command(flatten)]
    faces: FaceArgs,

    /// A second pass over the picture, so many times as large (highres fix); 2 with any other --hr option.
    #[arg(long, value_name = "X")]
    hr_scale: Option<f64>,

    /// Width of the second pass, in pixels.
    #[arg(long, value_name = "N")]
    hr_width: Option<usize>,

    /// Height of the second pass, in pixels.
    #[arg(long, value_name = "N")]
    hr_height: Option<usize>,

    /// How the picture becomes larger: latent, latent-antialiased, latent-bicubic, latent-bicubic-antialiased,
    /// latent-nearest, latent-nearest-exact, lanczos, bicubic, bilinear, box, nearest, or a network's file.
    #[arg(long, value_parser = Method::of, value_name = "NAME|FILE")]
    hr_upscaler: Option<Method>,

    /// How much of the larger picture is painted anew: 0 nothing, 1 all.
    #[arg(long, value_name = "X")]
    hr_strength: Option<f64>,

    /// Steps of the second pass; left out, as many as the first one has.
    #[arg(long, value_name = "N")]
    hr_steps: Option<usize>,

    /// Sampler of the second pass.
    #[arg(long, value_name = "NAME")]
    hr_sampler: Option<String>,

    /// Schedule of the second pass.
    #[arg(long, value_name = "NAME")]
    hr_schedule: Option<String>,

    /// Guidance of the second pass.
    #[arg(long, value_name = "X")]
    hr_guidance: Option<f64>,

    /// Prompt of the second pass.
    #[arg(long, value_name = "TEXT")]
    hr_prompt: Option<String>,

    /// Negative prompt of the second pass.
    #[arg(long, value_name = "TEXT")]
    hr_negative_prompt: Option<String>,

    /// Seed of the second pass's noise; --seed unless given.
    #[arg(long, value_name = "N")]
    hr_seed: Option<u64>,

    /// How --init-image comes to the size: stretch, crop, fill (bands that repeat its edge) or latent.
    #[arg(long, default_value = "stretch", value_parser = Fit::from_name, value_name = "NAME")]
    resize_mode: Fit,

    /// Frames of a video; 1 makes a picture. For models of videos, as all settings of this block.
    #[arg(long, value_name = "N")]
    frames: Option<usize>,

    /// Frames a second of a video.
    #[arg(long, value_name = "N")]
    fps: Option<usize>,

    /// A picture that a video begins with.
    #[arg(long, value_name = "FILE")]
    first_frame: Option<PathBuf>,

    /// A picture that a video ends with.
    #[arg(long, value_name = "FILE")]
    last_frame: Option<PathBuf>,

    /// A picture that is another frame of a video, counted from 0: 24=FILE; may be given several times (LTX-Video).
    #[arg(long, value_name = "N=FILE", value_parser = parse_key_frame)]
    key_frame: Vec<(usize, PathBuf)>,

    /// How much noise pictures that are frames have at the beginning, 0 to 1 (LTX-Video since 0.9.5).
    #[arg(long, value_name = "X")]
    frame_noise: Option<f64>,

    /// The time, 0 to 1, that a decoder is told which takes out the last noise itself (LTX-Video since 0.9.1).
    #[arg(long, value_name = "X")]
    decode_timestep: Option<f64>,

    /// The share of noise, 0 to 1, that is mixed in for such a decoder.
    #[arg(long, value_name = "X")]
    decode_noise: Option<f64>,

    /// Guidance of the late steps, in models that have a second network for them; --guidance if absent.
    #[arg(long, value_name = "X")]
    late_guidance: Option<f64>,

    /// A LoRA: a file, or a name in --lora-dir, with its strength and settings as in the prompt's
    /// <lora:NAME:STRENGTH:SETTING=VALUE>: te and unet (strengths of text encoders and denoiser), start, stop (steps, or
    /// shares with a point), blocks (IN04=0.5, up_blocks.1=0). May be given several times.
    #[arg(long, value_delimiter = ',', value_parser = parse_lora, value_name = "NAME[=STRENGTH[:SETTING=VALUE…]]")]
    lora: Vec<LoraArg>,

    /// A ControlNet, a union of ControlNets or a T2I-Adapter: file or folder; may be given several times, each with its
    /// own --control-image and, where they differ, its own of the other --control options.
    #[arg(long, requires = "control_image", value_name = "PATH")]
    control_model: Vec<PathBuf>,

    /// What is made of --control-image first, as `preprocess` lists it, which has the settings; none takes it as it is.
    /// Networks of --preprocessor-dir run on the CPU. inpaint hides what --control-mask or --mask has.
    #[arg(long, requires = "control_model", value_name = "NAME", value_parser = Kind::from_name)]
    control_preprocessor: Vec<Kind>,

    /// Folder with networks for --control-preprocessor; may be given several times.
    #[arg(long, value_delimiter = ':', value_name = "DIR")]
    preprocessor_dir: Vec<PathBuf>,

    /// The picture that it follows.
    #[arg(long, requires = "control_model", value_name = "FILE")]
    control_image: Vec<PathBuf>,

    /// What the preprocessor inpaint hides of it: white. Left out, what --mask has.
    #[arg(long, requires = "control_model", value_name = "FILE")]
    control_mask: Vec<PathBuf>,

    /// How strongly it steers, 0 to 2; 1 if absent.
    #[arg(long, requires = "control_model", value_name = "X")]
    control_strength: Vec<f64>,

    /// balanced, prompt or control (which of them counts more), or guess, without a prompt.
    #[arg(long, requires = "control_model", value_name = "MODE", value_parser = ControlMode::from_name)]
    control_mode: Vec<ControlMode>,

    /// What the picture is, for unions: openpose, depth, softedge, canny, normal, segment, tile, repaint, or a number; for
    /// Stability's networks for 3.5: blur, canny, depth.
    #[arg(long, requires = "control_model", value_name = "KIND")]
    control_kind: Vec<String>,

    /// Share of the steps, 0 to 1, at which it starts to act; 0 if absent.
    #[arg(long, requires = "control_model", value_name = "X")]
    control_start: Vec<f64>,

    /// Share of the steps, 0 to 1, at which it ceases to act; 1 if absent.
    #[arg(long, requires = "control_model", value_name = "X")]
    control_end: Vec<f64>,

    /// An IP-Adapter, which makes pictures prompts: a safetensors file; may be given several times, each with its own of
    /// the other --ip options. Its image encoder lies beside it, or is given with --image-encoder.
    #[arg(long, value_name = "FILE")]
    ip_adapter: Vec<PathBuf>,

    /// The picture that it looks at; several with commas between.
    #[arg(long, requires = "ip_adapter", value_name = "FILE[,FILE]")]
    ip_image: Vec<String>,

    /// For FaceID: a safetensors file with embeddings of faces, one a row, as a face recogniser makes them.
    #[arg(
        long,
        requires = "ip_adapter",
        conflicts_with = "ip_image",
        value_name = "FILE"
    )]
    ip_face: Vec<PathBuf>,

    /// How strongly it steers, 0 to 2; 1 if absent.
    #[arg(long, requires = "ip_adapter", value_name = "X")]
    ip_strength: Vec<f64>,

    /// Where in the network: all, style, layout, style+layout, or strengths of blocks in JSON.
    #[arg(long, requires = "ip_adapter", value_name = "BLOCKS")]
    ip_blocks: Vec<BlockStrengths>,

    /// Where in the picture: what is white.
    #[arg(long, requires = "ip_adapter", value_name = "FILE")]
    ip_mask: Vec<PathBuf>,

    /// Share of the steps, 0 to 1, at which it starts to act; 0 if absent.
    #[arg(long, requires = "ip_adapter", value_name = "X")]
    ip_start: Vec<f64>,

    /// Share of the steps, 0 to 1, at which it ceases to act; 1 if absent.
    #[arg(long, requires = "ip_adapter", value_name = "X")]
    ip_end: Vec<f64>,
}

impl RequestArgs {
    /// Asks for so many pictures instead.
    pub(super) fn set_batch(&mut self, batch: usize) {
        self.batch = batch;
    }

    /// The request for this prompt; `format` is that of videos, if it is known.
    ///
    /// # Errors
    /// [`Error::Usage`] for names that do not exist, values out of range and pictures that cannot be read.
    pub(super) fn request(
        &self,
        prompt: &str,
        info: &ModelInfo,
        format: Option<VideoFormat>,
    ) -> Result<ValidRequest> {
        let steps = self.steps.unwrap_or(info.defaults.steps);
        let loras = self.lora.iter().map(|lora| lora.lora(steps));
        let given = |text: &String| !text.is_empty();
        let fields = RequestFields {
            prompt: prompt.to_string(),
            wording: self.wording.wording()?,
            prompt_weights: self.prompt_weights,
            negative_prompt: Some(self.negative_prompt.clone()).filter(given),
            width: self.width,
            height: self.height,
            steps: self.steps,
            guidance: self.guidance,
            true_guidance: self.true_guidance,
            guidance_rescale: Some(self.guidance_rescale).filter(|rescale| *rescale != 0.0),
            sampler: self.sampler.clone(),
            schedule: self.schedule.clone(),
            seed: self.seed,
            rng: Some(self.rng).filter(|rng| *rng != RngKind::default()),
            noise: self.wording.noise(),
            batch: Some(self.batch),
            clip_skip: Some(self.clip_skip).filter(|skip| *skip > 0),
            eta: self.eta,
            tuning: self.tuning.clone(),
            init: self.init()?,
            video: self.video(format)?,
            highres: self.highres(),
            restore_faces: self.faces.wish()?,
            references: (self.reference.iter())
                .map(|path| Ok(image_io::to_rgb(&picture(path)?)))
                .collect::<Result<_>>()?,
            keep_reference_size: self.keep_reference_size,
            image_guidance: self.image_guidance,
            depth: match &self.depth_image {
                Some(path) => Some(image_io::to_rgb(&picture(path)?)),
                None => None,
            },
            micro: MicroConditions {
                original_size: self.original_size,
                crop: self.crop,
                target_size: self.target_size,
                aesthetic_score: self.aesthetic_score,
                negative_aesthetic_score: self.negative_aesthetic_score,
            },
            refiner_start: self.refiner_start,
            loras: loras
                .collect::<std::result::Result<_, _>>()
                .map_err(Error::Usage)?,
            controls: self.controls()?,
            ip_adapters: self.ip_adapters()?,
            preview_every: None,
        };
        let fields = match &self.from_picture {
            None => fields,
            Some(path) => {
                let recalled = Recalled::of(&read_picture(path)?, &Without);
                let recalled =
                    recalled.map_err(|e| Error::Usage(format!("{}: {e}", path.display())))?;
                let recalled = recalled.fitting(info);
                if !recalled.left_out.is_empty() {
                    let left_out = recalled.left_out.join(", ");
                    tell(&format!(
                        "not taken over from {}: {left_out}",
                        path.display()
                    ));
                }
                fields.over(recalled.fields)
            }
        };
        let request = fields.build_with(
            &info.defaults,
            &InterfaceDefaults::OWN,
            &self.wording.library()?,
        )?;
        Ok(request.valid(info, &Limits::LOCAL)?)
    }
}
