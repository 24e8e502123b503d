//! The sizes of a Whisper model.

use crate::audio::TowerShape;
use serde_json::Value as Json;

/// Largest number that a configuration may claim for a size.
const MAX_SIZE: u64 = 1 << 20;
/// Most blocks.
const MAX_BLOCKS: usize = 256;
/// Added to variances: the models' code has it, their files do not.
const EPSILON: f32 = 1e-5;

/// The sizes of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WhisperConfig {
    /// The encoder's.
    pub encoder: TowerShape,
    /// Blocks of the decoder.
    pub blocks: usize,
    /// Heads of the decoder.
    pub heads: usize,
    /// Elements between the two matrices of its feed-forward parts.
    pub hidden: usize,
    /// Most tokens of a window, those before the answer included.
    pub positions: usize,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
}

impl WhisperConfig {
    /// From `config.json` of a folder.
    ///
    /// # Errors
    /// The key that is missing, absurd, or calls for something that is not implemented.
    pub(super) fn of_folder(json: &Json) -> Result<Self, String> {
        let size = |key: &str| {
            let number = json[key].as_u64().filter(|n| (1..=MAX_SIZE).contains(n));
            number
                .map(|n| n as usize)
                .ok_or_else(|| format!("config.json: {key} is {}", json[key]))
        };
        let only = |key: &str, usual: Json| match &json[key] {
            Json::Null => Ok(()),
            value if *value == usual => Ok(()),
            value => Err(format!("config.json: {key} {value} is not implemented")),
        };
        only("activation_function", "gelu".into())?;
        only("scale_embedding", false.into())?;
        only("tie_word_embeddings", true.into())?;
        let config = Self {
            encoder: TowerShape {
                bands: size("num_mel_bins")?,
                width: size("d_model")?,
                heads: size("encoder_attention_heads")?,
                hidden: size("encoder_ffn_dim")?,
                blocks: size("encoder_layers")?,
                positions: size("max_source_positions")?,
                epsilon: EPSILON,
            },
            blocks: size("decoder_layers")?,
            heads: size("decoder_attention_heads")?,
            hidden: size("decoder_ffn_dim")?,
            positions: size("max_target_positions")?,
            vocabulary: size("vocab_size")?,
        };
        config.checked("config.json")
    }

    /// From the eleven numbers at the beginning of a file of whisper.cpp.
    ///
    /// # Errors
    /// The number that is absurd.
    pub(super) fn of_ggml(numbers: [i32; 11]) -> Result<Self, String> {
        let [vocabulary, audio, width, heads, blocks, text, text_width, text_heads, text_blocks, bands, _] =
            numbers.map(|n| usize::try_from(n).unwrap_or(0));
        if width != text_width {
            return Err(format!(
                "its encoder is {width} wide and its decoder {text_width}"
            ));
        }
        let config = Self {
            encoder: TowerShape {
                bands,
                width,
                heads,
                hidden: 4 * width,
                blocks,
                positions: audio,
                epsilon: EPSILON,
            },
            blocks: text_blocks,
            heads: text_heads,
            hidden: 4 * width,
            positions: text,
            vocabulary,
        };
        config.checked("the file")
    }

    /// Refuses sizes that do not go together.
    fn checked(self, whence: &str) -> Result<Self, String> {
        let encoder = &self.encoder;
        let sizes = [
            ("mel bands", encoder.bands),
            ("a width", encoder.width),
            ("rows of sound", encoder.positions),
            ("positions of tokens", self.positions),
            ("tokens", self.vocabulary),
            ("blocks of the encoder", encoder.blocks),
            ("blocks of the decoder", self.blocks),
        ];
        if let Some((name, size)) = sizes
            .iter()
            .find(|(_, size)| !(1..=MAX_SIZE as usize).contains(size))
        {
            return Err(format!(
                "{whence} says {name} of {size}, which no model has"
            ));
        }
        for heads in [encoder.heads, self.heads] {
            if heads == 0 || !encoder.width.is_multiple_of(heads) {
                return Err(format!(
                    "{whence}: {heads} heads cannot share a width of {}",
                    encoder.width
                ));
            }
        }
        if encoder.blocks.max(self.blocks) > MAX_BLOCKS
            || encoder.bands > 1024
            || self.positions < 8
        {
            return Err(format!(
                "{whence} says {} and {} blocks, {} mel bands and {} positions, which no model has",
                encoder.blocks, self.blocks, encoder.bands, self.positions
            ));
        }
        Ok(self)
    }

    /// Frames of a window of sound: two for each of the encoder's rows.
    pub fn window_frames(&self) -> usize {
        2 * self.encoder.positions
    }
}
