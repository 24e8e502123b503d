//! Older families from folders and from the GGUF files that `quantize` writes of them, against Hugging Face
//! transformers.

use super::formats::{difference_of_both, each};
use super::transformers::{tolerance, Case};
use llm_worker_rocm::model::ModelFile;
use serde_json::{json, Value as Json};

#[test]
fn folders_and_files_compute_what_transformers_does() {
    let names = [
        "falcon",
        "falcon-40b",
        "falcon-11b",
        "stablelm",
        "stablelm-12b",
        "olmo",
        "bigcode",
        "gpt2",
        "neox",
        "neox-serial",
        "helium",
        "exaone",
        "internlm3",
    ];
    each(&names, difference_of_both);
}

/// Llama's numbers under InternLM 2's names: queries, keys and values in one, by heads of keys and values.
#[test]
fn internlm_2_computes_what_llama_does() {
    let mut case = Case::read("llama");
    let (heads, kv_heads, size) = (4, 2, 16);
    let mut tensors = case.tensors();
    let mut packed = Vec::new();
    let row = 4 * 64;
    for layer in 0..2 {
        let mut take = |part: &str| {
            let name = format!("model.layers.{layer}.self_attn.{part}_proj.weight");
            let at = tensors.iter().position(|(known, ..)| *known == name);
            tensors.remove(at.unwrap()).2
        };
        let [query, key, value] = ["q", "k", "v"].map(&mut take);
        let rows = |data: &[u8], head: usize, count: usize| {
            data[head * size * row..(head + count) * size * row].to_vec()
        };
        let each = heads / kv_heads;
        let group = |head: usize| {
            let of_group = rows(&query, head * each, each);
            [of_group, rows(&key, head, 1), rows(&value, head, 1)].concat()
        };
        let data = (0..kv_heads).flat_map(group).collect();
        let name = format!("model.layers.{layer}.attention.wqkv.weight");
        packed.push((name, vec![(heads + 2 * kv_heads) * size, 64], data));
    }
    for (name, ..) in &mut tensors {
        for (from, to) in [
            ("model.embed_tokens", "model.tok_embeddings"),
            ("lm_head", "output"),
            ("self_attn.o_proj", "attention.wo"),
            ("mlp.gate_proj", "feed_forward.w1"),
            ("mlp.up_proj", "feed_forward.w3"),
            ("mlp.down_proj", "feed_forward.w2"),
            ("input_layernorm", "attention_norm"),
            ("post_attention_layernorm", "ffn_norm"),
        ] {
            *name = name.replace(from, to);
        }
    }
    tensors.extend(packed);
    case.json["config"]["architectures"] = json!(["InternLM2ForCausalLM"]);
    let folder = tempfile::tempdir().unwrap();
    case.write_tensors(folder.path(), safetensors::Dtype::F32, &tensors);
    let difference = difference_of_both(&case, folder.path());
    println!("internlm2: {difference:.1e}");
    assert!(difference <= tolerance(), "{difference:e}");
}

/// Granite 3 with shared experts, but for its factors, under Ling 1's names.
#[test]
fn ling_1_computes_what_granite_does() {
    let mut case = Case::read("ling");
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for (name, shape, data) in case.tensors() {
        let Some((layer, part)) = name
            .strip_prefix("model.layers.")
            .and_then(|rest| rest.split_once('.'))
        else {
            tensors.push((name.replace("embed_tokens", "word_embeddings"), shape, data));
            continue;
        };
        let named = |part: &str| format!("model.layers.{layer}.{part}.weight");
        let halves = |part: &str, shape: &[usize], data: &[u8]| {
            let half = data.len() / 2;
            let shape = vec![shape[0] / 2, shape[1]];
            [("gate_proj", &data[..half]), ("up_proj", &data[half..])].map(|(matrix, data)| {
                (
                    named(&format!("{part}.{matrix}")),
                    shape.clone(),
                    data.to_vec(),
                )
            })
        };
        match part {
            "block_sparse_moe.input_linear.weight" => {
                for (expert, data) in data.chunks_exact(data.len() / shape[0]).enumerate() {
                    let part = format!("mlp.experts.{expert}");
                    tensors.extend(halves(&part, &shape[1..], data));
                }
            }
            "block_sparse_moe.output_linear.weight" => {
                for (expert, data) in data.chunks_exact(data.len() / shape[0]).enumerate() {
                    let name = named(&format!("mlp.experts.{expert}.down_proj"));
                    tensors.push((name, shape[1..].to_vec(), data.to_vec()));
                }
            }
            "shared_mlp.input_linear.weight" => {
                tensors.extend(halves("mlp.shared_experts", &shape, &data));
            }
            "shared_mlp.output_linear.weight" => {
                tensors.push((named("mlp.shared_experts.down_proj"), shape, data));
            }
            "block_sparse_moe.router.layer.weight" => {
                tensors.push((named("mlp.gate"), shape, data))
            }
            "self_attn.o_proj.weight" => tensors.push((named("attention.dense"), shape, data)),
            // By name: keys come first, then queries and values.
            "self_attn.k_proj.weight" => {
                tensors.push((named("attention.query_key_value"), shape, data));
            }
            "self_attn.q_proj.weight" | "self_attn.v_proj.weight" => {
                let name = named("attention.query_key_value");
                let (_, rows, all) = tensors.iter_mut().find(|(n, ..)| *n == name).unwrap();
                rows[0] += shape[0];
                let at = if part.contains("q_proj") {
                    0
                } else {
                    all.len()
                };
                all.splice(at..at, data);
            }
            _ => tensors.push((name, shape, data)),
        }
    }
    let config = case.json["config"].as_object_mut().unwrap();
    for (key, value) in [
        ("architectures", json!(["BailingMoeForCausalLM"])),
        ("num_experts", json!(8)),
        ("num_shared_experts", json!(2)),
        ("moe_intermediate_size", json!(24)),
        ("first_k_dense_replace", json!(0)),
        ("norm_topk_prob", json!(true)),
        ("num_local_experts", Json::Null),
    ] {
        config.insert(key.to_string(), value);
    }
    let folder = tempfile::tempdir().unwrap();
    case.write_tensors(folder.path(), safetensors::Dtype::F32, &tensors);
    let difference = difference_of_both(&case, folder.path());
    println!("ling: {difference:.1e}");
    assert!(difference <= tolerance(), "{difference:e}");
}

#[test]
fn what_these_families_do_not_have_is_refused_by_name() {
    let refusal = |name: &str, key: &str, value: Json| {
        let mut case = Case::read(name);
        case.json["config"][key] = value;
        let folder = tempfile::tempdir().unwrap();
        case.write(folder.path());
        let error = ModelFile::open(folder.path())
            .err()
            .expect("it must be refused");
        assert_eq!(error.exit_code(), 2, "{error}");
        let why = match key {
            "activation" => "hidden_act",
            "n_positions" => "position_embd.weight",
            key => key,
        };
        assert!(error.to_string().contains(why), "{error}");
    };
    refusal("falcon", "alibi", json!(true));
    refusal("falcon", "multi_query", json!(false));
    refusal("falcon", "parallel_attn", json!(false));
    refusal("falcon", "activation", json!("relu"));
    refusal("bigcode", "multi_query", json!(false));
    refusal("bigcode", "n_positions", json!(64));
    refusal("gpt2", "scale_attn_by_inverse_layer_idx", json!(true));
    refusal("neox", "hidden_act", json!("gelu_fast"));
    refusal("helium", "num_attention_heads", json!(0));
    refusal("helium", "hidden_size", json!(u64::MAX / 2));
    refusal("phimoe", "router_jitter_noise", json!(0.1));
    refusal("minimax", "mlp_alpha_factor", json!(2.0));
    refusal("minimax", "postnorm", json!(false));
}
