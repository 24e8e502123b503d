//! One model on several simulated GPUs: what is named at the start, and which way is taken.

use super::common::deep_llama;
use super::{text, Rocm};
use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

/// Blocks of the model.
const BLOCKS: u64 = 6;

/// A model, and what the simulator is.
struct Machine {
    rocm: Rocm,
    model: String,
}

impl Machine {
    fn new() -> Self {
        let rocm = Rocm::install();
        let path = rocm.path().join("deep.gguf");
        deep_llama(32, BLOCKS).write(&path);
        let model = path.to_str().unwrap().to_string();
        Self { rocm, model }
    }

    /// Exit code, standard output and what was logged.
    fn run(&self, simulator: &[(&str, &str)], args: &[&str]) -> (Option<i32>, String, String) {
        let output = self.rocm.command(simulator, args).output().unwrap();
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    }

    fn generate(&self, simulator: &[(&str, &str)], args: &[&str]) -> (Option<i32>, String, String) {
        let own = [
            "generate",
            "the cat",
            "--greedy",
            "-n",
            "12",
            "--json",
            "--model",
            &self.model,
        ];
        self.run(simulator, &[&own, args].concat())
    }

    /// The answer of a run that goes well.
    fn answer(&self, simulator: &[(&str, &str)], args: &[&str]) -> Value {
        let (code, answer, log) = self.generate(simulator, args);
        assert_eq!(code, Some(0), "{simulator:?} {args:?}: {log}");
        serde_json::from_str(&answer).unwrap()
    }
}

#[test]
fn access_between_gpus_is_shown_in_each_direction() {
    let rocm = Rocm::install();
    let links = |peers: &str| -> (Value, String) {
        let simulator = [("HIP_SIM_DEVICES", "3"), ("HIP_SIM_PEERS", peers)];
        let run = |args: &[&str]| rocm.command(&simulator, args).output().unwrap();
        let json: Value = serde_json::from_slice(&run(&["devices", "--json"]).stdout).unwrap();
        (json["links"].clone(), text(&run(&["devices"]).stdout))
    };
    let (all, shown) = links("all");
    assert_eq!(all["links"].as_array().unwrap().len(), 6);
    assert_eq!(
        (&all["links"][0]["from"], &all["links"][0]["access"]),
        (&json!("rocm:0"), &json!(true))
    );
    assert_eq!(all["traps"], json!([]));
    assert_eq!(all["order"], json!(["rocm:0", "rocm:1", "rocm:2"]));
    assert!(
        shown.contains("each reaches the memory of all others"),
        "{shown}"
    );
    let (none, shown) = links("none");
    let codes: Vec<&str> = (none["traps"].as_array().unwrap().iter())
        .map(|trap| trap["code"].as_str().unwrap())
        .collect();
    assert_eq!(codes, ["no_peer_access"; 3]);
    assert!(shown.contains("in 6 of 6 directions"), "{shown}");
    let (one_way, shown) = links("0-1,1-2,0>2");
    assert_eq!(one_way["traps"].as_array().unwrap().len(), 1);
    let said = "HIP: rocm:0 reaches the memory of rocm:2, but not the other way around";
    assert!(shown.contains(said), "{shown}");
}

#[test]
fn whatever_joins_gpus_a_way_that_works_is_taken() {
    let machine = Machine::new();
    let one = machine.answer(&[("HIP_SIM_DEVICES", "1")], &["--device", "rocm:0"]);
    assert_eq!(one["split"], Value::Null);
    // Without it, access is what counts.
    for file in std::fs::read_dir(machine.rocm.path().join("lib")).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if name.starts_with("librccl") {
            std::fs::remove_file(path).unwrap();
        }
    }
    for (peers, why) in [
        ("all", "it would not be faster"),
        ("none", "rocm:0 and rocm:1 do not reach each other's memory"),
        ("0>1", "though the other way around it does"),
        ("all,no-atomics", "it would not be faster"),
    ] {
        let simulator = [("HIP_SIM_DEVICES", "2"), ("HIP_SIM_PEERS", peers)];
        let several = machine.answer(&simulator, &["--devices", "0,1"]);
        assert_eq!(several["tokens"], one["tokens"], "{peers}");
        let split = &several["split"];
        assert_eq!(split["split"], "layers", "{peers}: {split}");
        assert!(
            split["why"].as_str().unwrap().contains(why),
            "{peers}: {split}"
        );
        assert_eq!(several["device"]["name"], "rocm:0,rocm:1");
    }
}

#[test]
fn layers_go_to_gpus_as_they_are_asked_for() {
    let machine = Machine::new();
    let one = machine.answer(&[("HIP_SIM_DEVICES", "1")], &["--device", "rocm:0"]);
    let simulator = [("HIP_SIM_DEVICES", "4")];
    let ask = |args: &[&str]| {
        let answer = machine.answer(&simulator, args);
        assert_eq!(answer["tokens"], one["tokens"], "{args:?}");
        let stages = answer["split"]["stages"].as_array().unwrap().iter();
        stages
            .map(|stage| stage["first_layer"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!(ask(&["--devices", "all"]).len(), 4);
    assert_eq!(ask(&["--devices", "2,0", "--shares", "2,1"]), [0, 4]);
    assert_eq!(
        ask(&["--devices", "0-2", "--split", "layers", "--shares", "1,4,1"]),
        [0, 1, 5]
    );
    assert_eq!(ask(&["--devices", "0-2", "--split", "none"]), [0]);
}

#[test]
fn gpus_of_several_kinds_share_layers_and_no_matrices() {
    let machine = Machine::new();
    let simulator = [("HIP_SIM_DEVICES", "2"), ("HIP_SIM_ARCH", "gfx1100,gfx942")];
    let answer = machine.answer(&simulator, &["--devices", "all"]);
    assert_eq!(answer["split"]["split"], "layers");
    let why = answer["split"]["why"].as_str().unwrap();
    assert!(
        why.contains("rocm:0 is a gfx1100 and rocm:1 a gfx942"),
        "{why}"
    );
    let (code, _, log) = machine.generate(&simulator, &["--devices", "all", "--split", "tensor"]);
    assert_eq!(code, Some(2), "{log}");
    assert!(log.contains("--split tensor: rocm:0 is a gfx1100"), "{log}");
}

#[test]
fn what_cannot_be_is_named() {
    let machine = Machine::new();
    let two = [("HIP_SIM_DEVICES", "2")];
    for (args, code, said) in [
        (&["--devices", "0,5"][..], 1, "rocm:5 cannot be used"),
        (
            &["--devices", "0,1", "--shares", "1,2,3"],
            2,
            "--shares has 3 numbers for 2 GPUs",
        ),
        (
            &["--devices", "0,1", "--device", "cpu"],
            2,
            "say different things",
        ),
        (&["--split", "layers"], 2, "--split layers says how"),
    ] {
        let (found, _, log) = machine.generate(&two, args);
        assert_eq!(found, Some(code), "{args:?}: {log}");
        assert!(log.contains(said), "{args:?}: {log}");
    }
    // No room: what there is on each.
    let small = [("HIP_SIM_DEVICES", "2"), ("HIP_SIM_MEMORY", "64K")];
    let (code, _, log) = machine.generate(&small, &["--devices", "0,1"]);
    assert_eq!(code, Some(2), "{log}");
    for part in [
        "the model does not fit",
        "on rocm:0 (",
        "on rocm:1 (",
        "What helps",
    ] {
        assert!(log.contains(part), "{log}");
    }
    // A GPU that fails while its part is loaded.
    let failing = [("HIP_SIM_DEVICES", "2"), ("HIP_SIM_FAIL", "copy:20")];
    let (code, _, log) = machine.generate(&failing, &["--devices", "0,1"]);
    assert_eq!(code, Some(1), "{log}");
    assert!(log.contains("loading failed on rank"), "{log}");
}

#[test]
fn a_server_tells_how_its_gpus_share_the_model() {
    let machine = Machine::new();
    let args = [
        "serve",
        "--supervise",
        "off",
        "--port",
        "0",
        "--devices",
        "0,1",
        "--model",
        &machine.model,
    ];
    let mut server = (machine.rocm.command(&[("HIP_SIM_DEVICES", "2")], &args))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(server.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap();
    let get = |path: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    while !get("/ready").starts_with("HTTP/1.1 200") {
        assert_eq!(server.try_wait().unwrap(), None, "it did not load");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let body = |path: &str| -> Value {
        let answer = get(path);
        serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap()
    };
    let split = &body("/props")["split"];
    assert_eq!(split["split"], "layers");
    assert_eq!(split["stages"][1]["devices"][0]["name"], "rocm:1");
    assert_eq!(&body("/v1/models")["data"][0]["text"]["split"], split);
    assert_eq!(body("/health")["device"]["name"], "rocm:0,rocm:1");
    let figures = get("/metrics");
    for device in ["rocm:0", "rocm:1"] {
        let used = format!("llm_device_memory_used_bytes{{device=\"{device}\"}}");
        assert!(figures.contains(&used), "{figures}");
    }
    server.kill().unwrap();
    server.wait().unwrap();
}
