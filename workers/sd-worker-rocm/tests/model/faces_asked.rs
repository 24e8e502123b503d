//! Faces as people ask for them: of the command line, of a server's jobs and of its web UI's API. The model is the built-in
//! small one, the networks for faces have random weights and a detector that is sure of faces.

use super::face_networks::Made;
use super::program::{program, Program};
use image::RgbImage;
use sd_worker_rocm::image_io::{self, DecodeLimits};
use serde_json::{json, Value};
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Width and height of the pictures.
const SIDE: u32 = 128;

/// The program with the small model, where the test run wants it.
fn small_program() -> Command {
    let device = std::env::var("CANDLE_ROCM_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_string());
    let mut command = program();
    command.env("SD_DEVICE", device).env(
        "MODEL_PATH",
        concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny-shapes-sd"),
    );
    command.stdin(Stdio::null());
    command
}

/// `generate` of one picture in this folder.
fn generate(folder: &Path, more: &[&str]) -> Output {
    let common = ["generate", "a red circle", "--steps", "1", "--seed", "3"];
    let arguments = [&common[..], &["--json"], more].concat();
    let output = small_program().args(arguments).current_dir(folder).output();
    output.unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The picture that was made, and its file's text.
fn made_by(folder: &Path, output: &Output) -> (RgbImage, String) {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let bytes = std::fs::read(folder.join(said["images"][0]["file"].as_str().unwrap())).unwrap();
    read(&bytes)
}

fn read(bytes: &[u8]) -> (RgbImage, String) {
    let picture = image_io::decode(bytes, &DecodeLimits::default()).unwrap();
    let text = image_io::parameters_of(bytes).unwrap().unwrap();
    (image_io::to_rgb(&picture), text)
}

/// Width and height of what is not the same.
fn changed(a: &RgbImage, b: &RgbImage) -> (u32, u32) {
    assert_eq!(a.dimensions(), b.dimensions());
    let places = a.enumerate_pixels().zip(b.pixels());
    let others: Vec<_> = places.filter(|((.., a), b)| a != b).collect();
    let reach = |along: fn((u32, u32)) -> u32| {
        let at = others.iter().map(|((x, y, _), _)| along((*x, *y)));
        at.clone()
            .max()
            .map_or(0, |last| last + 1 - at.min().unwrap_or(0))
    };
    (reach(|(x, _)| x), reach(|(_, y)| y))
}

/// Networks in a folder as `--face-dir` wants it.
fn networks() -> Made {
    let made = Made::open();
    made.write("detector", &made.sure_detector());
    for restorer in ["gfpgan", "codeformer"] {
        made.file(restorer);
    }
    made
}

#[test]
fn the_command_line_restores_faces() {
    let made = networks();
    let folder = made.place();
    let files = [
        "--restore-faces",
        "gfpgan.safetensors",
        "--face-detector",
        "detector.safetensors",
    ];
    let (plain, said) = made_by(folder, &generate(folder, &[]));
    assert!(!said.contains("Face"), "{said}");
    let options = ["--only-center-face", "--face-visibility", "0.75"];
    let asked = generate(folder, &[&files[..], &options].concat());
    let (restored, said) = made_by(folder, &asked);
    for part in [
        "Face restoration: gfpgan",
        "Face restoration visibility: 0.75",
        "Face restoration of: center",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // A face's square is four times as wide as its eyes are apart; around it nothing is touched.
    let (width, height) = changed(&plain, &restored);
    assert!((16..=80).contains(&width), "{width}");
    assert!((16..=80).contains(&height), "{height}");
    // All of them: to the edges.
    let (all, _) = made_by(folder, &generate(folder, &files));
    assert_eq!(changed(&plain, &all), (SIDE, SIDE));
}

#[test]
fn the_command_line_names_what_is_missing() {
    let made = networks();
    let folder = made.place();
    let with = |restorer: &str, more: &[&str]| {
        let output = generate(folder, &[&["--restore-faces", restorer], more].concat());
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stdout));
        text(&output.stderr)
    };
    let detector = ["--face-detector", "detector.safetensors"];
    for (said, part) in [
        (with("gfpgan.safetensors", &[]), "--face-detector"),
        (with("none.safetensors", &detector), "none.safetensors"),
        (with("detector.safetensors", &detector), "RetinaFace"),
        (
            with(
                "gfpgan.safetensors",
                &["--face-detector", "codeformer.safetensors"],
            ),
            "CodeFormer",
        ),
        (
            with(
                "gfpgan.safetensors",
                &[&detector[..], &["--face-weight", "2"]].concat(),
            ),
            "weight",
        ),
    ] {
        assert!(said.contains(part), "{part}: {said}");
        // Nothing was drawn first.
        assert!(!folder.join("outputs").exists(), "{said}");
    }
}

/// The program as a server.
struct Server(Program);

impl Server {
    fn start(faces: &Path) -> Self {
        let mut command = small_program();
        command
            .args(["serve", "--supervise", "off", "--port", "0", "--face-dir"])
            .arg(faces);
        let program = Program::start(command);
        program.until_ready();
        Self(program)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        self.0.ask(method, path, &body.to_string())
    }

    /// What a web UI's client gets: the picture and its text.
    fn draw(&self, more: &Value) -> (RgbImage, String) {
        let mut body = json!({"prompt": "a red circle", "steps": 1, "seed": 3});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        let (status, answer) = self.ask("POST", "/sdapi/v1/txt2img", &body);
        assert_eq!(status, 200, "{answer}");
        picture(&answer["images"][0])
    }

    /// What becomes of a job: the picture and its text.
    fn job(&self, faces: &Value) -> (RgbImage, String) {
        let body = json!({
            "operation": "image_generation", "prompt": "a red circle", "steps": 1, "seed": 3, "restore_faces": faces,
        });
        let (status, answer) = self.ask("POST", "/v1/jobs", &body);
        assert_eq!(status, 202, "{answer}");
        let path = format!("/v1/jobs/{}", answer["job_id"].as_str().unwrap());
        loop {
            let job = self.ask("GET", &path, &json!({})).1;
            match job["state"].as_str().unwrap() {
                "completed" => {
                    let url = job["images"][0]["url"].as_str().unwrap();
                    return read(&self.0.send("GET", url, "").1);
                }
                "queued" | "running" => std::thread::sleep(std::time::Duration::from_millis(10)),
                _ => panic!("{job}"),
            }
        }
    }

    /// The field that a refusal names, and its words.
    fn refused(&self, path: &str, body: &Value) -> (Value, String) {
        let (status, answer) = self.ask("POST", path, body);
        assert_eq!(status, 400, "{answer}");
        (answer["error"]["param"].clone(), answer.to_string())
    }
}

fn picture(base64: &Value) -> (RgbImage, String) {
    let bytes = image_io::from_base64(base64.as_str().unwrap(), &DecodeLimits::default());
    read(&bytes.unwrap())
}

#[test]
fn a_server_restores_faces() {
    let made = networks();
    let server = Server::start(made.place());
    let (plain, said) = server.draw(&json!({}));
    assert!(!said.contains("Face"), "{said}");
    let choices = server.ask("GET", "/v1/choices", &json!({})).1;
    assert_eq!(choices["face_restorers"], json!(["codeformer", "gfpgan"]));
    let known = server.ask("GET", "/sdapi/v1/face-restorers", &json!({})).1;
    assert_eq!(known[0]["name"], "CodeFormer");

    // A job: one face, then all of them by a kind's name.
    let (one, said) = server.job(&json!({"model": "gfpgan", "only_center": true}));
    let (width, height) = changed(&plain, &one);
    assert!(
        (16..=80).contains(&width) && (16..=80).contains(&height),
        "{width} x {height}"
    );
    assert!(
        said.contains("Face restoration: gfpgan, Face restoration of: center"),
        "{said}"
    );
    let (best, _) = server.job(&json!({"model": "CodeFormer", "weight": 0}));
    assert_eq!(changed(&plain, &best), (SIDE, SIDE));
    let (alike, said) = server.job(&json!({"model": "CodeFormer", "weight": 1}));
    assert_ne!(best, alike);
    assert!(said.contains("Face restoration weight: 1"), "{said}");
    let unseen = server.job(&json!({"model": "gfpgan", "visibility": 0}));
    assert_eq!(unseen.0, plain);

    // The picture's text says all of it again.
    let recalled = server
        .ask("POST", "/v1/recall", &json!({"parameters": said}))
        .1;
    let told = &recalled["fields"]["restore_faces"];
    assert_eq!(
        told,
        &json!({"model": "codeformer", "weight": 1.0, "visibility": 1.0, "only_center": false})
    );
    assert_eq!(server.job(told).0, alike);

    // The web UI's: by the settings' network.
    let settings = |name: &str, weight: f64| json!({"restore_faces": true, "override_settings": {"face_restoration_model": name, "code_former_weight": weight}});
    assert_eq!(server.draw(&settings("CodeFormer", 1.0)).0, alike);
    assert_eq!(server.draw(&settings("CodeFormer", 0.0)).0, best);
    assert_eq!(server.draw(&json!({"infotext": said})).0, alike);

    let jobs = |faces: Value| json!({"operation": "image_generation", "prompt": "x", "restore_faces": faces});
    for (path, body, part) in [
        (
            "/v1/jobs",
            jobs(json!({"model": "RestoreFormer"})),
            "codeformer, gfpgan",
        ),
        (
            "/v1/jobs",
            jobs(json!({"model": "gfpgan", "weight": 2})),
            "weight",
        ),
        (
            "/v1/jobs",
            jobs(json!({"model": "gfpgan", "visibility": -1})),
            "visibility",
        ),
        (
            "/sdapi/v1/txt2img",
            settings("RestoreFormer", 0.5),
            "RestoreFormer",
        ),
    ] {
        let (field, said) = server.refused(path, &body);
        assert_eq!(field, "restore_faces", "{said}");
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_server_without_networks_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let choices = server.ask("GET", "/v1/choices", &json!({})).1;
    assert_eq!(choices["face_restorers"], json!([]));
    assert_eq!(
        server.ask("GET", "/sdapi/v1/face-restorers", &json!({})).1,
        json!([])
    );
    let job = json!({"operation": "image_generation", "prompt": "x", "restore_faces": {"model": "GFPGAN"}});
    for (path, body) in [
        ("/v1/jobs", job),
        (
            "/sdapi/v1/txt2img",
            json!({"prompt": "x", "restore_faces": true}),
        ),
    ] {
        let (field, said) = server.refused(path, &body);
        assert_eq!(field, "restore_faces");
        assert!(said.contains("--face-dir"), "{said}");
    }
    // What a picture says is told as left out.
    let said = "x\nSteps: 1, Sampler: Euler, Seed: 3, Face restoration: GFPGAN";
    let recalled = server
        .ask("POST", "/v1/recall", &json!({"parameters": said}))
        .1;
    assert_eq!(recalled["left_out"], json!(["Face restoration: GFPGAN"]));
}
