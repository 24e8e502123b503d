//! Decoders that say "yes" or "no".

use crate::architectures::decoder_config;
use crate::embedding::bad_model;
use crate::embedding::decoder::DecoderEmbedder;
use crate::tokenizer::Tokenizer;
use candle_core::{DType, Device, Result as CandleResult, Tensor};
use std::path::Path;
use worker::gguf::{self, Weights};
use worker::Result;

/// The rows "yes" and "no" of the output matrix, as llama.cpp writes them for rerankers.
const OUTPUT: &str = "cls.output.weight";

/// A decoder whose next token is "yes" or "no".
pub(super) struct YesNo {
    decoder: DecoderEmbedder,
    answers: Answers,
}

enum Answers {
    /// `(2, width)`: "yes" and "no".
    Matrix(Tensor),
    /// Tokens of the whole output matrix.
    Tokens { yes: usize, no: usize },
}

impl YesNo {
    pub(super) fn load(
        path: &Path,
        file: &dyn Weights,
        tokenizer: &Tokenizer,
        device: &Device,
    ) -> Result<Self> {
        let bad = |reason: String| bad_model(path, reason);
        let config = decoder_config(file.header()).map_err(|e| bad(e.to_string()))?;
        let decoder = DecoderEmbedder::load(config, file, device)?;
        let answers = if file.header().tensor(OUTPUT).is_some() {
            let load = || {
                let matrix = gguf::load(file, OUTPUT, device).map_err(candle_core::Error::wrap)?;
                let shape = (2, decoder.width());
                matrix
                    .dequantize(device)?
                    .to_dtype(DType::F32)?
                    .reshape(shape)
            };
            Answers::Matrix(load().map_err(|e| bad(format!("tensor {OUTPUT}: {e}")))?)
        } else {
            let token = |text: &str| match tokenizer.encode(text, false).as_deref() {
                Ok([token]) => Ok(*token as usize),
                _ => Err(bad(format!("{text:?} is not one token of its vocabulary"))),
            };
            Answers::Tokens {
                yes: token("yes")?,
                no: token("no")?,
            }
        };
        Ok(Self { decoder, answers })
    }

    pub(super) fn max_tokens(&self) -> usize {
        self.decoder.max_tokens()
    }

    /// How likely "yes" is behind each text, of "yes" and "no".
    pub(super) fn probabilities(&self, texts: &[&[u32]]) -> CandleResult<Vec<f32>> {
        let hidden = self.decoder.forward(texts)?;
        let mut end = 0;
        let last = texts.iter().map(|text| {
            end += text.len() as u32;
            end - 1
        });
        let last = Tensor::new(last.collect::<Vec<u32>>(), hidden.device())?;
        let hidden = hidden.index_select(&last, 0)?;
        let pairs: Vec<[f32; 2]> = match &self.answers {
            Answers::Matrix(matrix) => {
                let logits = hidden.to_dtype(DType::F32)?.matmul(&matrix.t()?)?;
                let rows = logits.to_vec2::<f32>()?;
                rows.iter().map(|row| [row[0], row[1]]).collect()
            }
            Answers::Tokens { yes, no } => {
                let rows = self.decoder.logits(&hidden)?.to_vec2::<f32>()?;
                rows.iter().map(|row| [row[*yes], row[*no]]).collect()
            }
        };
        Ok(pairs
            .iter()
            .map(|[yes, no]| 1.0 / (1.0 + (no - yes).exp()))
            .collect())
    }
}
