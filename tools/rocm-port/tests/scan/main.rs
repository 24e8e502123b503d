//! `scan`: what is found in texts, and what is not there although it looks like it.

mod corpus;
mod names;
mod parse;
mod report;
mod rules;
mod source;
mod texts;

use rocm_port::model::Scan;
use rocm_port::parse::Options;
use rocm_port::source::Sources;
use std::path::Path;

/// A folder with files.
fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    folder
}

fn open(folder: &Path) -> Sources {
    rocm_port::source::open(folder.to_str().unwrap()).unwrap()
}

/// Scans one file.
fn scan(text: &str) -> Scan {
    scan_files(&[("a.cu", text.as_bytes())], &Options::default())
}

fn scan_files(files: &[(&str, &[u8])], options: &Options) -> Scan {
    let folder = folder(files);
    rocm_port::rules::scan(&open(folder.path()), options).unwrap()
}

/// The ids of the rules that a scan found, sorted, each once.
fn ids(scan: &Scan) -> Vec<&str> {
    let mut ids: Vec<&str> = scan
        .findings
        .iter()
        .map(|finding| finding.rule.as_str())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
