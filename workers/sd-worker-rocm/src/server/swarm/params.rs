//! The parameters of a picture: one table for what is read and for what `ListT2IParams` tells.

use crate::lora::Lora;
use crate::request::seed::given_seed;
use crate::request::{InitFields, InterfaceDefaults, RequestFields, ValidRequest};
use crate::sampling::{Sampler, Schedule};
use crate::server::App;
use serde_json::{json, Map, Value};
use worker::http::ApiError;

/// How much of a picture is changed, as its page has it.
const CREATIVITY: f64 = 0.6;

/// A parameter: its id, name, type, and what it is.
type Param = (&'static str, &'static str, Kind, &'static str);

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Text,
    Whole(f64, f64),
    Number(f64, f64),
    Picture,
    Models,
    Loras,
    Samplers,
    Schedules,
}

const PARAMS: [Param; 23] = [
    ("prompt", "Prompt", Kind::Text, "What to paint"),
    (
        "negativeprompt",
        "Negative Prompt",
        Kind::Text,
        "What to keep away from",
    ),
    ("model", "Model", Kind::Models, "The model"),
    (
        "images",
        "Images",
        Kind::Whole(1.0, 64.0),
        "How many pictures",
    ),
    (
        "batchsize",
        "Batch Size",
        Kind::Whole(1.0, 64.0),
        "How many pictures for each of these",
    ),
    (
        "seed",
        "Seed",
        Kind::Whole(-1.0, 9e15),
        "Seed of the first picture; -1 is random",
    ),
    ("steps", "Steps", Kind::Whole(1.0, 500.0), "Denoising steps"),
    (
        "cfgscale",
        "CFG Scale",
        Kind::Number(0.0, 100.0),
        "Guidance",
    ),
    (
        "fluxguidancescale",
        "Flux Guidance Scale",
        Kind::Number(0.0, 100.0),
        "Guidance of models that have it as a condition",
    ),
    ("width", "Width", Kind::Whole(64.0, 16384.0), "Pixels"),
    ("height", "Height", Kind::Whole(64.0, 16384.0), "Pixels"),
    (
        "sampler",
        "Sampler",
        Kind::Samplers,
        "How a step goes from one noise level to the next",
    ),
    (
        "scheduler",
        "Scheduler",
        Kind::Schedules,
        "Which noise levels are visited",
    ),
    (
        "variationseed",
        "Variation Seed",
        Kind::Whole(-1.0, 9e15),
        "Seed of the noise that is mixed in",
    ),
    (
        "variationseedstrength",
        "Variation Seed Strength",
        Kind::Number(0.0, 1.0),
        "How much of it",
    ),
    (
        "clipstopatlayer",
        "CLIP Stop At Layer",
        Kind::Whole(-24.0, -1.0),
        "The layer of CLIP that is taken, from the end",
    ),
    (
        "initimage",
        "Init Image",
        Kind::Picture,
        "The picture to start from",
    ),
    (
        "initimagecreativity",
        "Init Image Creativity",
        Kind::Number(0.0, 1.0),
        "How much of it is changed",
    ),
    ("maskimage", "Mask Image", Kind::Picture, "White is painted"),
    (
        "maskblur",
        "Mask Blur",
        Kind::Whole(0.0, 64.0),
        "Pixels by which the mask is softened",
    ),
    ("loras", "LoRAs", Kind::Loras, "Names of LoRAs"),
    (
        "loraweights",
        "LoRA Weights",
        Kind::Text,
        "A weight for each of them",
    ),
    (
        "ip2pcfg2",
        "IP2P CFG 2",
        Kind::Number(0.0, 100.0),
        "Guidance by the picture, of models for instructions",
    ),
];

/// Parameters that change nothing here, whatever they are.
const WITHOUT_EFFECT: [&str; 12] = [
    "session_id",
    "donotsave",
    "donotsaveintermediates",
    "nopreviews",
    "personalnote",
    "extra_metadata",
    "presets",
    "imageformat",
    "wildcardseed",
    "aspectratio",
    "automaticvae",
    "modelspecificenhancements",
];

/// Whether a value asks for nothing.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => {
            ["", "none", "automatic", "false", "0"].contains(&text.trim().to_lowercase().as_str())
        }
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// The names of a kind.
fn names(app: &App, kind: Kind) -> Option<Vec<String>> {
    let first = |names: &[&str]| names.first().map(|name| name.to_string());
    match kind {
        Kind::Models => Some(vec![app.queue().info().name.clone()]),
        Kind::Loras => Some(
            app.options()
                .loras
                .list()
                .into_iter()
                .map(|(name, _)| name)
                .collect(),
        ),
        Kind::Samplers => Some(
            Sampler::ALL
                .iter()
                .filter_map(|sampler| first(sampler.aliases()))
                .collect(),
        ),
        Kind::Schedules => {
            let all = Schedule::ALL.iter();
            Some(
                all.filter_map(|schedule| first(schedule.aliases()))
                    .collect(),
            )
        }
        _ => None,
    }
}

/// What `ListT2IParams` answers.
pub(super) fn list(app: &App) -> Value {
    let own = &app.queue().info().defaults;
    let list = PARAMS.iter().enumerate().map(|(priority, (id, name, kind, about))| {
        let default = match *id {
            "images" | "batchsize" => "1".to_string(),
            "seed" | "variationseed" => "-1".to_string(),
            "steps" => own.steps.to_string(),
            "cfgscale" => own.guidance.to_string(),
            "width" => own.width.to_string(),
            "height" => own.height.to_string(),
            "model" => app.queue().info().name.clone(),
            "initimagecreativity" => CREATIVITY.to_string(),
            _ => String::new(),
        };
        let (kind_name, range) = match kind {
            Kind::Text => ("text", None),
            Kind::Whole(least, most) => ("integer", Some((*least, *most))),
            Kind::Number(least, most) => ("decimal", Some((*least, *most))),
            Kind::Picture => ("image", None),
            Kind::Models => ("model", None),
            Kind::Loras => ("list", None),
            Kind::Samplers | Kind::Schedules => ("dropdown", None),
        };
        let subtype = match kind {
            Kind::Models => json!("Stable-Diffusion"),
            Kind::Loras => json!("LoRA"),
            _ => Value::Null,
        };
        json!({
            "name": name, "id": id, "description": about, "type": kind_name, "subtype": subtype, "default": default,
            "min": range.map_or(0.0, |range| range.0), "max": range.map_or(0.0, |range| range.1),
            "view_max": range.map_or(0.0, |range| range.1), "step": 1, "values": names(app, *kind), "examples": null,
            "visible": true, "advanced": priority > 12, "feature_flag": null, "toggleable": true, "priority": priority,
            "group": null, "always_retain": false, "do_not_save": false, "do_not_preview": false, "view_type": "normal",
            "extra_hidden": false,
        })
    });
    json!({
        "list": list.collect::<Vec<Value>>(),
        "groups": [],
        "models": {"Stable-Diffusion": names(app, Kind::Models), "LoRA": names(app, Kind::Loras)},
        "wildcards": [],
        "param_edits": null,
    })
}

/// The parameters of a request.
pub(super) struct Asked<'a>(pub(super) &'a Map<String, Value>);

impl Asked<'_> {
    /// A value by its id; one that asks for nothing is none.
    fn get(&self, id: &str) -> Option<&Value> {
        let own = self.0.get(id).or_else(|| {
            let plain = |name: &str| name.to_lowercase().replace([' ', '_'], "");
            let found = self.0.iter().find(|(name, _)| plain(name) == id);
            found.map(|(_, value)| value)
        });
        own.filter(|value| !value.is_null() && value.as_str() != Some(""))
    }

    fn number(&self, id: &str) -> Result<Option<f64>, ApiError> {
        let Some(value) = self.get(id) else {
            return Ok(None);
        };
        let wrong = || ApiError::field(id, format!("{id}: {value} is no number"));
        let number = match value {
            Value::String(text) => text.trim().parse().ok(),
            value => value.as_f64(),
        };
        number
            .filter(|number: &f64| number.is_finite())
            .map(Some)
            .ok_or_else(wrong)
    }

    fn whole(&self, id: &str) -> Result<Option<i64>, ApiError> {
        let Some(number) = self.number(id)? else {
            return Ok(None);
        };
        match number.fract() == 0.0 && number.abs() < 9.1e15 {
            true => Ok(Some(number as i64)),
            false => Err(ApiError::field(
                id,
                format!("{id}: {number} is no whole number"),
            )),
        }
    }

    fn count(&self, id: &str) -> Result<Option<usize>, ApiError> {
        let Some(number) = self.whole(id)? else {
            return Ok(None);
        };
        let count = usize::try_from(number);
        count
            .map(Some)
            .map_err(|_| ApiError::field(id, format!("{id}: {number} is below 0")))
    }

    fn text(&self, id: &str) -> Result<Option<String>, ApiError> {
        match self.get(id) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(value) => Err(ApiError::field(id, format!("{id}: {value} is no text"))),
        }
    }

    /// Texts in a list, or with commas between them.
    fn texts(&self, id: &str) -> Result<Vec<String>, ApiError> {
        match self.get(id) {
            None => Ok(Vec::new()),
            Some(Value::String(text)) => Ok(text
                .split(',')
                .map(|part| part.trim().to_string())
                .collect()),
            Some(Value::Array(list)) => {
                let texts = list.iter().map(|item| match item {
                    Value::String(text) => Some(text.clone()),
                    Value::Number(number) => Some(number.to_string()),
                    _ => None,
                });
                let texts: Option<Vec<String>> = texts.collect();
                texts.ok_or_else(|| ApiError::field(id, format!("{id} is a list of texts")))
            }
            Some(value) => Err(ApiError::field(id, format!("{id}: {value} is no list"))),
        }
    }

    fn loras(&self) -> Result<Vec<Lora>, ApiError> {
        let names = self.texts("loras")?;
        let weights = self.texts("loraweights")?;
        if !weights.is_empty() && weights.len() != names.len() {
            let reason = format!(
                "loraweights has {} weights for {} LoRAs",
                weights.len(),
                names.len()
            );
            return Err(ApiError::field("loraweights", reason));
        }
        let lora = |(at, name): (usize, &String)| {
            let weight = weights.get(at).map_or("1", |weight| weight.as_str());
            let number = weight
                .parse()
                .ok()
                .filter(|number: &f64| number.is_finite());
            let number = number.ok_or_else(|| {
                ApiError::field(
                    "loraweights",
                    format!("loraweights: {weight:?} is no number"),
                )
            })?;
            Ok::<_, ApiError>(Lora::new(crate::recall::comfy::recipe::stem(name), number))
        };
        names.iter().enumerate().map(lora).collect()
    }

    /// Refuses by name what is not implemented.
    fn check(&self, app: &App) -> Result<(), ApiError> {
        for (name, value) in self.0 {
            let id = name.to_lowercase().replace(' ', "");
            let plain = id.replace('_', "");
            let known = PARAMS.iter().any(|(known, ..)| *known == plain);
            if !known && !WITHOUT_EFFECT.contains(&id.as_str()) && !is_off(value) {
                let reason = format!("{name} is not implemented here; leave it out");
                return Err(ApiError::field(name, reason));
            }
        }
        match self.text("model")? {
            Some(model) => app
                .same_model(&model)
                .map_err(|e| ApiError::field("model", e.message)),
            None => Ok(()),
        }
    }

    /// The request.
    ///
    /// # Errors
    /// 400 that names the parameter that is wrong, or not implemented here.
    pub(super) async fn request(&self, app: &App) -> Result<ValidRequest, ApiError> {
        self.check(app)?;
        let (scale, distilled) = (self.number("cfgscale")?, self.number("fluxguidancescale")?);
        let (guidance, true_guidance) = match distilled {
            Some(distilled) if app.queue().info().family.has_true_guidance() => {
                (Some(distilled), scale)
            }
            _ => (scale, None),
        };
        let each = self.count("batchsize")?.unwrap_or(1);
        let count = self.count("images")?.unwrap_or(1).saturating_mul(each);
        let skip = self
            .whole("clipstopatlayer")?
            .and_then(|layer| usize::try_from(-layer).ok());
        let mut fields = RequestFields {
            prompt: self.text("prompt")?.unwrap_or_default(),
            negative_prompt: self.text("negativeprompt")?,
            width: self.count("width")?,
            height: self.count("height")?,
            steps: self.count("steps")?,
            guidance,
            true_guidance,
            image_guidance: self.number("ip2pcfg2")?,
            sampler: self.text("sampler")?,
            schedule: self.text("scheduler")?,
            seed: given_seed(self.whole("seed")?),
            batch: Some(count),
            clip_skip: skip,
            loras: self.loras()?,
            ..RequestFields::default()
        };
        fields.noise.variation_seed = given_seed(self.whole("variationseed")?);
        fields.noise.variation = self.number("variationseedstrength")?.unwrap_or(0.0);
        let mask = self.text("maskimage")?.map(|mask| ("maskimage", mask));
        match self.text("initimage")? {
            Some(image) => {
                let mut init = InitFields {
                    strength: Some(self.number("initimagecreativity")?.unwrap_or(CREATIVITY)),
                    ..app.init(("initimage", image), mask).await?
                };
                if init.mask.is_some() {
                    init.mask_blur = Some(self.number("maskblur")?.unwrap_or(4.0));
                }
                let looks = *app.queue().info().references.start() > 0;
                if looks {
                    fields.references = vec![init.image.clone()];
                }
                fields.init = Some(init).filter(|_| !looks);
            }
            None if mask.is_some() => {
                return Err(ApiError::field("maskimage", "maskimage needs initimage"))
            }
            None => {}
        }
        app.valid(fields, &InterfaceDefaults::OPENAI, &app.options().limits)
    }
}
