//! The program as people and orchestrators run it, with the built-in model.

use serde_json::{json, Value};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// The program; on the simulated GPU where the test run asks for it.
fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sd-worker-rocm"));
    let rocm = std::env::var("CANDLE_ROCM_TEST_DEVICE").is_ok_and(|device| device == "rocm");
    command.env("SD_DEVICE", if rocm { "rocm" } else { "cpu" });
    command.env(
        "MODEL_PATH",
        concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-shapes-sd"),
    );
    command.stdin(Stdio::null());
    command
}

fn run(arguments: &[&str], folder: &Path) -> Output {
    let output = program().args(arguments).current_dir(folder).output();
    output.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn succeeded(output: Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_newcomer_gets_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let prompt = "two green squares on a white background";
    let out = succeeded(run(
        &["generate", prompt, "--steps", "8", "--seed", "2"],
        folder,
    ));
    let file = folder.join(out.trim());
    assert_eq!(
        out.trim(),
        "outputs/00000-2-two-green-squares-on-a-white-background.png"
    );
    let picture = image::open(&file).unwrap().to_rgb8();
    assert_eq!(picture.dimensions(), (128, 128));
    // White around, and green enough for two squares.
    assert!(
        picture.get_pixel(2, 2).0.iter().all(|c| *c > 200),
        "{:?}",
        picture.get_pixel(2, 2)
    );
    let green = picture
        .pixels()
        .filter(|p| p.0[1] > 110 && p.0[0] < 110 && p.0[2] < 130)
        .count();
    assert!((600..8000).contains(&green), "{green} green pixels");

    let info = succeeded(run(&["png-info", out.trim(), "--json"], folder));
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["prompt"], prompt);
    for (name, value) in [
        ("Steps", "8"),
        ("Seed", "2"),
        ("Size", "128x128"),
        ("Sampler", "DDIM"),
        ("RNG", "NV"),
    ] {
        assert_eq!(info["settings"][name], value);
    }
    let plain = succeeded(run(&["png-info", out.trim()], folder));
    assert!(
        plain.starts_with(&format!("{prompt}\nSteps: 8, ")),
        "{plain}"
    );
}

#[test]
fn the_same_seed_gives_the_same_picture_in_any_batch() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let common = [
        "a red circle",
        "--steps",
        "2",
        "--sampler",
        "Euler a",
        "--json",
    ];
    let with = |more: &[&str]| {
        let arguments = [&["generate"], &common[..], more].concat();
        let out: Value = serde_json::from_str(&succeeded(run(&arguments, folder))).unwrap();
        let files = out["images"].as_array().unwrap().iter();
        let open = |file: &Value| image::open(folder.join(file["file"].as_str().unwrap())).unwrap();
        (
            files.map(|file| open(file).to_rgb8()).collect::<Vec<_>>(),
            out,
        )
    };
    let (batch, out) = with(&["--seed", "5", "-b", "2"]);
    assert_eq!(out["images"][1]["seed"], 6);
    assert!(out["timings"]["denoise_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(out["timings"]["evaluations"], 2);
    let (alone, _) = with(&["--seed", "6", "-o", "alone.png"]);
    let apart = batch[1]
        .iter()
        .zip(alone[0].iter())
        .map(|(a, b)| a.abs_diff(*b))
        .max();
    assert!(apart <= Some(1), "{apart:?}");
    assert_ne!(batch[0], batch[1]);
}

/// The program on two devices: GPUs where the test run has two, else the CPU twice.
fn on_two() -> (Command, &'static str, &'static str) {
    let mut command = program();
    let gpus = std::env::var("HIP_SIM_DEVICES").is_ok_and(|count| count == "2");
    let rocm = std::env::var("CANDLE_ROCM_TEST_DEVICE").is_ok_and(|device| device == "rocm");
    command.env_remove("SD_DEVICE");
    match rocm && gpus {
        true => (command, "0,1", "0"),
        false => (command, "cpu,cpu", "cpu"),
    }
}

#[test]
fn two_devices_make_the_pictures_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let common = [
        "generate",
        "a red circle",
        "--steps",
        "2",
        "--width",
        "64",
        "--height",
        "64",
        "--json",
    ];
    let draw = |which: &[&str], more: &[&str]| {
        let (mut command, ..) = on_two();
        let output = command
            .args(common)
            .args(which)
            .args(more)
            .current_dir(folder)
            .output();
        let out: Value = serde_json::from_str(&succeeded(output.unwrap())).unwrap();
        let files = out["images"].as_array().unwrap().iter();
        let open = |file: &Value| image::open(folder.join(file["file"].as_str().unwrap())).unwrap();
        (
            files.map(|file| open(file).to_rgb8()).collect::<Vec<_>>(),
            out,
        )
    };
    let (_, two, one) = on_two();
    // A picture each.
    let (both, out) = draw(&["--devices", two], &["--seed", "5", "-b", "2"]);
    assert_eq!(out["images"][1]["seed"], 6);
    assert_eq!(
        out["devices"][1]["parts"],
        json!(["text", "denoiser", "vae", "controlnet"])
    );
    assert_eq!(out["timings"]["evaluations"], 4);
    let single = ["--device", if one == "0" { "rocm:0" } else { "cpu" }];
    for (seed, picture) in ["5", "6"].iter().zip(&both) {
        assert_eq!(draw(&single, &["--seed", seed]).0[0], *picture, "{seed}");
    }
    // One picture, of whose guidance each computes a half.
    let in_turn = draw(&["--guidance-devices", one], &["--seed", "5"]).0;
    assert_eq!(draw(&["--devices", two], &["--seed", "5"]).0, in_turn);
    let (named, out) = draw(&["--guidance-devices", two], &["--seed", "5"]);
    assert_eq!(named, in_turn);
    assert_eq!(out["devices"][1]["parts"], json!(["second denoiser"]));
    let off = draw(
        &["--devices", two, "--guidance-devices", "off"],
        &["--seed", "5"],
    )
    .0;
    assert_eq!(off, both[..1]);
    // Parts by name.
    let parts = match one {
        "0" => "text=1,vae=1,denoiser=0",
        _ => "text=cpu,vae=cpu,denoiser=cpu",
    };
    let (parted, out) = draw(
        &["--devices", two, "--part-device", parts],
        &["--seed", "6"],
    );
    assert_eq!(parted, both[1..]);
    if one == "0" {
        assert_eq!(out["devices"][1]["parts"], json!(["text", "vae"]));
    }
}

#[test]
fn devices_that_cannot_be_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, words) in [
        (
            &["--part-device", "unet=1"][..],
            "text, denoiser, vae, controlnet",
        ),
        (&["--devices", "0,0"], "named twice"),
        (
            &["--devices", "cpu,cpu", "--device", "cpu"],
            "say different things",
        ),
        (
            &["--devices", "cpu,cpu", "--part-device", "text=3"],
            "rocm:3 is not among",
        ),
        (&["--guidance-devices", "0,1,2"], "two halves"),
    ] {
        let (mut command, ..) = on_two();
        let output = command
            .args(["generate", "x"])
            .args(arguments)
            .current_dir(folder.path());
        let output = output.output().unwrap();
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}

#[test]
fn mistakes_have_exit_code_2_and_say_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    std::fs::write(folder.join("model.ckpt"), b"\x80\x02}q\x00.").unwrap();
    std::fs::write(folder.join("text.png"), b"hello").unwrap();
    for (arguments, words) in [
        (&["generate"][..], "PROMPT"),
        (&["generate", "x", "--sampler", "DPM slow"], "DPM++ 2M SDE"),
        (&["generate", "x", "--width", "100"], "multiple of 8"),
        (&["generate", "x", "--steps", "0"], "steps"),
        (&["generate", "x", "--model", "nowhere"], "Hugging Face id"),
        (&["generate", "x", "--model", "model.ckpt"], "safetensors"),
        (&["generate", "x", "-o", "x.gif"], "png, jpeg or webp"),
        (
            &["generate", "x", "--init-image", "text.png"],
            "neither PNG",
        ),
        (&["generate", "x", "--lora", "nothing"], "nothing"),
        (&["generate", "x", "--sd-version", "xl"], "--sd-version xl"),
        (
            &["generate", "x", "--use-f16", "--precision", "f32"],
            "give one of them",
        ),
        (&["png-info", "text.png"], "neither PNG"),
        (&["png-info", "missing.png"], "missing.png"),
    ] {
        let output = run(arguments, folder);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?}: {error}");
    }
}

#[test]
fn settings_come_from_the_environment_too() {
    let folder = tempfile::tempdir().unwrap();
    let output = program()
        .args(["generate", "x", "--json"])
        .current_dir(folder.path())
        .envs([
            ("SD_STEPS", "1"),
            ("SD_SEED", "9"),
            ("SD_FORMAT", "webp"),
            ("USE_F16", "false"),
            ("SD_OUTPUT_DIR", "here"),
        ])
        .output()
        .unwrap();
    let out: Value = serde_json::from_str(&succeeded(output)).unwrap();
    assert_eq!(out["images"][0]["file"], "here/00000-9-x.webp");
    assert_eq!(out["request"]["steps"], 1);
    let output = program()
        .args(["generate", "x"])
        .env("MODEL_PATH", "no-such-model")
        .output()
        .unwrap();
    assert!(text(&output.stderr).contains("no-such-model"));
}

#[test]
fn small_commands() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = succeeded(run(&["completions", shell], folder.path()));
        assert!(script.contains("sd-worker-rocm") && script.contains("negative-prompt"));
    }
    let devices: Value =
        serde_json::from_str(&succeeded(run(&["devices", "--json"], folder.path()))).unwrap();
    assert!(devices.is_object());
    let bench = succeeded(run(
        &["bench", "--steps", "1", "--runs", "1", "--json"],
        folder.path(),
    ));
    let bench: Value = serde_json::from_str(&bench).unwrap();
    assert!(bench["evaluation_ms"].as_f64() >= bench["enqueue_ms"].as_f64());
    assert!(bench["evaluation_ms"].as_f64() > Some(0.0));
}

#[test]
fn an_orchestrator_starts_a_worker() {
    let queen = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", queen.local_addr().unwrap());
    let mut worker = program()
        .arg("serve")
        .envs([
            ("PORT", "0"),
            ("WORKER_ID", "worker-7"),
            ("CALLBACK_URL", &url),
            ("SD_VERSION", "v1-5"),
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Read to the end of the test: a program that cannot say anything more would fail.
    let mut lines = BufReader::new(worker.stderr.take().unwrap()).lines();
    let address = lines
        .by_ref()
        .find_map(|line| Some(line.unwrap().split_once("http://")?.1.to_string()))
        .expect("the worker tells its address");

    // The first sign of life.
    let (mut stream, _) = queen.accept().unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut beat = Vec::new();
    while serde_json::from_slice::<Value>(body(&beat)).is_err() {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1);
        beat.push(byte[0]);
    }
    let found: Value = serde_json::from_slice(body(&beat)).unwrap();
    stream
        .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        .unwrap();
    assert!(text(&beat).starts_with("POST /v1/worker-heartbeat"));
    assert_eq!(
        (&found["worker"]["id"], &found["worker"]["model_id"]),
        (&json!("worker-7"), &json!("tiny-shapes-sd"))
    );

    let ask = |method: &str, path: &str, body: &str| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(300)))
            .unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let job = json!({"operation": "image_generation", "prompt": "a blue star", "steps": 2, "preview_every": 1});
    let answer = ask("POST", "/v1/jobs", &job.to_string());
    let id = serde_json::from_slice::<Value>(body(answer.as_bytes())).unwrap()["job_id"].clone();
    let stream = ask(
        "GET",
        &format!("/v1/jobs/{}/stream", id.as_str().unwrap()),
        "",
    );
    for event in ["event: progress", "event: preview", "event: complete"] {
        assert!(stream.contains(event), "{event}: {stream:.300}");
    }

    // SIGTERM ends it in order.
    let killed = Command::new("kill")
        .arg(worker.id().to_string())
        .status()
        .unwrap();
    assert!(killed.success());
    assert!(worker.wait().unwrap().success());
    assert!(lines.any(|line| line.unwrap().contains("stopping")));
}

#[test]
fn a_worker_logs_what_goes_wrong() {
    // A port that nobody listens on.
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let url = format!("http://127.0.0.1:{port}");
    let mut worker = program()
        .args([
            "serve",
            "--port",
            "0",
            "--log-format",
            "json",
            "--callback-url",
            &url,
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The port is open before the model is there.
    let mut line = String::new();
    let mut output = BufReader::new(worker.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    assert!(line.starts_with("listening on http://127.0.0.1:"), "{line}");
    let logs = BufReader::new(worker.stderr.take().unwrap()).lines();
    let warning = logs
        .map(|line| serde_json::from_str::<Value>(&line.unwrap()).expect("a line of JSON"))
        .find(|log| log["level"] == "WARN" && log["message"].as_str().unwrap().contains(&url));
    worker.kill().unwrap();
    worker.wait().unwrap();
    let message = warning.expect("a warning")["message"].to_string();
    assert!(message.contains("no heartbeat"), "{message}");
}

/// A copy between two simulated GPUs fails: so does the request, and there is no picture.
#[test]
fn a_failing_copy_between_devices_is_named() {
    let (mut command, two, _) = on_two();
    if two != "0,1" {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = command
        .args(["generate", "a blue star", "--steps", "1", "--width", "64"])
        .args(["--height", "64", "--devices", two, "--part-device", "vae=1"])
        .env("HIP_SIM_FAIL", "peer-copy:1+")
        .current_dir(folder.path())
        .output()
        .unwrap();
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("to the VAE"), "{error}");
    assert!(!folder.path().join("outputs").exists());
}

/// Calls that the simulator answers before its device is lost: more than loading and the first picture take, and fewer
/// than one more does.
const CALLS: u32 = 3000;

/// The program on a simulated device that is lost while it works. Takes the ten seconds for which `/health` tells of
/// it.
#[test]
fn the_program_ends_with_exit_code_3_when_its_device_is_lost() {
    let simulated = std::env::var("CANDLE_ROCM_TEST_DEVICE").is_ok_and(|name| name == "rocm")
        && std::env::var_os("HIP_SIM_ARCH").is_some();
    if !simulated {
        return;
    }
    let mut worker = program()
        .args(["serve", "--supervise", "off", "--port", "0"])
        .env("HIP_SIM_FAIL", format!("lost:{CALLS}"))
        // Whether it verifies kernels depends on what ran before.
        .env("CANDLE_ROCM_VERIFY", "off")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut output = BufReader::new(worker.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").unwrap();
    let ask = |method: &str, path: &str, body: &str| {
        let mut stream = TcpStream::connect(address).unwrap();
        let length = body.len();
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    while !ask("GET", "/health", "").starts_with("HTTP/1.1 200") {
        assert_eq!(worker.try_wait().unwrap(), None, "it did not load");
        std::thread::sleep(Duration::from_millis(20));
    }
    let request = json!({"prompt": "a blue star", "steps": 4}).to_string();
    let failed = ask("POST", "/v1/images/generations", &request);
    assert!(failed.contains("DEVICE_LOST"), "{failed}");
    let told = ask("GET", "/health", "");
    assert!(told.starts_with("HTTP/1.1 503"), "{told}");
    assert!(told.contains("the device is lost"), "{told}");
    let refused = ask("POST", "/v1/images/generations", &request);
    assert!(
        refused.starts_with("HTTP/1.1 503") && refused.contains("DEVICE_LOST"),
        "{refused}"
    );
    assert_eq!(worker.wait().unwrap().code(), Some(3));
}

fn body(message: &[u8]) -> &[u8] {
    let head = message.windows(4).position(|w| w == b"\r\n\r\n");
    head.map_or(&[], |at| &message[at + 4..])
}
