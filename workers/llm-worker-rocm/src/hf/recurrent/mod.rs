//! Folders of families with a recurrence: what their `config.json` says in words of its own, and their tensors.
//!
//! Facts are those of transformers' code and of llama.cpp's converter
//! (<https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py>).

mod falcon_h1;
mod granite;
mod griffin;
mod jamba;
mod json;
mod mamba;
mod minimax;
mod nemotron;
mod parts;
mod rwkv;

use super::change::{Change, Places};
use super::metadata::MetadataWriter;
use super::names::TensorName;
use crate::architectures::RecurrentFolder;
pub(super) use granite::parts as granite_parts;
pub(super) use rwkv::MIXED;

use falcon_h1::Multipliers;
use json::{heads_of, inner_of, kinds, limits, number, write_limits, write_state_space, Kind};
use serde_json::Value as Json;

/// The context of models that end nowhere, as llama.cpp writes it.
const ENDLESS: u32 = 1 << 20;

/// What tensors need of the configuration.
#[derive(Debug, Clone)]
pub(super) struct Recurrent {
    family: RecurrentFolder,
    groups: usize,
    experts: bool,
    multipliers: Option<Multipliers>,
}

/// The configuration in the usual words, and GGUF's architecture if it is another than the row's.
type Usual = (Json, Option<&'static str>);

impl Recurrent {
    /// The configuration in the usual words, as far as these have a place for it, and GGUF's architecture if it is
    /// another than the row's.
    pub(super) fn usual(family: RecurrentFolder, json: &Json) -> Result<Usual, String> {
        match family {
            RecurrentFolder::Mamba | RecurrentFolder::Mamba2 => Ok(mamba::usual(json)),
            RecurrentFolder::Granite => granite::usual(json),
            RecurrentFolder::Nemotron => nemotron::usual(json),
            RecurrentFolder::FalconH1 => Ok((json.clone(), None)),
            RecurrentFolder::MiniMax => minimax::usual(json),
            RecurrentFolder::Rwkv7 => rwkv::usual(json),
            RecurrentFolder::Jamba => jamba::usual(json),
            RecurrentFolder::Griffin => griffin::usual(json),
        }
    }

    /// Writes what the usual words have no place for.
    pub(super) fn write(
        family: RecurrentFolder,
        json: &Json,
        writer: &mut MetadataWriter,
    ) -> Result<Self, String> {
        let recurrent = Self {
            family,
            groups: 1,
            experts: false,
            multipliers: None,
        };
        match family {
            RecurrentFolder::Mamba => mamba::write(recurrent, json, writer),
            RecurrentFolder::Mamba2 => mamba::write_second(recurrent, json, writer),
            RecurrentFolder::Granite => granite::write(recurrent, json, writer),
            RecurrentFolder::Nemotron => nemotron::write(recurrent, json, writer),
            RecurrentFolder::FalconH1 => falcon_h1::write(recurrent, json, writer),
            RecurrentFolder::Griffin => griffin::write(recurrent, json, writer),
            RecurrentFolder::MiniMax => minimax::write(recurrent, json, writer),
            RecurrentFolder::Rwkv7 => rwkv::write(recurrent, json, writer),
            RecurrentFolder::Jamba => jamba::write(recurrent, json, writer),
        }
    }

    /// Where a tensor goes that others do not have, and what becomes of it; none where the usual names say it. `Err`
    /// for a block of another model.
    pub(super) fn place(&self, name: &str, tied: bool) -> Option<Places> {
        // What predicts tokens further ahead.
        if self.family == RecurrentFolder::Nemotron && name.starts_with("mtp.") {
            return Some(Vec::new());
        }
        let inner = name
            .strip_prefix("backbone.")
            .or(name.strip_prefix("model."));
        let inner = inner.unwrap_or(name);
        let whole = |name: &str, change| (TensorName::whole(name), change);
        match inner {
            "embeddings.weight" | "embedding.weight" => {
                return Some(vec![whole("token_embd.weight", None)])
            }
            "embed_tokens.weight" => {
                let m = self.multipliers.as_ref()?;
                let mut places = vec![whole("token_embd.weight", scaled(m.embedding))];
                if tied {
                    places.push(whole("output.weight", scaled(m.output)));
                }
                return Some(places);
            }
            "lm_head.weight" if !tied => {
                let m = self.multipliers.as_ref()?;
                return Some(vec![whole("output.weight", scaled(m.output))]);
            }
            "final_norm.weight" => return Some(vec![whole("output_norm.weight", None)]),
            "norm_f.weight" => return Some(vec![whole("output_norm.weight", None)]),
            _ => {}
        }
        let (block, part) = inner.strip_prefix("layers.")?.split_once('.')?;
        if self.family == RecurrentFolder::Rwkv7 {
            if let Some(kind) = part.strip_prefix("pre_norm.").filter(|_| block == "0") {
                return Some(vec![whole(&format!("token_embd_norm.{kind}"), None)]);
            }
            let (expert, parts) = rwkv::part(block, part)?;
            let name = |(part, change): (String, Option<Change>)| {
                let name = TensorName {
                    expert,
                    ..TensorName::whole(&format!("blk.{block}.{part}"))
                };
                (name, change)
            };
            return Some(parts.into_iter().map(name).collect());
        }
        let named = |part: &str| format!("blk.{block}.{part}");
        let (expert, parts) = self.part(part)?;
        let name = |(part, change): (&str, Option<Change>)| {
            let name = TensorName {
                expert,
                ..TensorName::whole(&named(part))
            };
            (name, change)
        };
        Some(parts.into_iter().map(name).collect())
    }
}

/// A factor of all rows.
fn scaled(factor: f64) -> Option<Change> {
    (factor != 1.0).then(|| Change::Scaled(vec![(0, factor)]))
}
