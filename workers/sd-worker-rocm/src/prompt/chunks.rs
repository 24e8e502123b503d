//! Chunks that a text encoder takes: begin, 75 tokens, end.

use super::attention::{parse, Segment};
use super::tokenizer::Tokenize;
use candle_core::{Result as CandleResult, Tensor, D};
use worker::{Error, Result};

/// Most chunks of a prompt; each is a run of the text encoder and widens cross-attention.
const MAX_CHUNKS: usize = 64;

/// How a prompt is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkOptions {
    /// Tokens of a chunk, begin and end included: 77 for CLIP.
    pub length: usize,
    /// A chunk that is full is cut after a comma, if one lies among so many last tokens.
    pub comma_backtrack: usize,
    /// Whether brackets are weights; if not, they are text.
    pub weights: bool,
}

impl Default for ChunkOptions {
    /// CLIP's length and web UIs' habits.
    fn default() -> Self {
        Self {
            length: 77,
            comma_backtrack: 20,
            weights: true,
        }
    }
}

/// A run of the text encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Chunk {
    /// Begin, tokens, end and filling.
    pub tokens: Vec<u32>,
    /// A weight for each; 1 for those that no bracket holds.
    pub weights: Vec<f32>,
}

impl Chunk {
    /// Whether any weight is not 1.
    pub fn is_weighted(&self) -> bool {
        self.weights.iter().any(|w| *w != 1.0)
    }
}

/// The chunks of a prompt; an empty prompt has one.
///
/// # Errors
/// [`Error::Usage`] for a prompt that cannot be tokenised or fills too many chunks.
pub fn chunk(prompt: &str, tokenizer: &dyn Tokenize, options: ChunkOptions) -> Result<Vec<Chunk>> {
    let room = options.length.checked_sub(2).filter(|room| *room > 0);
    let room = room.ok_or_else(|| {
        Error::Usage(format!(
            "a text encoder of {} positions has no room for a prompt",
            options.length
        ))
    })?;
    let segments = if options.weights {
        parse(prompt)
    } else {
        vec![Segment::Text(prompt.to_string(), 1.0)]
    };
    let mut builder = Builder {
        tokenizer,
        options,
        room,
        chunks: Vec::new(),
        tokens: Vec::new(),
        after_comma: None,
    };
    for segment in segments {
        match segment {
            Segment::Break => builder.close()?,
            Segment::Text(text, weight) => {
                for token in tokenizer.encode(&text)? {
                    builder.push(token, weight)?;
                }
            }
        }
    }
    if !builder.tokens.is_empty() || builder.chunks.is_empty() {
        builder.close()?;
    }
    Ok(builder.chunks)
}

/// Appends empty chunks, so that a prompt and its negative prompt have as many.
pub fn pad_to(chunks: &mut Vec<Chunk>, count: usize, tokenizer: &dyn Tokenize) {
    let Some(length) = chunks.first().map(|c| c.tokens.len()) else {
        return;
    };
    while chunks.len() < count {
        chunks.push(finished(&[], tokenizer, length));
    }
}

struct Builder<'a> {
    tokenizer: &'a dyn Tokenize,
    options: ChunkOptions,
    room: usize,
    chunks: Vec<Chunk>,
    /// Of the chunk that is being filled.
    tokens: Vec<(u32, f32)>,
    /// Where the last comma ends in it.
    after_comma: Option<usize>,
}

impl Builder<'_> {
    fn push(&mut self, token: u32, weight: f32) -> Result<()> {
        let is_comma = Some(token) == self.tokenizer.comma();
        if self.tokens.len() == self.room {
            let cut = self
                .after_comma
                .filter(|at| !is_comma && self.room - at <= self.options.comma_backtrack);
            let moved = self.tokens.split_off(cut.unwrap_or(self.room));
            self.close()?;
            self.tokens = moved;
        }
        self.tokens.push((token, weight));
        if is_comma {
            self.after_comma = Some(self.tokens.len());
        }
        Ok(())
    }

    /// Ends the chunk in hand, which may be empty.
    fn close(&mut self) -> Result<()> {
        if self.chunks.len() >= MAX_CHUNKS {
            return Err(Error::Usage(format!(
                "the prompt is longer than {MAX_CHUNKS} chunks of {} tokens; each BREAK ends one",
                self.room
            )));
        }
        self.chunks
            .push(finished(&self.tokens, self.tokenizer, self.options.length));
        self.tokens.clear();
        self.after_comma = None;
        Ok(())
    }
}

fn finished(content: &[(u32, f32)], tokenizer: &dyn Tokenize, length: usize) -> Chunk {
    let mut tokens = vec![tokenizer.bos()];
    let mut weights = vec![1.0];
    for (token, weight) in content {
        tokens.push(*token);
        weights.push(*weight);
    }
    tokens.push(tokenizer.eos());
    tokens.resize(length, tokenizer.pad());
    weights.resize(length, 1.0);
    Chunk { tokens, weights }
}

/// Applies the chunks' weights to their encoding, `(chunks, length, width)`: each token's vector is scaled, then all so
/// that their mean is what it was.
///
/// # Errors
/// candle's.
pub fn apply_weights(encoded: &Tensor, chunks: &[Chunk]) -> CandleResult<Tensor> {
    if !chunks.iter().any(Chunk::is_weighted) {
        return Ok(encoded.clone());
    }
    let weights: Vec<f32> = chunks.iter().flat_map(|c| c.weights.clone()).collect();
    let (count, length, _) = encoded.dims3()?;
    let weights = Tensor::from_vec(weights, (count, length, 1), encoded.device())?
        .to_dtype(encoded.dtype())?;
    let weighted = encoded.broadcast_mul(&weights)?;
    let mean = |x: &Tensor| {
        x.to_dtype(candle_core::DType::F32)?
            .flatten_all()?
            .mean_keepdim(D::Minus1)
    };
    let factor = (mean(encoded)? / mean(&weighted)?)?
        .reshape((1, 1, 1))?
        .to_dtype(encoded.dtype())?;
    weighted.broadcast_mul(&factor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    /// One token a word; a comma is 1.
    struct Words;

    impl Tokenize for Words {
        fn encode(&self, text: &str) -> Result<Vec<u32>> {
            Ok(text
                .replace(',', " , ")
                .split_whitespace()
                .map(|w| if w == "," { 1 } else { 100 + w.len() as u32 })
                .collect())
        }
        fn bos(&self) -> u32 {
            2
        }
        fn eos(&self) -> u32 {
            3
        }
        fn pad(&self) -> u32 {
            0
        }
        fn comma(&self) -> Option<u32> {
            Some(1)
        }
    }

    fn options(length: usize, comma_backtrack: usize) -> ChunkOptions {
        ChunkOptions {
            length,
            comma_backtrack,
            weights: true,
        }
    }

    #[test]
    fn a_short_prompt_is_filled_up() {
        let chunks = chunk("a (bb:1.5)", &Words, options(6, 0)).unwrap();
        assert_eq!(chunks.len(), 1);
        assert_eq!(chunks[0].tokens, [2, 101, 102, 3, 0, 0]);
        assert_eq!(chunks[0].weights, [1.0, 1.0, 1.5, 1.0, 1.0, 1.0]);
        let empty = chunk("", &Words, options(6, 0)).unwrap();
        assert_eq!(empty[0].tokens, [2, 3, 0, 0, 0, 0]);
    }

    #[test]
    fn a_long_prompt_is_cut_after_a_comma() {
        let cut = |backtrack| {
            let chunks = chunk("a bb, ccc dddd eeeee", &Words, options(6, backtrack)).unwrap();
            chunks.into_iter().map(|c| c.tokens).collect::<Vec<_>>()
        };
        assert_eq!(cut(0), [[2, 101, 102, 1, 103, 3], [2, 104, 105, 3, 0, 0]]);
        assert_eq!(cut(2), [[2, 101, 102, 1, 3, 0], [2, 103, 104, 105, 3, 0]]);
    }

    #[test]
    fn breaks_and_padding_to_the_other_prompt() {
        let mut chunks = chunk("a BREAK bb", &Words, options(4, 0)).unwrap();
        assert_eq!(chunks.len(), 2);
        pad_to(&mut chunks, 3, &Words);
        assert_eq!(chunks[2].tokens, [2, 3, 0, 0]);
    }

    #[test]
    fn an_endless_prompt_is_refused() {
        let error = chunk(&"word ".repeat(5000), &Words, ChunkOptions::default()).unwrap_err();
        assert!(error.to_string().contains("64 chunks"), "{error}");
        let breaks = |count: usize| chunk(&"BREAK ".repeat(count), &Words, ChunkOptions::default());
        assert_eq!(breaks(MAX_CHUNKS).unwrap().len(), MAX_CHUNKS);
        let error = breaks(MAX_CHUNKS + 1).unwrap_err();
        assert!(error.to_string().contains("64 chunks"), "{error}");
        let mixed = format!("{} a", "a BREAK ".repeat(MAX_CHUNKS));
        chunk(&mixed, &Words, ChunkOptions::default()).unwrap_err();
    }

    #[test]
    fn weights_keep_the_mean() {
        let encoded = Tensor::new(&[[[1f32, 2.], [3., 4.], [5., 9.]]], &Device::Cpu).unwrap();
        let mut chunks = chunk("a", &Words, options(3, 0)).unwrap();
        chunks[0].weights[1] = 2.0;
        let weighted = apply_weights(&encoded, &chunks).unwrap();
        let values = weighted.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let mean = values.iter().sum::<f32>() / 6.0;
        assert!((mean - 4.0).abs() < 1e-5);
        assert!((values[2] / values[0] - 6.0).abs() < 1e-5);
    }
}
