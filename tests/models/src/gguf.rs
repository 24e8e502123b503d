//! GGUF files of small decoders, made in memory.

use std::io::Cursor;

use candle_core::quantized::gguf_file::{self, Content, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Result, Shape, Tensor};

use crate::{weight, VOCABULARY};

/// A file's settings and tensors.
#[derive(Default)]
pub struct Gguf {
    metadata: Vec<(String, Value)>,
    tensors: Vec<(String, QTensor)>,
}

impl Gguf {
    /// Adds settings of `arch`.
    pub fn set(mut self, arch: &str, settings: &[(&str, Value)]) -> Self {
        let settings = settings
            .iter()
            .map(|(k, v)| (format!("{arch}.{k}"), v.clone()));
        self.metadata.extend(settings);
        self
    }

    /// Adds what every decoder of these tests has in common, as `arch` calls it.
    pub fn decoder(self, arch: &str, sizes: &Sizes) -> Self {
        let size = |n: usize| Value::U32(n as u32);
        let mut gguf = self.set(
            arch,
            &[
                ("block_count", size(sizes.blocks)),
                ("embedding_length", size(sizes.hidden)),
                ("feed_forward_length", size(sizes.intermediate)),
                ("attention.head_count", size(sizes.heads)),
                ("attention.head_count_kv", size(sizes.kv_heads)),
                ("attention.key_length", size(sizes.head_dim)),
                ("attention.value_length", size(sizes.head_dim)),
                ("attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
                ("rope.dimension_count", size(sizes.head_dim)),
                ("rope.freq_base", Value::F32(1e4)),
                ("context_length", size(64)),
            ],
        );
        gguf.metadata
            .push(("general.architecture".into(), Value::String(arch.into())));
        gguf
    }

    /// Adds a tensor in `dtype`; vectors stay in f32.
    pub fn tensor(mut self, name: &str, tensor: &Tensor, dtype: GgmlDType) -> Result<Self> {
        let dtype = if tensor.rank() == 1 {
            GgmlDType::F32
        } else {
            dtype
        };
        self.tensors
            .push((name.into(), QTensor::quantize(tensor, dtype)?));
        Ok(self)
    }

    /// Adds a tensor that is made from its name.
    pub fn made(self, name: &str, shape: impl Into<Shape>, dtype: GgmlDType) -> Result<Self> {
        let tensor = weight(name, &shape.into())?;
        self.tensor(name, &tensor, dtype)
    }

    /// Changes the tensors added so far, given by name.
    pub fn edited(mut self, edit: impl Fn(&str, Tensor) -> Result<Tensor>) -> Result<Self> {
        for (name, tensor) in &mut self.tensors {
            let edited = edit(name, tensor.dequantize(&Device::Cpu)?)?;
            *tensor = QTensor::quantize(&edited, tensor.dtype())?;
        }
        Ok(self)
    }

    /// Adds the embedding, which is the head as well if there is none, and the last norm.
    pub fn ends(self, sizes: &Sizes, dtype: GgmlDType) -> Result<Self> {
        self.made(
            "token_embd.weight",
            (VOCABULARY as usize, sizes.hidden),
            dtype,
        )?
        .made("output_norm.weight", sizes.hidden, dtype)
    }

    /// Adds a head.
    pub fn head(self, sizes: &Sizes, dtype: GgmlDType) -> Result<Self> {
        self.made("output.weight", (VOCABULARY as usize, sizes.hidden), dtype)
    }

    /// Adds what blocks of most architectures hold, with these further vectors per block.
    pub fn blocks(
        mut self,
        sizes: &Sizes,
        vectors: &[(&str, usize)],
        dtype: GgmlDType,
    ) -> Result<Self> {
        let (hidden, inner) = (sizes.hidden, sizes.intermediate);
        let (q, kv) = (
            sizes.heads * sizes.head_dim,
            sizes.kv_heads * sizes.head_dim,
        );
        let matrices = [
            ("attn_q", q, hidden),
            ("attn_k", kv, hidden),
            ("attn_v", kv, hidden),
            ("attn_output", hidden, q),
            ("ffn_gate", inner, hidden),
            ("ffn_up", inner, hidden),
            ("ffn_down", hidden, inner),
        ];
        for block in 0..sizes.blocks {
            for (name, rows, columns) in matrices {
                self = self.made(
                    &format!("blk.{block}.{name}.weight"),
                    (rows, columns),
                    dtype,
                )?;
            }
            let norms = [("attn_norm.weight", hidden), ("ffn_norm.weight", hidden)];
            for (name, size) in norms.iter().chain(vectors) {
                self = self.made(&format!("blk.{block}.{name}"), *size, dtype)?;
            }
        }
        Ok(self)
    }

    /// The file, read back.
    pub fn read(&self) -> Result<(Content, Cursor<Vec<u8>>)> {
        let metadata: Vec<_> = self.metadata.iter().map(|(k, v)| (k.as_str(), v)).collect();
        let tensors: Vec<_> = self.tensors.iter().map(|(k, t)| (k.as_str(), t)).collect();
        let mut file = Cursor::new(Vec::new());
        gguf_file::write(&mut file, &metadata, &tensors)?;
        file.set_position(0);
        Ok((Content::read(&mut file)?, file))
    }
}

/// Sizes of a decoder.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Layers.
    pub blocks: usize,
    /// Width.
    pub hidden: usize,
    /// Width inside of the feed-forward part.
    pub intermediate: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl Sizes {
    /// The smallest that blocks of 32 quantise.
    pub const SMALL: Self = Self {
        blocks: 2,
        hidden: 64,
        intermediate: 96,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
    };
    /// The smallest that blocks of 256 quantise.
    pub const WIDE: Self = Self {
        blocks: 2,
        hidden: 256,
        intermediate: 512,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
    };
}
