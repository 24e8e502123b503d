//! Files of others as arguments: exit code 2 at once, and a line that says what is wrong.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time that a refusal may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a command that must end by itself.
fn run(folder: &Path, args: &[&str]) -> Output {
    let mut process = Command::new(env!("CARGO_BIN_EXE_sd-worker-rocm"))
        .args(args)
        .current_dir(folder)
        .env("SD_DEVICE", "cpu")
        .env(
            "MODEL_PATH",
            concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-shapes-sd"),
        )
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while process.try_wait().unwrap().is_none() {
        if begun.elapsed() > PATIENCE {
            process.kill().unwrap();
            panic!("{args:?} did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    process.wait_with_output().unwrap()
}

fn refused(folder: &Path, args: &[&str], reason: &str) {
    let generate = ["generate", "x", "--steps", "1", "-W", "64", "-H", "64"];
    let args = match args[0] {
        "png-info" => args.to_vec(),
        _ => [&generate[..], args].concat(),
    };
    let output = run(folder, &args);
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    assert!(text.contains(reason), "{args:?}: {text}");
}

#[test]
fn special_files_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let fifo = Command::new("mkfifo").arg(folder.join("pipe")).status();
    assert!(fifo.unwrap().success());
    std::os::unix::fs::symlink("/dev/zero", folder.join("zero")).unwrap();
    std::os::unix::fs::symlink("loop", folder.join("loop")).unwrap();
    let picture = image::RgbImage::new(64, 64);
    picture.save(folder.join("picture.png")).unwrap();
    for (file, reason) in [
        ("pipe", "named pipe"),
        ("zero", "a device"),
        ("loop", "loop"),
    ] {
        for args in [
            &["--model", file][..],
            &["--vae", file],
            &["--taesd", file],
            &["--embeddings", file],
            &["--init-image", file],
            &["--init-image", "picture.png", "--mask", file],
            &["--control-model", file, "--control-image", "picture.png"],
            &["--control-model", "pipe", "--control-image", file],
            &["png-info", file],
        ] {
            // A model that is no file may be the name of one on the hub.
            if file == "loop" && args[0] == "--model" {
                continue;
            }
            refused(folder, args, reason);
        }
    }
    // A folder's JSON files.
    for name in [
        "model_index.json",
        "scheduler/scheduler_config.json",
        "unet/config.json",
    ] {
        let model = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-shapes-sd");
        let copied = Command::new("cp")
            .arg("-r")
            .arg(source)
            .arg(model.path().join("m"))
            .status();
        assert!(copied.unwrap().success());
        let path = model.path().join("m").join(name);
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &path).unwrap();
        refused(
            folder,
            &["--model", &model.path().join("m").display().to_string()],
            "",
        );
    }
}

#[test]
fn files_that_do_not_fit_are_bad_input() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fuzz/corpus/safetensors");
    let file = |name: &str| corpus.join(name).display().to_string();
    let picture = image::RgbImage::new(64, 64);
    picture.save(folder.join("picture.png")).unwrap();
    for args in [
        &["--taesd", &file("plain.safetensors")][..],
        &["--vae", &file("plain.safetensors")],
        &["--lora", &file("plain.safetensors")],
        &["--lora", &file("lora.safetensors")],
        &["--lora", &file("peft.safetensors")],
        &["--embeddings", &file("plain.safetensors")],
        &["--model", &file("plain.safetensors")],
        &[
            "--control-model",
            &file("plain.safetensors"),
            "--control-image",
            "picture.png",
        ],
    ] {
        refused(folder, args, "");
    }
}
