//! The parts of a request: where it begins, videos, controls, pictures and faces to look at.

use super::RequestArgs;
use crate::cli::png_info::read_picture;
use crate::editing::Editing;
use crate::image_io::{self, DecodeLimits};
use crate::preprocess::{Kind, NetworkFolders, Preprocessor};
use crate::request::{Control, Hidden, HighresFields, InitFields, IpAdapter, VideoFields};
use crate::video::VideoFormat;
use crate::weights::Weights;
use candle_core::{DType, Device};
use std::path::{Path, PathBuf};
use worker::{Error, Result};

impl RequestArgs {
    pub(super) fn highres(&self) -> Option<HighresFields> {
        let fields = HighresFields {
            scale: self.hr_scale,
            width: self.hr_width,
            height: self.hr_height,
            method: self.hr_upscaler.clone(),
            steps: self.hr_steps,
            strength: self.hr_strength,
            sampler: self.hr_sampler.clone(),
            schedule: self.hr_schedule.clone(),
            guidance: self.hr_guidance,
            prompt: self.hr_prompt.clone(),
            negative_prompt: self.hr_negative_prompt.clone(),
            seed: self.hr_seed,
        };
        (fields != HighresFields::default()).then_some(fields)
    }

    pub(super) fn init(&self) -> Result<Option<InitFields>> {
        let Some(path) = &self.init_image else {
            return Ok(None);
        };
        let mask = self.mask.as_deref().map(picture).transpose()?;
        let latent_mask = self.latent_mask.as_deref().map(picture).transpose()?;
        let image = picture(path)?;
        Ok(Some(InitFields {
            strength: self.strength,
            mask: mask.as_ref().map(image_io::to_mask),
            transparency: image_io::transparency_mask(&image),
            latent_mask: latent_mask.as_ref().map(image_io::to_mask),
            mask_from_alpha: self.mask_from_alpha,
            mask_blur: Some(self.mask_blur),
            mask_invert: self.mask_invert,
            editing: Editing {
                fit: self.resize_mode,
                fill: self.mask_fill,
                only_masked: self.only_masked.then_some(self.mask_padding),
                soft: self.soft_mask,
                soft_inpainting: self.soft_inpainting,
                outpaint: self.outpaint.unwrap_or_default(),
            },
            ..InitFields::new(image_io::to_rgb(&image))
        }))
    }

    pub(super) fn video(&self, format: Option<VideoFormat>) -> Result<VideoFields> {
        let read = |path: &Option<PathBuf>| {
            let picture = path.as_deref().map(picture).transpose()?;
            Ok::<_, Error>(picture.as_ref().map(image_io::to_rgb))
        };
        Ok(VideoFields {
            frames: self.frames,
            fps: self.fps,
            first: read(&self.first_frame)?,
            last: read(&self.last_frame)?,
            key_frames: (self.key_frame.iter())
                .map(|(at, path)| Ok((*at, image_io::to_rgb(&picture(path)?))))
                .collect::<Result<_>>()?,
            frame_noise: self.frame_noise,
            decode_timestep: self.decode_timestep,
            decode_noise: self.decode_noise,
            late_guidance: self.late_guidance,
            format,
        })
    }

    pub(super) fn controls(&self) -> Result<Vec<Control>> {
        let count = self.control_model.len();
        if self.control_image.len() != count {
            return Err(Error::Usage(format!(
                "{count} times --control-model, but {} times --control-image",
                self.control_image.len()
            )));
        }
        let folders = NetworkFolders::new(self.preprocessor_dir.clone());
        let pairs = self.control_model.iter().zip(&self.control_image);
        let controls = pairs.enumerate().map(|(i, (model, image))| {
            let kind = of_one("--control-kind", &self.control_kind, i, count)?;
            let name = "--control-preprocessor";
            let made = of_one(name, &self.control_preprocessor, i, count)?.unwrap_or(Kind::None);
            let image = image_io::to_rgb(&picture(image)?);
            let preprocessor = Preprocessor {
                network: folders.find(made),
                ..Preprocessor::new(made)
            };
            let image = preprocessor.run(&image, &Device::Cpu)?;
            let mask = of_one("--control-mask", &self.control_mask, i, count)?;
            let hidden = match (made, mask) {
                (Kind::Inpaint, None) => Hidden::Masked,
                (Kind::Inpaint, Some(mask)) => Hidden::White(image_io::to_mask(&picture(&mask)?)),
                (_, None) => Hidden::Nothing,
                (_, Some(_)) => {
                    return Err(Error::Usage(
                        "--control-mask is for --control-preprocessor inpaint".to_string(),
                    ))
                }
            };
            Ok(Control {
                strength: of_one("--control-strength", &self.control_strength, i, count)?
                    .unwrap_or(1.0),
                mode: of_one("--control-mode", &self.control_mode, i, count)?.unwrap_or_default(),
                kind,
                start: of_one("--control-start", &self.control_start, i, count)?.unwrap_or(0.0),
                end: of_one("--control-end", &self.control_end, i, count)?.unwrap_or(1.0),
                hidden,
                ..Control::new(model.clone(), image)
            })
        });
        controls.collect()
    }

    pub(super) fn ip_adapters(&self) -> Result<Vec<IpAdapter>> {
        let count = self.ip_adapter.len();
        let adapters = self.ip_adapter.iter().enumerate().map(|(i, model)| {
            let images = match of_one("--ip-image", &self.ip_image, i, count)? {
                Some(paths) => paths
                    .split(',')
                    .map(|path| Ok(image_io::to_rgb(&picture(Path::new(path))?)))
                    .collect::<Result<_>>()?,
                None => Vec::new(),
            };
            let faces = match of_one("--ip-face", &self.ip_face, i, count)? {
                Some(path) => faces(&path)?,
                None => Vec::new(),
            };
            let mask = match of_one("--ip-mask", &self.ip_mask, i, count)? {
                Some(path) => Some(image_io::to_mask(&picture(&path)?)),
                None => None,
            };
            Ok(IpAdapter {
                faces,
                strength: of_one("--ip-strength", &self.ip_strength, i, count)?.unwrap_or(1.0),
                blocks: of_one("--ip-blocks", &self.ip_blocks, i, count)?.unwrap_or_default(),
                mask,
                start: of_one("--ip-start", &self.ip_start, i, count)?.unwrap_or(0.0),
                end: of_one("--ip-end", &self.ip_end, i, count)?.unwrap_or(1.0),
                ..IpAdapter::new(model.clone(), images)
            })
        });
        adapters.collect()
    }
}

/// Embeddings of faces in a file: the rows of its one tensor.
fn faces(path: &Path) -> Result<Vec<Vec<f32>>> {
    let bad = |reason: &str| Error::Usage(format!("{}: {reason}", path.display()));
    let weights = Weights::open(path)?;
    let names: Vec<&str> = weights.names().collect();
    let [name] = names[..] else {
        return Err(bad("there must be one tensor, a face a row"));
    };
    let size: usize = weights.shape(name).unwrap_or_default().iter().product();
    if size == 0 || size > 1 << 16 {
        return Err(bad("embeddings of faces are some hundred numbers each"));
    }
    let rows = weights.load(name, DType::F32, &Device::Cpu)?;
    let width = rows.dims().last().copied().unwrap_or(size);
    let rows = rows.reshape((size / width, width));
    let rows = rows.and_then(|rows| rows.to_vec2());
    rows.map_err(Error::candle("reading embeddings of faces"))
}

/// An option's value for one of `count`: its own, or the same for all; none if the option is absent.
fn of_one<T: Clone>(option: &str, values: &[T], one: usize, count: usize) -> Result<Option<T>> {
    match values {
        [] => Ok(None),
        [all] => Ok(Some(all.clone())),
        each if each.len() == count => Ok(each.get(one).cloned()),
        each => Err(Error::Usage(format!(
            "{} times {option} for {count}; give one for all, or one for each",
            each.len()
        ))),
    }
}

/// The picture of a file.
pub(super) fn picture(path: &Path) -> Result<image::DynamicImage> {
    image_io::decode(&read_picture(path)?, &DecodeLimits::default())
        .map_err(|e| Error::Usage(format!("{}: {e}", path.display())))
}
