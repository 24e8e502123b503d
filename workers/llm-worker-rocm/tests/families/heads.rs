//! Heads that predict further tokens, against the plain forward pass.

use super::weights::head_tensors;
use super::*;
use llm_worker_rocm::engine::forward::{HeadStep, HiddenRows};

fn forward(file: &File) -> LoadedModel {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    file.write(&path);
    let options = LoadOptions {
        head: true,
        ..LoadOptions::default()
    };
    let opened = ModelFile::open(&path).unwrap();
    opened.load(&device(), &options).unwrap()
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
        let mut forward = forward(&file).forward;
        assert!(forward.has_head());
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
            };
            got.extend(rows(&forward.predict(&head).unwrap()));
        }
        let last = got.len() as u32 - 10;
        let head = HeadStep {
            step: step(&[further], count, vec![0]),
            hidden: HiddenRows::OfHead(vec![last]),
        };
        got.extend(rows(&forward.predict(&head).unwrap()));
        let error = nmse(&got, &want);
        println!("{}: {error:.1e}", f.name);
        assert_eq!(got.len(), want.len());
        assert!(error <= NMSE_LIMIT, "{}: {error:e}", f.name);
    }
}
