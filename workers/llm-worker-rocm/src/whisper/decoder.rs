//! The text decoder: attention to its own tokens, and to the rows of the sound.

use super::config::WhisperConfig;
use crate::audio::tower::beside;
use crate::vision::weights::{Linear, Loader, Norm};
use candle_core::{DType, Device, Module, Result, Tensor, D};
use candle_nn::ops;
use candle_rocm_flash_attn::flash_attn;
use worker::{Error, Result as WorkerResult};

const LOADING: &str = "loading the decoder of speech";

/// A decoder's weights on a device.
pub(super) struct Decoder {
    /// `(vocabulary, width)`, by which tokens come in and out.
    tokens: Tensor,
    positions: Tensor,
    blocks: Vec<Block>,
    norm: Norm,
    config: WhisperConfig,
    device: Device,
    dtype: DType,
}

struct Block {
    /// Before attention, before attention to the sound, before the feed-forward part.
    norms: [Norm; 3],
    /// Queries, keys and values behind each other.
    all: Linear,
    output: Linear,
    cross_query: Linear,
    /// Keys and values of the sound behind each other.
    cross_keys: Linear,
    cross_output: Linear,
    up: Linear,
    down: Linear,
}

/// Keys and values, and how many there are. On a GPU `(rows, heads, size)`, as its kernel takes them; on the CPU
/// `(heads, rows, size)`, of which products are taken without copies.
struct Keys {
    k: Tensor,
    v: Tensor,
    rows: usize,
}

/// What the decoder knows of a window: keys and values of the sound, and of the tokens so far.
pub(super) struct Memory {
    sound: Vec<Keys>,
    tokens: Vec<Keys>,
}

impl Keys {
    fn new(room: usize, heads: usize, size: usize, dtype: DType, device: &Device) -> Result<Self> {
        let shape = match device.is_cpu() {
            true => (heads, room, size),
            false => (room, heads, size),
        };
        let zeros = || Tensor::zeros(shape, dtype, device);
        Ok(Self {
            k: zeros()?,
            v: zeros()?,
            rows: 0,
        })
    }

    /// Adds rows `(rows, heads, size)`.
    fn push(&mut self, k: &Tensor, v: &Tensor) -> Result<()> {
        let rows = k.dim(0)?;
        for (kept, new) in [(&self.k, k), (&self.v, v)] {
            match kept.device().is_cpu() {
                true => kept.slice_set(&new.transpose(0, 1)?.contiguous()?, 1, self.rows)?,
                false => kept.slice_set(&new.contiguous()?, 0, self.rows)?,
            }
        }
        self.rows += rows;
        Ok(())
    }

    /// Attention of `q`, `(rows, heads, size)`, to all; of the last rows, each to those up to itself, if `causal`.
    fn attend(&self, q: &Tensor, causal: bool) -> Result<Tensor> {
        let scale = 1.0 / (q.dim(2)? as f32).sqrt();
        if q.device().is_cpu() {
            let weights = self.weights(q, causal)?;
            let v = self.v.narrow(1, 0, self.rows)?;
            return weights.matmul(&v)?.transpose(0, 1)?.contiguous();
        }
        let some = |kept: &Tensor| kept.narrow(0, 0, self.rows)?.unsqueeze(0);
        let q = q.contiguous()?.unsqueeze(0)?;
        flash_attn(&q, &some(&self.k)?, &some(&self.v)?, scale, causal)?.squeeze(0)
    }

    /// How much each row of `q` takes of each value: `(heads, rows of q, rows)`.
    fn weights(&self, q: &Tensor, causal: bool) -> Result<Tensor> {
        let (rows, _, size) = q.dims3()?;
        let scale = 1.0 / (size as f64).sqrt();
        let k = match q.device().is_cpu() {
            true => self.k.narrow(1, 0, self.rows)?,
            false => self
                .k
                .narrow(0, 0, self.rows)?
                .transpose(0, 1)?
                .contiguous()?,
        };
        let q = (q.transpose(0, 1)?.contiguous()? * scale)?;
        let mut scores = q.matmul(&k.transpose(1, 2)?)?;
        if causal && rows > 1 {
            let before = self.rows - rows;
            let seen = |row: usize| (0..self.rows).map(move |key| key <= before + row);
            let mask = (0..rows).flat_map(seen).map(|seen| match seen {
                true => 0f32,
                false => f32::NEG_INFINITY,
            });
            let mask = Tensor::from_vec(mask.collect(), (rows, self.rows), q.device())?;
            scores = scores.broadcast_add(&mask.to_dtype(scores.dtype())?)?;
        }
        ops::softmax_last_dim(&scores)
    }
}

impl Decoder {
    /// Takes a decoder's tensors, by names in the manner of the encoder's (`d.blk.0.attn_q`, `d.blk.0.cross_q`).
    ///
    /// # Errors
    /// [`Error::BadModel`] for a tensor that is missing or of another shape, [`Error::Candle`] if the device has no
    /// room.
    pub(super) fn load(loader: &Loader, config: WhisperConfig) -> WorkerResult<Self> {
        let (width, epsilon) = (config.encoder.width, config.encoder.epsilon);
        Ok(Self {
            tokens: loader.shaped("d.token_embd.weight", &[config.vocabulary, width])?,
            positions: loader.shaped("d.position_embd.weight", &[config.positions, width])?,
            blocks: (0..config.blocks)
                .map(|block| Block::load(loader, &config, block))
                .collect::<WorkerResult<_>>()?,
            norm: loader.norm("d.post_ln", width, false, epsilon)?,
            config,
            device: loader.device.clone(),
            dtype: loader.dtype,
        })
    }

    /// What is known at the beginning of a window: nothing but the sound, `(rows, width)`.
    ///
    /// # Errors
    /// If the device has no room.
    pub(super) fn begin(&self, sound: &Tensor) -> Result<Memory> {
        let (rows, width) = sound.dims2()?;
        let heads = self.config.heads;
        let size = width / heads;
        let keys = |block: &Block| {
            let both = block.cross_keys.forward(sound)?;
            let both = both.reshape((rows, 2, heads, size))?;
            let mut keys = Keys::new(rows, heads, size, self.dtype, &self.device)?;
            let part = |index: usize| both.narrow(1, index, 1)?.squeeze(1)?.contiguous();
            keys.push(&part(0)?, &part(1)?)?;
            Ok(keys)
        };
        Ok(Memory {
            sound: self.blocks.iter().map(keys).collect::<Result<_>>()?,
            tokens: self.no_tokens()?,
        })
    }

    /// Forgets the tokens of a window, not its sound.
    ///
    /// # Errors
    /// If the device has no room.
    pub(super) fn forget(&self, memory: &mut Memory) -> Result<()> {
        memory.tokens = self.no_tokens()?;
        Ok(())
    }

    fn no_tokens(&self) -> Result<Vec<Keys>> {
        let heads = self.config.heads;
        let size = self.config.encoder.width / heads;
        let room = self.config.positions;
        (self.blocks.iter())
            .map(|_| Keys::new(room, heads, size, self.dtype, &self.device))
            .collect()
    }

    /// The rows of further tokens, `(tokens, width)`, behind the last norm.
    ///
    /// # Errors
    /// If there are more tokens than positions, or the device fails.
    pub(super) fn rows(&self, tokens: &[u32], memory: &mut Memory) -> Result<Tensor> {
        self.rows_seen(tokens, memory, |_, _| Ok(()))
    }

    /// The same; `see` gets each block's number and how much of the sound its heads take: `(heads, tokens, rows)`.
    ///
    /// # Errors
    /// As [`Self::rows`].
    pub(super) fn rows_watched(
        &self,
        tokens: &[u32],
        memory: &mut Memory,
        mut see: impl FnMut(usize, Tensor) -> Result<()>,
    ) -> Result<Tensor> {
        self.rows_seen(tokens, memory, |block, look| see(block, look()?))
    }

    fn rows_seen(
        &self,
        tokens: &[u32],
        memory: &mut Memory,
        mut see: impl FnMut(usize, &dyn Fn() -> Result<Tensor>) -> Result<()>,
    ) -> Result<Tensor> {
        let first = memory.tokens.first().map_or(0, |keys| keys.rows);
        if first + tokens.len() > self.config.positions {
            candle_core::bail!("a window takes {} tokens", self.config.positions);
        }
        let ids = Tensor::new(tokens, &self.device)?;
        let positions = self.positions.narrow(0, first, tokens.len())?;
        let mut x = (self.tokens.index_select(&ids, 0)? + positions)?;
        let Memory { sound, tokens } = memory;
        for (index, block) in self.blocks.iter().enumerate() {
            let (sound, tokens) = (&sound[index], &mut tokens[index]);
            x = block.forward(&x, sound, tokens, self.config.heads, |look| {
                see(index, look)
            })?;
        }
        self.norm.forward(&x)
    }

    /// Logits of a row, `(1, width)`, on the host.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn logits(&self, row: &Tensor) -> Result<Vec<f32>> {
        let logits = row.matmul(&self.tokens.t()?)?;
        logits.squeeze(0)?.to_dtype(DType::F32)?.to_vec1()
    }
}

impl Block {
    fn load(loader: &Loader, config: &WhisperConfig, block: usize) -> WorkerResult<Self> {
        let (width, epsilon) = (config.encoder.width, config.encoder.epsilon);
        let name = |part: &str| format!("d.blk.{block}.{part}");
        let norm = |part: &str| loader.norm(&name(part), width, false, epsilon);
        let square = |part: &str| loader.linear(&name(part), width, width);
        let joined = |parts: &[&str]| {
            let parts: Vec<Linear> = (parts.iter())
                .map(|part| square(part))
                .collect::<WorkerResult<_>>()?;
            beside(&parts).map_err(Error::candle(LOADING))
        };
        Ok(Self {
            norms: [norm("ln1")?, norm("cross_ln")?, norm("ln2")?],
            all: joined(&["attn_q", "attn_k", "attn_v"])?,
            output: square("attn_out")?,
            cross_query: square("cross_q")?,
            cross_keys: joined(&["cross_k", "cross_v"])?,
            cross_output: square("cross_out")?,
            up: loader.linear(&name("ffn_up"), width, config.hidden)?,
            down: loader.linear(&name("ffn_down"), config.hidden, width)?,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        sound: &Keys,
        tokens: &mut Keys,
        heads: usize,
        mut see: impl FnMut(&dyn Fn() -> Result<Tensor>) -> Result<()>,
    ) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let size = width / heads;
        let all = self.all.forward(&self.norms[0].forward(x)?)?;
        let all = all.reshape((rows, 3, heads, size))?;
        let part = |index: usize| all.narrow(1, index, 1)?.squeeze(1)?.contiguous();
        tokens.push(&part(1)?, &part(2)?)?;
        let mixed = tokens.attend(&part(0)?, true)?;
        let x = (x + self.output.forward(&mixed.reshape((rows, width))?)?)?;

        let query = self.cross_query.forward(&self.norms[1].forward(&x)?)?;
        let query = query.reshape((rows, heads, size))?;
        see(&|| sound.weights(&query, false))?;
        let heard = sound.attend(&query, false)?;
        let x = (x + self.cross_output.forward(&heard.reshape((rows, width))?)?)?;

        let up = self.up.forward(&self.norms[2].forward(&x)?)?.gelu_erf()?;
        x + self.down.forward(&up)?
    }
}

/// The last row of some.
pub(super) fn last(rows: &Tensor) -> Result<Tensor> {
    let count = rows.dim(D::Minus2)?;
    rows.narrow(0, count - 1, 1)
}
