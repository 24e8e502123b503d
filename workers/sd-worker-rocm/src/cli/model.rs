//! Which model, on which device, loaded how.

use super::loaded::{Loaded, Model};
use crate::kernels;
use crate::pipeline::{
    Family, GuidancePlace, ModelInfo, PartSizes, Pipeline, PipelineOptions, Placement, Precision,
    Switch, BUILTIN,
};
use crate::plan::{plan, Card, GuidanceDevices, Halves, PartCards, PartDevices, Wishes};
use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};
use std::time::Duration;
use worker::cli::GraphArgs;
use worker::device::{release_unused, room, DeviceList, DeviceListArgs, DeviceRequest, Selected};
use worker::hub::{HubArgs, HubOptions, ModelSource};
use worker::kernels::CompileArgs;
use worker::serve::Progress;
use worker::{Error, Result};

/// The arguments that say what runs where.
#[derive(Debug, Args)]
pub struct ModelArgs {
    /// Model: a folder as diffusers writes it, a single .safetensors file, or a Hugging Face id
    /// OWNER/NAME[:VARIANT-OR-FILE]. Without it the built-in model, which draws simple scenes.
    #[arg(
        long = "model",
        short,
        visible_alias = "model-path",
        env = "MODEL_PATH",
        value_name = "PATH|REPO"
    )]
    models: Vec<String>,

    #[command(flatten)]
    hub: HubArgs,

    /// A transformer instead of the model's own (FLUX.1, SD 3, Z-Image): .safetensors or .gguf, also as
    /// OWNER/NAME:FILE-OR-QUANT.
    #[arg(long, value_name = "PATH|REPO:FILE")]
    transformer: Option<String>,

    /// The same for the second transformer of models that have one for late steps (Wan 2.2).
    #[arg(long, value_name = "PATH|REPO:FILE")]
    late_transformer: Option<String>,

    /// What a single file of SD 3, FLUX.1 or Z-Image lacks: a folder with text encoders (text_encoder…/, or clip_l,
    /// clip_g, t5xxl…, qwen_3_4b….safetensors) and tokenizers (tokenizer…/).
    #[arg(long, value_name = "DIR")]
    text_encoders: Option<PathBuf>,

    /// What the model has to be; another kind is an error.
    #[arg(long, env = "SD_VERSION", value_name = "VERSION")]
    sd_version: Option<Version>,

    #[command(flatten)]
    devices: DeviceListArgs,

    /// Parts of the model on devices of their own: text (encoders), denoiser, vae and controlnet, as text=1,vae=1.
    #[arg(long, value_name = "PART=DEVICE,...", value_parser = str::parse::<PartDevices>)]
    part_device: Option<PartDevices>,

    /// Two devices that each compute one half of guidance at the same time, as 0,1; with one device, it computes them
    /// one after the other; off never divides them. Left out, the rules of the manual choose.
    #[arg(long, value_name = "DEVICES|off", value_parser = str::parse::<GuidanceDevices>)]
    guidance_devices: Option<GuidanceDevices>,

    /// Of several devices, one that does no step for so many seconds is given up; 0 waits for ever.
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    device_timeout: u64,

    #[command(flatten)]
    graph: GraphArgs,

    #[command(flatten)]
    compile: CompileArgs,

    /// Arithmetic of denoiser and text encoders; auto is what the weights are stored in, and f32 on a CPU.
    #[arg(long, value_enum, default_value = "auto")]
    precision: PrecisionArg,

    /// The same as --precision f16.
    #[arg(long, env = "USE_F16", value_parser = BoolishValueParser::new())]
    use_f16: bool,

    /// Decode pictures in tiles, which takes less memory; auto does for large ones.
    #[arg(long, value_enum, default_value = "auto")]
    vae_tiling: SwitchArg,

    /// Keep weights in host memory and bring each part to the GPU only while it runs.
    #[arg(long)]
    offload: bool,

    /// Turn weights in 8-bit floats (FP8) into those of --precision when they are loaded: twice the memory in 16 bits.
    #[arg(long)]
    expand_fp8: bool,

    /// A model that does the last steps of the pictures (see --refiner-start): a refiner of Stable Diffusion XL, or
    /// another XL model.
    #[arg(long, value_name = "PATH|REPO")]
    refiner: Option<String>,

    /// The folder of an image encoder for IP-Adapters that have none beside them.
    #[arg(long, value_name = "DIR")]
    image_encoder: Option<PathBuf>,

    /// A VAE instead of the model's own: file or folder.
    #[arg(long, value_name = "PATH")]
    vae: Option<PathBuf>,

    /// A TAESD decoder for quick previews: file or folder.
    #[arg(long, value_name = "PATH")]
    taesd: Option<PathBuf>,

    /// Folder with LoRA files; may be given several times.
    #[arg(long, value_delimiter = ':', value_name = "DIR")]
    lora_dir: Vec<PathBuf>,

    /// Textual inversions: a file or a folder of files; may be given several times.
    #[arg(long, value_delimiter = ':', value_name = "PATH")]
    embeddings: Vec<PathBuf>,
}

/// rbee's names of versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Version {
    #[value(name = "v1-5")]
    V15,
    #[value(name = "v1-5-inpaint")]
    V15Inpaint,
    #[value(name = "v2-1")]
    V21,
    #[value(name = "v2-1-inpaint")]
    V21Inpaint,
    Xl,
    XlInpaint,
    Turbo,
    FluxDev,
    FluxSchnell,
}

impl Version {
    fn fits(self, info: &ModelInfo) -> bool {
        let (families, inpainting): (&[Family], bool) = match self {
            Self::V15 => (&[Family::Sd1], false),
            Self::V15Inpaint => (&[Family::Sd1], true),
            Self::V21 => (&[Family::Sd2], false),
            Self::V21Inpaint => (&[Family::Sd2], true),
            Self::Xl => (&[Family::Sdxl], false),
            Self::XlInpaint => (&[Family::Sdxl], true),
            Self::Turbo => (&[Family::Sdxl, Family::Sd2], false),
            Self::FluxDev | Self::FluxSchnell => (&[Family::Flux], false),
        };
        families.contains(&info.family) && info.inpainting == inpainting
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum PrecisionArg {
    Auto,
    F32,
    F16,
    Bf16,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum SwitchArg {
    Auto,
    On,
    Off,
}

/// What loading does, as the pipeline names it, and how much of all is done when it begins: most is the denoiser.
const STAGES: [(&str, u64); 6] = [
    ("configuration", 0),
    ("checkpoint", 0),
    ("text encoder", 5),
    ("text encoders", 5),
    ("denoiser", 25),
    ("VAE", 95),
];

impl ModelArgs {
    /// The models that are named: at most one but for a server of several.
    pub(super) fn models(&self) -> &[String] {
        &self.models
    }

    /// Where models of the hub come from.
    pub(super) fn hub(&self) -> HubOptions {
        self.hub.options()
    }

    /// The one model, if one is named.
    ///
    /// # Errors
    /// [`Error::Usage`] if several are.
    fn one(&self) -> Result<Option<&str>> {
        match &self.models[..] {
            [] => Ok(None),
            [model] => Ok(Some(model)),
            _ => Err(Error::Usage(
                "only serve takes several models: give --model once".to_string(),
            )),
        }
    }

    /// Folders with LoRAs.
    pub(super) fn lora_dirs(&self) -> &[PathBuf] {
        &self.lora_dir
    }

    /// Textual inversions.
    pub(super) fn embeddings(&self) -> &[PathBuf] {
        &self.embeddings
    }

    /// The VAE in place of the model's own.
    pub(super) fn vae(&self) -> Option<&Path> {
        self.vae.as_deref()
    }

    /// A file or folder, downloaded if it is a Hugging Face id and not in the cache.
    fn resolve(&self, model: &str) -> Result<PathBuf> {
        let hub = self.hub.options();
        let source = ModelSource::parse(model)?;
        match &source {
            // A quantisation names a GGUF file.
            ModelSource::Hub {
                selector: Some(selector),
                ..
            } if !["fp16", "bf16"].contains(&selector.as_str())
                && !selector.ends_with(".safetensors") =>
            {
                hub.resolve(&source)
            }
            _ => hub.resolve_pipeline(&source),
        }
    }

    /// What to call the model before it is found.
    pub(super) fn asked_name(&self) -> String {
        let Some(model) = self.models.first() else {
            return BUILTIN.to_string();
        };
        let path = Path::new(model);
        match path.exists() {
            true => self.name(path),
            false => {
                let repository = model.split(':').next().unwrap_or_default();
                repository
                    .rsplit('/')
                    .next()
                    .unwrap_or_default()
                    .to_string()
            }
        }
    }

    /// What to call the model at `path`: a repository by its name, not by a folder of the cache.
    fn name(&self, path: &Path) -> String {
        let asked = self.models.first().map(String::as_str).unwrap_or_default();
        let repository = match Path::new(asked).exists() {
            true => None,
            false => asked.split(':').next(),
        };
        let own = || path.file_stem().unwrap_or_default().to_string_lossy();
        match repository.and_then(|repository| repository.rsplit('/').next()) {
            Some(name) if path.is_dir() => name.to_string(),
            _ => own().into_owned(),
        }
    }

    /// What is asked for of several devices.
    fn wishes(&self) -> Wishes {
        Wishes {
            parts: self.part_device.clone().unwrap_or_default(),
            guidance: self.guidance_devices.clone(),
            offload: self.offload,
        }
    }

    /// The devices that are asked for.
    ///
    /// # Errors
    /// [`Error::Usage`] for arguments that contradict each other.
    pub(super) fn list(&self) -> Result<DeviceList> {
        let wishes = self.wishes();
        let list = self.devices.list()?;
        let mut named = wishes.devices();
        match &list {
            DeviceList::These(devices) if !self.devices.are_several() && !named.is_empty() => {
                if !wishes.names_denoiser() {
                    let one = match devices.first() {
                        Some(DeviceRequest::Auto) | None => match DeviceRequest::Auto.may_be_rocm()
                        {
                            true => DeviceRequest::Rocm(0),
                            false => DeviceRequest::Cpu,
                        },
                        Some(one) => *one,
                    };
                    named.retain(|device| *device != one);
                    named.insert(0, one);
                }
                Ok(DeviceList::These(named))
            }
            _ => Ok(list),
        }
    }

    /// How long one of several devices may do no step.
    pub(super) fn silence(&self) -> Option<Duration> {
        Some(Duration::from_secs(self.device_timeout)).filter(|limit| !limit.is_zero())
    }

    /// Opens the devices and loads the model, logging what is going on.
    ///
    /// # Errors
    /// Those of [`Self::list`] and [`Self::load_on`], and the devices'.
    pub(super) fn load(&self) -> Result<Loaded> {
        self.load_on(self.list()?.open()?, &Progress::default())
    }

    /// Loads the model onto the devices, as asked for or as the rules say, telling what is going on.
    ///
    /// # Errors
    /// [`Error::Usage`] for arguments that contradict each other, and the hub's, the devices' and the model's.
    pub(super) fn load_on(&self, devices: Vec<Selected>, progress: &Progress) -> Result<Loaded> {
        let precision = match (self.precision, self.use_f16) {
            (PrecisionArg::Auto, false) => Precision::Auto,
            (PrecisionArg::Auto | PrecisionArg::F16, true) | (PrecisionArg::F16, _) => {
                Precision::F16
            }
            (PrecisionArg::F32, false) => Precision::F32,
            (PrecisionArg::Bf16, false) => Precision::Bf16,
            (PrecisionArg::F32 | PrecisionArg::Bf16, true) => {
                return Err(Error::Usage(
                    "--use-f16 and --precision say different things; give one of them".to_string(),
                ))
            }
        };
        let model = self.one()?.map(|m| self.resolve(m)).transpose()?;
        let transformer = self.transformer.as_deref();
        let transformer = transformer.map(|t| self.resolve(t)).transpose()?;
        let late = self.late_transformer.as_deref();
        let late_transformer = late.map(|t| self.resolve(t)).transpose()?;
        let refiner = self.refiner.as_deref();
        let refiner = refiner.map(|r| self.resolve(r)).transpose()?;
        let switch = match self.vae_tiling {
            SwitchArg::Auto => Switch::Auto,
            SwitchArg::On => Switch::On,
            SwitchArg::Off => Switch::Off,
        };
        let options = PipelineOptions {
            precision,
            vae_tiling: switch,
            offload: self.offload,
            expand_fp8: self.expand_fp8,
            refiner,
            image_encoder: self.image_encoder.clone(),
            vae: self.vae.clone(),
            transformer,
            late_transformer,
            text_encoders: self.text_encoders.clone(),
            taesd: self.taesd.clone(),
            lora_dirs: self.lora_dir.clone(),
            embeddings: self.embeddings.clone(),
            graphs: self.graph.graphs(),
        };
        let cards: Vec<Card> = devices
            .iter()
            .map(|device| Card {
                request: device.request(),
                name: device.name.clone(),
                kind: device.description.clone(),
                room: room(&device.device),
            })
            .collect();
        let sizes = || PartSizes::of(model.as_deref(), &options);
        let plan = plan(&cards, &self.wishes(), sizes)?;
        if devices.len() > 1 {
            tracing::info!("{}", plan.reason);
        }
        let kernels = kernels::of_precision(precision);
        let mut kinds: Vec<&str> = Vec::new();
        for device in &devices {
            if !kinds.contains(&device.description.as_str()) {
                kinds.push(&device.description);
                self.compile.ahead(&device.device, &kernels, progress);
            }
        }
        progress.expect(100);
        let load = |cards: &PartCards, tell: &mut dyn FnMut(&str)| -> Result<Model> {
            let place = placement(cards, &devices);
            let pipeline = match &model {
                Some(path) => {
                    Pipeline::load_as(self.name(path), path, place, options.clone(), tell)?
                }
                None => Pipeline::builtin(place, options.clone())?,
            };
            for card in cards.cards() {
                release_unused(&devices[card].device)?;
            }
            Ok(Model {
                pipeline,
                cards: *cards,
            })
        };
        let mut tell = |stage: &str| {
            progress.begin(&format!("loading {stage}"));
            if let Some((_, done)) = STAGES.iter().find(|(name, _)| *name == stage) {
                progress.set(*done);
            }
        };
        // Each model on a thread of its own; the first tells how far it is.
        let models = std::thread::scope(|scope| {
            let others = plan.models.iter().skip(1);
            let others: Vec<_> = others
                .map(|cards| scope.spawn(|| load(cards, &mut |_| {})))
                .collect();
            let first = plan.models.first().map(|cards| load(cards, &mut tell));
            let others = others.into_iter().map(|other| {
                other.join().unwrap_or_else(|_| {
                    Err(Error::Runtime(
                        "loading the model panicked; the log says where".to_string(),
                    ))
                })
            });
            first.into_iter().chain(others).collect::<Result<Vec<_>>>()
        })?;
        let loaded = Loaded {
            models,
            devices,
            plan,
            silence: self.silence(),
        };
        let info = loaded.info();
        if let Some(version) = self.sd_version.filter(|v| !v.fits(info)) {
            let name = version.to_possible_value();
            let name = name.as_ref().map_or("", |v| v.get_name());
            let kind = if info.inpainting {
                ", for inpainting"
            } else {
                ""
            };
            return Err(Error::Usage(format!(
                "--sd-version {name}, but the model {} is of the family {:?}{kind}; give the right --model, or leave --sd-version out",
                info.name, info.family
            )));
        }
        Ok(loaded)
    }
}

/// A plan's cards as candle's devices.
fn placement(cards: &PartCards, devices: &[Selected]) -> Placement {
    let device = |card: usize| devices[card].device.clone();
    Placement {
        text: device(cards.text),
        denoiser: device(cards.denoiser),
        vae: device(cards.vae),
        controlnet: device(cards.controlnet),
        guidance: match cards.halves {
            Halves::Together => GuidancePlace::Together,
            Halves::InTurn => GuidancePlace::InTurn,
            Halves::Second(card) => GuidancePlace::Second(device(card)),
        },
    }
}
