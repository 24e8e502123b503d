//! Adapters of experts' matrices.

use super::adapters::{reserve, sequence, source, wish};
use super::common::{self, File, Tensor as FileTensor};
use super::shards::Source;
use super::transformers::{tokens, tolerance, Case};
use super::{device, load_file};
use llm_worker_rocm::engine::api::{AdapterUse, GraphUse, WeightOptions};
use llm_worker_rocm::engine::forward::{DecodeOutput, Forward, Step};
use llm_worker_rocm::model::{open_weights, LoadOptions, ModelFile};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use worker::gguf::{MappedGguf, Weights};

/// Numbers in `-0.3..0.3` that are the same everywhere.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    let number = |i: usize| ((i * 7919 + seed * 104_729) % 1000) as f32;
    (0..count).map(|i| number(i) / 1000.0 * 0.6 - 0.3).collect()
}

const RANK: usize = 3;

/// The matrices of each expert of a tensor as PEFT names them: name, rows and columns, f32.
fn peft_tensors(
    tensor: &str,
    halves: [&[f32]; 2],
    [inputs, outputs, count]: [usize; 3],
) -> Vec<(String, [usize; 2], Vec<u8>)> {
    let mut parts = tensor.split('.');
    let (block, part) = (parts.nth(1).unwrap(), parts.next().unwrap());
    let matrix = match part {
        "ffn_gate_exps" => "w1",
        "ffn_down_exps" => "w2",
        _ => "w3",
    };
    let shapes = [("A", [RANK, inputs]), ("B", [outputs, RANK])];
    let of_expert = |expert: usize| {
        shapes
            .into_iter()
            .zip(halves)
            .map(move |((half, shape), values)| {
                let each = shape[0] * shape[1];
                let values = &values[expert * each..(expert + 1) * each];
                let start = format!("base_model.model.model.layers.{block}.block_sparse_moe");
                let name = format!("{start}.experts.{expert}.{matrix}.lora_{half}.weight");
                let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                (name, shape, bytes)
            })
    };
    (0..count).flat_map(of_expert).collect()
}

fn write_peft(path: &Path, tensors: &[(String, [usize; 2], Vec<u8>)]) {
    std::fs::create_dir(path).unwrap();
    let views = tensors.iter().map(|(name, shape, data)| {
        let dtype = safetensors::Dtype::F32;
        let view = safetensors::tensor::TensorView::new(dtype, shape.to_vec(), data);
        (name, view.unwrap())
    });
    let file = path.join("adapter_model.safetensors");
    safetensors::serialize_to_file(views, None, &file).unwrap();
    let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "bias": "none"});
    std::fs::write(path.join("adapter_config.json"), config.to_string()).unwrap();
}

/// Adapters of experts against a file with what they add in its weights: of experts that have a matrix each, gates and
/// what they multiply in one tensor, and biases.
#[test]
fn experts_have_adapters() {
    for name in ["mixtral", "gemma4-experts", "gpt-oss"] {
        let case = Case::read(name);
        let folder = tempfile::tempdir().unwrap();
        case.write(folder.path());
        let (plain, merged) = (folder.path().join("a.gguf"), folder.path().join("b.gguf"));
        super::formats::write_gguf(&*open_weights(folder.path()).unwrap(), &plain);
        let gguf = MappedGguf::open(&plain).unwrap();
        let architecture = gguf.header().require_str("general.architecture").unwrap();
        let mut file = File::default();
        file.set("general.type", common::string("adapter"))
            .set("general.architecture", common::string(architecture))
            .set("adapter.type", common::string("lora"))
            .set("adapter.lora.alpha", common::f32(RANK as f32));
        let mut bytes = std::fs::read(&plain).unwrap();
        let mut peft = Vec::new();
        let tensors = gguf.header().tensors();
        let experts = tensors.filter(|(name, _)| name.ends_with("_exps.weight"));
        for (seed, (tensor, info)) in experts.enumerate() {
            let [inputs, outputs, count] = info.dims[..] else {
                panic!("{tensor} of {:?}", info.dims)
            };
            let [inputs, outputs, count] = [inputs, outputs, count].map(|d| d as usize);
            let (a, b) = (
                numbers(2 * seed, count * RANK * inputs),
                numbers(2 * seed + 1, count * outputs * RANK),
            );
            let old = gguf.bytes(tensor, info);
            let start = bytes.windows(64).position(|w| w == &old[..64]).unwrap();
            let values = &mut bytes[start..start + old.len()];
            for (i, value) in values.chunks_exact_mut(4).enumerate() {
                let (expert, row, column) =
                    (i / (inputs * outputs), i / inputs % outputs, i % inputs);
                let added = (0..RANK).map(|r| {
                    b[(expert * outputs + row) * RANK + r]
                        * a[(expert * RANK + r) * inputs + column]
                });
                let old = f32::from_le_bytes([value[0], value[1], value[2], value[3]]);
                value.copy_from_slice(&(old + added.sum::<f32>()).to_le_bytes());
            }
            if name == "mixtral" {
                peft.extend(peft_tensors(tensor, [&a, &b], [inputs, outputs, count]));
            }
            for (half, dims, values) in [
                ("a", [inputs, RANK, count], a),
                ("b", [RANK, outputs, count], b),
            ] {
                file.tensors.push(FileTensor {
                    name: format!("{tensor}.lora_{half}"),
                    dims: dims.map(|d| d as u64).to_vec(),
                    type_code: 0,
                    offset: None,
                    data: values.iter().flat_map(|v| v.to_le_bytes()).collect(),
                });
            }
        }
        std::fs::write(&merged, bytes).unwrap();
        let adapter = folder.path().join("adapter.gguf");
        file.write(&adapter);
        let compute = |mut forward: Box<dyn Forward>, host: usize| {
            reserve(&mut *forward);
            forward.set_graphs(GraphUse::On);
            // Two sequences, the second of which wants none; then a token of each.
            let all = tokens();
            let uses: [Arc<[AdapterUse]>; 2] = match forward.adapters() {
                0 => [Arc::from([]), Arc::from([])],
                _ => [Arc::from([wish(0, 1.0)]), Arc::from([])],
            };
            let mut rows = Vec::new();
            for (start, end) in [(0, 8), (8, 9), (9, 10), (10, 11)] {
                let step = Step {
                    tokens: [&all[start..end]; 2].concat(),
                    sequences: (0..2).map(|id| sequence(id, end, end - start)).collect(),
                    outputs: (0..2 * (end - start) as u32).collect(),
                };
                forward.use_adapters(&step, &uses).unwrap();
                let logits = match start {
                    0 => forward.forward(&step).unwrap(),
                    _ => {
                        let decoded = forward.decode(&step, None).unwrap();
                        let graph = device().is_rocm() && host == 0 && start > 8;
                        assert_eq!(decoded.graph, graph);
                        let DecodeOutput::Logits(logits, _) = decoded.output else {
                            panic!("tokens that nobody asked for")
                        };
                        logits
                    }
                };
                rows.push(logits.to_vec2::<f32>().unwrap());
            }
            rows
        };
        let logits = |path: &Path, adapters: &[PathBuf], host: usize| {
            let options = LoadOptions {
                adapters: adapters.iter().map(|path| source(path)).collect(),
                weights: WeightOptions {
                    host_experts: Some(host),
                    ..WeightOptions::default()
                },
                ..LoadOptions::default()
            };
            let model = load_file(ModelFile::open(path).unwrap(), &options);
            compute(model.unwrap().forward, host)
        };
        let adapted = logits(&plain, std::slice::from_ref(&adapter), 0);
        let want = logits(&merged, &[], 0);
        let none = logits(&plain, &[], 0);
        let mut all = vec![adapted];
        if !peft.is_empty() {
            let path = folder.path().join("peft");
            write_peft(&path, &peft);
            all.push(logits(&plain, &[path], 0));
        }
        if device().is_rocm() {
            all.push(logits(&plain, std::slice::from_ref(&adapter), usize::MAX));
        } else {
            let mut shards = Source::of(&plain);
            shards.adapters = vec![source(&adapter)];
            all.push(compute(Box::new(shards.together(&[1.0; 2])), 0));
        }
        let largest = want.iter().flatten().flatten();
        let largest = largest.fold(0f32, |most, x| most.max(x.abs()));
        for adapted in all {
            for ((adapted, want), none) in adapted.iter().zip(&want).zip(&none) {
                let half = adapted.len() / 2;
                let difference = |a: &[Vec<f32>], b: &[Vec<f32>]| {
                    let pairs = a.iter().flatten().zip(b.iter().flatten());
                    pairs.fold(0f32, |most, (a, b)| most.max((a - b).abs())) / largest
                };
                let first = difference(&adapted[..half], &want[..half]);
                let second = difference(&adapted[half..], &none[half..]);
                println!("{name}: {first:.1e}, {second:.1e}");
                assert!(first <= tolerance(), "{name}: {first:e}");
                assert!(second <= tolerance(), "{name}: {second:e}");
                // They are different, indeed.
                assert!(difference(&want[..half], &none[..half]) > 10.0 * tolerance());
            }
        }
    }
}
