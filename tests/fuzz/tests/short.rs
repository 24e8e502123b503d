//! A short run of every target: the same inputs each time. `scripts/fuzz` makes long ones.

use fuzz::target::TARGETS;
use std::process::Command;

#[test]
fn nothing_that_is_read_panics_ends_hangs_or_takes_memory() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_fuzz"))
        .arg("--save")
        .arg(folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // Every target has tried what it should, and not all of it was refused or taken.
    for (name, _, _, count) in TARGETS {
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{name}: ")));
        let line = line.unwrap_or_else(|| panic!("{name} did not run:\n{text}"));
        assert!(line.contains(&format!(": {count} inputs")), "{line}");
        assert!(
            !line.contains(" 0 accepted") && !line.contains(" 0 refused"),
            "{line}"
        );
    }
}
