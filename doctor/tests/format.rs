//! The form of the report, which other programs read.

mod common;

use common::Rocm;
use doctor::report::FORMAT;
use serde_json::Value;
use std::collections::BTreeSet;

/// What a reader of the report's first form relies on. Who takes a line away raises [`FORMAT`].
const FIELDS: &str = include_str!("format.txt");

/// The ways to all fields, `[]` standing for the items of a list.
fn paths(value: &Value, way: &str, found: &mut BTreeSet<String>) {
    found.insert(way.to_string());
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let dot = if way.is_empty() { "" } else { "." };
                paths(field, &format!("{way}{dot}{name}"), found);
            }
        }
        Value::Array(items) => {
            for item in items {
                paths(item, &format!("{way}[]"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn every_field_of_the_first_form_is_there() {
    assert_eq!(FORMAT, 1, "format.txt is the list of another form");
    let rocm = Rocm::install();
    // A variable that slows everything down, so that there is a finding on every machine.
    let slow = [("CANDLE_ROCM_SYNC", "1")];
    let (run, _) = rocm.examine("gfx1100", &slow, &["--only", "system,memory"]);
    let report: Value = serde_json::from_str(&run.out).unwrap();
    let mut found = BTreeSet::new();
    paths(&report, "", &mut found);
    let missing: Vec<&str> = FIELDS
        .lines()
        .filter(|field| !found.contains(*field))
        .collect();
    assert!(missing.is_empty(), "{missing:?} not in {found:#?}");
    assert_eq!(report["format"], FORMAT);
}
