//! Families with a gated delta rule or short convolutions: from folders and GGUF files, in pieces beside each other, token
//! by token, and on from states that others have left.

use super::formats::{difference_of_both, difference_of_prompt, each};
use super::transformers::{tokens, tolerance, Case};
use llm_worker_rocm::engine::forward::{CacheOptions, Forward, Step, StepSequence, StepState};
use llm_worker_rocm::model::{open_weights, LoadOptions, ModelFile};
use serde_json::json;
use std::path::Path;
use worker::gguf::{Array, Format, GgufWriter, NewTensor, Value, Weights};

const CASES: [&str; 5] = ["qwen3-next", "qwen3_5", "qwen3_5-moe", "lfm2", "lfm2-moe"];

/// Logits of `sequences` of tokens, each with its first position, state, and first block of two.
fn run(forward: &mut dyn Forward, sequences: &[(&[u32], usize, StepState, u32)]) -> Vec<Vec<f32>> {
    let tokens: Vec<u32> = sequences.iter().flat_map(|s| s.0).copied().collect();
    let step = Step {
        outputs: (0..tokens.len() as u32).collect(),
        tokens,
        sequences: sequences
            .iter()
            .map(|(tokens, first, state, block)| StepSequence {
                id: u64::from(*block),
                blocks: vec![*block, block + 1],
                keys: first + tokens.len(),
                rows: tokens.len(),
                state: Some(state.clone()),
                ..StepSequence::default()
            })
            .collect(),
    };
    forward.forward(&step).unwrap().to_vec2().unwrap()
}

/// Of a text that comes in pieces beside another one; of some tokens the states are kept, and the text goes on from one
/// in their middle, as if the tokens behind had been taken back.
fn difference_in_pieces(case: &Case) -> f32 {
    let mut forward = case.load(&LoadOptions::default()).forward;
    let cache = CacheOptions {
        blocks: 6,
        block_size: 16,
        dtype: forward.kv_dtype().into(),
        context: 32,
        states: 6,
        window_blocks: 0,
    };
    forward.reserve(&cache).unwrap();
    let state = |from: Option<u32>, after: &[u32]| StepState {
        from,
        after: after.to_vec(),
    };
    let text = tokens();
    let other: Vec<u32> = text.iter().rev().copied().collect();
    let forward = &mut *forward;
    let mut rows = run(
        forward,
        &[
            (&other[..20], 0, state(None, &[5]), 2),
            (&text[..2], 0, state(None, &[0]), 0),
        ],
    )
    .split_off(20);
    // The last two tokens will be taken back.
    let drafts = [&text[2..6], &[7, 7]].concat();
    let found = run(
        forward,
        &[
            (&drafts, 2, state(Some(0), &[1, 2, 3, 0]), 0),
            (&other[20..21], 20, state(Some(5), &[5]), 2),
        ],
    );
    rows.extend(found.into_iter().take(4));
    let found = run(
        forward,
        &[
            (&other[21..], 21, state(Some(5), &[4]), 2),
            (&text[6..], 6, state(Some(2), &[3]), 0),
        ],
    );
    rows.extend(found.into_iter().skip(3));
    // The state that it went on from is still there.
    let again = run(forward, &[(&text[6..7], 6, state(Some(2), &[0]), 0)]);
    let largest = again[0].iter().fold(0f32, |a, b| a.max(b.abs()));
    let pairs = again[0].iter().zip(&rows[6]);
    let apart = pairs.fold(0f32, |a, (x, y)| a.max((x - y).abs()));
    assert!(apart <= tolerance() * largest, "{apart} of {largest}");
    case.difference_of(&rows)
}

#[test]
fn folders_and_files_compute_what_transformers_does() {
    each(&CASES, |case, folder| {
        difference_of_both(case, folder).max(difference_in_pieces(case))
    });
}

type Contents = (Vec<(String, Value)>, Vec<(NewTensor, Vec<u8>)>);

/// Writes the case as a GGUF file, with changes.
fn write_changed(case: &Case, path: &Path, change: impl FnOnce(&mut Contents)) {
    let folder = tempfile::tempdir().unwrap();
    case.write(folder.path());
    let weights: Box<dyn Weights> = open_weights(folder.path()).unwrap();
    let header = weights.header();
    let metadata = header.metadata().map(|(k, v)| (k.to_string(), v.clone()));
    let tensors = header.tensors().map(|(name, info)| {
        let new = NewTensor {
            name: name.to_string(),
            dims: info.dims.clone(),
            format: info.format,
        };
        (new, weights.bytes(name, info).to_vec())
    });
    let mut contents = (metadata.collect(), tensors.collect());
    change(&mut contents);
    let (metadata, tensors) = contents;
    let (infos, data): (Vec<NewTensor>, Vec<Vec<u8>>) = tensors.into_iter().unzip();
    let out = std::fs::File::create(path).unwrap();
    let mut writer = GgufWriter::new(out, &metadata, &infos).unwrap();
    data.iter().for_each(|data| writer.write(data).unwrap());
    writer.finish().unwrap();
}

fn set(metadata: &mut Vec<(String, Value)>, key: &str, value: Value) {
    metadata.retain(|(name, _)| name != key);
    metadata.push((key.to_string(), value));
}

#[test]
fn blocks_that_draft_tokens_are_left_alone() {
    let case = Case::read("qwen3_5");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let add = |drafting: bool| {
        write_changed(&case, &path, |(metadata, tensors)| {
            let recurrent = Array::Bool(vec![true, true, false, true, false]);
            let key = "qwen35.attention.recurrent_layers";
            set(metadata, key, Value::Array(recurrent));
            set(metadata, "qwen35.block_count", Value::U32(5));
            if drafting {
                set(metadata, "qwen35.nextn_predict_layers", Value::U32(1));
            }
            let extra = NewTensor {
                name: "blk.4.nextn.enorm.weight".to_string(),
                dims: vec![64],
                format: Format::F32,
            };
            tensors.push((extra, vec![0; 256]));
        });
    };
    add(true);
    let difference = difference_of_prompt(&case, &path);
    assert!(difference <= tolerance(), "{difference:e}");
    // Without the key it is a block as others are.
    add(false);
    let error = ModelFile::open(&path).err().unwrap().to_string();
    assert!(error.contains("blk.4."), "{error}");
}

#[test]
fn other_names_and_orders_in_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let case = Case::read("lfm2");
    write_changed(&case, &path, |(_, tensors)| {
        let norm = tensors
            .iter_mut()
            .find(|(t, _)| t.name == "output_norm.weight");
        norm.unwrap().0.name = "token_embd_norm.weight".to_string();
    });
    let found = difference_of_prompt(&case, &path);
    assert!(found <= tolerance(), "lfm2 {found:e}");
    // Qwen3-Next's first files have the matrix as folders do.
    let case = Case::read("qwen3-next");
    let original = case.tensors();
    write_changed(&case, &path, |(metadata, tensors)| {
        tensors.retain(|(tensor, _)| {
            let recurrent = ["blk.0.", "blk.2."];
            let recurrent = recurrent.iter().any(|block| tensor.name.starts_with(block));
            let parts = ["attn_qkv.weight", "attn_gate.weight"];
            !(recurrent && parts.iter().any(|part| tensor.name.ends_with(part)))
        });
        for (name, shape, data) in original {
            let Some(block) = name.strip_suffix(".linear_attn.in_proj_qkvz.weight") else {
                continue;
            };
            let tensor = NewTensor {
                name: block.replace("model.layers", "blk") + ".ssm_in.weight",
                dims: shape.iter().rev().map(|d| *d as u64).collect(),
                format: Format::F32,
            };
            tensors.push((tensor, data));
        }
        // They have no list of blocks, either.
        metadata.retain(|(key, _)| key != "qwen3next.attention.recurrent_layers");
        let interval = "qwen3next.full_attention_interval";
        set(metadata, interval, Value::U32(2));
    });
    let found = difference_of_prompt(&case, &path);
    assert!(found <= tolerance(), "qwen3-next {found:e}");
}

/// A model that also sees: the language part has a prefix and a configuration of its own, all experts lie in one tensor,
/// and heads that draft and what looks at images are left alone.
#[test]
fn the_language_part_of_a_model_that_sees_is_read() {
    let case = Case::read("qwen3_5-moe");
    let mut text = case.json["config"].clone();
    let config = text.as_object_mut().unwrap();
    config.remove("architectures");
    let folder = tempfile::tempdir().unwrap();
    let mut stacks = std::collections::BTreeMap::<String, Vec<u8>>::new();
    let mut tensors = Vec::new();
    for (name, shape, data) in case.tensors() {
        let name = name.replace("model.", "model.language_model.");
        match name.split_once(".mlp.experts.") {
            Some((block, part)) => {
                let (expert, matrix) = part.split_once('.').unwrap();
                // Gates before what they multiply, expert by expert.
                let (stack, order) = match matrix {
                    "down_proj.weight" => ("down_proj", 0),
                    "gate_proj.weight" => ("gate_up_proj", 0),
                    _ => ("gate_up_proj", 1),
                };
                let key = format!("{block}.mlp.experts.{stack}/{expert}/{order}");
                stacks.insert(key, data);
            }
            None => tensors.push((name, shape, data)),
        }
    }
    while let Some((key, _)) = stacks.first_key_value() {
        let stack = key.split('/').next().unwrap().to_string();
        let parts = stacks.extract_if(.., |key, _| key.starts_with(&format!("{stack}/")));
        let data: Vec<u8> = parts.flat_map(|(_, data)| data).collect();
        let shape = match stack.ends_with("gate_up_proj") {
            true => vec![6, 48, 64],
            false => vec![6, 64, 24],
        };
        tensors.push((stack, shape, data));
    }
    for name in ["mtp.fc.weight", "model.visual.patch_embed.proj.weight"] {
        tensors.push((name.to_string(), vec![2, 2], vec![0; 16]));
    }
    let other = Case {
        json: json!({
            "config": {
                "architectures": ["Qwen3_5MoeForConditionalGeneration"],
                "model_type": "qwen3_5_moe",
                "text_config": text,
                "tie_word_embeddings": false,
            },
        }),
    };
    other.write_tensors(folder.path(), safetensors::Dtype::F32, &tensors);
    let found = difference_of_prompt(&case, folder.path());
    assert!(found <= tolerance(), "{found:e}");
}

#[test]
fn what_these_families_do_not_have_is_refused_by_name() {
    let refusal = |name: &str, key: &str, value: serde_json::Value| {
        let mut case = Case::read(name);
        case.json["config"][key] = value;
        let folder = tempfile::tempdir().unwrap();
        case.write(folder.path());
        let error = ModelFile::open(folder.path()).err().unwrap();
        assert_eq!(error.exit_code(), 2, "{error}");
        assert!(error.to_string().contains(key), "{error}");
    };
    refusal("lfm2", "layer_types", json!(["conv"]));
    refusal("lfm2", "conv_bias", json!(true));
    refusal("qwen3_5", "attention_bias", json!(true));
    refusal("qwen3_5", "linear_num_value_heads", json!(3));
    let case = Case::read("lfm2");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    for (key, value) in [
        ("lfm2.attention.head_count", 0),
        ("lfm2.shortconv.l_cache", u32::MAX),
    ] {
        write_changed(&case, &path, |(metadata, _)| {
            set(metadata, key, Value::U32(value));
        });
        let error = ModelFile::open(&path).err().unwrap();
        assert!(error.to_string().contains(key), "{error}");
    }
}
