//! A family's random weights, and its file.

use super::*;
use std::collections::HashMap;

/// Tensors by name: dims innermost first, and numbers.
pub type Tensors = HashMap<String, (Vec<usize>, Vec<f32>)>;

struct Maker {
    state: u64,
    tensors: Tensors,
}

impl Maker {
    fn number(&mut self) -> f32 {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn add(&mut self, name: &str, dims: &[usize], center: f32, spread: f32) {
        let count: usize = dims.iter().product();
        let values = (0..count)
            .map(|_| center + spread * self.number())
            .collect();
        self.tensors
            .insert(name.to_string(), (dims.to_vec(), values));
    }

    fn matrix(&mut self, name: &str, inputs: usize, outputs: usize, bias: bool) {
        let spread = 1.7 / (inputs as f32).sqrt();
        self.add(&format!("{name}.weight"), &[inputs, outputs], 0.0, spread);
        if bias {
            self.add(&format!("{name}.bias"), &[outputs], 0.0, 0.3);
        }
    }

    fn norm(&mut self, name: &str, size: usize, bias: bool) {
        self.add(&format!("{name}.weight"), &[size], 1.0, 0.4);
        if bias {
            self.add(&format!("{name}.bias"), &[size], 0.0, 0.2);
        }
    }
}

pub fn tensors(f: &Family) -> Tensors {
    let mut m = Maker {
        state: f.name.len() as u64 + 17 * f.blocks as u64,
        tensors: Tensors::new(),
    };
    let bias = f.all_bias;
    m.add("token_embd.weight", &[WIDTH, VOCAB], 0.0, 1.0);
    m.norm("output_norm", WIDTH, bias);
    if !f.tied {
        m.matrix("output", WIDTH, VOCAB, false);
    }
    let (q, kv) = (HEADS * HEAD, KV_HEADS * HEAD);
    for block in 0..f.blocks {
        let n = |part: &str| format!("blk.{block}.{part}");
        if f.pre_norms {
            m.norm(&n("attn_norm"), WIDTH, bias);
            if !f.parallel || f.parallel_norm {
                m.norm(&n("ffn_norm"), WIDTH, bias);
            }
        }
        if f.post_norms {
            m.norm(&n("post_attention_norm"), WIDTH, bias);
            m.norm(&n("post_ffw_norm"), WIDTH, bias);
        }
        if f.fused_qkv {
            m.matrix(&n("attn_qkv"), WIDTH, q + 2 * kv, f.qkv_bias);
        } else {
            m.matrix(&n("attn_q"), WIDTH, q, f.qkv_bias);
            m.matrix(&n("attn_k"), WIDTH, kv, f.qkv_bias);
            m.matrix(&n("attn_v"), WIDTH, kv, f.qkv_bias);
        }
        match f.qk_norm {
            QkNorm::None => {}
            QkNorm::Head => {
                m.norm(&n("attn_q_norm"), HEAD, false);
                m.norm(&n("attn_k_norm"), HEAD, false);
            }
            QkNorm::Full => {
                m.norm(&n("attn_q_norm"), q, false);
                m.norm(&n("attn_k_norm"), kv, false);
            }
        }
        m.matrix(&n("attn_output"), q, WIDTH, bias);
        match f.mixture {
            None => {
                if f.packed_ffn {
                    m.matrix(&n("ffn_up"), WIDTH, 2 * HIDDEN, false);
                } else {
                    m.matrix(&n("ffn_up"), WIDTH, HIDDEN, bias);
                    if !f.plain_ffn {
                        m.matrix(&n("ffn_gate"), WIDTH, HIDDEN, false);
                    }
                }
                m.matrix(&n("ffn_down"), HIDDEN, WIDTH, bias);
            }
            Some(mixture) => {
                m.matrix(&n("ffn_gate_inp"), WIDTH, mixture.count, false);
                let up = [WIDTH, EXPERT_HIDDEN, mixture.count];
                let down = [EXPERT_HIDDEN, WIDTH, mixture.count];
                m.add(&n("ffn_gate_exps.weight"), &up, 0.0, 0.2);
                m.add(&n("ffn_up_exps.weight"), &up, 0.0, 0.2);
                m.add(&n("ffn_down_exps.weight"), &down, 0.0, 0.3);
                if mixture.shared {
                    m.add(&n("ffn_gate_inp_shexp.weight"), &[WIDTH], 0.0, 0.2);
                    m.matrix(&n("ffn_gate_shexp"), WIDTH, EXPERT_HIDDEN, false);
                    m.matrix(&n("ffn_up_shexp"), WIDTH, EXPERT_HIDDEN, false);
                    m.matrix(&n("ffn_down_shexp"), EXPERT_HIDDEN, WIDTH, false);
                }
            }
        }
    }
    m.tensors
}

/// The tensors of a head in a block that is there, which predicts further tokens.
pub fn head_tensors(tensors: &mut Tensors, block: usize, own_norm: bool) {
    let mut m = Maker {
        state: block as u64,
        tensors: std::mem::take(tensors),
    };
    let n = |part: &str| format!("blk.{block}.nextn.{part}");
    m.matrix(&n("eh_proj"), 2 * WIDTH, WIDTH, false);
    m.norm(&n("enorm"), WIDTH, false);
    m.norm(&n("hnorm"), WIDTH, false);
    if own_norm {
        m.norm(&n("shared_head_norm"), WIDTH, false);
    }
    *tensors = m.tensors;
}

/// The family's file, with the tokenizer of the tiny llama.
pub fn file(f: &Family, tensors: &Tensors) -> File {
    let mut file = File::default();
    for (key, value) in tiny_llama().metadata {
        if key.starts_with("tokenizer.") {
            file.metadata.push((key, value));
        }
    }
    file.set("general.architecture", common::string(f.name));
    let mut set = |key: &str, value| {
        file.set(&format!("{}.{key}", f.name), value);
    };
    for (key, value) in [
        ("block_count", f.blocks),
        ("context_length", 256),
        ("embedding_length", WIDTH),
        ("feed_forward_length", HIDDEN),
        ("attention.head_count", HEADS),
        ("attention.head_count_kv", KV_HEADS),
        ("attention.key_length", HEAD),
        ("attention.value_length", HEAD),
        ("rope.dimension_count", f.rotary),
    ] {
        set(key, common::u32(value as u32));
    }
    let epsilon = if f.layer_norm {
        "attention.layer_norm_epsilon"
    } else {
        "attention.layer_norm_rms_epsilon"
    };
    set(epsilon, common::f32(EPSILON));
    set("rope.freq_base", common::f32(BASE));
    if f.rope_factor != 1.0 {
        set("rope.scaling.type", common::string("linear"));
    }
    if let Some(mixture) = f.mixture {
        set("expert_count", common::u32(mixture.count as u32));
        set("expert_used_count", common::u32(mixture.used as u32));
        set(
            "expert_feed_forward_length",
            common::u32(EXPERT_HIDDEN as u32),
        );
    }
    for (key, value) in f.numbers {
        let whole = *key == "attention.sliding_window";
        let value = if whole {
            common::u32(*value as u32)
        } else {
            common::f32(*value)
        };
        set(key, value);
    }
    let mut names: Vec<&String> = tensors.keys().collect();
    names.sort();
    for name in names {
        let (dims, values) = &tensors[name];
        let dims: Vec<u64> = dims.iter().map(|d| *d as u64).collect();
        file.tensors
            .push(FileTensor::f32(name, &dims, |i| values[i as usize]));
    }
    file
}
