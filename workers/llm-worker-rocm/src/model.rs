//! A model file opened, checked and loaded.

pub use crate::description::Description;
pub use crate::engine::LoadedModel;

use crate::adapters::{Adapter, AdapterSource};
use crate::architectures::decoder_config;
use crate::chat::ChatTemplate;
use crate::engine::api::{KvDType, KvTypes, WeightOptions};
use crate::engine::decoder::{Decoder, DecoderConfig, Part, PartSizes, Source};
use crate::engine::forward::Forward;
use crate::engine::group::nodes::{self, Joining, Leader, Loading};
use crate::engine::group::{self, own_stream, SplitPlan};
use crate::hf::HfFolder;
use crate::kernels;
use crate::media::{PictureOptions, Processor};
use crate::sound::{SoundEncoder, SoundFile};
use crate::split::{self, Placed, Placement};
use crate::tokenizer::Tokenizer;
use crate::vision::{Encoder, VisionFile};
use crate::whisper::Whisper;
use candle_core::rocm_backend::candle_rocm::CodeObject;
use candle_core::Device;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use worker::device::release_unused;
use worker::gguf::{MappedGguf, Weights};
use worker::progress::byte_bar;
use worker::{Error, Result};

/// Why most models take no pictures.
const NO_ENCODER: &str = "it has no encoder of pictures";
/// Why most models take no sounds.
const NO_HEARING: &str = "it has no encoder of sounds";

/// A model file that passed its checks: everything but the weights.
pub struct ModelFile {
    path: PathBuf,
    file: Box<dyn Weights>,
    config: Box<DecoderConfig>,
    tokenizer: Tokenizer,
    template: Option<String>,
    /// What encodes pictures, or why nothing does.
    vision: std::result::Result<VisionFile, String>,
    /// The same of sounds.
    sound: std::result::Result<SoundFile, String>,
    /// How pictures and videos are taken.
    pictures: PictureOptions,
}

/// How to load.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// Longest sequence that will come, in tokens; `None` is the model's own. Some models have weights for short
    /// sequences and for long ones.
    pub context: Option<usize>,
    /// Whether the heads that predict further tokens are loaded, too.
    pub head: bool,
    /// Adapters beside the weights, in the order of [`AdapterUse::adapter`](crate::engine::api::AdapterUse).
    pub adapters: Vec<AdapterSource>,
    /// Where weights go.
    pub weights: WeightOptions,
    /// The devices that the model is divided between; `None` is the one that is named.
    pub split: Option<SplitPlan>,
    /// Other hosts that have a part of the model; `None` is none.
    pub hosts: Option<Hosts>,
}

/// Other hosts, and what this one brings.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// What leads them.
    pub leader: Arc<Leader>,
    /// The devices of this host, as it told the others.
    pub devices: Vec<Device>,
}

impl ModelFile {
    /// Opens a GGUF file, or a folder with `config.json`, `tokenizer.json` and safetensors files, and checks it:
    /// format, architecture, tokenizer. Takes no device and little memory.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged, hostile or not supported.
    pub fn open(path: &Path) -> Result<Self> {
        if Whisper::recognises(path) {
            let reason = "it writes speech down: take the command transcribe, or serve";
            return Err(bad_model(path, reason));
        }
        let file = open_weights(path)?;
        let header = file.header();
        let tokenizer = Tokenizer::open(path, header).map_err(|e| bad_model(path, e))?;
        let template = header
            .get_str("tokenizer.chat_template")
            .map_err(|e| bad_model(path, e))?
            .map(str::to_string);
        let config = decoder_config(header).map_err(|e| bad_model(file.path(), e))?;
        Ok(Self {
            path: path.to_path_buf(),
            config: Box::new(config),
            file,
            tokenizer,
            template,
            vision: Err(NO_ENCODER.to_string()),
            sound: Err(NO_HEARING.to_string()),
            pictures: PictureOptions::default(),
        })
    }

    /// Takes encoders of pictures and of sounds: those of the `mmproj` file which is named, else the folder's, else those
    /// beside a GGUF file; the latter two as far as they can be used.
    ///
    /// # Errors
    /// For a file that is named: [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged or of a kind
    /// that is not implemented.
    pub fn with_vision(mut self, named: Option<&Path>) -> Result<Self> {
        if let Some(path) = named {
            let sound = SoundFile::open(path)?;
            match (VisionFile::open(path), sound.is_some()) {
                (Ok(vision), _) => self.vision = Ok(vision),
                (Err(error), true) => self.vision = Err(error.to_string()),
                (Err(error), false) => return Err(error),
            }
            if let Some(sound) = sound {
                self.sound = Ok(sound);
            }
            return Ok(self);
        }
        let (vision, sound) = match self.path.is_dir() {
            true => (
                VisionFile::of_folder(&self.path),
                SoundFile::of_folder(&self.path),
            ),
            false => match VisionFile::beside(&self.path) {
                Some(beside) => {
                    let vision = VisionFile::open(&beside).map(Some);
                    (vision, SoundFile::open(&beside))
                }
                None => (Ok(None), Ok(None)),
            },
        };
        // Another model's, perhaps, in a folder of many.
        let fits = |output: usize| output == self.config.width();
        match vision.map(|found| found.filter(|file| fits(file.config().output()))) {
            Ok(Some(found)) => self.vision = Ok(found),
            Ok(None) => {}
            Err(error) => self.vision = Err(error.to_string()),
        }
        match sound.map(|found| found.filter(|file| fits(file.config().output()))) {
            Ok(Some(found)) => self.sound = Ok(found),
            Ok(None) => {}
            Err(error) => self.sound = Err(error.to_string()),
        }
        for (what, path) in [
            ("pictures", self.vision.as_ref().map(|file| file.weights())),
            ("sounds", self.sound.as_ref().map(|file| file.weights())),
        ]
        .into_iter()
        .filter_map(|(what, file)| Some((what, file.ok()?.path())))
        {
            tracing::info!("{what} are encoded by {}", path.display());
        }
        Ok(self)
    }

    /// Takes pictures and videos as the options say.
    ///
    /// # Errors
    /// [`Error::Usage`] for what the model's encoder does not do.
    pub fn with_picture_options(mut self, options: PictureOptions) -> Result<Self> {
        if let (Ok(file), true) = (&self.vision, options.pan_and_scan) {
            let config = file.config().clone();
            config.with_pan_and_scan().map_err(Error::Usage)?;
        }
        self.pictures = options;
        Ok(self)
    }

    /// What makes pictures, sounds and prompts with them.
    ///
    /// # Errors
    /// Why the model takes none.
    pub fn pictures(&self) -> std::result::Result<Processor, String> {
        let vision = self.vision.as_ref().map(VisionFile::config);
        let sound = self.sound.as_ref().map(SoundFile::config);
        match (vision, sound) {
            (Err(reason), Err(other)) => Err(match reason == NO_ENCODER {
                true if other == NO_HEARING => {
                    "it has no encoder of pictures or sounds".to_string()
                }
                true => other.clone(),
                false => reason.clone(),
            }),
            (vision, sound) => Processor::new(vision, sound, &self.pictures),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// Longest sequence in tokens.
    pub fn context_length(&self) -> usize {
        self.config.context_length
    }

    /// The text of the file's chat template.
    pub fn template(&self) -> Option<&str> {
        self.template.as_deref()
    }

    /// Size of the model in bytes, as loading counts them.
    pub fn file_bytes(&self) -> u64 {
        let vision = self.vision.as_ref().ok();
        let sound = self.sound.as_ref().ok();
        // One file may have both.
        let is_same =
            |path: &Path| !path.is_dir() && vision.is_some_and(|v| v.weights().path() == path);
        let sound = sound.filter(|s| !is_same(s.weights().path()));
        let vision = vision.map_or(0, |v| v.weights().header().file_bytes);
        let sound = sound.map_or(0, |s| s.weights().header().file_bytes);
        self.file.header().file_bytes + vision + sound
    }

    /// What of the kernels it will use on a GPU, the most needed first.
    pub fn kernels(&self, kv: Option<KvTypes>) -> Vec<CodeObject> {
        kernels::of_decoder(self.file.header(), kv)
    }

    /// What its blocks and its ends take, and where it may be cut: what a [`SplitPlan`] is made of.
    pub fn part_sizes(&self) -> PartSizes {
        self.config.part_sizes(self.file.header())
    }

    /// Where it goes: how the devices of a placement share it. There should be room for keys and values of so many
    /// tokens, stored like that.
    ///
    /// # Errors
    /// [`Error::Usage`] with why it cannot be as asked for, or does not fit; [`Error::Device`] if a device fails.
    pub fn place(
        &self,
        placement: &Placement,
        tokens: usize,
        kv: Option<KvTypes>,
        weights: &WeightOptions,
    ) -> Result<Placed> {
        let header = self.file.header();
        let needs = split::Needs {
            tokens: tokens as u64,
            kv: kv.unwrap_or(KvDType::F16.into()),
            host_experts: weights.host_experts,
            encoders: self.file_bytes() - header.file_bytes,
        };
        split::plan(&self.config, header, placement, needs)
    }

    /// What the model is.
    ///
    /// # Errors
    /// [`Error::BadModel`] if its weights cannot be counted.
    pub fn describe(&self) -> Result<Description> {
        Description::of(self.file.header())
            .ok_or_else(|| bad_model(&self.path, "its architecture is missing"))
    }

    /// The file's chat template.
    ///
    /// # Errors
    /// [`Error::Usage`] if the file has none or it does not compile.
    pub fn chat_template(&self) -> Result<ChatTemplate> {
        let source = self.template.as_deref().ok_or_else(|| {
            Error::Usage(format!(
                "{} has no chat template; give the whole prompt as PROMPT instead of --chat",
                self.path.display()
            ))
        })?;
        ChatTemplate::new(source, self.tokenizer.bos_text(), self.tokenizer.eos_text())
    }

    /// Loads the weights onto a device, or those of a plan, with a progress bar on a terminal.
    ///
    /// # Errors
    /// Those of [`ModelFile::load_with`].
    pub fn load(self, device: &Device, options: &LoadOptions) -> Result<LoadedModel> {
        let bar = byte_bar("loading", self.file_bytes());
        let loaded = self.load_with(device, options, &|bytes| bar.inc(bytes))?;
        bar.finish_and_clear();
        Ok(loaded)
    }

    /// Loads the weights onto a device, or [those of a plan](LoadOptions::split); `progress` is called with the bytes of
    /// each tensor. On a GPU the model gets a stream of its own, whatever that of `device` is.
    ///
    /// # Errors
    /// [`Error::Candle`] if a device has no room, [`Error::Usage`] for a plan that does not suit the model.
    pub fn load_with(
        self,
        device: &Device,
        options: &LoadOptions,
        progress: &dyn Fn(u64),
    ) -> Result<LoadedModel> {
        let pictures = self.pictures().map(Arc::new);
        let Self { file, config, .. } = self;
        let adapters = (options.adapters.iter())
            .map(|source| Adapter::open(source, file.header()))
            .collect::<Result<Vec<_>>>()?;
        let source = Source {
            config: &config,
            file: &*file,
            context: options.context.unwrap_or(config.context_length),
            adapters: &adapters,
            weights: options.weights,
            heads: options.head,
            shard: None,
        };
        let add_encoders = |decoder: &mut Decoder| -> Result<()> {
            let device = &decoder.device().clone();
            if let Ok(file) = &self.vision {
                let encoder = Encoder::load(file, device, progress)?;
                decoder
                    .set_vision(encoder)
                    .map_err(|reason| bad_model(file.weights().path(), reason))?;
            }
            if let Ok(file) = &self.sound {
                let encoder = SoundEncoder::load(file, device, progress)?;
                decoder
                    .set_sound(encoder)
                    .map_err(|reason| bad_model(file.weights().path(), reason))?;
            }
            Ok(())
        };
        let split = options.split.as_ref().filter(|p| !p.is_single());
        let forward: Box<dyn Forward> = match (&options.hosts, split) {
            (Some(hosts), _) => {
                let loading = Loading {
                    context: options.context,
                    head: options.head,
                    weights: options.weights,
                    plan: hosts.leader.plan(&config.part_sizes(file.header()))?,
                };
                let Hosts { leader, devices } = hosts;
                let model = nodes::lead(&source, &loading, leader, devices, progress, add_encoders);
                Box::new(model?)
            }
            (None, Some(plan)) => Box::new(group::load(&source, plan, progress, add_encoders)?),
            (None, None) => {
                let device = own_stream(device).map_err(Error::candle("opening a stream"))?;
                let whole = Part::whole(&config);
                let mut decoder = Decoder::load_part(&source, &whole, &device, progress)?;
                source.refuse_unused(decoder.unused_adapters())?;
                add_encoders(&mut decoder)?;
                Box::new(decoder)
            }
        };
        release_unused(forward.device())?;
        let vocab = forward.vocab_size() as u32;
        let tokenizer = self.tokenizer;
        Ok(LoadedModel {
            end_tokens: (0..vocab)
                .filter(|token| tokenizer.is_end(*token))
                .collect(),
            tokenizer: Arc::new(tokenizer),
            forward,
            draft: None,
            pictures,
        })
    }
}

impl ModelFile {
    /// Loads what a node that follows has of the model, by a plan of the leader's.
    ///
    /// # Errors
    /// [`Error::Usage`] for a plan that does not suit the model, [`Error::Candle`] if a device has no room.
    pub fn load_part(
        self,
        loading: &Loading,
        joining: Joining,
        devices: &[Device],
        adapters: &[AdapterSource],
    ) -> Result<nodes::Part> {
        let Self { file, config, .. } = self;
        let adapters = (adapters.iter())
            .map(|source| Adapter::open(source, file.header()))
            .collect::<Result<Vec<_>>>()?;
        let source = Source {
            config: &config,
            file: &*file,
            context: loading.context.unwrap_or(config.context_length),
            adapters: &adapters,
            weights: loading.weights,
            heads: loading.head,
            shard: None,
        };
        nodes::Part::load(&source, &loading.plan, joining, devices, &|_| {})
    }
}

/// A model in any format, checked but for what its architecture asks.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, [`Error::BadModel`] if it is damaged, hostile or not supported.
pub fn open_weights(path: &Path) -> Result<Box<dyn Weights>> {
    if path.is_dir() {
        Ok(Box::new(HfFolder::open(path)?))
    } else {
        Ok(Box::new(MappedGguf::open(path)?))
    }
}

fn bad_model(path: &Path, reason: impl ToString) -> Error {
    Error::BadModel {
        path: path.to_path_buf(),
        reason: reason.to_string(),
    }
}
