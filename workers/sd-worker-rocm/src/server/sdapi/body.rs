//! The bodies of `txt2img` and `img2img`.

use super::lenient;
use super::passes::Passes;
use super::scripts;
use super::settings::Settings;
use crate::editing::{Editing, Fill, Fit, SoftInpainting};
use crate::faces::RestoreFaces;
use crate::info::{Family, Purpose};
use crate::lora::Lora;
use crate::recall::Recalled;
use crate::request::seed::given_seed;
use crate::request::wording::{NoiseChange, Wording};
use crate::request::{Drawn, HighresFields, InterfaceDefaults, RequestFields, Seamless, Tuning};
use crate::server::App;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use worker::http::json::from_value;
use worker::http::ApiError;

/// Most pictures of a request, in batches of the largest size.
const MAX_BATCHES: usize = 8;

/// Whether a value asks for an option.
type Asks = fn(&Value) -> bool;

/// Options that would change the picture and are not implemented, and which values ask for them.
const NOT_IMPLEMENTED: [(&str, Asks); 1] = [("script_name", is_set)];

/// A side of a picture, if it is one.
fn positive(side: Option<i64>) -> Option<usize> {
    side.filter(|side| *side > 0)
        .and_then(|side| usize::try_from(side).ok())
}

fn is_set(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(on) => *on,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => list.iter().any(is_set),
        Value::Object(map) => !map.is_empty(),
    }
}

/// What is read of a body.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[schemars(rename = "WebUiFields")]
#[serde(default)]
pub(super) struct Body {
    prompt: String,
    negative_prompt: Option<String>,
    /// Whether faces are restored, by the network that the settings name.
    restore_faces: bool,
    seed: Option<i64>,
    /// Seed of the noise that is mixed in.
    subseed: Option<i64>,
    /// How much of it, 0 to 1.
    subseed_strength: Option<f64>,
    /// Size of a picture whose noise stands in the middle of this one's; 0 or less is none.
    seed_resize_from_w: Option<i64>,
    seed_resize_from_h: Option<i64>,
    /// Names of styles; empty ones are none.
    styles: Vec<String>,
    sampler_name: Option<String>,
    /// The older name of `sampler_name`.
    sampler_index: Option<String>,
    scheduler: Option<String>,
    batch_size: Option<usize>,
    n_iter: Option<usize>,
    steps: Option<usize>,
    cfg_scale: Option<f64>,
    width: Option<usize>,
    height: Option<usize>,
    eta: Option<f64>,
    s_churn: Option<f64>,
    s_tmin: Option<f64>,
    /// 0 is without bound.
    s_tmax: Option<f64>,
    s_noise: Option<f64>,
    /// Noise over image below which every second step goes without guidance; 0 is off.
    s_min_uncond: Option<f64>,
    /// Factor of the noise that a picture to start from is covered with.
    initial_noise_multiplier: Option<f64>,
    /// Whether LoRAs in prompts have no effect.
    disable_extra_networks: bool,
    /// The text of a picture: what it says counts where the request says nothing.
    infotext: Option<String>,
    /// Whether the pictures can be laid side by side.
    tiling: bool,
    /// Guidance by the start picture, of models that change pictures as they are told.
    image_cfg_scale: Option<f64>,
    /// As newer web UIs have it; `override_settings` has the older `CLIP_stop_at_last_layers`.
    clip_skip: Option<usize>,
    /// Guidance of models that have it as a condition of the network, which is all that FLUX has.
    distilled_cfg_scale: Option<f64>,
    /// LoRAs beside those in the prompt.
    lora: Vec<LoraBody>,
    pub(super) send_images: Option<bool>,
    /// Whether pictures are written into the server's folder, if it has one (--save-dir).
    save_images: bool,
    do_not_save_samples: bool,
    /// Whether the pictures of the request come back among its parameters.
    pub(super) include_init_images: bool,
    /// A name by which `/internal/progress` finds the request.
    pub(super) force_task_id: Option<String>,
    pub(super) override_settings: Map<String, Value>,
    /// Whether `override_settings` are for this request only.
    pub(super) override_settings_restore_afterwards: Option<bool>,
    pub(super) alwayson_scripts: Map<String, Value>,
    /// Whether prompts are drawn, as a script says.
    #[serde(skip)]
    drawn: Drawn,
    /// How a mask's grey mixes, as a script says.
    #[serde(skip)]
    soft_inpainting: Option<SoftInpainting>,

    pub(super) init_images: Vec<String>,
    pub(super) mask: Option<String>,
    /// Which latents are painted, if not those of the mask: in base64.
    pub(super) latent_mask: Option<String>,
    mask_blur: Option<f64>,
    mask_blur_x: Option<f64>,
    mask_blur_y: Option<f64>,
    pub(super) inpainting_mask_invert: u8,
    /// Highres fix and the refiner.
    #[serde(skip)]
    passes: Passes,
    /// What stands in the mask before the first step: 0 colours from around it, 1 the picture, 2 noise, 3 nothing.
    inpainting_fill: Option<usize>,
    /// Whether only the part that the mask needs is painted, in the size of the request, and put back.
    inpaint_full_res: Option<bool>,
    /// Pixels around it that are cut out, too.
    inpaint_full_res_padding: Option<usize>,
    /// How a picture of another shape fits: 0 stretched, 1 cut off, 2 filled, 3 stretched as latents.
    resize_mode: Option<usize>,
    pub(super) denoising_strength: Option<f64>,
}

/// A LoRA as programs with lists of them send it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LoraBody {
    #[serde(alias = "path", alias = "model")]
    name: String,
    #[serde(default = "one", alias = "multiplier", alias = "weight")]
    strength: f64,
}

fn one() -> f64 {
    1.0
}

impl LoraBody {
    fn lora(&self) -> Lora {
        Lora::new(self.name.clone(), self.strength)
    }
}

impl Body {
    /// Reads a body; `null` is as good as left out, as many clients send it.
    ///
    /// # Errors
    /// 400 that names the field that is wrong, or not implemented here.
    pub(super) fn read(map: &Map<String, Value>) -> Result<Self, ApiError> {
        let given = map.iter().filter(|(_, value)| !value.is_null());
        let given = given.map(|(name, value)| (name.clone(), value.clone()));
        let mut map: Map<String, Value> = given.collect();
        lenient::coerce(&mut map);
        let mut drawn = Drawn::default();
        let mut soft_inpainting = None;
        if let Some(Value::Object(scripts)) = map.remove("alwayson_scripts") {
            let mut left = Map::new();
            let negative = map.get("negative_prompt").and_then(Value::as_str);
            let negative = negative.unwrap_or_default().to_string();
            for (name, script) in scripts {
                let args = script.get("args").and_then(Value::as_array);
                let args = args.map_or(&[][..], Vec::as_slice);
                if lenient::is_off(&name, args, &map) || lenient::is_of_seeds(&name, args, &mut map)
                {
                    continue;
                }
                if let Some(asked) = scripts::soft_inpainting(&name, args)? {
                    soft_inpainting = Some(asked);
                    continue;
                }
                match scripts::drawn(&name, args, &negative)? {
                    Some(asked) => drawn = asked,
                    None => drop(left.insert(name, script)),
                }
            }
            map.insert("alwayson_scripts".to_string(), left.into());
        }
        if let Some(Value::String(style)) = map.get("styles") {
            let style = json!([style]);
            map.insert("styles".to_string(), style);
        }
        for (field, asks) in &NOT_IMPLEMENTED {
            if map.get(*field).is_some_and(asks) {
                return Err(ApiError::field(
                    *field,
                    format!("{field} is not implemented here; leave it out"),
                ));
            }
        }
        let is_given = |field: &str| map.get(field).is_some_and(is_set);
        if is_given("latent_mask") && !is_given("mask") {
            let reason =
                "latent_mask says which latents of a mask's pixels are painted: send mask, too";
            return Err(ApiError::field("latent_mask", reason));
        }
        let passes = Passes::read(&map)?;
        let body = from_value::<Self>(&Value::Object(map))?;
        Ok(Self {
            passes,
            drawn,
            soft_inpainting,
            ..body
        })
    }

    /// How many times the pictures of a batch are made.
    ///
    /// # Errors
    /// 400 for none, and for more pictures than an answer can hold.
    pub(super) fn repeats(&self, app: &App) -> Result<usize, ApiError> {
        let most = app.options().limits.max_batch * MAX_BATCHES;
        let (size, count) = (self.batch_size.unwrap_or(1), self.n_iter.unwrap_or(1));
        if count == 0 || size.saturating_mul(count) > most {
            return Err(ApiError::field(
                "n_iter",
                format!("n_iter is {count}; it must be at least 1, and no more than {most} pictures in all"),
            ));
        }
        Ok(count)
    }

    /// The fields of a request for one batch, but for pictures.
    ///
    /// # Errors
    /// 400 for passes beside the first that cannot be.
    pub(super) fn fields(&self, app: &App, settings: &Settings) -> Result<RequestFields, ApiError> {
        let sampler = self.sampler_name.as_ref().or(self.sampler_index.as_ref());
        // What the web UI has as its default is what suits the model.
        let clip_skip = Some(settings.clip_skip).filter(|skip| *skip > 1);
        // Where guidance is a condition of the network, a client that names both means the other beside it.
        let family = app.queue().info().family;
        let (guidance, true_guidance) = match self.distilled_cfg_scale {
            Some(distilled) if family.has_true_guidance() => (Some(distilled), self.cfg_scale),
            // FLUX.2 has one of the two; Forge sends 1 as the other.
            Some(distilled) if family == Family::Flux2 => {
                if self.cfg_scale.is_some_and(|scale| scale != 1.0) {
                    return Err(ApiError::field(
                        "distilled_cfg_scale",
                        "FLUX.2 has one guidance: send either cfg_scale or distilled_cfg_scale",
                    ));
                }
                (Some(distilled), None)
            }
            _ => (self.cfg_scale, None),
        };
        let late = self.s_min_uncond.filter(|least| *least != 0.0);
        let mut own = Tuning {
            s_churn: self.s_churn,
            s_tmin: self.s_tmin,
            s_tmax: self.s_tmax,
            s_noise: self.s_noise,
            seamless: Seamless {
                tiling: self.tiling,
                ..Seamless::default()
            },
            ..Tuning::default()
        };
        own.guidance.guidance_min_sigma = late;
        let changes = app.queue().info().purpose == Purpose::Instructions;
        Ok(RequestFields {
            prompt: self.prompt.clone(),
            negative_prompt: self.negative_prompt.clone(),
            width: self.width,
            height: self.height,
            steps: self.steps,
            guidance,
            true_guidance,
            sampler: sampler.cloned(),
            schedule: self.scheduler.clone(),
            seed: given_seed(self.seed),
            batch: self.batch_size,
            eta: self.eta.or_else(|| settings.eta(sampler?)),
            tuning: settings.tuning(own),
            image_guidance: self.image_cfg_scale.filter(|_| changes),
            refiner_start: self.passes.refiner_start(app)?,
            restore_faces: self.faces(app, settings)?,
            clip_skip: self.clip_skip.or(clip_skip),
            rng: Some(settings.rng),
            wording: Wording {
                styles: self.styles.clone(),
                drawn: self.drawn,
                without_loras: self.disable_extra_networks,
                ..Wording::default()
            },
            noise: NoiseChange {
                variation_seed: given_seed(self.subseed),
                variation: self.subseed_strength.unwrap_or(0.0),
                from_size: positive(self.seed_resize_from_w).zip(positive(self.seed_resize_from_h)),
                step_seed_delta: settings.step_seed_delta,
                multiplier: self
                    .initial_noise_multiplier
                    .filter(|factor| *factor != 1.0),
            },
            loras: self.lora.iter().map(LoraBody::lora).collect(),
            preview_every: Some(settings.preview_every),
            ..RequestFields::default()
        })
    }

    /// Fields that the request leaves open, filled from the text of a picture, and what that says besides.
    pub(super) fn recall(
        &mut self,
        fields: RequestFields,
        app: &App,
    ) -> (RequestFields, Vec<String>) {
        let Some(text) = self.infotext.take().filter(|text| !text.trim().is_empty()) else {
            return (fields, Vec::new());
        };
        let recalled = Recalled::of_text(&text, &app.networks());
        let recalled = recalled.fitting(app.queue().info());
        let rng = recalled.fields.rng.or(fields.rng);
        let fields = RequestFields {
            rng,
            ..fields.over(recalled.fields)
        };
        (fields, recalled.left_out)
    }

    /// Whether the pictures are to be written into the server's folder.
    pub(super) fn saves(&self) -> bool {
        self.save_images && !self.do_not_save_samples
    }

    /// What is restored of faces, if anything.
    fn faces(&self, app: &App, settings: &Settings) -> Result<Option<RestoreFaces>, ApiError> {
        if !self.restore_faces {
            return Ok(None);
        }
        let (model, weight) = &settings.faces;
        match app.options().faces.find(model) {
            Ok(found) => Ok(Some(RestoreFaces {
                weight: *weight,
                ..found
            })),
            Err(e) => Err(ApiError::field("restore_faces", e.to_string())),
        }
    }

    /// The second pass of highres fix, if there is one.
    ///
    /// # Errors
    /// Those of [`Passes::highres`].
    pub(super) fn highres(&self, app: &App) -> Result<Option<HighresFields>, ApiError> {
        self.passes.highres(app)
    }

    /// What is done to the picture before and after, with the web UI's own defaults.
    ///
    /// # Errors
    /// 400 for numbers that stand for nothing.
    pub(super) fn editing(&self) -> Result<Editing, ApiError> {
        let wrong = |field| move |e: worker::Error| ApiError::field(field, format!("{field}: {e}"));
        let fit = self.resize_mode.unwrap_or(0).to_string();
        let fill = self.inpainting_fill.unwrap_or(0).to_string();
        let fill = Fill::from_name(&fill).map_err(wrong("inpainting_fill"))?;
        let has_mask = self.mask.is_some();
        let only_masked = has_mask && self.inpaint_full_res.unwrap_or(true);
        let padding = self.inpaint_full_res_padding.unwrap_or(0);
        Ok(Editing {
            fit: Fit::from_name(&fit).map_err(wrong("resize_mode"))?,
            fill: if has_mask { fill } else { Fill::default() },
            only_masked: only_masked.then_some(padding),
            // Without a mask the extension does nothing.
            soft_inpainting: self.soft_inpainting.filter(|_| has_mask),
            ..Editing::default()
        })
    }

    /// Pixels by which the mask is softened, if the client said so.
    ///
    /// # Errors
    /// 400 for a blur that is wider in one direction.
    pub(super) fn mask_blur(&self) -> Result<Option<f64>, ApiError> {
        let usual = InterfaceDefaults::WEB_UI.mask_blur;
        match (self.mask_blur, self.mask_blur_x, self.mask_blur_y) {
            (Some(blur), ..) => Ok(Some(blur)),
            (None, None, None) => Ok(None),
            (None, x, y) if x.unwrap_or(usual) == y.unwrap_or(usual) => Ok(x.or(y)),
            _ => Err(ApiError::field(
                "mask_blur_x",
                "mask_blur_x and mask_blur_y must be equal; other blurs are not implemented here",
            )),
        }
    }
}
