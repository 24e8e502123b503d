//! RWKV 7 from a GGUF file as llama.cpp's converter writes it, and from a folder as fla-hub has it, against a plain
//! forward pass in f64: transformers has no code of it.

use super::common::{self, tiny_llama, File, Tensor as FileTensor};
use super::formats::{load as load_path, write_gguf};
use super::recurrent::{in_steps, rows, BLOCK};
use super::transformers::{tokens, tolerance};
use super::{load, nmse, NMSE_LIMIT, VOCAB};
use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::model::{open_weights, ModelFile};
use safetensors::tensor::TensorView;
use safetensors::Dtype;
use serde_json::json;
use std::collections::HashMap;
use std::path::Path;

const WIDTH: usize = 128;
const HEAD: usize = 64;
const HIDDEN: usize = 96;
const RANK: usize = 8;
const BLOCKS: usize = 2;
const EPSILON: f64 = 1e-5;

type Row = Vec<f64>;

/// A model's tensors by name, in the order of GGUF: rows of inputs.
struct Model {
    tensors: HashMap<String, Row>,
    file: File,
}

impl Model {
    /// One of so many tokens.
    fn new(vocabulary: usize) -> Self {
        let mut model = Self {
            tensors: HashMap::new(),
            file: File::default(),
        };
        for (key, value) in tiny_llama().metadata {
            if key.starts_with("tokenizer.") {
                model.file.metadata.push((key, value));
            }
        }
        model
            .file
            .set("general.architecture", common::string("rwkv7"))
            .set(
                "rwkv7.attention.layer_norm_epsilon",
                common::f32(EPSILON as f32),
            );
        for (key, value) in [
            ("block_count", BLOCKS),
            ("context_length", 1 << 20),
            ("embedding_length", WIDTH),
            ("feed_forward_length", HIDDEN),
            ("attention.head_count", 0),
            ("wkv.head_size", HEAD),
            ("attention.decay_lora_rank", RANK),
            ("attention.iclr_lora_rank", RANK),
            ("attention.value_residual_mix_lora_rank", RANK),
            ("attention.gate_lora_rank", RANK),
        ] {
            model
                .file
                .set(&format!("rwkv7.{key}"), common::u32(value as u32));
        }
        let wide = 1.0 / (WIDTH as f64).sqrt();
        model.add("token_embd.weight", &[WIDTH, vocabulary], 0.0, 1.0);
        model.add("output.weight", &[WIDTH, vocabulary], 0.0, 2.0 * wide);
        for norm in ["token_embd_norm", "output_norm"] {
            model.norm(norm);
        }
        for block in 0..BLOCKS {
            let name = |part: &str| format!("blk.{block}.{part}");
            for norm in ["attn_norm", "attn_norm_2", "time_mix_ln"] {
                model.norm(&name(norm));
            }
            model.add(
                &name("time_mix_lerp_fused.weight"),
                &[WIDTH, 1, 1, 6],
                0.5,
                0.5,
            );
            model.add(&name("channel_mix_lerp_k.weight"), &[WIDTH, 1, 1], 0.5, 0.5);
            for (vector, spread) in [
                ("w0", 3.0),
                ("a0", 1.0),
                ("v0", 1.0),
                ("k_k", 0.8),
                ("k_a", 1.0),
                ("r_k", 0.3),
            ] {
                model.add(
                    &name(&format!("time_mix_{vector}.weight")),
                    &[WIDTH],
                    0.2,
                    spread,
                );
            }
            for letter in ["w", "a", "v", "g"] {
                let part = |at| name(&format!("time_mix_{letter}{at}.weight"));
                model.add(&part(1), &[WIDTH, RANK], 0.0, 2.0 * wide);
                model.add(&part(2), &[RANK, WIDTH], 0.0, 0.7);
            }
            for matrix in ["key", "value", "receptance", "output"] {
                let name = name(&format!("time_mix_{matrix}.weight"));
                model.add(&name, &[WIDTH, WIDTH], 0.0, 1.7 * wide);
            }
            model.add(
                &name("channel_mix_key.weight"),
                &[WIDTH, HIDDEN],
                0.0,
                1.7 * wide,
            );
            model.add(
                &name("channel_mix_value.weight"),
                &[HIDDEN, WIDTH],
                0.0,
                0.1,
            );
        }
        model
    }

    fn add(&mut self, name: &str, dims: &[usize], center: f64, spread: f64) {
        let mut state = name.bytes().fold(7u64, |state, byte| {
            state.wrapping_mul(31).wrapping_add(byte.into())
        });
        let count: usize = dims.iter().product();
        let values: Vec<f32> = (0..count)
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let uniform = (state >> 40) as f64 / f64::from(1 << 23) - 1.0;
                (center + spread * uniform) as f32
            })
            .collect();
        let dims: Vec<u64> = dims.iter().map(|d| *d as u64).collect();
        let tensor = FileTensor::f32(name, &dims, |i| values[i as usize]);
        self.file.tensors.push(tensor);
        let values = values.into_iter().map(f64::from).collect();
        self.tensors.insert(name.to_string(), values);
    }

    fn norm(&mut self, name: &str) {
        self.add(&format!("{name}.weight"), &[WIDTH], 1.0, 0.4);
        self.add(&format!("{name}.bias"), &[WIDTH], 0.0, 0.2);
    }

    fn linear(&self, x: &[f64], name: &str) -> Row {
        let rows = self.tensors[&format!("{name}.weight")].chunks_exact(x.len());
        rows.map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum())
            .collect()
    }

    fn normed(&self, x: &[f64], name: &str) -> Row {
        let weight = &self.tensors[&format!("{name}.weight")];
        let bias = &self.tensors[&format!("{name}.bias")];
        let normed = normalised(x, EPSILON).into_iter();
        normed
            .zip(weight.iter().zip(bias))
            .map(|(x, (w, b))| x * w + b)
            .collect()
    }

    /// The textbook's pass, a token at a time.
    fn logits(&self, tokens: &[u32]) -> Vec<Row> {
        let zeros = || vec![vec![0.0; WIDTH]; BLOCKS];
        let (mut before, mut before_channel) = (zeros(), zeros());
        let mut states = vec![vec![0.0; WIDTH * HEAD]; BLOCKS];
        let mut all = Vec::new();
        for token in tokens {
            let at = *token as usize * WIDTH;
            let table = &self.tensors["token_embd.weight"];
            let mut x = self.normed(&table[at..at + WIDTH], "token_embd_norm");
            let mut first_values = None;
            for block in 0..BLOCKS {
                let name = |part: &str| format!("blk.{block}.{part}");
                let h = self.normed(&x, &name("attn_norm"));
                let y = self.time_mix(
                    block,
                    &h,
                    &before[block],
                    &mut states[block],
                    &mut first_values,
                );
                before[block] = h;
                x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
                let h = self.normed(&x, &name("attn_norm_2"));
                let lerp = &self.tensors[&name("channel_mix_lerp_k.weight")];
                let mixed = lerped(&h, &before_channel[block], lerp);
                before_channel[block] = h;
                let hidden = self.linear(&mixed, &name("channel_mix_key"));
                let hidden: Row = hidden.into_iter().map(|x| x.max(0.0).powi(2)).collect();
                let y = self.linear(&hidden, &name("channel_mix_value"));
                x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
            }
            all.push(self.linear(&self.normed(&x, "output_norm"), "output"));
        }
        all
    }

    fn time_mix(
        &self,
        block: usize,
        x: &[f64],
        before: &[f64],
        state: &mut [f64],
        first_values: &mut Option<Row>,
    ) -> Row {
        let name = |part: &str| format!("blk.{block}.time_mix_{part}");
        let vector = |part: &str| &self.tensors[&name(&format!("{part}.weight"))];
        let lerps = vector("lerp_fused");
        let mixed = |at: usize| lerped(x, before, &lerps[at * WIDTH..(at + 1) * WIDTH]);
        let low_rank = |letter: &str, x: &[f64], between: fn(f64) -> f64| -> Row {
            let few = self.linear(x, &name(&format!("{letter}1")));
            let few: Row = few.into_iter().map(between).collect();
            self.linear(&few, &name(&format!("{letter}2")))
        };
        let plus =
            |x: Row, bias: &[f64]| -> Row { x.iter().zip(bias).map(|(x, b)| x + b).collect() };
        let r = self.linear(&mixed(0), &name("receptance"));
        let w = plus(low_rank("w", &mixed(1), f64::tanh), vector("w0"));
        let w: Row = w
            .into_iter()
            .map(|x| (-(-0.5f64).exp() * sigmoid(x)).exp())
            .collect();
        let k = self.linear(&mixed(2), &name("key"));
        let mut v = self.linear(&mixed(3), &name("value"));
        match first_values {
            None => *first_values = Some(v.clone()),
            Some(first) => {
                let share = plus(low_rank("v", &mixed(3), |x| x), vector("v0"));
                for (v, (first, share)) in v.iter_mut().zip(first.iter().zip(share)) {
                    *v += (*first - *v) * sigmoid(share);
                }
            }
        }
        let a = plus(low_rank("a", &mixed(4), |x| x), vector("a0"));
        let a: Row = a.into_iter().map(sigmoid).collect();
        let g = low_rank("g", &mixed(5), sigmoid);
        let (k_k, k_a, r_k) = (vector("k_k"), vector("k_a"), vector("r_k"));
        let mut out = vec![0.0; WIDTH];
        for head in 0..WIDTH / HEAD {
            let range = head * HEAD..(head + 1) * HEAD;
            let removed: Row = range.clone().map(|i| k[i] * k_k[i]).collect();
            let length = removed.iter().map(|x| x * x).sum::<f64>().sqrt().max(1e-12);
            let removed: Row = removed.iter().map(|x| x / length).collect();
            let key: Row = range
                .clone()
                .map(|i| k[i] * (1.0 + (a[i] - 1.0) * k_a[i]))
                .collect();
            let (r, w, v, a) = (
                &r[range.clone()],
                &w[range.clone()],
                &v[range.clone()],
                &a[range.clone()],
            );
            let mut y = vec![0.0; HEAD];
            for i in 0..HEAD {
                let line = &mut state[(head * HEAD + i) * HEAD..][..HEAD];
                let dot: f64 = line.iter().zip(&removed).map(|(s, r)| -s * r).sum();
                for j in 0..HEAD {
                    line[j] = line[j] * w[j] + dot * removed[j] * a[j] + v[i] * key[j];
                }
                y[i] = line.iter().zip(r).map(|(s, r)| s * r).sum();
            }
            let direct: f64 = (0..HEAD)
                .map(|j| r[j] * key[j] * r_k[head * HEAD + j])
                .sum();
            let (weight, bias) = (vector("ln"), &self.tensors[&name("ln.bias")]);
            for (i, y) in normalised(&y, 64e-5).into_iter().enumerate() {
                let at = head * HEAD + i;
                out[at] = (y * weight[at] + bias[at] + direct * v[i]) * g[at];
            }
        }
        self.linear(&out, &name("output"))
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn lerped(x: &[f64], before: &[f64], share: &[f64]) -> Row {
    let pairs = x.iter().zip(before).zip(share);
    pairs
        .map(|((x, before), share)| x + (before - x) * share)
        .collect()
}

fn normalised(x: &[f64], epsilon: f64) -> Row {
    let n = x.len() as f64;
    let mean = x.iter().sum::<f64>() / n;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    x.iter()
        .map(|x| (x - mean) / (variance + epsilon).sqrt())
        .collect()
}

#[test]
fn rwkv_computes_what_its_reference_does() {
    let model = Model::new(VOCAB);
    let want = model.logits(&tokens());
    let got = rows(
        &Scorer::new(load(&model.file))
            .all_logits(&tokens())
            .unwrap(),
    );
    let error = nmse(&got, &want);
    println!("rwkv7: {error:.1e}");
    assert!(error <= NMSE_LIMIT, "{error:e}");
    let got = in_steps(load(&model.file).forward);
    assert!(got.len() > BLOCK, "{}", got.len());
    let error = nmse(&got, &want);
    println!("rwkv7 in steps: {error:.1e}");
    assert!(
        error <= NMSE_LIMIT.max(f64::from(tolerance()).powi(2)),
        "{error:e}"
    );
    let mut file = model.file;
    file.set("rwkv7.wkv.head_size", common::u32(32));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    file.write(&path);
    let error = ModelFile::open(&path).err().unwrap();
    assert!(error.to_string().contains("wkv.head_size"), "{error}");
}

/// A tensor's name and shape in a folder, by its name in a block in GGUF; none for what is in several, or in none.
fn in_folder(part: &str) -> Option<(String, Vec<usize>)> {
    if let Some((norm, kind)) = part.split_once('.') {
        let named = match norm {
            "attn_norm" => "attn_norm",
            "attn_norm_2" => "ffn_norm",
            "time_mix_ln" => "attn.g_norm",
            _ => "",
        };
        if !named.is_empty() {
            return Some((format!("{named}.{kind}"), vec![WIDTH]));
        }
    }
    let part = part.strip_suffix(".weight")?;
    let (name, shape) = match part {
        "channel_mix_lerp_k" => ("ffn.x_k", vec![WIDTH]),
        "channel_mix_key" => ("ffn.key.weight", vec![HIDDEN, WIDTH]),
        "channel_mix_value" => ("ffn.value.weight", vec![WIDTH, HIDDEN]),
        "time_mix_k_k" => ("attn.k_k", vec![WIDTH]),
        "time_mix_k_a" => ("attn.k_a", vec![WIDTH]),
        "time_mix_r_k" => ("attn.r_k", vec![WIDTH / HEAD, HEAD]),
        "time_mix_receptance" => ("attn.r_proj.weight", vec![WIDTH, WIDTH]),
        "time_mix_key" => ("attn.k_proj.weight", vec![WIDTH, WIDTH]),
        "time_mix_value" => ("attn.v_proj.weight", vec![WIDTH, WIDTH]),
        "time_mix_output" => ("attn.o_proj.weight", vec![WIDTH, WIDTH]),
        _ => {
            let narrow = part.strip_prefix("time_mix_")?;
            let (letter, number) = narrow.split_at(1);
            let (layer, shape) = match number {
                "0" => ("2.bias", vec![WIDTH]),
                "1" => ("0.weight", vec![RANK, WIDTH]),
                "2" => ("2.weight", vec![WIDTH, RANK]),
                _ => return None,
            };
            return Some((format!("attn.{letter}_lora.lora.{layer}"), shape));
        }
    };
    Some((name.to_string(), shape))
}

/// Writes the model as fla-hub's folders are.
fn write_folder(model: &Model, vocabulary: usize, folder: &Path) {
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    let bytes = |values: &[f64]| -> Vec<u8> {
        let values = values.iter().map(|value| (*value as f32).to_le_bytes());
        values.flatten().collect()
    };
    for (name, values) in &model.tensors {
        let block = name.strip_prefix("blk.").and_then(|n| n.split_once('.'));
        let Some((block, part)) = block else {
            let (name, shape) = match name.as_str() {
                "token_embd.weight" => ("model.embeddings.weight", vec![vocabulary, WIDTH]),
                "output.weight" => ("lm_head.weight", vec![vocabulary, WIDTH]),
                "token_embd_norm.weight" => ("model.layers.0.pre_norm.weight", vec![WIDTH]),
                "token_embd_norm.bias" => ("model.layers.0.pre_norm.bias", vec![WIDTH]),
                "output_norm.weight" => ("model.norm.weight", vec![WIDTH]),
                _ => ("model.norm.bias", vec![WIDTH]),
            };
            tensors.push((name.to_string(), shape, bytes(values)));
            continue;
        };
        let named = |part: &str| format!("model.layers.{block}.{part}");
        if part == "time_mix_lerp_fused.weight" {
            for (letter, values) in "rwkvag".chars().zip(values.chunks_exact(WIDTH)) {
                let name = named(&format!("attn.x_{letter}"));
                tensors.push((name, vec![1, 1, WIDTH], bytes(values)));
            }
        } else if let Some((part, shape)) = in_folder(part) {
            // The first block has none for values.
            if block != "0" || !part.starts_with("attn.v_lora") {
                tensors.push((named(&part), shape, bytes(values)));
            }
        }
    }
    let views = tensors.iter().map(|(name, shape, data)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), data);
        (name, view.unwrap())
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    let config = json!({
        "architectures": ["RWKV7ForCausalLM"],
        "model_type": "rwkv7",
        "hidden_size": WIDTH,
        "head_dim": HEAD,
        "hidden_act": "sqrelu",
        "intermediate_size": HIDDEN,
        "num_hidden_layers": BLOCKS,
        "norm_eps": EPSILON,
        "norm_first": true,
        "vocab_size": vocabulary,
        "tie_word_embeddings": false,
        "decay_low_rank_dim": RANK,
        "a_low_rank_dim": RANK,
        "v_low_rank_dim": RANK,
        "gate_low_rank_dim": RANK,
        "bos_token_id": 0,
        "eos_token_id": 0,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut lines: String = (0..=255u32)
        .map(|byte| format!("{} b'\\x{byte:02x}' 1\n", byte + 1))
        .collect();
    lines.push_str("257 '\\n\\n' 2\n258 ' \u{e9}t\u{e9}' 6\n");
    std::fs::write(folder.join("rwkv_vocab_v20230424.txt"), lines).unwrap();
}

#[test]
fn a_folder_of_rwkv_computes_what_its_reference_does() {
    const VOCABULARY: usize = 264;
    let model = Model::new(VOCABULARY);
    let want = model.logits(&tokens());
    let folder = tempfile::tempdir().unwrap();
    write_folder(&model, VOCABULARY, folder.path());
    let loaded = load_path(folder.path());
    let spelled = loaded
        .tokenizer
        .encode("a \u{e9}t\u{e9}\n\n", false)
        .unwrap();
    assert_eq!(spelled, [u32::from(b'a') + 1, 258, 257]);
    assert_eq!(loaded.tokenizer.decode(&spelled[..2]), "a \u{e9}t\u{e9}");
    assert!(loaded.end_tokens.contains(&0) && loaded.end_tokens.contains(&257));
    let path = folder.path().join("model.gguf");
    write_gguf(&*open_weights(folder.path()).unwrap(), &path);
    let of_folder = rows(&Scorer::new(loaded).all_logits(&tokens()).unwrap());
    for got in [of_folder, in_steps(load_path(&path).forward)] {
        let error = nmse(&got, &want);
        println!("rwkv7 of a folder: {error:.1e}");
        let limit = NMSE_LIMIT.max(f64::from(tolerance()).powi(2));
        assert!(error <= limit, "{error:e}");
    }
    std::fs::remove_file(folder.path().join("rwkv_vocab_v20230424.txt")).unwrap();
    let error = ModelFile::open(folder.path()).err().unwrap().to_string();
    assert!(error.contains("rwkv_vocab_v20230424.txt"), "{error}");
}
