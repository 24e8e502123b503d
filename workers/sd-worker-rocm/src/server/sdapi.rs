//! `/sdapi/v1/…` as AUTOMATIC1111's web UI answers, so that tools made for it work.
//!
//! Options that would change the picture and are not there are refused by name; those that change nothing here are ignored.

use super::answer::encode_all;
use super::request::{seed, set_sampler, Upload};
use super::App;
use crate::image_io::{self, to_base64, Format};
use crate::parameters::Parameters;
use crate::pipeline::ImageRequest;
use crate::rng::RngKind;
use crate::sampling::{Sampler, Schedule};
use axum::extract::{Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{json, Map, Value};
use worker::http::{json, ApiError, JsonBody};

/// The routes.
pub(super) fn routes() -> Router<App> {
    Router::new()
        .route("/sdapi/v1/txt2img", post(txt2img))
        .route("/sdapi/v1/img2img", post(img2img))
        .route("/sdapi/v1/progress", get(progress))
        .route("/sdapi/v1/interrupt", post(interrupt))
        .route("/sdapi/v1/skip", post(interrupt))
        .route("/sdapi/v1/options", get(options).post(set_options))
        .route("/sdapi/v1/samplers", get(samplers))
        .route("/sdapi/v1/schedulers", get(schedulers))
        .route("/sdapi/v1/sd-models", get(sd_models))
        .route("/sdapi/v1/loras", get(loras))
        .route("/sdapi/v1/png-info", post(png_info))
        .route("/sdapi/v1/upscalers", get(nothing))
        .route("/sdapi/v1/prompt-styles", get(nothing))
        .route("/sdapi/v1/hypernetworks", get(nothing))
        .route("/sdapi/v1/sd-vae", get(nothing))
}

/// Lists that are empty here.
async fn nothing() -> Json<[u8; 0]> {
    Json([])
}

#[derive(Debug, Deserialize)]
#[serde(default)]
struct Body {
    prompt: String,
    negative_prompt: String,
    seed: i64,
    sampler_name: Option<String>,
    /// The older name of `sampler_name`.
    sampler_index: Option<String>,
    scheduler: Option<String>,
    batch_size: usize,
    n_iter: usize,
    steps: Option<usize>,
    cfg_scale: Option<f32>,
    width: Option<usize>,
    height: Option<usize>,
    eta: Option<f32>,
    send_images: bool,
    override_settings: Map<String, Value>,

    init_images: Vec<String>,
    mask: Option<String>,
    mask_blur: f32,
    inpainting_mask_invert: u8,
    denoising_strength: Option<f32>,
    resize_mode: u8,
    inpaint_full_res: bool,

    // What would change the picture and is not there.
    enable_hr: bool,
    restore_faces: bool,
    tiling: bool,
    script_name: Option<String>,
    alwayson_scripts: Map<String, Value>,
    subseed_strength: f32,
    refiner_checkpoint: Option<String>,
    styles: Vec<String>,
}

impl Default for Body {
    fn default() -> Self {
        Self {
            prompt: String::new(),
            negative_prompt: String::new(),
            seed: -1,
            sampler_name: None,
            sampler_index: None,
            scheduler: None,
            batch_size: 1,
            n_iter: 1,
            steps: None,
            cfg_scale: None,
            width: None,
            height: None,
            eta: None,
            send_images: true,
            override_settings: Map::new(),
            init_images: Vec::new(),
            mask: None,
            mask_blur: 4.0,
            inpainting_mask_invert: 0,
            denoising_strength: None,
            resize_mode: 0,
            inpaint_full_res: false,
            enable_hr: false,
            restore_faces: false,
            tiling: false,
            script_name: None,
            alwayson_scripts: Map::new(),
            subseed_strength: 0.0,
            refiner_checkpoint: None,
            styles: Vec::new(),
        }
    }
}

/// The web UI's strength of image-to-image.
const STRENGTH: f32 = 0.75;

impl Body {
    /// Reads a body; `null` is as good as left out, as many clients send it.
    fn read(mut map: Map<String, Value>) -> Result<Self, ApiError> {
        map.retain(|_, value| !value.is_null());
        json::from_value(&Value::Object(map))
    }

    /// Refuses by name what is not there.
    fn check(&self) -> Result<(), ApiError> {
        let has_text = |text: &Option<String>| text.as_ref().is_some_and(|t| !t.is_empty());
        for (field, asked) in [
            ("enable_hr", self.enable_hr),
            ("restore_faces", self.restore_faces),
            ("tiling", self.tiling),
            ("script_name", has_text(&self.script_name)),
            ("subseed_strength", self.subseed_strength != 0.0),
            ("refiner_checkpoint", has_text(&self.refiner_checkpoint)),
            ("styles", !self.styles.is_empty()),
            ("resize_mode", self.resize_mode != 0),
            (
                "inpaint_full_res",
                self.inpaint_full_res && self.mask.is_some(),
            ),
        ] {
            if asked {
                return Err(ApiError::field(
                    field,
                    format!("{field} is not implemented here; leave it out"),
                ));
            }
        }
        Ok(())
    }

    fn request(&self, app: &App) -> Result<ImageRequest, ApiError> {
        self.check()?;
        let mut request = app.blank_request(self.prompt.clone());
        request.negative_prompt.clone_from(&self.negative_prompt);
        request.seed = seed(Some(i128::from(self.seed)))?;
        request.steps = self.steps.unwrap_or(request.steps);
        request.guidance = self.cfg_scale.unwrap_or(request.guidance);
        request.width = self.width.unwrap_or(request.width);
        request.height = self.height.unwrap_or(request.height);
        request.eta = self.eta;
        request.batch = self.batch_size.saturating_mul(self.n_iter);
        let sampler = self
            .sampler_name
            .as_deref()
            .or(self.sampler_index.as_deref());
        set_sampler(&mut request, sampler, self.scheduler.as_deref())?;
        for (name, value) in &self.override_settings {
            self.override_setting(app, &mut request, name, value)?;
        }
        Ok(request)
    }

    fn override_setting(
        &self,
        app: &App,
        request: &mut ImageRequest,
        name: &str,
        value: &Value,
    ) -> Result<(), ApiError> {
        let bad = || ApiError::field("override_settings", format!("{name}: {value} is not valid"));
        match name {
            "CLIP_stop_at_last_layers" => {
                request.clip_skip = value.as_u64().ok_or_else(bad)? as usize;
            }
            "randn_source" => {
                let name = value.as_str().ok_or_else(bad)?;
                request.rng = RngKind::from_name(name).map_err(|_| bad())?;
            }
            "sd_model_checkpoint" => app.same_model(value.as_str().ok_or_else(bad)?)?,
            "samples_format" | "save_images_add_number" | "samples_save" => {}
            _ => {
                return Err(ApiError::field(
                    "override_settings",
                    format!("{name} is not implemented here; leave it out"),
                ))
            }
        }
        Ok(())
    }
}

impl App {
    /// Refuses the name of a model that is not loaded.
    fn same_model(&self, name: &str) -> Result<(), ApiError> {
        let ours = &self.queue().info().name;
        let stem = name.split(" [").next().unwrap_or(name);
        let stem = stem.strip_suffix(".safetensors").unwrap_or(stem);
        if stem == ours {
            return Ok(());
        }
        Err(ApiError::field(
            "sd_model_checkpoint",
            format!("this server has one model, {ours}; start another server for {name}"),
        ))
    }
}

async fn txt2img(
    State(app): State<App>,
    JsonBody(body): JsonBody<Map<String, Value>>,
) -> Result<Json<Value>, ApiError> {
    let mut body = Body::read(body)?;
    let mut request = body.request(&app)?;
    let scripts = std::mem::take(&mut body.alwayson_scripts);
    let size = (request.width, request.height);
    request.controls = app.units(scripts, size, None).await?;
    answer(&app, request, body.send_images).await
}

async fn img2img(
    State(app): State<App>,
    JsonBody(body): JsonBody<Map<String, Value>>,
) -> Result<Json<Value>, ApiError> {
    let mut body = Body::read(body)?;
    let mut request = body.request(&app)?;
    if body.init_images.len() != 1 {
        return Err(ApiError::field(
            "init_images",
            "there must be exactly one picture",
        ));
    }
    let image = ("init_images", Upload::Base64(body.init_images.remove(0)));
    let mask = body.mask.take().map(|mask| ("mask", Upload::Base64(mask)));
    let strength = body.denoising_strength.unwrap_or(STRENGTH);
    let mut init = app.init(image, mask, strength).await?;
    init.mask_blur = body.mask_blur;
    init.mask_invert = body.inpainting_mask_invert != 0;
    let scripts = std::mem::take(&mut body.alwayson_scripts);
    let size = (request.width, request.height);
    request.controls = app.units(scripts, size, Some(&init.image)).await?;
    request.init = Some(init);
    answer(&app, request, body.send_images).await
}

async fn answer(app: &App, request: ImageRequest, send: bool) -> Result<Json<Value>, ApiError> {
    let asked = request.clone();
    let outcome = app.generate(request).await?;
    let images: Vec<String> = if send {
        let files = encode_all(outcome.clone(), Format::Png, 0).await?;
        files.iter().map(|file| to_base64(file)).collect()
    } else {
        Vec::new()
    };
    let seeds: Vec<u64> = outcome.pictures.iter().map(|p| p.seed).collect();
    let texts: Vec<&str> = outcome
        .pictures
        .iter()
        .map(|p| p.parameters.as_str())
        .collect();
    let info = json!({
        "prompt": asked.prompt,
        "all_prompts": vec![&asked.prompt; seeds.len()],
        "negative_prompt": asked.negative_prompt,
        "all_negative_prompts": vec![&asked.negative_prompt; seeds.len()],
        "seed": seeds.first(),
        "all_seeds": seeds,
        "width": asked.width,
        "height": asked.height,
        "sampler_name": asked.sampler,
        "cfg_scale": asked.guidance,
        "steps": asked.steps,
        "batch_size": asked.batch,
        "denoising_strength": asked.init.as_ref().map(|init| init.strength),
        "clip_skip": asked.clip_skip,
        "sd_model_name": app.queue().info().name,
        "infotexts": texts,
        "index_of_first_image": 0,
    });
    Ok(Json(json!({
        "images": images,
        "parameters": {
            "prompt": asked.prompt,
            "negative_prompt": asked.negative_prompt,
            "steps": asked.steps,
            "cfg_scale": asked.guidance,
            "width": asked.width,
            "height": asked.height,
            "sampler_name": asked.sampler,
            "scheduler": asked.schedule,
            "batch_size": asked.batch,
            "seed": asked.seed,
        },
        // Text within JSON, as the web UI has it.
        "info": info.to_string(),
    })))
}

#[derive(Deserialize)]
struct ProgressQuery {
    #[serde(default)]
    skip_current_image: bool,
}

async fn progress(State(app): State<App>, Query(query): Query<ProgressQuery>) -> Json<Value> {
    let job = app.queue().running();
    let job = job.as_ref().filter(|job| !job.state.is_final());
    let preview = job.and_then(|job| job.preview.as_ref());
    let image = preview
        .filter(|_| !query.skip_current_image)
        .map(|preview| to_base64(preview));
    Json(json!({
        "progress": job.map_or(0.0, |job| job.progress()),
        "eta_relative": job.and_then(|job| job.seconds_left()).unwrap_or(0.0),
        "state": {
            "skipped": false,
            "interrupted": false,
            "job": job.map_or("", |job| job.id.as_str()),
            "job_count": job.map_or(0, |_| 1 + app.queue().waiting()),
            "job_no": 0,
            "sampling_step": job.map_or(0, |job| job.step),
            "sampling_steps": job.map_or(0, |job| job.total),
        },
        "current_image": image,
        "textinfo": null,
    }))
}

/// Calls the running job off; its client gets an error that says so.
async fn interrupt(State(app): State<App>) -> Json<Value> {
    if let Some(job) = app.queue().running() {
        app.queue().cancel(&job.id);
    }
    Json(json!({}))
}

async fn options(State(app): State<App>) -> Json<Value> {
    let info = app.queue().info();
    Json(json!({
        "sd_model_checkpoint": info.name,
        "sd_checkpoint_hash": null,
        "samples_format": "png",
        "randn_source": "NV",
        "CLIP_stop_at_last_layers": 1,
        "show_progress_every_n_steps": app.options().preview_every,
    }))
}

/// Settings are fixed at the start of the server; the model that is loaded may be named.
async fn set_options(
    State(app): State<App>,
    JsonBody(body): JsonBody<Map<String, Value>>,
) -> Result<Json<Value>, ApiError> {
    for (name, value) in &body {
        match (name.as_str(), value.as_str()) {
            ("sd_model_checkpoint", Some(model)) => app.same_model(model)?,
            _ => {
                return Err(ApiError::field(
                    name,
                    format!("{name} cannot be changed while the server runs; send it with a request in override_settings, or start the server with it"),
                ))
            }
        }
    }
    Ok(Json(json!({})))
}

async fn samplers() -> Json<Value> {
    let list = Sampler::ALL.iter().map(|sampler| {
        json!({
            "name": sampler.label(),
            "aliases": sampler.aliases(),
            "options": {"scheduler": sampler.default_schedule().label()},
        })
    });
    Json(list.collect())
}

async fn schedulers() -> Json<Value> {
    let automatic = json!({
        "name": "automatic", "label": "Automatic", "aliases": null, "default_rho": -1, "need_inner_model": false,
    });
    let own = Schedule::ALL.iter().map(|schedule| {
        let rho = if *schedule == Schedule::Karras { 7 } else { -1 };
        json!({
            "name": schedule.aliases()[0],
            "label": schedule.label(),
            "aliases": schedule.aliases(),
            "default_rho": rho,
            "need_inner_model": false,
        })
    });
    Json(std::iter::once(automatic).chain(own).collect())
}

async fn sd_models(State(app): State<App>) -> Json<Value> {
    let name = &app.queue().info().name;
    Json(json!([{
        "title": name, "model_name": name, "hash": null, "sha256": null, "filename": name, "config": null,
    }]))
}

async fn loras(State(app): State<App>) -> Json<Value> {
    let list = app.options().loras.list();
    let list = list.iter().map(|(name, path)| {
        let file = path.file_name().map(|f| f.to_string_lossy().into_owned());
        json!({"name": name, "alias": name, "path": file, "metadata": {}})
    });
    Json(list.collect())
}

#[derive(Deserialize)]
struct PngInfoBody {
    image: String,
}

async fn png_info(
    State(app): State<App>,
    JsonBody(body): JsonBody<PngInfoBody>,
) -> Result<Json<Value>, ApiError> {
    let limits = app.options().limits.decode;
    let field = |e: worker::Error| ApiError::field("image", e.to_string());
    let bytes = image_io::from_base64(&body.image, &limits).map_err(field)?;
    let text = image_io::parameters_of(&bytes)
        .map_err(field)?
        .unwrap_or_default();
    let read = Parameters::parse(&text);
    let mut parameters = Map::new();
    if !text.is_empty() {
        parameters.insert("Prompt".to_string(), json!(read.prompt));
        parameters.insert("Negative prompt".to_string(), json!(read.negative_prompt));
        for (name, value) in read.settings {
            parameters.insert(name, json!(value));
        }
    }
    Ok(Json(
        json!({"info": text, "items": {"parameters": text}, "parameters": parameters}),
    ))
}
