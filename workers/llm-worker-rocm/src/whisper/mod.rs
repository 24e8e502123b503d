//! Speech to text by Whisper: "Robust Speech Recognition via Large-Scale Weak Supervision", Radford et al., 2022.
//!
//! | Module       | Gives                                                                            |
//! |--------------|----------------------------------------------------------------------------------|
//! | `folder`     | a model's folder as Hugging Face has it                                          |
//! | `ggml`       | a model's file as whisper.cpp has it                                             |
//! | `names`      | the names of tensors in both                                                     |
//! | `config`     | the sizes of a model                                                             |
//! | `decoder`    | the text decoder; the encoder is [`crate::audio::tower`]                         |
//! | `tokens`     | the tokens that steer, and those that are never said                             |
//! | `languages`  | the languages of the vocabulary                                                  |
//! | `rules`      | what may come next                                                               |
//! | `window`     | one window of sound to tokens                                                    |
//! | `transcribe` | a whole recording, window after window                                           |
//! | `words`      | when each word is said                                                           |
//! | [`format`]   | transcripts as text, subtitles and JSON                                          |

mod config;
mod decoder;
mod folder;
pub mod format;
mod ggml;
mod languages;
mod names;
mod rules;
mod tokens;
mod transcribe;
mod window;
mod words;

pub use transcribe::{rising, Listener, Progress, Segment, TranscribeOptions, Transcript};
pub use words::Word;

use crate::architectures::name_in_config;
use crate::audio::mel::LogMel;
use crate::audio::{MelOptions, Tower};
use crate::description::Description;
use crate::folder::read_json;
use crate::tokenizer::Tokenizer;
use crate::vision::weights::Loader;
use candle_core::quantized::GgmlDType;
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use config::WhisperConfig;
use decoder::Decoder;
use folder::WhisperFolder;
use ggml::GgmlFile;
use std::cell::RefCell;
use std::path::Path;
use tokens::Words;
use worker::gguf::Weights;
use worker::{Error, Result};

/// Samples of a second that models hear.
pub const RATE: u32 = 16_000;

/// A model on a device.
pub struct Whisper {
    encoder: Tower,
    decoder: Decoder,
    words: Words,
    mel: LogMel,
    config: WhisperConfig,
    description: Description,
    device: Device,
    dtype: DType,
}

/// What activations are in: f32 on the CPU and for matrices of f32, else halves.
fn activations(file: &dyn Weights, device: &Device) -> DType {
    let matrix = file.header().tensor("d.blk.0.attn_out.weight");
    match matrix.and_then(|t| t.dtype().ok()) {
        _ if device.is_cpu() => DType::F32,
        None | Some(GgmlDType::F32) => DType::F32,
        Some(GgmlDType::BF16) => DType::BF16,
        Some(_) => DType::F16,
    }
}

impl Whisper {
    /// Whether a folder or a file holds a model of this kind.
    pub fn recognises(path: &Path) -> bool {
        match path.is_dir() {
            true => read_json(path, "config.json")
                .ok()
                .flatten()
                .is_some_and(|config| name_in_config(&config) == folder::ARCHITECTURE),
            false => ggml::begins_like_one(path),
        }
    }

    /// Opens and loads a model: a folder with `config.json`, `tokenizer.json` and safetensors files, or a `.bin` file
    /// of whisper.cpp's, whose quantized matrices become halves on a GPU and f32 on the CPU. `progress` is called with
    /// the bytes of each tensor.
    ///
    /// # Errors
    /// [`Error::BadModel`] if it is damaged or of a kind that is not implemented, [`Error::Candle`] if the device has
    /// no room.
    pub fn open(path: &Path, device: &Device, progress: &dyn Fn(u64)) -> Result<Self> {
        let bad = |reason: String| Error::BadModel {
            path: path.to_path_buf(),
            reason,
        };
        let of_tokenizer = |e: crate::tokenizer::TokenizerError| bad(e.to_string());
        if path.is_dir() {
            let folder = WhisperFolder::open(path)?;
            let tokenizer = Tokenizer::from_folder(path).map_err(of_tokenizer)?;
            let config = folder.config;
            let words = Words::new(
                tokenizer,
                config.vocabulary,
                folder.multilingual,
                &folder.settings,
            );
            return Self::load(&folder, config, words.map_err(bad)?, device, progress);
        }
        let file = GgmlFile::open(path)?;
        let tokenizer = Tokenizer::from_gguf(file.header()).map_err(of_tokenizer)?;
        let config = file.config;
        let settings = serde_json::Value::Null;
        let words = Words::new(tokenizer, config.vocabulary, file.multilingual, &settings);
        Self::load(&file, config, words.map_err(bad)?, device, progress)
    }

    fn load(
        file: &dyn Weights,
        config: WhisperConfig,
        words: Words,
        device: &Device,
        progress: &dyn Fn(u64),
    ) -> Result<Self> {
        let dtype = activations(file, device);
        let loader = Loader {
            file,
            device,
            dtype,
            progress,
            seen: RefCell::default(),
        };
        let whisper = Self {
            encoder: Tower::load(&loader, config.encoder)?,
            decoder: Decoder::load(&loader, config)?,
            words,
            mel: LogMel::new(MelOptions::whisper(config.encoder.bands)),
            description: describe(file),
            device: device.clone(),
            dtype,
            config,
        };
        let seen = loader.seen.into_inner();
        let mut names = file.header().tensors().map(|(name, _)| name);
        match names.find(|name| !seen.contains(*name)) {
            Some(name) => Err(Error::BadModel {
                path: file.path().to_path_buf(),
                reason: format!("tensor {name} is not of a model of its sizes"),
            }),
            None => Ok(whisper),
        }
    }

    /// The rows of a window's frames, `(rows, width)`.
    fn encode(&self, frames: &[f32]) -> CandleResult<Tensor> {
        let bands = self.config.encoder.bands;
        let frames = Tensor::from_slice(frames, (frames.len() / bands, bands), &self.device)?;
        self.encoder.forward(&frames.to_dtype(self.dtype)?)
    }

    /// What the encoder makes of normalised frames of a whole window, `(frames, bands)` one behind the other; the
    /// logits behind each of some tokens that follow. For comparisons with other programs.
    ///
    /// # Errors
    /// If there are not as many frames as a window has, or the device fails.
    pub fn rows_and_logits(
        &self,
        frames: &[f32],
        tokens: &[u32],
    ) -> CandleResult<[Vec<Vec<f32>>; 2]> {
        let sound = self.encode(frames)?;
        let mut memory = self.decoder.begin(&sound)?;
        // The first ones at once, the others one by one, as answers are made.
        let (first, others) = tokens.split_at(tokens.len().min(3));
        let mut logits = Vec::new();
        let steps = std::iter::once(first).chain(others.chunks(1));
        for step in steps.filter(|step| !step.is_empty()) {
            let rows = self.decoder.rows(step, &mut memory)?;
            for row in 0..step.len() {
                logits.push(self.decoder.logits(&rows.narrow(0, row, 1)?)?);
            }
        }
        Ok([sound.to_dtype(DType::F32)?.to_vec2()?, logits])
    }

    /// A window of silence and some tokens, whatever they are: what is compiled on first use is compiled then.
    ///
    /// # Errors
    /// If the device fails.
    pub fn warm_up(&self) -> Result<()> {
        let silence = vec![0.0; self.config.window_frames() * self.config.encoder.bands];
        let tokens = [self.words.start; 5];
        let computed = self.rows_and_logits(&silence, &tokens);
        computed
            .map(drop)
            .map_err(Error::candle("the first window"))
    }

    /// Seconds of a window.
    pub fn window_seconds(&self) -> f64 {
        let hop = self.mel.options().hop as f64 / f64::from(RATE);
        self.config.window_frames() as f64 * hop
    }

    /// Whether it knows more languages than English, and translates.
    pub fn is_multilingual(&self) -> bool {
        !self.words.languages.is_empty()
    }

    /// What it is.
    pub fn description(&self) -> &Description {
        &self.description
    }
}

fn describe(file: &dyn Weights) -> Description {
    let tensors = || file.header().tensors().map(|(_, info)| info);
    let name = file.path().file_stem().unwrap_or_default();
    Description {
        name: name.to_string_lossy().into_owned(),
        architecture: "whisper".to_string(),
        bytes: tensors().map(|info| info.bytes).sum(),
        parameters: tensors().map(|info| info.elem_count()).sum(),
    }
}
