//! The fields of `img_gen` and `vid_gen`, and the requests that they are.

use crate::image_io::{self, Format};
use crate::info::{Family, Purpose};
use crate::lora::Lora;
use crate::recall::comfy::recipe::stem;
use crate::request::seed::given_seed;
use crate::request::{
    Control, HighresFields, InitFields, InterfaceDefaults, RequestFields, Tuning, ValidRequest,
    VideoFields, Wording,
};
use crate::server::request::Upload;
use crate::server::App;
use crate::video::VideoFormat;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use worker::http::ApiError;

/// What stable-diffusion.cpp's clients send. What is left out is the model's own.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "SdCppFields")]
#[serde(default, deny_unknown_fields)]
pub(in crate::server) struct Body {
    prompt: String,
    negative_prompt: Option<String>,
    /// Layers of CLIP, 1 leaves none out; below 1 is the model's own.
    clip_skip: Option<i64>,
    width: Option<usize>,
    height: Option<usize>,
    strength: Option<f64>,
    seed: Option<i64>,
    batch_count: Option<usize>,
    auto_resize_ref_image: Option<bool>,
    increase_ref_index: bool,
    control_strength: Option<f64>,
    ip_adapter_strength: Option<f64>,
    /// Whether pictures say what they were made with.
    embed_image_metadata: Option<bool>,
    init_image: Option<String>,
    end_image: Option<String>,
    ref_images: Vec<String>,
    mask_image: Option<String>,
    control_image: Option<String>,
    ip_adapter_image: Option<String>,
    control_frames: Vec<String>,
    sample_params: SampleParams,
    high_noise_sample_params: Option<SampleParams>,
    lora: Vec<LoraBody>,
    hires: Hires,
    /// It changes nothing here: the VAE goes in tiles where memory asks for it.
    #[serde(rename = "vae_tiling_params")]
    _vae_tiling_params: Value,
    cache_mode: String,
    cache_option: String,
    scm_mask: String,
    #[serde(rename = "scm_policy_dynamic")]
    _scm_policy_dynamic: bool,
    qwen_image_layers: Option<i64>,
    video_frames: Option<usize>,
    fps: Option<usize>,
    moe_boundary: Option<f64>,
    vace_strength: Option<f64>,
    pub(super) output_format: Option<String>,
    pub(super) output_compression: Option<i64>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct SampleParams {
    scheduler: Option<String>,
    sample_method: Option<String>,
    /// Below 1 is the model's own.
    sample_steps: Option<i64>,
    eta: Option<f64>,
    shifted_timestep: i64,
    custom_sigmas: Vec<f64>,
    flow_shift: Option<f64>,
    guidance: GuidanceBody,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct GuidanceBody {
    txt_cfg: Option<f64>,
    img_cfg: Option<f64>,
    distilled_guidance: Option<f64>,
    slg: Slg,
}

/// Skip-layer guidance; a scale of 0 is none.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Slg {
    layers: Vec<usize>,
    layer_start: Option<f64>,
    layer_end: Option<f64>,
    scale: f64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LoraBody {
    path: String,
    #[serde(default = "one")]
    multiplier: f64,
    #[serde(default)]
    is_high_noise: bool,
}

fn one() -> f64 {
    1.0
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct Hires {
    enabled: bool,
    upscaler: Option<String>,
    scale: Option<f64>,
    target_width: usize,
    target_height: usize,
    steps: usize,
    denoising_strength: Option<f64>,
    custom_sigmas: Vec<f64>,
    /// It changes nothing here.
    #[serde(rename = "upscale_tile_size")]
    _upscale_tile_size: usize,
}

/// How a job's result is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Written {
    Pictures {
        format: Format,
        quality: u8,
        said: bool,
    },
    Video(VideoFormat),
}

fn refused(field: &str, what: &str) -> ApiError {
    ApiError::field(
        field,
        format!("{field}: {what} is not implemented here; leave it out"),
    )
}

impl Body {
    /// Refuses by name what is not implemented.
    fn check(&self) -> Result<(), ApiError> {
        let asked = [
            ("increase_ref_index", self.increase_ref_index),
            ("ip_adapter_image", self.ip_adapter_image.is_some()),
            ("control_frames", !self.control_frames.is_empty()),
            (
                "moe_boundary",
                self.moe_boundary.is_some_and(|boundary| boundary != 0.875),
            ),
            (
                "qwen_image_layers",
                self.qwen_image_layers.is_some_and(|layers| layers > 0),
            ),
            (
                "cache_mode",
                !["", "disabled", "none"].contains(&self.cache_mode.as_str()),
            ),
            ("cache_option", !self.cache_option.is_empty()),
            ("scm_mask", !self.scm_mask.is_empty()),
            (
                "hires",
                self.hires.enabled && !self.hires.custom_sigmas.is_empty(),
            ),
        ];
        // Strengths of what is not there change nothing.
        let _ = (self.ip_adapter_strength, self.vace_strength);
        if let Some((field, _)) = asked.into_iter().find(|(_, asks)| *asks) {
            return Err(refused(field, "this"));
        }
        for params in std::iter::once(&self.sample_params).chain(&self.high_noise_sample_params) {
            if params.shifted_timestep != 0 {
                return Err(refused("sample_params", "shifted_timestep"));
            }
            if params.flow_shift.is_some_and(|shift| shift != 0.0) {
                return Err(refused("sample_params", "flow_shift"));
            }
        }
        let high = self.high_noise_sample_params.as_ref();
        if high.is_some_and(|high| high.sample_steps.is_some_and(|steps| steps > 0)) {
            return Err(refused(
                "high_noise_sample_params",
                "a number of steps of its own",
            ));
        }
        match self.lora.iter().any(|lora| lora.is_high_noise) {
            true => Err(refused(
                "lora",
                "is_high_noise (files of pairs say it in their names)",
            )),
            false => Ok(()),
        }
    }

    /// How the pictures are written.
    pub(super) fn pictures(&self) -> Result<Written, ApiError> {
        let name = self.output_format.as_deref().unwrap_or("png");
        let format = Format::from_name(name);
        Ok(Written::Pictures {
            format: format.map_err(|e| ApiError::field("output_format", e.to_string()))?,
            quality: self.output_compression.unwrap_or(90).clamp(1, 100) as u8,
            said: self.embed_image_metadata.unwrap_or(true),
        })
    }

    /// How the video is written.
    pub(super) fn video(&self) -> Result<Written, ApiError> {
        let name = self.output_format.as_deref().unwrap_or("mp4");
        let format = VideoFormat::from_name(name);
        Ok(Written::Video(format.map_err(|e| {
            ApiError::field("output_format", e.to_string())
        })?))
    }

    fn tuning(&self) -> Tuning {
        let params = &self.sample_params;
        let mut tuning = Tuning {
            sigmas: params.custom_sigmas.clone(),
            ..Tuning::default()
        };
        let slg = &params.guidance.slg;
        if slg.scale > 0.0 {
            tuning.guidance.skip_layers.clone_from(&slg.layers);
            tuning.guidance.skip_layer_guidance = Some(slg.scale);
            tuning.guidance.skip_layer_start = slg.layer_start;
            tuning.guidance.skip_layer_end = slg.layer_end;
        }
        tuning
    }

    fn highres(&self, app: &App) -> Result<Option<HighresFields>, ApiError> {
        let hires = &self.hires;
        if !hires.enabled {
            return Ok(None);
        }
        let method = hires
            .upscaler
            .as_deref()
            .map(|name| app.options().upscalers.find(name));
        let method = method
            .transpose()
            .map_err(|e| ApiError::field("hires", e.to_string()))?;
        let given = |side: usize| Some(side).filter(|side| *side > 0);
        Ok(Some(HighresFields {
            scale: hires.scale,
            width: given(hires.target_width),
            height: given(hires.target_height),
            method,
            steps: given(hires.steps),
            strength: hires.denoising_strength,
            ..HighresFields::default()
        }))
    }

    /// Both kinds of guidance, where the model has two.
    fn guidance(&self, app: &App) -> (Option<f64>, Option<f64>) {
        let GuidanceBody {
            txt_cfg,
            distilled_guidance,
            ..
        } = self.sample_params.guidance;
        let family = app.queue().info().family;
        match distilled_guidance {
            Some(distilled) if family.has_true_guidance() => (Some(distilled), txt_cfg),
            Some(distilled)
                if family == Family::Flux2 && txt_cfg.is_none_or(|scale| scale == 1.0) =>
            {
                (Some(distilled), None)
            }
            _ => (txt_cfg, None),
        }
    }

    /// The fields of a request, but for pictures.
    fn fields(&self, app: &App) -> Result<RequestFields, ApiError> {
        self.check()?;
        let (guidance, true_guidance) = self.guidance(app);
        let changes = app.queue().info().purpose == Purpose::Instructions;
        let params = &self.sample_params;
        let count = |count: i64| usize::try_from(count).ok().filter(|count| *count > 0);
        let loras = self
            .lora
            .iter()
            .map(|lora| Lora::new(stem(&lora.path), lora.multiplier));
        Ok(RequestFields {
            prompt: self.prompt.clone(),
            // Only the field asks for LoRAs, as there.
            wording: Wording {
                without_loras: true,
                ..Wording::default()
            },
            negative_prompt: self.negative_prompt.clone(),
            width: self.width,
            height: self.height,
            steps: params.sample_steps.and_then(count),
            guidance,
            true_guidance,
            image_guidance: params.guidance.img_cfg.filter(|_| changes),
            sampler: params.sample_method.clone(),
            schedule: params.scheduler.clone(),
            seed: given_seed(self.seed),
            batch: self.batch_count,
            clip_skip: self.clip_skip.and_then(count),
            eta: params.eta,
            tuning: self.tuning(),
            highres: self.highres(app)?,
            keep_reference_size: self.auto_resize_ref_image == Some(false),
            loras: loras.collect(),
            ..RequestFields::default()
        })
    }

    /// The request for pictures.
    ///
    /// # Errors
    /// 400 that names the field that is wrong, or not implemented here.
    pub(super) async fn picture_request(mut self, app: &App) -> Result<ValidRequest, ApiError> {
        let of_videos = [
            ("video_frames", self.video_frames.is_some()),
            ("fps", self.fps.is_some()),
            ("end_image", self.end_image.is_some()),
            (
                "high_noise_sample_params",
                self.high_noise_sample_params.is_some(),
            ),
        ];
        if let Some((field, _)) = of_videos.into_iter().find(|(_, asks)| *asks) {
            return Err(ApiError::field(
                field,
                format!("{field} is for videos (vid_gen)"),
            ));
        }
        let mut fields = self.fields(app)?;
        let mask = self.mask_image.take().filter(|mask| !mask.is_empty());
        match self.init_image.take().filter(|image| !image.is_empty()) {
            Some(image) => {
                let mask = mask.map(|mask| ("mask_image", mask));
                let init = InitFields {
                    strength: self.strength,
                    ..app.init(("init_image", image), mask).await?
                };
                fields.init = Some(init);
            }
            None if mask.is_some() => {
                return Err(ApiError::field("mask_image", "mask_image needs init_image"))
            }
            None => {}
        }
        fields.references = app.references(std::mem::take(&mut self.ref_images)).await?;
        if let Some(image) = self.control_image.take() {
            let known = app.options().controls.list();
            let [(_, model)] = known.as_slice() else {
                let reason = format!("control_image names no ControlNet: the server must have one (--controlnet-dir), and has {}", known.len());
                return Err(ApiError::field("control_image", reason));
            };
            let image = app.decode("control_image", Upload::Base64(image)).await?;
            fields.controls.push(Control {
                strength: self.control_strength.unwrap_or(0.9),
                ..Control::new(model.clone(), image_io::to_rgb(&image))
            });
        }
        app.valid(fields, &InterfaceDefaults::OPENAI, &app.options().limits)
    }

    /// The request for a video.
    ///
    /// # Errors
    /// 400 that names the field that is wrong, or not implemented here.
    pub(super) async fn video_request(
        mut self,
        app: &App,
        format: VideoFormat,
    ) -> Result<ValidRequest, ApiError> {
        if app.queue().info().defaults.video.is_none() {
            return Err(ApiError::field(
                "model",
                "the model makes pictures, not videos",
            ));
        }
        let of_pictures = [
            (
                "batch_count",
                self.batch_count.is_some_and(|count| count != 1),
            ),
            ("ref_images", !self.ref_images.is_empty()),
            ("mask_image", self.mask_image.is_some()),
            ("control_image", self.control_image.is_some()),
            ("hires", self.hires.enabled),
        ];
        if let Some((field, _)) = of_pictures.into_iter().find(|(_, asks)| *asks) {
            return Err(ApiError::field(
                field,
                format!("{field} is for pictures (img_gen)"),
            ));
        }
        let mut fields = self.fields(app)?;
        let early = self.high_noise_sample_params.take();
        let early = early.and_then(|params| params.guidance.txt_cfg);
        let late = fields
            .guidance
            .filter(|late| early.is_some_and(|early| early != *late));
        fields.guidance = early.or(fields.guidance);
        fields.video = VideoFields {
            frames: self.video_frames,
            fps: self.fps,
            first: app.frame("init_image", self.init_image.take()).await?,
            last: app.frame("end_image", self.end_image.take()).await?,
            late_guidance: late,
            format: Some(format),
            ..VideoFields::default()
        };
        app.valid(fields, &InterfaceDefaults::OWN, &app.options().limits)
    }
}
