//! Pictures and masks to tensors and back.

use crate::editing::fit::stretched;
use candle_core::{DType, Device, Result, Tensor};
use image::{GrayImage, RgbImage};

/// A picture of this size.
pub fn resized(picture: &RgbImage, width: usize, height: usize) -> RgbImage {
    stretched(picture, width as u32, height as u32)
}

/// `(1, 3, height, width)`, f32, in 0..1.
pub fn to_tensor(picture: &RgbImage, device: &Device) -> Result<Tensor> {
    let (width, height) = picture.dimensions();
    let shape = (height as usize, width as usize, 3);
    let bytes = Tensor::from_slice(picture.as_raw(), shape, device)?;
    (bytes
        .permute((2, 0, 1))?
        .contiguous()?
        .to_dtype(DType::F32)?
        / 255.0)?
        .unsqueeze(0)
}

/// Pictures of `(batch, 3, height, width)` in 0..1; what is outside is cut, numbers are rounded to the nearest.
///
/// # Errors
/// If the device fails.
pub fn from_tensor(pictures: &Tensor) -> Result<Vec<RgbImage>> {
    let (batch, channels, height, width) = pictures.dims4()?;
    if channels != 3 {
        candle_core::bail!("pictures of {channels} channels")
    }
    // The half is added before the cast, which drops the fraction.
    let bytes = (pictures.to_dtype(DType::F32)?.clamp(0f32, 1f32)? * 255.0)?;
    let bytes = (bytes + 0.5)?.to_dtype(DType::U8)?;
    let bytes = bytes.permute((0, 2, 3, 1))?.contiguous()?;
    (0..batch)
        .map(|i| {
            let bytes = bytes.get(i)?.flatten_all()?.to_vec1::<u8>()?;
            RgbImage::from_raw(width as u32, height as u32, bytes)
                .ok_or_else(|| candle_core::Error::msg("a picture's size"))
        })
        .collect()
}

/// A mask ready for use: white is painted.
#[derive(Debug, Clone)]
pub struct Mask {
    /// In pixels of the request.
    pub pixels: GrayImage,
}

impl Mask {
    fn values(&self, device: &Device) -> Result<Tensor> {
        let (width, height) = self.pixels.dimensions();
        let shape = (1, 1, height as usize, width as usize);
        Tensor::from_slice(self.pixels.as_raw(), shape, device)?.to_dtype(DType::F32)? / 255.0
    }

    /// `(1, 1, height, width)` of latents of `factor` pixels each, 0..1: the mean over each latent's pixels.
    ///
    /// # Errors
    /// If the device fails.
    pub fn latents(&self, factor: usize, device: &Device) -> Result<Tensor> {
        self.values(device)?.avg_pool2d(factor)
    }

    /// `(1, 1, height, width)` in pixels: 1 where more is painted than kept.
    ///
    /// # Errors
    /// If the device fails.
    pub fn hard(&self, device: &Device) -> Result<Tensor> {
        self.values(device)?.ge(0.5)?.to_dtype(DType::F32)
    }
}
