//! The register of architectures: the table that the docs have of it, and what it says of these tests.

use super::list::families;
use super::transformers::architectures;
use llm_worker_rocm::architectures::{markdown_table, rows};
use std::collections::HashSet;
use std::path::Path;

const BEGIN: &str =
    "<!-- Written by `CANDLE_ROCM_WRITE_DOCS=1 cargo test -p llm-worker-rocm --test families register` -->\n";
const END: &str = "<!-- End of what is written -->\n";

#[test]
fn the_table_in_the_docs_is_that_of_the_register() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/llm.md");
    let docs = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = docs.split_once(BEGIN).expect("the mark before the table");
    let (table, after) = rest.split_once(END).expect("the mark behind the table");
    let expected = format!("\n{}\n", markdown_table());
    if std::env::var_os("CANDLE_ROCM_WRITE_DOCS").is_some() {
        let docs = [before, BEGIN, &expected, END, after].concat();
        std::fs::write(&path, docs).unwrap();
    } else {
        assert!(
            table == expected,
            "{} is out of date; the mark before the table says how to write it",
            path.display()
        );
    }
}

/// What the register says of each architecture's comparisons is true: there is a reference in f64, or numbers of
/// transformers.
#[test]
fn the_register_claims_the_comparisons_that_there_are() {
    let in_f64: HashSet<&str> = families().iter().map(|family| family.name).collect();
    let by_transformers = architectures();
    for row in rows() {
        let claims = |what: &str| row.compared_with.contains(what);
        let name = row.gguf.unwrap_or_default();
        let in_f64 = name == "rwkv7" || in_f64.contains(name);
        assert_eq!(claims("f64"), in_f64, "{row:?}");
        let mut names = row.folders.iter();
        let by_others = ["bailingmoe", "bailingmoe2", "internlm2", "nemotron_h_moe"];
        let compared =
            by_others.contains(&name) || names.any(|name| by_transformers.contains(*name));
        assert_eq!(claims("transformers"), compared, "{row:?}");
    }
}
