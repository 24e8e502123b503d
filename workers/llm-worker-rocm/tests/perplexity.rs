//! SmolLM2 in every type that `quantize` writes: what it predicts on the device is what it predicts on the CPU.
//!
//! Like is compared with like. With activations as they are (`CANDLE_DEQUANTIZE_ALL` on the CPU,
//! `CANDLE_ROCM_QMATMUL=dequantize` on the device) perplexities differ by 0.1 % at most. Products on 8-bit activations
//! round differently on each device, which a text this short shows: they are held to a wider limit, and the table that
//! is printed says what they came to.
//!
//! A few types are compared on the whole model; all of them on its first blocks, with the embedding table as it was, to
//! keep a simulated device's time short. Rows of SmolLM2 are 576 elements but for `ffn_down`, so types with blocks of
//! 256 hold `ffn_down` and smaller types the rest, as for any program that writes them.

mod smollm2;

use std::path::Path;
use std::process::Command;
use worker::gguf::{dtype, Format, GgufWriter, MappedGguf, NewTensor, Value, Weights};

const TEXT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/text/lighthouse.txt"
);
/// Tokens of the text that are read.
const TOKENS: &str = "64";
/// Largest relative difference of perplexities, activations as they are.
const EXACT: f64 = 1e-3;
/// The same with activations of 8 bits.
const ROUNDED: f64 = 0.1;
/// The types that most files have, compared on the whole model.
const COMMON: [&str; 3] = ["Q4_0", "Q8_0", "Q4_K_M"];
/// Blocks of the model on which every type is compared.
const BLOCKS: u32 = 2;

fn worker(args: &[&str], variables: &[(&str, &str)]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"))
        .env_remove("CANDLE_DEQUANTIZE_ALL")
        .env_remove("CANDLE_ROCM_QMATMUL")
        .envs(variables.iter().copied())
        .args(args)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{args:?} {variables:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn perplexity(model: &Path, device: &str, variables: &[(&str, &str)]) -> f64 {
    let model = model.to_str().unwrap();
    let args = [
        "perplexity",
        "--model",
        model,
        TEXT,
        "--device",
        device,
        "--max-tokens",
        TOKENS,
        "--json",
    ];
    let found: serde_json::Value = serde_json::from_str(&worker(&args, variables)).unwrap();
    assert_eq!(found["tokens"], 63);
    found["perplexity"].as_f64().unwrap()
}

/// Writes `model` in a type, compares devices, and says by how much they differ: exactly and with 8-bit activations.
/// `more` is for `quantize`.
fn compare(model: &Path, ty: &str, more: &[&str]) -> (f64, [f64; 2]) {
    let file = tempfile::Builder::new().suffix(".gguf").tempfile().unwrap();
    let path = file.path();
    let (from, to) = (model.to_str().unwrap(), path.to_str().unwrap());
    let quantize = ["quantize", "--model", from, to, "--type", ty, "--force"];
    worker(&[&quantize, more].concat(), &[]);
    let cpu = perplexity(path, "cpu", &[("CANDLE_DEQUANTIZE_ALL", "1")]);
    let device = std::env::var("CANDLE_ROCM_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_string());
    let exact = match device.as_str() {
        "cpu" => cpu,
        device => perplexity(path, device, &[("CANDLE_ROCM_QMATMUL", "dequantize")]),
    };
    let rounded = perplexity(path, &device, &[]);
    let differences = [exact, rounded].map(|found| (found / cpu - 1.0).abs());
    println!(
        "{ty:8} {cpu:12.4} {:10.6} % {:8.3} %",
        100.0 * differences[0],
        100.0 * differences[1]
    );
    (cpu, differences)
}

/// The first blocks of a model as a model of its own.
fn first_blocks(model: &Path, count: u32, to: &Path) {
    let source = MappedGguf::open(model).unwrap();
    let gguf = source.header();
    let block_count = format!(
        "{}.block_count",
        gguf.require_str("general.architecture").unwrap()
    );
    let metadata: Vec<(String, Value)> = gguf
        .metadata()
        .filter(|(key, _)| *key != "general.alignment")
        .map(|(key, value)| match key == block_count {
            true => (block_count.clone(), Value::U32(count)),
            false => (key.to_string(), value.clone()),
        })
        .collect();
    let kept = |name: &str| {
        let block = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split('.').next());
        block.is_none_or(|number| number.parse::<u32>().unwrap() < count)
    };
    let tensors: Vec<_> = gguf.tensors().filter(|(name, _)| kept(name)).collect();
    let table: Vec<NewTensor> = tensors
        .iter()
        .map(|(name, info)| NewTensor {
            name: name.to_string(),
            dims: info.dims.clone(),
            format: info.format,
        })
        .collect();
    let mut writer =
        GgufWriter::new(std::fs::File::create(to).unwrap(), &metadata, &table).unwrap();
    for (name, info) in tensors {
        writer.write(&source.bytes(name, info)).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn common_types_on_the_whole_model() {
    for ty in COMMON {
        let (_, [exact, rounded]) = compare(&smollm2::model_path(), ty, &[]);
        assert!(exact <= EXACT, "{ty}: {exact}");
        assert!(rounded <= ROUNDED, "{ty} with 8-bit activations: {rounded}");
    }
}

#[test]
fn every_type_on_the_first_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("first.gguf");
    first_blocks(&smollm2::model_path(), BLOCKS, &model);
    let mut compared = 0;
    for ty in Format::ALL {
        // No file has weights in the types of activations, and no GGUF file floats of 8 bits.
        if dtype(*ty).is_err() || ty.is_of_activations() || *ty == Format::F8E4M3 {
            continue;
        }
        let (cpu, [exact, rounded]) =
            compare(&model, ty.name(), &["--tensor-type", "token_embd=Q4_1"]);
        assert!(cpu.is_finite() && cpu > 1.0, "{}: {cpu}", ty.name());
        // A device multiplies weights of 16 bits with activations of 16 bits.
        let limit = if ["F16", "BF16"].contains(&ty.name()) {
            ROUNDED
        } else {
            EXACT
        };
        assert!(exact <= limit, "{}: {exact}", ty.name());
        assert!(
            rounded <= ROUNDED,
            "{} with 8-bit activations: {rounded}",
            ty.name()
        );
        compared += 1;
    }
    assert_eq!(compared, 26);
}
