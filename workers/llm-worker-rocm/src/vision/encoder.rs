//! An encoder of pictures on a device.

use super::config::VisionConfig;
use super::file::VisionFile;
use super::preprocess::{Pixels, Tile};
use super::projector::{last_norm, Projector};
use super::tower::Tower;
use super::weights::{Loader, Norm};
use crate::engine::media::Features;
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Module, Result, Tensor};
use std::cell::RefCell;
use worker::gguf::Weights;
use worker::Error;

/// Tiles that are computed at once.
const TILES: usize = 8;

/// An encoder's weights on a device.
pub struct Encoder {
    config: VisionConfig,
    tower: Tower,
    norm: Option<Norm>,
    projector: Projector,
    /// Behind which block each is applied.
    deep: Vec<(usize, Projector)>,
    /// What stands behind each line of a picture that was cut into tiles, `(1, width)`.
    newline: Option<Tensor>,
    device: Device,
    dtype: DType,
}

/// What activations are in: halves on a GPU if the matrices are, of which one is named, else f32.
pub(crate) fn activations(file: &dyn Weights, matrix: &str, device: &Device) -> DType {
    let matrix = file.header().tensor(matrix);
    match matrix.and_then(|t| t.dtype().ok()) {
        Some(GgmlDType::F16) if !device.is_cpu() => DType::F16,
        Some(GgmlDType::BF16) if !device.is_cpu() => DType::BF16,
        _ => DType::F32,
    }
}

/// What stands behind each line of a picture that was cut into tiles, as LLaVA 1.6 has it. The first converter had
/// another name for it.
fn newline(loader: &Loader, config: &VisionConfig) -> worker::Result<Option<Tensor>> {
    if config.sizes.is_empty() {
        return Ok(None);
    }
    let name = match loader.has("model.image_newline") {
        true => "model.image_newline",
        false => "v.image_newline",
    };
    let row = loader
        .vector(name, config.output())?
        .reshape((1, config.output()));
    let row = row.map_err(Error::candle("loading the encoder of pictures"))?;
    Ok(Some(row))
}

impl Encoder {
    /// Loads the weights onto a device; `progress` is called with the bytes of each tensor.
    ///
    /// # Errors
    /// [`Error::BadModel`](worker::Error::BadModel) for a file that lacks a tensor or has one too many,
    /// [`Error::Candle`](worker::Error::Candle) if the device has no room.
    pub fn load(
        file: &VisionFile,
        device: &Device,
        progress: &dyn Fn(u64),
    ) -> worker::Result<Self> {
        let config = file.config().clone();
        let dtype = activations(file.weights(), "v.blk.0.attn_out.weight", device);
        let loader = Loader {
            file: file.weights(),
            device,
            dtype,
            progress,
            seen: RefCell::default(),
        };
        let deep = config.deepstack.iter().map(|block| {
            let projector = Projector::load_deep(&loader, &config, *block)?;
            Ok((*block, projector))
        });
        let encoder = Self {
            tower: Tower::load(&loader, &config)?,
            norm: last_norm(&loader, &config)?,
            projector: Projector::load(&loader, &config)?,
            newline: newline(&loader, &config)?,
            deep: deep.collect::<worker::Result<_>>()?,
            device: device.clone(),
            dtype,
            config: config.clone(),
        };
        loader.check_all_seen(&config)?;
        Ok(encoder)
    }

    /// Elements of the rows that it gives.
    pub fn width(&self) -> usize {
        self.config.output()
    }

    /// Whether rows are turned by time, row and column.
    pub fn needs_sections(&self) -> bool {
        self.config.traits.sections
    }

    /// Rows that stand in for the embeddings of a video's tokens, or of a picture's.
    ///
    /// # Errors
    /// If the device fails.
    pub fn encode(&self, pixels: &Pixels) -> Result<Features> {
        let (mut rows, mut deep) = (Vec::new(), vec![Vec::new(); self.deep.len()]);
        for tiles in pixels.tiles.chunks(TILES) {
            let tiles: Vec<&Tile> = tiles.iter().collect();
            let grid = (tiles[0].rows, tiles[0].columns);
            let c = &self.config;
            let take = |block: usize, x: &Tensor| -> Result<()> {
                for ((at, projector), deep) in self.deep.iter().zip(&mut deep) {
                    if *at == block {
                        deep.push(projector.forward(c, x, tiles.len(), grid)?);
                    }
                }
                Ok(())
            };
            let mut x = self
                .tower
                .forward(c, &tiles, &self.device, self.dtype, take)?;
            if let Some(norm) = &self.norm {
                x = norm.forward(&x)?;
            }
            rows.push(self.projector.forward(c, &x, tiles.len(), grid)?);
        }
        let mut rows = Tensor::cat(&rows, 0)?;
        if let (Some(lines), Some(newline)) = (&pixels.lines, &self.newline) {
            let side = self.config.side / self.config.patch;
            let order = lines.order(pixels.grid, side);
            let order = Tensor::from_vec(order, lines.rows(side), &self.device)?;
            rows = Tensor::cat(&[&rows, newline], 0)?.index_select(&order, 0)?;
        }
        Ok(Features {
            rows,
            deep: deep
                .iter()
                .map(|parts| Tensor::cat(parts, 0))
                .collect::<Result<_>>()?,
        })
    }
}
