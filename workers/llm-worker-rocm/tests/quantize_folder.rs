//! `quantize` into folders of safetensors as a user runs it: the bytes that are written, what the configuration says of
//! them, and that nothing else changes.

use candle_core::Device;
use float8::F8E4M3;
use half::bf16;
use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::model::{LoadOptions, ModelFile};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{json, Value as Json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Shape and values.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

const HIDDEN: usize = 192;
const WIDE: usize = 320;
const VOCABULARY: usize = 50;

/// A model of one block, with experts as Qwen3 has them.
struct Model {
    folder: tempfile::TempDir,
    tensors: Tensors,
}

fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let mut state = seed as u64 * 2 + 1;
    let mut number = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        let number = (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
        // As they are stored.
        bf16::from_f32(number * 0.1).to_f32()
    };
    (0..count).map(|_| number()).collect()
}

impl Model {
    fn new() -> Self {
        let shapes: [(&str, &[usize]); 18] = [
            ("model.embed_tokens.weight", &[VOCABULARY, HIDDEN]),
            ("model.norm.weight", &[HIDDEN]),
            ("lm_head.weight", &[VOCABULARY, HIDDEN]),
            ("model.layers.0.input_layernorm.weight", &[HIDDEN]),
            ("model.layers.0.post_attention_layernorm.weight", &[HIDDEN]),
            ("model.layers.0.self_attn.q_norm.weight", &[48]),
            ("model.layers.0.self_attn.k_norm.weight", &[48]),
            ("model.layers.0.self_attn.q_proj.weight", &[HIDDEN, HIDDEN]),
            ("model.layers.0.self_attn.k_proj.weight", &[96, HIDDEN]),
            ("model.layers.0.self_attn.v_proj.weight", &[96, HIDDEN]),
            ("model.layers.0.self_attn.o_proj.weight", &[HIDDEN, HIDDEN]),
            ("model.layers.0.mlp.gate.weight", &[2, HIDDEN]),
            (
                "model.layers.0.mlp.experts.0.gate_proj.weight",
                &[WIDE, HIDDEN],
            ),
            (
                "model.layers.0.mlp.experts.0.up_proj.weight",
                &[WIDE, HIDDEN],
            ),
            (
                "model.layers.0.mlp.experts.0.down_proj.weight",
                &[HIDDEN, WIDE],
            ),
            (
                "model.layers.0.mlp.experts.1.gate_proj.weight",
                &[WIDE, HIDDEN],
            ),
            (
                "model.layers.0.mlp.experts.1.up_proj.weight",
                &[WIDE, HIDDEN],
            ),
            (
                "model.layers.0.mlp.experts.1.down_proj.weight",
                &[HIDDEN, WIDE],
            ),
        ];
        let tensor = |(seed, (name, shape)): (usize, &(&str, &[usize]))| {
            let values = numbers(shape.iter().product(), seed);
            (name.to_string(), (shape.to_vec(), values))
        };
        let model = Self {
            folder: tempfile::tempdir().unwrap(),
            tensors: shapes.iter().enumerate().map(tensor).collect(),
        };
        model.write();
        model
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The model's folder, with files that are copied and files that are not.
    fn write(&self) {
        let path = self.path("model");
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir(&path).unwrap();
        let config = json!({
            "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe",
            "hidden_size": HIDDEN, "intermediate_size": WIDE, "moe_intermediate_size": WIDE,
            "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 48, "max_position_embeddings": 128, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-6,
            "hidden_act": "silu", "num_experts": 2, "num_experts_per_tok": 1,
            "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
            "rope_theta": 10000.0, "tie_word_embeddings": false,
        });
        std::fs::write(path.join("config.json"), config.to_string()).unwrap();
        let vocabulary: serde_json::Map<String, Json> = (0..VOCABULARY)
            .map(|id| (format!("t{id}"), id.into()))
            .collect();
        let tokenizer = json!({
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
            "added_tokens": [],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        });
        std::fs::write(path.join("tokenizer.json"), tokenizer.to_string()).unwrap();
        for name in ["chat_template.jinja", "pytorch_model.bin", ".cache"] {
            std::fs::write(path.join(name), name).unwrap();
        }
        std::fs::create_dir(path.join("original")).unwrap();
        for part in 0..2 {
            let data: Vec<(String, Vec<usize>, Vec<u8>)> = (self.tensors.iter())
                .skip(part)
                .step_by(2)
                .map(|(name, (shape, values))| {
                    let bytes = values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes());
                    (name.clone(), shape.clone(), bytes.collect())
                })
                .collect();
            let views = data.iter().map(|(name, shape, bytes)| {
                let view = TensorView::new(Dtype::BF16, shape.clone(), bytes);
                (name.clone(), view.unwrap())
            });
            let file = path.join(format!("part-{part}.safetensors"));
            safetensors::serialize_to_file(views, None, &file).unwrap();
        }
    }

    fn quantize(&self, ty: &str, output: &str, more: &[&str]) -> Output {
        let (model, output) = (self.path("model"), self.path(output));
        Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"))
            .env("ROCM_PATH", "/nonexistent/rocm")
            .env_remove("HIP_PATH")
            .stdin(Stdio::null())
            .args(["quantize", "--model", model.to_str().unwrap()])
            .args(["--type", ty, output.to_str().unwrap()])
            .args(more)
            .output()
            .unwrap()
    }

    /// The names beside the model.
    fn beside(&self) -> Vec<String> {
        names(self.folder.path())
            .into_iter()
            .filter(|name| name != "model")
            .collect()
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<String> = entries
        .map(|entry| name(entry).into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn succeeded(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refused(output: &Output, why: &str) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(why), "{message}");
}

/// What was written.
struct Written {
    file: Vec<u8>,
    config: Json,
}

impl Written {
    fn open(folder: &Path) -> Self {
        let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
        Self {
            file: std::fs::read(folder.join("model.safetensors")).unwrap(),
            config: serde_json::from_str(&config).unwrap(),
        }
    }

    fn tensors(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.file).unwrap()
    }

    /// Dtype, shape and bytes of a tensor, which lies where its elements may.
    fn tensor(&self, name: &str) -> (Dtype, Vec<usize>, Vec<u8>) {
        let tensors = self.tensors();
        let view = tensors
            .tensor(name)
            .unwrap_or_else(|_| panic!("{name} is missing"));
        let at = view.data().as_ptr() as usize - self.file.as_ptr() as usize;
        assert_eq!(at * 8 % view.dtype().bitsize(), 0, "{name} at {at}");
        (view.dtype(), view.shape().to_vec(), view.data().to_vec())
    }
}

fn is_quantized(name: &str) -> bool {
    name.contains("_proj")
}

/// Tensors that stay are as they were, and named to programs that quantize what they are not told to leave.
fn check_others(model: &Model, written: &Written, left: &Json) {
    for (name, (shape, values)) in &model.tensors {
        if is_quantized(name) {
            continue;
        }
        let bytes: Vec<u8> = values
            .iter()
            .flat_map(|v| bf16::from_f32(*v).to_le_bytes())
            .collect();
        assert_eq!(
            written.tensor(name),
            (Dtype::BF16, shape.clone(), bytes),
            "{name}"
        );
    }
    let expected = ["lm_head", "model.embed_tokens", "model.layers.0.mlp.gate"];
    assert_eq!(*left, json!(expected));
    let source = std::fs::read(model.path("model/config.json")).unwrap();
    let source: Json = serde_json::from_slice(&source).unwrap();
    for (key, value) in source.as_object().unwrap() {
        assert_eq!(written.config[key], *value, "{key}");
    }
}

#[test]
fn fp8_has_blocks_with_a_scale_each() {
    let model = Model::new();
    let shown = succeeded(&model.quantize("fp8", "out", &["--json"]));
    assert_eq!(model.beside(), ["out"]);
    assert_eq!(
        names(&model.path("out")),
        [
            "chat_template.jinja",
            "config.json",
            "model.safetensors",
            "tokenizer.json"
        ]
    );
    let written = Written::open(&model.path("out"));
    let config = &written.config["quantization_config"];
    assert_eq!(config["quant_method"], "fp8");
    assert_eq!(config["fmt"], "e4m3");
    assert_eq!(config["activation_scheme"], "dynamic");
    assert_eq!(config["weight_block_size"], json!([128, 128]));
    check_others(&model, &written, &config["modules_to_not_convert"]);
    let mut matrices = 0;
    for (name, (shape, values)) in model.tensors.iter().filter(|(name, _)| is_quantized(name)) {
        let (rows, columns) = (shape[0], shape[1]);
        let (dtype, found, bits) = written.tensor(name);
        assert_eq!((dtype, &found), (Dtype::F8_E4M3, shape), "{name}");
        let (dtype, found, scales) = written.tensor(&format!("{name}_scale_inv"));
        let across = columns.div_ceil(128);
        assert_eq!(
            (dtype, found),
            (Dtype::F32, vec![rows.div_ceil(128), across])
        );
        let scales: Vec<f32> = (scales.chunks_exact(4))
            .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
            .collect();
        let mut largest = vec![0f32; scales.len()];
        for (i, (value, bits)) in values.iter().zip(&bits).enumerate() {
            let block = i / columns / 128 * across + i % columns / 128;
            let (element, scale) = (F8E4M3::from_bits(*bits).to_f32(), scales[block]);
            // Half a step: of 8 in an octave, or of the smallest ones.
            let step = (value.abs() / 8.0).max(scale / 64.0 / 8.0);
            let error = (element * scale - value).abs();
            assert!(
                error <= step / 2.0 * 1.0001,
                "{name} {i}: {value}, {element} x {scale}"
            );
            largest[block] = largest[block].max(element.abs());
        }
        assert!(
            largest.iter().all(|largest| *largest == 448.0),
            "{name}: {largest:?}"
        );
        matrices += 1;
    }
    assert_eq!(written.tensors().len(), model.tensors.len() + matrices);
    let summary: Json = serde_json::from_str(&shown).unwrap();
    assert_eq!(summary["tensors"], json!({"BF16": 8, "FP8": matrices}));
    let bytes: usize = (written.tensors().iter())
        .map(|(_, view)| view.data().len())
        .sum();
    assert_eq!(summary["bytes"], bytes);
}

#[test]
fn mxfp4_is_that_of_compressed_tensors() {
    const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    let model = Model::new();
    succeeded(&model.quantize("MXFP4", "out", &["--format", "safetensors"]));
    let written = Written::open(&model.path("out"));
    let config = &written.config["quantization_config"];
    assert_eq!(config["quant_method"], "compressed-tensors");
    assert_eq!(config["format"], "mxfp4-pack-quantized");
    assert_eq!(config["quantization_status"], "compressed");
    let group = &config["config_groups"]["group_0"];
    assert_eq!(group["targets"], json!(["Linear"]));
    let expected = [
        ("num_bits", json!(4)),
        ("type", json!("float")),
        ("strategy", json!("group")),
    ];
    for (key, value) in expected.into_iter().chain([("group_size", json!(32))]) {
        assert_eq!(group["weights"][key], value, "{key}");
    }
    check_others(&model, &written, &config["ignore"]);
    for (name, (shape, values)) in model.tensors.iter().filter(|(name, _)| is_quantized(name)) {
        let (rows, columns) = (shape[0], shape[1]);
        assert!(written.tensors().tensor(name).is_err(), "{name}");
        let (dtype, found, packed) = written.tensor(&format!("{name}_packed"));
        assert_eq!(
            (dtype, found),
            (Dtype::U8, vec![rows, columns / 2]),
            "{name}"
        );
        let (dtype, found, scales) = written.tensor(&format!("{name}_scale"));
        assert_eq!(
            (dtype, found),
            (Dtype::U8, vec![rows, columns / 32]),
            "{name}"
        );
        for (group, values) in values.chunks_exact(32).enumerate() {
            let scale = 2f32.powi(i32::from(scales[group]) - 127);
            for (i, value) in values.iter().enumerate() {
                let at = group * 32 + i;
                let code = packed[at / 2] >> (at % 2 * 4) & 15;
                let sign = if code > 7 { -1.0 } else { 1.0 };
                let found = sign * E2M1[usize::from(code & 7)] * scale;
                // The nearest of all elements, of which the largest is 6.
                let best = E2M1.map(|level| (level * scale - value.abs()).abs());
                let best = best.into_iter().fold(f32::INFINITY, f32::min);
                assert_eq!((found - value).abs(), best, "{name} {at}: {value}, {found}");
            }
            let largest = values.iter().fold(0f32, |max, v| max.max(v.abs()));
            assert!(
                (3.5..7.0).contains(&(largest / scale)),
                "{name}: {largest}, {scale}"
            );
        }
    }
}

#[test]
fn matrices_stay_where_it_is_asked_for() {
    let model = Model::new();
    let keep = ["--keep", "down_proj", "--keep", "k_proj"];
    let shown = succeeded(&model.quantize("FP8", "out", &[&keep[..], &["--dry-run"]].concat()));
    assert!(shown.contains("11 BF16, 7 FP8"), "{shown}");
    assert!(model.beside().is_empty());
    succeeded(&model.quantize("FP8", "out", &keep));
    let written = Written::open(&model.path("out"));
    let left = &written.config["quantization_config"]["modules_to_not_convert"];
    let left: Vec<&str> = left
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Json::as_str)
        .collect();
    assert!(
        left.contains(&"model.layers.0.mlp.experts.1.down_proj"),
        "{left:?}"
    );
    let (dtype, _, _) = written.tensor("model.layers.0.self_attn.k_proj.weight");
    assert_eq!(dtype, Dtype::BF16);
}

#[test]
fn what_is_no_folder_of_original_weights_is_refused() {
    let model = Model::new();
    let formats = |ty, format| model.quantize(ty, "out", &["--format", format]);
    refused(&formats("Q4_0", "safetensors"), "FP8 and MXFP4");
    refused(&formats("FP8", "gguf"), "Q8_0");
    refused(
        &model.quantize("F8_E4M3", "out", &[]),
        "--format safetensors",
    );
    refused(&model.quantize("FP8", "out.gguf", &[]), "is a folder");
    refused(
        &model.quantize("FP8", "out", &["--tensor-type", "a=Q8_0"]),
        "--keep",
    );
    refused(
        &model.quantize("Q8_0", "out", &["--keep", "a"]),
        "--tensor-type",
    );
    let config = model.path("model/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let quantized = text.replacen(
        '{',
        r#"{"quantization_config": {"quant_method": "awq"},"#,
        1,
    );
    std::fs::write(&config, quantized).unwrap();
    refused(
        &model.quantize("FP8", "out", &[]),
        "quantized already (awq)",
    );
    std::fs::write(&config, text).unwrap();
    refused(
        &model.quantize("FP8", "out", &["--keep", "_proj"]),
        "no matrix",
    );
    std::fs::rename(model.path("model"), model.path("folder")).unwrap();
    std::fs::write(model.path("model"), "GGUF").unwrap();
    refused(&model.quantize("FP8", "out", &[]), "GGUF file");
    assert_eq!(model.beside(), ["folder"]);
}

#[test]
fn weights_that_are_not_finite_leave_nothing() {
    let mut model = Model::new();
    let name = "model.layers.0.mlp.experts.1.down_proj.weight";
    for damage in [f32::NAN, f32::INFINITY] {
        model.tensors.get_mut(name).unwrap().1[300] = damage;
        model.write();
        refused(&model.quantize("FP8", "out", &[]), name);
        assert!(model.beside().is_empty(), "{:?}", model.beside());
    }
}

#[test]
fn what_exists_is_replaced_only_if_it_is_a_models_folder() {
    let model = Model::new();
    let out = model.path("out");
    std::fs::create_dir(&out).unwrap();
    succeeded(&model.quantize("FP8", "out", &[]));
    refused(&model.quantize("FP8", "out", &[]), "--force");
    std::fs::write(out.join("old.txt"), "").unwrap();
    succeeded(&model.quantize("FP8", "out", &["--force"]));
    assert!(!out.join("old.txt").exists());
    std::fs::create_dir(out.join("letters")).unwrap();
    refused(
        &model.quantize("FP8", "out", &["--force"]),
        "does not look like",
    );
    std::fs::write(model.path("file"), "precious").unwrap();
    refused(&model.quantize("FP8", "file", &["--force"]), "is a file");
    refused(
        &model.quantize("FP8", "model", &["--force"]),
        "is the model",
    );
    assert_eq!(model.beside(), ["file", "out"]);
    assert_eq!(std::fs::read(model.path("file")).unwrap(), b"precious");
}

/// What the model predicts after each of some tokens.
fn logits(folder: &Path) -> Vec<f32> {
    let file = ModelFile::open(folder).unwrap();
    let model = file.load(&Device::Cpu, &LoadOptions::default()).unwrap();
    let tokens = [3, 41, 7, 0, 29, 11];
    let logits = Scorer::new(model).all_logits(&tokens).unwrap();
    logits.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn what_is_written_is_read_as_nearly_the_same_model() {
    let model = Model::new();
    let expected = logits(&model.path("model"));
    let square = |values: &[f32]| values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    for (ty, least, most) in [("FP8", 1e-4, 0.01), ("MXFP4", 2e-3, 0.04)] {
        succeeded(&model.quantize(ty, ty, &["--format", "safetensors"]));
        let found = logits(&model.path(ty));
        let difference: Vec<f32> = found.iter().zip(&expected).map(|(a, b)| a - b).collect();
        let error = (square(&difference) / square(&expected)).sqrt();
        assert!((least..most).contains(&error), "{ty}: {error}");
    }
}

/// Numbers of Python's that are not JSON's stay in the configuration.
#[test]
fn the_configuration_keeps_its_text() {
    let model = Model::new();
    let config = model.path("model/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    let text = text.replacen('{', "{\"limits\": [0.0, Infinity], ", 1);
    std::fs::write(&config, &text).unwrap();
    succeeded(&model.quantize("FP8", "out", &[]));
    let written = std::fs::read_to_string(model.path("out/config.json")).unwrap();
    let end = text.trim_end().strip_suffix('}').unwrap();
    assert!(written.starts_with(end), "{written}");
    let rest: Json = serde_json::from_str(&format!("{{{}", &written[end.len() + 1..])).unwrap();
    assert_eq!(rest["quantization_config"]["quant_method"], "fp8");
}
