//! The documentation's tables of environment variables are the code's.

use candle_rocm::config;
use std::path::Path;

/// Rows of the variables in `text` that name one of this product's.
fn rows(text: &str) -> Vec<String> {
    text.lines()
        .map(|line| line.trim_start_matches("//!").trim())
        .filter(|line| line.starts_with("| `CANDLE_ROCM_") || line.starts_with("| `CK_"))
        .map(str::to_string)
        .collect()
}

#[test]
fn documentation_has_the_variables_of_the_code() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kernels = candle_rocm_kernels::VARIABLES.iter();
    let all: Vec<String> = kernels
        .chain(&config::VARIABLES)
        .map(|variable| variable.row())
        .collect();
    for file in ["../docs/environment.md", "src/lib.rs"] {
        let text = std::fs::read_to_string(here.join(file)).unwrap();
        assert_eq!(rows(&text).join("\n"), all.join("\n"), "{file}");
    }
}
