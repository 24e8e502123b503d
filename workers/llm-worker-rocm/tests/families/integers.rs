//! Checkpoints of integers in groups, as GPTQ, AWQ and compressed-tensors write them, against Hugging Face transformers
//! with the numbers that they stand for.
//!
//! `integers/generate.py` wrote the checkpoints, by the makers' packages, and the logits.

use super::formats::{load, write_gguf};
use super::transformers::{tokenizer, tokens, Case};
use super::*;
use llm_worker_rocm::model::open_weights;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use worker::gguf::Format;

fn files() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/families/integers")
}

/// Writes a case's folder after a change of its configuration and of its tensors, by names.
fn folder(name: &str, change: impl FnOnce(&mut Json, &mut Stored)) -> (TempDir, Case) {
    let text = std::fs::read(files().join(format!("{name}.json"))).unwrap();
    let mut json: Json = serde_json::from_slice(&text).unwrap();
    let mut stored = Stored::read(&files().join(format!("{name}.safetensors")));
    change(&mut json["config"], &mut stored);
    let folder = tempfile::tempdir().unwrap();
    stored.write(&folder.path().join("model.safetensors"));
    for (name, json) in [
        ("config.json", &json["config"]),
        ("tokenizer.json", &tokenizer()),
    ] {
        std::fs::write(folder.path().join(name), json.to_string()).unwrap();
    }
    (folder, Case { json })
}

type Tensor = (safetensors::Dtype, Vec<usize>, Vec<u8>);

/// The tensors of a file.
struct Stored(std::collections::BTreeMap<String, Tensor>);

impl Stored {
    fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let owned = |(name, view): (&str, safetensors::tensor::TensorView)| {
            let tensor = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
            (name.to_string(), tensor)
        };
        Self(tensors.iter().map(owned).collect())
    }

    fn write(&self, path: &Path) {
        let views = self.0.iter().map(|(name, (dtype, shape, data))| {
            let view = safetensors::tensor::TensorView::new(*dtype, shape.clone(), data);
            (name, view.unwrap())
        });
        safetensors::serialize_to_file(views, None, path).unwrap();
    }

    fn get(&mut self, name: &str) -> &mut Tensor {
        self.0.get_mut(name).unwrap()
    }
}

/// Cases, with the formats of a matrix and of the experts, and whether columns are in another order.
const CASES: [(&str, Format, Option<[Format; 2]>, bool); 12] = [
    ("gptq", Format::Q4_0, None, false),
    ("gptq-order", Format::Q4_1, None, true),
    ("gptq-v2", Format::Q8_0, None, false),
    ("gptq-zeros", Format::F16, None, false),
    // Gates have their columns sorted, which stacks have not; the others' rows have one group.
    (
        "gptq-experts",
        Format::Q4_0,
        Some([Format::F16, Format::Q4_0]),
        true,
    ),
    ("awq", Format::Q4_1, None, false),
    (
        "awq-experts",
        Format::Q4_1,
        Some([Format::Q4_1, Format::Q4_1]),
        false,
    ),
    ("packed", Format::Q4_1, None, false),
    ("packed-order", Format::Q4_0, None, true),
    (
        "packed-experts",
        Format::Q4_0,
        Some([Format::Q4_0, Format::Q4_0]),
        false,
    ),
    ("packed-channel", Format::Q8_0, None, false),
    ("int", Format::Q8_0, None, false),
];

/// Whether a case comes: on a simulated device all would take long.
fn comes(name: &str) -> bool {
    device().is_cpu() || ["gptq-order", "gptq-experts", "awq", "packed-order"].contains(&name)
}

#[test]
fn matrices_come_in_blocks_that_hold_them() {
    for (name, format, experts, ordered) in CASES {
        let (folder, _) = folder(name, |_, _| ());
        let weights = open_weights(folder.path()).unwrap();
        let header = weights.header();
        let of = |tensor: &str| header.tensor(&format!("blk.0.{tensor}")).unwrap().format;
        assert_eq!(of("attn_output.weight"), format, "{name}");
        if let Some(experts) = experts {
            let found = ["ffn_gate_exps.weight", "ffn_down_exps.weight"].map(of);
            assert_eq!(found, experts, "{name}");
        }
        let order = header.tensor("blk.0.attn_q.order");
        assert_eq!(order.is_some(), ordered, "{name}");
        assert!(header.tensor("blk.0.ffn_gate_exps.order").is_none());
    }
}

/// In f32 they are the numbers that transformers had, but for offsets that are halves; as they are they multiply
/// activations of 8 bits.
#[test]
fn checkpoints_compute_what_transformers_does() {
    for (name, format, experts, _) in CASES.into_iter().filter(|(name, ..)| comes(name)) {
        let (folder, case) = folder(name, |_, _| ());
        if device().is_cpu() {
            let path = folder.path().join("model.gguf");
            write_gguf(&*open_weights(folder.path()).unwrap(), &path);
            let difference = super::formats::difference_of_prompt(&case, &path);
            println!("{name} in f32: {difference:.1e}");
            // Offsets of Q4_1 are rounded to binary16, as are numbers that fit no blocks.
            let limit = |format| match format {
                Format::Q4_1 | Format::BF16 => 1e-2,
                Format::F16 => 2e-3,
                _ => 1e-4,
            };
            let formats = experts.into_iter().flatten().chain([format]);
            let most = formats.map(limit).fold(0f32, f32::max);
            assert!(difference <= most, "{name} in f32: {difference:e}");
        }
        let logits = Scorer::new(load(folder.path())).all_logits(&tokens());
        let difference = case.difference_of(&logits.unwrap().to_vec2().unwrap());
        println!("{name}: {difference:.1e}");
        assert!(difference <= 5e-2, "{name}: {difference:e}");
    }
}

/// Token by token, on a GPU as graphs.
#[test]
fn columns_in_another_order_decode() {
    for name in ["gptq-order", "packed-order"] {
        let (folder, case) = folder(name, |_, _| ());
        let difference = super::formats::difference_in_steps(&case, folder.path());
        println!("{name}: {difference:.1e}");
        assert!(difference <= 5e-2, "{name}: {difference:e}");
    }
}

#[test]
fn what_is_wrong_with_a_checkpoint_is_said_by_name() {
    let check = |name: &str, change: &dyn Fn(&mut Json, &mut Stored), why: &[&str]| {
        let (folder, _) = folder(name, change);
        let opened = ModelFile::open(folder.path());
        let loaded = opened.and_then(|file| load_file(file, &LoadOptions::default()));
        let message = loaded.err().expect("it must be refused").to_string();
        assert!(why.iter().all(|why| message.contains(why)), "{message}");
    };
    let module = "model.layers.0.mlp.down_proj";
    let part = |part: &str| format!("{module}.{part}");
    let set = |name: &'static str, number: i32| {
        move |_: &mut Json, stored: &mut Stored| {
            stored.get(&part(name)).2[..4].copy_from_slice(&number.to_le_bytes());
        }
    };
    let without = |name: &'static str| {
        move |_: &mut Json, stored: &mut Stored| {
            stored.0.remove(&part(name)).unwrap();
        }
    };
    let settings = |key: &'static str, value: Json| {
        move |config: &mut Json, _: &mut Stored| {
            config["quantization_config"][key] = value.clone();
        }
    };
    for number in [-1, 3, i32::MAX] {
        check("gptq-order", &set("g_idx", number), &[module, "g_idx"]);
    }
    for missing in ["qzeros", "scales", "qweight", "g_idx"] {
        check("gptq-order", &without(missing), &[module, missing]);
    }
    check(
        "packed",
        &without("weight_shape"),
        &[module, "weight_shape"],
    );
    check(
        "packed",
        &without("weight_zero_point"),
        &[module, "weight_zero_point"],
    );
    check("int", &without("weight_scale"), &[module, "weight_scale"]);
    for shape in [-1, 1 << 30, 65] {
        check(
            "packed",
            &set("weight_shape", shape),
            &[module, "weight_shape"],
        );
    }
    // NaN and infinity.
    check(
        "gptq",
        &set("scales", 0x7e00_7e00),
        &[module, "scale", "NaN"],
    );
    check(
        "packed",
        &set("weight_scale", 0x7f80_7f80),
        &[module, "scale", "inf"],
    );
    check("gptq", &settings("bits", 3.into()), &["bits 3"]);
    check("gptq", &settings("bits", 8.into()), &["g_idx"]);
    check(
        "gptq",
        &settings("group_size", 64.into()),
        &["scales", "[2, 64]"],
    );
    check("gptq", &settings("quant_method", "hqq".into()), &["hqq"]);
    check("awq", &settings("version", "gemv".into()), &["gemv"]);
    check(
        "packed",
        &settings("format", "marlin-24".into()),
        &["marlin-24"],
    );
    // Rows that are missing.
    let shorter = |_: &mut Json, stored: &mut Stored| {
        let (_, shape, data) = stored.get(&part("qweight"));
        shape[0] -= 1;
        data.truncate(shape[0] * shape[1] * 4);
    };
    check("awq", &shorter, &["ffn_down"]);
    check("gptq", &shorter, &[module, "g_idx"]);
}
