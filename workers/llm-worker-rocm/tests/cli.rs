//! The program as a user runs it.

#[path = "../../worker/tests/common/mod.rs"]
mod common;

use common::{array, raw, string, tiny_llama, u32, File};
use serde_json::Value;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Address space that a refused file may take, in KiB: the program itself and little more.
const REFUSAL_LIMIT_KIB: u32 = 256 << 10;

fn worker() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_llm-worker-rocm"));
    // A machine without ROCm, whatever this one has.
    command
        .env("ROCM_PATH", "/nonexistent/rocm")
        .env_remove("HIP_PATH")
        .env_remove("HF_ENDPOINT")
        .env("HF_HUB_OFFLINE", "1");
    command
}

fn run(args: &[&str]) -> Output {
    worker().args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("output is UTF-8")
}

struct TinyModel {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl TinyModel {
    fn new(change: impl FnOnce(&mut File)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tiny.gguf");
        let mut file = tiny_llama();
        change(&mut file);
        file.write(&path);
        Self {
            _folder: folder,
            path,
        }
    }

    fn arg(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

fn generate(model: &TinyModel, args: &[&str]) -> Output {
    let mut all = vec!["generate", "--device", "cpu", "--model", model.arg()];
    all.extend(args);
    run(&all)
}

#[test]
fn standard_output_carries_the_text_and_nothing_else() {
    let model = TinyModel::new(|_| {});
    let plain = generate(&model, &["the cat", "--greedy", "-n", "12"]);
    assert_eq!(plain.status.code(), Some(0), "{}", text(&plain.stderr));
    let json = generate(&model, &["the cat", "--greedy", "-n", "12", "--json"]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(
        text(&plain.stdout),
        format!("{}\n", json["text"].as_str().unwrap())
    );
    assert_eq!(json["prompt_tokens"], serde_json::json!([6, 3, 9, 7, 26]));
    assert_eq!(json["tokens"].as_array().unwrap().len(), 12);
    assert_eq!(json["finish_reason"], "length");
    assert_eq!(json["device"]["name"], "cpu");
    assert!(json["timings"]["load_ms"].as_f64().unwrap() > 0.0);
    let summary = text(&plain.stderr);
    assert!(
        summary.contains("tokens/s") && summary.contains("load"),
        "{summary}"
    );
}

#[test]
fn a_seed_repeats_its_answer() {
    let model = TinyModel::new(|_| {});
    let draw = |seed| {
        text(
            &generate(
                &model,
                &["the", "--seed", seed, "-n", "24", "--temperature", "2"],
            )
            .stdout,
        )
    };
    assert_eq!(draw("1"), draw("1"));
    assert_ne!(draw("1"), draw("2"));
}

#[test]
fn the_prompt_can_come_from_standard_input() {
    let model = TinyModel::new(|_| {});
    let mut child = worker()
        .args([
            "generate",
            "-",
            "--greedy",
            "-n",
            "4",
            "--json",
            "--device",
            "cpu",
            "--model",
            model.arg(),
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"the cat").unwrap();
    let output = child.wait_with_output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["prompt_tokens"], serde_json::json!([6, 3, 9, 7, 26]));
}

#[test]
fn a_chat_goes_through_the_template() {
    let model = TinyModel::new(|_| {});
    let output = generate(
        &model,
        &[
            "--chat", "cat", "--system", "the", "--greedy", "-n", "1", "--json",
        ],
    );
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        json["prompt_tokens"],
        serde_json::json!([1, 6, 2, 1, 9, 7, 26, 2])
    );
    let model = TinyModel::new(|f| {
        f.remove("tokenizer.chat_template");
    });
    let output = generate(&model, &["--chat", "cat", "--greedy", "-n", "1", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("ChatML"));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["prompt_tokens"][0], 1);
    let output = generate(&model, &["--chat", "cat", "--chat-template", "absent"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("chatml, llama2"));
}

#[test]
fn the_context_is_a_limit_that_is_told() {
    let model = TinyModel::new(|f| {
        f.set("llama.context_length", u32(16));
    });
    let output = generate(&model, &["the cat", "--greedy", "-n", "500", "--json"]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["finish_reason"], "context");
    assert_eq!(json["tokens"].as_array().unwrap().len(), 16 - 5);
    let output = generate(&model, &["the cat sat on the mat and slept"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("at most 16"),
        "{}",
        text(&output.stderr)
    );
}

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
fn devices_works_without_rocm() {
    let output = run(&["devices"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        text(&output.stdout).contains("cpu"),
        "{}",
        text(&output.stdout)
    );
    let output = run(&["devices", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["status"], "no_rocm");
    assert_eq!(json["gpus"], serde_json::json!([]));
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

#[test]
fn interruption_keeps_what_was_written() {
    // Long enough that the signal arrives in the middle.
    let model = TinyModel::new(|f| {
        f.set("llama.context_length", u32(4096));
    });
    let mut child = worker()
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
    let model = TinyModel::new(|f| {
        f.set("llama.context_length", u32(4096));
    });
    let mut child = worker()
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
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

/// Runs `generate` on a file with little address space; it must be refused in one line.
fn assert_refused(path: &Path, what: &str) -> String {
    let script = format!("ulimit -v {REFUSAL_LIMIT_KIB} && exec \"$0\" \"$@\"");
    let output = Command::new("sh")
        .args(["-c", &script, env!("CARGO_BIN_EXE_llm-worker-rocm")])
        .args(["generate", "the", "-n", "1", "--device", "cpu", "--model"])
        .arg(path)
        .output()
        .unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{what}: {error}");
    assert!(
        !error.contains("panicked") && error.starts_with("error: "),
        "{what}: {error}"
    );
    assert_eq!(error.lines().count(), 1, "{what}: {error}");
    assert!(output.stdout.is_empty(), "{what}");
    error
}

#[test]
fn hostile_files_are_refused_in_one_line_and_little_memory() {
    type Change = fn(&mut File);
    let query = "blk.0.attn_q.weight";
    let cases: [(&str, Change, &str); 19] = [
        ("magic", |f| f.magic = *b"GGML", "not a GGUF file"),
        ("version", |f| f.version = 99, "version 99"),
        (
            "tensor count",
            |f| f.tensor_count = Some(u64::MAX),
            "truncated",
        ),
        (
            "metadata count",
            |f| f.metadata_count = Some(1 << 40),
            "truncated",
        ),
        (
            "string length",
            |f| {
                f.set("x", raw(8, (1u64 << 40).to_le_bytes().to_vec()));
            },
            "truncated",
        ),
        (
            "array length",
            |f| {
                f.set("x", array(8, 1 << 50, Vec::new()));
            },
            "truncated",
        ),
        (
            "alignment",
            |f| {
                f.set("general.alignment", u32(0));
            },
            "general.alignment",
        ),
        (
            "shape overflow",
            |f| f.tensor_mut("token_embd.weight").dims = vec![1 << 40, 1 << 40],
            "overflows",
        ),
        (
            "offset",
            |f| f.tensor_mut("token_embd.weight").offset = Some(1 << 50),
            "past the end",
        ),
        (
            "architecture",
            |f| {
                f.remove("general.architecture");
            },
            "general.architecture is missing",
        ),
        (
            "other architecture",
            |f| {
                f.set("general.architecture", string("rwkv6"));
            },
            "\"rwkv6\"",
        ),
        (
            "heads",
            |f| {
                f.set("llama.attention.head_count", u32(0));
            },
            "above 0",
        ),
        (
            "uneven heads",
            |f| {
                f.set("llama.attention.head_count", u32(5));
            },
            "evenly",
        ),
        (
            "blocks",
            |f| {
                f.set("llama.block_count", u32(u32::MAX));
            },
            "at most 1024",
        ),
        (
            "more blocks than tensors",
            |f| {
                f.set("llama.block_count", u32(2));
            },
            "blk.1.attn_norm.weight is missing",
        ),
        (
            "rotary size",
            |f| {
                f.set("llama.rope.dimension_count", u32(1 << 30));
            },
            "rope.dimension_count",
        ),
        (
            "epsilon",
            |f| {
                f.remove("llama.attention.layer_norm_rms_epsilon");
            },
            "epsilon is missing",
        ),
        (
            "rotary scaling",
            |f| {
                f.set("llama.rope.scaling.type", string("made-up"));
            },
            "made-up",
        ),
        (
            "mistyped",
            |f| {
                f.set("llama.embedding_length", string("32"));
            },
            "must be u32",
        ),
    ];
    for (what, change, needle) in cases {
        let model = TinyModel::new(change);
        let error = assert_refused(&model.path, what);
        assert!(error.contains(needle), "{what}: {error}");
    }
    let model = TinyModel::new(|f| f.tensors.retain(|t| t.name != query));
    assert!(assert_refused(&model.path, "missing tensor").contains(query));
    let model = TinyModel::new(|f| f.tensor_mut(query).dims = vec![16, 64]);
    assert!(assert_refused(&model.path, "shape").contains("[16, 64]"));
}

#[test]
fn truncated_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.gguf");
    let bytes = tiny_llama().bytes();
    for length in (0..bytes.len()).step_by(997) {
        std::fs::write(&path, &bytes[..length]).unwrap();
        assert_refused(&path, &format!("first {length} bytes"));
    }
}

/// Runs the program with text on standard input.
fn run_with(args: &[&str], input: &str) -> Output {
    let mut child = worker()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn a_conversation_goes_on_and_obeys_commands() {
    let model = TinyModel::new(|_| {});
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("chat.json");
    let script = format!(
        "the cat\n/set temperature 0\n/nonsense\nsat \\\ndown\n/save {0}\n/regen\n/stats\n/clear\n/load {0}\n/system be brief\n/set\n/quit\nnever read\n",
        file.display()
    );
    let args = [
        "chat",
        "--device",
        "cpu",
        "--greedy",
        "-n",
        "4",
        "--model",
        model.arg(),
    ];
    let output = run_with(&args, &script);
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stderr}");
    assert!(stderr.contains("there is no command /nonsense"), "{stderr}");
    assert!(stdout.contains("last answer: prompt"), "{stdout}");
    assert!(stdout.contains("temperature 0\n"), "{stdout}");
    let saved: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let messages = saved["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages
        .iter()
        .map(|m| m["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!(messages[2]["content"], "sat \ndown");
    // The answer given anew is the same: the choice is greedy.
    let answer = messages[3]["content"].as_str().unwrap();
    assert!(!answer.is_empty());
    assert!(
        stdout.matches(&format!("{answer}\n")).count() >= 2,
        "{stdout}"
    );
    // A prompt that does not fit spoils nothing.
    let long = format!("{}\nthe\n", "cat ".repeat(200));
    let output = run_with(&args, &long);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(
        text(&output.stderr).contains("takes 128 with the answer"),
        "{}",
        text(&output.stderr)
    );
    assert!(!output.stdout.is_empty());
}

#[test]
fn a_benchmark_measures_each_test() {
    let model = TinyModel::new(|_| {});
    let args = [
        "bench",
        "--device",
        "cpu",
        "--model",
        model.arg(),
        "-p",
        "16,8",
        "-g",
        "4",
        "-b",
        "1,2",
        "-r",
        "2",
    ];
    let table = run(&args);
    assert_eq!(table.status.code(), Some(0), "{}", text(&table.stderr));
    for test in ["| pp16 ", "| pp8 ", "| tg4 ", "| tg4 x 2 ", "tokens/s |"] {
        assert!(
            text(&table.stdout).contains(test),
            "{}",
            text(&table.stdout)
        );
    }
    let json = run(&[&args[..], &["--json"]].concat());
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    let results = json["results"].as_array().unwrap();
    assert_eq!(results.len(), 6);
    for result in results {
        assert_eq!(result["samples"].as_array().unwrap().len(), 2);
        assert!(
            result["tokens_per_second"].as_f64().unwrap() > 0.0,
            "{result}"
        );
    }
    assert_eq!(json["architecture"], "llama");
    assert_eq!(
        run(&[&args[..], &["--batch", "0"]].concat()).status.code(),
        Some(2)
    );
}

#[test]
fn an_answer_can_be_held_to_a_grammar() {
    let model = TinyModel::new(|_| {});
    let output = generate(
        &model,
        &["the", "--greedy", "--regex", "(cat|dog) sat{2}", "--json"],
    );
    let json: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", text(&output.stderr)));
    let answer = json["text"].as_str().unwrap();
    assert!(["cat satt", "dog satt"].contains(&answer), "{answer}");
    assert_eq!(json["finish_reason"], "stop");
    let output = generate(&model, &["the", "--regex", "("]);
    assert_eq!(output.status.code(), Some(2));
    let output = generate(
        &model,
        &[
            "the", "--greedy", "-n", "40", "--stop", "a", "--stop", "e", "--json",
        ],
    );
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        !json["text"].as_str().unwrap().contains(['a', 'e']),
        "{json}"
    );
}

#[test]
fn options_come_from_the_environment_and_logs_can_be_json() {
    let model = TinyModel::new(|_| {});
    let output = worker()
        .env("LLM_MODEL", model.arg())
        .env("LLM_GREEDY", "1")
        .env("LLM_MAX_TOKENS", "3")
        .env("LLM_JSON", "true")
        .args(["generate", "the", "--log-format", "json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(json["seed"], Value::Null);
    let logs: Vec<Value> = text(&output.stderr)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{line}: {e}")))
        .collect();
    let fallback = logs.iter().find(|log| log["level"] == "WARN").unwrap();
    assert!(fallback["message"]
        .as_str()
        .unwrap()
        .starts_with("using the CPU: "));
    let output = worker()
        .args(["pull", "--model", "absent.gguf", "--log-format", "json"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let log: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(
        (&log["level"], &log["exit_code"]),
        (&"ERROR".into(), &2.into())
    );
}

#[test]
fn small_commands() {
    let model = TinyModel::new(|_| {});
    let output = run(&["pull", "--model", model.arg()]);
    assert_eq!(text(&output.stdout), format!("{}\n", model.arg()));
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0));
        assert!(text(&output.stdout).contains("max-tokens"), "{shell}");
    }
}

#[test]
fn a_grammar_that_has_no_end_is_refused() {
    use llm_worker_rocm::grammar::trial::try_with;
    use llm_worker_rocm::grammar::Notation;
    // Each pattern doubles the work.
    let patterns = (0..50).map(|i| serde_json::json!({"pattern": format!("n{i}")}));
    let schema = serde_json::json!({"allOf": patterns.collect::<Vec<_>>()}).to_string();
    // In a grammar with a control token that only the model's vocabulary has.
    let lark = format!("start: <|tool|> schema\nschema: %json {schema}");
    let refused = try_with(worker(), Notation::Lark, &lark, 1000).unwrap_err();
    assert!(refused.contains("too complex"), "{refused}");
    for (notation, text) in [
        (Notation::JsonSchema, r#"{"type": "object"}"#),
        (Notation::Lark, "start: <|tool|> <[5]> \"a\""),
        (Notation::Gbnf, "root ::= \"a\""),
        (Notation::Regex, "[ab]+"),
        // Mistakes are the compiler's to tell.
        (Notation::Lark, "start:"),
    ] {
        try_with(worker(), notation, text, 1000).unwrap();
    }
}
