//! The decoder behind the engine's border to models.

use super::config::DecoderConfig;
use super::crossing;
use super::decode::{Decoding, StepOfShape};
use super::fingerprint::Notes;
use super::lora::Unused;
use super::network::{Network, OnBlock};
use super::part::Part;
use crate::adapters::Adapter;
use crate::engine::api::{AdapterUse, GraphUse, KvDType, KvTypes, WeightBytes, WeightOptions};
use crate::engine::forward::{
    Answer, CacheOptions, DecodeOutput, Decoded, Forward, HeadOutput, HeadStep, Predicted,
    SampleParams, Step,
};
use crate::engine::media::{Content, Features, MediaItem, StepMedia};
use crate::engine::shard::Shard;
use crate::engine::snapshots::Snapshots;
use crate::sound::SoundEncoder;
use crate::vision::Encoder;
use candle_core::{DType, Device, Result, Tensor};
use std::sync::Arc;
use worker::gguf::Weights;

/// What a model is loaded from: a file whose [`DecoderConfig`] and tensors have been checked.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    /// Its shape.
    pub config: &'a DecoderConfig,
    /// Its weights.
    pub file: &'a dyn Weights,
    /// The longest sequence that will come.
    pub context: usize,
    /// Adapters beside the weights.
    pub adapters: &'a [Adapter],
    /// Where weights go.
    pub weights: WeightOptions,
    /// Whether the heads that predict further tokens are loaded, too.
    pub heads: bool,
    /// The shard that loads, where several GPUs share the matrices; the others are the whole model's.
    pub shard: Option<&'a Shard>,
}

impl Source<'_> {
    /// Refuses adapters that have something for none of the model's matrices: `unused` by any decoder of it.
    ///
    /// # Errors
    /// [`Error::BadModel`](worker::Error::BadModel) naming the tensor.
    pub(crate) fn refuse_unused(&self, unused: &Unused) -> worker::Result<()> {
        match unused.first() {
            None => Ok(()),
            Some((adapter, tensor)) => Err(worker::Error::BadModel {
                path: self.adapters[*adapter].source.path.clone(),
                reason: format!("adapters of {tensor} are not implemented for this model"),
            }),
        }
    }
}

/// What a stage of a model makes of a step.
pub(crate) enum Left {
    /// What the next stage goes on with.
    Crossing(Vec<Tensor>),
    /// Logits, as [`Forward::forward`] gives them.
    Logits(Tensor),
}

/// What a stage of a model makes of a step of few rows.
pub(crate) enum LeftOfDecode {
    /// What the next stage goes on with, and what the device will have to say of it.
    Crossing(Vec<Tensor>, Option<Answer>),
    /// What [`Forward::decode`] gives.
    Decoded(Decoded),
}

/// A model on a device, or one stage of it.
pub struct Decoder {
    pub(super) network: Network,
    decoding: Decoding,
    /// The encoder of pictures, if there is one.
    vision: Option<Encoder>,
    /// The encoder of sounds, if there is one.
    sound: Option<SoundEncoder>,
}

impl Decoder {
    /// Loads the weights of a file whose [`DecoderConfig`] and tensors have been checked to where `options` say; `context`
    /// is the longest sequence that will come, `progress` is called with the bytes of each tensor.
    ///
    /// # Errors
    /// [`Error::Candle`](worker::Error::Candle) if the device has no room, [`Error::BadModel`](worker::Error::BadModel)
    /// for a tensor type that candle does not compute with.
    pub fn load(
        config: DecoderConfig,
        file: &dyn Weights,
        device: &Device,
        context: usize,
        adapters: &[Adapter],
        options: WeightOptions,
        progress: &dyn Fn(u64),
    ) -> worker::Result<Self> {
        let source = Source {
            config: &config,
            file,
            context,
            adapters,
            weights: options,
            heads: false,
            shard: None,
        };
        let decoder = Self::load_part(&source, &Part::whole(&config), device, progress)?;
        source.refuse_unused(decoder.unused_adapters())?;
        Ok(decoder)
    }

    /// Loads what a shard has of a model that several GPUs share: configuration, file and adapters are the whole model's.
    /// All shards load at the same time, on the devices of their communicators, and from then on make the same passes.
    ///
    /// # Errors
    /// Those of [`Decoder::load`], and if another shard failed.
    pub fn load_shard(
        shard: &Shard,
        config: &DecoderConfig,
        file: &dyn Weights,
        (context, weights): (usize, WeightOptions),
        adapters: &[Adapter],
        progress: &dyn Fn(u64),
    ) -> worker::Result<Self> {
        let source = Source {
            config,
            file,
            context,
            adapters,
            weights,
            heads: false,
            shard: Some(shard),
        };
        let device = shard.communicator.device().clone();
        let decoder = Self::load_part(&source, &Part::whole(config), &device, progress)?;
        source.refuse_unused(decoder.unused_adapters())?;
        Ok(decoder)
    }

    /// Loads a part of a model, or what a shard has of it, with its heads if these are asked for and the part is the last
    /// one. What adapters have for other parts is left alone: [`Decoder::unused_adapters`].
    ///
    /// # Errors
    /// Those of [`Decoder::load`], of [`Decoder::load_shard`] and of [`Decoder::with_heads`].
    pub fn load_part(
        source: &Source,
        part: &Part,
        device: &Device,
        progress: &dyn Fn(u64),
    ) -> worker::Result<Self> {
        let network = match source.shard {
            None => Network::load(source, part, device, progress)?,
            Some(shard) => {
                let number = shard.number();
                if number == 0 {
                    for part in shard.plan.whole() {
                        tracing::info!("every GPU computes these whole: {part}");
                    }
                }
                let of_adapter = |adapter| shard.plan.adapter(number, adapter);
                let adapters: Vec<Adapter> = source.adapters.iter().map(of_adapter).collect();
                let own = Source {
                    config: &source.config.of_shard(&shard.plan, number),
                    file: &shard.weights(source.file),
                    adapters: &adapters,
                    ..*source
                };
                Network::load(&own, part, device, progress)?
            }
        };
        let decoder = Self {
            network,
            decoding: Decoding::default(),
            vision: None,
            sound: None,
        };
        match source.heads && part.is_last() {
            true => decoder.with_heads(source.file, progress),
            false => Ok(decoder),
        }
    }

    /// Tensors of adapters that belong to no matrix of the part.
    pub(crate) fn unused_adapters(&self) -> &Unused {
        &self.network.unused_adapters
    }

    /// What tells its weights from others.
    pub(crate) fn notes(&self) -> &Notes {
        &self.network.notes
    }

    /// Has `on_block` told of each block of a prompt's pass once it is enqueued.
    pub(crate) fn tell_blocks(&mut self, on_block: OnBlock) {
        self.network.on_block = Some(on_block);
    }

    /// Shapes and dtypes of what this part takes from the one before, of so many rows.
    pub(crate) fn arriving(&self, rows: usize) -> Vec<(Vec<usize>, DType)> {
        self.network.arriving(rows)
    }

    /// What a step comes to in this part; `arrived` is what the part before has left, if there is one.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn pass(
        &mut self,
        step: &Step,
        media: &StepMedia,
        arrived: Option<&[Tensor]>,
    ) -> Result<Left> {
        let network = &self.network;
        network.lora.enter(&step.outputs, &network.device)?;
        match self.network.hidden(step, media, arrived)? {
            crossing::Left::Crossing(crossing) => Ok(Left::Crossing(crossing)),
            crossing::Left::Rows(_) if step.outputs.is_empty() => {
                Ok(Left::Logits(self.forward_nothing()?))
            }
            crossing::Left::Rows(hidden) => Ok(Left::Logits(self.network.logits(&hidden.into())?)),
        }
    }

    /// The same of a step that [`Forward::decode`] takes.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn pass_decode(
        &mut self,
        step: &Step,
        samples: Option<&[SampleParams]>,
        arrived: Option<&[Tensor]>,
    ) -> Result<LeftOfDecode> {
        // Experts in the host's memory need the host in the midst of a step.
        let network = &self.network;
        if !network.device.is_rocm() || !network.streamer.is_idle() {
            return Ok(match self.pass(step, &StepMedia::default(), arrived)? {
                Left::Crossing(crossing) => LeftOfDecode::Crossing(crossing, None),
                Left::Logits(logits) => LeftOfDecode::Decoded(Decoded {
                    output: DecodeOutput::Logits(logits, None),
                    graph: false,
                }),
            });
        }
        let step = StepOfShape {
            step,
            samples,
            arrived,
        };
        self.decoding.step(&mut self.network, step)
    }

    /// The hidden states that the last step has left for the heads.
    pub(crate) fn kept_hidden(&self) -> Option<Tensor> {
        self.network.kept_hidden()
    }

    /// Leaves the hidden states of several passes to the heads, as if they had been one.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn keep_hidden(&mut self, parts: &[Tensor]) -> Result<()> {
        if !parts.is_empty() {
            self.network.keep_hidden(&Tensor::cat(parts, 0)?);
        }
        Ok(())
    }

    /// Loads the heads that predict further tokens as well, see [`Forward::predict`]; of a shard, `file` is the whole
    /// model's.
    ///
    /// # Errors
    /// [`Error::Usage`](worker::Error::Usage) if the file has none, and those of [`Decoder::load`].
    pub fn with_heads(
        mut self,
        file: &dyn Weights,
        progress: &dyn Fn(u64),
    ) -> worker::Result<Self> {
        let shard = self.network.shard.clone();
        let part = shard.as_ref().map(|shard| shard.weights(file));
        let file = part.as_ref().map_or(file, |part| part as &dyn Weights);
        let config = &self.network.config;
        let count = config.check_heads(file.header());
        let count = count.map_err(|error| worker::Error::BadModel {
            path: file.path().to_path_buf(),
            reason: error.to_string(),
        })?;
        if count == 0 {
            return Err(worker::Error::Usage(
                "the model has no head that predicts further tokens (nextn_predict_layers); guess by ngram or a draft model"
                    .to_string(),
            ));
        }
        self.network.load_heads(count, file, progress)?;
        Ok(self)
    }

    /// Takes an encoder of pictures, on the same device.
    ///
    /// # Errors
    /// Why its rows do not suit the model.
    pub fn set_vision(&mut self, vision: Encoder) -> std::result::Result<(), String> {
        let (own, its) = (self.width(), vision.width());
        if own != its {
            return Err(format!(
                "the encoder of pictures gives rows of {its} elements, the model has {own}"
            ));
        }
        if vision.needs_sections() && self.network.config.rope.axes.is_empty() {
            return Err("the encoder of pictures is of a model whose tokens have three positions each; this one's have one".to_string());
        }
        self.vision = Some(vision);
        Ok(())
    }

    /// Takes an encoder of sounds, on the same device.
    ///
    /// # Errors
    /// Why its rows do not suit the model.
    pub fn set_sound(&mut self, sound: SoundEncoder) -> std::result::Result<(), String> {
        let (own, its) = (self.width(), sound.outputs());
        if own != its {
            return Err(format!(
                "the encoder of sounds gives rows of {its} elements, the model has {own}"
            ));
        }
        self.sound = Some(sound);
        Ok(())
    }

    /// The encoder of pictures.
    fn sight(&self) -> Result<&Encoder> {
        match &self.vision {
            Some(vision) => Ok(vision),
            None => candle_core::bail!("this model takes no pictures"),
        }
    }

    /// Logits of no rows.
    fn forward_nothing(&self) -> Result<Tensor> {
        let shape = (0, self.network.config.vocab_size);
        Tensor::zeros(shape, DType::F32, &self.network.device)
    }

    /// Width of the residual stream.
    pub fn width(&self) -> usize {
        self.network.config.width
    }

    /// Computes new tokens and writes their keys and values, as [`Forward::forward`] does. Gives what the output matrix
    /// would be applied to: the rows that are asked for behind the last norm, `(outputs, width)`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn hidden(&mut self, step: &Step) -> Result<Tensor> {
        match self.network.hidden(step, &StepMedia::default(), None)? {
            crossing::Left::Rows(rows) => Ok(rows),
            crossing::Left::Crossing(_) => candle_core::bail!("a stage has no last norm"),
        }
    }

    /// Logits of what [`Decoder::hidden`] gives, f32 `(rows, vocabulary)`.
    ///
    /// # Errors
    /// If the device fails.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.network.logits(&hidden.clone().into())
    }
}

impl Forward for Decoder {
    fn vocab_size(&self) -> usize {
        self.network.config.vocab_size
    }

    fn context_length(&self) -> usize {
        self.network.config.context_length
    }

    fn device(&self) -> &Device {
        &self.network.device
    }

    fn weight_bytes(&self) -> WeightBytes {
        self.network.weight_bytes
    }

    fn can_take_back(&self) -> bool {
        true
    }

    fn heads(&self) -> usize {
        self.network.heads.len()
    }

    fn predict(&mut self, step: &HeadStep, samples: Option<&[SampleParams]>) -> Result<Predicted> {
        // Those of the step before are of other rows.
        self.network.lora.leave();
        match self.network.is_of_shape(step) {
            true => self.decoding.predict(&mut self.network, step, samples),
            false => Ok(Predicted {
                output: HeadOutput::Logits(self.network.predict(step)?),
                graph: false,
            }),
        }
    }

    fn kv_dtype(&self) -> KvDType {
        match self.network.activations {
            _ if self.network.device.is_cpu() => KvDType::F32,
            DType::BF16 => KvDType::Bf16,
            _ => KvDType::F16,
        }
    }

    fn kv_token_bytes(&self, dtype: KvTypes) -> usize {
        self.network.token_bytes(dtype.into())
    }

    fn window(&self) -> Option<usize> {
        self.network.window()
    }

    fn kv_window_bytes(&self, dtype: KvTypes) -> usize {
        self.network.window_bytes(dtype.into())
    }

    fn snapshots(&mut self) -> Option<&mut dyn Snapshots> {
        Some(self)
    }

    fn state_bytes(&self) -> usize {
        self.network.state_bytes()
    }

    fn reserve(&mut self, cache: &CacheOptions) -> Result<()> {
        self.decoding.clear();
        self.network.reserve(cache)
    }

    fn forward(&mut self, step: &Step) -> Result<Tensor> {
        self.forward_media(step, &StepMedia::default())
    }

    fn forward_media(&mut self, step: &Step, media: &StepMedia) -> Result<Tensor> {
        match self.pass(step, media, None)? {
            Left::Logits(logits) => Ok(logits),
            Left::Crossing(_) => candle_core::bail!("a stage has no logits"),
        }
    }

    fn encode(&mut self, item: &MediaItem) -> Result<Features> {
        match &item.content {
            Content::Picture(pixels) => self.sight()?.encode(pixels),
            Content::Video(video) => self.sight()?.encode(&video.pixels),
            Content::Sound(frames) => match &self.sound {
                Some(sound) => sound.encode(frames),
                None => candle_core::bail!("this model takes no sounds"),
            },
        }
    }

    fn decode(&mut self, step: &Step, samples: Option<&[SampleParams]>) -> Result<Decoded> {
        match self.pass_decode(step, samples, None)? {
            LeftOfDecode::Decoded(decoded) => Ok(decoded),
            LeftOfDecode::Crossing(..) => candle_core::bail!("a stage has no logits"),
        }
    }

    fn adapters(&self) -> usize {
        self.network.adapters
    }

    fn use_adapters(&mut self, step: &Step, uses: &[Arc<[AdapterUse]>]) -> Result<()> {
        let Network { lora, adapters, .. } = &self.network;
        lora.wish(step, uses, *adapters)
    }

    fn set_graphs(&mut self, graphs: GraphUse) {
        self.decoding.set_graphs(graphs, &self.network.device);
        if graphs != GraphUse::Off && !self.network.streamer.is_idle() {
            let reason = "experts are in the host's memory, which has a part in each step";
            self.decoding.do_without_graphs(reason.to_string());
        }
        if let Some(shard) = &self.network.shard {
            self.decoding.agree_on_graphs(graphs, shard);
        }
    }

    fn without_graphs(&self) -> Option<&str> {
        self.decoding.without_graphs()
    }
}
