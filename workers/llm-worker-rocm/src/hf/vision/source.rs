//! What a folder says of its encoder, and the metadata that become of it.

use super::Family;
use crate::vision::Kind;
use serde_json::Value as Json;
use worker::gguf::{Array, Value};

const FILE: &str = "preprocessor_config.json";

/// What a folder says of its encoder.
pub(super) struct Source<'a> {
    pub kind: Kind,
    /// `config.json`.
    pub config: &'a Json,
    /// Its `vision_config`.
    pub vision: &'a Json,
    /// Its `text_config`, or all of it.
    pub text: &'a Json,
    /// `preprocessor_config.json`.
    pub preprocessor: &'a Json,
    /// `video_preprocessor_config.json`, if there is one.
    pub video: &'a Json,
}

/// An encoder's shape, as far as all families say it alike.
pub(super) struct Shape<'a> {
    /// The name of the width.
    pub width: &'a str,
    /// Width of the feed-forward part, if it is not `intermediate_size`.
    pub hidden: Option<u32>,
    /// Blocks behind those that count.
    pub unused: u32,
    pub epsilon: f64,
    /// The activation that is meant if none is named, and others that are known.
    pub activations: &'a [&'a str],
}

/// `clip.*` metadata.
pub(super) struct Clip(Vec<(String, Value)>);

impl Clip {
    /// One of `clip.vision.*`.
    pub(super) fn set(&mut self, key: &str, value: Value) {
        self.0.push((format!("clip.vision.{key}"), value));
    }

    /// A number of these.
    pub(super) fn count(&mut self, key: &str, value: u32) {
        self.set(key, Value::U32(value));
    }

    /// One of `clip.*`.
    fn flag(&mut self, key: &str) {
        self.0.push((format!("clip.{key}"), Value::Bool(true)));
    }
}

impl Source<'_> {
    /// The metadata that an `mmproj` file of the encoder would have.
    pub(super) fn metadata(
        &self,
        projector: &str,
        family: &Family,
    ) -> Result<Vec<(String, Value)>, String> {
        let text = |key: &str, value: &str| (key.to_string(), Value::String(value.to_string()));
        let mut clip = Clip(vec![
            text("general.architecture", "clip"),
            text("clip.projector_type", projector),
        ]);
        clip.flag("has_vision_encoder");
        (family.shape)(self, &mut clip)?;
        self.common_preprocessing(&mut clip)?;
        (family.preprocessing)(self, &mut clip)?;
        Ok(clip.0)
    }

    /// A number of `vision_config` by the first of its names that is there.
    pub(super) fn number(&self, names: &[&str]) -> Result<u32, String> {
        let found = names.iter().find_map(|name| side(&self.vision[*name]));
        let number = found.and_then(|n| u32::try_from(n).ok());
        number.ok_or_else(|| format!("config.json: vision_config.{} is missing", names[0]))
    }

    /// Writes what all families have.
    pub(super) fn write_shape(&self, shape: &Shape, clip: &mut Clip) -> Result<(), String> {
        let vision = self.vision;
        let norm = &vision["norm_type"];
        if norm.as_str().is_some_and(|norm| norm != "layer_norm") {
            return Err(format!(
                "config.json: vision_config.norm_type {norm} is not implemented here"
            ));
        }
        let blocks = self.number(&["num_hidden_layers", "depth"])?;
        let hidden = match shape.hidden {
            Some(hidden) => hidden,
            None => self.number(&["intermediate_size"])?,
        };
        clip.count("embedding_length", self.number(&[shape.width])?);
        clip.count("feed_forward_length", hidden);
        clip.count(
            "attention.head_count",
            self.number(&["num_attention_heads", "num_heads"])?,
        );
        clip.count("block_count", blocks.saturating_sub(shape.unused));
        clip.count("patch_size", self.number(&["patch_size"])?);
        let output = self.text["hidden_size"].as_u64();
        let output = output.and_then(|n| u32::try_from(n).ok());
        clip.count(
            "projection_dim",
            output.ok_or("config.json: hidden_size is missing")?,
        );
        let epsilon = Value::F32(shape.epsilon as f32);
        clip.set("attention.layer_norm_epsilon", epsilon);
        let key = match vision["hidden_activation"].is_null() {
            true => "hidden_act",
            false => "hidden_activation",
        };
        let activation = vision[key].as_str().unwrap_or(shape.activations[0]);
        if !shape.activations.contains(&activation) {
            return Err(format!(
                "config.json: vision_config.{key} {activation} is not implemented here"
            ));
        }
        match activation {
            "quick_gelu" => {}
            "silu" => clip.flag("use_silu"),
            _ => clip.flag("use_gelu"),
        }
        Ok(())
    }

    /// Refuses what a key of the preprocessor's configuration says.
    pub(super) fn refuse(&self, key: &str) -> Result<(), String> {
        let value = &self.preprocessor[key];
        Err(format!("{FILE}: {key} {value} is not implemented"))
    }

    /// Refuses a number other than the expected one, if there is one.
    pub(super) fn same(&self, key: &str, expected: u64) -> Result<(), String> {
        match self.preprocessor[key].as_u64() {
            Some(value) if value != expected => self.refuse(key),
            _ => Ok(()),
        }
    }

    /// Refuses other filters; `resample` is Pillow's number of the family's.
    pub(super) fn check_filter(&self, resample: u64) -> Result<(), String> {
        self.same("resample", resample)
    }

    /// A side that pictures are brought to, `size.longest_edge`.
    pub(super) fn longest_edge(&self) -> Result<u32, String> {
        let longest = pixels(&self.preprocessor["size"]["longest_edge"]);
        longest.ok_or_else(|| format!("{FILE}: size.longest_edge is missing"))
    }

    /// What all families' preprocessors say alike.
    fn common_preprocessing(&self, clip: &mut Clip) -> Result<(), String> {
        let json = self.preprocessor;
        if json.is_null() {
            return Err(format!("{FILE} is missing: how pictures become pixels"));
        }
        for key in ["do_resize", "do_rescale"] {
            if json[key] == false {
                return self.refuse(key);
            }
        }
        let normalises = json["do_normalize"].as_bool();
        if normalises.is_some_and(|does| does != self.kind.is_normalised()) {
            return self.refuse("do_normalize");
        }
        let factor = json["rescale_factor"].as_f64();
        if factor.is_some_and(|factor| (factor * 255.0 - 1.0).abs() > 1e-6) {
            return self.refuse("rescale_factor");
        }
        for (key, usual) in [("image_mean", 0.0), ("image_std", 1.0)] {
            let numbers = json[key].as_array().into_iter().flatten();
            let numbers = numbers.filter_map(Json::as_f64).map(|x| x as f32);
            let numbers = match self.kind.is_normalised() {
                true => numbers.collect(),
                false => vec![usual; 3],
            };
            clip.set(key, Value::Array(Array::F32(numbers)));
        }
        Ok(())
    }
}

/// A square's side, which may be given twice.
pub(super) fn side(json: &Json) -> Option<u64> {
    match json {
        Json::Array(two) if two.len() == 2 && two[0] == two[1] => two[0].as_u64(),
        json => json.as_u64(),
    }
}

/// A number of pixels, or of something else.
pub(super) fn pixels(json: &Json) -> Option<u32> {
    json.as_u64().and_then(|n| u32::try_from(n).ok())
}

/// Whole numbers.
pub(super) fn list(json: &Json) -> Vec<u64> {
    let items = json.as_array().into_iter().flatten();
    items.filter_map(Json::as_u64).collect()
}
