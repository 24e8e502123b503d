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
    /// Widths and heights of whole tiles that a picture may be brought to, if that is how it is cut.
    pub(crate) sizes: Vec<(usize, usize)>,
    /// Parts of a picture that are shown besides the whole.
    pub(crate) pan: Option<PanAndScan>,
    /// Rows of a picture see all of it.
    pub(crate) whole: bool,
    /// Fewest and most pixels of a frame, or of all of a video's frames where the kind counts these.
    pub(crate) video_pixels: (usize, usize),
    /// Longest side that a frame is brought to first.
    pub(crate) video_longest: usize,
    /// Positions that a second of a video takes.
    pub(crate) tokens_per_second: f64,
}

/// Parts of long pictures that are shown besides the whole: Gemma 3's pan and scan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PanAndScan {
    /// Pixels that a part's sides have at least.
    pub(crate) smallest: usize,
    /// Most parts.
    pub(crate) most: usize,
    /// How many times the shorter side the longer one has at least.
    pub(crate) ratio: f64,
}

impl PanAndScan {
    /// That of Gemma 3's processor where its configuration says nothing else.
    const USUAL: Self = Self {
        smallest: 256,
        most: 4,
        ratio: 1.2,
    };
}

/// Widths of Gemma 4's models whose rows of a picture do not see those behind them: E2B's and E4B's.
const CAUSAL_WIDTHS: [usize; 2] = [1536, 2560];
/// Rows of a picture that Gemma 4's processor makes at most, unless it is told.
const GEMMA_ROWS: usize = 280;

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

/// Widths and heights that LLaVA 1.6 brings pictures to before they are cut into tiles; none for LLaVA 1.5.
fn sizes(gguf: &Gguf, kind: Kind, side: usize) -> Result<Vec<(usize, usize)>, String> {
    const KEY: &str = "clip.vision.image_grid_pinpoints";
    let merge = gguf.get_str("clip.vision.mm_patch_merge_type");
    if kind != Kind::Llava || merge.map_err(|e| e.to_string())? != Some("spatial_unpad") {
        return Ok(Vec::new());
    }
    let numbers = gguf.get_i32s(KEY).map_err(|e| e.to_string())?;
    let numbers = numbers.ok_or_else(|| format!("metadata {KEY} is missing"))?;
    let tiles = |n: i32| {
        let whole = usize::try_from(n).ok().filter(|n| n.is_multiple_of(side));
        whole
            .map(|n| n / side)
            .filter(|n| (1..=MOST_TILES).contains(n))
    };
    let pairs = numbers.chunks(2).map(|pair| match *pair {
        [width, height] => {
            let (across, down) = (tiles(width)?, tiles(height)?);
            (across * down <= MOST_TILES).then_some((across * side, down * side))
        }
        _ => None,
    });
    let pairs: Option<Vec<_>> = pairs.collect();
    pairs.filter(|pairs| !pairs.is_empty()).ok_or_else(|| {
        format!("metadata {KEY} {numbers:?} are no sizes of whole tiles of {side} pixels")
    })
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
        let (few, many) = match traits.kind {
            Kind::Gemma4 => (unit, GEMMA_ROWS * unit),
            _ => (8 * unit, 4096 * unit),
        };
        let fewest = pixels("image_min_pixels")?.unwrap_or(few);
        let most = pixels("image_max_pixels")?.unwrap_or(many);
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
        let number = |key: &str| {
            let key = format!("clip.vision.{key}");
            gguf.get_f32(&key).map_err(text)
        };
        let (mean, deviation) = match traits.kind.is_normalised() {
            true => (
                three(floats("clip.vision.image_mean")?, "clip.vision.image_mean")?,
                three(floats("clip.vision.image_std")?, "clip.vision.image_std")?,
            ),
            // From -1 to 1.
            false => ([0.5; 3], [0.5; 3]),
        };
        let side = optional("image_size")?.unwrap_or(patch);
        let output = count("projection_dim")?;
        let whole = gguf.get_bool("clip.vision.rows_see_all").map_err(text)?;
        let pan = match optional("pan_and_scan.max_crops")? {
            Some(most) => Some(PanAndScan {
                smallest: optional("pan_and_scan.min_crop_size")?
                    .unwrap_or(PanAndScan::USUAL.smallest),
                most: most.min(MOST_TILES),
                ratio: number("pan_and_scan.min_ratio")?.map_or(PanAndScan::USUAL.ratio, f64::from),
            }),
            None => None,
        };
        // The reference implementation's, and those of Qwen 3-VL's files.
        let video = match traits.kind {
            Kind::Qwen3Vl => (4096, 24_576 * unit),
            _ => (128 * unit, 768 * unit),
        };
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
            output,
            merge,
            mean,
            deviation,
            pixels: (fewest, most),
            windows,
            deepstack,
            longest: optional("preproc_image_size")?.unwrap_or(side),
            tiles: (
                optional("preproc_min_tiles")?.unwrap_or(1),
                optional("preproc_max_tiles")?.unwrap_or(12).min(MOST_TILES),
            ),
            sizes: sizes(gguf, traits.kind, side)?,
            pan,
            whole: whole.unwrap_or(match traits.kind {
                Kind::Gemma3 => true,
                Kind::Gemma4 => !CAUSAL_WIDTHS.contains(&output),
                _ => false,
            }),
            video_pixels: (
                pixels("video_min_pixels")?.unwrap_or(video.0),
                pixels("video_max_pixels")?.unwrap_or(video.1),
            ),
            video_longest: optional("video_size")?
                .or(optional("preproc_image_size")?)
                .unwrap_or(side),
            tokens_per_second: number("tokens_per_second")?.map_or(2.0, f64::from),
        };
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let of_one_size = self.traits.turned.is_none();
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
        if self.traits.turned.is_some() && !(self.width / self.heads).is_multiple_of(4) {
            return Err(format!("heads of {} elements", self.width / self.heads));
        }
        if self.video_pixels.0 > self.video_pixels.1 {
            let (fewest, most) = self.video_pixels;
            return Err(format!("videos of {fewest} to {most} pixels"));
        }
        if !(self.tokens_per_second > 0.0 && self.tokens_per_second <= 1e3) {
            let number = self.tokens_per_second;
            return Err(format!(
                "metadata clip.vision.tokens_per_second is {number}"
            ));
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

    /// The same with parts of long pictures beside the whole, if the kind has such.
    ///
    /// # Errors
    /// A text, if it has none.
    pub fn with_pan_and_scan(mut self) -> Result<Self, String> {
        if self.traits.kind != Kind::Gemma3 {
            return Err("only Gemma 3 takes pictures by pan and scan".to_string());
        }
        self.pan = self.pan.or(Some(PanAndScan::USUAL));
        Ok(self)
    }

    /// Width of the rows that it gives.
    pub fn output(&self) -> usize {
        self.output
    }
}
