//! The same results in other orders of threads.

use crate::device::SEED;
use std::process::Command;

#[test]
fn another_order_of_threads_changes_nothing() {
    if std::env::var_os(SEED).is_some() {
        return;
    }
    let own = std::env::current_exe().unwrap();
    let output = Command::new(own)
        .env(SEED, "20251130")
        .args(["--skip", "compile::", "--skip", "order::"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("test result: ok"), "{text}");
}
