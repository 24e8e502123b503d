//! The ControlNets that clients may name, and what they ask of them: natively and as the web UI's extension is asked.

use super::request::Upload;
use super::sdapi::refusal::Refusal;
use super::{App, ImageWorker};
use crate::image_io::{self, to_base64, Format};
use crate::preprocess::{Kind, NetworkFolders, Preprocessor};
use crate::request::{Control, ControlMode, Hidden};
use axum::Json;
use candle_core::Device;
use image::imageops::{crop_imm, replace};
use image::{DynamicImage, GrayImage, RgbImage};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use worker::device::beside;
use worker::http::json::{self, Object};
use worker::http::{blocking, ApiError, JsonBody};
use worker::serve::{Model, Route};

/// Most pictures that a preprocessor is given at once.
const MAX_DETECTED: usize = 64;
/// What the extension's units are errors of.
const SCRIPTS: &str = "alwayson_scripts";

/// The routes of the web UI's extension.
pub(super) fn routes() -> Vec<Route<ImageWorker>> {
    vec![
        Route::get(
            "/controlnet/version",
            "The version of the interface",
            version,
        ),
        Route::get(
            "/controlnet/model_list",
            "The ControlNets that clients may name",
            models,
        ),
        Route::get("/controlnet/module_list", "The preprocessors", modules),
        Route::get(
            "/controlnet/control_types",
            "The ControlNets and preprocessors by what they are about",
            types,
        ),
        Route::get(
            "/controlnet/settings",
            "How many units a request may have",
            settings,
        ),
        Route::post(
            "/controlnet/detect",
            "What a preprocessor makes of pictures",
            detect,
        ),
    ]
}

async fn version() -> Json<Value> {
    Json(json!({"version": 2}))
}

/// All in one: files do not say what they are about.
async fn types(Model(app): Model<App>) -> Result<Json<Value>, ApiError> {
    let mut names = vec!["None".to_string()];
    let list = app.options().controls.list();
    names.extend(list.into_iter().map(|(name, _)| name));
    let modules = module_names(&kinds_of(app).await?);
    Ok(Json(json!({"control_types": {"All": {
        "module_list": modules, "model_list": names, "default_option": "none", "default_model": "None",
    }}})))
}

async fn settings(Model(app): Model<App>) -> Json<Value> {
    Json(json!({"control_net_unit_count": app.options().limits.max_controls}))
}

async fn detect(
    Model(app): Model<App>,
    JsonBody(Object(mut body)): JsonBody<Object>,
) -> Result<Json<Value>, Refusal> {
    const FIELD: &str = "controlnet_images";
    let module = body.get("controlnet_module").and_then(Value::as_str);
    let asked = app
        .preprocessor("controlnet_module", module.unwrap_or("none"))
        .await?;
    let number = |field: &str| body.get(field).and_then(Value::as_f64);
    let preprocessor = lenient(
        asked,
        [
            number("controlnet_threshold_a"),
            number("controlnet_threshold_b"),
        ],
        number("controlnet_processor_res"),
    );
    let Some(Value::Array(pictures)) = body.remove(FIELD) else {
        return Err(ApiError::field(FIELD, "there must be a list of pictures").into());
    };
    if pictures.len() > MAX_DETECTED {
        let reason = format!("there are more than {MAX_DETECTED} pictures");
        return Err(ApiError::field(FIELD, reason).into());
    }
    let mut images = Vec::new();
    for picture in pictures {
        let Value::String(picture) = picture else {
            return Err(ApiError::field(FIELD, "pictures are texts in base64").into());
        };
        let image = app.decode(FIELD, Upload::Base64(picture)).await?;
        let image = app
            .preprocessed(FIELD, preprocessor.clone(), image_io::to_rgb(&image))
            .await?;
        let file = blocking(move || image_io::encode(&image, Format::Png, 0, None));
        let file = file.await?.map_err(|e| ApiError::internal(e.to_string()))?;
        images.push(to_base64(&file));
    }
    Ok(Json(json!({"images": images, "info": "Success"})))
}

/// The preprocessors that can be had; looks into the folders with their networks.
async fn kinds_of(app: App) -> Result<Vec<Kind>, ApiError> {
    let folders = app.options().preprocessors.clone();
    blocking(move || folders.kinds()).await
}

async fn models(Model(app): Model<App>) -> Json<Value> {
    let list = app.options().controls.list();
    let names: Vec<_> = list.iter().map(|(name, _)| name).collect();
    Json(json!({"model_list": names}))
}

/// The preprocessors that need no network, and those whose network is there.
async fn modules(Model(app): Model<App>) -> Result<Json<Value>, ApiError> {
    let kinds = kinds_of(app).await?;
    let details = kinds.iter().map(|kind| {
        let sliders = kind.thresholds().iter();
        let sliders = sliders.map(|(name, usual, least, most)| {
            json!({"name": name, "value": usual, "min": least, "max": most})
        });
        let sliders: Vec<_> = sliders.collect();
        (
            kind.web_name().to_string(),
            json!({"model_free": false, "sliders": sliders}),
        )
    });
    let details: Map<String, Value> = details.collect();
    let names = module_names(&kinds);
    Ok(Json(
        json!({"module_list": names, "module_detail": details}),
    ))
}

fn module_names(kinds: &[Kind]) -> Vec<&'static str> {
    kinds.iter().map(|kind| kind.web_name()).collect()
}

/// What the web UI's extension asks for: what is out of range is the usual, as it has it.
fn lenient(
    preprocessor: Preprocessor,
    asked: [Option<f64>; 2],
    resolution: Option<f64>,
) -> Preprocessor {
    let known = preprocessor.kind.thresholds();
    let within = |i: usize| {
        let (_, _, least, most) = known.get(i)?;
        asked[i].filter(|value| (*least..=*most).contains(value))
    };
    Preprocessor {
        thresholds: [within(0), within(1)],
        resolution: resolution
            .filter(|side| (64.0..=4096.0).contains(side))
            .map(|side| side as u32),
        ..preprocessor
    }
}

/// The preprocessor of this name, with its network if it needs one.
fn found(field: &str, module: &str, folders: &NetworkFolders) -> Result<Preprocessor, ApiError> {
    let kind = Kind::from_name(module);
    let kind = kind.map_err(|e| ApiError::field(field, format!("controlnet: {e}")))?;
    let network = match kind.network() {
        None => None,
        Some(_) => Some(folders.find(kind).ok_or_else(|| {
            ApiError::field(
                field,
                format!("controlnet: the preprocessor {module:?} needs a network, and this server has none for it (--preprocessor-dir); make the picture with the command preprocess"),
            )
        })?),
    };
    Ok(Preprocessor {
        network,
        ..Preprocessor::new(kind)
    })
}

impl App {
    /// The preprocessor of this name.
    ///
    /// # Errors
    /// 400 that names one that is not implemented, or whose network is not there.
    async fn preprocessor(
        &self,
        field: &'static str,
        module: &str,
    ) -> Result<Preprocessor, ApiError> {
        let (module, folders) = (module.to_string(), self.options().preprocessors.clone());
        blocking(move || found(field, &module, &folders)).await?
    }

    /// What a preprocessor makes of a picture, off the threads that serve; no preprocessor leaves it as large as it is.
    /// Networks run on the model's first device, and are opened for it: they keep no memory.
    async fn preprocessed(
        &self,
        field: &'static str,
        preprocessor: Preprocessor,
        picture: RgbImage,
    ) -> Result<RgbImage, ApiError> {
        if preprocessor.kind == Kind::None {
            return Ok(picture);
        }
        let device = match (&preprocessor.network, self.devices().first()) {
            // Pictures are denoised meanwhile, by another thread.
            (Some(_), Some(served)) => {
                beside(&served.device).map_err(|e| ApiError::internal(e.to_string()))?
            }
            _ => Device::Cpu,
        };
        let made = blocking(move || preprocessor.run(&picture, &device)).await?;
        made.map_err(|e| match e {
            // Of files clients hear the reason, and not where they are.
            worker::Error::Usage(reason) | worker::Error::BadModel { reason, .. } => {
                ApiError::field(field, format!("controlnet: {reason}"))
            }
            e => ApiError::internal(e.to_string()),
        })
    }
}

fn one() -> f64 {
    1.0
}

/// A ControlNet of a job.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ControlBody {
    model: String,
    /// In base64.
    image: String,
    /// What is made of the picture first.
    preprocessor: Option<String>,
    /// What the preprocessor `inpaint` hides, white; in base64. Without it the job's mask.
    mask: Option<String>,
    /// Its settings.
    #[serde(default)]
    thresholds: Vec<f64>,
    /// Pixels of the shorter side that it looks at.
    resolution: Option<u32>,
    #[serde(default = "one")]
    strength: f64,
    /// `balanced`, `prompt`, `control` or `guess`.
    mode: Option<String>,
    /// What the picture is, for unions of ControlNets and for Stability's networks for 3.5.
    kind: Option<String>,
    #[serde(default)]
    start: f64,
    #[serde(default = "one")]
    end: f64,
}

/// A unit of the web UI's extension. What else its clients send changes nothing here.
#[derive(Debug, Deserialize)]
#[serde(default)]
struct Unit {
    enabled: bool,
    module: String,
    model: String,
    weight: f64,
    image: Option<Value>,
    /// The older name of `image`.
    input_image: Option<Value>,
    guidance_start: f64,
    guidance_end: f64,
    resize_mode: Value,
    control_mode: Value,
    /// What the picture is, for unions of ControlNets.
    union_control_type: Option<String>,
    processor_res: Option<f64>,
    threshold_a: Option<f64>,
    threshold_b: Option<f64>,
    /// Whether the preprocessor looks at the picture in its own size.
    pixel_perfect: bool,
    mask: Option<Value>,
    mask_image: Option<Value>,
}

impl Default for Unit {
    fn default() -> Self {
        Self {
            enabled: true,
            module: String::new(),
            model: String::new(),
            weight: 1.0,
            image: None,
            input_image: None,
            guidance_start: 0.0,
            guidance_end: 1.0,
            resize_mode: json!(1),
            control_mode: json!(0),
            union_control_type: None,
            processor_res: None,
            threshold_a: None,
            threshold_b: None,
            pixel_perfect: false,
            mask: None,
            mask_image: None,
        }
    }
}

/// How a picture of another shape becomes the request's.
#[derive(Clone, Copy, PartialEq)]
enum Fit {
    Stretch,
    Crop,
    Fill,
}

impl Unit {
    fn fit(&self) -> Result<Fit, ApiError> {
        match (self.resize_mode.as_u64(), self.resize_mode.as_str()) {
            (Some(0), _) | (_, Some("Just Resize" | "Scale to Fit (Inner Fit)")) => {
                Ok(Fit::Stretch)
            }
            (Some(1), _) | (_, Some("Crop and Resize")) => Ok(Fit::Crop),
            (Some(2), _) | (_, Some("Resize and Fill" | "Envelope (Outer Fit)")) => Ok(Fit::Fill),
            _ => Err(unit(format!(
                "resize_mode {} is none; use Just Resize, Crop and Resize, or Resize and Fill",
                self.resize_mode
            ))),
        }
    }

    /// Whether prompt or picture counts more: by number or by name.
    fn mode(&self) -> Result<ControlMode, ApiError> {
        const NUMBERED: [ControlMode; 3] = [
            ControlMode::Balanced,
            ControlMode::Prompt,
            ControlMode::Control,
        ];
        let number = self.control_mode.as_u64();
        let numbered = number.and_then(|i| NUMBERED.get(usize::try_from(i).ok()?));
        match (numbered, self.control_mode.as_str()) {
            (Some(mode), _) => Ok(*mode),
            (None, Some(name)) => ControlMode::from_name(name).map_err(unit),
            (None, None) => Err(unit(format!(
                "control_mode is {}; it must be 0 (balanced), 1 (prompt) or 2 (control)",
                self.control_mode
            ))),
        }
    }

    /// The mask in base64, on its own or beside the picture.
    fn mask(&self) -> Option<&str> {
        let own = self.mask.as_ref().or(self.mask_image.as_ref());
        let beside = self.image.as_ref().or(self.input_image.as_ref());
        let beside = beside.and_then(|image| image.get("mask"));
        let text = own.or(beside)?.as_str()?;
        Some(text).filter(|text| !text.is_empty())
    }

    /// The picture in base64, bare or in an object beside its mask.
    fn picture(&self) -> Option<&str> {
        let image = self.image.as_ref().or(self.input_image.as_ref())?;
        let text = image.as_str().or_else(|| image.get("image")?.as_str());
        text.filter(|text| !text.is_empty())
    }
}

/// What a preprocessor hides of the picture.
///
/// # Errors
/// 400 for a mask of one that hides nothing.
fn hidden(field: &str, kind: Kind, mask: Option<GrayImage>) -> Result<Hidden, ApiError> {
    match (kind, mask) {
        (Kind::Inpaint, Some(mask)) => Ok(Hidden::White(mask)),
        (Kind::Inpaint, None) => Ok(Hidden::Masked),
        (_, None) => Ok(Hidden::Nothing),
        (kind, Some(_)) => Err(ApiError::field(
            field,
            format!(
                "controlnet: masks are for the preprocessor inpaint, not for {}; leave it out",
                kind.name()
            ),
        )),
    }
}

fn unit(message: String) -> ApiError {
    ApiError::field(SCRIPTS, format!("controlnet: {message}"))
}

impl App {
    /// The ControlNets of a job.
    pub(super) async fn controls(
        &self,
        bodies: Vec<ControlBody>,
    ) -> Result<Vec<Control>, ApiError> {
        let mut controls = Vec::new();
        for body in bodies {
            let model = self.options().controls.find("controls", &body.model)?;
            let image = self.decode("controls", Upload::Base64(body.image)).await?;
            let module = body.preprocessor.as_deref().unwrap_or("none");
            let asked = self.preprocessor("controls", module).await?;
            let mask = match body.mask {
                Some(mask) => Some(self.decode("controls", Upload::Base64(mask)).await?),
                None => None,
            };
            let hidden = hidden("controls", asked.kind, mask.as_ref().map(image_io::to_mask))?;
            if body.thresholds.len() > 2 {
                let reason = "preprocessors have two thresholds at most";
                return Err(ApiError::field("controls", reason));
            }
            let preprocessor = Preprocessor {
                thresholds: [
                    body.thresholds.first().copied(),
                    body.thresholds.get(1).copied(),
                ],
                resolution: body.resolution,
                ..asked
            };
            let image = image_io::to_rgb(&image);
            let image = self.preprocessed("controls", preprocessor, image).await?;
            controls.push(Control {
                strength: body.strength,
                mode: (body.mode.as_deref())
                    .map_or(Ok(ControlMode::default()), ControlMode::from_name)
                    .map_err(|e| ApiError::field("controls", e))?,
                kind: body.kind,
                start: body.start,
                end: body.end,
                hidden,
                ..Control::new(model, image)
            });
        }
        Ok(controls)
    }

    /// The units among a web UI's scripts, for a picture of this size. A unit without a picture takes `init`.
    pub(super) async fn units(
        &self,
        scripts: Map<String, Value>,
        size: (usize, usize),
        init: Option<&RgbImage>,
    ) -> Result<Vec<Control>, ApiError> {
        let mut controls = Vec::new();
        for (name, mut script) in scripts {
            let args = match script.get_mut("args").map(Value::take) {
                Some(Value::Array(args)) => args,
                None | Some(Value::Null) => Vec::new(),
                Some(_) => return Err(unit("args must be a list of units".to_string())),
            };
            if !name.eq_ignore_ascii_case("controlnet") {
                return Err(ApiError::field(
                    SCRIPTS,
                    format!("the script {name:?} is not implemented here; leave it out"),
                ));
            }
            for arg in args {
                controls.extend(self.unit(arg, size, init).await?);
            }
        }
        Ok(controls)
    }

    async fn unit(
        &self,
        arg: Value,
        size: (usize, usize),
        init: Option<&RgbImage>,
    ) -> Result<Option<Control>, ApiError> {
        let Value::Object(mut fields) = arg else {
            return Err(unit("a unit must be an object".to_string()));
        };
        fields.retain(|_, value| !value.is_null());
        let asked: Unit = json::from_value(&Value::Object(fields))?;
        if !asked.enabled {
            return Ok(None);
        }
        let fit = asked.fit()?;
        let model = self.options().controls.find(SCRIPTS, &asked.model)?;
        let image = match (asked.picture(), init) {
            (Some(image), _) => {
                let image = Upload::Base64(image.to_string());
                image_io::to_rgb(&self.decode(SCRIPTS, image).await?)
            }
            (None, Some(init)) => init.clone(),
            (None, None) => return Err(unit("a unit has no picture".to_string())),
        };
        let sized = |image: RgbImage| match fit {
            Fit::Stretch => image,
            Fit::Crop => cropped(&image, size),
            Fit::Fill => filled(&image, size),
        };
        let image = sized(image);
        let resolution = asked.processor_res.filter(|_| !asked.pixel_perfect);
        let preprocessor = self.preprocessor(SCRIPTS, &asked.module).await?;
        let mask = match asked.mask() {
            None => None,
            Some(mask) => {
                let mask = self.decode(SCRIPTS, Upload::Base64(mask.to_string()));
                let mask = image_io::to_mask(&mask.await?);
                let mask = DynamicImage::from(mask).to_rgb8();
                Some(DynamicImage::from(sized(mask)).to_luma8())
            }
        };
        let hidden = hidden(SCRIPTS, preprocessor.kind, mask)?;
        let thresholds = [asked.threshold_a, asked.threshold_b];
        let preprocessor = lenient(preprocessor, thresholds, resolution);
        let image = self.preprocessed(SCRIPTS, preprocessor, image).await?;
        Ok(Some(Control {
            strength: asked.weight,
            mode: asked.mode()?,
            kind: asked.union_control_type.clone(),
            start: asked.guidance_start,
            end: asked.guidance_end,
            hidden,
            ..Control::new(model, image)
        }))
    }
}

/// The middle of a picture, as large as possible with the shape of `(width, height)`.
fn cropped(image: &RgbImage, (width, height): (usize, usize)) -> RgbImage {
    let (w, h) = (u64::from(image.width()), u64::from(image.height()));
    let (width, height) = (width.max(1) as u64, height.max(1) as u64);
    let wide = (h * width / height).clamp(1, w) as u32;
    let high = (w * height / width).clamp(1, h) as u32;
    let (left, top) = ((image.width() - wide) / 2, (image.height() - high) / 2);
    crop_imm(image, left, top, wide, high).to_image()
}

/// A picture in the middle of one with the shape of `(width, height)`, around it the median colour of its border, as the
/// extension has it. A shape that no picture of a sensible size can have is left to be stretched.
fn filled(image: &RgbImage, (width, height): (usize, usize)) -> RgbImage {
    /// Most pixels that are made up.
    const MAX_PIXELS: u64 = 1 << 25;
    let (w, h) = (u64::from(image.width()), u64::from(image.height()));
    let (width, height) = (width.max(1) as u64, height.max(1) as u64);
    let wide = (h * width).div_ceil(height).max(w);
    let high = (w * height).div_ceil(width).max(h);
    if (wide, high) == (w, h) || wide * high > MAX_PIXELS {
        return image.clone();
    }
    let (right, bottom) = (image.width() - 1, image.height() - 1);
    let is_border = |x: u32, y: u32| x == 0 || y == 0 || x == right || y == bottom;
    let mut border = [Vec::new(), Vec::new(), Vec::new()];
    for (x, y, pixel) in image.enumerate_pixels() {
        if is_border(x, y) {
            for (values, value) in border.iter_mut().zip(pixel.0) {
                values.push(value);
            }
        }
    }
    let median = border.map(|mut values| {
        values.sort_unstable();
        values[values.len() / 2]
    });
    let mut whole = RgbImage::from_pixel(wide as u32, high as u32, image::Rgb(median));
    let (left, top) = ((wide - w) / 2, (high - h) / 2);
    replace(&mut whole, image, left as i64, top as i64);
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_with_a_border() {
        let mut image = RgbImage::from_pixel(9, 4, image::Rgb([5, 6, 7]));
        image.put_pixel(4, 2, image::Rgb([200, 0, 0]));
        let square = filled(&image, (64, 64));
        assert_eq!(square.dimensions(), (9, 9));
        assert_eq!(square.get_pixel(0, 0).0, [5, 6, 7]);
        assert_eq!(square.get_pixel(4, 4).0, [200, 0, 0]);
        assert_eq!(filled(&image, (90, 40)).dimensions(), (9, 4));
        assert_eq!(filled(&image, (1 << 26, 1)).dimensions(), (9, 4));
    }

    #[test]
    fn the_middle_of_a_picture() {
        let image = RgbImage::from_fn(9, 4, |x, y| image::Rgb([x as u8, y as u8, 0]));
        let square = cropped(&image, (64, 64));
        assert_eq!(square.dimensions(), (4, 4));
        assert_eq!(square.get_pixel(0, 0).0, [2, 0, 0]);
        assert_eq!(cropped(&image, (90, 40)), image);
        assert_eq!(cropped(&image, (90, 10)).dimensions(), (9, 1));
        assert_eq!(cropped(&image, (1, 1000)).dimensions(), (1, 4));
    }
}
