//! The command as users call it.

use std::path::Path;
use std::process::{Command, Output};

pub fn rocm_port(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rocm-port"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

#[test]
#[cfg(target_os = "linux")]
fn confined_programs_write_where_they_may_and_say_what_is_not_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let (inside, outside) = (folder.path().join("inside"), folder.path().join("outside"));
    std::fs::create_dir(&inside).unwrap();
    let script = format!(
        "ulimit -c; ulimit -t; echo a > {0}/a; echo a > {1}",
        inside.display(),
        outside.display()
    );
    let write = inside.display().to_string();
    let bounds = [
        "confined",
        "--cpu-seconds",
        "77",
        "--write",
        &write,
        "--",
        "sh",
        "-c",
        &script,
    ];
    let output = rocm_port(folder.path(), &bounds);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "0\n77\n", "{said}");
    assert!(inside.join("a").exists(), "{said}");
    // Either Landlock keeps it from being written, or it is said that it does not.
    assert_eq!(
        outside.exists(),
        said.contains("files and network are"),
        "{said}"
    );
}
