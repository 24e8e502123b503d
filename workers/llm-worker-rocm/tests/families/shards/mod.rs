//! Models whose matrices several ranks share, against the same models on one: on the CPU, and where the tests' device is
//! a GPU, a few of them with ranks that are streams of it.

mod engine;
mod graphs;
mod refusals;
mod together;

use super::transformers::Case;
use super::*;
use llm_worker_rocm::engine::forward::Forward;
use llm_worker_rocm::engine::shard::ShardPlan;
use llm_worker_rocm::model::open_weights;
use llm_worker_rocm::quantize::{Conversion, Plan};
use std::collections::BTreeSet;
use std::path::Path;
use together::Together;
use worker::signal::Interrupt;

pub use together::Source;

/// Tokens that come at once; the others come one by one.
const PROMPT: usize = 17;

/// Devices of ranks: streams of one GPU.
fn devices(count: usize) -> Vec<Device> {
    let device = |_| match device() {
        Device::Rocm(device) => Device::new_rocm_with_stream(device.device().ordinal()).unwrap(),
        device => device,
    };
    (0..count).map(device).collect()
}

impl Source {
    /// Its shards.
    fn by(&self, plan: ShardPlan) -> Together {
        Together::on(&devices(plan.shards()), self, plan)
    }

    /// Its shards, of such shares.
    pub fn together(&self, shares: &[f32]) -> Together {
        self.by(self.plan(shares).unwrap())
    }
}

fn one(path: &Path) -> Box<dyn Forward> {
    let opened = ModelFile::open(path).unwrap();
    opened
        .load(&device(), &LoadOptions::default())
        .unwrap()
        .forward
}

/// The logits of all rows of a text.
pub fn logits(forward: &mut dyn Forward, tokens: &[u32]) -> Vec<Vec<f32>> {
    let cache = CacheOptions {
        blocks: 2,
        block_size: 16,
        dtype: forward.kv_dtype().into(),
        context: 32,
        states: 1,
        window_blocks: 0,
    };
    forward.reserve(&cache).unwrap();
    let step = |start, end| crate::step(tokens, start, end);
    let mut all = rows(&forward.forward(&step(0, PROMPT)).unwrap());
    for i in PROMPT..tokens.len() {
        match forward.decode(&step(i, i + 1), None).unwrap().output {
            DecodeOutput::Logits(logits, _) => all.extend(rows(&logits)),
            DecodeOutput::Tokens(_) => panic!("tokens that nobody asked for"),
        }
    }
    all
}

/// The place of the largest number of each row.
fn largest(rows: &[Vec<f32>]) -> Vec<usize> {
    let of_row = |row: &Vec<f32>| {
        let places = 0..row.len();
        places.max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap()
    };
    rows.iter().map(of_row).collect()
}

/// Fails unless two compute the same.
fn agree(name: &str, got: &[Vec<f32>], want: &[Vec<f32>]) {
    let wide = |row: &Vec<f32>| row.iter().map(|x| f64::from(*x)).collect();
    let wide: Rows = want.iter().map(wide).collect();
    let error = nmse(got, &wide);
    println!("{name}: {error:.1e}");
    // On a GPU keys and values are halves.
    let limit = if device().is_cpu() { 1e-10 } else { 1e-5 };
    assert!(error <= limit, "{name}: {error:e}");
    if device().is_cpu() {
        assert_eq!(largest(got), largest(want), "{name}");
    }
}

/// Which of the families come: on a simulated device all would take long.
fn comes(family: &Family) -> bool {
    device().is_cpu() || ["qwen2", "qwen2moe"].contains(&family.name)
}

#[test]
fn every_family_computes_on_shards_what_it_does_on_one() {
    let tokens = &tokens()[..PROMPT + 3];
    for f in families().into_iter().filter(comes) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        file(&f, &tensors(&f)).write(&path);
        let want = logits(&mut *one(&path), tokens);
        // Four heads, for two of keys; uneven shares are those of widths.
        for shares in [&[1.0, 1.0][..], &[1.0; 3], &[1.0; 4], &[1.0, 2.0]] {
            let source = Source::of(&path);
            let plan = source.plan(shares).unwrap();
            let whole = plan.whole().to_vec();
            let mut together = source.by(plan);
            let got = logits(&mut together, tokens);
            agree(&format!("{} {shares:?} {whole:?}", f.name), &got, &want);
            assert!(whole.is_empty(), "{}: {whole:?}", f.name);
        }
    }
}

/// Blocks of quantized formats stay whole, also where the parts are not of one size.
#[test]
fn quantized_matrices_are_cut_between_blocks() {
    let tokens = &tokens()[..PROMPT + 3];
    for f in families().into_iter() {
        if !["qwen2", "qwen2moe"].contains(&f.name) {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let [floats, path] = ["floats.gguf", "model.gguf"].map(|name| folder.path().join(name));
        file(&f, &tensors(&f)).write(&floats);
        let quantized = Plan::new("Q8_0".parse().unwrap(), Vec::new());
        let weights = open_weights(&floats).unwrap();
        let conversion = Conversion::new(&*weights, &quantized).unwrap();
        conversion.write(&path, &Interrupt::manual()).unwrap();
        let want = logits(&mut *one(&path), tokens);
        let source = Source::of(&path);
        let plan = source.plan(&[1.0; 2]).unwrap();
        let whole = plan.whole().join("; ");
        // 96 elements are three blocks; an expert's 32 are one, which every rank computes.
        assert_eq!(whole.is_empty(), f.mixture.is_none(), "{whole}");
        let got = logits(&mut source.by(plan), tokens);
        agree(&format!("{} {whole}", f.name), &got, &want);
    }
}

/// Folders, of which a tensor in the file's terms is not always one in the folder.
#[test]
fn folders_compute_on_shards_what_they_do_on_one() {
    if !device().is_cpu() {
        return;
    }
    let tokens = &super::transformers::tokens()[..PROMPT + 2];
    let (mut refused, mut computed) = (BTreeSet::new(), 0);
    for name in super::transformers::names() {
        let case = Case::read(&name);
        let folder = tempfile::tempdir().unwrap();
        case.write(folder.path());
        // Some write, speak or rank.
        let Ok(opened) = ModelFile::open(folder.path()) else {
            continue;
        };
        let mut single = opened.load(&device(), &LoadOptions::default()).unwrap();
        let want = logits(&mut *single.forward, tokens);
        let source = Source::of(folder.path());
        for count in [2, 3] {
            let Ok(plan) = source.plan(&vec![1.0; count]) else {
                refused.insert(name.clone());
                continue;
            };
            let whole = plan.whole().join("; ");
            let mut together = source.by(plan);
            let name = format!("{name} on {count}, {whole}");
            agree(&name, &logits(&mut together, tokens), &want);
        }
        computed += 1;
    }
    let refused: Vec<&str> = refused.iter().map(String::as_str).collect();
    assert_eq!(
        refused,
        ["falcon-mamba", "mamba", "mamba2", "mamba2-groups"]
    );
    assert!(computed > 100, "{computed} folders");
}
