//! What a picture was made with, read back into a request.
//!
//! | Module     | Reads                                                                                    |
//! |------------|------------------------------------------------------------------------------------------|
//! | `web_ui`   | the parameters text of AUTOMATIC1111's web UI, and ours                                  |
//! | `tuning`   | its finer settings of sampling and guidance                                              |
//! | `besides`  | what such a text says of prompts, told sizes and videos                                  |
//! | `comfy`    | the graph that ComfyUI puts into its PNG files                                           |

mod besides;
pub(crate) mod comfy;
#[cfg(test)]
mod round_trip;
mod tuning;
mod web_ui;

use crate::faces::RestoreFaces;
use crate::image_io;
use crate::request::wording::NoiseChange;
use crate::request::{MicroConditions, RequestFields, Tuning};
use crate::upscale::Method;
use worker::{Error, Result};

/// What the networks that a picture's text names are here.
pub trait Networks {
    /// The upscaler of this name.
    ///
    /// # Errors
    /// [`Error::Usage`] for a name that stands for none.
    fn upscaler(&self, name: &str) -> Result<Method>;

    /// Faces restored by the network of this name.
    ///
    /// # Errors
    /// [`Error::Usage`] for a name that stands for none.
    fn faces(&self, name: &str) -> Result<RestoreFaces>;
}

/// Where no folder has networks: the upscalers that need none.
pub struct Without;

impl Networks for Without {
    fn upscaler(&self, name: &str) -> Result<Method> {
        Method::of(name)
    }

    fn faces(&self, name: &str) -> Result<RestoreFaces> {
        Err(Error::Usage(format!(
            "{name:?} is to be given as files (--restore-faces, --face-detector)"
        )))
    }
}

/// A request as a picture tells it.
#[derive(Debug, Clone, Default)]
pub struct Recalled {
    /// What could be read.
    pub fields: RequestFields,
    /// What the picture says besides and a request from it will not have: names of settings or nodes.
    pub left_out: Vec<String>,
}

impl Recalled {
    /// Reads a picture's file.
    ///
    /// # Errors
    /// [`Error::Usage`] for a file that does not say what it was made with, or in a way that is not understood.
    pub fn of(bytes: &[u8], networks: &dyn Networks) -> Result<Self> {
        if let Some(text) = image_io::parameters_of(bytes)? {
            return Ok(web_ui::read(&text, networks));
        }
        match image_io::comfy_graph_of(bytes)? {
            Some(graph) => comfy::read(&graph).map_err(Error::Usage),
            None => Err(Error::Usage(
                "the picture does not say what it was made with".to_string(),
            )),
        }
    }

    /// Reads the text of a picture of AUTOMATIC1111's web UI, or of ours; any text is a prompt at least.
    pub fn of_text(text: &str, networks: &dyn Networks) -> Self {
        web_ui::read(text, networks)
    }

    fn leave_out(&mut self, name: impl Into<String>) {
        let name = name.into();
        if !self.left_out.contains(&name) {
            self.left_out.push(name);
        }
    }
}

impl RequestFields {
    /// These fields, and where they are open those of `other`: a sampler goes with its schedule, finer settings of
    /// sampling go together.
    #[must_use]
    pub fn over(mut self, other: Self) -> Self {
        if self.prompt.trim().is_empty() {
            self.prompt = other.prompt;
            self.loras.extend(other.loras);
        }
        if self.sampler.is_none() {
            self.sampler = other.sampler;
            self.schedule = self.schedule.or(other.schedule);
        }
        self.negative_prompt = self.negative_prompt.or(other.negative_prompt);
        self.width = self.width.or(other.width);
        self.height = self.height.or(other.height);
        self.steps = self.steps.or(other.steps);
        self.guidance = self.guidance.or(other.guidance);
        self.true_guidance = self.true_guidance.or(other.true_guidance);
        self.guidance_rescale = self.guidance_rescale.or(other.guidance_rescale);
        self.seed = self.seed.or(other.seed);
        self.rng = self.rng.or(other.rng);
        self.clip_skip = self.clip_skip.or(other.clip_skip);
        self.eta = self.eta.or(other.eta);
        self.wording.scheduled = self.wording.scheduled.or(other.wording.scheduled);
        if self.wording.regions.is_empty() {
            self.wording.regions = other.wording.regions;
        }
        self.prompt_weights = self.prompt_weights.or(other.prompt_weights);
        if self.micro == MicroConditions::default() {
            self.micro = other.micro;
        }
        self.refiner_start = self.refiner_start.or(other.refiner_start);
        let (video, told) = (&mut self.video, other.video);
        video.frames = video.frames.or(told.frames);
        video.fps = video.fps.or(told.fps);
        video.late_guidance = video.late_guidance.or(told.late_guidance);
        video.frame_noise = video.frame_noise.or(told.frame_noise);
        video.decode_timestep = video.decode_timestep.or(told.decode_timestep);
        video.decode_noise = video.decode_noise.or(told.decode_noise);
        if self.tuning == Tuning::default() {
            self.tuning = other.tuning;
        }
        self.highres = self.highres.or(other.highres);
        self.restore_faces = self.restore_faces.or(other.restore_faces);
        if self.noise == NoiseChange::default() {
            self.noise = other.noise;
        }
        self
    }
}
