//! IP-Adapters of a UNet.

use super::run::Part;
use crate::editing::resample::Resample;
use crate::models::ip_adapter::{IpAdapter, IpConfig, Sees};
use crate::models::unet::transformer::PictureKeys;
use crate::models::unet::{Condition, UNet};
use crate::models::VarBuilder;
use crate::pipeline::module::Module;
use crate::pipeline::vision::{VisionModel, VisionStage};
use crate::request::{IpAdapter as Asked, Way};
use crate::weights::Weights;
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// The adapters that requests have named so far, and the image encoders that they look through.
pub struct IpAdapters {
    open: HashMap<PathBuf, (IpConfig, Module<IpAdapter>)>,
    encoders: HashMap<PathBuf, VisionStage>,
    /// The folder of the image encoder, if it was said.
    encoder: Option<PathBuf>,
    device: Device,
    offload: bool,
}

/// What a request's adapters are for.
pub struct Shown<'a> {
    /// Whether a prompt of the batch is the negative one, for each.
    pub negative: Vec<bool>,
    /// Pictures of a prompt.
    pub batch: usize,
    /// Height and width of the latents.
    pub latents: (usize, usize),
    /// The network.
    pub unet: &'a UNet,
}

impl IpAdapters {
    /// None yet; they will be on this device, and look through the image encoder in this folder, or in one beside them.
    pub fn new(encoder: Option<PathBuf>, device: &Device, offload: bool) -> Self {
        Self {
            open: HashMap::new(),
            encoders: HashMap::new(),
            encoder,
            device: device.clone(),
            offload,
        }
    }

    /// Nothing is asked for now.
    pub fn rest(&mut self) {
        self.open.values_mut().for_each(|(_, open)| open.rest());
    }

    /// Adds what an adapter sees to the prompts; `number` is its own among the request's.
    ///
    /// # Errors
    /// If it or its image encoder cannot be loaded or does not fit, or the device fails.
    pub fn show(
        &mut self,
        asked: &Asked,
        number: usize,
        shown: &Shown,
        condition: &mut Condition,
    ) -> Result<()> {
        let dtype = shown.unet.dtype();
        if !self.open.contains_key(&asked.model) {
            let opened = open(&asked.model, dtype, &self.device, self.offload)?;
            self.open.insert(asked.model.clone(), opened);
        }
        let Some((config, _)) = self.open.get(&asked.model) else {
            return Err(gone());
        };
        let config = config.clone();
        let places = shown.unet.places();
        if places.len() != config.channels.len() {
            return Err(bad(
                asked,
                format!(
                    "an IP-Adapter for {} attentions; the model has {}",
                    config.channels.len(),
                    places.len()
                ),
            ));
        }
        let (seen, nothing) = self.seen(asked, config.sees)?;
        let Some((_, module)) = self.open.get_mut(&asked.model) else {
            return Err(gone());
        };
        let adapter = module.network()?;
        let device = &self.device;
        let mut look = || {
            let tokens = |seen: &Tensor| {
                let tokens = adapter.tokens(&seen.to_device(device)?.to_dtype(dtype)?)?;
                // Tokens of all pictures side by side.
                let (pictures, count, width) = tokens.dims3()?;
                tokens.reshape((1, pictures * count, width))
            };
            let (positive, negative) = (tokens(&seen)?, tokens(&nothing)?);
            let rows = shown.negative.iter().map(|is_negative| {
                let tokens = if *is_negative { &negative } else { &positive };
                tokens.repeat((shown.batch, 1, 1))
            });
            let tokens = Tensor::cat(&rows.collect::<CandleResult<Vec<_>>>()?, 0)?;
            // The adapter's order: down, up, between.
            let rank = |way: Way| match way {
                Way::Down(_) => 0,
                Way::Up(_) => 1,
                Way::Mid => 2,
            };
            let mut order: Vec<usize> = (0..places.len()).collect();
            order.sort_by_key(|i| rank(places[*i].way));
            for (own, at) in order.into_iter().enumerate() {
                let place = &places[at];
                let strength = asked.strength * asked.blocks.at(place.way, place.attention);
                if strength == 0.0 {
                    continue;
                }
                let (k, v) = adapter.keys(own, &tokens)?;
                let mask = match &asked.mask {
                    None => None,
                    Some(mask) => {
                        let (height, width) = shown.latents;
                        let half = |size: usize| (0..place.level).fold(size, |n, _| n.div_ceil(2));
                        let mask = mask_of(mask, half(height), half(width))?;
                        Some(mask.to_device(device)?.to_dtype(dtype)?)
                    }
                };
                condition.show(
                    at,
                    PictureKeys {
                        k,
                        v,
                        strength,
                        mask,
                        number,
                    },
                )?;
            }
            Ok(())
        };
        look().map_err(Error::candle("preparing the IP-Adapter"))
    }

    /// What an adapter looks at, and what stands for nothing beside the negative prompt.
    fn seen(&mut self, asked: &Asked, sees: Sees) -> Result<(Tensor, Tensor)> {
        let failed = || Error::candle("looking at a picture");
        if let Sees::Face(width) = sees {
            let fits = |face: &Vec<f32>| face.len() == width;
            if asked.faces.is_empty() || !asked.faces.iter().all(fits) {
                return Err(bad(
                    asked,
                    format!("FaceID wants embeddings of faces, {width} numbers each (--ip-face, faces): the recogniser that makes them is not part of this program"),
                ));
            }
            let shape = (asked.faces.len(), width);
            let faces = Tensor::from_vec(asked.faces.concat(), shape, &Device::Cpu);
            let faces = faces.map_err(failed())?;
            let nothing = faces.zeros_like().map_err(failed())?;
            return Ok((faces, nothing));
        }
        if asked.images.is_empty() || !asked.faces.is_empty() {
            return Err(bad(
                asked,
                "this IP-Adapter looks at pictures, one or several".to_string(),
            ));
        }
        let path = self.encoder(asked, sees)?;
        let Some(encoder) = self.encoders.get_mut(&path) else {
            return Err(gone());
        };
        let pictures: Vec<_> = asked.images.iter().collect();
        match sees {
            Sees::Embedding(_) => {
                let seen = encoder.embeddings(&pictures)?;
                let nothing = seen.zeros_like().map_err(failed())?;
                Ok((seen, nothing))
            }
            _ => {
                let seen = encoder.rows(&pictures)?;
                Ok((seen, encoder.rows_of_nothing(pictures.len())?))
            }
        }
    }

    /// The folder of an image encoder that fits, loaded.
    fn encoder(&mut self, asked: &Asked, sees: Sees) -> Result<PathBuf> {
        let candidates = match &self.encoder {
            Some(said) => vec![said.clone()],
            // As the adapters' own repository has them.
            None => {
                let beside = asked.model.parent().unwrap_or(Path::new(""));
                let above = beside.parent().unwrap_or(Path::new(""));
                vec![
                    beside.join("image_encoder"),
                    above.join("models").join("image_encoder"),
                    above.join("image_encoder"),
                ]
            }
        };
        let mut found = Vec::new();
        for path in candidates {
            if !path.join("config.json").is_file() {
                continue;
            }
            let model = VisionModel::at(&path)?;
            let (width, fits) = match sees {
                Sees::Embedding(wanted) => (model.embedding(), model.embedding() == wanted),
                Sees::Rows(wanted) | Sees::Face(wanted) => (model.width(), model.width() == wanted),
            };
            if !fits {
                found.push(format!("{} has {width}", path.display()));
                continue;
            }
            if !self.encoders.contains_key(&path) {
                let dtype = match self.device.is_cpu() {
                    true => DType::F32,
                    false => DType::F16,
                };
                let stage = VisionStage::new(model, dtype, &self.device, self.offload)?;
                self.encoders.insert(path.clone(), stage);
            }
            return Ok(path);
        }
        let wanted = match sees {
            Sees::Embedding(width) => format!("embeddings of {width}"),
            Sees::Rows(width) | Sees::Face(width) => format!("rows of {width}"),
        };
        Err(bad(
            asked,
            format!(
                "no image encoder with {wanted} numbers: give its folder with --image-encoder, or put it beside the adapter as image_encoder{}",
                match found.is_empty() {
                    true => String::new(),
                    false => format!(" ({})", found.join(", ")),
                }
            ),
        ))
    }
}

/// What the adapters of a request show in a part of the run.
pub struct Shares(Vec<(f64, f64)>);

impl Shares {
    /// Of these adapters.
    pub fn of(asked: &[Asked]) -> Self {
        Self(asked.iter().map(|one| (one.start, one.end)).collect())
    }

    /// Which of them show something in this part.
    pub fn active(&self, part: Part) -> impl Iterator<Item = bool> + '_ {
        self.0.iter().map(move |share| part.lies_within(*share))
    }

    /// The prompts with what is shown in this part only; `None` if that is all.
    pub fn hide(&self, condition: &Condition, part: Part) -> Option<Condition> {
        let active: Vec<bool> = self.active(part).collect();
        match active.iter().all(|active| *active) {
            true => None,
            false => {
                Some(condition.showing(&|number| active.get(number).is_none_or(|active| *active)))
            }
        }
    }
}

/// A mask for the rows of an attention, `(1, rows, 1)`.
fn mask_of(mask: &image::GrayImage, height: usize, width: usize) -> CandleResult<Tensor> {
    let (columns, rows) = mask.dimensions();
    let shape = (1, 1, rows as usize, columns as usize);
    let mask = Tensor::from_slice(mask.as_raw(), shape, &Device::Cpu)?;
    // Black and white, as diffusers makes masks.
    let mask = mask.to_dtype(DType::F32)?.ge(127.5)?.to_dtype(DType::F32)?;
    Resample::Bicubic { antialias: false }
        .apply(&mask, height, width)?
        .reshape((1, height * width, 1))
}

fn open(
    path: &Path,
    dtype: DType,
    device: &Device,
    offload: bool,
) -> Result<(IpConfig, Module<IpAdapter>)> {
    let weights = Weights::open(path)?;
    let config = IpConfig::of(&weights).map_err(|reason| Error::BadModel {
        path: path.to_path_buf(),
        reason,
    })?;
    let of = config.clone();
    let build = move |vb: VarBuilder| IpAdapter::new(vb, &of);
    let module = Module::new("the IP-Adapter", weights, dtype, device, offload, build)?;
    Ok((config, module))
}

fn gone() -> Error {
    Error::Runtime("the IP-Adapter is gone".to_string())
}

fn bad(asked: &Asked, reason: String) -> Error {
    Error::Usage(format!("ip_adapters: {}: {reason}", asked.model.display()))
}
