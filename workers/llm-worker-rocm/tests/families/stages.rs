//! Every architecture divided between stages computes what it does on one device, bit for bit.

use super::common::File;
use super::split::plan;
use super::transformers::{self, Case};
use super::*;
use llm_worker_rocm::engine::forward::Forward;
use llm_worker_rocm::engine::snapshots::Place;
use std::path::Path;

/// Rows of a piece of a prompt.
const PIECE: usize = 8;
const PROMPT: usize = 20;
const CONTEXT: usize = 32;

/// A step of the only sequence with the tokens behind so many.
fn step(start: usize, tokens: &[u32], outputs: Vec<u32>) -> Step {
    Step {
        tokens: tokens.to_vec(),
        sequences: vec![StepSequence {
            id: 1,
            blocks: vec![1, 0],
            window_blocks: vec![0, 1],
            keys: start + tokens.len(),
            rows: tokens.len(),
            state: Some(StepState::of_only(start)),
            ..StepSequence::default()
        }],
        outputs,
    }
}

fn bits(logits: &Tensor) -> Vec<u32> {
    let logits = logits.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    logits.into_iter().map(f32::to_bits).collect()
}

/// The bits of all logits of a prompt in pieces and of tokens behind it, whether one of these was a graph, and what is
/// left in the caches.
fn computed(forward: &mut dyn Forward, whole: bool) -> (Vec<u32>, usize, Vec<u8>) {
    let cache = CacheOptions {
        blocks: 2,
        block_size: 16,
        dtype: forward.kv_dtype().into(),
        context: CONTEXT,
        states: 1,
        window_blocks: if forward.window().is_some() { 2 } else { 0 },
    };
    forward.reserve(&cache).unwrap();
    forward.set_graphs(GraphUse::On);
    let tokens = &transformers::tokens()[..];
    let prompt = &tokens[..PROMPT];
    let mut all = Vec::new();
    let outputs = |rows: usize| (0..rows as u32).collect();
    match whole {
        true => {
            let step = step(0, prompt, outputs(PROMPT));
            all.extend(bits(&forward.forward_in_parts(&step, PIECE).unwrap()));
        }
        false => {
            for (piece, tokens) in prompt.chunks(PIECE).enumerate() {
                let step = step(piece * PIECE, tokens, outputs(tokens.len()));
                all.extend(bits(&forward.forward(&step).unwrap()));
            }
        }
    }
    let mut graphs = 0;
    for place in PROMPT..tokens.len() {
        let step = step(place, &tokens[place..=place], vec![0]);
        let decoded = forward.decode(&step, None).unwrap();
        graphs += usize::from(decoded.graph);
        match decoded.output {
            DecodeOutput::Logits(logits, _) => all.extend(bits(&logits)),
            DecodeOutput::Tokens(_) => panic!("tokens that nobody asked for"),
        }
    }
    let snapshots = forward.snapshots().unwrap();
    let mut left = snapshots.model().to_vec();
    left.extend(snapshots.format().into_bytes());
    // Full ones: what the others have behind the last token is anything.
    for place in [Place::Block(1), Place::WindowBlock(0), Place::State(0)] {
        let before = left.len();
        snapshots.read(place, &mut left).unwrap();
        assert_eq!(left.len() - before, snapshots.bytes(place));
        let bytes = left[before..].to_vec();
        snapshots.write(place, &bytes).unwrap();
    }
    (all, graphs, left)
}

/// Compares the model in a place with itself over as many stages as are told.
fn compare(name: &str, path: &Path, stages: &[usize]) {
    let load = |stages: usize| {
        let file = ModelFile::open(path).unwrap();
        let split = plan(&file, &device(), stages);
        let is_divided = split.is_some();
        let options = LoadOptions {
            split,
            ..LoadOptions::default()
        };
        let model = file.load(&device(), &options).unwrap();
        (model.forward, is_divided)
    };
    let (mut one, _) = load(1);
    let expected = computed(&mut *one, false);
    for stages in stages {
        let (mut several, is_divided) = load(*stages);
        if !is_divided {
            println!("{name} cannot be divided");
            continue;
        }
        assert!(several.stages() > 1, "{name}");
        let found = computed(&mut *several, true);
        assert!(
            found.0 == expected.0,
            "{name}: other logits, {stages} stages"
        );
        assert_eq!(found.1, expected.1, "{name}: graphs, {stages} stages");
        assert!(
            found.2 == expected.2,
            "{name}: other caches, {stages} stages"
        );
    }
}

fn compare_file(name: &str, file: &File, stages: &[usize]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    file.write(&path);
    compare(name, &path, stages);
}

#[test]
fn every_family_computes_the_same_over_stages() {
    for f in families() {
        compare_file(f.name, &file(&f, &tensors(&f)), &[2, 3]);
    }
}

/// Those with something that crosses besides the stream, or that decides where stages begin: streams, embeddings and
/// values of their own, keys of earlier blocks, chosen keys, states, experts. On the CPU all others, too.
#[test]
fn every_architecture_computes_the_same_over_stages() {
    let of_gpu = [
        "gemma3n",
        "gemma4-shared",
        "deepseek32",
        "qwen3_5",
        "gpt-oss",
    ];
    let names: Vec<String> = match device().is_cpu() {
        true => transformers::decoders(),
        false => of_gpu.map(str::to_string).to_vec(),
    };
    for name in names {
        let folder = tempfile::tempdir().unwrap();
        Case::read(&name).write(folder.path());
        compare(&name, folder.path(), &[2, 3]);
    }
}

#[test]
fn plans_that_do_not_suit_a_model_are_refused() {
    use llm_worker_rocm::engine::group::{SplitPlan, StagePlan};
    let refusal = |name: &str, stages: &[std::ops::Range<usize>]| {
        let folder = tempfile::tempdir().unwrap();
        Case::read(name).write(folder.path());
        let stage = |blocks: &std::ops::Range<usize>| StagePlan {
            blocks: blocks.clone(),
            devices: vec![device()],
            shares: Vec::new(),
        };
        let options = LoadOptions {
            split: Some(SplitPlan {
                stages: stages.iter().map(stage).collect(),
            }),
            ..LoadOptions::default()
        };
        let file = ModelFile::open(folder.path()).unwrap();
        let error = file.load(&device(), &options).err().unwrap();
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    };
    let error = refusal("llama", &[0..1, 1..3]);
    assert!(error.contains("the model has 2"), "{error}");
    // The last blocks look at the keys of earlier ones.
    let file = |name: &str| {
        let folder = tempfile::tempdir().unwrap();
        Case::read(name).write(folder.path());
        ModelFile::open(folder.path()).unwrap().part_sizes()
    };
    let shared = file("gemma4-shared");
    let blocks = shared.blocks.len();
    assert!(!shared.cuts.contains(&(blocks - 1)), "{:?}", shared.cuts);
    let error = refusal("gemma4-shared", &[0..blocks - 1, blocks - 1..blocks]);
    assert!(error.contains("cannot begin with layer"), "{error}");
    // What a plan is made of: all of the file but what heads have.
    let llama = file("llama");
    assert_eq!(llama.cuts, [1]);
    assert!(llama.blocks[0] > 0 && llama.first > 0 && llama.last > 0);
    assert!(llama.kv_elements.iter().all(|count| *count > 0));
}

/// Stages whose matrices several ranks share: sums in another order, all else as on one device.
#[test]
fn stages_on_several_devices_each_compute_nearly_the_same() {
    if !device().is_cpu() {
        return;
    }
    use llm_worker_rocm::engine::group::{SplitPlan, StagePlan};
    for name in ["llama", "qwen3-moe", "gemma2"] {
        let folder = tempfile::tempdir().unwrap();
        Case::read(name).write(folder.path());
        let load = |devices: &[usize]| {
            let file = ModelFile::open(folder.path()).unwrap();
            let blocks = file.part_sizes().blocks.len();
            let bounds = |stage: usize| blocks * stage / devices.len();
            let stage = |(stage, count): (usize, &usize)| StagePlan {
                blocks: bounds(stage)..bounds(stage + 1),
                devices: vec![device(); *count],
                shares: Vec::new(),
            };
            let options = LoadOptions {
                split: Some(SplitPlan {
                    stages: devices.iter().enumerate().map(stage).collect(),
                }),
                ..LoadOptions::default()
            };
            file.load(&device(), &options).unwrap().forward
        };
        let (expected, _, left) = computed(&mut *load(&[1]), false);
        for devices in [&[2][..], &[2, 1], &[1, 2], &[2, 2]] {
            let (found, _, other) = computed(&mut *load(devices), true);
            assert_eq!(found.len(), expected.len());
            let pairs = || {
                (found.iter().zip(&expected)).map(|(a, b)| (f32::from_bits(*a), f32::from_bits(*b)))
            };
            let error: f32 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
            let error = error / pairs().map(|(_, b)| b * b).sum::<f32>();
            println!("{name} {devices:?}: {error:.1e}");
            assert!(error < 1e-9, "{name} {devices:?}: {error:e}");
            // Nobody reads caches that are divided in another way.
            assert!(other[..32] != left[..32], "{name} {devices:?}");
        }
    }
}
