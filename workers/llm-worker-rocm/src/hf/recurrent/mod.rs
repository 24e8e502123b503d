//! Folders of families with a recurrence: what their `config.json` says in words of its own, and their tensors.
//!
//! Facts are those of transformers' code and of llama.cpp's converter
//! (<https://github.com/ggml-org/llama.cpp/blob/master/convert_hf_to_gguf.py>).

use super::change::Change;
use super::metadata::MetadataWriter;
use super::names::TensorName;
use crate::architectures::RecurrentFolder;
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

/// Falcon-H1's factors, which GGUF has in its matrices.
#[derive(Debug, Clone)]
struct Multipliers {
    embedding: f64,
    output: f64,
    query: f64,
    key: f64,
    attention_output: f64,
    gate: f64,
    down: f64,
    state_space_output: f64,
    /// Of gate, channels, inputs and outputs of the state, and steps: rows, and the factor.
    state_space_input: Vec<(usize, f64)>,
}

/// A block's kind in `config.json`.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Attention,
    Recurrent,
    FeedForward,
    Experts,
}

fn get<'a>(json: &'a Json, keys: &[&str]) -> &'a Json {
    let mut found = keys.iter().map(|key| &json[*key]).filter(|v| !v.is_null());
    found.next().unwrap_or(&Json::Null)
}

/// A whole number above 0 under the first of these keys.
fn number(json: &Json, keys: &[&str]) -> Result<u32, String> {
    let value = get(json, keys);
    let number = value.as_u64().and_then(|n| u32::try_from(n).ok());
    number.filter(|n| *n > 0).ok_or_else(|| {
        format!(
            "config.json: {} must be a whole number above 0, it is {value}",
            keys[0]
        )
    })
}

fn float(json: &Json, key: &str) -> Result<f64, String> {
    let value = json[key].as_f64();
    value.ok_or_else(|| format!("config.json: {key} must be a number, it is {}", json[key]))
}

/// Numbers of a list.
fn floats(json: &Json, key: &str, count: usize) -> Result<Vec<f64>, String> {
    let values = json[key].as_array().into_iter().flatten();
    let values: Vec<f64> = values.filter_map(Json::as_f64).collect();
    match values.len() == count {
        true => Ok(values),
        false => Err(format!("config.json: {key} must be {count} numbers")),
    }
}

/// Steps' limits; infinity is no number in JSON.
fn limits(json: &Json) -> (Option<f64>, Option<f64>) {
    let limits = &json["time_step_limit"];
    let limit = |at: usize| limits[at].as_f64().filter(|v| v.is_finite() && *v > 0.0);
    (limit(0), limit(1))
}

/// What each layer is.
fn kinds(json: &Json) -> Result<Vec<Kind>, String> {
    let unknown = |what: &dyn std::fmt::Display| {
        format!("config.json: layers of kind {what} are not implemented")
    };
    if let Some(pattern) = json["hybrid_override_pattern"].as_str() {
        let kind = |letter| match letter {
            'M' => Ok(Kind::Recurrent),
            '*' => Ok(Kind::Attention),
            '-' => Ok(Kind::FeedForward),
            'E' => Ok(Kind::Experts),
            other => Err(unknown(&other)),
        };
        return pattern.chars().map(kind).collect();
    }
    let list = get(json, &["layer_types", "layers_block_type"]).as_array();
    let list = list.ok_or("config.json: layer_types is missing")?;
    let kind = |kind: &Json| match kind.as_str() {
        Some("mamba" | "linear_attention" | "recurrent") => Ok(Kind::Recurrent),
        Some("attention" | "full_attention" | "sliding_attention") => Ok(Kind::Attention),
        Some("mlp") => Ok(Kind::FeedForward),
        Some("moe") => Ok(Kind::Experts),
        _ => Err(unknown(kind)),
    };
    list.iter().map(kind).collect()
}

impl Recurrent {
    /// The configuration in the usual words, as far as these have a place for it, and GGUF's architecture if it is
    /// another than the row's.
    pub(super) fn usual(
        family: RecurrentFolder,
        json: &Json,
    ) -> Result<(Json, Option<&'static str>), String> {
        let mut usual = json.clone();
        let mut set = |key: &str, value: Json| {
            usual[key] = value;
        };
        let mut architecture = None;
        match family {
            RecurrentFolder::Mamba | RecurrentFolder::Mamba2 => {
                let epsilon = json["layer_norm_epsilon"].as_f64().unwrap_or(1e-5);
                set("rms_norm_eps", epsilon.into());
                set("ssm_head_dim", json["head_dim"].clone());
                for (key, value) in [
                    ("num_attention_heads", 1),
                    ("num_key_value_heads", 1),
                    // Of attention that is not there.
                    ("head_dim", 2),
                    ("intermediate_size", 1),
                    ("max_position_embeddings", ENDLESS),
                ] {
                    set(key, value.into());
                }
            }
            RecurrentFolder::Granite => {
                if json["num_local_experts"] == 0 {
                    set("num_local_experts", Json::Null);
                    let width = number(json, &["shared_intermediate_size"])?;
                    set("intermediate_size", width.into());
                } else {
                    let width = number(json, &["shared_intermediate_size"])?;
                    set("shared_expert_intermediate_size", width.into());
                }
            }
            RecurrentFolder::Nemotron => {
                let kinds = kinds(json)?;
                set("num_hidden_layers", kinds.len().into());
                set("hidden_act", json["mlp_hidden_act"].clone());
                let act = &json["mamba_hidden_act"];
                if !act.is_null() && act != "silu" {
                    return Err(format!(
                        "config.json: mamba_hidden_act {act} is not implemented"
                    ));
                }
                let head = number(json, &["head_dim", "attention_head_dim"])?;
                set("head_dim", head.into());
                if let Some(epsilon) = json["layer_norm_epsilon"].as_f64() {
                    set("rms_norm_eps", epsilon.into());
                }
                if kinds.contains(&Kind::Experts) {
                    architecture = Some("nemotron_h_moe");
                    set("intermediate_size", json["moe_intermediate_size"].clone());
                } else {
                    for key in ["num_experts", "num_local_experts", "n_routed_experts"] {
                        set(key, Json::Null);
                    }
                }
            }
            RecurrentFolder::FalconH1 => {}
            RecurrentFolder::Griffin => {
                // Its code looks at no other size of heads.
                let width = number(json, &["hidden_size"])?;
                let heads = number(json, &["num_attention_heads"])?;
                set("head_dim", (width / heads).into());
                // Both halves of the gated part together.
                let both = number(json, &["intermediate_size"])?;
                set("intermediate_size", (both / 2).into());
                set("max_position_embeddings", ENDLESS.into());
                let layers = number(json, &["num_hidden_layers"])? as usize;
                let kinds = get(json, &["block_types", "_block_types", "layer_types"]);
                let kinds = kinds.as_array().filter(|kinds| !kinds.is_empty());
                let kinds = kinds.ok_or("config.json: block_types is missing")?;
                let all: Vec<Json> = kinds.iter().cycle().take(layers).cloned().collect();
                set("layer_types", all.into());
            }
        }
        Ok((usual, architecture))
    }

    /// Writes what the usual words have no place for.
    pub(super) fn write(
        family: RecurrentFolder,
        json: &Json,
        writer: &mut MetadataWriter,
    ) -> Result<Self, String> {
        let mut recurrent = Self {
            family,
            groups: 1,
            experts: false,
            multipliers: None,
        };
        let state_space = |writer: &mut MetadataWriter, sizes: [u32; 5]| {
            for (key, size) in [
                ("ssm.conv_kernel", sizes[0]),
                ("ssm.inner_size", sizes[1]),
                ("ssm.state_size", sizes[2]),
                ("ssm.time_step_rank", sizes[3]),
                ("ssm.group_count", sizes[4]),
            ] {
                writer.number(key, size);
            }
        };
        let inner_of = |heads: u32, size: u32, inner: u32| {
            match heads.checked_mul(size) {
            Some(channels) if channels == inner => Ok(inner),
            _ => Err(format!(
                "config.json: {heads} heads of {size} do not make the {inner} channels of the state space"
            )),
        }
        };
        let width = number(json, &["hidden_size"])?;
        let (mut least, mut most) = limits(json);
        match family {
            RecurrentFolder::Mamba => {
                let kernel = number(json, &["conv_kernel"])?;
                let inner = match json["expand"].as_u64() {
                    Some(expand) => (u64::from(width) * expand) as u32,
                    None => 2 * width,
                };
                let rank = match json["time_step_rank"].as_str() {
                    Some("auto") => width.div_ceil(16),
                    _ => number(json, &["time_step_rank"])?,
                };
                let falcon = json["model_type"] == "falcon_mamba";
                let states = number(json, &["state_size"])?;
                state_space(writer, [kernel, inner, states, rank, 1]);
                writer.bool("ssm.dt_b_c_rms", falcon);
                if falcon {
                    let epsilon = json["mixer_rms_eps"].as_f64().unwrap_or(1e-6);
                    writer.float("ssm.norm_rms_epsilon", epsilon);
                }
                (least, most) = (None, None);
                without_attention(writer);
            }
            RecurrentFolder::Mamba2 => {
                let heads = number(json, &["num_heads"])?;
                let expand = json["expand"].as_u64().unwrap_or(2) as u32;
                let size = json["ssm_head_dim"].as_u64().unwrap_or(0) as u32;
                let inner = inner_of(heads, size, width.saturating_mul(expand))?;
                let groups = number(json, &["n_groups"])?;
                let states = number(json, &["state_size"])?;
                let kernel = number(json, &["conv_kernel"])?;
                state_space(writer, [kernel, inner, states, heads, groups]);
                recurrent.groups = groups as usize;
                without_attention(writer);
            }
            RecurrentFolder::Granite => {
                let heads = number(json, &["mamba_n_heads"])?;
                let expand = json["mamba_expand"].as_u64().unwrap_or(2) as u32;
                let inner = width.saturating_mul(expand);
                let size = match json["mamba_d_head"].as_u64() {
                    Some(size) => size as u32,
                    None => inner / heads,
                };
                let inner = inner_of(heads, size, inner)?;
                let groups = json["mamba_n_groups"].as_u64().unwrap_or(1) as u32;
                let states = json["mamba_d_state"].as_u64().unwrap_or(256) as u32;
                let kernel = json["mamba_d_conv"].as_u64().unwrap_or(4) as u32;
                state_space(writer, [kernel, inner, states, heads, groups.max(1)]);
                recurrent.groups = groups.max(1) as usize;
                recurrent.experts = !json["num_local_experts"].is_null();
                let kinds = kinds(json)?;
                heads_of(&kinds, json, writer)?;
                let position = &json["position_embedding_type"];
                writer.bool("rope.scaling.finetuned", position == "rope");
            }
            RecurrentFolder::Nemotron => {
                let heads = number(json, &["mamba_num_heads"])?;
                let size = number(json, &["mamba_head_dim"])?;
                let groups = number(json, &["n_groups", "mamba_n_groups"])?;
                let states = number(json, &["ssm_state_size"])?;
                let kernel = number(json, &["conv_kernel", "mamba_d_conv"])?;
                let inner = heads.saturating_mul(size);
                state_space(writer, [kernel, inner, states, heads, groups]);
                recurrent.groups = groups as usize;
                let kinds = kinds(json)?;
                recurrent.experts = kinds.contains(&Kind::Experts);
                if recurrent.experts && kinds.contains(&Kind::FeedForward) {
                    return Err(
                        "config.json: experts beside plain feed-forward layers are not implemented"
                            .to_string(),
                    );
                }
                heads_of(&kinds, json, writer)?;
                let hidden = number(json, &["intermediate_size"])?;
                let width_of = |kind: &Kind| match kind {
                    Kind::FeedForward | Kind::Experts => hidden,
                    _ => 0,
                };
                let widths: Vec<u32> = kinds.iter().map(width_of).collect();
                writer.numbers("feed_forward_length", &widths);
                // Its code has this lower limit and no upper one.
                least = Some(json["time_step_min"].as_f64().unwrap_or(0.001));
                most = None;
            }
            RecurrentFolder::FalconH1 => {
                let heads = number(json, &["mamba_n_heads"])?;
                let inner = match json["mamba_d_ssm"].as_u64() {
                    Some(inner) => inner as u32,
                    None => width.saturating_mul(number(json, &["mamba_expand"])?),
                };
                let size = match json["mamba_d_head"].as_u64() {
                    Some(size) => size as u32,
                    None => inner / heads,
                };
                let inner = inner_of(heads, size, inner)?;
                let groups = number(json, &["mamba_n_groups"])?;
                let states = number(json, &["mamba_d_state"])?;
                let kernel = number(json, &["mamba_d_conv"])?;
                state_space(writer, [kernel, inner, states, heads, groups]);
                recurrent.groups = groups as usize;
                let sizes = [inner, inner, groups * states, groups * states, heads];
                recurrent.multipliers = Some(Multipliers::read(json, sizes)?);
            }
            RecurrentFolder::Griffin => {
                let inner = match json["lru_width"].as_u64() {
                    Some(inner) => inner as u32,
                    None => width,
                };
                let heads = number(json, &["num_attention_heads"])?;
                let kernel = number(json, &["conv1d_width"])?;
                state_space(writer, [kernel, inner, 1, heads, 1]);
                heads_of(&kinds(json)?, json, writer)?;
                // Its code stores the root as bf16.
                let root = half::bf16::from_f64(f64::from(width).sqrt());
                writer.float("embedding_scale", root.to_f64());
            }
        }
        for (key, limit) in [("ssm.time_step_min", least), ("ssm.time_step_max", most)] {
            if let Some(limit) = limit {
                writer.float(key, limit);
            }
        }
        Ok(recurrent)
    }

    /// Where a tensor goes that others do not have, and what becomes of it; none where the usual names say it. `Err`
    /// for a block of another model.
    pub(super) fn place(
        &self,
        name: &str,
        tied: bool,
    ) -> Option<Vec<(TensorName, Option<Change>)>> {
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

    /// A part of a block: the expert that it belongs to, and what it becomes.
    #[allow(clippy::type_complexity)] // one caller, which takes it apart
    fn part(&self, part: &str) -> Option<(Option<u32>, Vec<(&'static str, Option<Change>)>)> {
        let halves = |first, second| {
            vec![
                (first, Some(Change::Half(0))),
                (second, Some(Change::Half(1))),
            ]
        };
        let one = |name, change| Some((None, vec![(name, change)]));
        let m = self.multipliers.as_ref();
        match part {
            "norm.weight" => return one("attn_norm.weight", None),
            "pre_ff_layernorm.weight" => return one("ffn_norm.weight", None),
            "feed_forward.up_proj.weight" => return one("ffn_up.weight", None),
            "feed_forward.gate_proj.weight" => {
                return one("ffn_gate.weight", m.and_then(|m| scaled(m.gate)))
            }
            "feed_forward.down_proj.weight" => {
                return one("ffn_down.weight", m.and_then(|m| scaled(m.down)))
            }
            "self_attn.q_proj.weight" => return one("attn_q.weight", scaled(m?.query)),
            "self_attn.k_proj.weight" => return one("attn_k.weight", scaled(m?.key)),
            "self_attn.v_proj.weight" => return one("attn_v.weight", scaled(m?.query)),
            "self_attn.o_proj.weight" => {
                return one("attn_output.weight", scaled(m?.attention_output))
            }
            "block_sparse_moe.input_linear.weight" => {
                return Some((None, halves("ffn_gate_exps.weight", "ffn_up_exps.weight")))
            }
            "block_sparse_moe.output_linear.weight" => return one("ffn_down_exps.weight", None),
            "block_sparse_moe.router.layer.weight" => return one("ffn_gate_inp.weight", None),
            "shared_mlp.input_linear.weight" => {
                let parts = match self.experts {
                    true => halves("ffn_gate_shexp.weight", "ffn_up_shexp.weight"),
                    false => halves("ffn_gate.weight", "ffn_up.weight"),
                };
                return Some((None, parts));
            }
            "temporal_pre_norm.weight" => return one("attn_norm.weight", None),
            "channel_pre_norm.weight" => return one("ffn_norm.weight", None),
            _ if part.starts_with("mlp_block.") => {
                let name = match part.strip_prefix("mlp_block.")? {
                    "gate_proj.weight" => "ffn_gate.weight",
                    "gate_proj.bias" => "ffn_gate.bias",
                    "up_proj.weight" => "ffn_up.weight",
                    "up_proj.bias" => "ffn_up.bias",
                    "down_proj.weight" => "ffn_down.weight",
                    "down_proj.bias" => "ffn_down.bias",
                    _ => return None,
                };
                return one(name, None);
            }
            _ if part.starts_with("temporal_block.") => {
                let (name, change) = match part.strip_prefix("temporal_block.")? {
                    "linear_x.weight" => ("ssm_in.weight", None),
                    "linear_x.bias" => ("ssm_in.bias", None),
                    "linear_y.weight" => ("ssm_gate.weight", None),
                    "linear_y.bias" => ("ssm_gate.bias", None),
                    "linear_out.weight" => ("ssm_out.weight", None),
                    "linear_out.bias" => ("ssm_out.bias", None),
                    "conv_1d.weight" => ("ssm_conv1d.weight", Some(Change::Squeezed)),
                    "conv_1d.bias" => ("ssm_conv1d.bias", None),
                    "rg_lru.recurrent_param" => ("ssm_a", None),
                    "rg_lru.input_gate_weight" => {
                        ("ssm_input_gate.weight", Some(Change::Transposed))
                    }
                    "rg_lru.input_gate_bias" => ("ssm_input_gate.bias", Some(Change::Flat)),
                    "rg_lru.recurrent_gate_weight" => {
                        ("ssm_recurrent_gate.weight", Some(Change::Transposed))
                    }
                    "rg_lru.recurrent_gate_bias" => ("ssm_recurrent_gate.bias", Some(Change::Flat)),
                    "q_proj.weight" => ("attn_q.weight", None),
                    "q_proj.bias" => ("attn_q.bias", None),
                    "k_proj.weight" => ("attn_k.weight", None),
                    "k_proj.bias" => ("attn_k.bias", None),
                    "v_proj.weight" => ("attn_v.weight", None),
                    "v_proj.bias" => ("attn_v.bias", None),
                    "o_proj.weight" => ("attn_output.weight", None),
                    "o_proj.bias" => ("attn_output.bias", None),
                    _ => return None,
                };
                return one(name, change);
            }
            "shared_mlp.output_linear.weight" => {
                let name = match self.experts {
                    true => "ffn_down_shexp.weight",
                    false => "ffn_down.weight",
                };
                return one(name, None);
            }
            _ => {}
        }
        let mixer = part
            .strip_prefix("mixer.")
            .or(part.strip_prefix("mamba."))?;
        if let Some(rest) = mixer.strip_prefix("experts.") {
            let (expert, matrix) = rest.split_once('.')?;
            let name = match matrix {
                "up_proj.weight" => "ffn_up_exps.weight",
                "down_proj.weight" => "ffn_down_exps.weight",
                _ => return None,
            };
            return Some((Some(expert.parse().ok()?), vec![(name, None)]));
        }
        let one_headed = self.family != RecurrentFolder::Mamba;
        let (name, change) = match mixer {
            "A_log" => ("ssm_a", Some(Change::Rates)),
            "D" if one_headed => ("ssm_d", Some(Change::Column)),
            "D" => ("ssm_d", None),
            "dt_bias" | "dt_proj.bias" => ("ssm_dt.bias", None),
            "dt_proj.weight" => ("ssm_dt.weight", None),
            "x_proj.weight" => ("ssm_x.weight", None),
            "conv1d.weight" => ("ssm_conv1d.weight", Some(Change::Squeezed)),
            "conv1d.bias" => ("ssm_conv1d.bias", None),
            "in_proj.weight" => {
                let runs = m.map(|m| m.state_space_input.clone());
                ("ssm_in.weight", runs.map(Change::Scaled))
            }
            "in_proj.bias" => ("ssm_in.bias", None),
            "out_proj.weight" => (
                "ssm_out.weight",
                m.and_then(|m| scaled(m.state_space_output)),
            ),
            "out_proj.bias" => ("ssm_out.bias", None),
            "norm.weight" => ("ssm_norm.weight", Some(Change::Groups(self.groups))),
            "q_proj.weight" => ("attn_q.weight", None),
            "k_proj.weight" => ("attn_k.weight", None),
            "v_proj.weight" => ("attn_v.weight", None),
            "o_proj.weight" => ("attn_output.weight", None),
            "up_proj.weight" => ("ffn_up.weight", None),
            "up_proj.bias" => ("ffn_up.bias", None),
            "down_proj.weight" => ("ffn_down.weight", None),
            "down_proj.bias" => ("ffn_down.bias", None),
            "gate.weight" => ("ffn_gate_inp.weight", None),
            "gate.e_score_correction_bias" => ("exp_probs_b.bias", None),
            "fc1_latent_proj.weight" => ("ffn_latent_down.weight", None),
            "fc1_latent_proj.bias" => ("ffn_latent_down.bias", None),
            "fc2_latent_proj.weight" => ("ffn_latent_up.weight", None),
            "fc2_latent_proj.bias" => ("ffn_latent_up.bias", None),
            "shared_experts.up_proj.weight" => ("ffn_up_shexp.weight", None),
            "shared_experts.down_proj.weight" => ("ffn_down_shexp.weight", None),
            _ => return None,
        };
        Some((None, vec![(name, change)]))
    }
}

/// A factor of all rows.
fn scaled(factor: f64) -> Option<Change> {
    (factor != 1.0).then(|| Change::Scaled(vec![(0, factor)]))
}

/// Models of states alone: llama.cpp's values for what they lack.
fn without_attention(writer: &mut MetadataWriter) {
    for key in ["attention.head_count", "feed_forward_length"] {
        writer.number(key, 0);
    }
    for key in [
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
        "rope.freq_base",
    ] {
        writer.remove(key);
    }
}

/// Heads of keys and values of each layer: 0 where there is no attention.
fn heads_of(kinds: &[Kind], json: &Json, writer: &mut MetadataWriter) -> Result<(), String> {
    let layers = number(json, &["num_hidden_layers"])?;
    if kinds.len() != layers as usize {
        return Err(format!(
            "config.json: kinds of {} layers, the model has {layers}",
            kinds.len()
        ));
    }
    let heads = number(json, &["num_key_value_heads", "num_attention_heads"])?;
    let of = |kind: &Kind| if *kind == Kind::Attention { heads } else { 0 };
    let heads: Vec<u32> = kinds.iter().map(of).collect();
    writer.numbers("attention.head_count_kv", &heads);
    Ok(())
}

impl Multipliers {
    fn read(json: &Json, sizes: [u32; 5]) -> Result<Self, String> {
        let factor = |key: &str| match json[key].is_null() {
            true => Ok(1.0),
            false => float(json, key),
        };
        let list = |key: &str, count: usize| match json[key].is_null() {
            true => Ok(vec![1.0; count]),
            false => floats(json, key, count),
        };
        let input = factor("attention_in_multiplier")?;
        let feed_forward = list("mlp_multipliers", 2)?;
        let state_space = list("ssm_multipliers", 5)?;
        let state_space_in = factor("ssm_in_multiplier")?;
        let runs = sizes.iter().zip(&state_space);
        Ok(Self {
            embedding: factor("embedding_multiplier")?,
            output: factor("lm_head_multiplier")?,
            query: input,
            key: input * factor("key_multiplier")?,
            attention_output: factor("attention_out_multiplier")?,
            gate: feed_forward[0],
            down: feed_forward[1],
            state_space_output: factor("ssm_out_multiplier")?,
            state_space_input: runs
                .map(|(rows, factor)| (*rows as usize, factor * state_space_in))
                .collect(),
        })
    }
}
