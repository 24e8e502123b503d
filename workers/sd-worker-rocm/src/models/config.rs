//! Shapes in which configuration files write values.

use serde::de::DeserializeOwned;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::fmt;

/// A configuration of this class, in which settings that are null are those left out.
///
/// # Errors
/// If a value is of another kind than the setting's.
pub fn read<T: DeserializeOwned>(mut json: Value) -> Result<T, String> {
    if let Value::Object(fields) = &mut json {
        fields.retain(|_, value| !value.is_null());
    }
    serde_json::from_value(json).map_err(|e| e.to_string())
}

/// One value for all blocks, or one per block.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum PerBlock<T> {
    /// Block by block. Comes first, so that a list is one of blocks where the values may be lists, too.
    Each(Vec<T>),
    /// The same everywhere.
    One(T),
}

impl<T: Clone> PerBlock<T> {
    /// The values of `blocks` blocks.
    ///
    /// # Errors
    /// If there is a list of another length; `name` is the setting's, for the message.
    pub fn values(&self, blocks: usize, name: &str) -> Result<Vec<T>, String> {
        match self {
            Self::One(value) => Ok(vec![value.clone(); blocks]),
            Self::Each(values) if values.len() == blocks => Ok(values.clone()),
            Self::Each(values) => Err(format!(
                "{name} has {} values for {blocks} blocks",
                values.len()
            )),
        }
    }
}

/// Checks sizes of a configuration before anything is computed from them.
///
/// # Errors
/// Names the first value that is not within `1..=limit`.
pub fn within(sizes: &[(&str, usize)], limit: usize) -> Result<(), String> {
    match sizes
        .iter()
        .find(|(_, value)| *value == 0 || *value > limit)
    {
        None => Ok(()),
        Some((name, value)) => Err(format!("{name} is {value}; 1 to {limit} is possible")),
    }
}

/// Checks that heads divide a width; there must be some.
///
/// # Errors
/// If they do not.
pub fn check_heads(hidden_size: usize, heads: usize) -> Result<(), String> {
    match hidden_size.is_multiple_of(heads) {
        true => Ok(()),
        false => Err(format!(
            "{heads} heads do not divide hidden_size {hidden_size}"
        )),
    }
}

/// Checks how pictures in three colours are cut into patches.
///
/// # Errors
/// If there would be none, or there are other channels.
pub fn check_patches(image: usize, patch: usize, channels: usize) -> Result<(), String> {
    match patch <= image && channels == 3 {
        true => Ok(()),
        false => Err(format!(
            "patches of {patch} pixels in pictures of {image} with {channels} channels are not possible"
        )),
    }
}

/// Checks that the channels of a head are turned by `N` coordinates, an even number of them by each; `name` is the
/// setting's, for the message.
///
/// # Errors
/// If there are more or fewer, or their shares are odd or do not make up the head.
pub fn check_axes<const N: usize>(
    name: &str,
    axes: &[usize],
    attention_head_dim: usize,
) -> Result<(), String> {
    let even = axes.iter().all(|size| size.is_multiple_of(2));
    // Sizes of a file may be as large as numbers go.
    let turned = axes
        .iter()
        .try_fold(0usize, |sum, size| sum.checked_add(*size));
    match axes.len() == N && even && turned == Some(attention_head_dim) {
        true => Ok(()),
        false => Err(format!(
            "{name} {axes:?} do not make up a head of {attention_head_dim}"
        )),
    }
}

/// Settings of a configuration that no field has: each is known to be without effect, or refused by name.
#[derive(Clone, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Others(Map<String, Value>);

impl fmt::Debug for Others {
    /// Nothing of them: configurations that are followed alike look alike.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Others")
    }
}

impl From<Map<String, Value>> for Others {
    fn from(settings: Map<String, Value>) -> Self {
        Self(settings)
    }
}

/// Without effect in files of either library.
const OF_FILES: [&str; 6] = [
    // Notes of what the file is.
    "architectures",
    "model_type",
    "transformers_version",
    // Of how it is stored: read with the weights, or from them.
    "quantization_config",
    "torch_dtype",
    "dtype",
];

/// Without effect in transformers' files of towers and encoders, which are asked for what layers give, nothing else.
const OF_TRANSFORMERS: [&str; 58] = [
    // Of training.
    "attention_dropout",
    "dropout",
    "dropout_rate",
    "classifier_dropout",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_factor",
    "initializer_range",
    "gradient_checkpointing",
    // Of tokens, which the tokenizer knows.
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "sep_token_id",
    "decoder_start_token_id",
    "tokenizer_class",
    "prefix",
    // How PyTorch computes or gives it.
    "attn_implementation",
    "chunk_size_feed_forward",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "torchscript",
    "tf_legacy_loss",
    "use_bfloat16",
    "use_cache",
    // Of heads: an encoder has none, or one with weights of its own.
    "finetuning_task",
    "id2label",
    "label2id",
    "num_labels",
    "problem_type",
    "task_specific_params",
    "tie_encoder_decoder",
    "tie_word_embeddings",
    // Of writing text.
    "bad_words_ids",
    "begin_suppress_tokens",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_scores",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict_in_generate",
    "suppress_tokens",
    "temperature",
    "top_k",
    "top_p",
    "typical_p",
];

impl Others {
    /// Refuses all but what is switched off (null, false or an empty map), notes of the library (`_class_name` and
    /// such), and what is without effect: in every file, and for this network.
    ///
    /// # Errors
    /// Names the first.
    pub fn refuse(&self, without_effect: &[&str]) -> Result<(), String> {
        let unknown = self.0.iter().find(|(name, value)| {
            let off = match value {
                Value::Null | Value::Bool(false) => true,
                Value::Object(fields) => fields.is_empty(),
                _ => false,
            };
            let name = name.as_str();
            !off && !name.starts_with('_')
                && !OF_FILES.contains(&name)
                && !without_effect.contains(&name)
        });
        match unknown {
            None => Ok(()),
            Some((name, value)) => Err(format!("the setting {name} ({value}) is not known")),
        }
    }

    /// The same of a file of transformers.
    ///
    /// # Errors
    /// Names the first.
    pub fn refuse_of_transformers(&self, without_effect: &[&str]) -> Result<(), String> {
        self.refuse(&[without_effect, &OF_TRANSFORMERS].concat())
    }
}

/// The part of a configuration of CLIP's or SigLIP's two towers that is meant, as transformers reads it; a tower's own
/// is whole.
pub fn tower_of(mut json: Value, tower: &str) -> Value {
    let both = ["text_config", "vision_config"];
    match json.get_mut(tower).map(Value::take) {
        Some(part @ Value::Object(_)) if both.contains(&tower) => part,
        _ => json,
    }
}
