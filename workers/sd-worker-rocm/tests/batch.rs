//! `sd-worker-rocm batch`, as the program is called.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output};

/// Two small pictures of a file's lines, and a third line with options of its own.
const LINES: &str = "# shapes\n\
    a red circle\n\
    a blue square --seed 9 --steps 2\n\
    {\"prompt\": \"a green triangle\", \"batch\": 2, \"width\": 128}\n";

fn batch(folder: &Path, options: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_sd-worker-rocm"))
        .env(
            "MODEL_PATH",
            concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-shapes-sd"),
        )
        .args([
            "batch",
            "prompts.txt",
            "--device",
            "cpu",
            "--output-dir",
            "out",
        ])
        .args([
            "--width", "64", "--height", "64", "--steps", "1", "--seed", "5",
        ])
        .args(options)
        .current_dir(folder)
        .output()
        .unwrap()
}

/// What each line gave.
fn objects(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn error(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_batch_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("prompts.txt"), LINES).unwrap();
    let first = batch(folder.path(), &["--json"]);
    assert!(first.status.success(), "{}", error(&first));
    let made = objects(&first);
    let files = |line: &Value| -> Vec<String> {
        let images = line["images"].as_array().unwrap().iter();
        images
            .map(|image| image["file"].as_str().unwrap().to_string())
            .collect()
    };
    let names: Vec<_> = made.iter().map(files).collect();
    assert_eq!(
        names,
        [
            vec!["out/00002-5-a-red-circle.png"],
            vec!["out/00003-9-a-blue-square.png"],
            vec![
                "out/00004-5-a-green-triangle.png",
                "out/00004-6-a-green-triangle.png"
            ],
        ]
    );
    let open = |name: &str| image::open(folder.path().join(name)).unwrap();
    assert_eq!(
        (open(&names[0][0]).width(), open(&names[2][1]).width()),
        (64, 128)
    );

    // All is done; what is gone is done again, as are changed lines.
    let again = batch(folder.path(), &["--json"]);
    assert!(
        objects(&again).iter().all(|line| line["skipped"] == true),
        "{}",
        error(&again)
    );
    let before = std::fs::read(folder.path().join(&names[0][0])).unwrap();
    std::fs::remove_file(folder.path().join(&names[0][0])).unwrap();
    let changed = LINES.replace("--seed 9", "--seed 10");
    std::fs::write(folder.path().join("prompts.txt"), changed).unwrap();
    let third = batch(folder.path(), &["--json"]);
    let skipped: Vec<_> = objects(&third)
        .iter()
        .map(|line| line["skipped"] == true)
        .collect();
    assert_eq!(skipped, [false, false, true]);
    assert_eq!(
        std::fs::read(folder.path().join(&names[0][0])).unwrap(),
        before
    );
    // Other settings are other pictures.
    let other = batch(folder.path(), &["--guidance", "2"]);
    assert!(
        error(&other).contains("3 lines done, 0 were done already"),
        "{}",
        error(&other)
    );
    assert_eq!(String::from_utf8_lossy(&other.stdout).lines().count(), 4);
}

#[test]
fn mistakes_are_told_before_anything_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = "a circle\na square --stps 3\na circle --width 65\n{\"prompt\": 3, \"x\": 1}\n";
    std::fs::write(folder.path().join("prompts.txt"), wrong).unwrap();
    let refused = batch(folder.path(), &[]);
    assert_eq!(refused.status.code(), Some(2));
    let text = error(&refused);
    assert!(
        text.contains("prompts.txt:2:") && text.contains("--stps"),
        "{text}"
    );
    assert!(text.contains("prompts.txt:4:"), "{text}");
    // What a model does not take is found once it is there.
    std::fs::write(
        folder.path().join("prompts.txt"),
        "a circle\na circle --width 65\n",
    )
    .unwrap();
    let refused = batch(folder.path(), &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        error(&refused).contains("prompts.txt:2: width"),
        "{}",
        error(&refused)
    );
    assert!(!folder.path().join("out").exists());
    std::fs::write(folder.path().join("prompts.txt"), "# nothing\n").unwrap();
    assert_eq!(batch(folder.path(), &[]).status.code(), Some(2));
}

#[test]
fn a_line_that_fails_does_not_keep_the_others_from_it() {
    let folder = tempfile::tempdir().unwrap();
    let lines = "a circle --lora nowhere\na square\n";
    std::fs::write(folder.path().join("prompts.txt"), lines).unwrap();
    let partly = batch(folder.path(), &["--json"]);
    assert_eq!(partly.status.code(), Some(1), "{}", error(&partly));
    let told = objects(&partly);
    assert!(
        told[0]["error"].as_str().unwrap().contains("nowhere"),
        "{told:?}"
    );
    assert_eq!(told[1]["images"].as_array().unwrap().len(), 1);
    assert!(error(&partly).contains("1 of 2 lines failed"));
    // Only that one is tried again.
    let again = batch(folder.path(), &["--json", "--stop-at-failure"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(objects(&again).is_empty() && error(&again).contains("line 1: "));
}
