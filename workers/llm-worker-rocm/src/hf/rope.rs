//! Rotary positions in `config.json`, and what GGUF has for them.

use super::metadata::MetadataWriter;
use serde_json::Value as Json;

/// Divisor of the frequency of a pair that does not turn, as converters of GGUF write it.
const STILL: f32 = 1e30;

/// How positions rotate.
pub(super) struct Rope {
    base: f64,
    /// Base in layers that see a window only.
    window_base: Option<f64>,
    scaling: Scaling,
    /// What queries' temperature grows by.
    temperature: Option<f64>,
    /// Tensors that a GGUF file has for this, by name.
    pub tensors: Vec<(&'static str, Vec<f32>)>,
}

enum Scaling {
    /// None, or all in [`Rope::tensors`].
    None,
    Linear {
        factor: f64,
    },
    Yarn {
        factor: f64,
        original: f64,
        /// Turns from which pairs count as fast, and up to which as slow.
        betas: [Option<f64>; 2],
        /// Frequencies change from a whole pair on and up to one.
        whole_pairs: bool,
        /// Of a tenth of the factor's logarithm, where scores as a whole are scaled.
        multiplier: Option<f64>,
    },
    Long {
        original: f64,
        attention: Option<f64>,
    },
}

impl Rope {
    /// Reads `rope_theta`, `rope_scaling` and their newer home `rope_parameters`, for heads of which `dim` elements
    /// rotate.
    pub(super) fn read(json: &Json, dim: u32) -> Result<Self, String> {
        let parameters = json.get("rope_parameters").unwrap_or(&Json::Null);
        // Families with two kinds of layers have an object for each.
        let window = parameters.get("sliding_attention").unwrap_or(&Json::Null);
        let parameters = parameters.get("full_attention").unwrap_or(parameters);
        let base = positive(
            parameters
                .get("rope_theta")
                .or(json.get("rope_theta"))
                .unwrap_or(&Json::Null),
            "rope_theta",
        )?
        .unwrap_or(10_000.0);
        let window_base = window
            .get("rope_theta")
            .or(json.get("rope_local_base_freq"))
            .unwrap_or(&Json::Null);
        let scaling = json
            .get("rope_scaling")
            .filter(|s| !s.is_null())
            .unwrap_or(parameters);
        let mut rope = Self {
            window_base: positive(window_base, "rope_local_base_freq")?,
            scaling: Scaling::None,
            temperature: positive(&scaling["llama_4_scaling_beta"], "llama_4_scaling_beta")?,
            tensors: Vec::new(),
            base,
        };
        let get = |key: &str| {
            positive(&scaling[key], key)?
                .ok_or_else(|| format!("config.json: rope_scaling.{key} must be a number above 0"))
        };
        let kind = scaling.get("rope_type").or(scaling.get("type"));
        match kind.and_then(Json::as_str) {
            None | Some("default" | "mrope") => {}
            Some("llama3") => rope
                .tensors
                .push(("rope_freqs.weight", llama3_factors(&get, base, dim)?)),
            // A part of the pairs turns, by the frequencies of all; the others stand still.
            Some("proportional") => {
                let pairs = positive(&json["global_head_dim"], "global_head_dim")?
                    .map_or(dim / 2, |size| size as u32 / 2);
                let share = positive(&scaling["partial_rotary_factor"], "partial_rotary_factor")?;
                let turned = (f64::from(pairs) * share.unwrap_or(1.0)) as u32;
                let factor = |pair: u32| if pair < turned { 1.0 } else { STILL };
                rope.tensors
                    .push(("rope_freqs.weight", (0..pairs).map(factor).collect()));
            }
            Some("linear") => {
                rope.scaling = Scaling::Linear {
                    factor: get("factor")?,
                }
            }
            Some("yarn") => {
                let given = positive(&scaling["attention_factor"], "attention_factor")?;
                refuse_other_factor(given, get("factor")?)?;
                let (of_rotation, of_all) = (
                    positive(&scaling["mscale"], "mscale")?,
                    positive(&scaling["mscale_all_dim"], "mscale_all_dim")?,
                );
                if of_rotation != of_all {
                    return Err(format!(
                        "config.json: rope_scaling.mscale {} with mscale_all_dim {} is not implemented",
                        scaling["mscale"], scaling["mscale_all_dim"]
                    ));
                }
                rope.scaling = Scaling::Yarn {
                    factor: get("factor")?,
                    original: get("original_max_position_embeddings")?,
                    betas: [
                        positive(&scaling["beta_fast"], "beta_fast")?,
                        positive(&scaling["beta_slow"], "beta_slow")?,
                    ],
                    whole_pairs: scaling["truncate"].as_bool().unwrap_or(true),
                    multiplier: of_all,
                }
            }
            Some("longrope" | "su") => rope.read_long(json, scaling, dim)?,
            // Up to the context of training nothing changes, and no sequence is longer.
            Some("dynamic") if scaling.get("alpha").is_none_or(Json::is_null) => {}
            // Hunyuan's: a larger base, whatever the length. "NTK-aware scaled RoPE", bloc97, 2023.
            Some("dynamic") => {
                let exponent = f64::from(dim) / (f64::from(dim) - 2.0).max(1.0);
                rope.base *= get("alpha")?.powf(exponent);
            }
            Some(other) => {
                return Err(format!(
                    "config.json: rotary scaling of type {other} is not implemented"
                ))
            }
        }
        Ok(rope)
    }

    /// Phi-3's scaling: one list of divisors for short texts, one for long ones, and larger scores for the latter.
    fn read_long(&mut self, json: &Json, scaling: &Json, dim: u32) -> Result<(), String> {
        let pairs = dim as usize / 2;
        for (key, name) in [
            ("long_factor", "rope_factors_long.weight"),
            ("short_factor", "rope_factors_short.weight"),
        ] {
            let factors: Option<Vec<f32>> = scaling[key].as_array().map(|list| {
                list.iter()
                    .filter_map(Json::as_f64)
                    .map(|f| f as f32)
                    .collect()
            });
            let factors = factors
                .filter(|f| f.len() == pairs && f.iter().all(|f| f.is_finite() && *f > 0.0))
                .ok_or_else(|| {
                    format!("config.json: rope_scaling.{key} must be {pairs} numbers above 0")
                })?;
            self.tensors.push((name, factors));
        }
        let most = positive(&json["max_position_embeddings"], "max_position_embeddings")?;
        const ORIGINAL: &str = "original_max_position_embeddings";
        let original = match json[ORIGINAL].is_null() {
            true => &scaling[ORIGINAL],
            false => &json[ORIGINAL],
        };
        let original = positive(original, ORIGINAL)?;
        let (most, original) = most.zip(original).ok_or(
            "config.json: longrope needs max_position_embeddings and original_max_position_embeddings",
        )?;
        // sqrt(1 + ln(scale) / ln(original)): the paper's temperature of the scores.
        let scale = most / original;
        let usual = (scale > 1.0).then(|| (1.0 + scale.ln() / original.ln()).sqrt());
        let [short, long] = ["short_mscale", "long_mscale"].map(|key| positive(&scaling[key], key));
        let attention = match (short?, long?) {
            (None, None) => usual,
            (short, long) if short == long => short,
            (short, long) => {
                return Err(format!(
                    "config.json: rope_scaling.short_mscale {short:?} beside long_mscale {long:?} is not implemented; equal ones are"
                ))
            }
        };
        self.scaling = Scaling::Long {
            original,
            attention,
        };
        Ok(())
    }

    /// Checks what GGUF has no key for: whether YaRN's borders are whole pairs follows from the architecture there.
    pub(super) fn check_pairs(&self, whole: bool) -> Result<(), String> {
        match self.scaling {
            Scaling::Yarn { whole_pairs, .. } if whole_pairs != whole => Err(format!(
                "config.json: rope_scaling.truncate {whole_pairs} is not implemented for this architecture"
            )),
            _ => Ok(()),
        }
    }

    /// Writes GGUF's metadata; `latent` is whether attention keeps latent vectors.
    pub(super) fn write(&self, writer: &mut MetadataWriter, latent: bool) {
        writer.float("rope.freq_base", self.base);
        if let Some(scale) = self.temperature {
            writer.float("attention.temperature_scale", scale);
        }
        if let Some(base) = self.window_base {
            writer.float("rope.freq_base_swa", base);
        }
        match self.scaling {
            Scaling::None => {}
            Scaling::Linear { factor } => {
                writer.text("rope.scaling.type", "linear");
                writer.float("rope.scaling.factor", factor);
            }
            Scaling::Yarn {
                factor,
                original,
                betas,
                multiplier,
                ..
            } => {
                writer.text("rope.scaling.type", "yarn");
                writer.float("rope.scaling.factor", factor);
                writer.number("rope.scaling.original_context_length", original as u32);
                let keys = ["rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow"];
                for (key, beta) in keys.iter().zip(betas) {
                    if let Some(beta) = beta {
                        writer.float(key, beta);
                    }
                }
                if let Some(multiplier) = multiplier {
                    // Files of latent vectors have always had the tenth in it.
                    let multiplier = if latent { 0.1 * multiplier } else { multiplier };
                    writer.float("rope.scaling.yarn_log_multiplier", multiplier);
                }
            }
            Scaling::Long {
                original,
                attention,
            } => {
                writer.number("rope.scaling.original_context_length", original as u32);
                if let Some(factor) = attention {
                    writer.float("rope.scaling.attn_factor", factor);
                }
            }
        }
    }
}

fn positive(json: &Json, key: &str) -> Result<Option<f64>, String> {
    match json {
        Json::Null => Ok(None),
        other => match other.as_f64().filter(|v| v.is_finite() && *v > 0.0) {
            Some(value) => Ok(Some(value)),
            None => Err(format!(
                "config.json: {key} must be a number above 0, it is {other}"
            )),
        },
    }
}

/// Refuses a factor of YaRN's cosines and sines that does not follow from that of the context.
fn refuse_other_factor(given: Option<f64>, factor: f64) -> Result<(), String> {
    let usual = 1.0 + 0.1 * factor.ln();
    match given {
        Some(given) if (given - usual).abs() > 1e-4 => Err(format!(
            "config.json: rope_scaling.attention_factor {given} is not implemented; {usual:.6} is"
        )),
        _ => Ok(()),
    }
}

/// The divisors of Llama 3.1's rotary frequencies: none for short wavelengths, `factor` for those beyond the original
/// context, a blend between. (Llama 3.1 model card and reference implementation.)
fn llama3_factors(
    get: &dyn Fn(&str) -> Result<f64, String>,
    base: f64,
    dim: u32,
) -> Result<Vec<f32>, String> {
    let (factor, low, high) = (
        get("factor")?,
        get("low_freq_factor")?,
        get("high_freq_factor")?,
    );
    let original = get("original_max_position_embeddings")?;
    if high <= low {
        return Err(
            "config.json: rope_scaling.high_freq_factor must be above low_freq_factor".to_string(),
        );
    }
    let divisor = |pair: u32| {
        let wavelength =
            2.0 * std::f64::consts::PI * base.powf(f64::from(2 * pair) / f64::from(dim));
        let turns = original / wavelength;
        if turns > high {
            1.0
        } else if turns < low {
            factor
        } else {
            let blend = (turns - low) / (high - low);
            1.0 / ((1.0 - blend) / factor + blend)
        }
    };
    Ok((0..dim / 2).map(|pair| divisor(pair) as f32).collect())
}
