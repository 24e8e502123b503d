//! The report as SARIF 2.1.0.

use crate::model::{Finding, Scan, Severity};
use crate::rules::RULES;
use serde_json::{json, Value};

pub(super) fn write(scan: &Scan) -> String {
    let rules: Vec<Value> = RULES
        .iter()
        .map(|rule| {
            json!({
                "id": rule.id,
                "shortDescription": { "text": rule.title },
                "fullDescription": { "text": rule.meaning },
                "help": { "text": format!("{} {}", rule.meaning, rule.action) },
                "defaultConfiguration": { "level": level(rule.severity) },
            })
        })
        .collect();
    let results: Vec<Value> = scan.findings.iter().map(result).collect();
    let mut root = uri(&scan.project.root.to_string_lossy().replace('\\', "/"));
    if !root.starts_with('/') {
        root.insert(0, '/');
    }
    let report = json!({
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "rocm-port",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "columnKind": "unicodeCodePoints",
            "originalUriBaseIds": { "SRCROOT": { "uri": format!("file://{root}/") } },
            "results": results,
        }],
    });
    format!("{report:#}\n")
}

fn result(finding: &Finding) -> Value {
    let mut location = json!({
        "physicalLocation": {
            "artifactLocation": { "uri": uri(&finding.place.file), "uriBaseId": "SRCROOT" },
            "region": { "startLine": finding.place.line, "startColumn": finding.place.column },
        },
    });
    if !finding.function.is_empty() {
        location["logicalLocations"] =
            json!([{ "fullyQualifiedName": finding.function, "kind": "function" }]);
    }
    let mut result = json!({
        "ruleId": finding.rule,
        "level": level(finding.severity),
        "message": { "text": finding.message },
        "locations": [location],
    });
    if let Some(index) = RULES.iter().position(|rule| rule.id == finding.rule) {
        result["ruleIndex"] = json!(index);
    }
    result
}

fn level(severity: Severity) -> &'static str {
    match severity {
        Severity::Note | Severity::Edit => "note",
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

/// A path as a URI: all but unreserved characters and `/` is escaped.
fn uri(path: &str) -> String {
    let mut out = String::new();
    for byte in path.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                out.push(byte as char)
            }
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
