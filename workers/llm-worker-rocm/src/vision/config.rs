//! An encoder's shape, read from metadata in the terms of llama.cpp's `mmproj` files and checked.

use super::kinds::{projectors, traits_of, Activation, Kind, Traits};
use worker::gguf::{Array, Gguf, Value};

/// Widest head, largest picture and so on that make sense.
const MOST: u32 = 1 << 20;

/// Most tiles of a picture.
const MOST_TILES: usize = 64;

/// An encoder's shape.
#[derive(Debug, Clone)]
pub struct VisionConfig {
    pub(crate) traits: &'static Traits,
    pub(crate) width: usize,
    /// Blocks that count; a file may have more.
    pub(crate) blocks: usize,
    pub(crate) heads: usize,
    pub(crate) hidden: usize,
    /// Pixels of a patch's side.
    pub(crate) patch: usize,
    /// Pixels of a picture's side, where all are of one size.
    pub(crate) side: usize,
    pub(crate) epsilon: f32,
    pub(crate) activation: Activation,
    /// Width of what it gives.
    pub(crate) output: usize,
    /// Patches of a side that become one row.
    pub(crate) merge: usize,
    pub(crate) mean: [f32; 3],
    pub(crate) deviation: [f32; 3],
    /// Fewest and most pixels of a picture, where sizes differ.
    pub(crate) pixels: (usize, usize),
    /// Every how many blocks one sees the whole picture, and not a window of so many pixels of a side.
    pub(crate) windows: Option<(usize, usize)>,
    /// Blocks behind which further rows are taken, for the decoder's first blocks.
    pub(crate) deepstack: Vec<usize>,
    /// Longest side that a picture is brought to before it is cut into tiles.
    pub(crate) longest: usize,
    /// Fewest and most tiles.
    pub(crate) tiles: (usize, usize),
}

fn three(values: Option<&[f32]>, key: &str) -> Result<[f32; 3], String> {
    let values = values.ok_or_else(|| format!("metadata {key} is missing"))?;
    let three: [f32; 3] = values
        .try_into()
        .map_err(|_| format!("metadata {key} has {} numbers, not 3", values.len()))?;
    match three.iter().all(|x| x.is_finite()) {
        true => Ok(three),
        false => Err(format!("metadata {key} is no number")),
    }
}

/// Blocks behind which rows are taken: LLaVA's files say, or it is those before the last one.
fn computed_blocks(gguf: &Gguf, kind: Kind, blocks: usize) -> Result<usize, String> {
    if kind != Kind::Llava {
        return Ok(blocks);
    }
    let text = |e: worker::gguf::GgufError| e.to_string();
    if gguf.get_bool("clip.use_gelu").map_err(text)? == Some(true) {
        return Err("clip.use_gelu is not implemented for LLaVA's encoder".to_string());
    }
    const KEY: &str = "clip.vision.feature_layer";
    match gguf.get_i32s(KEY).map_err(text)? {
        None => Ok(blocks - 1),
        Some([layer]) if (0..=blocks as i32).contains(layer) => Ok(*layer as usize),
        Some(layers) => Err(format!("{KEY} {layers:?} is not implemented")),
    }
}

/// A kind's activation, or what the file says where its models differ.
fn activation(gguf: &Gguf, traits: &Traits) -> Result<Activation, String> {
    if traits.kind != Kind::Pixtral {
        return Ok(traits.activation);
    }
    let is = |key: &str| gguf.get_bool(key).map_err(|e| e.to_string());
    match (is("clip.use_silu")?, is("clip.use_gelu")?) {
        (Some(true), _) => Ok(Activation::Silu),
        (_, Some(true)) => Ok(Activation::Gelu),
        _ => Err("neither clip.use_silu nor clip.use_gelu is set".to_string()),
    }
}

impl VisionConfig {
    /// Reads the shape of an encoder.
    ///
    /// # Errors
    /// A text that names the key at fault, or says that there is no encoder of pictures.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, String> {
        let text = |e: worker::gguf::GgufError| e.to_string();
        let only_hears = gguf.get_bool("clip.has_vision_encoder").map_err(text)? != Some(true)
            && gguf.get_bool("clip.has_audio_encoder").map_err(text)? == Some(true);
        if only_hears {
            return Err("it has an encoder of sounds only".to_string());
        }
        let name = match gguf.get_str("clip.projector_type").map_err(text)? {
            Some(name) => Some(name),
            None => gguf.get_str("clip.vision.projector_type").map_err(text)?,
        };
        let name = name.ok_or("metadata clip.projector_type is missing: no encoder of pictures")?;
        let traits = traits_of(name)
            .filter(|t| t.projector == name)
            .ok_or_else(|| {
                format!(
                    "encoders of pictures of type {name:?} are not implemented ({} are)",
                    projectors()
                )
            })?;
        let optional = |key: &str| -> Result<Option<usize>, String> {
            let key = format!("clip.vision.{key}");
            match gguf.get_u32(&key).map_err(text)? {
                Some(value) if value == 0 || value > MOST => {
                    Err(format!("metadata {key} is {value}"))
                }
                value => Ok(value.map(|v| v as usize)),
            }
        };
        let count = |key: &str| -> Result<usize, String> {
            optional(key)?.ok_or_else(|| format!("metadata clip.vision.{key} is missing"))
        };
        // Larger than other numbers.
        let pixels = |key: &str| -> Result<Option<usize>, String> {
            let value = gguf.get_u32(&format!("clip.vision.{key}")).map_err(text)?;
            Ok(value.filter(|v| *v > 0).map(|v| v as usize))
        };
        let width = count("embedding_length")?;
        let heads = count("attention.head_count")?;
        let patch = count("patch_size")?;
        if width % heads != 0 || (width / heads) % 8 != 0 {
            return Err(format!(
                "{heads} heads of {width} elements: multiples of 8 are needed"
            ));
        }
        let merge = match optional("spatial_merge_size")? {
            Some(merge) => merge,
            None => optional("projector.scale_factor")?.unwrap_or(traits.merge),
        };
        let unit = (patch * merge).pow(2);
        // llama.cpp's limits where the file has none.
        let fewest = pixels("image_min_pixels")?.unwrap_or(8 * unit);
        let most = pixels("image_max_pixels")?.unwrap_or(4096 * unit);
        if fewest > most {
            return Err(format!("pictures of {fewest} to {most} pixels"));
        }
        let blocks = computed_blocks(gguf, traits.kind, count("block_count")?)?;
        let deepstack = match gguf.get("clip.vision.is_deepstack_layers") {
            None => Vec::new(),
            Some(Value::Array(Array::Bool(flags))) => {
                let places = flags.iter().enumerate();
                places.filter(|(_, is)| **is).map(|(at, _)| at).collect()
            }
            Some(_) => return Err("clip.vision.is_deepstack_layers is no list of bools".into()),
        };
        let windows = match (traits.kind, optional("n_wa_pattern")?) {
            (Kind::Qwen25Vl, None) => {
                return Err("metadata clip.vision.n_wa_pattern is missing".into())
            }
            (Kind::Qwen25Vl, Some(period)) => {
                let window = optional("window_size")?.unwrap_or(112);
                if window < patch * merge {
                    return Err(format!("windows of {window} pixels for patches of {patch}"));
                }
                Some((period, window))
            }
            _ => None,
        };
        let floats = |key: &str| gguf.get_f32s(key).map_err(text);
        let side = optional("image_size")?.unwrap_or(patch);
        let config = Self {
            traits,
            width,
            blocks,
            heads,
            hidden: count("feed_forward_length")?,
            patch,
            side,
            epsilon: gguf
                .get_f32("clip.vision.attention.layer_norm_epsilon")
                .map_err(text)?
                .unwrap_or(1e-6),
            activation: activation(gguf, traits)?,
            output: count("projection_dim")?,
            merge,
            mean: three(floats("clip.vision.image_mean")?, "clip.vision.image_mean")?,
            deviation: three(floats("clip.vision.image_std")?, "clip.vision.image_std")?,
            pixels: (fewest, most),
            windows,
            deepstack,
            longest: optional("preproc_image_size")?.unwrap_or(side),
            tiles: (
                optional("preproc_min_tiles")?.unwrap_or(1),
                optional("preproc_max_tiles")?.unwrap_or(12).min(MOST_TILES),
            ),
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let of_one_size = !self.traits.turned;
        let grid = self.side / self.patch;
        if of_one_size
            && (!self.side.is_multiple_of(self.patch) || !grid.is_multiple_of(self.merge))
        {
            return Err(format!(
                "pictures of {} pixels have no whole patches of {} in groups of {}",
                self.side, self.patch, self.merge
            ));
        }
        if self.deviation.contains(&0.0) {
            return Err("metadata clip.vision.image_std is 0".into());
        }
        if self.deepstack.iter().any(|at| *at >= self.blocks) {
            return Err(format!(
                "clip.vision.is_deepstack_layers goes beyond {} blocks",
                self.blocks
            ));
        }
        if self.traits.turned && !(self.width / self.heads).is_multiple_of(4) {
            return Err(format!("heads of {} elements", self.width / self.heads));
        }
        Ok(())
    }

    /// Patches of a side that lie behind each other as a group; 1 where they lie line by line.
    pub(crate) fn group(&self) -> usize {
        match self.traits.sections {
            true => self.merge,
            false => 1,
        }
    }

    /// Width of the rows that it gives.
    pub fn output(&self) -> usize {
        self.output
    }
}
