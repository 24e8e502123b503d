//! What is printed and written has no names in it, unless that is asked for.

mod common;

use common::{run, Rocm};
use std::process::Command;

fn text_and_file(args: &[&str]) -> String {
    let rocm = Rocm::install();
    let home = rocm.path().join("home/annabelle");
    let own = home.join("rocm");
    std::fs::create_dir_all(&own).unwrap();
    std::os::unix::fs::symlink(rocm.path().join("lib"), own.join("lib")).unwrap();
    let file = rocm.path().join("report.json");
    let args = [
        &[
            "--small",
            "--only",
            "system,memory",
            "--report",
            file.to_str().unwrap(),
        ],
        args,
    ]
    .concat();
    let mut command: Command = rocm.command("gfx1100", &args);
    command
        .env("HOME", &home)
        .env("USER", "annabelle")
        .env("HOSTNAME", "workbench")
        .env("ROCM_PATH", &own)
        .env("MIOPEN_USER_DB_PATH", "/srv/annabelle/on-workbench")
        .env("ROCR_VISIBLE_DEVICES", "GPU-3f7a1b2c4d5e6f70")
        .env("LD_LIBRARY_PATH", "/home/somebody/lib");
    let run = run(&mut command);
    assert_eq!(run.code, Some(0), "{}", run.err);
    // The line that tells where the report is, is for the user alone.
    let shown: Vec<&str> = run
        .out
        .lines()
        .filter(|line| !line.starts_with("The report is in"))
        .collect();
    shown.join("\n") + &std::fs::read_to_string(&file).unwrap()
}

#[test]
fn names_and_ids_are_taken_out() {
    let text = text_and_file(&[]);
    for private in ["annabelle", "workbench", "somebody", "3f7a1b2c4d5e6f70"] {
        assert!(!text.contains(private), "{private} in {text}");
    }
    for kept in ["~/rocm", "/srv/USER/on-HOST", "/home/USER/lib", "GPU-ID"] {
        assert!(text.contains(kept), "{kept} not in {text}");
    }
}

#[test]
fn names_stay_if_asked_for() {
    let text = text_and_file(&["--keep-names"]);
    for kept in [
        "annabelle/rocm",
        "on-workbench",
        "somebody",
        "3f7a1b2c4d5e6f70",
    ] {
        assert!(text.contains(kept), "{kept} not in {text}");
    }
}
