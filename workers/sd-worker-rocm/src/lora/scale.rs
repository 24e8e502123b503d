//! By what a LoRA's product is multiplied, where its file or the one beside it says so for whole networks.
//!
//! diffusers (0.34 and later) writes PEFT's settings into the file's metadata, PEFT into `adapter_config.json` beside
//! the file. Files of others have a tensor `alpha` for each layer instead.

use super::names::{Network, Target};
use crate::models::config::Others;
use crate::models::rotation::Turns;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Key of diffusers' metadata.
pub(super) const METADATA: &str = "lora_adapter_metadata";

/// PEFT's settings that are read here, that tensors tell, or that are without effect on what has been trained.
const KNOWN: [&str; 54] = [
    // Read.
    "alpha",
    "alpha_pattern",
    "coft",
    "eps",
    INIT,
    "lora_alpha",
    "num_cayley_neumann_terms",
    "r",
    "use_cayley_neumann",
    "use_rslora",
    // Names and shapes of tensors tell.
    "bias",
    "block_share",
    "boft_block_num",
    "boft_block_size",
    "boft_n_butterfly_factor",
    "decompose_both",
    "decompose_factor",
    "exclude_modules",
    "feedforward_modules",
    "layers_pattern",
    "layers_to_transform",
    "lora_bias",
    "modules_to_save",
    "oft_block_size",
    "rank_pattern",
    "target_modules",
    "target_parameters",
    "use_dora",
    "use_effective_conv2d",
    // Of training, and how PyTorch computes it.
    "boft_dropout",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "init_ia3_weights",
    "init_weights",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "module_dropout",
    "qalora_group_size",
    "rank_dropout",
    "rank_dropout_scale",
    "runtime_config",
    "velora_config",
    // Notes.
    "auto_mapping",
    "base_model_name_or_path",
    "peft_type",
    "peft_version",
    "revision",
    "task_type",
];

/// How matrices were begun with.
const INIT: &str = "init_lora_weights";

/// Beginnings that take something out of the model's own weights, which is missing then without PEFT.
const FROM_WEIGHTS: [&str; 5] = ["corda", "loftq", "lora_ga", "olora", "pissa"];

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
        Others::from(all.clone()).refuse(&KNOWN)?;
        let begun = all.get(INIT).and_then(Value::as_str).unwrap_or_default();
        if FROM_WEIGHTS.iter().any(|kind| begun.starts_with(kind)) {
            return Err(format!(
                "{INIT} {begun:?} is not implemented: it has changed the model's own weights; have PEFT convert it to a LoRA (path_initial_model_for_weight_conversion)"
            ));
        }
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

    /// Those of PEFT 0.21, with other values than the usual.
    #[test]
    fn settings_are_known_or_refused() {
        let whole = r#"{"alpha": 3, "alpha_pattern": {"to_k": 2}, "auto_mapping": {"base_model_class": "x"},
            "base_model_name_or_path": "x", "bias": "all",
            "block_share": true, "boft_block_num": 0, "boft_block_size": 8, "boft_dropout": 0.5, "boft_n_butterfly_factor": 2,
            "coft": true, "corda_config": {"rho": 1}, "decompose_both": true,
            "decompose_factor": 4, "ensure_weight_tying": true, "eps": 1e-5, "eva_config": {"rho": 2},
            "exclude_modules": ["x"], "fan_in_fan_out": true, "feedforward_modules": ["x"],
            "init_ia3_weights": true, "inference_mode": true, "init_lora_weights": "gaussian",
            "init_weights": true, "layers_pattern": "x", "layers_to_transform": [1], "loftq_config": {"bits": 4},
            "lora_alpha": 3, "lora_bias": true, "lora_dropout": 0.5, "lora_ga_config": {"stable": 1}, "megatron_config": {"x": 1},
            "megatron_core": "x", "module_dropout": 0.5, "modules_to_save": ["x"], "num_cayley_neumann_terms": 4,
            "oft_block_size": 8, "peft_type": "LORA", "peft_version": "0.21.2", "qalora_group_size": 8, "r": 4,
            "rank_dropout": 0.5, "rank_dropout_scale": true, "rank_pattern": {"to_k": 2}, "revision": "x",
            "runtime_config": {"ephemeral_gpu_offload": true}, "target_modules": ["x"], "target_parameters": ["x"],
            "task_type": "x", "use_cayley_neumann": true, "use_dora": true, "use_effective_conv2d": true,
            "use_rslora": true, "velora_config": {"x": 1}}"#;
        let whole: Map<String, Value> = serde_json::from_str(whole).unwrap();
        assert_eq!(whole.len(), KNOWN.len());
        let read = |settings: &Map<String, Value>| {
            Scales::of_config(&serde_json::to_vec(settings).unwrap())
        };
        read(&whole).unwrap();
        for (name, value) in [
            ("alora_invocation_tokens", "[1, 2]"),
            ("arrow_config", r#"{"top_k": 3}"#),
            ("init_lora_weights", r#""pissa_niter_4""#),
            ("kasa_config", r#"{"x": 1}"#),
            ("layer_replication", "[[0, 4], [2, 5]]"),
            ("monteclora_config", r#"{"x": 1}"#),
            ("trainable_token_indices", "[1]"),
            ("use_bdlora", "true"),
            ("use_qalora", "true"),
            ("a_new_setting", "3"),
        ] {
            let mut other = whole.clone();
            other.insert(name.to_string(), serde_json::from_str(value).unwrap());
            let error = read(&other).unwrap_err();
            assert!(error.contains(name), "{name}: {error}");
        }
    }
}
