//! Steps of shards as graphs, with what adds up their results inside.

use super::*;
use crate::isolated::in_child;
use candle_core::rocm_backend::candle_rocm;
use candle_rocm_collective::peers;
use std::time::Duration;

/// Simulated kernels take their time.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Steps one by one: the logits, and how many were graphs.
fn steps(forward: &mut dyn Forward, tokens: &[u32]) -> (Vec<Vec<f32>>, usize) {
    let cache = CacheOptions {
        blocks: 2,
        block_size: 16,
        dtype: forward.kv_dtype().into(),
        context: 32,
        states: 1,
        window_blocks: 0,
    };
    forward.reserve(&cache).unwrap();
    forward.set_graphs(GraphUse::On);
    let (mut all, mut graphs) = (Vec::new(), 0);
    for i in 0..tokens.len() {
        let decoded = forward
            .decode(&crate::step(tokens, i, i + 1), None)
            .unwrap();
        graphs += usize::from(decoded.graph);
        match decoded.output {
            DecodeOutput::Logits(logits, _) => all.extend(rows(&logits)),
            DecodeOutput::Tokens(_) => panic!("tokens that nobody asked for"),
        }
    }
    (all, graphs)
}

/// Two GPUs, whose kernels wait for each other: all steps but the first of a shape are graphs on both.
#[test]
fn steps_of_shards_are_graphs() {
    if !device().is_rocm() {
        return;
    }
    // A simulated GPU gets a second one.
    let two = [("HIP_SIM_DEVICES", "2")];
    in_child("shards::graphs::steps_of_shards_are_graphs", &two, || {
        if candle_rocm::Device::count().unwrap() < 2 {
            println!("there is one GPU only");
            return;
        }
        families().iter().filter(|f| comes(f)).for_each(graphs_of);
    });
}

fn graphs_of(f: &Family) {
    let tokens = &tokens()[..5];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    file(f, &tensors(f)).write(&path);
    let (want, _) = steps(&mut *one(&path), tokens);
    let devices = [0, 1].map(|ordinal| Device::new_rocm_with_stream(ordinal).unwrap());
    let ranks = peers::group(&devices, TIMEOUT).unwrap();
    let source = Source::of(&path);
    let plan = source.plan(&[1.0; 2]).unwrap();
    let mut together = Together::load(&source, plan, ranks);
    let (got, graphs) = steps(&mut together, tokens);
    agree(f.name, &got, &want);
    assert_eq!(together.without_graphs(), None, "{}", f.name);
    assert_eq!(graphs, tokens.len() - 1, "{}", f.name);
}

/// Ranks that meet in the host's memory have no graphs, and say why.
#[test]
fn without_a_way_to_record_sums_there_are_no_graphs() {
    if !device().is_rocm() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let f = llama();
    file(&f, &tensors(&f)).write(&path);
    let mut together = Source::of(&path).together(&[1.0; 2]);
    let (_, graphs) = steps(&mut together, &tokens()[..3]);
    assert_eq!(graphs, 0);
    let reason = together.without_graphs().unwrap();
    assert!(reason.contains("host"), "{reason}");
}
