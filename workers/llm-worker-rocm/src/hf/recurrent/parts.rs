//! Parts of blocks, of whatever family they are.

use super::{granite, griffin, minimax, scaled, Recurrent};
use crate::architectures::RecurrentFolder;
use crate::hf::change::Change;

/// The expert that a part belongs to, and what it becomes.
type Parts = (Option<u32>, Vec<(&'static str, Option<Change>)>);

impl Recurrent {
    /// A part of a block.
    pub(super) fn part(&self, part: &str) -> Option<Parts> {
        let one = |name, change| Some((None, vec![(name, change)]));
        let m = self.multipliers.as_ref();
        let [gate, down] = m.map_or([None, None], |m| m.feed_forward());
        match part {
            "norm.weight" => return one("attn_norm.weight", None),
            "pre_ff_layernorm.weight" => return one("ffn_norm.weight", None),
            "feed_forward.up_proj.weight" => return one("ffn_up.weight", None),
            "feed_forward.gate_proj.weight" => return one("ffn_gate.weight", gate),
            "feed_forward.down_proj.weight" => return one("ffn_down.weight", down),
            _ => {}
        }
        if let Some((name, change)) = m.and_then(|m| m.attention(part)) {
            return one(name, change);
        }
        if self.family == RecurrentFolder::MiniMax {
            let name = minimax::part(part)?;
            return Some((None, name.into_iter().map(|name| (name, None)).collect()));
        }
        if let Some(parts) = granite::parts(part, self.experts) {
            return Some((None, parts));
        }
        if let Some((name, change)) = griffin::part(part) {
            return one(name, change);
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
        let (name, change) = self.mixer(mixer)?;
        one(name, change)
    }

    /// A part of a mixer: a state space, attention or a feed-forward part.
    fn mixer(&self, part: &str) -> Option<(&'static str, Option<Change>)> {
        let m = self.multipliers.as_ref();
        let of_channels = [RecurrentFolder::Mamba, RecurrentFolder::Jamba];
        let one_headed = !of_channels.contains(&self.family);
        Some(match part {
            "A_log" => ("ssm_a", Some(Change::Rates)),
            "D" if one_headed => ("ssm_d", Some(Change::Column)),
            "D" => ("ssm_d", None),
            "dt_bias" | "dt_proj.bias" => ("ssm_dt.bias", None),
            "dt_proj.weight" => ("ssm_dt.weight", None),
            "x_proj.weight" => ("ssm_x.weight", None),
            "dt_layernorm.weight" => ("ssm_dt_norm.weight", None),
            "b_layernorm.weight" => ("ssm_b_norm.weight", None),
            "c_layernorm.weight" => ("ssm_c_norm.weight", None),
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
        })
    }
}
