//! A server over several processes.

use crate::node::{as_node, free_port, until, Model, Node, LIMIT};
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Command;

/// A node that serves on a port of its own.
pub struct Server {
    pub node: Node,
    address: String,
}

/// A command that serves.
pub fn serve(model: &Model) -> Command {
    let mut command = model.command("serve");
    command.args(["--port", "0", "--parallel", "2"]);
    command
}

/// So many nodes that serve, of which the first answers; all are ready.
pub fn servers(model: &Model, nodes: usize) -> Vec<Server> {
    let port = free_port();
    let start = |rank| Server::start(as_node(serve(model), (rank, nodes), port));
    let servers: Vec<Server> = (0..nodes).map(start).collect();
    servers.iter().for_each(Server::until_ready);
    servers
}

impl Server {
    pub fn start(command: Command) -> Self {
        let node = Node::start(command);
        let mut address = String::new();
        until("the port", || {
            let output = node.output();
            let told = output
                .lines()
                .next()
                .and_then(|l| l.strip_prefix("listening on http://"));
            address = told
                .filter(|_| output.contains('\n'))
                .unwrap_or_default()
                .to_string();
            !address.is_empty()
        });
        Self { node, address }
    }

    fn http(&self, request: &str) -> (u16, String) {
        let Ok(mut stream) = TcpStream::connect(&self.address) else {
            return (0, String::new());
        };
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut answer = String::new();
        let asked = stream.write_all(request.as_bytes());
        // One that ends takes its connections with it.
        if asked
            .and_then(|()| stream.read_to_string(&mut answer))
            .is_err()
            || answer.is_empty()
        {
            return (0, String::new());
        }
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_string())
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        self.http(&format!(
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        ))
    }

    fn until_ready(&self) {
        until("readiness", || self.get("/ready").0 == 200);
    }

    /// The status and the text of a fixed answer.
    pub fn answer(&self) -> (u16, String) {
        let asked = json!({"prompt": "the cat", "temperature": 0, "max_tokens": 12});
        let (status, body) = self.http(&post(&asked));
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        (
            status,
            body["choices"][0]["text"]
                .as_str()
                .unwrap_or_default()
                .to_string(),
        )
    }

    /// Begins an answer that is a stream, and reads its first frame.
    pub fn stream(&self, asked: Value) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.write_all(post(&asked).as_bytes()).unwrap();
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        while !line.starts_with("data: ") {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "no frame came");
        }
        reader
    }

    /// One without an end of its own.
    pub fn endless(&self) -> BufReader<TcpStream> {
        self.stream(json!({"prompt": "the cat", "stream": true, "ignore_eos": true}))
    }
}

fn post(body: &Value) -> String {
    let body = body.to_string();
    let length = body.len();
    format!("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

#[test]
fn answers_stream_and_all_nodes_tell_how_they_are() {
    let model = Model::new(2);
    let alone = Server::start(serve(&model));
    alone.until_ready();
    let expected = alone.answer();
    assert_eq!(expected.0, 200);
    drop(alone);
    let mut servers = servers(&model, 2);
    let (follower, leader) = (servers.pop().unwrap(), servers.pop().unwrap());
    assert_eq!(leader.answer(), expected);
    let asked = json!({"prompt": "the cat", "temperature": 0, "max_tokens": 12, "stream": true});
    let mut rest = String::new();
    leader.stream(asked).read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]\n\n"), "{rest}");
    for path in ["/health", "/ready", "/metrics", "/info"] {
        assert_eq!(follower.get(path).0, 200, "{path}");
    }
    assert_eq!(follower.get("/v1/models").0, 404);
    leader.node.signal("TERM");
    for node in [leader.node, follower.node] {
        let ended = node.end();
        assert_eq!(ended.code, Some(0), "{}", ended.log);
    }
}
