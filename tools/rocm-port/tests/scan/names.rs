//! `names.txt`: the identifiers of the shim headers.
//!
//! `ROCM_PORT_WRITE_NAMES=1 cargo test -p rocm-port --test scan names` renews it after headers have changed.

use std::collections::BTreeSet;
use std::process::Command;

/// The headers that a unit may include.
const HEADERS: &[&str] = &[
    "cuda.h",
    "cub.h",
    "cooperative_groups.h",
    "curand.h",
    "pipeline.h",
    "wmma.h",
    "thrust.h",
    "ptx.h",
];

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/rules/names.txt");

/// All identifiers of the headers, after their macros and with the macros' names.
fn identifiers() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for header in HEADERS {
        let include = format!("#include \"port/{header}\"\n");
        // A header that is not there has no names.
        let Ok(unit) = candle_rocm_kernels::translation_unit("names.hip", &include) else {
            continue;
        };
        let folder = super::folder(&[("names.cc", unit.as_bytes())]);
        let compiler = ["clang++-22", "clang++", "g++", "c++"]
            .into_iter()
            .find(|name| Command::new(name).arg("--version").output().is_ok())
            .expect("a C++ compiler");
        let output = Command::new(compiler)
            .args([
                "-E",
                "-dD",
                "-w",
                "-x",
                "c++",
                "-std=c++17",
                "-nostdinc",
                "names.cc",
            ])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let mut own = false;
        for line in text.lines() {
            if let Some(marker) = line.strip_prefix("# ") {
                own = !marker.contains("\"<");
                continue;
            }
            if own {
                words(line, &mut found);
            }
        }
    }
    found
}

/// The identifiers of a line, without what is in strings.
fn words(line: &str, found: &mut BTreeSet<String>) {
    for (index, part) in line.split('"').enumerate() {
        if index % 2 == 1 {
            continue;
        }
        let words = part.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let named =
            words.filter(|word| word.len() > 1 && !word.starts_with(|c: char| c.is_ascii_digit()));
        found.extend(named.map(String::from));
    }
}

#[test]
fn names_are_those_of_the_headers() {
    let headers = identifiers();
    if std::env::var_os("ROCM_PORT_WRITE_NAMES").is_some() {
        let text: String = headers.iter().map(|name| format!("{name}\n")).collect();
        std::fs::write(FILE, text).unwrap();
        return;
    }
    let text = std::fs::read_to_string(FILE).unwrap();
    let file: BTreeSet<String> = text.lines().map(String::from).collect();
    let gone: Vec<_> = file.difference(&headers).collect();
    assert!(
        gone.is_empty(),
        "names that the headers do not have: {gone:?}; ROCM_PORT_WRITE_NAMES=1 renews the file"
    );
    // Functions of CUDA that were added to the headers.
    let new: Vec<_> = headers
        .difference(&file)
        .filter(|name| {
            name.starts_with("__") || name.starts_with("make_") || name.starts_with("curand")
        })
        .collect();
    assert!(
        new.is_empty(),
        "names that are not in the file: {new:?}; ROCM_PORT_WRITE_NAMES=1 renews it"
    );
}
