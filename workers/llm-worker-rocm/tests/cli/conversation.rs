//! Conversations.

use super::*;
use serde_json::Value;
use std::io::Write;

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
        text(&output.stderr).contains("exceeds the available context size, 128 tokens"),
        "{}",
        text(&output.stderr)
    );
    assert!(!output.stdout.is_empty());
}
