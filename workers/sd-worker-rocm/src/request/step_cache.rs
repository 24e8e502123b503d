//! Steps that take over work of the steps before.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What is taken over, and when.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub enum StepCache {
    /// The UNet's inner blocks, in all but each n-th step (Ma et al. 2024).
    Deep(usize),
    /// The transformer's blocks after the first, while the first changes less than this share.
    FirstBlock(f64),
    /// All blocks, while the time's modulation of the first block's input changes less than this share in sum (Liu et
    /// al. 2024).
    Tea(f64),
}

/// Usual settings.
const DEEP: usize = 3;
const FIRST_BLOCK: f64 = 0.1;
const TEA: f64 = 0.3;
/// Most steps that share their inner blocks.
const MAX_DEEP: usize = 100;

impl FromStr for StepCache {
    type Err = String;

    /// `deepcache[:N]`, `fbcache[:X]` or `teacache[:X]`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!("{text:?} is not a step cache; use deepcache[:STEPS], fbcache[:THRESHOLD] or teacache[:THRESHOLD]")
        };
        let (kind, setting) = match text.split_once(':') {
            Some((kind, setting)) => (kind, Some(setting.trim())),
            None => (text, None),
        };
        let share = |usual: f64| -> Result<f64, String> {
            let value = setting.map_or(Ok(usual), str::parse).map_err(|_| wrong())?;
            match (0.0..=10.0).contains(&value) {
                true => Ok(value),
                false => Err(format!(
                    "the step cache's threshold {value} goes from 0 to 10"
                )),
            }
        };
        match kind.trim().to_ascii_lowercase().as_str() {
            "deepcache" => {
                let steps = setting.map_or(Ok(DEEP), str::parse).map_err(|_| wrong())?;
                match (1..=MAX_DEEP).contains(&steps) {
                    true => Ok(Self::Deep(steps)),
                    false => Err(format!(
                        "the step cache's steps {steps} go from 1 to {MAX_DEEP}"
                    )),
                }
            }
            "fbcache" => Ok(Self::FirstBlock(share(FIRST_BLOCK)?)),
            "teacache" => Ok(Self::Tea(share(TEA)?)),
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for StepCache {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<StepCache> for String {
    fn from(cache: StepCache) -> Self {
        cache.to_string()
    }
}

impl fmt::Display for StepCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deep(steps) => write!(f, "deepcache:{steps}"),
            Self::FirstBlock(share) => write!(f, "fbcache:{share}"),
            Self::Tea(share) => write!(f, "teacache:{share}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_settings() {
        for text in ["deepcache:2", "fbcache:0.12", "teacache:0.4"] {
            assert_eq!(text.parse::<StepCache>().unwrap().to_string(), text);
        }
        assert_eq!("DeepCache".parse(), Ok(StepCache::Deep(DEEP)));
        for text in [
            "",
            "deep",
            "deepcache:0",
            "deepcache:x",
            "fbcache:-1",
            "teacache:nan",
        ] {
            assert!(text.parse::<StepCache>().is_err(), "{text}");
        }
        let json = serde_json::from_str::<StepCache>(r#""fbcache:0.2""#).unwrap();
        assert_eq!(json, StepCache::FirstBlock(0.2));
    }
}
