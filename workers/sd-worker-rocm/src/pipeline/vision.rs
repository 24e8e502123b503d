//! Pictures as CLIP sees them.

use super::module::Module;
use crate::editing::resize::Filter;
use crate::models::clip_vision::{ClipVision, ClipVisionConfig};
use crate::models::config::Others;
use crate::models::processor::{self, Size, WITHOUT_EFFECT};
use crate::weights::folder::Folder;
use crate::weights::Weights;
use candle_core::{DType, Device, Tensor};
use image::imageops;
use image::RgbImage;
use serde::Deserialize;
use std::path::Path;
use worker::{Error, Result};

/// `preprocessor_config.json` of a `CLIPImageProcessor`: the shorter side is scaled, the middle is cut out, colours are
/// brought to mean 0 and deviation 1.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClipPictures {
    size: Size,
    crop_size: Size,
    image_mean: [f64; 3],
    image_std: [f64; 3],
    rescale_factor: f64,
    resample: usize,
    do_resize: bool,
    do_center_crop: bool,
    do_rescale: bool,
    do_normalize: bool,
    /// What no field has.
    #[serde(flatten)]
    others: Others,
}

impl Default for ClipPictures {
    fn default() -> Self {
        Self {
            size: Size::Shortest(224),
            crop_size: Size::Sides {
                height: 224,
                width: 224,
            },
            image_mean: [0.48145466, 0.4578275, 0.40821073],
            image_std: [0.26862954, 0.26130258, 0.27577711],
            rescale_factor: 1.0 / 255.0,
            resample: 3,
            do_resize: true,
            do_center_crop: true,
            do_rescale: true,
            do_normalize: true,
            others: Others::default(),
        }
    }
}

impl ClipPictures {
    /// CLIP's own, for pictures of `pixels` each way.
    fn of(pixels: usize) -> Self {
        Self {
            size: Size::Shortest(pixels),
            crop_size: Size::Sides {
                height: pixels,
                width: pixels,
            },
            ..Self::default()
        }
    }

    /// Whether the settings make sense for pictures of `pixels` each way and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self, pixels: usize) -> std::result::Result<(), String> {
        self.others.refuse(&WITHOUT_EFFECT)?;
        for (name, followed) in [
            ("do_resize", self.do_resize),
            ("do_center_crop", self.do_center_crop),
            ("do_rescale", self.do_rescale),
            ("do_normalize", self.do_normalize),
        ] {
            if !followed {
                return Err(format!("{name} false is not implemented"));
            }
        }
        if self.resample != 3 {
            return Err(format!(
                "resample {} is not implemented; there is 3, bicubic",
                self.resample
            ));
        }
        let Size::Shortest(shortest) = self.size else {
            return Err("size other than shortest_edge is not implemented".to_string());
        };
        let Size::Sides { height, width } = self.crop_size else {
            return Err("crop_size has a height and a width".to_string());
        };
        let crop = [height, width];
        if crop != [pixels; 2] || shortest < pixels || shortest > 1 << 12 {
            return Err(format!(
                "pictures of {crop:?} out of {shortest} pixels; the network takes {pixels}"
            ));
        }
        let sound = |values: &[f64; 3]| values.iter().all(|v| v.is_finite());
        if !sound(&self.image_mean)
            || !sound(&self.image_std)
            || self.image_std.contains(&0.0)
            || !self.rescale_factor.is_finite()
        {
            return Err("image_mean, image_std or rescale_factor is out of range".to_string());
        }
        Ok(())
    }

    /// `(1, 3, pixels, pixels)`, f32, on the CPU.
    fn tensor(&self, picture: &RgbImage, pixels: usize) -> candle_core::Result<Tensor> {
        let Size::Shortest(shortest_edge) = self.size else {
            candle_core::bail!("pictures are scaled by their shortest edge")
        };
        let (width, height) = (picture.width() as usize, picture.height() as usize);
        let (short, long) = (width.min(height).max(1), width.max(height));
        // Whole pixels, cut off, as transformers does.
        let longer = (shortest_edge * long / short).min(1 << 16);
        let (w, h) = match width <= height {
            true => (shortest_edge, longer),
            false => (longer, shortest_edge),
        };
        // Towers were trained on pictures that Pillow has scaled.
        let scaled = Filter::Bicubic.resize(picture, w as u32, h as u32);
        let (left, top) = ((w - pixels) / 2, (h - pixels) / 2);
        let side = pixels as u32;
        let middle = imageops::crop_imm(&scaled, left as u32, top as u32, side, side).to_image();
        let mut values = vec![0f32; 3 * pixels * pixels];
        for (i, pixel) in middle.pixels().enumerate() {
            for (c, value) in pixel.0.iter().enumerate() {
                let value = f64::from(*value) * self.rescale_factor;
                let value = (value - self.image_mean[c]) / self.image_std[c];
                values[c * pixels * pixels + i] = value as f32;
            }
        }
        Tensor::from_vec(values, (1, 3, pixels, pixels), &Device::Cpu)
    }
}

/// A tower's files.
pub struct VisionModel {
    config: ClipVisionConfig,
    pictures: ClipPictures,
    weights: Weights,
}

impl VisionModel {
    /// The tower `image_encoder` of a folder, with `image_processor`.
    ///
    /// # Errors
    /// If files are missing or damaged, or ask for what is not implemented.
    pub fn open(folder: &Folder) -> Result<Self> {
        let part = folder.part("image_encoder");
        let config = ClipVisionConfig::from_json(part.config()?).map_err(|e| part.bad_config(e))?;
        let name = "image_processor/preprocessor_config.json";
        let check = |pictures: &ClipPictures| pictures.check(config.image_size);
        let pictures = processor::of_folder(folder, name, ClipPictures::default(), check)?;
        Ok(Self {
            config,
            pictures,
            weights: vision_names(&part.weights()?),
        })
    }

    /// A tower whose folder this is, with `preprocessor_config.json` in it where pictures are to be prepared otherwise
    /// than CLIP's.
    ///
    /// # Errors
    /// Those of [`VisionModel::open`].
    pub fn at(path: &Path) -> Result<Self> {
        let folder = Folder::Disk(path.to_path_buf());
        let part = folder.part("");
        let config = ClipVisionConfig::from_json(part.config()?).map_err(|e| part.bad_config(e))?;
        let name = "preprocessor_config.json";
        let check = |pictures: &ClipPictures| pictures.check(config.image_size);
        let usual = ClipPictures::of(config.image_size);
        let pictures = processor::of_folder(&folder, name, usual, check)?;
        Ok(Self {
            config,
            pictures,
            weights: vision_names(&part.weights()?),
        })
    }

    /// Width of its rows.
    pub fn width(&self) -> usize {
        self.config.hidden_size
    }

    /// Width of its embeddings.
    pub fn embedding(&self) -> usize {
        match self.weights.contains("visual_projection.weight") {
            true => self.config.projection_dim,
            false => self.config.hidden_size,
        }
    }

    /// Its tensors.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// The same, of which what is in 8-bit floats is loaded as wider numbers.
    #[must_use]
    pub fn expanded(mut self) -> Self {
        self.weights = std::mem::take(&mut self.weights).expanded();
        self
    }
}

/// A tower's tensors under the names that most files have; newer transformers leave out the first part.
fn vision_names(weights: &Weights) -> Weights {
    let bare = weights.contains("embeddings.class_embedding");
    weights.renamed(|name| match name {
        _ if name.ends_with("position_ids") => None,
        _ if bare && !name.starts_with("visual_projection.") => {
            Some(format!("vision_model.{name}"))
        }
        _ => Some(name.to_string()),
    })
}

/// The tower at work.
pub struct VisionStage {
    module: Module<ClipVision>,
    pictures: ClipPictures,
    pixels: usize,
    device: Device,
}

impl VisionStage {
    /// Loads the tower.
    ///
    /// # Errors
    /// If weights do not fit the configuration, or the device has no room.
    pub fn new(model: VisionModel, dtype: DType, device: &Device, offload: bool) -> Result<Self> {
        let config = model.config;
        let pixels = config.image_size;
        let build = move |vb: crate::models::VarBuilder| ClipVision::new(vb, &config);
        let what = "the image encoder";
        Ok(Self {
            module: Module::new(what, model.weights, dtype, device, offload, build)?,
            pictures: model.pictures,
            pixels,
            device: device.clone(),
        })
    }

    /// The rows before the last layer, `(pictures, rows, width)`, f32.
    ///
    /// # Errors
    /// If the device fails.
    pub fn rows(&mut self, pictures: &[&RgbImage]) -> Result<Tensor> {
        let pictures = self.prepared(pictures);
        self.look(pictures, |network, pictures| network.rows(pictures, 1))
    }

    /// The embeddings, `(pictures, width)`, f32.
    ///
    /// # Errors
    /// If the device fails.
    pub fn embeddings(&mut self, pictures: &[&RgbImage]) -> Result<Tensor> {
        let pictures = self.prepared(pictures);
        self.look(pictures, ClipVision::embeddings)
    }

    /// What [`VisionStage::rows`] are of so many pictures that are all zeros to the network.
    ///
    /// # Errors
    /// If the device fails.
    pub fn rows_of_nothing(&mut self, pictures: usize) -> Result<Tensor> {
        let shape = (pictures, 3, self.pixels, self.pixels);
        let zeros = Tensor::zeros(shape, DType::F32, &Device::Cpu);
        self.look(zeros, |network, pictures| network.rows(pictures, 1))
    }

    fn prepared(&self, pictures: &[&RgbImage]) -> candle_core::Result<Tensor> {
        let pictures = pictures.iter();
        let pictures = pictures.map(|picture| self.pictures.tensor(picture, self.pixels));
        Tensor::cat(&pictures.collect::<candle_core::Result<Vec<_>>>()?, 0)
    }

    fn look(
        &mut self,
        pictures: candle_core::Result<Tensor>,
        of: impl Fn(&ClipVision, &Tensor) -> candle_core::Result<Tensor>,
    ) -> Result<Tensor> {
        let network = self.module.network()?;
        let look = || {
            let pictures = pictures?.to_device(&self.device)?;
            of(&network, &pictures.to_dtype(self.module.dtype())?)?.to_dtype(DType::F32)
        };
        let seen = look().map_err(Error::candle("looking at a picture"));
        self.module.rest();
        seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_followed_is_named() {
        let check = |json: &str| {
            serde_json::from_str::<ClipPictures>(json)
                .unwrap()
                .check(224)
        };
        assert_eq!(check("{}"), Ok(()));
        assert_eq!(
            check(
                r#"{"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}}"#
            ),
            Ok(())
        );
        for (json, named) in [
            (r#"{"do_resize": false}"#, "do_resize"),
            (r#"{"resample": 2}"#, "resample"),
            (r#"{"crop_size": 336}"#, "336"),
            (r#"{"size": {"height": 224, "width": 224}}"#, "size"),
            (r#"{"image_std": [1.0, 0.0, 1.0]}"#, "image_std"),
        ] {
            let error = check(json).unwrap_err();
            assert!(error.contains(named), "{json}: {error}");
        }
    }

    #[test]
    fn the_middle_of_the_shorter_side() {
        // Left and right are black, the middle is white.
        let picture = RgbImage::from_fn(90, 30, |x, _| {
            image::Rgb([255 * u8::from((30..60).contains(&x)); 3])
        });
        let how = ClipPictures {
            size: Size::Shortest(10),
            ..ClipPictures::default()
        };
        let rows = how.tensor(&picture, 10).unwrap();
        let values: Vec<f32> = rows.flatten_all().unwrap().to_vec1().unwrap();
        let white = (1.0 - how.image_mean[0]) / how.image_std[0];
        for row in values[..100].chunks(10) {
            assert!((f64::from(row[5]) - white).abs() < 0.05, "{row:?}");
        }
    }
}
