//! Layers behind the last that predict tokens further ahead, as folders name them, in GGUF's terms: blocks behind the
//! model's own with a few tensors more.
//!
//! Facts are those of llama.cpp's converters
//! (<https://github.com/ggml-org/llama.cpp/blob/master/conversion/qwen.py>, `glm.py` and `deepseek.py` beside it).

use crate::architectures::DeltaFolder;
use crate::engine::decoder::BlockParts;
use serde_json::Value as Json;
use worker::gguf::{Array, Value};

/// More such layers than any model has.
const MOST: u32 = 64;
/// Their number, by the names that configurations have for it.
const COUNTS: [&str; 2] = ["num_nextn_predict_layers", "mtp_num_hidden_layers"];
/// Prefixes of tensors that have their own, in place of layers that count on.
const PREFIXES: [&str; 2] = ["mtp.", "model.mtp."];
/// What such heads have besides layers, in the words of those that count on; several layers share it.
const SHARED: [(&str, &str); 4] = [
    ("fc.", "eh_proj."),
    ("pre_fc_norm_embedding.", "enorm."),
    ("pre_fc_norm_hidden.", "hnorm."),
    ("norm.", "shared_head.norm."),
];
/// Lists of switches that readers want to go on to the last head, which has none of that.
const LISTS: [&str; 3] = [
    "attention.recurrent_layers",
    "attention.sliding_window_pattern",
    "attention.rotary_pattern",
];

/// See the module.
pub(super) struct Heads {
    /// The model's own layers.
    layers: u32,
    /// Heads that are announced.
    count: u32,
    /// Whether they are blocks with attention; those of other families are left out.
    attend: bool,
}

impl Heads {
    pub(super) fn read(
        json: &Json,
        parts: BlockParts,
        delta: Option<DeltaFolder>,
    ) -> Result<Self, String> {
        let layers = super::config::number(json, "num_hidden_layers")?;
        let given = COUNTS.iter().find_map(|key| json[*key].as_u64());
        // Qwen3-Next does not say that it has one.
        let usual = u64::from(delta == Some(DeltaFolder::Qwen3Next));
        let count = given.unwrap_or(usual).min(u64::from(MOST)) as u32;
        Ok(Self {
            layers,
            count,
            attend: matches!(parts, BlockParts::Attention | BlockParts::RecurrentBetween),
        })
    }

    /// Blocks, those of announced heads included.
    pub(super) fn all_blocks(&self) -> u32 {
        self.layers.saturating_add(self.count)
    }

    /// The names that a head's tensor has in the layers that it belongs to, of which there may be none; nothing for
    /// what is no head's.
    pub(super) fn names(&self, name: &str) -> Option<Vec<String>> {
        let names = self.names_of_any(name)?;
        Some(names.into_iter().filter(|_| self.attend).collect())
    }

    fn names_of_any(&self, name: &str) -> Option<Vec<String>> {
        let layer = |head: u32| format!("model.layers.{}", self.layers.saturating_add(head));
        if let Some(part) = PREFIXES.iter().find_map(|p| name.strip_prefix(p)) {
            let own = part
                .strip_prefix("layers.")
                .and_then(|rest| rest.split_once('.'));
            if let Some((head, part)) = own {
                let head: u32 = head.parse().ok()?;
                let names = (head < self.count).then(|| format!("{}.{part}", layer(head)));
                return Some(names.into_iter().collect());
            }
            let of_all = SHARED
                .iter()
                .find_map(|(from, to)| Some(format!("{to}{}", part.strip_prefix(from)?)));
            let heads = (0..self.count).filter_map(|head| Some((head, of_all.as_ref()?)));
            return Some(
                heads
                    .map(|(head, part)| format!("{}.{part}", layer(head)))
                    .collect(),
            );
        }
        // ERNIE's, whose parts are others.
        if self.count > 0 && name.starts_with("model.mtp_") {
            return Some(Vec::new());
        }
        let (block, _) = super::names::part_of_block(name)?;
        let is_head = (self.layers..self.all_blocks()).contains(&block);
        is_head.then(|| vec![name.to_string()])
    }

    /// Tells in metadata that the last so many blocks are heads.
    pub(super) fn announce(
        &self,
        heads: u32,
        architecture: &str,
        metadata: &mut Vec<(String, Value)>,
    ) {
        let prefix = format!("{architecture}.");
        for (key, value) in metadata.iter_mut() {
            match (key.strip_prefix(&prefix), value) {
                (Some("block_count"), Value::U32(count)) => *count += heads,
                (Some(list), Value::Array(Array::Bool(switches))) if LISTS.contains(&list) => {
                    switches.resize(switches.len() + heads as usize, false);
                }
                _ => {}
            }
        }
        metadata.push((format!("{prefix}nextn_predict_layers"), Value::U32(heads)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tensors_of_heads_go_to_blocks_behind_the_last() {
        let read = |json: Json, delta| {
            let parts = match delta {
                Some(_) => BlockParts::RecurrentBetween,
                None => BlockParts::Attention,
            };
            Heads::read(&json, parts, delta).unwrap()
        };
        let of_two = json!({"num_hidden_layers": 4, "mtp_num_hidden_layers": 2});
        let heads = read(of_two, Some(DeltaFolder::Qwen35));
        let names = |name: &str| heads.names(name);
        let found = |names: &[&str]| Some(names.iter().map(|n| n.to_string()).collect::<Vec<_>>());
        assert_eq!(
            names("mtp.fc.weight"),
            found(&[
                "model.layers.4.eh_proj.weight",
                "model.layers.5.eh_proj.weight"
            ])
        );
        assert_eq!(
            names("mtp.layers.1.mlp.up_proj.weight"),
            found(&["model.layers.5.mlp.up_proj.weight"])
        );
        assert_eq!(names("mtp.layers.2.mlp.up_proj.weight"), found(&[]));
        assert_eq!(names("mtp.other.weight"), found(&[]));
        assert_eq!(
            names("model.layers.5.enorm.weight"),
            found(&["model.layers.5.enorm.weight"])
        );
        for other in [
            "model.layers.3.input_layernorm.weight",
            "model.layers.6.input_layernorm.weight",
            "model.norm.weight",
        ] {
            assert_eq!(names(other), None, "{other}");
        }
        let next = read(
            json!({"num_hidden_layers": 2}),
            Some(DeltaFolder::Qwen3Next),
        );
        assert_eq!(next.all_blocks(), 3);
        let none = read(json!({"num_hidden_layers": 2}), Some(DeltaFolder::Qwen35));
        assert_eq!(none.names("mtp.fc.weight"), found(&[]));
        let ernie = json!({"num_hidden_layers": 2, "num_nextn_predict_layers": 1});
        let ernie = read(ernie, None);
        assert_eq!(ernie.names("model.mtp_emb_norm.0.weight"), found(&[]));
        let recurrent = json!({"num_hidden_layers": 2, "num_nextn_predict_layers": 1});
        let recurrent = Heads::read(&recurrent, BlockParts::One, None).unwrap();
        assert_eq!(recurrent.names("mtp.layers.0.norm.weight"), found(&[]));
    }

    #[test]
    fn metadata_count_heads_among_the_blocks() {
        let heads = Heads {
            layers: 2,
            count: 1,
            attend: true,
        };
        let recurrent = Value::Array(Array::Bool(vec![true, false]));
        let mut metadata = vec![
            ("qwen35.block_count".to_string(), Value::U32(2)),
            (format!("qwen35.{}", LISTS[0]), recurrent),
        ];
        heads.announce(1, "qwen35", &mut metadata);
        assert_eq!(metadata[0].1, Value::U32(3));
        let expected = Value::Array(Array::Bool(vec![true, false, false]));
        assert_eq!(metadata[1].1, expected);
        let (key, value) = &metadata[2];
        assert_eq!(
            (key.as_str(), value),
            ("qwen35.nextn_predict_layers", &Value::U32(1))
        );
    }
}
