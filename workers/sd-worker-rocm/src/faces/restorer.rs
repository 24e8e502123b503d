//! A network that restores faces, at work.

use super::file::{bad, network, Opened};
use crate::models::faces::codeformer::{self, CodeFormer};
use crate::models::faces::gfpgan::{self, Gfpgan};
use crate::models::faces::parsenet::{self, ParseNet, PARTS};
use crate::models::faces::Kind;
use crate::pipeline::module::Module;
use crate::pipeline::picture;
use candle_core::{Device, Tensor};
use image::RgbImage;
use std::path::Path;
use worker::{Error, Result};

enum Network {
    Gfpgan(Module<Gfpgan>),
    CodeFormer(Module<CodeFormer>),
}

/// A network that restores faces.
pub struct Restorer {
    network: Network,
    size: usize,
    device: Device,
}

/// `(1, 3, height, width)` in -1..1.
fn input(face: &RgbImage, device: &Device) -> candle_core::Result<Tensor> {
    picture::to_tensor(face, device)?.affine(2.0, -1.0)
}

impl Restorer {
    /// Opens a safetensors file.
    ///
    /// # Errors
    /// [`Error::BadModel`] for pickles, with how to convert them, networks of a kind that is not implemented, which is
    /// named, and damage.
    pub fn open(path: &Path, device: &Device) -> Result<Self> {
        const NAME: &str = "the restorer of faces";
        let Opened { kind, weights } = Opened::of(path, Kind::restores)?;
        let bad = |reason| bad(path, reason);
        let (network, size) = match kind {
            Kind::Gfpgan => {
                let layout = gfpgan::Layout::of(&weights).map_err(bad)?;
                let size = layout.size();
                let build = move |vb| Gfpgan::new(vb, &layout);
                (
                    Network::Gfpgan(network(NAME, weights, device, build)?),
                    size,
                )
            }
            _ => {
                let layout = codeformer::Layout::of(&weights).map_err(bad)?;
                let size = layout.size();
                let build = move |vb| CodeFormer::new(vb, &layout);
                (
                    Network::CodeFormer(network(NAME, weights, device, build)?),
                    size,
                )
            }
        };
        Ok(Self {
            network,
            size,
            device: device.clone(),
        })
    }

    /// Pixels of the faces that it takes, each way.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The kind, for people.
    pub fn kind(&self) -> &'static str {
        match self.network {
            Network::Gfpgan(_) => Kind::Gfpgan.label(),
            Network::CodeFormer(_) => Kind::CodeFormer.label(),
        }
    }

    /// An aligned face of [`Self::size`] restored. `weight` is how much of the given face CodeFormer lets through.
    ///
    /// # Errors
    /// The device's.
    pub fn restore(&mut self, face: &RgbImage, weight: f64) -> Result<RgbImage> {
        let x = input(face, &self.device).map_err(Error::candle("restoring a face"))?;
        let y = match &mut self.network {
            Network::Gfpgan(module) => module.network()?.forward(&x),
            Network::CodeFormer(module) => module.network()?.forward(&x, weight),
        };
        let restored = y
            .and_then(|y| picture::from_tensor(&y.affine(0.5, 0.5)?))
            .map_err(Error::candle("restoring a face"))?;
        restored
            .into_iter()
            .next()
            .ok_or_else(|| Error::Runtime("a face without a picture".to_string()))
    }
}

/// A network that says what belongs to a face.
pub struct Parser {
    module: Module<ParseNet>,
    device: Device,
}

impl Parser {
    /// Opens a safetensors file.
    ///
    /// # Errors
    /// As [`Restorer::open`]'s.
    pub fn open(path: &Path, device: &Device) -> Result<Self> {
        let Opened { weights, .. } = Opened::of(path, |kind| kind == Kind::Parser)?;
        let layout = parsenet::Layout::of(&weights).map_err(|reason| bad(path, reason))?;
        let build = move |vb| ParseNet::new(vb, &layout);
        Ok(Self {
            module: network("the parser of faces", weights, device, build)?,
            device: device.clone(),
        })
    }

    /// The part that each pixel of an aligned face belongs to, of [`PARTS`], row by row.
    ///
    /// # Errors
    /// The device's.
    pub fn parts(&mut self, face: &RgbImage) -> Result<Vec<u8>> {
        let network = self.module.network()?;
        let run = || {
            let parts = network.forward(&input(face, &self.device)?)?.argmax(1)?;
            parts.flatten_all()?.to_vec1::<u32>()
        };
        let parts = run().map_err(Error::candle("parsing a face"))?;
        Ok(parts
            .into_iter()
            .map(|part| (part as usize).min(PARTS) as u8)
            .collect())
    }
}
