//! How a network of depths sees pictures.

use crate::editing::resize::Filter;
use crate::models::config::{read, Others};
use crate::models::processor::{Size, WITHOUT_EFFECT};
use crate::pipeline::picture;
use candle_core::{Device, Result as CandleResult, Tensor};
use image::RgbImage;
use serde::Deserialize;
use serde_json::Value;

/// Most pixels of a picture as a network sees it.
const MAX_PIXELS: usize = 1 << 24;

/// What is done to a picture before a network sees it: `preprocessor_config.json` of a `DPTImageProcessor`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct Seeing {
    do_resize: bool,
    size: Size,
    resample: u8,
    keep_aspect_ratio: bool,
    ensure_multiple_of: usize,
    do_rescale: bool,
    rescale_factor: f64,
    do_normalize: bool,
    image_mean: [f64; 3],
    image_std: [f64; 3],
    /// What no field has.
    #[serde(flatten)]
    others: Others,
}

/// ImageNet's colours.
const MEAN: [f64; 3] = [0.485, 0.456, 0.406];
const DEVIATION: [f64; 3] = [0.229, 0.224, 0.225];

fn square(side: usize) -> Size {
    Size::Sides {
        height: side,
        width: side,
    }
}

impl Default for Seeing {
    /// As DPT's are.
    fn default() -> Self {
        Self {
            do_resize: true,
            size: square(384),
            resample: 3,
            keep_aspect_ratio: false,
            ensure_multiple_of: 1,
            do_rescale: true,
            rescale_factor: 1.0 / 255.0,
            do_normalize: true,
            image_mean: [0.5; 3],
            image_std: [0.5; 3],
            others: Others::default(),
        }
    }
}

impl Seeing {
    /// As Depth Anything is trained.
    pub fn of_depth_anything() -> Self {
        Self {
            size: square(518),
            keep_aspect_ratio: true,
            ensure_multiple_of: 14,
            image_mean: MEAN,
            image_std: DEVIATION,
            ..Self::default()
        }
    }

    /// Reads `preprocessor_config.json`; settings that are null are those left out.
    ///
    /// # Errors
    /// Names the first that makes no sense or is not implemented.
    pub fn of(json: Value) -> Result<Self, String> {
        let seeing: Self = read(json)?;
        seeing.check().map(|()| seeing)
    }

    /// Whether the settings make sense and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self) -> Result<(), String> {
        self.others.refuse(&WITHOUT_EFFECT)?;
        let near = (self.rescale_factor * 255.0 - 1.0).abs() < 1e-3;
        if !self.do_rescale || !near {
            return Err("do_rescale with rescale_factor 1/255 is implemented only".to_string());
        }
        self.filter()?;
        let Some((height, width)) = self.sides() else {
            return Err("size other than height and width is not implemented".to_string());
        };
        let multiple = self.ensure_multiple_of;
        for side in [height, width, multiple] {
            if !(1..=4096).contains(&side) {
                return Err(format!("a size of {side} pixels; 1 to 4096 are possible"));
            }
        }
        let numbers = self.image_mean.iter().chain(&self.image_std);
        let deviations = self.image_std.iter();
        match numbers.clone().all(|x| x.is_finite()) && deviations.clone().all(|x| *x > 1e-6) {
            true => Ok(()),
            false => Err("image_mean and image_std make no sense".to_string()),
        }
    }

    fn sides(&self) -> Option<(usize, usize)> {
        match self.size {
            Size::Sides { height, width } => Some((height, width)),
            Size::Shortest(_) | Size::Area { .. } => None,
        }
    }

    /// Pillow's numbers.
    fn filter(&self) -> Result<Filter, String> {
        match self.resample {
            0 => Ok(Filter::Nearest),
            1 => Ok(Filter::Lanczos),
            2 => Ok(Filter::Bilinear),
            3 => Ok(Filter::Bicubic),
            4 => Ok(Filter::Box),
            other => Err(format!("resample {other} is not implemented")),
        }
    }

    /// Width and height in which the network sees a picture of this size.
    fn size_of(&self, (width, height): (u32, u32)) -> (usize, usize) {
        let sides = self.sides().filter(|_| self.do_resize);
        let Some((high, wide)) = sides else {
            return (width as usize, height as usize);
        };
        let mut scales = (
            high as f64 / f64::from(height.max(1)),
            wide as f64 / f64::from(width.max(1)),
        );
        if self.keep_aspect_ratio {
            // As little as possible.
            let scale = match (1.0 - scales.1).abs() < (1.0 - scales.0).abs() {
                true => scales.1,
                false => scales.0,
            };
            scales = (scale, scale);
        }
        let multiple = self.ensure_multiple_of as f64;
        // Halves go to the even number, as Python rounds.
        let whole = |side: f64| (side / multiple).round_ties_even().max(1.0) * multiple;
        (
            whole(scales.1 * f64::from(width)) as usize,
            whole(scales.0 * f64::from(height)) as usize,
        )
    }

    /// `(1, 3, height, width)`, f32, normalised.
    ///
    /// # Errors
    /// For a picture so long that it would be too large, and the device's.
    pub fn tensor(&self, picture: &RgbImage, device: &Device) -> CandleResult<Tensor> {
        let (width, height) = self.size_of(picture.dimensions());
        if width.saturating_mul(height) > MAX_PIXELS {
            candle_core::bail!("the network would see {width} x {height} pixels, which is too much")
        }
        let filter = self.filter().map_err(candle_core::Error::msg)?;
        let size = (width as u32, height as u32);
        let pixels = match picture.dimensions() == size {
            true => picture::to_tensor(picture, device)?,
            false => picture::to_tensor(&filter.resize(picture, size.0, size.1), device)?,
        };
        if !self.do_normalize {
            return Ok(pixels);
        }
        let each = |values: [f64; 3]| {
            let values = values.map(|value| value as f32);
            Tensor::from_slice(&values, (1, 3, 1, 1), device)
        };
        pixels
            .broadcast_sub(&each(self.image_mean)?)?
            .broadcast_div(&each(self.image_std)?)
    }
}
