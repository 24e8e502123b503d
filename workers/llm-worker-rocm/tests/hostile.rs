//! Files and texts of others, as a user meets them: exit code 2 at once, one line that says what is wrong, and nothing
//! that steers the terminal.

#[path = "../../worker/tests/common/mod.rs"]
mod common;

use common::{string, tiny_llama};
use std::fs::File;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time that a refusal may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn worker(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"));
    command
        .args(args)
        .env("ROCM_PATH", "/nonexistent/rocm")
        .env_remove("HIP_PATH")
        .env("HF_HUB_OFFLINE", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a command that must end by itself.
fn run(args: &[&str]) -> Output {
    let mut process = worker(args).spawn().unwrap();
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

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// That a run was refused for a reason, in one line without control characters.
fn refused(output: &Output, reason: &str) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains(reason), "{reason}: {text}");
    let line = text.strip_suffix('\n').unwrap();
    assert!(!line.contains(char::is_control), "{line:?}");
}

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn special_files_are_refused_at_once() {
    for name in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "chat_template.jinja",
        "model.safetensors.index.json",
        "model.safetensors",
    ] {
        for (kind, reason) in [
            ("pipe", "named pipe"),
            ("zero", "a device"),
            ("folder", "a directory"),
            ("loop", name),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let file = |name: &str| folder.path().join(name);
            let config = include_str!("../../../tests/fuzz/corpus/config/llama.json");
            let tokenizer = include_str!("../../../tests/fuzz/corpus/tokenizer/bytes.json");
            std::fs::write(file("config.json"), config).unwrap();
            std::fs::write(file("tokenizer.json"), tokenizer).unwrap();
            let _ = std::fs::remove_file(file(name));
            match kind {
                "pipe" => fifo(&file(name)),
                "zero" => symlink("/dev/zero", file(name)).unwrap(),
                "folder" => std::fs::create_dir(file(name)).unwrap(),
                _ => symlink(name, file(name)).unwrap(),
            }
            // Weights that cannot be found are looked for elsewhere in the folder.
            if kind == "loop" && name == "model.safetensors" {
                continue;
            }
            let path = folder.path().display().to_string();
            let output = run(&["generate", "-d", "cpu", "-m", &path, "x"]);
            refused(&output, reason);
        }
    }
}

#[test]
fn special_files_as_arguments_are_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    fifo(&pipe);
    let pipe = pipe.display().to_string();
    refused(
        &run(&["generate", "-d", "cpu", "-m", &pipe, "x"]),
        "named pipe",
    );
    let model = folder.path().join("tiny.gguf");
    tiny_llama().write(&model);
    let model = model.display().to_string();
    let chat = [
        "generate",
        "-d",
        "cpu",
        "-m",
        &model,
        "--chat",
        "x",
        "--chat-template",
    ];
    refused(&run(&[&chat[..], &[&pipe]].concat()), "named pipe");
}

#[test]
fn escape_sequences_of_a_file_stay_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let model = path.display().to_string();
    let generate = || run(&["generate", "-d", "cpu", "-m", &model, "--chat", "x"]);
    const HOSTILE: &str = "\u{1b}[2J\u{1b}]0;pwn\u{7}\nINFO all is well\r\u{9b}31m";
    // As a tensor's name.
    let mut file = tiny_llama();
    file.tensor_mut("blk.0.attn_q.weight").name = format!("blk.0.{HOSTILE}");
    file.write(&path);
    let output = generate();
    assert_eq!(output.status.code(), Some(2));
    // As an architecture, and in a template.
    let mut file = tiny_llama();
    file.set("general.architecture", string(HOSTILE));
    file.write(&path);
    refused(&generate(), "\\u{1b}[2J");
    let mut file = tiny_llama();
    let template = format!(
        "{{{{ raise_exception('{}') }}}}",
        HOSTILE.replace('\n', "\\n")
    );
    file.set("tokenizer.chat_template", string(&template));
    file.write(&path);
    let output = generate();
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("\\u{1b}[2J"), "{text}");
    let active = |c: char| c.is_control() && c != '\n';
    assert!(!text.contains(active), "{text:?}");
    assert!(!text.lines().any(|line| line.starts_with("INFO")), "{text}");
}

#[test]
fn weights_that_are_no_numbers_are_bad_input() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = tiny_llama();
    file.tensor_mut("output_norm.weight").data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    file.write(&path);
    let output = run(&[
        "generate",
        "-d",
        "cpu",
        "-m",
        &path.display().to_string(),
        "the cat",
    ]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("not a number"));
}

#[test]
fn a_standard_error_that_is_full_is_no_reason_to_panic() {
    for args in [
        &[
            "generate",
            "-d",
            "cpu",
            "-m",
            "/nonexistent/model.gguf",
            "x",
        ][..],
        &["generate", "-d", "cpu", "-m", "/dev/null", "x"],
    ] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let status = worker(args).stderr(full).status().unwrap();
        assert_eq!(status.code(), Some(2), "{args:?}");
    }
}

/// What the dynamic loader ends a program with that it cannot load.
const LOADER: i32 = 127;

/// Wherever memory ends, the process ends with a message and an exit code, never by a signal.
#[test]
fn too_little_memory_is_a_failure_not_an_abort() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    tiny_llama().write(&path);
    let (mut failed, mut has_begun) = (0, false);
    // From where the program itself does not fit, which the kernel may end, to where all does.
    let mut limit_kib = 16 << 10;
    loop {
        let script = format!(
            "ulimit -v {limit_kib}; exec {} generate -d cpu -m {} -n 4 'the cat'",
            env!("CARGO_BIN_EXE_llm-worker-rocm"),
            path.display()
        );
        let output = Command::new("sh")
            .arg("-c")
            .arg(script)
            .env("RAYON_NUM_THREADS", "2")
            .output();
        let output = output.unwrap();
        let text = stderr(&output);
        has_begun |= !text.is_empty();
        assert!(
            !has_begun || matches!(output.status.code(), Some(0..=2 | LOADER)),
            "{limit_kib} KiB: {:?} {text}",
            output.status
        );
        if output.status.success() {
            break;
        }
        failed += 1;
        limit_kib += limit_kib / 8;
        assert!(limit_kib < 64 << 20, "memory never sufficed: {text}");
    }
    assert!(failed > 0, "memory sufficed everywhere");
}
