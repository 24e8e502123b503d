//! The manual has every figure, those of models and devices that tests do not have included.

use super::figures;
use crate::engine::api::Status;

const MANUAL: &str = include_str!("../../../../../docs/metrics.md");

#[test]
fn the_manual_has_every_figure_of_the_engine() {
    let status = Status {
        kv_window_blocks_total: 1,
        states_total: 1,
        device_bytes_used: Some(1),
        device_bytes_total: Some(1),
        ..Status::default()
    };
    let figures = figures(&status);
    for figure in &figures {
        let is_named = |end: &str| MANUAL.contains(&format!("`llm_{}{end}`", figure.name()));
        assert!(is_named("") || is_named("_total"), "{}", figure.name());
    }
    // Those that are there only sometimes exist.
    let only = MANUAL
        .lines()
        .filter(|line| line.to_lowercase().contains("*only*"));
    let names = only.filter_map(|line| line.strip_prefix("| `llm_")?.split_once('`'));
    let mut count = 0;
    // Those of others than the engine.
    let is_others = |name: &str| name.starts_with("transcri") || name.starts_with("kv_event");
    for (name, _) in names.filter(|(name, _)| !is_others(name)) {
        assert!(figures.iter().any(|figure| figure.name() == name), "{name}");
        count += 1;
    }
    assert_eq!(count, 8);
}
