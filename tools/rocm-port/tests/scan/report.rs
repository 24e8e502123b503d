//! Reports, and the page of the rules.

use super::{folder, scan, scan_files};
use rocm_port::model::Scan;
use rocm_port::parse::Options;
use rocm_port::report::{write, Detail, Format, Sums};
use rocm_port::rules::RULES;
use serde_json::Value;
use std::process::Command;

const TEXT: &str = "
    template <int N> __global__ void never() {}
    __global__ void a() { __syncwarp(); }
    __global__ void b(int *x) { asm(\"prefetch.global.L2 [%0];\" :: \"l\"(x)); }
    namespace ns { __global__ void c(int *x) { x[0] = __fancy(1); } }
    __global__ void gemm_d(int *x) { x[0] = __fancy(1); }
";

#[test]
fn sums_and_percent() {
    let found = scan(TEXT);
    let sums = Sums::of(&found.kernels);
    let expected = Sums {
        kernels: 5,
        portable: 1,
        with_edits: 1,
        mapped: 1,
        by_hand: 1,
        unused: 1,
    };
    assert_eq!(sums, expected);
    assert_eq!(sums.percent(), 50.0);
    assert!(!sums.all_go());
    assert_eq!(Sums::default().percent(), 100.0);
}

#[test]
fn text_names_what_is_by_hand() {
    let text = write(&scan(TEXT), Format::Text, Detail::default());
    assert!(text.contains("ns::c   by hand"), "{text}");
    assert!(
        text.contains("a.cu:5:55: error S1: not in the shim: __fancy (in ns::c)"),
        "{text}"
    );
    assert!(!text.contains("note W4:"), "{text}");
    let all = Detail {
        kernels: true,
        findings: true,
    };
    let text = write(&scan(TEXT), Format::Text, all);
    assert!(text.contains("never   not instantiated"), "{text}");
    assert!(
        text.contains("a.cu:3:27: note W4: __syncwarp (in a)"),
        "{text}"
    );
}

#[test]
fn json_is_read_back() {
    let found = scan(TEXT);
    let text = write(&found, Format::Json, Detail::default());
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["sums"]["by_hand"], 1);
    let back: Scan = serde_json::from_str(&text).unwrap();
    assert_eq!(back.findings, found.findings);
    assert_eq!(back.kernels.len(), found.kernels.len());
}

#[test]
fn sarif_has_what_the_schema_asks_for() {
    let found = scan_files(&[("with space/ä.cu", TEXT.as_bytes())], &Options::default());
    let value: Value =
        serde_json::from_str(&write(&found, Format::Sarif, Detail::default())).unwrap();
    assert_eq!(value["version"], "2.1.0");
    let run = &value["runs"][0];
    let driver = &run["tool"]["driver"];
    assert_eq!(driver["name"], "rocm-port");
    let rules = driver["rules"].as_array().unwrap();
    assert_eq!(rules.len(), RULES.len());
    assert_eq!(run["columnKind"], "unicodeCodePoints");
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), found.findings.len());
    for result in results {
        assert!(result["message"]["text"]
            .as_str()
            .is_some_and(|text| !text.is_empty()));
        assert!(["none", "note", "warning", "error"].contains(&result["level"].as_str().unwrap()));
        let index = result["ruleIndex"].as_u64().unwrap() as usize;
        assert_eq!(rules[index]["id"], result["ruleId"]);
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "with%20space/%C3%A4.cu");
        let base = place["artifactLocation"]["uriBaseId"].as_str().unwrap();
        let root = run["originalUriBaseIds"][base]["uri"].as_str().unwrap();
        assert!(root.starts_with("file:///") && root.ends_with('/'));
        assert!(place["region"]["startLine"].as_u64().unwrap() >= 1);
        assert!(place["region"]["startColumn"].as_u64().unwrap() >= 1);
    }
}

#[test]
fn markdown_has_whole_tables() {
    let text = write(&scan(TEXT), Format::Markdown, Detail::default());
    assert!(
        text.contains("| `a.cu` | 5 | 1 | 1 | 1 | 1 | 1 |"),
        "{text}"
    );
    assert!(
        text.contains("| `ns::c` | by hand | [S1](rules.md#s1) |"),
        "{text}"
    );
    let mut columns = 0;
    for line in text.lines() {
        match line.starts_with('|') {
            true if columns == 0 => columns = line.matches('|').count(),
            true => assert_eq!(line.matches('|').count(), columns, "{line}"),
            false => columns = 0,
        }
    }
}

#[test]
fn the_page_has_every_rule() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rocm-port/rules.md");
    let page = std::fs::read_to_string(path).unwrap();
    let renewed = page_of_rules(&page);
    if std::env::var_os("ROCM_PORT_WRITE_DOCS").is_some() {
        std::fs::write(path, &renewed).unwrap();
    } else {
        assert!(
            page == renewed,
            "docs/rocm-port/rules.md is old: ROCM_PORT_WRITE_DOCS=1 renews it"
        );
    }
    assert!(renewed.lines().all(|line| line.chars().count() <= 120));
}

/// The page: what stands before the first rule is kept, the rules are made from the table.
fn page_of_rules(page: &str) -> String {
    let start = page.find("<a id=").unwrap_or(page.len());
    let mut out = page[..start].to_string();
    for rule in RULES {
        out += &format!(
            "<a id=\"{}\"></a>\n\n## {}: {}\n\nSeverity: {}.\n\n{}\n\n**Do**: {}\n\n",
            rule.id.to_ascii_lowercase(),
            rule.id,
            rule.title,
            serde_json::to_value(rule.severity)
                .unwrap()
                .as_str()
                .unwrap(),
            wrapped(rule.meaning),
            wrapped(&format!("**Do**: {}", rule.action)).trim_start_matches("**Do**: "),
        );
    }
    out.trim_end().to_string() + "\n"
}

/// Lines of at most 120 columns.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut column = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > 120 {
            out.push('\n');
            column = 0;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out += word;
        column += length;
    }
    out
}

fn rocm_port(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_rocm-port"))
        .args(arguments)
        .output()
        .unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

#[test]
fn the_command() {
    let good = folder(&[("a.cu", b"__global__ void a() {}\n")]);
    let path = good.path().to_str().unwrap();
    let (status, text, _) = rocm_port(&["scan", path]);
    assert_eq!(status, Some(0));
    assert!(text.contains("100.0 %"));
    let file = good.path().join("report.json");
    let (status, text, _) =
        rocm_port(&["scan", path, "--json", "--output", file.to_str().unwrap()]);
    assert_eq!((status, text.as_str()), (Some(0), ""));
    let _: Scan = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();

    let bad = folder(&[("a.cu", TEXT.as_bytes())]);
    assert_eq!(
        rocm_port(&["scan", bad.path().to_str().unwrap()]).0,
        Some(1)
    );
    let none = folder(&[("a.c", b"")]);
    let (status, _, error) = rocm_port(&["scan", none.path().to_str().unwrap()]);
    assert_eq!(status, Some(2));
    assert!(error.contains("no CUDA files"), "{error}");
    let (status, text, _) = rocm_port(&["scan", "--explain", "w3"]);
    assert_eq!(status, Some(0));
    assert!(text.starts_with("W3: "), "{text}");
    let (status, _, error) = rocm_port(&["scan", "--explain", "W99"]);
    assert_eq!(status, Some(2));
    assert!(error.contains("no rule W99"), "{error}");
    let (status, _, error) = rocm_port(&["scan", path, "--cuda-arch-of", "x"]);
    assert_eq!(status, Some(2));
    assert!(error.contains("PATTERN=VALUE"), "{error}");
}
