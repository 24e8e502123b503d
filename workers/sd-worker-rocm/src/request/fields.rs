//! What a client said, and what stands where it said nothing.

use super::highres::HighresFields;
use super::ip_adapter::IpAdapter;
use super::limits::InvalidRequest;
use super::seed::random_seed;
use super::tuning::Tuning;
use super::types::{Control, Hidden, ImageRequest, Init, MicroConditions, VideoRequest};
use super::wording::{Library, NoiseChange, Wording};
use crate::editing::{Editing, Sides};
use crate::faces::RestoreFaces;
use crate::info::Defaults;
use crate::lora::Lora;
use crate::prompt::lora::take_loras;
use crate::rng::RngKind;
use crate::sampling::{Sampler, Schedule};
use crate::video::VideoFormat;
use image::{GrayImage, RgbImage};

/// Pictures of a request that does not say how many.
pub const DEFAULT_BATCH: usize = 1;

/// Pixels of which the size of a picture that is extended is a multiple.
const SIZE_STEP: usize = 16;

/// What the clients of an interface take for granted in requests that start from a picture. Everything else that a
/// request leaves open is the model's own (see [`Defaults`]).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InterfaceDefaults {
    /// How much of the picture is changed: 0 nothing, 1 all.
    pub strength: f64,
    /// The same where a mask says what to paint.
    pub strength_in_mask: f64,
    /// Standard deviation in pixels by which a mask is softened.
    pub mask_blur: f64,
    /// Whether a model of videos makes one of a request that says nothing of it.
    pub videos: bool,
}

impl InterfaceDefaults {
    /// Ours, for the command line and `/v1/jobs`: diffusers'. A mask is taken as it is.
    pub const OWN: Self = Self {
        strength: 0.8,
        strength_in_mask: 0.8,
        mask_blur: 0.0,
        videos: true,
    };

    /// OpenAI's edits, which have no such settings: without a mask the picture is kept in outline, within a mask all is
    /// new.
    pub const OPENAI: Self = Self {
        strength: 0.8,
        strength_in_mask: 1.0,
        mask_blur: 0.0,
        videos: false,
    };

    /// AUTOMATIC1111's web UI, as its API documents them.
    pub const WEB_UI: Self = Self {
        strength: 0.75,
        strength_in_mask: 0.75,
        mask_blur: 4.0,
        videos: false,
    };
}

/// What a client said of a picture to start from.
#[derive(Debug, Clone)]
pub struct InitFields {
    /// The picture.
    pub image: RgbImage,
    /// How much of it is changed.
    pub strength: Option<f64>,
    /// What to paint anew.
    pub mask: Option<GrayImage>,
    /// Which latents are painted, as [`Init::latent_mask`].
    pub latent_mask: Option<GrayImage>,
    /// Standard deviation in pixels by which the mask is softened.
    pub mask_blur: Option<f64>,
    /// Paint what is black in the mask instead.
    pub mask_invert: bool,
    /// What is done to the picture before and after.
    pub editing: Editing,
    /// What was transparent in the picture, white.
    pub transparency: Option<GrayImage>,
    /// Paint that.
    pub mask_from_alpha: bool,
}

impl InitFields {
    /// A picture of which nothing else is said.
    pub fn new(image: RgbImage) -> Self {
        Self {
            image,
            strength: None,
            mask: None,
            latent_mask: None,
            mask_blur: None,
            mask_invert: false,
            editing: Editing::default(),
            transparency: None,
            mask_from_alpha: false,
        }
    }
}

/// What a client said of a video; the fields are those of [`VideoRequest`].
#[derive(Debug, Clone, Default)]
pub struct VideoFields {
    /// Frames.
    pub frames: Option<usize>,
    /// Frames a second.
    pub fps: Option<usize>,
    /// The first frame.
    pub first: Option<RgbImage>,
    /// The last frame.
    pub last: Option<RgbImage>,
    /// Frames in between.
    pub key_frames: Vec<(usize, RgbImage)>,
    /// Noise of frames that are given.
    pub frame_noise: Option<f64>,
    /// Guidance of the late steps.
    pub late_guidance: Option<f64>,
    /// The time that the decoder is told.
    pub decode_timestep: Option<f64>,
    /// Noise that is mixed into its latents.
    pub decode_noise: Option<f64>,
    /// How it is written.
    pub format: Option<VideoFormat>,
}

impl VideoFields {
    /// Whether anything was said.
    pub fn is_asked(&self) -> bool {
        !self.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.frames.is_none()
            && self.fps.is_none()
            && self.first.is_none()
            && self.last.is_none()
            && self.key_frames.is_empty()
            && self.frame_noise.is_none()
            && self.late_guidance.is_none()
            && self.decode_timestep.is_none()
            && self.decode_noise.is_none()
            && self.format.is_none()
    }

    /// A picture where nothing was said, unless the interface is one of videos and the model makes such.
    fn build(self, model: &Defaults, interface: &InterfaceDefaults) -> Option<VideoRequest> {
        if self.is_empty() && !(interface.videos && model.video.is_some()) {
            return None;
        }
        let (frames, fps) = model
            .video
            .map_or((1, 1), |video| (video.frames, video.fps));
        Some(VideoRequest {
            frames: self.frames.unwrap_or(frames),
            fps: self.fps.unwrap_or(fps),
            first: self.first,
            last: self.last,
            key_frames: self.key_frames,
            frame_noise: self.frame_noise,
            late_guidance: self.late_guidance,
            decode_timestep: self.decode_timestep,
            decode_noise: self.decode_noise,
            format: self.format.unwrap_or_default(),
        })
    }
}

/// What a client said; the fields are those of [`ImageRequest`].
#[derive(Debug, Clone, Default)]
pub struct RequestFields {
    /// The prompt, in which `<lora:name:strength>` asks for a LoRA.
    pub prompt: String,
    /// How prompts come about.
    pub wording: Wording,
    /// Whether brackets in prompts are weights.
    pub prompt_weights: Option<bool>,
    /// The negative prompt.
    pub negative_prompt: Option<String>,
    /// Pixels.
    pub width: Option<usize>,
    /// Pixels.
    pub height: Option<usize>,
    /// Denoising steps.
    pub steps: Option<usize>,
    /// Guidance.
    pub guidance: Option<f64>,
    /// Classifier-free guidance of models that have guidance as a condition.
    pub true_guidance: Option<f64>,
    /// Share of the guided prediction that is scaled back.
    pub guidance_rescale: Option<f64>,
    /// A sampler's name, which may have a schedule's behind it.
    pub sampler: Option<String>,
    /// A schedule's name, which counts more than one behind the sampler's; `automatic` is the sampler's own.
    pub schedule: Option<String>,
    /// Seed of the first picture.
    pub seed: Option<u64>,
    /// Whose random numbers.
    pub rng: Option<RngKind>,
    /// How the noise differs from the seeds'.
    pub noise: NoiseChange,
    /// Number of pictures.
    pub batch: Option<usize>,
    /// Layers of the CLIP text encoder left out.
    pub clip_skip: Option<usize>,
    /// Noise added again in each step.
    pub eta: Option<f64>,
    /// Finer settings of sampling.
    pub tuning: Tuning,
    /// A picture to start from.
    pub init: Option<InitFields>,
    /// A second pass over a larger picture.
    pub highres: Option<HighresFields>,
    /// Faces restored.
    pub restore_faces: Option<RestoreFaces>,
    /// Pictures to look at.
    pub references: Vec<RgbImage>,
    /// Look at them in their own size.
    pub keep_reference_size: bool,
    /// How strongly a model for instructions keeps to the picture.
    pub image_guidance: Option<f64>,
    /// Depths for a model that wants them.
    pub depth: Option<RgbImage>,
    /// What Stable Diffusion XL is told besides.
    pub micro: MicroConditions,
    /// Share of the steps at which the refiner takes over.
    pub refiner_start: Option<f64>,
    /// A video.
    pub video: VideoFields,
    /// LoRAs, besides those in the prompt.
    pub loras: Vec<Lora>,
    /// ControlNets.
    pub controls: Vec<Control>,
    /// IP-Adapters.
    pub ip_adapters: Vec<IpAdapter>,
    /// A preview with every n-th step.
    pub preview_every: Option<usize>,
}

impl RequestFields {
    /// As [`Self::build_with`], without styles and wildcards.
    ///
    /// # Errors
    /// As [`Self::build_with`].
    pub fn build(
        self,
        model: &Defaults,
        interface: &InterfaceDefaults,
    ) -> Result<ImageRequest, InvalidRequest> {
        self.build_with(model, interface, &Library::default())
    }

    /// The request, completed by what suits the model and what the interface's clients expect.
    ///
    /// # Errors
    /// For names of samplers, schedules and styles that do not exist, and for prompts that cannot be read.
    pub fn build_with(
        self,
        model: &Defaults,
        interface: &InterfaceDefaults,
        library: &Library,
    ) -> Result<ImageRequest, InvalidRequest> {
        let (sampler, schedule) = self.sampler(model)?;
        let listed = self.tuning.steps();
        if let (Some(listed), Some(steps)) = (listed, self.steps) {
            if listed != steps {
                return Err(InvalidRequest::new(
                    "steps",
                    format!("{listed} steps are listed, and {steps} asked for"),
                ));
            }
        }
        let init = self.init;
        let outpainted = init.as_ref().and_then(InitFields::outpainted);
        let (width, height) = outpainted.unwrap_or((model.width, model.height));
        let steps = listed.or(self.steps).unwrap_or(model.steps);
        let negative = self.negative_prompt.unwrap_or_default();
        let batch = self.batch.unwrap_or(DEFAULT_BATCH);
        let mut regions = self.wording.regions.clone();
        let mut loras = self.loras;
        for region in &mut regions {
            let (prompt, marked) =
                take_loras(&region.prompt, steps).map_err(|e| InvalidRequest::new("regions", e))?;
            region.prompt = prompt;
            loras.extend(marked.into_iter().filter(|_| !self.wording.without_loras));
        }
        let numbers = (self.seed, batch, steps);
        let prompts =
            (self.wording).prompts((&self.prompt, &negative), &loras, numbers, library)?;
        let mut noise = self.noise;
        if noise.variation != 0.0 {
            noise.variation_seed.get_or_insert_with(random_seed);
        }
        let init = init.map(|init| init.build(model, interface)).transpose()?;
        let controls = hidden(self.controls, init.as_ref())?;
        let highres = self.highres;
        let mut request = ImageRequest {
            prompt: prompts.first.prompt,
            regions,
            prompt_weights: self.prompt_weights,
            scheduled_prompts: self.wording.scheduled.unwrap_or(true),
            each: prompts.each,
            negative_prompt: prompts.first.negative_prompt,
            width: self.width.unwrap_or(width),
            height: self.height.unwrap_or(height),
            steps,
            guidance: self.guidance.unwrap_or(model.guidance),
            true_guidance: self.true_guidance.unwrap_or(1.0),
            guidance_rescale: self.guidance_rescale.unwrap_or(0.0),
            sampler,
            schedule,
            seed: prompts.seed.unwrap_or_else(random_seed),
            rng: self.rng.unwrap_or_default(),
            noise,
            batch: prompts.batch,
            clip_skip: self.clip_skip.unwrap_or(0),
            eta: self.eta,
            tuning: self.tuning,
            init,
            references: self.references,
            keep_reference_size: self.keep_reference_size,
            image_guidance: self.image_guidance,
            depth: self.depth,
            micro: self.micro,
            refiner_start: self.refiner_start,
            video: self.video.build(model, interface),
            loras: prompts.first.loras,
            controls,
            ip_adapters: self.ip_adapters,
            preview_every: self.preview_every.unwrap_or(0),
            highres: None,
            restore_faces: self.restore_faces,
        };
        if let Some(highres) = highres {
            let mut second = highres.build(&request)?;
            if self.wording.without_loras {
                second.loras.clone_from(&request.loras);
            }
            request.highres = Some(second);
        }
        Ok(request)
    }

    fn sampler(&self, model: &Defaults) -> Result<(Sampler, Option<Schedule>), InvalidRequest> {
        let unknown = |field| move |e: worker::Error| InvalidRequest::new(field, e.to_string());
        let (mut sampler, mut schedule) = (model.sampler, model.schedule);
        if let Some(name) = self.sampler.as_deref().filter(|name| !name.is_empty()) {
            let (found, named) = Sampler::with_schedule(name).map_err(unknown("sampler"))?;
            sampler = found;
            schedule = named.or(schedule);
        } else if let Some(class) = &model.unknown_scheduler {
            return Err(InvalidRequest::new(
                "sampler",
                format!("the model asks for {class}, which is not implemented; name a sampler, such as {}", sampler.label()),
            ));
        }
        if let Some(name) = self.schedule.as_deref().filter(|name| !name.is_empty()) {
            schedule = match name.eq_ignore_ascii_case("automatic") {
                true => None,
                false => Some(Schedule::from_name(name).map_err(unknown("schedule"))?),
            };
        }
        Ok((sampler, schedule))
    }
}

/// Gives ControlNets that are to follow what a mask leaves the request's mask.
fn hidden(mut controls: Vec<Control>, init: Option<&Init>) -> Result<Vec<Control>, InvalidRequest> {
    for control in &mut controls {
        if !matches!(control.hidden, Hidden::Masked) {
            continue;
        }
        let Some((init, mask)) = init.and_then(|init| Some((init, init.mask.as_ref()?))) else {
            return Err(InvalidRequest::new(
                "controls",
                "the preprocessor inpaint needs a mask: its own, or that of a picture to start from",
            ));
        };
        let mut mask = mask.clone();
        if init.mask_invert {
            image::imageops::invert(&mut mask);
        }
        control.hidden = Hidden::White(mask);
    }
    Ok(controls)
}

impl InitFields {
    /// Rounds the sides of a picture that is extended up, and gives the size that it then has.
    fn outpainted(&self) -> Option<(usize, usize)> {
        let Editing {
            outpaint,
            only_masked: None,
            ..
        } = self.editing
        else {
            return None;
        };
        let size = (self.image.width() as usize, self.image.height() as usize);
        let (width, height) = self.sides().around(size);
        let whole = |side: usize| side.next_multiple_of(SIZE_STEP);
        (!outpaint.is_empty()).then_some((whole(width), whole(height)))
    }

    /// The sides that are added, rounded up so that every model can paint the whole.
    fn sides(&self) -> Sides {
        let size = (self.image.width() as usize, self.image.height() as usize);
        self.editing.outpaint.rounded(size, SIZE_STEP)
    }

    fn build(
        self,
        model: &Defaults,
        interface: &InterfaceDefaults,
    ) -> Result<Init, InvalidRequest> {
        let editing = Editing {
            outpaint: self.sides(),
            ..self.editing
        };
        let mask = match (self.mask, self.transparency) {
            (None, Some(transparency)) if self.mask_from_alpha => Some(transparency),
            (mask, _) if !self.mask_from_alpha => mask,
            (mask, _) => {
                return Err(InvalidRequest::new(
                    "mask_from_alpha",
                    match mask {
                        Some(_) => "there is a mask, and mask_from_alpha; one of them, please",
                        None => "mask_from_alpha: the picture has no transparency",
                    },
                ))
            }
        };
        let usual = match mask {
            Some(_) => interface.strength_in_mask,
            None => interface.strength,
        };
        Ok(Init {
            image: self.image,
            strength: self.strength.or(model.strength).unwrap_or(usual),
            mask,
            latent_mask: self.latent_mask,
            mask_blur: self.mask_blur.unwrap_or(interface.mask_blur),
            mask_invert: self.mask_invert,
            editing,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MODEL: Defaults = Defaults {
        width: 512,
        height: 768,
        steps: 20,
        guidance: 7.0,
        sampler: Sampler::Ddim,
        schedule: Some(Schedule::Discrete),
        strength: None,
        unknown_scheduler: None,
        video: None,
    };

    fn build(fields: RequestFields, interface: &InterfaceDefaults) -> ImageRequest {
        fields.build(&MODEL, interface).unwrap()
    }

    #[test]
    fn what_is_left_open_is_the_models() {
        let fields = RequestFields {
            prompt: "a cat <lora:ink:0.5>".to_string(),
            ..RequestFields::default()
        };
        let request = build(fields, &InterfaceDefaults::OWN);
        assert_eq!((request.width, request.height), (512, 768));
        assert_eq!((request.steps, request.guidance), (20, 7.0));
        assert_eq!(request.sampler, Sampler::Ddim);
        assert_eq!(request.schedule(), Schedule::Discrete);
        assert_eq!(request.batch, 1);
        assert_eq!(request.prompt, "a cat ");
        assert_eq!(request.loras[0].name, "ink");
    }

    #[test]
    fn samplers_and_schedules_by_name() {
        use Schedule::{Beta, Discrete, Exponential, Karras};
        for (sampler, schedule, expected) in [
            ("", "", (Sampler::Ddim, Discrete)),
            ("DPM++ 2M", "", (Sampler::DpmPlusPlus2M, Discrete)),
            ("DPM++ 2M Karras", "", (Sampler::DpmPlusPlus2M, Karras)),
            ("DPM++ 2M Karras", "beta", (Sampler::DpmPlusPlus2M, Beta)),
            ("DPM++ 2M", "Automatic", (Sampler::DpmPlusPlus2M, Karras)),
            (
                "dpmpp_2m_sde",
                "automatic",
                (Sampler::DpmPlusPlus2MSde, Exponential),
            ),
        ] {
            let fields = RequestFields {
                sampler: Some(sampler.to_string()),
                schedule: Some(schedule.to_string()),
                ..RequestFields::default()
            };
            let request = build(fields, &InterfaceDefaults::OWN);
            assert_eq!((request.sampler, request.schedule()), expected);
        }
        for (sampler, schedule, field) in [("DPM perfect", "", "sampler"), ("", "x", "schedule")] {
            let fields = RequestFields {
                sampler: Some(sampler.to_string()),
                schedule: Some(schedule.to_string()),
                ..RequestFields::default()
            };
            let error = fields.build(&MODEL, &InterfaceDefaults::OWN).unwrap_err();
            assert_eq!(error.field, field);
        }
    }

    #[test]
    fn a_scheduler_that_is_not_implemented_is_replaced_by_name_only() {
        let model = Defaults {
            unknown_scheduler: Some("DEISMultistepScheduler".to_string()),
            ..MODEL
        };
        let error = RequestFields::default().build(&model, &InterfaceDefaults::OWN);
        let error = error.unwrap_err();
        assert_eq!(error.field, "sampler");
        assert!(
            error.to_string().contains("DEISMultistepScheduler"),
            "{error}"
        );
        let fields = RequestFields {
            sampler: Some("Euler".to_string()),
            ..RequestFields::default()
        };
        assert_eq!(
            fields
                .build(&model, &InterfaceDefaults::OWN)
                .unwrap()
                .sampler,
            Sampler::Euler
        );
    }

    #[test]
    fn each_interface_has_its_clients_defaults() {
        let init = |mask: bool, strength| RequestFields {
            init: Some(InitFields {
                strength,
                mask: mask.then(|| GrayImage::new(8, 8)),
                ..InitFields::new(RgbImage::new(8, 8))
            }),
            ..RequestFields::default()
        };
        for (interface, plain, masked, blur) in [
            (InterfaceDefaults::OWN, 0.8, 0.8, 0.0),
            (InterfaceDefaults::OPENAI, 0.8, 1.0, 0.0),
            (InterfaceDefaults::WEB_UI, 0.75, 0.75, 4.0),
        ] {
            for (mask, strength) in [(false, plain), (true, masked)] {
                let built = build(init(mask, None), &interface).init.unwrap();
                assert_eq!((built.strength, built.mask_blur), (strength, blur));
                let built = build(init(mask, Some(0.3)), &interface).init.unwrap();
                assert_eq!(built.strength, 0.3);
            }
        }
    }
}
