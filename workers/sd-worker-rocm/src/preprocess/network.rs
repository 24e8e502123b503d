//! Networks from files: what they make of a picture.

use super::kind::Kind;
use crate::editing::resample::Resample;
use crate::models::preprocess::hed::Hed;
use crate::models::preprocess::lineart::{Layout, Lineart};
use crate::models::VarBuilder;
use crate::pipeline::picture;
use crate::weights::Weights;
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use image::RgbImage;
use std::path::Path;
use worker::fault::of_file;
use worker::{Error, Result};

/// What a network makes of a picture, in its size. The file is opened for it.
///
/// # Errors
/// [`Error::BadModel`] for another kind of file, pickles, and damage; the device's.
pub(super) fn run(
    kind: Kind,
    path: &Path,
    picture: &RgbImage,
    device: &Device,
) -> Result<RgbImage> {
    let weights = Weights::open(path)?;
    let loaded = weights.load_all(DType::F32, device)?;
    let vb = VarBuilder::from_tensors(loaded, DType::F32, device);
    let damaged = || of_file("the preprocessor", path);
    let failed = || Error::candle("preprocessing a picture");
    let x = picture::to_tensor(picture, device).map_err(failed())?;
    let grey = match kind {
        Kind::SoftEdge => {
            let network = Hed::new(vb).map_err(damaged())?;
            soft_edges(&network, &x).map_err(failed())?
        }
        _ => {
            let bad = |reason| Error::BadModel {
                path: path.to_path_buf(),
                reason,
            };
            let layout = Layout::of(&weights).map_err(bad)?;
            let network = Lineart::new(vb, &layout).map_err(damaged())?;
            // It draws in black.
            let lines = network.forward(&x).and_then(|x| x.affine(-1.0, 1.0));
            let lines = lines.map_err(failed())?;
            let (height, width) = (picture.height() as usize, picture.width() as usize);
            let whole = || lines.narrow(2, 0, height)?.narrow(3, 0, width);
            whole().map_err(failed())?
        }
    };
    let rgb = grey.repeat((1, 3, 1, 1)).map_err(failed())?;
    let mut pictures = picture::from_tensor(&rgb).map_err(failed())?;
    pictures
        .pop()
        .ok_or_else(|| Error::Runtime("a preprocessor without a picture".to_string()))
}

/// The mean of the edges of all scales, `(1, 1, height, width)` in 0..1.
fn soft_edges(network: &Hed, x: &Tensor) -> CandleResult<Tensor> {
    let (_, _, height, width) = x.dims4()?;
    let edges = network.forward(&(x * 255.0)?)?;
    let count = edges.len() as f64;
    let mut sum: Option<Tensor> = None;
    for edge in edges {
        let edge = Resample::Bilinear { antialias: false }.apply(&edge, height, width)?;
        sum = Some(match sum {
            None => edge,
            Some(sum) => (sum + edge)?,
        });
    }
    match sum {
        Some(sum) => candle_nn::ops::sigmoid(&(sum / count)?),
        None => candle_core::bail!("a network without scales"),
    }
}
