//! Tests that need a process of their own: settings read once, injected failures, a small device.

use std::process::Command;

const CHILD: &str = "CANDLE_ROCM_TEST_CHILD";

/// Runs `body` in a child process with the given environment, by starting this test binary for the one
/// test `name`, which is the caller.
pub fn in_child(name: &str, environment: &[(&str, &str)], body: impl FnOnce()) {
    if is_child(name) {
        return body();
    }
    let output = Command::new(std::env::current_exe().expect("path of the test binary"))
        .args(["--exact", name, "--nocapture"])
        .envs(environment.iter().copied())
        .env(CHILD, name)
        .output()
        .expect("the test binary starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{name} in a child process with {environment:?}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Whether this is the child process of a test.
#[allow(dead_code)]
pub fn is_child(name: &str) -> bool {
    std::env::var_os(CHILD).is_some_and(|child| child == *name)
}
