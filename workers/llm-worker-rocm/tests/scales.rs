//! SmolLM2 with its matrices rounded with scales of each shape: what that does to the weights, and to what it predicts.
//!
//! Products are of float32, so that nothing else is rounded. The bounds are what was found and a twentieth of it for the
//! weights, and up to twice of it, or a hundredth, for the perplexity of so short a text.

mod shapes;
mod smollm2;

use llm_worker_rocm::engine::score::Scorer;
use llm_worker_rocm::model::{LoadOptions, ModelFile};
use llm_worker_rocm::perplexity::perplexity;
use shapes::Shape;
use std::path::Path;
use worker::device::DeviceRequest;

const TEXT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/fixtures/text/lighthouse.txt"
);
/// Tokens of the text that are read.
const TOKENS: usize = 128;

/// The shapes that are compared on the whole model: most error of the weights, as its squares relative to theirs, and
/// most change of the perplexity.
const BOUNDS: [(&str, f64, f64); 5] = [
    ("FP8, 64 elements", 0.00066, 0.02),
    ("FP8, 128 x 128", 0.00074, 0.025),
    ("FP8, matrix", 0.00074, 0.045),
    ("NVFP4", 0.0068, 0.2),
    ("MXFP4", 0.0137, 0.28),
];

fn predicted(model: &Path) -> f64 {
    let file = ModelFile::open(model).unwrap();
    let text = std::fs::read_to_string(TEXT).unwrap();
    let mut tokens = file.tokenizer().encode(&text, true).unwrap();
    tokens.truncate(TOKENS);
    let cpu = "cpu".parse::<DeviceRequest>().unwrap().select().unwrap();
    let options = LoadOptions {
        context: Some(TOKENS),
        ..LoadOptions::default()
    };
    let mut model = Scorer::new(file.load(&cpu.device, &options).unwrap());
    perplexity(&mut model, &tokens, TOKENS, |_| Ok(()))
        .unwrap()
        .perplexity
}

#[test]
fn rounded_weights_predict_nearly_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rounded.gguf");
    let measure = |name: &str| {
        let (_, shape) = Shape::ALL.iter().find(|(n, _)| *n == name).unwrap();
        let error = shapes::write(&smollm2::model_path(), *shape, &path);
        (error, predicted(&path))
    };
    let (error, reference) = measure("none");
    assert_eq!(error, 0.0);
    for (name, most_error, most_change) in BOUNDS {
        let (error, found) = measure(name);
        let change = found / reference - 1.0;
        println!("{name:18} {error:9.6} {found:9.4} {:+.3} %", 100.0 * change);
        assert!(error > 0.0 && error <= most_error, "{name}: error {error}");
        assert!(
            change.abs() <= most_change,
            "{name}: {found}, not {reference}"
        );
    }
}
