//! Networks from files and folders, at work: what they make of a picture.

use super::kind::Kind;
use super::library::NetworkKind;
use super::planes::Numbers;
use super::seeing::Seeing;
use super::{filters, lines, pose};
use crate::editing::resample::Resample;
use crate::editing::resize::Filter;
use crate::models::preprocess::body::{Body, STRIDE};
use crate::models::preprocess::dpt::{Depth, DepthConfig};
use crate::models::preprocess::hed::Hed;
use crate::models::preprocess::lineart::{Layout, Lineart};
use crate::models::preprocess::lineart_anime::LineartAnime;
use crate::models::preprocess::mlsd::Mlsd;
use crate::models::{processor, VarBuilder};
use crate::pipeline::picture;
use crate::weights::folder::Folder;
use crate::weights::Weights;
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use image::RgbImage;
use serde_json::Value;
use std::path::Path;
use worker::fault::of_file;
use worker::{Error, Result};

/// Pixels of a picture as M-LSD sees it, each way.
const LINES_SIDE: u32 = 512;

/// Rows of a picture as OpenPose sees it: half of its training pictures'.
const POSE_ROWS: f64 = 184.0;

/// Most pixels of the maps in which people are looked for.
const MOST_POSE_PIXELS: u32 = 1 << 22;

enum Loaded {
    Hed(Hed),
    Lineart(Lineart),
    LineartAnime(LineartAnime),
    Mlsd(Mlsd),
    Body(Body),
    Depth(Box<Depth>),
}

/// A network for a preprocessor.
pub struct Network {
    kind: Kind,
    loaded: Loaded,
    seeing: Seeing,
    device: Device,
}

/// A folder's configuration: what is read of it, and how the network sees.
fn configured<T>(
    path: &Path,
    usual: Seeing,
    read: impl Fn(&Value) -> std::result::Result<T, String>,
) -> Result<(T, Seeing)> {
    const SEEING: &str = "preprocessor_config.json";
    let folder = Folder::Disk(path.to_path_buf());
    let json: Value = folder.json("config.json")?;
    let config = read(&json).map_err(|reason| folder.part("").bad_config(reason))?;
    let seeing = processor::of_folder(&folder, SEEING, usual, Seeing::check)?;
    Ok((config, seeing))
}

impl Network {
    /// Opens a safetensors file or a folder for this preprocessor.
    ///
    /// # Errors
    /// [`Error::BadModel`] for one of another kind, pickles with how to convert them, settings that are not implemented,
    /// which are named, and damage; the device's.
    pub fn open(kind: Kind, path: &Path, device: &Device) -> Result<Self> {
        let is = NetworkKind::of(path)?;
        let wanted = kind.network().map_or(&[][..], |needs| needs.kinds);
        if !wanted.contains(&is) {
            return Err(Error::BadModel {
                path: path.to_path_buf(),
                reason: format!(
                    "the preprocessor {} takes other networks than this ({is:?})",
                    kind.name()
                ),
            });
        }
        let weights = match path.is_dir() {
            true => {
                let folder = Folder::Disk(path.to_path_buf());
                folder.part("").weights()?
            }
            false => Weights::open(path)?,
        };
        let vb = || {
            let loaded = weights.load_all(DType::F32, device)?;
            Ok::<_, Error>(VarBuilder::from_tensors(loaded, DType::F32, device))
        };
        let damaged = || of_file("the preprocessor", path);
        let bad = |reason| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let mut seeing = Seeing::default();
        let loaded = match is {
            NetworkKind::Hed => Loaded::Hed(Hed::new(vb()?).map_err(damaged())?),
            NetworkKind::Lineart => {
                let layout = Layout::of(&weights).map_err(bad)?;
                Loaded::Lineart(Lineart::new(vb()?, &layout).map_err(damaged())?)
            }
            NetworkKind::LineartAnime => {
                Loaded::LineartAnime(LineartAnime::new(vb()?).map_err(damaged())?)
            }
            NetworkKind::Mlsd => Loaded::Mlsd(Mlsd::new(vb()?).map_err(damaged())?),
            NetworkKind::Body => Loaded::Body(Body::new(vb()?).map_err(damaged())?),
            NetworkKind::Dpt | NetworkKind::DepthAnything => {
                let usual = match is {
                    NetworkKind::Dpt => Seeing::default(),
                    _ => Seeing::of_depth_anything(),
                };
                let (config, seen) = configured(path, usual, DepthConfig::of)?;
                seeing = seen;
                let network = Depth::new(vb()?, &config).map_err(damaged())?;
                Loaded::Depth(Box::new(network))
            }
        };
        Ok(Self {
            kind,
            loaded,
            seeing,
            device: device.clone(),
        })
    }

    /// What the network makes of a picture, in its size.
    ///
    /// # Errors
    /// The device's, and for pictures that are too small or too long for the network.
    pub fn run(&self, picture: &RgbImage, [a, b]: [f64; 2]) -> Result<RgbImage> {
        let made = match &self.loaded {
            Loaded::Hed(network) => self.edges(network, picture),
            Loaded::Lineart(network) => self.drawing(network, picture),
            Loaded::LineartAnime(network) => self.anime(network, picture),
            Loaded::Mlsd(network) => self.lines(network, picture, (a, b)),
            Loaded::Body(network) => self.poses(network, picture),
            Loaded::Depth(network) => self.depths(network, picture, a),
        };
        made.map_err(Error::candle("preprocessing a picture"))
    }

    fn edges(&self, network: &Hed, picture: &RgbImage) -> CandleResult<RgbImage> {
        let x = picture::to_tensor(picture, &self.device)?;
        let edges = soft_edges(network, &x)?;
        match self.kind {
            // Thirds, which hide how strong an edge is.
            Kind::SoftEdgeSafe => grey(&((edges * 3.0)?.floor()? / 2.0)?),
            Kind::ScribbleHed => Ok(filters::thinned(&grey(&edges)?)),
            _ => grey(&edges),
        }
    }

    fn drawing(&self, network: &Lineart, picture: &RgbImage) -> CandleResult<RgbImage> {
        let x = picture::to_tensor(picture, &self.device)?;
        // It draws in black.
        let lines = network.forward(&x)?.affine(-1.0, 1.0)?;
        let (height, width) = (picture.height() as usize, picture.width() as usize);
        grey(&lines.narrow(2, 0, height)?.narrow(3, 0, width)?)
    }

    fn anime(&self, network: &LineartAnime, picture: &RgbImage) -> CandleResult<RgbImage> {
        let x = picture::to_tensor(picture, &self.device)?;
        let (_, _, height, width) = x.dims4()?;
        let whole = |side: usize| side.next_multiple_of(network.multiple());
        let resample = Resample::Bicubic { antialias: false };
        let x = resample.apply(&x, whole(height), whole(width))?;
        // Whole steps of 255, as a picture that was resized has them.
        let x = ((x.clamp(0f32, 1f32)? * 255.0)?.round()? / 127.5)?;
        let lines = network.forward(&(x - 1.0)?)?.affine(0.5, 0.5)?;
        let lines = resample.apply(&lines, height, width)?;
        grey(&lines.affine(-1.0, 1.0)?)
    }

    fn lines(
        &self,
        network: &Mlsd,
        picture: &RgbImage,
        (least, longer): (f64, f64),
    ) -> CandleResult<RgbImage> {
        let small = Filter::Box.resize(picture, LINES_SIDE, LINES_SIDE);
        let x = picture::to_tensor(&small, &self.device)?;
        let (_, _, height, width) = x.dims4()?;
        // A fourth channel of ones among bytes.
        let ones = Tensor::full(1f32 / 255.0, (1, 1, height, width), &self.device)?;
        let x = Tensor::cat(&[&x, &ones], 1)?.affine(2.0, -1.0)?;
        let maps = network.forward(&x)?;
        let found = lines::lines(&maps, least, longer)?;
        let (high, wide) = (maps.dim(2)? as f32, maps.dim(3)? as f32);
        let (w, h) = picture.dimensions();
        Ok(lines::draw(
            &found,
            (w, h),
            (w as f32 / wide, h as f32 / high),
        ))
    }

    fn poses(&self, network: &Body, picture: &RgbImage) -> CandleResult<RgbImage> {
        let (width, height) = picture.dimensions();
        let scale = POSE_ROWS / f64::from(height.max(1));
        let side = |side: u32| (f64::from(side) * scale).round().clamp(1.0, 4096.0) as u32;
        let filter = match scale < 1.0 {
            true => Filter::Box,
            false => Filter::Lanczos,
        };
        let seen = filter.resize(picture, side(width), side(height));
        let x = picture::to_tensor(&seen, &self.device)?;
        // Blue first, and as much of 256 as of 255.
        let channels = (0..3).rev().map(|i| x.narrow(1, i, 1));
        let channels = channels.collect::<CandleResult<Vec<_>>>()?;
        let x = Tensor::cat(&channels, 1)?.affine(255.0 / 256.0, -0.5)?;
        let more = |side: usize| side.next_multiple_of(STRIDE) - side;
        let (_, _, h, w) = x.dims4()?;
        // What is added is grey, which is zero here.
        let x = x.pad_with_zeros(2, 0, more(h))?;
        let x = x.pad_with_zeros(3, 0, more(w))?;
        let (fields, maps) = network.forward(&x.contiguous()?)?;
        // A large picture's maps would be large, too: people are found as well in smaller ones.
        let pixels = f64::from(width) * f64::from(height);
        let shrink = (f64::from(MOST_POSE_PIXELS) / pixels).sqrt().min(1.0);
        let shrunk = |side: u32| ((f64::from(side) * shrink) as u32).max(1);
        let size = (shrunk(width), shrunk(height));
        let planes = |x: &Tensor| {
            let (_, count, h8, w8) = x.dims4()?;
            let each = (0..count).map(|i| {
                let one = x.narrow(1, i, 1)?;
                let resample = Resample::Bicubic { antialias: false };
                let one = resample.apply(&one, h8 * STRIDE, w8 * STRIDE)?;
                let one = one.narrow(2, 0, h)?.narrow(3, 0, w)?;
                Numbers::of(&one.contiguous()?, size)
            });
            each.collect::<CandleResult<Vec<_>>>()
        };
        let mut people = pose::people(&planes(&maps)?, &planes(&fields)?);
        for joint in people.iter_mut().flatten().flatten() {
            *joint = (joint.0 / shrink, joint.1 / shrink);
        }
        Ok(pose::draw(&people, width, height))
    }

    fn depths(&self, network: &Depth, picture: &RgbImage, a: f64) -> CandleResult<RgbImage> {
        let x = self.seeing.tensor(picture, &self.device)?;
        let depths = Numbers::of(&network.forward(&x)?, picture.dimensions())?;
        Ok(match self.kind {
            Kind::Normal => depths.normals(a),
            _ => depths.spread(network.is_metric()).grey(),
        })
    }
}

/// `(1, 1, height, width)` in 0..1 as grey, rounded.
fn grey(x: &Tensor) -> CandleResult<RgbImage> {
    let mut pictures = picture::from_tensor(&x.repeat((1, 3, 1, 1))?)?;
    let picture = pictures.pop();
    picture.ok_or_else(|| candle_core::Error::msg("a preprocessor without a picture"))
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
