//! FLUX.1 Redux: pictures as prompts. SigLIP looks at them, two layers bring what it sees to the width of T5's text, and it
//! is read behind the text.

use super::module::Module;
use super::text::Encoded;
use super::Pipeline;
use crate::editing::resize::Filter;
use crate::info::Family;
use crate::models::config::Others;
use crate::models::layers::{linear, Linear};
use crate::models::processor::{self, Size, WITHOUT_EFFECT};
use crate::models::siglip::{Siglip, SiglipConfig};
use crate::models::VarBuilder;
use crate::request::{BlockStrengths, ImageRequest, IpAdapter};
use crate::weights::folder::Folder;
use crate::weights::Weights;
use candle_core::{DType, Device, Module as _, Result as CandleResult, Tensor};
use image::RgbImage;
use serde::Deserialize;
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use worker::{Error, Result};

/// Widest numbers of the two layers.
const WIDEST: usize = 1 << 16;

/// `preprocessor_config.json` of a `SiglipImageProcessor`.
#[derive(Debug, Clone, Deserialize)]
#[serde(default)]
pub struct SiglipPictures {
    size: Option<Size>,
    image_mean: [f64; 3],
    image_std: [f64; 3],
    rescale_factor: f64,
    resample: usize,
    do_resize: bool,
    do_rescale: bool,
    do_normalize: bool,
    /// What no field has.
    #[serde(flatten)]
    others: Others,
}

impl Default for SiglipPictures {
    fn default() -> Self {
        Self {
            size: None,
            image_mean: [0.5; 3],
            image_std: [0.5; 3],
            rescale_factor: 1.0 / 255.0,
            resample: 3,
            do_resize: true,
            do_rescale: true,
            do_normalize: true,
            others: Others::default(),
        }
    }
}

impl SiglipPictures {
    /// Whether the settings make sense for pictures of `pixels` each way and are implemented.
    ///
    /// # Errors
    /// Names the first that does not.
    pub fn check(&self, pixels: usize) -> std::result::Result<(), String> {
        self.others.refuse(&WITHOUT_EFFECT)?;
        let whole = Size::Sides {
            height: pixels,
            width: pixels,
        };
        if self.size.is_some_and(|size| size != whole) {
            return Err(format!(
                "size {:?} for a network of {pixels} pixels",
                self.size
            ));
        }
        if !(self.do_resize && self.do_rescale && self.do_normalize && self.resample == 3) {
            return Err(
                "only do_resize with resample 3, do_rescale and do_normalize are implemented"
                    .to_string(),
            );
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
}

/// `config.json` of a `ReduxImageEncoder`.
#[derive(Debug, Clone, Deserialize)]
pub struct ReduxConfig {
    redux_dim: usize,
    txt_in_features: usize,
    /// What no field has.
    #[serde(flatten)]
    others: Others,
}

impl ReduxConfig {
    /// Whether all settings are known.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn check(&self) -> std::result::Result<(), String> {
        self.others.refuse(&[])
    }
}

/// The two layers.
struct Embedder {
    up: Linear,
    down: Linear,
}

/// The model at work.
pub(super) struct Redux {
    tower: Module<Siglip>,
    embedder: Module<Embedder>,
    pictures: SiglipPictures,
    pixels: usize,
    device: Device,
}

impl Redux {
    /// Opens a folder as diffusers writes it, with `image_encoder`, `image_embedder` and `feature_extractor`; or a file of
    /// the two layers, whose SigLIP is `encoder`, a folder, or `image_encoder` beside the file.
    fn open(
        path: &Path,
        encoder: Option<&Path>,
        (dtype, device, offload): (DType, &Device, bool),
    ) -> Result<Self> {
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let (folder, part, name) = match path.is_dir() {
            true => (
                path.to_path_buf(),
                "image_encoder",
                "feature_extractor/preprocessor_config.json",
            ),
            false => (
                encoder.map_or_else(|| path.with_file_name("image_encoder"), Path::to_path_buf),
                "",
                "preprocessor_config.json",
            ),
        };
        let folder = Folder::Disk(folder);
        let tower = folder.part(part);
        if !tower.exists() {
            return Err(bad(
                "FLUX.1 takes Redux as an IP-Adapter: its folder, with image_encoder and image_embedder in it, or its file with SigLIP's folder beside it as image_encoder or by --image-encoder"
                    .to_string(),
            ));
        }
        let config = SiglipConfig::from_json(tower.config()?).map_err(|e| tower.bad_config(e))?;
        let pixels = config.image_size;
        let check = |pictures: &SiglipPictures| pictures.check(pixels);
        let pictures = processor::of_folder(&folder, name, SiglipPictures::default(), check)?;
        let (layers, seen, text) = match path.is_dir() {
            true => {
                let embedder = folder.part("image_embedder");
                let config: ReduxConfig = embedder.config()?;
                config.check().map_err(|e| embedder.bad_config(e))?;
                let weights = embedder.weights()?;
                (weights, config.redux_dim, config.txt_in_features)
            }
            false => {
                let weights = Weights::open(path)?;
                let shape = weights.shape("redux_up.weight");
                let Some(&[rows, seen]) = shape.as_deref() else {
                    return Err(bad("this is not a file of Redux".to_string()));
                };
                (weights, seen, rows / 3)
            }
        };
        if seen != config.hidden_size || !(1..=WIDEST).contains(&text) {
            return Err(bad(format!(
                "redux_dim {seen} and txt_in_features {text} do not fit an image encoder of width {}",
                config.hidden_size
            )));
        }
        let build = move |vb: VarBuilder| {
            Ok(Embedder {
                up: linear(vb.pp("redux_up"), seen, 3 * text)?,
                down: linear(vb.pp("redux_down"), 3 * text, text)?,
            })
        };
        // Newer transformers leave out the first part of the tower's names.
        let weights = tower.weights()?;
        let bare = weights.contains("embeddings.patch_embedding.weight");
        let weights = weights.renamed(|name| {
            Some(match bare {
                true => format!("vision_model.{name}"),
                false => name.to_string(),
            })
        });
        let of_tower = move |vb: VarBuilder| Siglip::new(vb, &config);
        Ok(Self {
            tower: Module::new("Redux", weights, dtype, device, offload, of_tower)?,
            embedder: Module::new("Redux", layers, dtype, device, offload, build)?,
            pictures,
            pixels,
            device: device.clone(),
        })
    }

    /// What is read of a picture, `(1, tokens, width of T5's text)`, f32.
    fn tokens(&mut self, picture: &RgbImage) -> Result<Tensor> {
        let (tower, embedder) = (self.tower.network()?, self.embedder.network()?);
        let pixels = self.pixels;
        let side = pixels as u32;
        let scaled = Filter::Bicubic.resize(picture, side, side);
        let mut values = vec![0f32; 3 * pixels * pixels];
        for (i, pixel) in scaled.pixels().enumerate() {
            for (c, value) in pixel.0.iter().enumerate() {
                let value = f64::from(*value) * self.pictures.rescale_factor;
                let value = (value - self.pictures.image_mean[c]) / self.pictures.image_std[c];
                values[c * pixels * pixels + i] = value as f32;
            }
        }
        let look = || {
            let picture = Tensor::from_vec(values, (1, 3, pixels, pixels), &self.device)?;
            let rows = tower.rows(&picture.to_dtype(self.tower.dtype())?)?;
            let rows = rows.to_dtype(self.embedder.dtype())?;
            let tokens = embedder
                .down
                .forward(&embedder.up.forward(&rows)?.silu()?)?;
            tokens.to_dtype(DType::F32)
        };
        let tokens = look().map_err(Error::candle("looking at a picture"));
        self.tower.rest();
        self.embedder.rest();
        tokens
    }
}

/// Those that are loaded.
pub(super) struct Shelf {
    models: HashMap<PathBuf, Redux>,
    dtype: DType,
}

impl Shelf {
    /// None yet; they will compute in these numbers.
    pub(super) fn new(dtype: DType) -> Self {
        Self {
            models: HashMap::new(),
            dtype,
        }
    }

    /// The one of a folder or file, loaded if it is not yet.
    fn get(
        &mut self,
        path: &Path,
        encoder: Option<&Path>,
        device: &Device,
        offload: bool,
    ) -> Result<&mut Redux> {
        match self.models.entry(path.to_path_buf()) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                Ok(entry.insert(Redux::open(path, encoder, (self.dtype, device, offload))?))
            }
        }
    }
}

/// Whether it asks for what only other adapters have.
fn asks_for_more(adapter: &IpAdapter) -> bool {
    !adapter.faces.is_empty()
        || adapter.mask.is_some()
        || adapter.blocks != BlockStrengths::default()
        || (adapter.start, adapter.end) != (0.0, 1.0)
}

impl Pipeline {
    /// Puts a request's pictures behind its prompts, as diffusers' pipeline does: text and tokens of each, times its
    /// strength, are added up.
    pub(super) fn with_redux(
        &mut self,
        request: &ImageRequest,
        prompts: &mut [&mut Encoded],
    ) -> Result<()> {
        if self.info.family != Family::Flux || request.ip_adapters.is_empty() {
            return Ok(());
        }
        let mut seen = Vec::new();
        for adapter in &request.ip_adapters {
            if asks_for_more(adapter) {
                return Err(Error::Usage(
                    "ip_adapters: FLUX.1 Redux has pictures and strengths; masks, blocks, faces and shares of the steps are other adapters'"
                        .to_string(),
                ));
            }
            let offload = self.options.offload;
            let encoder = self.options.image_encoder.as_deref();
            let redux = (self.redux).get(&adapter.model, encoder, &self.place.text, offload)?;
            for picture in &adapter.images {
                seen.push((redux.tokens(picture)?, adapter.strength));
            }
        }
        let all: f64 = seen.iter().map(|(_, strength)| strength).sum();
        let added = |prompt: &Encoded| -> CandleResult<Encoded> {
            let mut tokens: Option<Tensor> = None;
            for (one, strength) in &seen {
                let one = (one * *strength)?;
                tokens = Some(match tokens {
                    Some(sum) => (sum + one)?,
                    None => one,
                });
            }
            let text = (&prompt.text * all)?;
            Ok(Encoded {
                text: match &tokens {
                    Some(tokens) => Tensor::cat(&[&text, tokens], 1)?,
                    None => text,
                },
                pooled: (&prompt.pooled * all)?,
                more: prompt.more.clone(),
            })
        };
        for prompt in prompts {
            **prompt =
                added(prompt).map_err(Error::candle("putting pictures behind the prompt"))?;
        }
        Ok(())
    }
}
