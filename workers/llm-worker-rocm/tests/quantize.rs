//! `quantize` and `perplexity` as a user runs them, on a tiny model.

#[path = "../../worker/tests/common/mod.rs"]
mod common;

use candle_core::Device;
use common::tiny_llama;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use worker::gguf::{dtype, load, Format, MappedGguf, Value, Weights};

fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"))
        .env("ROCM_PATH", "/nonexistent/rocm")
        .env_remove("HIP_PATH")
        .stdin(Stdio::null())
        .args(args)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn with_model() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        tiny_llama().write(&folder.path("model.gguf"));
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn quantize(&self, ty: &str, output: &str, more: &[&str]) -> Output {
        let (model, output) = (self.path("model.gguf"), self.path(output));
        let mut args = vec!["quantize", "--model", model.to_str().unwrap()];
        args.extend(["--type", ty, output.to_str().unwrap()]);
        args.extend(more);
        run(&args)
    }

    fn files(&self) -> usize {
        std::fs::read_dir(self.0.path()).unwrap().count()
    }
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

fn values(file: &MappedGguf, name: &str) -> Vec<f32> {
    let tensor = load(file, name, &Device::Cpu).unwrap();
    let tensor = tensor.dequantize(&Device::Cpu).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Squared error over squared values.
fn error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |v: f32| f64::from(v).powi(2);
    let difference: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    difference / expected.iter().map(|&v| square(v)).sum::<f64>()
}

#[test]
fn every_type_that_fits_is_written_and_read_back() {
    let folder = Folder::with_model();
    let original = MappedGguf::open(&folder.path("model.gguf")).unwrap();
    let mut written = 0;
    for ty in Format::ALL {
        // The tiny model's rows are 32 and 64 wide.
        if dtype(*ty).is_err() || ty.name() == "Q8_1" || ty.block_size() > 32 {
            continue;
        }
        let output = format!("{}.gguf", ty.name());
        succeeded(&folder.quantize(ty.name(), &output, &[]));
        let file = MappedGguf::open(&folder.path(&output)).unwrap();
        let down = "blk.0.ffn_down.weight";
        assert_eq!(file.header().tensor(down).unwrap().format, *ty);
        let norm = "output_norm.weight";
        assert_eq!(file.header().tensor(norm).unwrap().format.name(), "F32");
        assert_eq!(values(&file, norm), values(&original, norm));
        // A step of 2^-bits of the range on uniform values, with room for scales; 0 for the exact type.
        let bits = 8.0 * ty.type_size() as f64 / ty.block_size() as f64;
        let limit = if ty.name() == "F32" {
            0.0
        } else {
            8.0 * 4f64.powf(1.0 - bits.min(11.0))
        };
        let error = error(&values(&file, down), &values(&original, down));
        assert!(
            error <= limit,
            "{}: error {error:e}, limit {limit:e}",
            ty.name()
        );
        written += 1;
    }
    assert!(written >= 8, "only {written} types");
    assert_eq!(folder.files(), written + 1, "something was left behind");
}

#[test]
fn metadata_is_kept_and_says_what_the_file_is() {
    let folder = Folder::with_model();
    let shown = succeeded(&folder.quantize("q8_0", "out.gguf", &["--json"]));
    let summary: Json = serde_json::from_str(&shown).unwrap();
    let original = MappedGguf::open(&folder.path("model.gguf")).unwrap();
    let file = MappedGguf::open(&folder.path("out.gguf")).unwrap();
    for (key, value) in original.header().metadata() {
        assert_eq!(file.header().get(key), Some(value), "{key}");
    }
    assert_eq!(file.header().get("general.file_type"), Some(&Value::U32(7)));
    let bytes: u64 = file.header().tensors().map(|(_, info)| info.bytes).sum();
    assert_eq!(summary["bytes"], bytes);
    assert_eq!(summary["tensors"]["Q8_0"], 8);
    assert_eq!(summary["tensors"]["F32"], 3);
}

#[test]
fn overrides_and_dry_runs() {
    let folder = Folder::with_model();
    let overrides = ["--tensor-type", "attn_v=F16", "--dry-run"];
    let shown = succeeded(&folder.quantize("Q4_0", "out.gguf", &overrides));
    assert!(
        shown.contains("1 F16") && shown.contains("7 Q4_0"),
        "{shown}"
    );
    assert_eq!(folder.files(), 1);
}

fn refused(output: &Output, why: &str) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains(why), "{message}");
}

#[test]
fn what_exists_is_not_replaced_unasked() {
    let folder = Folder::with_model();
    std::fs::write(folder.path("out.gguf"), "precious").unwrap();
    refused(&folder.quantize("Q8_0", "out.gguf", &[]), "--force");
    assert_eq!(std::fs::read(folder.path("out.gguf")).unwrap(), b"precious");
    refused(
        &folder.quantize("Q8_0", "model.gguf", &["--force"]),
        "is the model",
    );
    succeeded(&folder.quantize("Q8_0", "out.gguf", &["--force"]));
    MappedGguf::open(&folder.path("out.gguf")).unwrap();
}

#[test]
fn bad_types_and_bad_weights_are_refused_and_leave_nothing() {
    let folder = Folder::with_model();
    refused(&folder.quantize("Q8_K", "out.gguf", &[]), "Q8_K");
    refused(
        &folder.quantize("Q4_0", "out.gguf", &["--tensor-type", "x"]),
        "PATTERN=TYPE",
    );
    let mut damaged = tiny_llama();
    damaged.tensor_mut("blk.0.ffn_up.weight").data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    damaged.write(&folder.path("model.gguf"));
    refused(
        &folder.quantize("Q4_0", "out.gguf", &[]),
        "blk.0.ffn_up.weight has weights that are not finite",
    );
    assert_eq!(folder.files(), 1);
}

fn perplexity(model: &Path, words: &Path, more: &[&str]) -> Output {
    let mut args = vec![
        "perplexity",
        "--device",
        "cpu",
        "--json",
        "--model",
        model.to_str().unwrap(),
    ];
    args.push(words.to_str().unwrap());
    args.extend(more);
    run(&args)
}

#[test]
fn perplexity_is_the_exponential_of_the_mean_loss() {
    let folder = Folder::with_model();
    let words = folder.path("text");
    std::fs::write(&words, "the cat that bathed ate a hat ".repeat(4)).unwrap();
    let model = folder.path("model.gguf");
    let json = |more: &[&str]| -> Json {
        serde_json::from_str(&succeeded(&perplexity(&model, &words, more))).unwrap()
    };
    let whole = json(&[]);
    let (value, nats) = (
        whole["perplexity"].as_f64().unwrap(),
        whole["nats_per_token"].as_f64().unwrap(),
    );
    assert!((value.ln() - nats).abs() < 1e-9 && value > 1.0, "{whole}");
    assert_eq!(whole["chunks"], 1);
    // Each piece leaves its first token unpredicted.
    let pieces = json(&["--context", "10"]);
    let (all, some) = (
        whole["tokens"].as_u64().unwrap(),
        pieces["tokens"].as_u64().unwrap(),
    );
    assert_eq!(some + pieces["chunks"].as_u64().unwrap() - 1, all);
    assert_eq!(json(&["--max-tokens", "12"])["tokens"], 11);
    refused(
        &perplexity(&model, &words, &["--context", "1"]),
        "a context of 1 tokens",
    );
    std::fs::write(&words, "a").unwrap();
    refused(&perplexity(&model, &words, &[]), "too short");
}
