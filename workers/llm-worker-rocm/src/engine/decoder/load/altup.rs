//! Matrices of blocks that work on one of several streams.

use crate::engine::decoder::altup::{AltUp, Streams};
use crate::engine::decoder::linear::{Linear, Weight};
use crate::engine::decoder::loader::Loader;
use crate::engine::decoder::norm::Norm;
use worker::{Error, Result};

impl Loader<'_> {
    pub(super) fn streams(&self) -> Result<Option<Streams>> {
        let Some(streams) = self.config.streams() else {
            return Ok(None);
        };
        let width = self.config.width;
        let each = |name: &str| -> Result<Vec<Linear>> {
            self.take(name, |bytes, dtype| {
                let matrices = bytes.chunks_exact(bytes.len() / (streams.count - 1));
                let matrix = |bytes: &[u8]| {
                    let shape = (width, width);
                    let weight = Weight::new(bytes, dtype, shape, self.device, self.activations)?;
                    Ok(Linear::new(weight, None))
                };
                matrices.map(matrix).collect()
            })
        };
        Ok(Some(Streams {
            projections: each("altup_proj.weight")?,
            back: each("altup_unembd_proj.weight")?,
        }))
    }

    pub(super) fn altup(&self, block: usize) -> Result<Option<Box<AltUp>>> {
        let Some(streams) = self.config.streams() else {
            return Ok(None);
        };
        let (width, count) = (self.config.width, streams.count);
        let name = |part: &str| format!("blk.{block}.{part}");
        let left = name("laurel_l");
        let rank = self.info(&format!("{left}.weight"))?.0.dims[1] as usize;
        let router_norm = self.norm(&name("altup_router_norm"))?;
        let weight = router_norm.weight.affine(1.0 / width as f64, 0.0);
        Ok(Some(Box::new(AltUp {
            active: streams.active,
            router: self.linear(&name("altup_router"), count, width)?,
            router_norm: Norm {
                weight: weight.map_err(Error::candle("loading the model"))?,
                ..router_norm
            },
            prediction: self.linear(&name("altup_predict_coef"), count * count, count)?,
            correction: self.linear(&name("altup_correct_coef"), count, count)?,
            correct_scale: self.vector(&name("altup_correct_scale.weight"), self.activations)?,
            left: self.linear(&left, rank, width)?,
            right: self.linear(&name("laurel_r"), width, rank)?,
            low_rank_norm: self.norm(&name("laurel_post_norm"))?,
        })))
    }
}
