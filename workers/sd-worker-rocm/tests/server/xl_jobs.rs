//! Fields of jobs for Stable Diffusion XL: a refiner, IP-Adapters, unions of ControlNets, T2I-Adapters, sizes and scores.

use crate::support::{generation, info, png, Server};
use sd_worker_rocm::image_io;
use sd_worker_rocm::jobs::{Generate, QueueOptions};
use sd_worker_rocm::pipeline::{Family, Generated, ModelInfo, Progress};
use sd_worker_rocm::request::ValidRequest;
use sd_worker_rocm::server::{ControlFolders, ServerOptions};
use serde_json::{json, Value};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use worker::fault::DeviceFault;

/// Notes what it is asked for.
struct Note {
    info: ModelInfo,
    asked: Arc<Mutex<Vec<ValidRequest>>>,
}

impl Generate for Note {
    fn info(&self) -> &ModelInfo {
        &self.info
    }

    fn generate(
        &mut self,
        request: &ValidRequest,
        _: &mut dyn FnMut(Progress) -> ControlFlow<()>,
    ) -> worker::Result<Generated> {
        self.asked.lock().unwrap().push(request.clone());
        Ok(Generated {
            images: vec![image::RgbImage::new(8, 8)],
            seeds: vec![request.seed],
            ..Generated::default()
        })
    }

    fn diagnose(&self, error: &worker::Error) -> DeviceFault {
        DeviceFault::Other(error.to_string())
    }
}

#[test]
fn fields_of_xl_reach_the_model() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["union", "adapter", "face"] {
        std::fs::write(folder.path().join(format!("{name}.safetensors")), "").unwrap();
    }
    let asked = Arc::<Mutex<Vec<ValidRequest>>>::default();
    let note = Note {
        info: ModelInfo {
            family: Family::Sdxl,
            refined: true,
            ..info()
        },
        asked: asked.clone(),
    };
    let options = ServerOptions {
        controls: ControlFolders::new(vec![folder.path().to_path_buf()]),
        ..ServerOptions::default()
    };
    let server = Server::over(
        Box::new(note),
        Arc::default(),
        QueueOptions::default(),
        options,
    );
    let picture = image_io::to_base64(&png(64, 64));
    let job = |more: Value| {
        let mut body = generation("a red door");
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        body
    };
    let more = json!({
        "refiner_start": 0.7, "original_size": [640, 480], "crop": [8, 16], "target_size": [64, 64],
        "aesthetic_score": 7, "negative_aesthetic_score": 2,
        "controls": [
            {"model": "union", "image": picture, "kind": "depth", "strength": 0.6, "mode": "prompt", "start": 0.1, "end": 0.9},
            {"model": "adapter", "image": picture},
        ],
        "ip_adapters": [{"model": "face", "images": [picture], "strength": 0.5, "blocks": "style", "mask": picture, "end": 0.8}],
    });
    let id = server.submit(&job(more));
    server.wait_for(&id, "completed");
    let asked = asked.lock().unwrap().remove(0);
    assert_eq!(asked.refiner_start, Some(0.7));
    assert_eq!(
        (asked.micro.original_size, asked.micro.crop),
        (Some((640, 480)), (8, 16))
    );
    assert_eq!(
        (
            asked.micro.aesthetic_score,
            asked.micro.negative_aesthetic_score
        ),
        (7.0, 2.0)
    );
    let [union, adapter] = &asked.controls[..] else {
        panic!("{:?}", asked.controls.len())
    };
    assert_eq!(
        (union.kind.as_deref(), union.strength, union.mode.label()),
        (Some("depth"), 0.6, "prompt")
    );
    assert_eq!(
        ((union.start, union.end), adapter.model.file_stem().unwrap()),
        ((0.1, 0.9), "adapter".as_ref())
    );
    let face = &asked.ip_adapters[0];
    assert_eq!(
        (
            face.strength,
            face.end,
            face.images.len(),
            face.mask.is_some()
        ),
        (0.5, 0.8, 1, true)
    );
    let (_, told) = server.get(&format!("/v1/jobs/{id}"));
    let said = told["images"][0]["parameters"].as_str().unwrap();
    for part in [
        "Refiner switch at: 0.7",
        "Original size: 640x480",
        "Aesthetic score: 7",
        r#"IP-Adapters: "face: 0.5""#,
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    for (more, field) in [
        (json!({"refiner_start": 2}), "refiner_start"),
        (json!({"aesthetic_score": 70}), "aesthetic_score"),
        (
            json!({"controls": [{"model": "nowhere", "image": picture}]}),
            "controls",
        ),
        (
            json!({"ip_adapters": [{"model": "nowhere", "images": [picture]}]}),
            "ip_adapters",
        ),
        (
            json!({"ip_adapters": [{"model": "face", "images": [picture], "blocks": "sideways"}]}),
            "ip_adapters",
        ),
    ] {
        let (status, answer) = server.post("/v1/jobs", &job(more.clone()));
        assert_eq!(
            (status, &answer["error"]["param"]),
            (400, &json!(field)),
            "{more}: {answer}"
        );
    }
}
