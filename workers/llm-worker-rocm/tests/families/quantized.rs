//! Quantized checkpoints as their makers write them, against Hugging Face transformers with the same numbers in float32.
//!
//! `quantized/generate.py` wrote them and says how.

use super::device;
use super::formats::{difference_of_prompt, write_gguf};
use super::isolated::in_child;
use super::transformers::{tolerance, Case};
use candle_core::rocm_backend::candle_rocm::ops::quantized::multiplies_float8;
use candle_core::Device;
use llm_worker_rocm::model::{open_weights, LoadOptions, ModelFile};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{json, Value as Json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use worker::gguf::Format;

/// What each case's matrices become, and the largest difference of a model that computes with them: activations have
/// eight bits beside those of four, and are BF16 beside BF16 on a GPU.
const CASES: [(&str, Format, f32); 13] = [
    ("fp8-block", Format::F8E4M3, 3e-3),
    ("fp8-experts", Format::F8E4M3, 3e-3),
    ("fp8-latent", Format::F8E4M3, 3e-3),
    ("tensor", Format::F8E4M3, 3e-3),
    ("channel", Format::F8E4M3, 3e-3),
    ("ragged", Format::F8E4M3, 3e-3),
    ("fbgemm", Format::F8E4M3, 3e-3),
    ("fused", Format::F8E4M3, 3e-3),
    ("odd", Format::BF16, 0.03),
    ("mxfp8", Format::BF16, 0.03),
    ("mxfp4", Format::MXFP4, 0.03),
    ("nvfp4", Format::NVFP4, 0.03),
    ("mixed", Format::MXFP4, 0.03),
];

/// Name, dtype, shape and bytes of a tensor.
type Named = (String, Dtype, Vec<usize>, Vec<u8>);

/// A case and its quantized tensors.
struct Checkpoint {
    case: Case,
    quantized: Vec<Named>,
}

impl Checkpoint {
    fn read(name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/families/quantized");
        let json = std::fs::read(folder.join(format!("{name}.json"))).unwrap();
        let bytes = std::fs::read(folder.join(format!("{name}.safetensors"))).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let mut quantized: Vec<Named> = tensors
            .iter()
            .map(|(name, view)| {
                let data = view.data().to_vec();
                (name.to_string(), view.dtype(), view.shape().to_vec(), data)
            })
            .collect();
        quantized.sort();
        Self {
            case: Case {
                json: serde_json::from_slice(&json).unwrap(),
            },
            quantized,
        }
    }

    fn quantization(&self) -> &Json {
        &self.case.json["config"]["quantization_config"]
    }

    /// Writes the folder, with this configuration of quantization. Tensors of a matrix are in different files.
    fn write(&self, quantization: &Json, folder: &Path) {
        self.case.write(folder);
        let plain = folder.join("plain.safetensors");
        std::fs::rename(folder.join("model.safetensors"), plain).unwrap();
        for half in 0..2 {
            let own = self.quantized.iter().skip(half).step_by(2);
            let views = own.map(|(name, dtype, shape, data)| {
                let view = TensorView::new(*dtype, shape.clone(), data);
                (name, view.unwrap())
            });
            let path = folder.join(format!("quantized-{half}.safetensors"));
            safetensors::serialize_to_file(views, None, &path).unwrap();
        }
        let mut config = self.case.json["config"].clone();
        config["quantization_config"] = match quantization["quantization"].is_null() {
            true => quantization.clone(),
            // A file of its own.
            false => {
                let path = folder.join("hf_quant_config.json");
                std::fs::write(path, quantization.to_string()).unwrap();
                Json::Null
            }
        };
        std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    }

    /// The same as its maker writes it.
    fn folder(&self) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        self.write(self.quantization(), folder.path());
        folder
    }

    /// The same tensors with parts of other names, those without a name left out.
    fn renamed(mut self, names: &Json) -> Self {
        let names = names.as_object().unwrap();
        self.quantized.retain_mut(|(name, ..)| {
            let (module, part) = name.rsplit_once('.').unwrap();
            match names.get(part) {
                Some(Json::String(other)) => *name = format!("{module}.{other}"),
                Some(_) => return false,
                None => {}
            }
            true
        });
        self
    }

    /// The first tensor whose name ends like that.
    fn part(&mut self, ending: &str) -> &mut Named {
        let mut all = self.quantized.iter_mut();
        all.find(|(name, ..)| name.ends_with(ending)).unwrap()
    }
}

/// Case files without what other makers have beside it.
fn read(name: &str) -> Checkpoint {
    Checkpoint::read(name).renamed(&json!({ "other_global_scale": null }))
}

fn gguf_of(folder: &Path) -> PathBuf {
    let path = folder.join("model.gguf");
    write_gguf(&*open_weights(folder).unwrap(), &path);
    path
}

/// Checks all cases, and tells of all before it fails.
fn each(check: impl Fn(&str, Format, f32) -> Result<(), String> + std::panic::RefUnwindSafe) {
    let mut wrong = Vec::new();
    for (name, format, most) in CASES {
        let outcome = std::panic::catch_unwind(|| check(name, format, most));
        if let Err(reason) = outcome.unwrap_or_else(|_| Err("it panicked".to_string())) {
            wrong.push(format!("{name}: {reason}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A difference that is too large.
fn at_most(difference: f32, most: f32) -> Result<(), String> {
    match difference <= most {
        true => Ok(()),
        false => Err(format!("{difference:e}")),
    }
}

#[test]
fn numbers_are_those_that_makers_packages_unpack() {
    each(|name, format, _| {
        let checkpoint = read(name);
        let folder = checkpoint.folder();
        let opened = open_weights(folder.path()).unwrap();
        let mut tensors = opened.header().tensors();
        if !tensors.any(|(_, info)| info.format == format) {
            return Err(format!("no tensor is {}", format.name()));
        }
        let gguf = gguf_of(folder.path());
        at_most(difference_of_prompt(&checkpoint.case, &gguf), tolerance())
    });
}

#[test]
fn models_compute_with_blocks() {
    each(|name, _, most| {
        let checkpoint = read(name);
        let folder = checkpoint.folder();
        at_most(checkpoint.case.difference(folder.path()), most)
    });
}

/// A tensor's name, format, shape and bytes.
type Tensor = (String, Format, Vec<u64>, Vec<u8>);

/// Every tensor of a folder.
fn all(folder: &Path) -> Vec<Tensor> {
    let opened = open_weights(folder).unwrap();
    let tensors = opened.header().tensors();
    let mut tensors: Vec<_> = tensors
        .map(|(name, info)| {
            let bytes = opened.bytes(name, info).into_owned();
            assert_eq!(bytes.len() as u64, info.bytes, "{name}");
            (name.to_string(), info.format, info.dims.clone(), bytes)
        })
        .collect();
    opened.intact().unwrap();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    tensors
}

#[test]
fn makers_mean_the_same_tensors_in_their_words() {
    let compared = AtomicUsize::new(0);
    each(|name, _, _| {
        let expected = all(read(name).folder().path());
        let others = Checkpoint::read(name).case.json["others"].clone();
        for other in others.as_array().unwrap() {
            let mut names = other["names"].clone();
            if names["other_global_scale"].is_null() {
                names["other_global_scale"] = Json::Null;
            }
            let checkpoint = Checkpoint::read(name).renamed(&names);
            let folder = tempfile::tempdir().unwrap();
            checkpoint.write(&other["quantization_config"], folder.path());
            let found = all(folder.path());
            let differs = |(a, b): (&Tensor, &Tensor)| (a != b).then(|| a.0.clone());
            if let Some(name) = expected.iter().zip(&found).find_map(differs) {
                return Err(format!("{name} differs in {other}"));
            }
            assert_eq!(found.len(), expected.len());
            compared.fetch_add(1, Relaxed);
        }
        Ok(())
    });
    assert_eq!(compared.into_inner(), 9);
}

/// transformers keeps experts in one tensor, gates before what they multiply.
#[test]
fn stacked_experts_are_those_that_lie_apart() {
    const EXPERTS: usize = 2;
    let checkpoint = read("fp8-experts");
    let expected = all(checkpoint.folder().path());
    let mut stacked = read("fp8-experts");
    stacked
        .quantized
        .retain(|(name, ..)| !name.contains("experts"));
    for (matrix, parts) in [
        ("gate_up_proj", &["gate_proj", "up_proj"][..]),
        ("down_proj", &["down_proj"]),
    ] {
        for (ending, of_stack) in [("weight", ""), ("weight_scale_inv", "_scale_inv")] {
            let (mut data, mut rows, mut last) = (Vec::new(), 0, None);
            for expert in 0..EXPERTS {
                rows = 0;
                for part in parts {
                    let name = format!("model.layers.0.mlp.experts.{expert}.{part}.{ending}");
                    let mut all = checkpoint.quantized.iter();
                    let part = all.find(|(other, ..)| *other == name).unwrap();
                    data.extend_from_slice(&part.3);
                    rows += part.2[0];
                    last = Some((part.1, part.2[1]));
                }
            }
            let (dtype, columns) = last.unwrap();
            let name = format!("model.layers.0.mlp.experts.{matrix}{of_stack}");
            let shape = vec![EXPERTS, rows, columns];
            stacked.quantized.push((name, dtype, shape, data));
        }
    }
    assert!(all(stacked.folder().path()) == expected);
}

/// Shards take parts: the same bytes as those of the whole.
#[test]
// Ranges are what is compared.
#[allow(clippy::single_range_in_vec_init)]
fn parts_are_those_of_the_whole() {
    for name in ["fp8-block", "fp8-experts", "nvfp4"] {
        let folder = read(name).folder();
        let opened = open_weights(folder.path()).unwrap();
        for (name, info) in opened.header().tensors() {
            let whole = opened.bytes(name, info).into_owned();
            let row = (info.dims[0] as usize) / info.format.block_size() * info.format.type_size();
            let half = row / info.format.type_size() / 2 * info.format.type_size();
            // The second half of the rows, then half of each row.
            let rows = whole.len() / row;
            let mut ranges = vec![vec![rows / 2 * row..whole.len()]];
            ranges.push((0..rows).map(|i| i * row..i * row + half).collect());
            for ranges in ranges {
                let expected: Vec<u8> = ranges
                    .iter()
                    .flat_map(|r| whole[r.clone()].to_vec())
                    .collect();
                let parts = opened.parts(name, info, &ranges);
                assert!(*parts == expected, "{name} {ranges:?}");
            }
        }
    }
}

/// Why a folder is refused when it is opened or loaded.
fn refusal(checkpoint: &Checkpoint, quantization: &Json) -> String {
    let folder = tempfile::tempdir().unwrap();
    checkpoint.write(quantization, folder.path());
    let file = match ModelFile::open(folder.path()) {
        Ok(file) => file,
        Err(error) => return error.to_string(),
    };
    let loaded = super::load_file(file, &LoadOptions::default());
    loaded.err().expect("a damaged model loads").to_string()
}

#[test]
fn damaged_checkpoints_are_refused_by_name() {
    let check = |name: &str, change: &dyn Fn(&mut Checkpoint), expected: &[&str]| {
        let mut checkpoint = read(name);
        change(&mut checkpoint);
        let reason = refusal(&checkpoint, checkpoint.quantization());
        for expected in expected {
            assert!(reason.contains(expected), "{name}: {reason}");
        }
    };
    let drop = |ending: &'static str| {
        move |c: &mut Checkpoint| c.quantized.retain(|(name, ..)| !name.ends_with(ending))
    };
    check(
        "fp8-block",
        &drop("up_proj.weight_scale_inv"),
        &["mlp.up_proj", "no weight_scale"],
    );
    check(
        "tensor",
        &drop("up_proj.weight"),
        &["mlp.up_proj", "no weight"],
    );
    check(
        "nvfp4",
        &drop("q_proj.weight_global_scale"),
        &["q_proj", "weight_global_scale"],
    );
    check(
        "mxfp4",
        &drop("q_proj.weight_scale"),
        &["q_proj", "no weight_scale"],
    );
    let nan = |ending: &'static str, bytes: &'static [u8]| {
        move |c: &mut Checkpoint| c.part(ending).3[..bytes.len()].copy_from_slice(bytes)
    };
    const NAN: [u8; 4] = f32::NAN.to_le_bytes();
    check(
        "fp8-block",
        &nan("weight_scale_inv", &NAN),
        &["blk.0", "a scale is NaN"],
    );
    check(
        "fp8-block",
        &nan("down_proj.weight", &[0x7f]),
        &["ffn_down", "a weight is NaN"],
    );
    check(
        "fp8-experts",
        &nan("experts.1.up_proj.weight", &[0xff]),
        &["ffn_up_exps", "NaN"],
    );
    check(
        "tensor",
        &nan("o_proj.weight_scale", &[0; 4]),
        &["attn_output", "a scale is 0"],
    );
    check(
        "mxfp4",
        &nan("up_proj.weight_scale", &[255]),
        &["ffn_up", "a scale is NaN"],
    );
    check(
        "nvfp4",
        &nan("up_proj.weight_scale", &[0x7f]),
        &["ffn_up", "a scale is NaN"],
    );
    check(
        "nvfp4",
        &nan("up_proj.weight_scale", &[0xb8]),
        &["ffn_up", "a scale is -1"],
    );
    check(
        "nvfp4",
        &nan("up_proj.weight_global_scale", &NAN),
        &["up_proj", "a scale is NaN"],
    );
    let half = |ending: &'static str| {
        move |c: &mut Checkpoint| {
            let (_, _, shape, data) = c.part(ending);
            shape[0] /= 2;
            data.truncate(data.len() / 2);
        }
    };
    check(
        "channel",
        &half("up_proj.weight_scale"),
        &["mlp.up_proj", "[32, 1]"],
    );
    check(
        "mxfp4",
        &half("up_proj.weight_scale"),
        &["mlp.up_proj", "[32, 2]"],
    );
    check(
        "fp8-block",
        &half("up_proj.weight"),
        &["mlp.up_proj", "do not fit"],
    );
    let typed =
        |ending: &'static str, dtype: Dtype| move |c: &mut Checkpoint| c.part(ending).1 = dtype;
    check(
        "tensor",
        &typed("up_proj.weight", Dtype::F8_E5M2),
        &["mlp.up_proj", "F8_E5M2"],
    );
    check(
        "mxfp4",
        &typed("up_proj.weight_scale", Dtype::F8_E4M3),
        &["F8_E4M3"],
    );
    let mut checkpoint = read("tensor");
    let mut all = checkpoint.quantized.iter();
    let place = all.position(|(name, ..)| name.ends_with("up_proj.weight"));
    // One in each file.
    let again = checkpoint.quantized[place.unwrap()].clone();
    checkpoint.quantized.insert(place.unwrap() + 1, again);
    let reason = refusal(&checkpoint, checkpoint.quantization());
    assert!(
        reason.contains("up_proj") && reason.contains("twice"),
        "{reason}"
    );
    for (quantization, expected) in [
        (json!({"quant_method": "bitnet"}), "bitnet"),
        (json!({"quant_method": "mxfp4"}), "mxfp4"),
        (
            json!({"quant_method": "fp8", "ignored_layers": ["up_proj"]}),
            "leaves it as it is",
        ),
        (Json::Null, "F8_E4M3"),
    ] {
        let reason = refusal(&read("tensor"), &quantization);
        assert!(reason.contains(expected), "{reason}");
    }
}

/// One of each way to store a matrix, token by token on the device, as graphs.
#[test]
fn devices_decode_quantized_checkpoints() {
    if device().is_cpu() {
        return;
    }
    for name in ["fp8-block", "fp8-experts", "nvfp4"] {
        let checkpoint = read(name);
        let folder = checkpoint.folder();
        let difference = super::formats::difference_in_steps(&checkpoint.case, folder.path());
        assert!(difference < 0.03, "{name}: {difference}");
    }
}

/// Prompts as 8-bit floats times 8-bit floats, where the GPU has that: each activation is off by up to a 32nd, and so are
/// answers of models this small; a wrong scale or sum is off by its own size.
#[test]
fn devices_multiply_prompts_as_8_bit_floats() {
    const NAME: &str = "quantized::devices_multiply_prompts_as_8_bit_floats";
    let Device::Rocm(rocm) = device() else {
        return;
    };
    if !multiplies_float8(rocm.device(), Format::F8E4M3).unwrap() {
        return;
    }
    in_child(NAME, &[("CANDLE_ROCM_QMATMUL", "float8")], || {
        for name in ["fp8-block", "fp8-latent", "channel", "fused"] {
            let checkpoint = read(name);
            let folder = checkpoint.folder();
            let difference = checkpoint.case.difference(folder.path());
            assert!((3e-3..0.2).contains(&difference), "{name}: {difference}");
        }
    });
}
