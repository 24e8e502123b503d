//! `config.json` in the terms of GGUF's metadata.

use super::change::Places;
use super::delta::Delta;
use super::experts;
use super::gemma;
use super::heads::Heads;
use super::latent::LatentSizes;
use super::layers;
use super::metadata::MetadataWriter;
use super::names::TensorNames;
use super::older::Older;
use super::recurrent::{Recurrent, MIXED};
use super::rope::Rope;
use crate::architectures::{
    by_base_name, by_folder_name, folder_names, name_in_config, Accepted, ArchitectureRow,
    ConfigRule, FolderTraits, RecurrentFolder,
};
use crate::engine::decoder::NormKind;
use serde_json::Value as Json;
use worker::gguf::Value;

/// More tokens than any vocabulary has.
const MAX_VOCABULARY: u32 = 4 << 20;

/// What the rest of the conversion needs of `config.json`, checked.
pub(super) struct Config {
    /// GGUF's name of the architecture.
    pub architecture: &'static str,
    pub folder: FolderTraits,
    pub names: TensorNames,
    /// Of a family with a recurrence.
    recurrent: Option<Recurrent>,
    /// Of a family with latent attention.
    latent: Option<LatentSizes>,
    /// Of a family with a delta rule or short convolutions.
    delta: Option<Delta>,
    /// Of a family whose names are others.
    older: Option<Older>,
    pub blocks: u32,
    /// Layers behind these that predict tokens further ahead.
    pub heads_behind: Heads,
    pub heads: u32,
    pub kv_heads: u32,
    pub width: u32,
    pub experts: u32,
    pub vocab: u32,
    /// Whether the output matrix is the embedding table.
    pub tied: bool,
    pub rope: Rope,
    /// The vocabulary is a file of RWKV's, not `tokenizer.json`.
    pub vocabulary_is_a_file: bool,
    pub bos: Option<u32>,
    pub eos: Vec<u32>,
    metadata: Vec<(String, Value)>,
}

impl Config {
    /// Reads and checks; the error says what is wrong.
    pub(super) fn read(json: &Json) -> Result<Self, String> {
        let name = name_in_config(json);
        let json = super::of_thinker(json);
        let row = by_folder_name(name).or_else(|| text_row(json));
        Self::read_as(json, row, name)
    }

    /// The same of a model that may have no output matrix.
    pub(super) fn read_base(json: &Json) -> Result<Self, String> {
        let name = name_in_config(json);
        let row = by_folder_name(name).or_else(|| by_base_name(name));
        Self::read_as(json, row, name)
    }

    fn read_as(
        json: &Json,
        row: Option<&'static ArchitectureRow>,
        name: &str,
    ) -> Result<Self, String> {
        let decoder = row.and_then(|row| Some((row.gguf?, row.decoder_parts()?)));
        let (architecture, (traits, folder)) = decoder.ok_or_else(|| {
            let known: Vec<&str> = folder_names().collect();
            format!(
                "config.json: architecture {name} is not implemented for safetensors ({} are); take a GGUF file of the model",
                known.join(", ")
            )
        })?;
        let outer = json;
        // Models that also see keep their language part in an object of its own.
        let json = json.get("text_config").unwrap_or(json);
        let usual = folder
            .recurrent
            .map(|family| Recurrent::usual(family, json));
        let usual = usual.transpose()?;
        let (json, architecture) = match &usual {
            Some((json, other)) => (json, other.unwrap_or(architecture)),
            None => (json, architecture),
        };
        let usual = folder.delta.map(|family| Delta::usual(family, json));
        let usual = usual.transpose()?;
        let json = usual.as_ref().unwrap_or(json);
        let usual = folder.older.map(|family| Older::usual(family, json));
        let usual = usual.transpose()?;
        let json = usual.as_ref().unwrap_or(json);
        refuse_other_activations(json, folder, name)?;
        let heads = number(json, "num_attention_heads")?;
        let width = number(json, "hidden_size")?;
        let latent = LatentSizes::read(json, heads, traits.latent)?;
        let head_dim = match optional(json, "head_dim")? {
            Some(dim) => dim,
            None => width / heads,
        };
        let kv_heads = optional(json, "num_key_value_heads")?.unwrap_or(heads);
        let fraction = [
            &json["partial_rotary_factor"],
            &json["rope_parameters"]["partial_rotary_factor"],
        ];
        let fraction = fraction.iter().find_map(|f| f.as_f64()).unwrap_or(1.0);
        let rotary = match optional(json, "rotary_dim")? {
            Some(rotary) => rotary,
            None => (f64::from(head_dim) * fraction) as u32,
        };
        let (head_dim, value_dim, rotary, kv_heads) = match &latent {
            Some(latent) => {
                let (stored, value, turning) = latent.stored();
                (stored, value, turning, 1)
            }
            None => (head_dim, head_dim, rotary, kv_heads),
        };
        if head_dim == 0
            || !head_dim.is_multiple_of(2)
            || rotary == 0
            || !rotary.is_multiple_of(2)
            || rotary > head_dim
        {
            return Err(format!(
                "config.json: heads of {head_dim} elements, {rotary} of them rotated; even numbers are needed"
            ));
        }
        let rope = Rope::read(json, rotary)?;
        rope.check_pairs(traits.yarn_whole_pairs)?;
        let vocab = number(json, "vocab_size")?;
        if vocab > MAX_VOCABULARY {
            return Err(format!(
                "config.json: vocab_size {vocab}, at most {MAX_VOCABULARY} is allowed"
            ));
        }
        let experts = experts::count(json)?;
        let ids = |key: &str| -> Vec<u32> {
            let value = json.get(key).unwrap_or(&outer[key]);
            match value {
                Json::Array(ids) => ids.iter().filter_map(id).collect(),
                other => id(other).into_iter().collect(),
            }
        };
        let mut writer = MetadataWriter::new(architecture);
        let title = outer["_name_or_path"].as_str().filter(|n| !n.is_empty());
        writer.general("architecture", architecture);
        writer.general("name", title.unwrap_or("model"));
        for (key, value) in [
            ("block_count", number(json, "num_hidden_layers")?),
            ("context_length", number(json, "max_position_embeddings")?),
            ("embedding_length", width),
            ("feed_forward_length", width_of_feed_forward(json)?),
            ("attention.head_count", heads),
            ("attention.head_count_kv", kv_heads),
            ("attention.key_length", head_dim),
            ("attention.value_length", value_dim),
            ("rope.dimension_count", rotary),
            ("vocab_size", vocab),
        ] {
            writer.number(key, value);
        }
        let epsilon = ["rms_norm_eps", "norm_epsilon", "layer_norm_eps"]
            .iter()
            .find_map(|key| json[*key].as_f64())
            .ok_or("config.json: rms_norm_eps is missing")?;
        let epsilon_key = match traits.norm {
            NormKind::Layer => "attention.layer_norm_epsilon",
            NormKind::Rms => "attention.layer_norm_rms_epsilon",
        };
        writer.float(epsilon_key, epsilon);
        rope.write(&mut writer, latent.is_some());
        if let Some(latent) = &latent {
            latent.write(json, traits.latent, &mut writer)?;
        }
        if experts > 0 {
            experts::write(json, experts, &mut writer)?;
        }
        write_own(json, folder.rules, name, experts, head_dim, &mut writer)?;
        let recurrent = folder.recurrent;
        let recurrent = recurrent.map(|family| Recurrent::write(family, json, &mut writer));
        let delta = folder.delta;
        let delta = delta.map(|family| Delta::write(family, json, &mut writer));
        let older = folder.older;
        let older = older.map(|family| Older::write(family, json, &mut writer));
        Ok(Self {
            blocks: number(json, "num_hidden_layers")?,
            heads_behind: Heads::read(json, traits.parts, folder.delta)?,
            latent,
            vocab,
            tied: [json, outer]
                .iter()
                .find_map(|j| j["tie_word_embeddings"].as_bool())
                .unwrap_or(folder.tied),
            bos: ids("bos_token_id").first().copied(),
            eos: ids("eos_token_id"),
            metadata: writer.finish(),
            architecture,
            folder: *folder,
            names: TensorNames::of(traits, folder),
            recurrent: recurrent.transpose()?,
            delta: delta.transpose()?,
            older: older.transpose()?,
            heads,
            kv_heads,
            width,
            experts,
            rope,
            vocabulary_is_a_file: folder.recurrent == Some(RecurrentFolder::Rwkv7),
        })
    }

    /// How many tensors of the folder are stacked in one of GGUF's, by its name, and what they are of.
    pub(super) fn stacked(&self, name: &str) -> (u32, &'static str) {
        match name {
            _ if name.ends_with(".attn_q_norm.weight") => (self.heads, "heads"),
            _ if name.ends_with(".attn_k_norm.weight") => (self.kv_heads, "heads"),
            _ if name.ends_with(".time_mix_lerp_fused.weight") => (MIXED.len() as u32, "vectors"),
            _ => (self.experts, "experts"),
        }
    }

    /// The outputs of so many matrices that a module's may be fused of, those of queries, keys and values or of gates and
    /// what they multiply.
    pub(super) fn fused(&self, module: &str, count: usize, outputs: usize) -> Option<Vec<usize>> {
        let is = |ending: &str| module.ends_with(ending);
        match count {
            2 if is("gate_up_proj") || is("kv_proj") => Some(vec![outputs / 2; 2]),
            3 if is("qkv_proj") || is("query_key_value") => {
                let heads = [self.heads, self.kv_heads, self.kv_heads].map(|heads| heads as usize);
                let size = outputs / heads.iter().sum::<usize>();
                Some(heads.map(|heads| heads * size).into())
            }
            _ => None,
        }
    }

    /// Where a tensor goes and what becomes of it: nowhere, to one place or several. `Err` for a name that the
    /// architecture does not have.
    pub(super) fn places(&self, name: &str) -> Result<Places, ()> {
        let Some(names) = self.heads_behind.names(name) else {
            return self.places_of(name);
        };
        // What a head has that no block has is of no use.
        let known = names.iter().filter_map(|name| self.places_of(name).ok());
        Ok(known.flatten().collect())
    }

    fn places_of(&self, name: &str) -> Result<Places, ()> {
        if let Some(delta) = &self.delta {
            return delta.places(name, &self.names, self.tied);
        }
        if let Some(places) = self
            .older
            .as_ref()
            .and_then(|older| older.places(name, self.tied))
        {
            return Ok(places);
        }
        if let Some(places) = self
            .recurrent
            .as_ref()
            .and_then(|r| r.place(name, self.tied))
        {
            return Ok(places);
        }
        if let Some(places) = experts::together(name) {
            return Ok(places);
        }
        let place = self.names.place(name, self.tied)?;
        if let (Some(latent), Some(whole)) = (&self.latent, &place) {
            if let Some(parts) = latent.places(whole) {
                return Ok(parts);
            }
        }
        Ok(place.into_iter().map(|place| (place, None)).collect())
    }

    /// The metadata that a GGUF file of the model with so many heads would have, but for the tokenizer's.
    pub(super) fn metadata(&self, heads: u32) -> Vec<(String, Value)> {
        let mut metadata = self.metadata.clone();
        if heads > 0 {
            self.heads_behind
                .announce(heads, self.architecture, &mut metadata);
        }
        metadata
    }
}

/// The row of the text part of a model that sees or hears, whatever family that is of.
fn text_row(json: &Json) -> Option<&'static ArchitectureRow> {
    let text = json.get("text_config")?;
    let model = json["model_type"].as_str()?;
    if crate::vision::traits_of(model).is_none() && crate::sound::traits_of(model).is_none() {
        return None;
    }
    if let Some(row) = by_folder_name(name_in_config(text)) {
        return Some(row);
    }
    let name = text["model_type"].as_str()?.replace('_', "");
    let is_its = |folder: &&str| {
        let folder = folder.to_ascii_lowercase().replace('_', "");
        folder.strip_suffix("forcausallm") == Some(&name)
    };
    let folder = folder_names().find(is_its)?;
    by_folder_name(folder)
}

/// What the architecture's configuration has that others do not.
fn write_own(
    json: &Json,
    rules: &[ConfigRule],
    name: &str,
    experts: u32,
    head_dim: u32,
    writer: &mut MetadataWriter,
) -> Result<(), String> {
    for rule in rules {
        match *rule {
            ConfigRule::Only(key, accepted) => refuse_others(json, key, accepted)?,
            ConfigRule::OnlyWithExperts(_, _) if experts == 0 => {}
            ConfigRule::OnlyWithExperts(key, accepted) => refuse_others(json, key, accepted)?,
            ConfigRule::Count(key, gguf) => writer.number(gguf, number(json, key)?),
            ConfigRule::OptionalCount(key, gguf) => {
                if let Some(value) = optional(json, key)? {
                    writer.number(gguf, value);
                }
            }
            ConfigRule::Check(check) => check(json)?,
            ConfigRule::LayerSizes => gemma::write(json, head_dim, writer)?,
            ConfigRule::OnlyFloat(key, only) => {
                if json[key].as_f64().is_some_and(|value| value != only) {
                    return Err(format!(
                        "config.json: {key} {} is not implemented",
                        json[key]
                    ));
                }
            }
            ConfigRule::Float(key, gguf) => writer.float(gguf, float(json, key)?),
            ConfigRule::ScoreRoot(key) => {
                let scalar = float(json, key)?;
                if scalar != f64::from(head_dim) {
                    writer.float("attention.scale", scalar.sqrt().recip());
                }
            }
            ConfigRule::PictureSections => write_sections(json, writer)?,
            ConfigRule::NumberOf(folder, key, gguf, value) => {
                if folder == name && json[key].is_null() {
                    writer.number(gguf, value);
                }
            }
            ConfigRule::FullAttentionEvery(period) => refuse_other_layers(json, period)?,
            ConfigRule::Windows(period) => layers::write_windows(json, period, writer)?,
            ConfigRule::TurnedLayers(period) => layers::write_turned(json, period, writer)?,
        }
    }
    Ok(())
}

/// Pairs that turn by time, row and column.
fn write_sections(json: &Json, writer: &mut MetadataWriter) -> Result<(), String> {
    let homes = ["rope_parameters", "rope_scaling"];
    let sections = homes
        .iter()
        .find_map(|home| json[*home]["mrope_section"].as_array());
    let sections: Option<Vec<i32>> = sections.map(|list| {
        let numbers = list.iter().filter_map(id);
        numbers.map(|n| n as i32).collect()
    });
    match sections {
        Some(mut sections) if sections.len() == 3 => {
            sections.push(0);
            writer.sections("rope.dimension_sections", sections);
            Ok(())
        }
        _ => Err("config.json: rope_parameters.mrope_section must be three numbers".to_string()),
    }
}

/// Every `pattern`th layer sees everything, the others a window; GGUF's architecture fixes the pattern.
fn refuse_other_layers(json: &Json, pattern: usize) -> Result<(), String> {
    let accepted = [Accepted::Absent, Accepted::Number(pattern as u32)];
    refuse_others(json, "sliding_window_pattern", &accepted)?;
    let kinds = json["layer_types"].as_array();
    let fits = kinds.into_iter().flatten().enumerate().all(|(i, kind)| {
        let full = (i + 1) % pattern == 0;
        *kind
            == if full {
                "full_attention"
            } else {
                "sliding_attention"
            }
    });
    match fits {
        true => Ok(()),
        false => Err("config.json: these layer_types are not implemented".to_string()),
    }
}

fn refuse_other_activations(json: &Json, folder: &FolderTraits, name: &str) -> Result<(), String> {
    let key = match json.get("hidden_activation") {
        Some(value) if !value.is_null() => "hidden_activation",
        _ => "hidden_act",
    };
    match json[key].as_str() {
        Some(activation) if folder.activations.contains(&activation) => Ok(()),
        _ => Err(format!(
            "config.json: {key} {} is not implemented for {name}",
            json[key]
        )),
    }
}

/// A number for all layers, or the same for each.
fn width_of_feed_forward(json: &Json) -> Result<u32, String> {
    const KEY: &str = "intermediate_size";
    let Some(list) = json[KEY].as_array() else {
        return number(json, KEY);
    };
    match list.first().and_then(id) {
        Some(first @ 1..) if list.iter().all(|width| *width == list[0]) => Ok(first),
        _ => Err(format!(
            "config.json: {KEY} {} of several sizes is not implemented",
            json[KEY]
        )),
    }
}

fn id(json: &Json) -> Option<u32> {
    json.as_u64().and_then(|id| u32::try_from(id).ok())
}

/// A key whose other values call for something that is not implemented.
pub(super) fn refuse_others(json: &Json, key: &str, accepted: &[Accepted]) -> Result<(), String> {
    match json.get(key).unwrap_or(&Json::Null) {
        value if accepted.iter().any(|accepted| accepted.is(value)) => Ok(()),
        value => Err(format!(
            "config.json: {key} {value} is not implemented for safetensors; take a GGUF file of the model"
        )),
    }
}

pub(super) fn number(json: &Json, key: &str) -> Result<u32, String> {
    match id(&json[key]) {
        Some(value @ 1..) => Ok(value),
        _ => Err(format!(
            "config.json: {key} must be a whole number above 0, it is {}",
            json[key]
        )),
    }
}

fn float(json: &Json, key: &str) -> Result<f64, String> {
    json[key]
        .as_f64()
        .ok_or_else(|| format!("config.json: {key} must be a number, it is {}", json[key]))
}

/// A number that may be absent or null.
pub(super) fn optional(json: &Json, key: &str) -> Result<Option<u32>, String> {
    match json.get(key) {
        None | Some(Json::Null) => Ok(None),
        Some(_) => number(json, key).map(Some),
    }
}
