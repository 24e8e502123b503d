//! Several image models behind one server, each in a process of its own.

mod program;

use program::{program, Program, LIMIT};
use sd_worker_rocm::sampling::Sampler;
use serde_json::{json, Value};
use std::path::Path;
use std::time::{Duration, Instant};

/// The program over two models.
struct Server {
    program: Program,
    _folder: tempfile::TempDir,
}

impl std::ops::Deref for Server {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl Server {
    fn start(arguments: &[&str]) -> Self {
        Self::on(&["--device", "cpu"], arguments)
    }

    fn on(devices: &[&str], arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-shapes-sd");
        for name in ["shapes", "sketches"] {
            std::os::unix::fs::symlink(&model, folder.path().join(name)).unwrap();
        }
        let mut command = program();
        command
            .args(["serve", "--port", "0", "--models"])
            .arg(folder.path())
            .args(devices)
            .args(arguments);
        let server = Self {
            program: Program::start(command),
            _folder: folder,
        };
        server.until_ready();
        server
    }

    fn get(&self, path: &str) -> Value {
        let (status, answer) = self.ask("GET", path, "");
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.ask("POST", path, &body.to_string())
    }

    fn state(&self, name: &str) -> Value {
        let list = self.get("/v1/models");
        let found = list["data"]
            .as_array()
            .unwrap()
            .iter()
            .find(|entry| entry["id"] == name);
        found.unwrap()["status"]["value"].clone()
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < LIMIT, "{what} did not happen");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The name of the model that makes a picture.
    fn draw(&self, more: Value) -> (u16, Value) {
        let mut body =
            json!({"prompt": "a red circle", "steps": 1, "width": 64, "height": 64, "seed": 1});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let (status, answer) = self.post("/sdapi/v1/txt2img", &body);
        let info: Value = serde_json::from_str(answer["info"].as_str().unwrap_or("null")).unwrap();
        match status {
            200 => (200, info["sd_model_name"].clone()),
            _ => (status, answer),
        }
    }
}

#[test]
fn a_web_ui_changes_the_model() {
    let server = Server::start(&["--models-max", "1"]);
    let titles = server.get("/sdapi/v1/sd-models");
    assert_eq!(
        (&titles[0]["title"], &titles[1]["title"]),
        (&json!("shapes"), &json!("sketches"))
    );
    // What only asks loads nothing.
    assert_eq!(server.get("/sdapi/v1/progress")["state"]["job_count"], 0);
    assert_eq!(
        server.get("/sdapi/v1/samplers").as_array().unwrap().len(),
        Sampler::ALL.len()
    );
    assert_eq!(
        server.get("/sdapi/v1/options")["sd_model_checkpoint"],
        "shapes"
    );
    assert_eq!(server.get("/v1/jobs"), json!({"jobs": []}));
    assert_eq!(
        (server.state("shapes"), server.state("sketches")),
        (json!("unloaded"), json!("unloaded"))
    );

    assert_eq!(server.draw(json!({})), (200, json!("shapes")));
    // For one picture, by the title with what web UIs add.
    let once =
        json!({"override_settings": {"sd_model_checkpoint": "sketches.safetensors [0123456789]"}});
    assert_eq!(server.draw(once), (200, json!("sketches")));
    assert_eq!(
        server.get("/sdapi/v1/options")["sd_model_checkpoint"],
        "shapes"
    );
    assert_eq!(server.draw(json!({})), (200, json!("shapes")));
    // From now on.
    let chosen = json!({"sd_model_checkpoint": "sketches"});
    assert_eq!(server.post("/sdapi/v1/options", &chosen).0, 200);
    assert_eq!(
        (server.state("shapes"), server.state("sketches")),
        (json!("unloaded"), json!("loaded"))
    );
    assert_eq!(
        server.get("/sdapi/v1/options")["sd_model_checkpoint"],
        "sketches"
    );
    assert_eq!(server.draw(json!({})), (200, json!("sketches")));
    let (status, refused) = server.post("/sdapi/v1/options", &json!({"eta": 1}));
    assert_eq!((status, &refused["error"]["param"]), (400, &json!("eta")));
    assert_eq!(
        server
            .post("/sdapi/v1/options", &json!({"sd_model_checkpoint": "oil"}))
            .0,
        404
    );
    let (status, refused) =
        server.draw(json!({"override_settings": {"sd_model_checkpoint": "oil"}}));
    assert_eq!(status, 404, "{refused}");

    assert_eq!(
        server.post("/sdapi/v1/unload-checkpoint", &json!({})).0,
        200
    );
    server.until("the end", || server.state("sketches") == "unloaded");
    assert_eq!(
        server.post("/sdapi/v1/reload-checkpoint", &json!({})).0,
        200
    );
    assert_eq!(server.state("sketches"), "loaded");
    assert_eq!(
        server.post("/sdapi/v1/refresh-checkpoints", &json!({})).0,
        200
    );
    assert_eq!(server.post("/sdapi/v1/interrupt", &json!({})).0, 200);
}

#[test]
fn jobs_and_pictures_are_found_by_their_ids() {
    let loras = tempfile::tempdir().unwrap();
    std::fs::write(loras.path().join("ink.safetensors"), "").unwrap();
    let server = Server::start(&["--lora-dir", loras.path().to_str().unwrap()]);
    let job = |model: &str| {
        json!({"operation": "image_generation", "hive_id": "h", "model": model, "prompt": "a circle", "steps": 1,
            "width": 64, "height": 64})
    };
    let ids = ["shapes", "sketches"].map(|model| {
        let (status, made) = server.post("/v1/jobs", &job(model));
        assert!(status < 300, "{made}");
        made["job_id"].as_str().unwrap().to_string()
    });
    for id in &ids {
        server.until("the job", || {
            server.get(&format!("/v1/jobs/{id}"))["state"] == "completed"
        });
    }
    assert_eq!(server.get("/v1/jobs")["jobs"].as_array().unwrap().len(), 2);
    assert_eq!(server.ask("GET", "/v1/jobs/none", "").0, 404);
    // One list of what each model has, and how far a request is whichever model's.
    let loras = server.get("/sdapi/v1/loras");
    assert_eq!(
        (&loras[0]["name"], &loras[0]["models"]),
        (&json!("ink"), &json!(["shapes", "sketches"]))
    );
    assert_eq!(loras.as_array().unwrap().len(), 1);
    assert_eq!(server.get("/sdapi/v1/sd-vae"), json!([]));
    assert_eq!(
        server.get("/internal/pending-tasks"),
        json!({"size": 0, "tasks": []})
    );
    for (task, known) in [
        (ids[0].as_str(), true),
        (ids[1].as_str(), true),
        ("none", false),
    ] {
        let (status, told) = server.post("/internal/progress", &json!({"id_task": task}));
        assert_eq!((status, &told["completed"]), (200, &json!(known)), "{task}");
    }
    assert_eq!(server.ask("GET", "/ws", "").0, 501);
    let asked = json!({"model": "sketches", "prompt": "a circle", "size": "64x64", "response_format": "url"});
    let (status, answer) = server.post("/v1/images/generations", &asked);
    assert_eq!(status, 200, "{answer}");
    let url = answer["data"][0]["url"].as_str().unwrap();
    let path = &url[url.find("/v1/").unwrap()..];
    let (status, bytes) = server.send("GET", path, "");
    assert_eq!(status, 200);
    assert!(bytes.starts_with(b"\x89PNG"));
    let stray = json!({"model": "oil", "prompt": "x"});
    let (status, refused) = server.post("/v1/images/generations", &stray);
    assert_eq!(
        (status, &refused["error"]["code"]),
        (404, &json!("model_not_found"))
    );
}

#[test]
fn models_are_on_several_devices() {
    let server = Server::on(&["--devices", "cpu,cpu"], &["--models-max", "1"]);
    let none = server.get("/sdapi/v1/memory");
    assert_eq!(none["devices"], json!([]));
    assert!(none["ram"]["used"].as_u64() > Some(0), "{none}");
    let two = json!({"batch_size": 2, "override_settings": {"sd_model_checkpoint": "sketches"}});
    assert_eq!(server.draw(two), (200, json!("sketches")));
    let memory = server.get("/sdapi/v1/memory");
    let named: Vec<_> = memory["devices"].as_array().unwrap().iter().collect();
    assert_eq!(named.len(), 2, "{memory}");
    assert_eq!(
        (&named[1]["name"], &named[1]["model"]),
        (&json!("cpu-2"), &json!("sketches"))
    );
}
