//! One model over several processes, which stand for hosts.

#[path = "../../../worker/tests/common/mod.rs"]
mod common;
mod failures;
mod node;
mod serving;

use node::{free_port, generate, Model, Node, TOKEN};
use serde_json::Value;

#[test]
fn tokens_are_those_of_one_process() {
    let model = Model::new(3);
    let alone = Node::start(model.generate()).end();
    assert_eq!(alone.code, Some(0), "{}", alone.log);
    let expected = alone.tokens();
    assert_eq!(expected.len(), 24);
    for nodes in [2, 3] {
        let mut all = generate(&model, nodes);
        let leader = all.remove(0).end();
        assert_eq!(leader.code, Some(0), "{}", leader.log);
        assert_eq!(leader.tokens(), expected, "{nodes} nodes");
        for (node, follower) in (1..).zip(all) {
            let follower = follower.end();
            assert_eq!(follower.code, Some(0), "{}", follower.log);
            assert_eq!(follower.output, "", "node 0 has the output");
            let told = format!("node {node} of {nodes} has layers {} to ", node - 1);
            let lines = follower.log.lines().filter(|line| line.contains(&told));
            assert_eq!(lines.count(), 1, "{}", follower.log);
        }
    }
}

#[test]
fn a_launcher_says_who_is_who_and_files_are_answered() {
    let model = Model::new(2);
    let requests = model.file("in.jsonl");
    let line = |n: usize| {
        let body = r#"{"prompt": "the cat", "temperature": 0, "max_tokens": 6}"#;
        format!("{{\"custom_id\": \"{n}\", \"method\": \"POST\", \"url\": \"/v1/completions\", \"body\": {body}}}\n")
    };
    std::fs::write(&requests, (0..5).map(line).collect::<String>()).unwrap();
    let batch = |output: &str| {
        let mut command = model.command("batch");
        command.arg(&requests).arg("-o").arg(model.file(output));
        command
    };
    let texts = |output: &str| -> Vec<String> {
        let text = std::fs::read_to_string(model.file(output)).unwrap();
        let answers = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap());
        let choice = |answer: Value| answer["response"]["body"]["choices"][0]["text"].to_string();
        answers.map(choice).collect()
    };
    let alone = Node::start(batch("alone.jsonl")).end();
    assert_eq!(alone.code, Some(0), "{}", alone.log);
    let port = free_port().to_string();
    let nodes = [0, 1].map(|rank: usize| {
        let mut command = batch("out.jsonl");
        command
            .args(["--nnodes", "auto"])
            .env("OMPI_COMM_WORLD_SIZE", "2")
            .env("OMPI_COMM_WORLD_RANK", rank.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", &port)
            .env("CANDLE_ROCM_TOKEN", TOKEN);
        Node::start(command)
    });
    for ended in nodes.map(Node::end) {
        assert_eq!(ended.code, Some(0), "{}", ended.log);
    }
    let (expected, found) = (texts("alone.jsonl"), texts("out.jsonl"));
    assert_eq!(found.len(), 5);
    assert_eq!(found, expected);
}

#[test]
fn arguments_that_make_no_sense_are_named() {
    let model = Model::new(2);
    for (arguments, named) in [
        (&["--nnodes", "0"][..], "not a number of hosts"),
        (&["--nnodes", "2"], "--node-rank"),
        (&["--nnodes", "2", "--node-rank", "2"], "2 nodes are 0 to 1"),
        (&["--nnodes", "2", "--node-rank", "1"], "--rendezvous"),
        (&["--node-rank", "1"], "--nnodes"),
        (
            &[
                "--nnodes",
                "2",
                "--node-rank",
                "1",
                "--rendezvous",
                "localhost:1",
            ],
            "CANDLE_ROCM_TOKEN",
        ),
    ] {
        let mut command = model.generate();
        command.args(arguments);
        let refused = Node::start(command).end();
        assert_eq!(refused.code, Some(2), "{arguments:?}: {}", refused.log);
        assert!(
            refused.log.contains(named),
            "{arguments:?}: {}",
            refused.log
        );
    }
}
