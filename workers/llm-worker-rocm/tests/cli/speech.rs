//! `transcribe`.

use super::{run, text};
use crate::tiny_whisper::{case, sound, wav, write};
use serde_json::Value;
use std::path::Path;

fn transcribe(model: &Path, args: &[&str]) -> std::process::Output {
    let mut all = vec![
        "transcribe",
        "--device",
        "cpu",
        "--model",
        model.to_str().unwrap(),
    ];
    all.extend(args);
    run(&all)
}

#[test]
fn sound_files_are_written_down() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    write(&model, |_| {});
    let files = ["one", "two"].map(|name| folder.path().join(name).with_extension("wav"));
    let samples = sound(&case());
    std::fs::write(&files[0], wav(&samples[..32_000])).unwrap();
    std::fs::write(&files[1], wav(&samples[32_000..64_000])).unwrap();
    let [one, two] = files.each_ref().map(|file| file.to_str().unwrap());

    let plain = transcribe(&model, &[one]);
    assert!(plain.status.success(), "{}", text(&plain.stderr));
    let lines = text(&plain.stdout);
    assert!(
        lines.lines().count() > 0 && lines.lines().all(|line| !line.is_empty()),
        "{lines}"
    );
    let json = transcribe(
        &model,
        &[
            one,
            "--format",
            "verbose-json",
            "--words",
            "--language",
            "de",
        ],
    );
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        (&json["language"], &json["duration"]),
        (&"german".into(), &2.0.into())
    );
    assert!(json["words"].is_array());
    // Several files go into a folder.
    let output = folder.path().to_str().unwrap();
    let both = transcribe(&model, &[one, two, "--format", "srt", "--output", output]);
    assert!(both.status.success(), "{}", text(&both.stderr));
    assert!(both.stdout.is_empty());
    for name in ["one.srt", "two.srt"] {
        let subtitles = std::fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(subtitles.starts_with("1\n00:00:0"), "{name}: {subtitles}");
    }

    let refused = |args: &[&str], what: &str| {
        let output = transcribe(&model, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        let error = text(&output.stderr);
        assert!(error.contains(what), "{error} does not say {what}");
    };
    let config = model.join("config.json");
    refused(&[config.to_str().unwrap()], "no format that is known");
    refused(&[one, "--format", "xml"], "verbose-json");
    refused(&[one, "--language", "klingon"], "klingon");
    refused(&[one, "--words"], "verbose-json");
    refused(&[one, two, "--format", "vtt"], "--output FOLDER");
    // Commands that write text say what does this.
    let other = run(&["generate", "--model", model.to_str().unwrap(), "x"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(
        text(&other.stderr).contains("transcribe"),
        "{}",
        text(&other.stderr)
    );
}
