//! A network from a file, at work.

use super::tiles::Tiling;
use crate::models::upscale::{Layout, Upscaler};
use crate::pipeline::module::Module;
use crate::pipeline::picture;
use crate::weights::Weights;
use candle_core::{DType, Device, Tensor};
use image::RgbImage;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// A network that makes pictures larger.
pub struct Network {
    module: Module<Upscaler>,
    layout: Layout,
    path: PathBuf,
    device: Device,
}

impl Network {
    /// Opens a safetensors file. On a GPU it computes in f16.
    ///
    /// # Errors
    /// [`Error::BadModel`] for pickles, with how to convert them, networks of a kind that is not implemented, which is
    /// named, and damage.
    pub fn open(path: &Path, device: &Device) -> Result<Self> {
        let weights = Weights::open(path)?;
        let bad = |reason| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let (layout, weights) = Layout::of(&weights).map_err(bad)?;
        let dtype = match device.is_cpu() {
            true => DType::F32,
            false => DType::F16,
        };
        let of = layout.clone();
        let build = move |vb| of.build(vb);
        Ok(Self {
            module: Module::new("the upscaler", weights, dtype, device, false, build)?,
            layout,
            path: path.to_path_buf(),
            device: device.clone(),
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Pixels that a pixel becomes, each way.
    pub fn scale(&self) -> usize {
        self.layout.scale()
    }

    /// The kind, for people.
    pub fn kind(&self) -> &'static str {
        self.layout.kind()
    }

    /// The picture, [`Self::scale`] times as large. `told` is told how many tiles are done and may break off: then there
    /// is none.
    ///
    /// # Errors
    /// The device's.
    pub fn run(
        &mut self,
        picture: &RgbImage,
        tiling: &Tiling,
        told: &mut dyn FnMut(usize) -> ControlFlow<()>,
    ) -> Result<Option<RgbImage>> {
        let scale = self.scale();
        tiling.each(picture, scale, &mut |tile| self.tile(tile), told)
    }

    /// Row by row, three colours a pixel, about 0..1.
    fn tile(&mut self, tile: &RgbImage) -> Result<Vec<f32>> {
        let values = self.tile_once(tile)?;
        // Some networks exceed f16 in their inner layers: from there on f32.
        if self.module.dtype() == DType::F16 && values.iter().any(|v| !v.is_finite()) {
            self.module.set_dtype(DType::F32)?;
            return self.tile_once(tile);
        }
        Ok(values)
    }

    fn tile_once(&mut self, tile: &RgbImage) -> Result<Vec<f32>> {
        let network = self.module.network()?;
        let dtype = self.module.dtype();
        let run = || -> candle_core::Result<Vec<f32>> {
            let x: Tensor = picture::to_tensor(tile, &self.device)?.to_dtype(dtype)?;
            let x = network.forward(&x)?.to_dtype(DType::F32)?;
            x.squeeze(0)?.permute((1, 2, 0))?.flatten_all()?.to_vec1()
        };
        run().map_err(Error::candle("enlarging the picture"))
    }
}
