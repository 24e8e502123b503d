//! Nodes that die, hang, do not fit, come late, or are strangers.

use crate::node::{as_node, free_port, generate, until, Ended, Model, Node, TOKEN};
use crate::serving::servers;
use std::io::Read;

/// That a node has ended as one of a group that has lost another.
fn assert_lost(ended: &Ended, node: usize) {
    assert_eq!(ended.code, Some(3), "{}", ended.log);
    let named = format!("node {node} (");
    assert!(ended.log.contains(&named), "{}", ended.log);
}

#[test]
fn a_follower_that_dies_ends_all_and_is_named() {
    let model = Model::new(3);
    let mut servers = servers(&model, 3);
    let mut running = servers[0].endless();
    let dead = servers.remove(2);
    dead.node.signal("KILL");
    let mut rest = Vec::new();
    // Its connection may end with the process.
    let _ = running.read_to_end(&mut rest);
    let rest = String::from_utf8_lossy(&rest);
    assert!(!rest.contains("finish_reason\":\"stop"), "{rest}");
    assert!(!rest.contains("finish_reason\":\"length"), "{rest}");
    for server in servers {
        assert_lost(&server.node.end(), 2);
    }
}

#[test]
fn a_follower_that_hangs_ends_an_idle_server() {
    let model = Model::new(2);
    let mut servers = servers(&model, 2);
    let hangs = servers.pop().unwrap();
    hangs.node.signal("STOP");
    let leader = servers.pop().unwrap().node.end();
    assert_lost(&leader, 1);
    assert!(leader.log.contains("no sign of life"), "{}", leader.log);
    hangs.node.signal("CONT");
    let late = hangs.node.end();
    assert_eq!(late.code, Some(3), "{}", late.log);
}

#[test]
fn followers_of_a_dead_leader_end() {
    let model = Model::new(2);
    let mut servers = servers(&model, 2);
    let _running = servers[0].endless();
    servers[0].node.signal("KILL");
    assert_lost(&servers.pop().unwrap().node.end(), 0);
}

#[test]
fn another_model_is_refused_on_both_sides() {
    let (model, other) = (Model::new(2), Model::new(3));
    let port = free_port();
    let nodes = [
        Node::start(as_node(model.generate(), (0, 2), port)),
        Node::start(as_node(other.generate(), (1, 2), port)),
    ];
    for ended in nodes.map(Node::end) {
        assert_eq!(ended.code, Some(2), "{}", ended.log);
        assert!(ended.log.contains("node 1 ("), "{}", ended.log);
        assert!(
            ended.log.contains("has another model: model.gguf ("),
            "{}",
            ended.log
        );
        assert_eq!(ended.output, "");
    }
}

#[test]
fn a_stranger_is_sent_away_and_who_comes_late_is_waited_for() {
    let model = Model::new(2);
    let port = free_port();
    let leader = Node::start(as_node(model.generate(), (0, 2), port));
    let mut command = as_node(model.generate(), (1, 2), port);
    command.env("CANDLE_ROCM_TOKEN", "of another job");
    let stranger = Node::start(command).end();
    assert_eq!(stranger.code, Some(1), "{}", stranger.log);
    assert!(stranger.log.contains("token"), "{}", stranger.log);
    until("a word about the stranger", || {
        leader.log().contains("was sent away")
    });
    assert!(!leader.log().contains(TOKEN), "{}", leader.log());
    let follower = Node::start(as_node(model.generate(), (1, 2), port));
    let ended = leader.end();
    assert_eq!(ended.code, Some(0), "{}", ended.log);
    assert_eq!(ended.tokens().len(), 24);
    assert_eq!(follower.end().code, Some(0));
}

#[test]
fn who_is_missing_is_told() {
    let model = Model::new(2);
    let mut command = as_node(model.generate(), (0, 3), free_port());
    command.args(["--rendezvous-timeout", "1"]);
    let ended = Node::start(command).end();
    assert_eq!(ended.code, Some(1), "{}", ended.log);
    assert!(ended.log.contains("1, 2"), "{}", ended.log);
}

#[test]
fn a_model_with_too_few_layers_is_refused() {
    let model = Model::new(2);
    let nodes = generate(&model, 3);
    let mut ended = nodes.into_iter().map(Node::end);
    let leader = ended.next().unwrap();
    assert_eq!(leader.code, Some(2), "{}", leader.log);
    assert!(
        leader.log.contains("too little for 3 devices on 3 hosts"),
        "{}",
        leader.log
    );
}
