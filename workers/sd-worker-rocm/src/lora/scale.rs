//! By what a LoRA's product is multiplied, where its file or the one beside it says so for whole networks.
//!
//! diffusers (0.34 and later) writes PEFT's settings into the file's metadata, PEFT into `adapter_config.json` beside
//! the file. Files of others have a tensor `alpha` for each layer instead.

use super::names::{Network, Target};
use crate::models::rotation::Turns;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Key of diffusers' metadata.
pub(super) const METADATA: &str = "lora_adapter_metadata";

/// Most terms of a series.
const MOST_TERMS: u64 = 64;

/// PEFT's settings of each network.
#[derive(Debug, Default)]
pub(super) struct Scales(BTreeMap<Network, Settings>);

/// PEFT's settings of one network, as far as they change what is added.
#[derive(Debug, Default)]
struct Settings {
    alpha: Option<f64>,
    /// The rank of layers that have none of their own.
    rank: Option<f64>,
    /// Whether alpha is divided by the root of the rank.
    by_root: bool,
    /// Alphas of layers, by the ends of their names.
    patterns: Vec<(String, f64)>,
    /// How OFT turns.
    turns: Turns,
}

impl Scales {
    /// The settings in a file's metadata, which name them `unet.lora_alpha`.
    ///
    /// # Errors
    /// Says what is not as it should be, or not implemented.
    pub(super) fn of_metadata(text: &str) -> Result<Self, String> {
        let all: Map<String, Value> =
            worker::json::of_python(text.as_bytes()).map_err(|e| format!("{METADATA}: {e}"))?;
        let mut scales = BTreeMap::new();
        for (prefix, network) in [
            ("unet.", Network::Denoiser),
            ("transformer.", Network::Denoiser),
            ("text_encoder.", Network::Text(0)),
            ("text_encoder_2.", Network::Text(1)),
            ("text_encoder_3.", Network::Long(0)),
        ] {
            let own = all.iter().filter_map(|(name, value)| {
                Some((name.strip_prefix(prefix)?.to_string(), value.clone()))
            });
            let own: Map<String, Value> = own.collect();
            if !own.is_empty() {
                scales.insert(network, Settings::read(&own)?);
            }
        }
        Ok(Self(scales))
    }

    /// The settings of PEFT's own file, which are for one network.
    ///
    /// # Errors
    /// As [`Scales::of_metadata`].
    pub(super) fn of_config(text: &[u8]) -> Result<Self, String> {
        let all: Map<String, Value> =
            worker::json::of_python(text).map_err(|e| format!("adapter_config.json: {e}"))?;
        Ok(Self(BTreeMap::from([(
            Network::Denoiser,
            Settings::read(&all)?,
        )])))
    }

    /// The factor for a layer of whole matrices, which have no rank; nothing where nothing is said.
    pub(super) fn of_full(&self, target: &Target) -> Option<f64> {
        let rank = self.0.get(&target.network)?.rank?;
        self.factor_of(target, rank)
    }

    /// How OFT turns this layer's network; nothing where nothing is said.
    pub(super) fn turns(&self, target: &Target) -> Option<&Turns> {
        Some(&self.0.get(&target.network)?.turns)
    }

    /// The factor for a layer of this rank; nothing where nothing is said.
    pub(super) fn factor(&self, target: &Target, rank: usize) -> Option<f64> {
        self.factor_of(target, rank as f64)
    }

    fn factor_of(&self, target: &Target, rank: f64) -> Option<f64> {
        let settings = self.0.get(&target.network)?;
        let own = settings
            .patterns
            .iter()
            .find(|(end, _)| target.ends_with(end));
        let alpha = own.map(|(_, alpha)| *alpha).or(settings.alpha)?;
        Some(alpha / if settings.by_root { rank.sqrt() } else { rank })
    }
}

impl Settings {
    fn read(all: &Map<String, Value>) -> Result<Self, String> {
        let is_on = |name: &str| all.get(name).and_then(Value::as_bool).unwrap_or(false);
        let number = |name: &str, value: &Value| {
            let found = value.as_f64().filter(|alpha| alpha.is_finite());
            found.ok_or_else(|| format!("{name} is {value}, which is not a number"))
        };
        // LoHa's and LoKr's settings have it without the prefix.
        let given = |name: &str| all.get(name).filter(|value| !value.is_null());
        let alpha = given("lora_alpha").or(given("alpha"));
        let patterns = all.get("alpha_pattern").and_then(Value::as_object);
        Ok(Self {
            alpha: alpha.map(|alpha| number("lora_alpha", alpha)).transpose()?,
            rank: given("r")
                .map(|r| number("r", r))
                .transpose()?
                .filter(|r| *r > 0.0),
            by_root: is_on("use_rslora"),
            turns: Turns {
                series: match is_on("use_cayley_neumann") {
                    false => None,
                    true => {
                        let terms = given("num_cayley_neumann_terms");
                        let terms = terms.map_or(Some(5), Value::as_u64);
                        let terms = terms.filter(|terms| (1..=MOST_TERMS).contains(terms));
                        let reason = "num_cayley_neumann_terms is not a number up to 64";
                        Some(terms.ok_or(reason)? as usize)
                    }
                },
                most: match is_on("coft") {
                    true => Some(given("eps").map_or(Ok(6e-5), |eps| number("eps", eps))?),
                    false => None,
                },
            },
            patterns: patterns
                .into_iter()
                .flatten()
                .map(|(end, alpha)| Ok((end.replace('.', "_"), number("alpha_pattern", alpha)?)))
                .collect::<Result<_, String>>()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::names::parse;
    use super::*;

    #[test]
    fn metadata_says_alpha_for_each_network() {
        let text = r#"{"unet.lora_alpha": 8, "unet.r": 4, "unet.alpha_pattern": {"attn2.to_k": 2},
            "text_encoder.lora_alpha": 3, "text_encoder.use_rslora": true}"#;
        let scales = Scales::of_metadata(text).unwrap();
        let factor = |key: &str| scales.factor(&parse(key, |_| false).unwrap().0, 4);
        assert_eq!(
            factor("unet.mid_block.attentions.0.attn1.to_q.lora_A.weight"),
            Some(2.0)
        );
        assert_eq!(
            factor("unet.mid_block.attentions.0.attn2.to_k.lora_A.weight"),
            Some(0.5)
        );
        assert_eq!(factor("text_encoder.text_model.x.lora_A.weight"), Some(1.5));
        assert_eq!(factor("text_encoder_2.text_model.x.lora_A.weight"), None);
        assert!(Scales::of_metadata(r#"{"unet.lora_alpha": "much"}"#).is_err());
        assert!(Scales::of_metadata("[]").is_err());
    }
}
