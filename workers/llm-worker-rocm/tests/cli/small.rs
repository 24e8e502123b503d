//! Small commands, benchmarks, options and logs.

use super::*;
use serde_json::Value;

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
