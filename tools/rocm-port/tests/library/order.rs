//! The same results in other orders of threads.

use crate::device::{full, SEED};
use std::process::Command;

#[test]
fn another_order_of_threads_changes_nothing() {
    if std::env::var_os(SEED).is_some() {
        return;
    }
    let own = std::env::current_exe().unwrap();
    let mut skipped = vec!["compile::", "order::", "page::"];
    if !full() {
        // What has no barriers of its own.
        skipped.extend(["matrix::", "random::", "thrust::"]);
    }
    let output = Command::new(own)
        .env(SEED, "20251130")
        .args(skipped.into_iter().flat_map(|test| ["--skip", test]))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("test result: ok"), "{text}");
}
