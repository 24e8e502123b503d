//! The steps of sampling and their settings.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A step of sampling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sampler {
    /// Repeat, frequency and presence penalties.
    Penalties,
    /// See [`Dry`].
    Dry,
    /// Only logits that are at most so many standard deviations below the largest.
    TopNSigma,
    /// Logits divided by the temperature.
    Temperature,
    /// The most likely tokens by number.
    TopK,
    /// Tokens of typical surprise.
    TypicalP,
    /// The most likely tokens by probability.
    TopP,
    /// Tokens not much less likely than the most likely one.
    MinP,
    /// See [`Xtc`].
    Xtc,
}

impl Sampler {
    /// All of them, in the order in which they are applied if nobody says otherwise.
    pub const ALL: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::Temperature,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
    ];

    /// llama.cpp's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Penalties => "penalties",
            Self::Dry => "dry",
            Self::TopNSigma => "top_n_sigma",
            Self::Temperature => "temperature",
            Self::TopK => "top_k",
            Self::TypicalP => "typ_p",
            Self::TopP => "top_p",
            Self::MinP => "min_p",
            Self::Xtc => "xtc",
        }
    }

    /// llama.cpp's letter.
    fn letter(self) -> char {
        match self {
            Self::Penalties => 'e',
            Self::Dry => 'd',
            Self::TopNSigma => 's',
            Self::Temperature => 't',
            Self::TopK => 'k',
            Self::TypicalP => 'y',
            Self::TopP => 'p',
            Self::MinP => 'm',
            Self::Xtc => 'x',
        }
    }

    fn of(name: &str) -> Option<Self> {
        let same = name.to_ascii_lowercase().replace('-', "_");
        let also = match same.as_str() {
            "typical_p" | "typical" | "typ" => "typ_p",
            "temp" => "temperature",
            "top_nsigma" | "topn_sigma" => "top_n_sigma",
            other => other,
        };
        Self::ALL.into_iter().find(|s| s.name() == also)
    }
}

/// In which order samplers are applied; those that it lacks are not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplerOrder(Arc<[Sampler]>);

impl Default for SamplerOrder {
    fn default() -> Self {
        Self(Arc::new(Sampler::ALL))
    }
}

impl SamplerOrder {
    /// The samplers of these names, or of the letters of a single word that is no name.
    ///
    /// # Errors
    /// A text that names what is unknown, or there twice.
    pub fn of_names<S: AsRef<str>>(names: &[S]) -> Result<Self, String> {
        let found: Option<Vec<Sampler>> = names.iter().map(|n| Sampler::of(n.as_ref())).collect();
        let samplers = match (found, names) {
            (Some(found), _) => found,
            (None, [letters]) => {
                let of_letter = |letter| Sampler::ALL.into_iter().find(|s| s.letter() == letter);
                let found: Option<Vec<_>> = letters.as_ref().chars().map(of_letter).collect();
                found.ok_or_else(|| unknown(letters.as_ref()))?
            }
            (None, names) => {
                let mut names = names.iter().map(AsRef::as_ref);
                let stranger = names.find(|name| Sampler::of(name).is_none());
                return Err(unknown(stranger.unwrap_or_default()));
            }
        };
        for (i, sampler) in samplers.iter().enumerate() {
            if samplers[..i].contains(sampler) {
                return Err(format!("{} is there twice", sampler.name()));
            }
        }
        Ok(Self(samplers.into()))
    }

    /// The samplers.
    pub fn samplers(&self) -> &[Sampler] {
        &self.0
    }
}

fn unknown(name: &str) -> String {
    let known = Sampler::ALL.map(Sampler::name).join(", ");
    format!("{name:?} is no sampler; there are {known}")
}

impl FromStr for SamplerOrder {
    type Err = String;

    /// Names with semicolons or commas between them, or letters.
    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<&str> = text
            .split([';', ','])
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .collect();
        Self::of_names(&names)
    }
}

impl fmt::Display for SamplerOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.0.iter().map(|s| s.name()).collect();
        f.write_str(&names.join(";"))
    }
}

/// Leaves the most likely tokens out now and then ("Exclude Top Choices"): with some probability, all but the least
/// likely of the tokens that reach a threshold (<https://github.com/oobabooga/text-generation-webui/pull/6335>).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xtc {
    /// How often, from 0 to 1.
    pub probability: f32,
    /// The probability that counts as likely; above 0.5 no two tokens reach it.
    pub threshold: f32,
}

/// Makes tokens less likely that would go on with a repetition ("Don't Repeat Yourself"): `multiplier * base ^ (length -
/// allowed length)` is taken off the logit of a token that would extend an earlier run of so many tokens
/// (<https://github.com/oobabooga/text-generation-webui/pull/5677>).
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// Above 0.
    pub multiplier: f32,
    /// At least 1.
    pub base: f32,
    /// Runs up to this length are not punished.
    pub allowed_length: usize,
    /// How many recent tokens, the prompt's included, are looked at.
    pub last_n: usize,
    /// Texts that no run goes across.
    pub breakers: Arc<[String]>,
}

impl Dry {
    /// What ends runs if nobody says otherwise.
    pub const BREAKERS: [&'static str; 4] = ["\n", ":", "\"", "*"];
    /// Most texts that end runs, and the longest one in bytes.
    pub const MOST_BREAKERS: (usize, usize) = (64, 40);

    /// The usual settings but for the multiplier.
    pub fn new(multiplier: f32) -> Self {
        Self {
            multiplier,
            base: 1.75,
            allowed_length: 2,
            last_n: usize::MAX,
            breakers: Self::BREAKERS.map(str::to_string).into(),
        }
    }
}

/// A temperature that depends on how sure the model is: `temperature ± range`, by the entropy of the tokens' probabilities
/// as a share of the largest possible one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DynamicTemperature {
    /// Above 0.
    pub range: f32,
    /// What the share is raised to.
    pub exponent: f32,
}

/// What sampling aims at, learning from the tokens that it has chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Aim {
    /// A mean surprise of `tau` bits ("Mirostat", Basu et al., 2021): in place of all samplers but penalties and
    /// temperature.
    Mirostat {
        /// The first version estimates how the tokens' probabilities fall, the second one cuts by surprise.
        version: MirostatVersion,
        /// Bits.
        tau: f32,
        /// How fast it learns.
        eta: f32,
    },
    /// A mean probability of the chosen tokens: behind all other samplers, those near it become more likely
    /// (<https://github.com/ggml-org/llama.cpp/pull/17927>).
    AdaptiveP {
        /// From 0 to 1.
        target: f32,
        /// The weight of the past, from 0 to 0.99.
        decay: f32,
    },
}

/// Of [`Aim::Mirostat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MirostatVersion {
    /// By Zipf's law.
    V1,
    /// By surprise.
    V2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_names_or_letters() {
        let order = |text: &str| text.parse::<SamplerOrder>();
        let llama = order("penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature");
        assert_eq!(llama.unwrap(), order("edskypmxt").unwrap());
        assert_eq!(
            order("min-p, temp").unwrap().to_string(),
            "min_p;temperature"
        );
        assert_eq!(order("").unwrap().samplers(), []);
        assert_eq!(SamplerOrder::default().samplers(), Sampler::ALL);
        for (wrong, word) in [("top_k;best", "best"), ("kq", "kq"), ("kk", "top_k")] {
            let error = order(wrong).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
