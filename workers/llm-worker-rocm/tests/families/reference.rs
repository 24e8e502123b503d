//! A plain forward pass in f64.

use super::weights::Tensors;
use super::*;
use candle_core::cpu::erf::erf_f64;

/// The textbook's forward pass, a token at a time and without a cache's tricks.
pub struct Reference<'a> {
    pub f: &'a Family,
    pub t: &'a Tensors,
}

pub type Rows = Vec<Vec<f64>>;

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
        if self.f.exact_gelu {
            0.5 * x * (1.0 + erf_f64(x / std::f64::consts::SQRT_2))
        } else if self.f.gelu {
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

    fn embeddings(&self, tokens: &[u32]) -> Rows {
        let table = self.values("token_embd.weight");
        let embedding = |t: &u32| {
            let row = &table[*t as usize * WIDTH..(*t as usize + 1) * WIDTH];
            row.iter().map(|x| x * self.f.embedding_scale).collect()
        };
        tokens.iter().map(embedding).collect()
    }

    /// The stream behind a block.
    fn block(&self, x: Rows, block: usize) -> Rows {
        let f = self.f;
        let n = |part: &str| format!("blk.{block}.{part}");
        let input = self.norm(&x, &n("attn_norm"));
        let attended = self.attention(&input, block);
        let attended = self.norm(&attended, &n("post_attention_norm"));
        let before = x.clone();
        let x = plus(&x, &attended, f.residual_scale);
        let input = match (f.parallel, f.parallel_norm) {
            (false, _) => self.norm(&x, &n("ffn_norm")),
            (true, true) => self.norm(&before, &n("ffn_norm")),
            (true, false) => input,
        };
        let fed: Rows = input.iter().map(|x| self.feed_forward(x, block)).collect();
        let fed = self.norm(&fed, &n("post_ffw_norm"));
        plus(&x, &fed, f.residual_scale)
    }

    /// The stream behind the last norm.
    fn hidden(&self, tokens: &[u32]) -> Rows {
        let x = self.embeddings(tokens);
        let x = (0..self.f.blocks).fold(x, |x, block| self.block(x, block));
        self.norm(&x, "output_norm")
    }

    pub fn logits(&self, tokens: &[u32]) -> Rows {
        self.outputs(&self.hidden(tokens))
    }

    /// What the head in the block behind the last one predicts: for each token but the first the one behind it, from the
    /// hidden state before; then the one behind `further`, from the head's own last hidden state.
    pub fn predictions(&self, tokens: &[u32], further: u32) -> Rows {
        let block = self.f.blocks;
        let n = |part: &str| format!("blk.{block}.nextn.{part}");
        let join = |hidden: &[f64], embedding: &[f64]| {
            let both = [
                self.norm_by(embedding, &n("enorm"), false),
                self.norm_by(hidden, &n("hnorm"), false),
            ];
            self.linear(&both.concat(), &n("eh_proj"))
        };
        let pairs = self.hidden(tokens).into_iter();
        let pairs = pairs.zip(self.embeddings(&tokens[1..]));
        let mut joined: Rows = pairs.map(|(h, e)| join(&h, &e)).collect();
        let norm = match self.has(&n("shared_head_norm.weight")) {
            true => n("shared_head_norm"),
            false => "output_norm".to_string(),
        };
        let first = self.norm(&self.block(joined.clone(), block), &norm);
        joined.push(join(
            &first[first.len() - 1],
            &self.embeddings(&[further])[0],
        ));
        self.outputs(&self.norm(&self.block(joined, block), &norm))
    }

    fn outputs(&self, hidden: &Rows) -> Rows {
        let f = self.f;
        let head = if f.tied { "token_embd" } else { "output" };
        hidden
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
