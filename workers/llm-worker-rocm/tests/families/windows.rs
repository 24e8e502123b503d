//! Families of windows, sinks and shared caches, from folders and from the GGUF files that `quantize` writes of them,
//! against Hugging Face transformers.

use super::formats::{difference_of_both, each, load};
use super::transformers::{tokens, Case};
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use candle_core::Device;
use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::model::open_weights;
use safetensors::tensor::TensorView;
use safetensors::Dtype;
use std::borrow::Cow;
use std::path::Path;

#[test]
fn folders_and_files_compute_what_transformers_does() {
    let names = [
        "gpt-oss",
        "llama4",
        "llama4-chunks",
        "gemma3n",
        "gemma4",
        "gemma4-shared",
        "gemma4-experts",
    ];
    each(&names, difference_of_both);
}

/// The positive numbers of e2m1, by their codes.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Numbers near those of a block in MXFP4 as gpt-oss's files have it: the exponent, pairs of neighbours, and the values.
fn mxfp4(block: &[f32]) -> (u8, Vec<u8>, Vec<f32>) {
    let largest = block.iter().fold(0f32, |a, x| a.max(x.abs()));
    let exponent = largest.log2().floor() - 2.0;
    let scale = exponent.exp2();
    let code = |x: f32| -> u8 {
        let far = |level: &f32| (level * scale - x.abs()).abs();
        let nearest = (0..8).min_by(|a, b| far(&E2M1[*a]).total_cmp(&far(&E2M1[*b])));
        nearest.unwrap() as u8 | u8::from(x < 0.0) << 3
    };
    let value = |code: u8| -> f32 {
        let sign = if code < 8 { 1.0 } else { -1.0 };
        sign * E2M1[usize::from(code % 8)] * scale
    };
    let codes: Vec<u8> = block.iter().map(|x| code(*x)).collect();
    let pairs = codes.chunks_exact(2).map(|two| two[0] | two[1] << 4);
    let values = codes.iter().map(|code| value(*code)).collect();
    ((exponent + 127.0) as u8, pairs.collect(), values)
}

type Named = (String, Dtype, Vec<usize>, Vec<u8>);

/// The case's tensors with experts in MXFP4, and the same with their values as numbers.
fn in_mxfp4(case: &Case) -> [Vec<Named>; 2] {
    let mut files = [Vec::new(), Vec::new()];
    for (name, shape, data) in case.tensors() {
        let [experts, inputs, outputs] = shape[..] else {
            files.iter_mut().for_each(|file| {
                file.push((name.clone(), Dtype::F32, shape.clone(), data.clone()));
            });
            continue;
        };
        let numbers: Vec<f32> = data
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let place = |expert, output, input| (expert * inputs + input) * outputs + output;
        let mut values = numbers.clone();
        let (mut blocks, mut scales) = (Vec::new(), Vec::new());
        for expert in 0..experts {
            for output in 0..outputs {
                for first in (0..inputs).step_by(32) {
                    let places = (first..first + 32).map(|i| place(expert, output, i));
                    let block: Vec<f32> = places.clone().map(|at| numbers[at]).collect();
                    let (exponent, pairs, near) = mxfp4(&block);
                    scales.push(exponent);
                    blocks.extend(pairs);
                    places.zip(near).for_each(|(at, near)| values[at] = near);
                }
            }
        }
        let shape_of_scales = vec![experts, outputs, inputs / 32];
        let shape_of_blocks = [&shape_of_scales[..], &[16]].concat();
        files[0].push((format!("{name}_blocks"), Dtype::U8, shape_of_blocks, blocks));
        files[0].push((format!("{name}_scales"), Dtype::U8, shape_of_scales, scales));
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        files[1].push((name, Dtype::F32, shape, bytes));
    }
    files
}

fn write_folder(case: &Case, tensors: &[Named], quantization: Option<&str>, folder: &Path) {
    case.write(folder);
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        let view = TensorView::new(*dtype, shape.clone(), data);
        (name, view.unwrap())
    });
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    let mut config = case.json["config"].clone();
    if let Some(method) = quantization {
        config["quantization_config"] = serde_json::json!({"quant_method": method});
    }
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
}

/// gpt-oss's own files: experts are the same numbers, to the bit, and a model of them gives much the same (products
/// with blocks are of 8-bit activations).
#[test]
fn experts_in_mxfp4_are_their_values() {
    let case = Case::read("gpt-oss");
    let [in_blocks, in_values] = in_mxfp4(&case);
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    write_folder(&case, &in_blocks, Some("mxfp4"), folders[0].path());
    write_folder(&case, &in_values, None, folders[1].path());
    let opened = folders.each_ref().map(|f| open_weights(f.path()).unwrap());
    let values = |file: usize, name: &str| -> Vec<f32> {
        let info = opened[file].header().tensor(name).unwrap();
        let bytes = opened[file].bytes(name, info);
        let dtype = info.dtype().unwrap();
        assert_eq!(dtype == GgmlDType::MXFP4, file == 0, "{name}");
        let storage = QStorage::from_data(Cow::Borrowed(&bytes), &Device::Cpu, dtype).unwrap();
        let tensor = QTensor::new(storage, info.elem_count() as usize).unwrap();
        let floats = tensor.dequantize(&Device::Cpu).unwrap();
        floats.to_vec1().unwrap()
    };
    for part in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
        let name = format!("blk.1.{part}.weight");
        let dims = |file: usize| opened[file].header().tensor(&name).unwrap().dims.clone();
        assert_eq!(dims(0), dims(1));
        assert!(values(0, &name) == values(1, &name), "{name}");
    }
    let logits = folders.each_ref().map(|folder| -> Vec<Vec<f32>> {
        let logits = Scorer::new(load(folder.path())).all_logits(&tokens());
        logits.unwrap().to_vec2().unwrap()
    });
    for (blocks, values) in logits[0].iter().zip(&logits[1]) {
        let largest = values.iter().fold(0f32, |a, b| a.max(b.abs()));
        let pairs = blocks.iter().zip(values);
        let difference = pairs.fold(0f32, |a, (x, y)| a.max((x - y).abs())) / largest;
        assert!(difference < 0.03, "{difference}");
    }
    // Blocks of another kind are refused by name.
    write_folder(&case, &in_blocks, Some("other"), folders[0].path());
    let refused = open_weights(folders[0].path()).err().expect("refused");
    assert!(
        refused.to_string().contains("quantization_config"),
        "{refused}"
    );
}
