//! The web UI's "Extras": pictures made larger.

use super::lenient::coerce;
use super::refusal::{Refusal, Ui, UiBody};
use crate::editing::resize::Filter;
use crate::faces::{FaceFolders, Faces, RestoreFaces, WEIGHT};
use crate::image_io::{self, to_base64, Format};
use crate::models::faces::Kind;
use crate::parameters::{restored, upscaled};
use crate::server::request::Upload;
use crate::server::App;
use crate::upscale::{enlarge, Method, Network, Tiling, UpscalerFolders};
use axum::Json;
use candle_core::Device;
use image::{imageops, RgbImage};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{json, Map, Value};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use tokio::sync::Semaphore;
use worker::device::beside;
use worker::http::json::{self, Object};
use worker::http::{blocking, ApiError};

/// Upscalers' sides are multiples of this, as the web UI has it.
const MULTIPLE: f64 = 8.0;
/// Most pictures of one request.
const MAX_PICTURES: usize = 64;
/// Pictures are made larger one after the other: each takes memory of the device that denoises, too.
pub(in crate::server) static TURN: Semaphore = Semaphore::const_new(1);

/// Names of what makes pictures larger, the one that does nothing first.
fn names(folders: &UpscalerFolders) -> Vec<String> {
    let files = folders.list().into_iter().map(|(name, _)| name);
    let all = std::iter::once(Method::NONE).chain(Method::pixel_names());
    let all = all.map(str::to_string);
    all.chain(files).collect()
}

pub(super) async fn upscalers(Ui(app): Ui) -> Json<Value> {
    let list = names(&app.options().upscalers).into_iter().map(|name| {
        json!({"name": name, "model_name": null, "model_path": null, "model_url": null, "scale": 4})
    });
    Json(list.collect())
}

/// What makes latents larger between two passes.
pub(super) async fn latent_modes() -> Json<Value> {
    Json(
        Method::latent_names()
            .map(|name| json!({"name": name}))
            .collect(),
    )
}

/// The networks.
pub(super) async fn networks(Ui(app): Ui) -> Json<Value> {
    let list = app.options().upscalers.list().into_iter();
    let list = list.map(|(name, path)| {
        let file = path
            .file_name()
            .map(|file| file.to_string_lossy().into_owned());
        json!({"name": name, "path": file, "scale": 4})
    });
    Json(list.collect())
}

/// The kinds of networks that can restore faces here; empty without one that finds them.
pub(super) async fn face_restorers(Ui(app): Ui) -> Json<Value> {
    let folders = &app.options().faces;
    let kinds = [Kind::CodeFormer, Kind::Gfpgan].map(Kind::label);
    let there = kinds.into_iter().filter(|kind| folders.find(kind).is_ok());
    Json(
        there
            .map(|kind| json!({"name": kind, "cmd_dir": null}))
            .collect(),
    )
}

/// What is asked for of each picture.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "ExtrasFields")]
#[serde(default)]
pub(super) struct Body {
    /// 0 makes it so many times as large as `upscaling_resize` says, 1 of the size that the next two say.
    resize_mode: u8,
    upscaling_resize: f64,
    upscaling_resize_w: u32,
    upscaling_resize_h: u32,
    /// Whether what stands over is cut off, where the shapes differ.
    upscaling_crop: bool,
    upscaler_1: String,
    upscaler_2: String,
    /// How much of the second upscaler's picture is seen, 0 to 1.
    extras_upscaler_2_visibility: f64,
    /// How much of faces that GFPGAN restored is seen, 0 to 1.
    gfpgan_visibility: f64,
    /// The same of CodeFormer.
    codeformer_visibility: f64,
    /// How much of the given face CodeFormer lets through: 0 is the best face, 1 the most alike.
    codeformer_weight: f64,
    /// In base64.
    image: String,
    #[serde(rename = "imageList")]
    image_list: Vec<Named>,
}

/// A picture of several.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
struct Named {
    /// In base64.
    data: String,
}

impl Default for Body {
    /// As the web UI documents them.
    fn default() -> Self {
        Self {
            resize_mode: 0,
            upscaling_resize: 2.0,
            upscaling_resize_w: 512,
            upscaling_resize_h: 512,
            upscaling_crop: true,
            upscaler_1: "None".to_string(),
            upscaler_2: "None".to_string(),
            extras_upscaler_2_visibility: 0.0,
            gfpgan_visibility: 0.0,
            codeformer_visibility: 0.0,
            codeformer_weight: 0.0,
            image: String::new(),
            image_list: Vec::new(),
        }
    }
}

impl Body {
    fn read(mut map: Map<String, Value>) -> Result<Self, ApiError> {
        map.retain(|_, value| !value.is_null());
        coerce(&mut map);
        json::from_value(&Value::Object(map))
    }
}

/// How a picture is made larger; nothing leaves it as it is.
#[derive(Debug, Clone)]
enum How {
    Pixels(Filter),
    Network(PathBuf),
}

/// What becomes of a picture.
#[derive(Debug, Clone)]
struct Plan {
    first: Option<How>,
    second: Option<How>,
    /// By these networks, one after the other.
    faces: Vec<RestoreFaces>,
    visibility: f32,
    to: Target,
    /// What it is called in a picture's text.
    name: String,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    Times(f64),
    Size { width: u32, height: u32, crop: bool },
}

impl Body {
    /// Whose faces are restored by what.
    fn faces(&self, folders: &FaceFolders) -> Result<Vec<RestoreFaces>, ApiError> {
        let mut faces = Vec::new();
        for (field, visibility, kind, weight) in [
            (
                "gfpgan_visibility",
                self.gfpgan_visibility,
                Kind::Gfpgan,
                WEIGHT,
            ),
            (
                "codeformer_visibility",
                self.codeformer_visibility,
                Kind::CodeFormer,
                self.codeformer_weight,
            ),
        ] {
            if visibility == 0.0 {
                continue;
            }
            let refused = |e: worker::Error| ApiError::field(field, format!("{field}: {e}"));
            let wish = RestoreFaces {
                visibility,
                weight,
                ..folders.find(kind.label()).map_err(refused)?
            };
            wish.check().map_err(refused)?;
            faces.push(wish);
        }
        Ok(faces)
    }

    fn plan(&self, folders: &UpscalerFolders, faces: &FaceFolders) -> Result<Plan, ApiError> {
        let visibility = self.extras_upscaler_2_visibility;
        if !(0.0..=1.0).contains(&visibility) {
            return Err(ApiError::field(
                "extras_upscaler_2_visibility",
                "extras_upscaler_2_visibility must be from 0 to 1",
            ));
        }
        let to = match self.resize_mode {
            0 if self.upscaling_resize > 0.0 && self.upscaling_resize <= 16.0 => {
                Target::Times(self.upscaling_resize)
            }
            0 => {
                let reason = "upscaling_resize must be above 0 and at most 16";
                return Err(ApiError::field("upscaling_resize", reason));
            }
            1 => Target::Size {
                width: self.upscaling_resize_w,
                height: self.upscaling_resize_h,
                crop: self.upscaling_crop,
            },
            _ => return Err(ApiError::field("resize_mode", "resize_mode is 0 or 1")),
        };
        Ok(Plan {
            first: upscaler(folders, "upscaler_1", &self.upscaler_1)?,
            second: upscaler(folders, "upscaler_2", &self.upscaler_2)?,
            faces: self.faces(faces)?,
            visibility: visibility as f32,
            to,
            name: self.upscaler_1.clone(),
        })
    }
}

/// An upscaler by its name.
fn upscaler(folders: &UpscalerFolders, field: &str, name: &str) -> Result<Option<How>, ApiError> {
    if name.is_empty() || name.eq_ignore_ascii_case(Method::NONE) {
        return Ok(None);
    }
    match folders.find(name) {
        Ok(Method::Pixels(filter)) => Ok(Some(How::Pixels(filter))),
        Ok(Method::Network(path)) => Ok(Some(How::Network(path))),
        Ok(Method::Latent(_)) | Err(_) => {
            let known = names(folders).join(", ");
            let reason =
                format!("there is no upscaler {name:?} of pictures; this server has {known}");
            Err(ApiError::field(field, reason))
        }
    }
}

/// Upscalers of a request, opened once, and whether it is still wanted.
struct Tools {
    device: Device,
    first: Option<Network>,
    second: Option<Network>,
    faces: Vec<Faces>,
    gone: Arc<AtomicBool>,
}

/// Tells that nobody waits any more, when dropped.
struct Waiting(Arc<AtomicBool>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What went wrong in making a picture larger. Of files clients hear the reason, and not where they are.
fn failed(field: &str, error: &worker::Error) -> ApiError {
    match error {
        worker::Error::Usage(reason) | worker::Error::BadModel { reason, .. } => {
            ApiError::field(field, format!("{field}: {reason}"))
        }
        _ => ApiError::internal(error.to_string()),
    }
}

/// The picture in this size.
fn made(
    how: &How,
    network: &mut Option<Network>,
    (device, gone): (&Device, &AtomicBool),
    image: &RgbImage,
    size: (u32, u32),
) -> worker::Result<RgbImage> {
    let tiling = Tiling::default();
    let mut told = |_, _| match gone.load(Ordering::Relaxed) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let large = match how {
        How::Pixels(filter) => enlarge(image, None, *filter, size, &mut told)?,
        How::Network(path) => {
            let network = match network {
                Some(network) => network,
                None => network.insert(Network::open(path, device)?),
            };
            enlarge(
                image,
                Some((network, &tiling)),
                Filter::Lanczos,
                size,
                &mut told,
            )?
        }
    };
    large.ok_or_else(|| worker::Error::Runtime("nobody waits for the picture".to_string()))
}

impl Plan {
    /// The size of the picture before anything is cut off.
    fn size(&self, image: &RgbImage, limit: u64) -> Result<(u32, u32), ApiError> {
        let (width, height) = (f64::from(image.width()), f64::from(image.height()));
        let (field, factor) = match self.to {
            Target::Times(factor) => ("upscaling_resize", factor),
            Target::Size {
                width: w,
                height: h,
                ..
            } => (
                "upscaling_resize_w",
                (f64::from(w) / width).max(f64::from(h) / height),
            ),
        };
        let side = |side: f64| ((side * factor / MULTIPLE).floor() * MULTIPLE).max(MULTIPLE);
        let (width, height) = (side(width), side(height));
        if width * height > limit as f64 {
            let reason = format!("{width} x {height} are more than {limit} pixels");
            return Err(ApiError::field(field, reason));
        }
        Ok((width as u32, height as u32))
    }

    /// The picture made larger, then its faces restored.
    fn apply(&self, image: &RgbImage, limit: u64, tools: &mut Tools) -> Result<RgbImage, ApiError> {
        let mut picture = self.larger(image, limit, tools)?;
        for (i, wish) in self.faces.iter().enumerate() {
            if tools.faces.len() == i {
                let faces = Faces::open(wish.clone(), &tools.device);
                tools
                    .faces
                    .push(faces.map_err(|e| failed("restore_faces", &e))?);
            }
            let gone = tools.gone.clone();
            let mut told = move |_, _| match gone.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            };
            let restored = tools.faces[i].restore(&picture, &mut told);
            match restored.map_err(|e| failed("restore_faces", &e))? {
                Some((restored, _)) => picture = restored,
                None => return Err(ApiError::internal("nobody waits for the picture")),
            }
        }
        Ok(picture)
    }

    fn larger(
        &self,
        image: &RgbImage,
        limit: u64,
        tools: &mut Tools,
    ) -> Result<RgbImage, ApiError> {
        let Some(first) = &self.first else {
            return Ok(image.clone());
        };
        let (width, height) = self.size(image, limit)?;
        let size = (width, height);
        let place = (&tools.device, &*tools.gone);
        let large = made(first, &mut tools.first, place, image, size);
        let mut large = large.map_err(|e| failed("upscaler_1", &e))?;
        if let Some(second) = self.second.as_ref().filter(|_| self.visibility > 0.0) {
            let other = made(second, &mut tools.second, place, image, size);
            let other = other.map_err(|e| failed("upscaler_2", &e))?;
            for (here, there) in large.iter_mut().zip(other.iter()) {
                let (a, b) = (f32::from(*here), f32::from(*there));
                *here = (a + (b - a) * self.visibility).round() as u8;
            }
        }
        match self.to {
            Target::Size {
                width: w,
                height: h,
                crop: true,
            } => {
                if u64::from(w) * u64::from(h) > limit || w == 0 || h == 0 {
                    let reason = format!("{w} x {h} must be from 1 to {limit} pixels");
                    return Err(ApiError::field("upscaling_resize_w", reason));
                }
                let mut cropped = RgbImage::new(w, h);
                let left = i64::from(w / 2) - i64::from(width / 2);
                let top = i64::from(h / 2) - i64::from(height / 2);
                imageops::replace(&mut cropped, &large, left, top);
                Ok(cropped)
            }
            _ => Ok(large),
        }
    }
}

pub(super) async fn single(
    Ui(app): Ui,
    UiBody(Object(body)): UiBody<Object>,
) -> Result<Json<Value>, Refusal> {
    let mut body = Body::read(body)?;
    let image = std::mem::take(&mut body.image);
    let plan = body.plan(&app.options().upscalers, &app.options().faces)?;
    let large = larger(&app, plan, "image", vec![image]).await?;
    Ok(Json(json!({"html_info": "", "image": large.first()})))
}

pub(super) async fn batch(
    Ui(app): Ui,
    UiBody(Object(body)): UiBody<Object>,
) -> Result<Json<Value>, Refusal> {
    const FIELD: &str = "imageList";
    let mut body = Body::read(body)?;
    let plan = body.plan(&app.options().upscalers, &app.options().faces)?;
    let pictures = std::mem::take(&mut body.image_list);
    if pictures.len() > MAX_PICTURES {
        let reason = format!("there are more than {MAX_PICTURES} pictures");
        return Err(ApiError::field(FIELD, reason).into());
    }
    let pictures = pictures.into_iter().map(|picture| picture.data).collect();
    let images = larger(&app, plan, FIELD, pictures).await?;
    Ok(Json(json!({"html_info": "", "images": images})))
}

/// Pictures made larger, both in base64. What they say that they were made with stays in them.
async fn larger(
    app: &App,
    plan: Plan,
    field: &'static str,
    images: Vec<String>,
) -> Result<Vec<String>, ApiError> {
    let limits = app.options().limits.decode;
    // Pictures are denoised meanwhile, by another thread.
    let device = app.devices().first().map(|device| beside(&device.device));
    let device = device.transpose();
    let device = device.map_err(|error| ApiError::internal(error.to_string()))?;
    let gone = Arc::new(AtomicBool::new(false));
    let waiting = Waiting(gone.clone());
    let mut tools = Tools {
        device: device.unwrap_or(Device::Cpu),
        first: None,
        second: None,
        faces: Vec::new(),
        gone,
    };
    let turn = TURN.acquire().await;
    let turn = turn.map_err(|_| ApiError::internal("no picture is made larger any more"))?;
    let mut answers = Vec::new();
    for image in images {
        let bytes = image_io::from_base64(&image, &limits);
        let said = bytes
            .ok()
            .and_then(|bytes| image_io::parameters_of(&bytes).ok().flatten());
        let image = app.decode(field, Upload::Base64(image)).await?;
        let plan = plan.clone();
        let done = blocking(move || {
            let image = image_io::to_rgb(&image);
            let large = plan.apply(&image, limits.max_pixels, &mut tools)?;
            let scale = f64::from(large.width()) / f64::from(image.width());
            let text = said.map(|said| match plan.first {
                Some(_) => upscaled(&said, scale, &plan.name),
                None => said,
            });
            let text = text.map(|text| {
                let faces = plan.faces.iter();
                faces.fold(text, |text, faces| restored(&text, faces))
            });
            let file = image_io::encode(&large, Format::Png, 0, text.as_deref());
            let file = file.map_err(|e| ApiError::internal(e.to_string()))?;
            Ok::<_, ApiError>((to_base64(&file), tools))
        });
        let (file, kept) = done.await??;
        tools = kept;
        answers.push(file);
    }
    drop((turn, waiting));
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(fields: Value) -> Result<Plan, ApiError> {
        let Value::Object(fields) = fields else {
            panic!("not an object");
        };
        Body::read(fields)?.plan(&UpscalerFolders::default(), &FaceFolders::default())
    }

    fn tools() -> Tools {
        Tools {
            device: Device::Cpu,
            first: None,
            second: None,
            faces: Vec::new(),
            gone: Arc::default(),
        }
    }

    #[test]
    fn pictures_are_made_larger() {
        let image = RgbImage::from_fn(20, 12, |x, y| image::Rgb([x as u8 * 9, y as u8 * 9, 7]));
        let size = |fields| {
            plan(fields)
                .unwrap()
                .apply(&image, 1 << 20, &mut tools())
                .map(|i| i.dimensions())
        };
        assert_eq!(size(json!({})), Ok((20, 12)));
        assert_eq!(size(json!({"upscaler_1": "Lanczos"})), Ok((40, 24)));
        let odd = json!({"upscaler_1": "nearest", "upscaling_resize": "1.5"});
        assert_eq!(size(odd), Ok((24, 16)));
        let to = json!({"upscaler_1": "Nearest", "resize_mode": 1, "upscaling_resize_w": 80, "upscaling_resize_h": 80});
        assert_eq!(size(to), Ok((80, 80)));
        let whole = json!({"upscaler_1": "Nearest", "resize_mode": 1, "upscaling_resize_w": 80, "upscaling_resize_h": 80,
            "upscaling_crop": false});
        assert_eq!(size(whole), Ok((128, 80)));
        let large = json!({"upscaler_1": "Nearest", "upscaling_resize": 16});
        let error = plan(large)
            .unwrap()
            .apply(&image, 1 << 10, &mut tools())
            .unwrap_err();
        assert_eq!(error.param.as_deref(), Some("upscaling_resize"));
    }

    #[test]
    fn two_upscalers_are_mixed() {
        let image = RgbImage::from_fn(8, 8, |x, _| image::Rgb([x as u8 * 30; 3]));
        let made = |second: f64| {
            let fields = json!({"upscaler_1": "Lanczos", "upscaler_2": "Nearest", "extras_upscaler_2_visibility": second});
            plan(fields)
                .unwrap()
                .apply(&image, 1 << 20, &mut tools())
                .unwrap()
        };
        let (first, second, half) = (made(0.0), made(1.0), made(0.5));
        assert_ne!(first, second);
        for ((a, b), mixed) in first.iter().zip(second.iter()).zip(half.iter()) {
            let middle = (i32::from(*a) + i32::from(*b)) / 2;
            assert!((i32::from(*mixed) - middle).abs() <= 1);
        }
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for (fields, blamed) in [
            (json!({"upscaler_1": "SwinIR 4x"}), "upscaler_1"),
            (json!({"upscaler_2": "LDSR"}), "upscaler_2"),
            (json!({"upscaler_1": "Latent"}), "upscaler_1"),
            (
                json!({"codeformer_visibility": 0.5}),
                "codeformer_visibility",
            ),
            (json!({"gfpgan_visibility": "0.5"}), "gfpgan_visibility"),
            (json!({"resize_mode": 2}), "resize_mode"),
            (json!({"upscaling_resize": 0}), "upscaling_resize"),
            (
                json!({"extras_upscaler_2_visibility": 2}),
                "extras_upscaler_2_visibility",
            ),
        ] {
            let error = plan(fields.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(blamed), "{fields}");
        }
    }
}
