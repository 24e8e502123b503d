//! Exit codes, signals, devices that are not there.

use super::common::u32;
use super::*;
use std::io::Read;
use std::process::Child;

#[test]
fn a_device_that_is_not_there_is_never_replaced_in_silence() {
    let model = TinyModel::new(|_| {});
    let output = run(&[
        "generate",
        "the",
        "-n",
        "2",
        "--device",
        "rocm",
        "--model",
        model.arg(),
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stdout.is_empty());
    let error = text(&output.stderr);
    assert!(
        error.contains("libamdhip64") && error.contains("/nonexistent/rocm/lib"),
        "{error}"
    );
    let output = run(&["generate", "the", "-n", "2", "--model", model.arg()]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stderr).contains("using the CPU: "),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn wrong_arguments_are_told_apart_from_failures() {
    let model = TinyModel::new(|_| {});
    for args in [
        &["generate", "x"][..],
        &["generate", "--model", model.arg()],
        &["generate", "x", "--model", "absent.gguf"],
        &["generate", "x", "--model", "/"],
        &["generate", "x", "--model", model.arg(), "--device", "gpu"],
        &[
            "generate",
            "x",
            "--model",
            model.arg(),
            "--temperature",
            "-1",
        ],
        &[
            "generate",
            "x",
            "--model",
            model.arg(),
            "--top-p",
            "2",
            "--device",
            "cpu",
        ],
        &["generate", "", "--model", model.arg()],
        &["generate", "x", "--chat", "y", "--model", model.arg()],
        &[
            "generate",
            "x",
            "--greedy",
            "--seed",
            "1",
            "--model",
            model.arg(),
        ],
    ] {
        let output = run(args);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            text(&output.stderr)
        );
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    let output = run(&["generate", "x", "--model", "owner/name:Q4_K_M", "--offline"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("not in the cache"));
}

/// A program that answers for long, and its model.
fn long_answer() -> (TinyModel, Child) {
    let model = TinyModel::new(|f| {
        f.set("llama.context_length", u32(4096));
    });
    let child = worker()
        .args([
            "generate",
            "the",
            "-n",
            "4000",
            "--greedy",
            "--device",
            "cpu",
            "--model",
            model.arg(),
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (model, child)
}

#[test]
fn interruption_keeps_what_was_written() {
    // Long enough that the signal arrives in the middle.
    let (_model, mut child) = long_answer();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 8];
    stdout.read_exact(&mut first).unwrap();
    let killed = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(killed.success());
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("interrupted"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(rest.last(), Some(&b'\n'));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let (_model, mut child) = long_answer();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}
