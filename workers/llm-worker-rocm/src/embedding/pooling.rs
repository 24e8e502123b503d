//! One vector from those of all tokens.

use crate::folder::read_json;
use candle_core::{DType, Result as CandleResult, Tensor};
use serde_json::Value as Json;
use std::path::Path;
use worker::gguf::Gguf;
use worker::{Error, Result};

/// How the vectors of a text's tokens become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// The first one's.
    First,
    /// The last one's.
    Last,
    /// The largest value in each place.
    Max,
}

impl Pooling {
    /// What a sentence-transformers folder says; the mean where it says nothing.
    ///
    /// # Errors
    /// [`Error::BadModel`] for a way that is not implemented, or several at once.
    pub fn of_folder(path: &Path) -> Result<Self> {
        let settings = read_json(path, "1_Pooling/config.json")?.unwrap_or(Json::Null);
        let asked: Vec<&str> = settings
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, value)| key.starts_with("pooling_mode_") && **value == Json::Bool(true))
            .map(|(key, _)| key.as_str())
            .collect();
        match asked[..] {
            [] | ["pooling_mode_mean_tokens"] => Ok(Self::Mean),
            ["pooling_mode_cls_token"] => Ok(Self::First),
            ["pooling_mode_lasttoken"] => Ok(Self::Last),
            ["pooling_mode_max_tokens"] => Ok(Self::Max),
            _ => Err(Error::BadModel {
                path: path.join("1_Pooling/config.json"),
                reason: format!("pooling by {} is not implemented", asked.join(" and ")),
            }),
        }
    }

    /// What a GGUF file says, by llama.cpp's numbers; the mean where it says nothing.
    ///
    /// # Errors
    /// A text if it says a way that gives no vector.
    pub(super) fn of_gguf(header: &Gguf) -> std::result::Result<Self, String> {
        match pooling_type(header) {
            None | Some(1) => Ok(Self::Mean),
            Some(2) => Ok(Self::First),
            Some(3) => Ok(Self::Last),
            Some(other) => Err(format!("pooling of type {other} is not implemented")),
        }
    }

    /// Vectors `(texts, width)` from those of the tokens, `(texts, tokens, width)`; `mask` of `(texts, tokens)` is 1
    /// for a text's own tokens, which come first.
    pub(super) fn apply(self, hidden: &Tensor, mask: &Tensor) -> CandleResult<Tensor> {
        let (texts, _, width) = hidden.dims3()?;
        let mask = mask.to_dtype(DType::F32)?;
        match self {
            Self::Mean => {
                let sum = hidden.broadcast_mul(&mask.unsqueeze(2)?)?.sum(1)?;
                sum.broadcast_div(&mask.sum_keepdim(1)?)
            }
            Self::First => hidden.narrow(1, 0, 1)?.squeeze(1),
            Self::Last => {
                let last = (mask.sum_keepdim(1)? - 1.0)?.to_dtype(DType::U32)?;
                let last = last
                    .unsqueeze(2)?
                    .broadcast_as((texts, 1, width))?
                    .contiguous()?;
                hidden.gather(&last, 1)?.squeeze(1)
            }
            Self::Max => {
                // Padding is pushed below everything.
                let low = ((mask - 1.0)? * 1e30)?;
                hidden.broadcast_add(&low.unsqueeze(2)?)?.max(1)
            }
        }
    }
}

/// The number of a GGUF file's pooling.
pub(super) fn pooling_type(header: &Gguf) -> Option<u32> {
    let architecture = header.get_str("general.architecture").ok().flatten()?;
    let key = format!("{architecture}.pooling_type");
    header.get_u32(&key).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn each_way_leaves_padding_out() {
        let hidden: Vec<f32> = vec![1.0, 8.0, 3.0, 4.0, 9.0, 9.0, 5.0, 6.0, 7.0, 2.0, 3.0, 1.0];
        let hidden = Tensor::from_vec(hidden, (2, 3, 2), &Device::Cpu).unwrap();
        let mask = Tensor::new(&[[1u32, 1, 0], [1, 1, 1]], &Device::Cpu).unwrap();
        let pool = |p: Pooling| p.apply(&hidden, &mask).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(pool(Pooling::Mean), [[2.0, 6.0], [5.0, 3.0]]);
        assert_eq!(pool(Pooling::First), [[1.0, 8.0], [5.0, 6.0]]);
        assert_eq!(pool(Pooling::Last), [[3.0, 4.0], [3.0, 1.0]]);
        assert_eq!(pool(Pooling::Max), [[3.0, 8.0], [7.0, 6.0]]);
    }

    #[test]
    fn the_folder_says_which() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Pooling::of_folder(folder.path()).unwrap(), Pooling::Mean);
        std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
        let write =
            |text: &str| std::fs::write(folder.path().join("1_Pooling/config.json"), text).unwrap();
        write(r#"{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}"#);
        assert_eq!(Pooling::of_folder(folder.path()).unwrap(), Pooling::First);
        write(r#"{"pooling_mode_weightedmean_tokens": true}"#);
        let error = Pooling::of_folder(folder.path()).unwrap_err().to_string();
        assert!(error.contains("weightedmean"), "{error}");
    }
}
