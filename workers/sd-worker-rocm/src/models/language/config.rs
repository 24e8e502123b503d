//! What a configuration file says of a language model: sizes, and how one kind of decoder differs from another.

use super::rope::{Rotation, Sections};
use crate::models::config::{within, Others};
use candle_nn::Activation;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Kinds of decoders, by what their layers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Qwen 2 and 2.5.
    Qwen2,
    /// The text part of Qwen 2.5 VL: Qwen 2 whose tokens may stand in pictures.
    Qwen2Vl,
    /// Qwen 3.
    Qwen3,
    /// The text part of Qwen 3 VL.
    Qwen3Vl,
    /// Llama 2, 3 and what is built like it.
    Llama,
    /// Mistral, Mistral Small 3's text part.
    Mistral,
    /// Gemma 2.
    Gemma2,
    /// Gemma 3, its text part.
    Gemma3,
}

impl Kind {
    fn of(model_type: &str) -> Result<Self, String> {
        Ok(match model_type {
            "qwen2" => Self::Qwen2,
            "qwen2_5_vl" | "qwen2_5_vl_text" => Self::Qwen2Vl,
            "qwen3" => Self::Qwen3,
            "qwen3_vl" | "qwen3_vl_text" => Self::Qwen3Vl,
            "llama" => Self::Llama,
            "mistral" | "mistral3" => Self::Mistral,
            "gemma2" => Self::Gemma2,
            "gemma3" | "gemma3_text" => Self::Gemma3,
            other => {
                return Err(format!(
                    "a language model of type {other} is not implemented"
                ))
            }
        })
    }

    /// Whether its norms scale by one and the weight, stand before and after each part, and its embeddings are scaled.
    pub fn is_gemma(self) -> bool {
        matches!(self, Self::Gemma2 | Self::Gemma3)
    }

    /// Whether what passes between layers is more than f16 has numbers for.
    pub fn exceeds_f16(self) -> bool {
        self.is_gemma() || matches!(self, Self::Qwen2 | Self::Qwen2Vl)
    }

    /// Whether queries and keys are normalised.
    pub fn has_head_norms(self) -> bool {
        matches!(self, Self::Qwen3 | Self::Qwen3Vl | Self::Gemma3)
    }
}

/// A decoder's settings, from its `config.json`, or the `text_config` in that.
#[derive(Debug, Clone, PartialEq)]
pub struct LanguageConfig {
    /// What its layers do.
    pub kind: Kind,
    /// How often attention and feed-forward follow each other.
    pub layers: usize,
    /// Channels between layers.
    pub width: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values, each for as many of queries.
    pub key_heads: usize,
    /// Channels of a head.
    pub head_size: usize,
    /// Channels inside the feed-forward layers.
    pub inner_width: usize,
    /// Rows of the table of tokens.
    pub vocabulary: usize,
    /// What norms add to mean squares.
    pub eps: f64,
    /// In the feed-forward layers.
    pub activation: Activation,
    /// Whether queries, keys and values have biases.
    pub projection_biases: bool,
    /// Whether attention's last layer has one.
    pub output_bias: bool,
    /// Whether the feed-forward layers have some.
    pub feed_biases: bool,
    /// By what scores are multiplied.
    pub scale: f64,
    /// Scores go softly up to this.
    pub soft_cap: Option<f64>,
    /// Tokens that a layer looks back, itself included; all where there is none. One a layer.
    pub windows: Vec<Option<usize>>,
    /// Rotations in layers that look back to the beginning.
    pub rotation: Rotation,
    /// Rotations in layers with a window.
    pub local_rotation: Rotation,
}

/// Settings by name, which remember what they were asked for.
struct Settings<'a> {
    json: &'a Value,
    asked: RefCell<BTreeSet<&'static str>>,
}

/// Settings that decoders do not read here: of the head, which is not there, of training in parts, of how PyTorch keeps
/// what it has seen, and of sizes that nothing depends on.
const WITHOUT_EFFECT: [&str; 5] = [
    "cache_implementation",
    "final_logit_softcapping",
    "max_position_embeddings",
    "pretraining_tp",
    "sliding_window_pattern",
];

/// What stands beside a decoder's settings in files that do not keep its own in `text_config`: of pictures and videos.
const BESIDE: [&str; 6] = [
    "image_token_id",
    "video_token_id",
    "vision_config",
    "vision_end_token_id",
    "vision_start_token_id",
    "vision_token_id",
];

impl<'a> Settings<'a> {
    fn new(json: &'a Value) -> Self {
        Self {
            json,
            asked: RefCell::default(),
        }
    }

    /// As it stands in the file.
    fn value(&self, name: &'static str) -> Option<&'a Value> {
        self.asked.borrow_mut().insert(name);
        self.json.get(name)
    }

    /// A map.
    fn map(&self, name: &'static str) -> Result<&'a Value, String> {
        const NOTHING: &Value = &Value::Null;
        match self.value(name) {
            None | Some(Value::Null) => Ok(NOTHING),
            Some(map @ Value::Object(_)) => Ok(map),
            Some(other) => Err(format!("{name} is {other}; a map is needed")),
        }
    }

    /// Refuses what was not asked for and is not known to be without effect.
    fn refuse_others(&self, kind: Kind) -> Result<(), String> {
        let mut known = [WITHOUT_EFFECT.as_slice(), &BESIDE].concat();
        match kind {
            // They have biases whatever files say.
            Kind::Qwen2 | Kind::Qwen2Vl => known.push("attention_bias"),
            // An older name for the activation, which is not followed.
            Kind::Gemma2 | Kind::Gemma3 => known.push("hidden_act"),
            _ => {}
        }
        let asked = self.asked.borrow();
        let settings = self.json.as_object().into_iter().flatten();
        let others = settings.filter(|(name, _)| !asked.contains(name.as_str()));
        let others: Map<String, Value> = others
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        Others::from(others).refuse_of_transformers(&known)
    }

    /// `None` where it is absent or null.
    fn find<T: DeserializeOwned>(&self, name: &'static str) -> Result<Option<T>, String> {
        match self.value(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => T::deserialize(value)
                .map(Some)
                .map_err(|e| format!("{name}: {e}")),
        }
    }

    fn or<T: DeserializeOwned>(&self, name: &'static str, otherwise: T) -> Result<T, String> {
        Ok(self.find(name)?.unwrap_or(otherwise))
    }

    fn need(&self, name: &'static str) -> Result<usize, String> {
        self.find(name)?.ok_or_else(|| format!("{name} is missing"))
    }

    fn has(&self, name: &'static str) -> bool {
        self.value(name).is_some()
    }
}

impl LanguageConfig {
    /// Reads and checks the settings of a model's `config.json`, of which `text_config` counts where there is one.
    ///
    /// # Errors
    /// Names the first setting that is missing, impossible or not implemented.
    pub fn from_json(json: &Value) -> Result<Self, String> {
        let text = json.get("text_config").filter(|text| text.is_object());
        let settings = Settings::new(text.unwrap_or(json));
        let model_type: Option<String> = settings.find("model_type")?;
        let kind = match model_type.or(Settings::new(json).find("model_type")?) {
            Some(name) => Kind::of(&name)?,
            None => return Err("model_type is missing".to_string()),
        };
        let gemma3 = kind == Kind::Gemma3;
        // Published files of Gemma 3 leave these out where they are transformers' defaults.
        let size = |name: &'static str, default: usize| match gemma3 {
            true => settings.or(name, default),
            false => settings.need(name),
        };
        let layers = settings.need("num_hidden_layers")?;
        let heads = size("num_attention_heads", 8)?;
        let width = settings.need("hidden_size")?;
        let head_size = match (settings.find("head_dim")?, kind) {
            (Some(size), _) => size,
            (None, Kind::Qwen3 | Kind::Qwen3Vl) => 128,
            (None, Kind::Gemma2 | Kind::Gemma3) => 256,
            (None, _) => width / heads.max(1),
        };
        let config = Self {
            kind,
            layers,
            width,
            heads,
            key_heads: match (kind, settings.find("num_key_value_heads")?) {
                (_, Some(heads)) => heads,
                (Kind::Gemma3, None) => 4,
                (_, None) => heads,
            },
            head_size,
            inner_width: settings.need("intermediate_size")?,
            vocabulary: size("vocab_size", 262_208)?,
            eps: settings.or(
                "rms_norm_eps",
                if kind == Kind::Qwen2Vl { 1e-5 } else { 1e-6 },
            )?,
            activation: settings.activation(kind)?,
            projection_biases: match kind {
                Kind::Qwen2 | Kind::Qwen2Vl => true,
                Kind::Mistral => false,
                _ => settings.or("attention_bias", false)?,
            },
            output_bias: match kind {
                Kind::Qwen2 | Kind::Qwen2Vl | Kind::Mistral => false,
                _ => settings.or("attention_bias", false)?,
            },
            feed_biases: kind == Kind::Llama && settings.or("mlp_bias", false)?,
            scale: match kind.is_gemma() {
                true => settings.or("query_pre_attn_scalar", 256.0)?,
                false => head_size as f64,
            }
            .powf(-0.5),
            soft_cap: match (kind, settings.has("attn_logit_softcapping")) {
                (Kind::Gemma2, false) => Some(50.0),
                (Kind::Gemma2 | Kind::Gemma3, true) => settings.find("attn_logit_softcapping")?,
                _ => None,
            },
            windows: Vec::new(),
            rotation: settings.rotation(kind, head_size, false)?,
            local_rotation: settings.rotation(kind, head_size, true)?,
        };
        config.check()?;
        if settings.or("use_bidirectional_attention", false)? {
            return Err("use_bidirectional_attention is not implemented".to_string());
        }
        // Only now is it known that the number of layers is sane.
        let windows = settings.windows(kind, layers)?;
        settings.refuse_others(kind)?;
        Ok(Self { windows, ..config })
    }

    fn check(&self) -> Result<(), String> {
        within(
            &[
                ("vocab_size", self.vocabulary),
                ("hidden_size", self.width),
                ("intermediate_size", self.inner_width),
                ("num_hidden_layers", self.layers),
                ("num_attention_heads", self.heads),
                ("num_key_value_heads", self.key_heads),
                ("head_dim", self.head_size),
            ],
            1 << 20,
        )?;
        within(&[("num_hidden_layers", self.layers)], 1 << 10)?;
        if !self.heads.is_multiple_of(self.key_heads) || !self.head_size.is_multiple_of(2) {
            return Err(format!(
                "num_attention_heads {} with head_dim {} and num_key_value_heads {} are not possible",
                self.heads, self.head_size, self.key_heads
            ));
        }
        let positive = |name: &str, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err(format!("{name} is {value}; a positive number is needed")),
        };
        positive("rms_norm_eps", self.eps)?;
        positive("query_pre_attn_scalar", self.scale)?;
        positive("attn_logit_softcapping", self.soft_cap.unwrap_or(1.0))
    }
}

impl Settings<'_> {
    fn activation(&self, kind: Kind) -> Result<Activation, String> {
        match kind.is_gemma() {
            // The older name stands for the exact function in files, but the models were trained with this one.
            true => self.or("hidden_activation", Activation::GeluPytorchTanh),
            false => self.or("hidden_act", Activation::Silu),
        }
    }

    fn rotation(&self, kind: Kind, head_dim: usize, local: bool) -> Result<Rotation, String> {
        let theta = match kind {
            Kind::Qwen2Vl => 1_000_000.0,
            Kind::Qwen3Vl => 500_000.0,
            Kind::Gemma3 if !local => 1_000_000.0,
            _ => 10_000.0,
        };
        let empty = Value::Null;
        // Newer files have all in one place, older ones the base beside the scaling.
        let together = self.map("rope_parameters")?;
        let scaling = self.map("rope_scaling")?;
        if kind == Kind::Gemma3 {
            let kinds = ["full_attention", "sliding_attention"];
            let mut said = together.as_object().into_iter().flatten();
            if let Some((name, _)) = said.find(|(name, _)| !kinds.contains(&name.as_str())) {
                return Err(format!("rope_parameters: {name} is not known"));
            }
        }
        let (parameters, base) = match (kind, local) {
            (Kind::Gemma3, true) => (&together["sliding_attention"], "rope_local_base_freq"),
            (Kind::Gemma3, false) => (&together["full_attention"], "rope_theta"),
            _ => (together, "rope_theta"),
        };
        // Scaling of older files is that of layers which look back to the beginning.
        let old = if local && kind == Kind::Gemma3 {
            &empty
        } else {
            scaling
        };
        let parameters = if parameters.is_object() {
            parameters
        } else {
            old
        };
        let parameters_of = Settings::new(parameters);
        let theta = match parameters_of.find("rope_theta")? {
            Some(theta) => theta,
            None => self.or(base, theta)?,
        };
        let sections = match kind {
            Kind::Qwen2Vl => parameters_of
                .find("mrope_section")?
                .map(|sizes| Sections::new(sizes, false, head_dim)),
            Kind::Qwen3Vl => {
                let sizes = parameters_of.or("mrope_section", [24, 20, 20])?;
                Some(Sections::new(sizes, true, head_dim))
            }
            _ => None,
        };
        let share = parameters_of.or("partial_rotary_factor", 1.0)?;
        if share != 1.0 || self.or("partial_rotary_factor", 1.0)? != 1.0 {
            return Err("partial_rotary_factor other than 1 is not implemented".to_string());
        }
        Rotation::new(theta, parameters, sections.transpose()?)
    }

    /// What each layer looks back.
    fn windows(&self, kind: Kind, layers: usize) -> Result<Vec<Option<usize>>, String> {
        let window: Option<usize> = match (kind, self.has("sliding_window")) {
            (Kind::Llama, _) => None,
            // Its transformers' default; files that want none say null.
            (_, false) => Some(4096),
            (_, true) => self.find("sliding_window")?,
        };
        let window = match kind {
            Kind::Qwen2 | Kind::Qwen2Vl | Kind::Qwen3 => {
                let slides: bool = self.or("use_sliding_window", false)?;
                window.filter(|_| slides)
            }
            Kind::Qwen3Vl => None,
            _ => window,
        };
        if window == Some(0) {
            return Err("sliding_window is 0".to_string());
        }
        let first: usize = self.or(
            "max_window_layers",
            if kind == Kind::Qwen2Vl { 80 } else { 28 },
        )?;
        let pattern: usize = self.or("sliding_window_pattern", 6)?;
        if pattern == 0 {
            return Err("sliding_window_pattern is 0".to_string());
        }
        let slides = |layer: usize| match kind {
            Kind::Qwen2 | Kind::Qwen2Vl | Kind::Qwen3 => layer >= first,
            Kind::Qwen3Vl | Kind::Llama => false,
            Kind::Mistral => true,
            Kind::Gemma2 => layer.is_multiple_of(2),
            Kind::Gemma3 => !(layer + 1).is_multiple_of(pattern),
        };
        let types: Option<Vec<String>> = match kind {
            // It has one window for all layers, or none.
            Kind::Mistral | Kind::Llama => None,
            _ => self.find("layer_types")?,
        };
        let Some(types) = types else {
            return Ok((0..layers)
                .map(|layer| window.filter(|_| slides(layer)))
                .collect());
        };
        if types.len() != layers {
            return Err(format!(
                "layer_types has {} values for {layers} layers",
                types.len()
            ));
        }
        types
            .iter()
            .map(|kind| match kind.as_str() {
                "full_attention" => Ok(None),
                "sliding_attention" if window.is_some() => Ok(window),
                "sliding_attention" => {
                    Err("layer_types: sliding_attention without a sliding_window".to_string())
                }
                other => Err(format!("layer_types: {other} is not implemented")),
            })
            .collect()
    }
}
