//! Every architecture of the decoder on random weights, against a plain forward pass in f64.
//!
//! `CANDLE_ROCM_TEST_DEVICE` names the device (`cpu` if unset).

#[path = "../../worker/tests/common/mod.rs"]
mod common;

use candle_core::{Device, Tensor};
use common::{tiny_llama, File, Tensor as FileTensor};
use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::model::{LoadOptions, ModelFile};
use std::collections::HashMap;
use worker::device::DeviceRequest;

const WIDTH: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = 32;
const HIDDEN: usize = 96;
const EXPERT_HIDDEN: usize = 32;
const VOCAB: usize = 33;
const EPSILON: f32 = 1e-5;
const BASE: f32 = 10_000.0;
const WINDOW: usize = 7;
const NMSE_LIMIT: f64 = 1e-6;

#[derive(Clone, Copy, PartialEq)]
enum QkNorm {
    None,
    Head,
    Full,
}

#[derive(Clone, Copy)]
struct Mixture {
    count: usize,
    used: usize,
    sums_to_one: bool,
    /// A shared expert, with a gate of its own.
    shared: bool,
}

/// What the reference and the file of a family are made from.
#[derive(Clone)]
struct Family {
    name: &'static str,
    blocks: usize,
    interleaved: bool,
    rotary: usize,
    layer_norm: bool,
    gelu: bool,
    qkv_bias: bool,
    /// Norms, outputs and the feed-forward part have biases, too.
    all_bias: bool,
    fused_qkv: bool,
    packed_ffn: bool,
    plain_ffn: bool,
    qk_norm: QkNorm,
    pre_norms: bool,
    post_norms: bool,
    parallel: bool,
    /// The feed-forward part has a norm of its own, if it is beside attention.
    parallel_norm: bool,
    window: fn(usize) -> bool,
    local_base: Option<f32>,
    positions: fn(usize) -> bool,
    mixture: Option<Mixture>,
    tied: bool,
    embedding_scale: f64,
    residual_scale: f64,
    score_scale: f64,
    score_cap: Option<f64>,
    logit_cap: Option<f64>,
    logit_factor: f64,
    /// Divides each rotary frequency.
    rope_factor: f64,
    numbers: &'static [(&'static str, f32)],
}

fn llama() -> Family {
    Family {
        name: "llama",
        blocks: 2,
        interleaved: true,
        rotary: HEAD,
        layer_norm: false,
        gelu: false,
        qkv_bias: false,
        all_bias: false,
        fused_qkv: false,
        packed_ffn: false,
        plain_ffn: false,
        qk_norm: QkNorm::None,
        pre_norms: true,
        post_norms: false,
        parallel: false,
        parallel_norm: false,
        window: |_| false,
        local_base: None,
        positions: |_| true,
        mixture: None,
        tied: false,
        embedding_scale: 1.0,
        residual_scale: 1.0,
        score_scale: 1.0 / (HEAD as f64).sqrt(),
        score_cap: None,
        logit_cap: None,
        logit_factor: 1.0,
        rope_factor: 1.0,
        numbers: &[],
    }
}

fn families() -> Vec<Family> {
    let halves = || Family {
        interleaved: false,
        ..llama()
    };
    let gemma = || Family {
        gelu: true,
        tied: true,
        embedding_scale: (WIDTH as f64).sqrt(),
        ..halves()
    };
    let neox = || Family {
        layer_norm: true,
        gelu: true,
        qkv_bias: true,
        all_bias: true,
        plain_ffn: true,
        ..halves()
    };
    let four_of_two = Mixture {
        count: 4,
        used: 2,
        sums_to_one: true,
        shared: false,
    };
    vec![
        llama(),
        Family {
            name: "llama",
            tied: true,
            rope_factor: 4.0,
            numbers: &[("rope.scaling.factor", 4.0)],
            ..llama()
        },
        // Mixtral.
        Family {
            mixture: Some(four_of_two),
            ..llama()
        },
        Family {
            name: "granite",
            embedding_scale: 12.0,
            residual_scale: 0.22,
            score_scale: 0.015625,
            logit_factor: 1.0 / 8.0,
            numbers: &[
                ("embedding_scale", 12.0),
                ("residual_scale", 0.22),
                ("attention.scale", 0.015625),
                ("logit_scale", 8.0),
            ],
            ..llama()
        },
        Family {
            name: "smollm3",
            blocks: 4,
            positions: |block| block != 3,
            ..llama()
        },
        Family {
            name: "glm4",
            rotary: HEAD / 2,
            qkv_bias: true,
            packed_ffn: true,
            post_norms: true,
            ..llama()
        },
        Family {
            name: "chatglm",
            rotary: HEAD / 2,
            qkv_bias: true,
            fused_qkv: true,
            packed_ffn: true,
            ..llama()
        },
        Family {
            name: "qwen2",
            qkv_bias: true,
            ..halves()
        },
        Family {
            name: "qwen3",
            qk_norm: QkNorm::Head,
            ..halves()
        },
        Family {
            name: "qwen2moe",
            qkv_bias: true,
            mixture: Some(Mixture {
                sums_to_one: false,
                shared: true,
                ..four_of_two
            }),
            ..halves()
        },
        Family {
            name: "qwen3moe",
            qk_norm: QkNorm::Head,
            mixture: Some(four_of_two),
            ..halves()
        },
        Family {
            name: "phi3",
            fused_qkv: true,
            packed_ffn: true,
            window: |_| true,
            numbers: &[("attention.sliding_window", WINDOW as f32)],
            ..halves()
        },
        Family {
            name: "olmo2",
            qk_norm: QkNorm::Full,
            pre_norms: false,
            post_norms: true,
            ..halves()
        },
        Family {
            name: "olmoe",
            qk_norm: QkNorm::Full,
            mixture: Some(Mixture {
                sums_to_one: false,
                ..four_of_two
            }),
            ..halves()
        },
        gemma_named("gemma", gemma()),
        Family {
            name: "gemma2",
            blocks: 3,
            post_norms: true,
            window: |block| block % 2 == 0,
            score_cap: Some(5.0),
            logit_cap: Some(3.0),
            numbers: &[
                ("attention.sliding_window", WINDOW as f32),
                ("attn_logit_softcapping", 5.0),
                ("final_logit_softcapping", 3.0),
            ],
            ..gemma()
        },
        Family {
            name: "gemma3",
            blocks: 7,
            post_norms: true,
            qk_norm: QkNorm::Head,
            window: |block| block % 6 != 5,
            local_base: Some(10_000.0),
            rope_factor: 8.0,
            numbers: &[
                ("attention.sliding_window", WINDOW as f32),
                ("rope.freq_base", 1_000_000.0),
                ("rope.scaling.factor", 8.0),
            ],
            ..gemma()
        },
        Family {
            name: "command-r",
            layer_norm: true,
            parallel: true,
            tied: true,
            logit_factor: 0.0625,
            numbers: &[("logit_scale", 0.0625)],
            ..llama()
        },
        Family {
            name: "cohere2",
            blocks: 4,
            layer_norm: true,
            parallel: true,
            tied: true,
            window: |block| block != 3,
            positions: |block| block != 3,
            logit_factor: 0.25,
            numbers: &[
                ("logit_scale", 0.25),
                ("attention.sliding_window", WINDOW as f32),
            ],
            ..llama()
        },
        Family {
            name: "starcoder2",
            ..neox()
        },
        Family {
            name: "phi2",
            rotary: HEAD / 2,
            parallel: true,
            ..neox()
        },
        Family {
            name: "gptneox",
            rotary: HEAD / 2,
            fused_qkv: true,
            parallel: true,
            parallel_norm: true,
            ..neox()
        },
    ]
}

fn gemma_named(name: &'static str, family: Family) -> Family {
    Family { name, ..family }
}

/// Tensors by name: dims innermost first, and numbers.
type Tensors = HashMap<String, (Vec<usize>, Vec<f32>)>;

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

fn tensors(f: &Family) -> Tensors {
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

/// The family's file, with the tokenizer of the tiny llama.
fn file(f: &Family, tensors: &Tensors) -> File {
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

/// The textbook's forward pass, a token at a time and without a cache's tricks.
struct Reference<'a> {
    f: &'a Family,
    t: &'a Tensors,
}

type Rows = Vec<Vec<f64>>;

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    0.5 * x * (1.0 + inner.tanh())
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let max = x.iter().copied().fold(f64::MIN, f64::max);
    let exps: Vec<f64> = x.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.into_iter().map(|x| x / sum).collect()
}

fn plus(a: &Rows, b: &Rows, factor: f64) -> Rows {
    a.iter()
        .zip(b)
        .map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + factor * b).collect())
        .collect()
}

impl Reference<'_> {
    fn has(&self, name: &str) -> bool {
        self.t.contains_key(name)
    }

    fn values(&self, name: &str) -> Vec<f64> {
        self.t[name].1.iter().map(|x| f64::from(*x)).collect()
    }

    /// The product with outputs from `start` on.
    fn part(&self, x: &[f64], name: &str, start: usize, count: usize) -> Vec<f64> {
        let weight = &self.t[&format!("{name}.weight")].1;
        let bias = format!("{name}.bias");
        (start..start + count)
            .map(|o| {
                let row = &weight[o * x.len()..(o + 1) * x.len()];
                let sum: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
                sum + if self.has(&bias) {
                    f64::from(self.t[&bias].1[o])
                } else {
                    0.0
                }
            })
            .collect()
    }

    fn linear(&self, x: &[f64], name: &str) -> Vec<f64> {
        let outputs = self.t[&format!("{name}.weight")].0[1];
        self.part(x, name, 0, outputs)
    }

    fn norm_by(&self, x: &[f64], name: &str, layer: bool) -> Vec<f64> {
        let n = x.len() as f64;
        let mean = if layer {
            x.iter().sum::<f64>() / n
        } else {
            0.0
        };
        let square = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let scale = 1.0 / (square + f64::from(EPSILON)).sqrt();
        let weight = self.values(&format!("{name}.weight"));
        let bias = format!("{name}.bias");
        let bias = if self.has(&bias) {
            self.values(&bias)
        } else {
            vec![0.0; x.len()]
        };
        (0..x.len())
            .map(|i| (x[i] - mean) * scale * weight[i] + bias[i])
            .collect()
    }

    fn norm(&self, x: &Rows, name: &str) -> Rows {
        if !self.has(&format!("{name}.weight")) {
            return x.clone();
        }
        x.iter()
            .map(|x| self.norm_by(x, name, self.f.layer_norm))
            .collect()
    }

    fn rotate(&self, x: &mut [f64], position: usize, block: usize) {
        let f = self.f;
        if !(f.positions)(block) {
            return;
        }
        let local = f.local_base.filter(|_| (f.window)(block));
        let global = f
            .numbers
            .iter()
            .find(|n| n.0 == "rope.freq_base")
            .map_or(BASE, |n| n.1);
        let base = f64::from(local.unwrap_or(global));
        let factor = if local.is_some() { 1.0 } else { f.rope_factor };
        for pair in 0..f.rotary / 2 {
            let angle = position as f64 * base.powf(-2.0 * pair as f64 / f.rotary as f64) / factor;
            let (i, j) = if f.interleaved {
                (2 * pair, 2 * pair + 1)
            } else {
                (pair, pair + f.rotary / 2)
            };
            let (a, b) = (x[i], x[j]);
            x[i] = a * angle.cos() - b * angle.sin();
            x[j] = a * angle.sin() + b * angle.cos();
        }
    }

    fn attention(&self, x: &Rows, block: usize) -> Rows {
        let f = self.f;
        let n = |part: &str| format!("blk.{block}.{part}");
        let (q_size, kv_size) = (HEADS * HEAD, KV_HEADS * HEAD);
        let project = |part: usize| -> Rows {
            let (start, count) =
                [(0, q_size), (q_size, kv_size), (q_size + kv_size, kv_size)][part];
            let name = n(["attn_q", "attn_k", "attn_v"][part]);
            x.iter()
                .map(|x| match f.fused_qkv {
                    true => self.part(x, &n("attn_qkv"), start, count),
                    false => self.linear(x, &name),
                })
                .collect()
        };
        let turned = |rows: Rows, norm: &str| -> Rows {
            let turn = |(position, row): (usize, Vec<f64>)| {
                let mut row = match f.qk_norm {
                    QkNorm::Full => self.norm_by(&row, &n(norm), false),
                    _ => row,
                };
                for head in row.chunks_mut(HEAD) {
                    if f.qk_norm == QkNorm::Head {
                        head.copy_from_slice(&self.norm_by(head, &n(norm), false));
                    }
                    self.rotate(head, position, block);
                }
                row
            };
            rows.into_iter().enumerate().map(turn).collect()
        };
        let q = turned(project(0), "attn_q_norm");
        let k = turned(project(1), "attn_k_norm");
        let v = project(2);
        (0..x.len())
            .map(|row| {
                let first = match (f.window)(block) {
                    true => (row + 1).saturating_sub(WINDOW),
                    false => 0,
                };
                let mut out = Vec::new();
                for head in 0..HEADS {
                    let kv = head / (HEADS / KV_HEADS) * HEAD;
                    let q = &q[row][head * HEAD..(head + 1) * HEAD];
                    let scores: Vec<f64> = (first..=row)
                        .map(|j| {
                            let k = &k[j][kv..kv + HEAD];
                            let dot: f64 = q.iter().zip(k).map(|(a, b)| a * b).sum();
                            let score = dot * f.score_scale;
                            f.score_cap.map_or(score, |cap| cap * (score / cap).tanh())
                        })
                        .collect();
                    let weights = softmax(&scores);
                    for i in 0..HEAD {
                        let sum = weights.iter().enumerate();
                        out.push(sum.map(|(j, w)| w * v[first + j][kv + i]).sum());
                    }
                }
                self.linear(&out, &n("attn_output"))
            })
            .collect()
    }

    fn act(&self, x: f64) -> f64 {
        if self.f.gelu {
            gelu(x)
        } else {
            silu(x)
        }
    }

    fn gated(&self, gate: &[f64], up: &[f64]) -> Vec<f64> {
        gate.iter().zip(up).map(|(g, u)| self.act(*g) * u).collect()
    }

    fn feed_forward(&self, x: &[f64], block: usize) -> Vec<f64> {
        let f = self.f;
        let n = |part: &str| format!("blk.{block}.{part}");
        let Some(mixture) = f.mixture else {
            let hidden = if f.packed_ffn {
                let gate = self.part(x, &n("ffn_up"), 0, HIDDEN);
                self.gated(&gate, &self.part(x, &n("ffn_up"), HIDDEN, HIDDEN))
            } else if f.plain_ffn {
                let up = self.linear(x, &n("ffn_up"));
                up.into_iter().map(|x| self.act(x)).collect()
            } else {
                let gate = self.linear(x, &n("ffn_gate"));
                self.gated(&gate, &self.linear(x, &n("ffn_up")))
            };
            return self.linear(&hidden, &n("ffn_down"));
        };
        let probabilities = softmax(&self.linear(x, &n("ffn_gate_inp")));
        let mut order: Vec<usize> = (0..mixture.count).collect();
        order.sort_by(|a, b| probabilities[*b].total_cmp(&probabilities[*a]));
        order.truncate(mixture.used);
        let sum: f64 = order.iter().map(|e| probabilities[*e]).sum();
        let mut out = vec![0.0; WIDTH];
        for expert in order {
            let weight = probabilities[expert] / if mixture.sums_to_one { sum } else { 1.0 };
            let part = |name: &str, x: &[f64], outputs: usize| {
                self.part(x, &n(name), expert * outputs, outputs)
            };
            let gate = part("ffn_gate_exps", x, EXPERT_HIDDEN);
            let hidden = self.gated(&gate, &part("ffn_up_exps", x, EXPERT_HIDDEN));
            let y = part("ffn_down_exps", &hidden, WIDTH);
            out.iter_mut().zip(y).for_each(|(o, y)| *o += weight * y);
        }
        if mixture.shared {
            let gate = self.values(&n("ffn_gate_inp_shexp.weight"));
            let dot: f64 = gate.iter().zip(x).map(|(g, x)| g * x).sum();
            let share = 1.0 / (1.0 + (-dot).exp());
            let gate = self.linear(x, &n("ffn_gate_shexp"));
            let hidden = self.gated(&gate, &self.linear(x, &n("ffn_up_shexp")));
            let y = self.linear(&hidden, &n("ffn_down_shexp"));
            out.iter_mut().zip(y).for_each(|(o, y)| *o += share * y);
        }
        out
    }

    fn logits(&self, tokens: &[u32]) -> Rows {
        let f = self.f;
        let table = self.values("token_embd.weight");
        let mut x: Rows = tokens
            .iter()
            .map(|t| {
                let row = &table[*t as usize * WIDTH..(*t as usize + 1) * WIDTH];
                row.iter().map(|x| x * f.embedding_scale).collect()
            })
            .collect();
        for block in 0..f.blocks {
            let n = |part: &str| format!("blk.{block}.{part}");
            let input = self.norm(&x, &n("attn_norm"));
            let attended = self.attention(&input, block);
            let attended = self.norm(&attended, &n("post_attention_norm"));
            let before = x.clone();
            x = plus(&x, &attended, f.residual_scale);
            let input = match (f.parallel, f.parallel_norm) {
                (false, _) => self.norm(&x, &n("ffn_norm")),
                (true, true) => self.norm(&before, &n("ffn_norm")),
                (true, false) => input,
            };
            let fed: Rows = input.iter().map(|x| self.feed_forward(x, block)).collect();
            let fed = self.norm(&fed, &n("post_ffw_norm"));
            x = plus(&x, &fed, f.residual_scale);
        }
        let head = if f.tied { "token_embd" } else { "output" };
        self.norm(&x, "output_norm")
            .iter()
            .map(|x| {
                let logits = self.linear(x, head);
                let capped = logits.into_iter().map(|l| {
                    let l = l * f.logit_factor;
                    f.logit_cap.map_or(l, |cap| cap * (l / cap).tanh())
                });
                capped.collect()
            })
            .collect()
    }
}

fn device() -> Device {
    let device = std::env::var("CANDLE_ROCM_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_string());
    let selected = device.parse::<DeviceRequest>().unwrap().select().unwrap();
    assert!(selected.name.starts_with(&device), "{}", selected.name);
    selected.device
}

fn scorer(file: &File) -> Scorer {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    file.write(&path);
    let opened = ModelFile::open(&path).unwrap();
    Scorer::new(opened.load(&device(), &LoadOptions::default()).unwrap())
}

fn rows(logits: &Tensor) -> Vec<Vec<f32>> {
    logits.to_vec2().unwrap()
}

fn tokens() -> Vec<u32> {
    (0..23).map(|i| 3 + i * 7 % 29).collect()
}

fn nmse(got: &[Vec<f32>], want: &Rows) -> f64 {
    let pairs = || got.iter().flatten().zip(want.iter().flatten());
    let error: f64 = pairs().map(|(a, b)| (f64::from(*a) - b).powi(2)).sum();
    error / pairs().map(|(_, b)| b * b).sum::<f64>()
}

#[test]
fn every_family_computes_what_its_reference_does() {
    let tokens = tokens();
    for f in families() {
        let tensors = tensors(&f);
        let want = Reference { f: &f, t: &tensors }.logits(&tokens);
        let mut scorer = scorer(&file(&f, &tensors));
        let got = rows(&scorer.all_logits(&tokens).unwrap());
        let error = nmse(&got, &want);
        println!("{}: {error:.1e}", f.name);
        assert!(error <= NMSE_LIMIT, "{}: {error:e}", f.name);
    }
}

/// Halves stay halves; on a GPU, activations are halves, too.
#[test]
fn half_weights_compute_what_their_values_do() {
    let tokens = tokens();
    for (type_code, limit) in [(1, 1e-5), (30, 1e-3)] {
        for f in families()
            .into_iter()
            .filter(|f| ["llama", "qwen3moe", "gemma2"].contains(&f.name))
        {
            let mut tensors = tensors(&f);
            let mut file = file(&f, &tensors);
            for tensor in file.tensors.iter_mut().filter(|t| t.dims.len() > 1) {
                let (_, values) = tensors.get_mut(&tensor.name).unwrap();
                tensor.type_code = type_code;
                tensor.data.clear();
                for value in values {
                    if type_code == 1 {
                        let half = half::f16::from_f32(*value);
                        tensor.data.extend(half.to_le_bytes());
                        *value = half.to_f32();
                    } else {
                        let half = half::bf16::from_f32(*value);
                        tensor.data.extend(half.to_le_bytes());
                        *value = half.to_f32();
                    }
                }
            }
            let want = Reference { f: &f, t: &tensors }.logits(&tokens);
            let got = rows(&scorer(&file).all_logits(&tokens).unwrap());
            let error = nmse(&got, &want);
            println!("{} of type {type_code}: {error:.1e}", f.name);
            assert!(error <= limit, "{} of type {type_code}: {error:e}", f.name);
        }
    }
}

#[test]
fn what_a_family_does_not_have_is_refused_by_name() {
    let refusal = |change: &dyn Fn(&mut File)| {
        let f = llama();
        let mut file = file(&f, &tensors(&f));
        change(&mut file);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        file.write(&path);
        let error = ModelFile::open(&path).err().expect("it must be refused");
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    };
    let check = |message: String, why: &str| assert!(message.contains(why), "{message}");
    check(
        refusal(&|f| {
            f.set("general.architecture", common::string("mamba"));
        }),
        "mamba",
    );
    check(
        refusal(&|f| {
            let sinks = FileTensor::f32("blk.0.attn_sinks.weight", &[4], |_| 0.0);
            f.tensors.push(sinks);
        }),
        "blk.0.attn_sinks.weight",
    );
    check(
        refusal(&|f| {
            f.set("llama.rope.scaling.type", common::string("dynamic"));
        }),
        "dynamic",
    );
    check(
        refusal(&|f| f.tensors.retain(|t| t.name != "blk.1.ffn_norm.weight")),
        "blk.1.ffn_norm.weight",
    );
    check(
        refusal(&|f| {
            f.set("llama.attention.head_count_kv", common::u32(3));
        }),
        "cannot be shared evenly",
    );
    check(
        refusal(&|f| {
            f.set("llama.expert_count", common::u32(8));
        }),
        "expert_used_count",
    );
}
