//! Heads that predict further tokens, against the plain forward pass and transformers.

use super::formats::write_gguf;
use super::mixtures::write_as_ling;
use super::transformers::{tokens as case_tokens, tolerance, Case};
use super::weights::head_tensors;
use super::*;
use llm_worker_rocm::engine::forward::{Forward, HeadOutput, HeadStep, HiddenRows};
use llm_worker_rocm::model::open_weights;
use std::path::Path;

fn with_heads(path: &Path) -> Box<dyn Forward> {
    let options = LoadOptions {
        head: true,
        ..LoadOptions::default()
    };
    let opened = ModelFile::open(path).unwrap();
    load_file(opened, &options).unwrap().forward
}

fn forward(file: &File) -> Box<dyn Forward> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    file.write(&path);
    with_heads(&path)
}

/// The logits of a pass, and whether it was a graph.
fn logits(forward: &mut dyn Forward, step: &HeadStep) -> (Tensor, bool) {
    let predicted = forward.predict(step, None).unwrap();
    match predicted.output {
        HeadOutput::Logits(logits) => (logits, predicted.graph),
        HeadOutput::Tokens { .. } => panic!("tokens that nobody asked for"),
    }
}

#[test]
fn heads_predict_what_their_reference_does() {
    let with_experts = families().into_iter().find(|f| f.name == "qwen3moe");
    for (own_norm, family) in [(false, llama()), (true, with_experts.unwrap())] {
        // The last block becomes the head's.
        let blocks = family.blocks - 1;
        let mut tensors = tensors(&family);
        head_tensors(&mut tensors, blocks, own_norm);
        let mut file = file(&family, &tensors);
        let key = format!("{}.nextn_predict_layers", family.name);
        file.set(&key, common::u32(1));
        let f = Family { blocks, ..family };
        let (tokens, further) = (tokens(), 9);
        let want = Reference { f: &f, t: &tensors }.predictions(&tokens, further);
        let mut forward = forward(&file);
        assert_eq!(forward.heads(), 1);
        let cache = CacheOptions {
            blocks: 4,
            block_size: 16,
            dtype: KvDType::F32.into(),
            context: 64,
            states: 0,
            window_blocks: 0,
        };
        forward.reserve(&cache).unwrap();
        let step = |tokens: &[u32], keys: usize, outputs: Vec<u32>| Step {
            tokens: tokens.to_vec(),
            sequences: vec![StepSequence {
                id: 1,
                blocks: vec![2, 1],
                keys,
                rows: tokens.len(),
                ..StepSequence::default()
            }],
            outputs,
        };
        let count = tokens.len();
        forward.forward(&step(&tokens, count, Vec::new())).unwrap();
        let mut got = Vec::new();
        // In two pieces, as prompts come.
        for (start, end) in [(0, 9), (9, count - 1)] {
            let positions = start as u32..end as u32;
            let head = HeadStep {
                step: step(
                    &tokens[start + 1..end + 1],
                    end,
                    (0..positions.len() as u32).collect(),
                ),
                hidden: HiddenRows::OfStep(positions.collect()),
                ..HeadStep::default()
            };
            got.extend(rows(&logits(&mut *forward, &head).0));
        }
        let last = got.len() as u32 - 10;
        let head = HeadStep {
            step: step(&[further], count, vec![0]),
            hidden: HiddenRows::OfHead(vec![last]),
            ..HeadStep::default()
        };
        got.extend(rows(&logits(&mut *forward, &head).0));
        let error = nmse(&got, &want);
        println!("{}: {error:.1e}", f.name);
        assert_eq!(got.len(), want.len());
        assert!(error <= NMSE_LIMIT, "{}: {error:e}", f.name);
    }
}

fn reserve(forward: &mut dyn Forward) {
    let cache = CacheOptions {
        blocks: 4,
        block_size: 16,
        dtype: forward.kv_dtype().into(),
        context: 32,
        states: 1,
        window_blocks: 0,
    };
    forward.reserve(&cache).unwrap();
}

/// A step of the only sequence that reads `tokens` at the positions from `start` on.
fn step_at(tokens: &[u32], start: usize) -> Step {
    let rows = tokens.len();
    Step {
        tokens: tokens.to_vec(),
        sequences: vec![StepSequence {
            id: 1,
            blocks: vec![2, 1],
            keys: start + rows,
            rows,
            state: Some(StepState::of_only(start)),
            ..StepSequence::default()
        }],
        outputs: (0..rows as u32).collect(),
    }
}

/// Logits of all heads behind all tokens that come at once.
fn at_once(path: &Path) -> Vec<Vec<Vec<f32>>> {
    let mut forward = with_heads(path);
    reserve(&mut *forward);
    let all = case_tokens();
    forward.forward(&step_at(&all, 0)).unwrap();
    let heads = 0..forward.heads();
    heads
        .map(|head| {
            let tokens = &all[head + 1..];
            let rows = (0..tokens.len() as u32).collect();
            let step = HeadStep {
                head,
                step: step_at(tokens, 0),
                hidden: match head {
                    0 => HiddenRows::OfStep(rows),
                    _ => HiddenRows::OfHead(rows),
                },
                ..HeadStep::default()
            };
            logits(&mut *forward, &step).0.to_vec2().unwrap()
        })
        .collect()
}

/// The same of the first head, token by token; on a GPU with graphs or the launches that they stand for.
fn in_steps(path: &Path, graphs: GraphUse) -> Vec<Vec<f32>> {
    let mut forward = with_heads(path);
    reserve(&mut *forward);
    forward.set_graphs(graphs);
    let all = case_tokens();
    let mut count = 0;
    let mut rows: Vec<Vec<f32>> = Vec::new();
    for i in 0..all.len() - 1 {
        forward.decode(&step_at(&all[i..=i], i), None).unwrap();
        let step = HeadStep {
            step: step_at(&all[i + 1..=i + 1], i),
            hidden: HiddenRows::OfStep(vec![0]),
            ..HeadStep::default()
        };
        let (logits, graph) = logits(&mut *forward, &step);
        count += usize::from(graph);
        rows.extend(logits.to_vec2::<f32>().unwrap());
    }
    if device().is_rocm() && forward.heads() == 1 {
        let expected = match graphs {
            GraphUse::Off => 0,
            _ => rows.len() - 1,
        };
        assert_eq!(count, expected);
    }
    rows
}

fn difference(case: &Case, head: usize, found: &[Vec<f32>]) -> f32 {
    let own = Case {
        json: serde_json::json!({ "rows": case.json["rows"][head] }),
    };
    own.difference_of(found)
}

/// Folders with heads and the files that are written of them: of each head all rows at once, of the first one step by
/// step, too.
#[test]
fn heads_of_folders_predict_what_transformers_does() {
    let names = [
        "glm4-moe-head",
        "ling2-head",
        "glm4-moe-lite-head",
        "deepseek3-heads",
        "deepseek32-head",
        "glm-dsa-head",
        "qwen3-next-head",
        "qwen3_5-head",
        "qwen3_5-moe-head",
    ];
    let mut wrong = Vec::new();
    for name in names {
        let outcome = std::panic::catch_unwind(|| {
            let mut case = Case::read(name);
            let folder = tempfile::tempdir().unwrap();
            match name {
                "ling2-head" => write_as_ling(&mut case, folder.path()),
                _ => case.write(folder.path()),
            }
            let path = folder.path().join("model.gguf");
            write_gguf(&*open_weights(folder.path()).unwrap(), &path);
            let mut found = Vec::new();
            for path in [folder.path(), &path] {
                let heads = at_once(path);
                assert_eq!(heads.len(), case.json["rows"].as_array().unwrap().len());
                let each = heads.iter().enumerate();
                found.extend(each.map(|(head, rows)| difference(&case, head, rows)));
            }
            let steps = in_steps(&path, GraphUse::On);
            found.push(difference(&case, 0, &steps));
            if device().is_rocm() {
                let launched = in_steps(&path, GraphUse::Off);
                assert!(steps == launched, "graphs give what their launches give");
            }
            println!("{name}: {found:?}");
            found.into_iter().fold(0.0, f32::max)
        });
        let difference = outcome.unwrap_or(f32::INFINITY);
        if difference.is_nan() || difference > tolerance() {
            wrong.push(format!("{name} {difference:e}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Folders have what they announce, or nothing of it; matrices that are the model's are not loaded again.
#[test]
fn a_folder_may_lack_its_heads_or_have_copies_of_matrices() {
    let load_with = |case: &Case, copies: &[(&str, &str)]| {
        let folder = tempfile::tempdir().unwrap();
        let mut tensors = case.tensors();
        for (copy, of) in copies {
            let of = tensors.iter().find(|(name, ..)| name == of).unwrap();
            let (shape, data) = (of.1.clone(), of.2.clone());
            tensors.push((copy.to_string(), shape, data));
        }
        case.write_tensors(folder.path(), safetensors::Dtype::F32, &tensors);
        let options = LoadOptions {
            head: true,
            ..LoadOptions::default()
        };
        let bytes = std::cell::Cell::new(0);
        let count = |more: u64| bytes.set(bytes.get() + more);
        let file = ModelFile::open(folder.path()).unwrap();
        let loaded = file.load_with(&device(), &options, &count);
        loaded.map(|_| bytes.get()).map_err(|e| e.to_string())
    };
    let load = |case: &Case| load_with(case, &[]);
    let mut case = Case::read("deepseek3-heads");
    let before = load(&case).unwrap();
    let copies = [
        (
            "model.layers.3.embed_tokens.weight",
            "model.embed_tokens.weight",
        ),
        ("model.layers.3.shared_head.head.weight", "lm_head.weight"),
    ];
    assert_eq!(load_with(&case, &copies), Ok(before));
    let vocabulary = case.json["tensors"]["lm_head.weight"].clone();
    let tensors = case.json["tensors"].as_object_mut().unwrap();
    tensors.insert(
        "model.layers.3.shared_head.head.weight".to_string(),
        vocabulary,
    );
    let own = load(&case).unwrap();
    assert_eq!(own - before, 40 * 32 * 4, "another matrix than the model's");
    let tensors = case.json["tensors"].as_object_mut().unwrap();
    tensors.retain(|name, _| !name.contains("layers.4.") || name.ends_with("enorm.weight"));
    let one = load(&case).unwrap();
    assert!(one < own, "one head is left");
    let tensors = case.json["tensors"].as_object_mut().unwrap();
    tensors.retain(|name, _| !name.contains("layers.3."));
    let error = load(&case).unwrap_err();
    assert!(error.contains("nextn_predict_layers"), "{error}");
}
