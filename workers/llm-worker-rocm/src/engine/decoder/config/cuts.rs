//! What a shard has of each tensor.

use super::{DecoderConfig, MixerKind};
use crate::engine::shard::{key_heads, BlockDivision, Cut, Part, ShardPlan};
use std::collections::HashMap;
use std::ops::Range;
use worker::gguf::Gguf;

impl DecoderConfig {
    /// What a shard has of the tensors that it does not have whole.
    pub(super) fn cuts(
        &self,
        header: &Gguf,
        plan: &ShardPlan,
        shard: usize,
    ) -> HashMap<String, Cut> {
        let mut cuts = Cuts {
            header,
            shard,
            cuts: HashMap::new(),
        };
        for (block, division) in plan.blocks.iter().enumerate() {
            let name = |part: &str| format!("blk.{block}.{part}");
            let attends = matches!(self.mixer(block), MixerKind::Attention | MixerKind::Both);
            if let (Some(heads), true, true) = (&plan.heads, attends, division.mixer) {
                match &self.latent {
                    Some(_) => self.latent_cuts(&mut cuts, &heads[shard], &name),
                    None => self.attention_cuts(&mut cuts, &heads[shard], (block, division), &name),
                }
            }
            if let Some(hidden) = &division.hidden {
                cuts.feed_forward(&hidden[shard], self.of_block(block).hidden, &name);
            }
            if let (Some(experts), Some(shape)) = (&plan.experts, &self.experts) {
                cuts.experts(&experts[shard], shape.hidden, &name);
                cuts.shared(division.shared.as_ref().map(|all| &all[shard]), &name);
            }
        }
        if let Some(rows) = &plan.vocabulary {
            cuts.output(&rows[shard]);
            for block in self.blocks..plan.blocks.len() {
                let own = format!("blk.{block}.nextn.shared_head_head");
                cuts.rows(&own, std::slice::from_ref(&rows[shard]));
            }
        }
        cuts.cuts
    }

    fn attention_cuts(
        &self,
        cuts: &mut Cuts,
        heads: &Range<usize>,
        (block, division): (usize, &BlockDivision),
        name: &dyn Fn(&str) -> String,
    ) {
        let own = self.of_block(block);
        let keys = key_heads(heads, self.heads / own.kv_heads);
        let of = |heads: &Range<usize>, size: usize| heads.start * size..heads.end * size;
        let behind = |range: Range<usize>, rows: usize| range.start + rows..range.end + rows;
        let queries = match self.traits.gated_attention {
            true => of(heads, 2 * own.head_dim),
            false => of(heads, own.head_dim),
        };
        let (key, value) = (of(&keys, own.head_dim), of(&keys, own.v_head_dim));
        let (all_queries, all_keys) = (self.heads * own.head_dim, own.kv_heads * own.head_dim);
        let together = [
            queries.clone(),
            behind(key.clone(), all_queries),
            behind(value.clone(), all_queries + all_keys),
        ];
        if division.normed.is_some() {
            for (part, elements) in [("attn_q_norm", &queries), ("attn_k_norm", &key)] {
                let part = name(&format!("{part}.weight"));
                cuts.part(&part, 0, std::slice::from_ref(elements));
            }
        }
        cuts.rows(&name("attn_qkv"), &together);
        cuts.rows(&name("attn_q"), &[queries]);
        cuts.rows(&name("attn_k"), &[key]);
        cuts.rows(&name("attn_v"), &[value]);
        cuts.columns(&name("attn_output"), of(heads, own.v_head_dim));
        cuts.part(&name("attn_sinks.weight"), 0, std::slice::from_ref(heads));
        if self.traits.norms_of_heads {
            for (part, heads) in [("attn_q_norm", heads), ("attn_k_norm", &keys)] {
                let part = name(&format!("{part}.weight"));
                cuts.part(&part, 1, std::slice::from_ref(heads));
            }
        }
    }

    fn latent_cuts(&self, cuts: &mut Cuts, heads: &Range<usize>, name: &dyn Fn(&str) -> String) {
        let Some(shape) = &self.latent else { return };
        let of = |size: usize| heads.start * size..heads.end * size;
        let queries = match shape.query_rank {
            None => "attn_q",
            Some(_) => "attn_q_b",
        };
        cuts.rows(&name(queries), &[of(shape.head())]);
        cuts.rows(&name("attn_kv_b"), &[of(shape.plain + shape.value)]);
        for part in ["attn_k_b.weight", "attn_v_b.weight"] {
            cuts.part(&name(part), 2, std::slice::from_ref(heads));
        }
        cuts.columns(&name("attn_output"), of(shape.value));
    }
}

struct Cuts<'a> {
    header: &'a Gguf,
    shard: usize,
    cuts: HashMap<String, Cut>,
}

impl Cuts<'_> {
    /// Elements along a dimension of a tensor, if the file has it.
    fn part(&mut self, name: &str, dim: usize, ranges: &[Range<usize>]) {
        self.part_of(name, name, dim, ranges);
    }

    fn part_of(&mut self, name: &str, of: &str, dim: usize, ranges: &[Range<usize>]) {
        if self.header.tensor(of).is_some() {
            let part = Part {
                of: of.to_string(),
                dim,
                ranges: ranges.to_vec(),
            };
            self.cuts.insert(name.to_string(), Cut::Part(part));
        }
    }

    /// Some of a matrix's outputs, with their biases.
    fn rows(&mut self, name: &str, ranges: &[Range<usize>]) {
        self.part(&format!("{name}.weight"), 1, ranges);
        self.part(&format!("{name}.bias"), 0, ranges);
    }

    /// Some of a matrix's inputs. Its bias is added once.
    fn columns(&mut self, name: &str, range: Range<usize>) {
        self.part(&format!("{name}.weight"), 0, &[range]);
        self.once(&format!("{name}.bias"), Cut::Nothing);
    }

    /// What the first shard has whole, and the others in this way.
    fn once(&mut self, name: &str, others: Cut) {
        if self.shard > 0 && self.header.tensor(name).is_some() {
            self.cuts.insert(name.to_string(), others);
        }
    }

    fn feed_forward(&mut self, own: &Range<usize>, hidden: usize, name: &dyn Fn(&str) -> String) {
        let up = format!("{}.weight", name("ffn_up"));
        let rows = self.header.tensor(&up).map_or(0, |up| up.dims[1] as usize);
        // Gates may stand before what they multiply.
        match rows == 2 * hidden {
            true => self.rows(&name("ffn_up"), &both(own, hidden)),
            false => self.rows(&name("ffn_up"), std::slice::from_ref(own)),
        }
        self.rows(&name("ffn_gate"), std::slice::from_ref(own));
        self.columns(&name("ffn_down"), own.clone());
    }

    fn experts(&mut self, own: &Range<usize>, hidden: usize, name: &dyn Fn(&str) -> String) {
        for part in ["ffn_gate_exps", "ffn_up_exps"] {
            self.rows(&name(part), std::slice::from_ref(own));
        }
        self.rows(&name("ffn_gate_up_exps"), &both(own, hidden));
        self.part(&name("ffn_down_exps.weight"), 0, std::slice::from_ref(own));
        self.once(&name("ffn_down_exps.bias"), Cut::Zeros);
        // It works on the sum of the experts.
        self.once(&name("ffn_latent_up.bias"), Cut::Nothing);
    }

    /// The expert of all tokens, which the first shard has alone where it cannot be divided.
    fn shared(&mut self, own: Option<&Range<usize>>, name: &dyn Fn(&str) -> String) {
        let both = ["ffn_gate_shexp", "ffn_up_shexp"];
        match own {
            Some(own) => {
                for part in both {
                    self.rows(&name(part), std::slice::from_ref(own));
                }
                self.columns(&name("ffn_down_shexp"), own.clone());
            }
            None => {
                let all = both
                    .into_iter()
                    .chain(["ffn_down_shexp", "ffn_gate_inp_shexp"]);
                for part in all {
                    self.once(&name(&format!("{part}.weight")), Cut::Nothing);
                }
            }
        }
    }

    /// Some rows of the output matrix, which may be the table of embeddings.
    fn output(&mut self, rows: &Range<usize>) {
        let of = match self.header.tensor("output.weight").is_some() {
            true => "output.weight",
            false => "token_embd.weight",
        };
        self.part_of("output.weight", of, 1, std::slice::from_ref(rows));
        self.part("output.bias", 0, std::slice::from_ref(rows));
    }
}

/// Some elements of two halves behind each other.
fn both(own: &Range<usize>, half: usize) -> [Range<usize>; 2] {
    [own.clone(), own.start + half..own.end + half]
}
