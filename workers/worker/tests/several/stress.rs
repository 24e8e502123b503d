//! Many requests for many models at few places, with loads, unloads, crashes and clients that leave in an order that a
//! fixed seed gives: everybody gets an answer, and nothing is left behind.

use crate::fleet::{prompt, signal_if_there, until, Server};
use crate::{start, Models};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// Knuth's generator of MMIX.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

pub fn one_place_for_all() {
    let models = Models::new(&NAMES);
    let server = start(&models, &["--models-max", "1"]);
    std::thread::scope(|scope| {
        for client in 0..12 {
            let server = &server;
            scope.spawn(move || {
                for round in 0..2 {
                    let model = NAMES[(client + round) % NAMES.len()];
                    let answer = server.complete(model);
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    assert_eq!(answer.json()["model"], model);
                }
            });
        }
    });
    assert_eq!(server.count("loaded"), 1);
    assert_eq!(server.processes().len(), 1);
}

pub fn nothing_is_lost_but_what_crashes() {
    let models = Models::new(&NAMES);
    let server = start(&models, &["--models-max", "2", "--max-restarts", "1000"]);
    let (answered, lost) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let (server, answered, lost) = (&server, &answered, &lost);
        for client in 0..5u64 {
            scope.spawn(move || {
                let mut random = Random(client + 1);
                for _ in 0..5 {
                    let model = NAMES[random.below(NAMES.len())];
                    match random.below(4) {
                        // One that leaves.
                        0 => drop(server.try_endless(model)),
                        _ => {
                            let answer = server.complete(model);
                            match answer.status {
                                200 => answered.fetch_add(1, Ordering::Relaxed),
                                503 => lost.fetch_add(1, Ordering::Relaxed),
                                status => panic!("{status}: {}", answer.body),
                            };
                        }
                    }
                }
            });
        }
        scope.spawn(move || {
            let mut random = Random(99);
            for _ in 0..6 {
                std::thread::sleep(std::time::Duration::from_millis(150));
                let model = json!({"model": NAMES[random.below(NAMES.len())]});
                match random.below(3) {
                    0 => drop(server.post("/models/load", &model)),
                    1 => drop(server.post("/models/unload", &model)),
                    _ => {
                        let processes = server.processes();
                        if !processes.is_empty() {
                            // It may have been unloaded meanwhile.
                            let process = processes[random.below(processes.len())];
                            signal_if_there("KILL", process);
                        }
                    }
                }
            }
        });
    });
    assert!(
        answered.into_inner() >= 10,
        "{} were lost",
        lost.into_inner()
    );
    // All that is left are idle models, and they answer.
    until("rest", || {
        let list = server.json("/models");
        list["data"].as_array().unwrap().iter().all(|entry| {
            let status = &entry["status"];
            status["answers"] == 0
                && status["waiting"] == 0
                && ["loaded", "unloaded"].contains(&status["value"].as_str().unwrap())
        })
    });
    for model in NAMES {
        let answer = server.post("/v1/completions", &prompt(model));
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    assert_eq!(server.processes().len(), 2);
}

impl Server {
    /// Begins an answer without an end, if that is possible.
    fn try_endless(&self, model: &str) -> Option<String> {
        use std::io::{Read, Write};
        let body = json!({"model": model, "prompt": "the cat", "stream": true, "ignore_eos": true})
            .to_string();
        let mut stream = std::net::TcpStream::connect(&self.address).ok()?;
        let head = format!(
            "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes()).ok()?;
        let mut first = [0; 12];
        stream.read_exact(&mut first).ok()?;
        Some(String::from_utf8_lossy(&first).into_owned())
    }
}
