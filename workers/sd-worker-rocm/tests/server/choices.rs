//! What clients that let people choose ask the server.

use crate::common::tiny_on;
use crate::support::{png, Server};
use candle_core::Device;
use sd_worker_rocm::image_io::{self, to_base64, Format};
use sd_worker_rocm::pipeline::PipelineOptions;
use sd_worker_rocm::request::Library;
use sd_worker_rocm::sampling::{Sampler, Schedule};
use sd_worker_rocm::server::{LoraFolders, ServerOptions};
use serde_json::{json, Value};

#[test]
fn choices_tell_what_the_model_and_the_server_have() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("ink.safetensors"), b"").unwrap();
    let wildcards = folder.path().join("wildcards");
    std::fs::create_dir_all(wildcards.join("more")).unwrap();
    std::fs::write(wildcards.join("colour.txt"), b"red\n").unwrap();
    std::fs::write(wildcards.join("more/place.txt"), b"sea\n").unwrap();
    let options = ServerOptions {
        loras: LoraFolders::new(vec![folder.path().to_path_buf()]),
        library: Library {
            wildcards: sd_worker_rocm::prompt::wildcards::Wildcards::new(Some(wildcards)),
            ..Library::default()
        },
        ..ServerOptions::default()
    };
    let server = Server::with(Default::default(), options);
    let (status, choices) = server.get("/v1/choices");
    assert_eq!(status, 200, "{choices}");
    assert_eq!(choices["model"], "painter");
    assert_eq!(choices["defaults"]["steps"], 4);
    let count = |list: &str| choices[list].as_array().unwrap().len();
    assert_eq!(count("samplers"), Sampler::ALL.len());
    assert_eq!(count("schedules"), Schedule::ALL.len());
    assert_eq!(choices["loras"], json!(["ink"]));
    assert_eq!(choices["wildcards"], json!(["colour", "more/place"]));
    assert_eq!(choices["video"], Value::Null);
    assert_eq!(choices["takes"]["true_guidance"], false);
    // A side that is told to be allowed is, the one below it is not.
    let least = &choices["limits"]["side"][0];
    let ask = |side: u64| {
        let body =
            json!({"operation": "image_generation", "prompt": "x", "width": side, "height": 64});
        server.post("/v1/jobs", &body).0
    };
    assert_eq!(ask(least.as_u64().unwrap()), 202);
    assert_eq!(ask(least.as_u64().unwrap() - 8), 400);
}

#[test]
fn what_a_picture_says_becomes_fields_that_a_job_takes() {
    let server = Server::start();
    let text = "a cat\nNegative prompt: dog\nSteps: 7, Sampler: Euler, Schedule type: Karras, CFG scale: 3.5, Seed: 12, \
                Size: 64x72, Hires upscale: 1.5, Hires upscaler: Latent, Denoising strength: 0.4, Variation seed: 5, \
                Variation seed strength: 0.25, PAG scale: 2.5, Skip layers: \"7, 8\", Mask blur: 4";
    let image = image::load_from_memory(&png(8, 8)).unwrap().to_rgb8();
    let file = image_io::encode(&image, Format::Png, 0, Some(text)).unwrap();
    let (status, by_picture) = server.post("/v1/recall", &json!({"picture": to_base64(&file)}));
    assert_eq!(status, 200, "{by_picture}");
    let (_, by_text) = server.post("/v1/recall", &json!({"parameters": text}));
    assert_eq!(by_picture, by_text);
    assert_eq!(by_text["left_out"], json!(["Mask blur: 4"]));
    let expected = json!({
        "prompt": "a cat", "negative_prompt": "dog", "steps": 7, "sampler": "Euler", "schedule": "Karras",
        "guidance_scale": 3.5, "seed": 12, "width": 64, "height": 72, "variation_seed": 5, "variation": 0.25,
        "pag_scale": 2.5, "skip_layers": [7, 8],
        "highres": {"scale": 1.5, "upscaler": "Latent", "strength": 0.4},
    });
    assert_eq!(by_text["fields"], expected);
    let mut body = expected;
    body["operation"] = json!("image_generation");
    // Two forms of guidance at once are what the text says, and what a job refuses.
    assert_eq!(server.post("/v1/jobs", &body).0, 400);
    body["skip_layers"] = json!([]);
    let (status, answer) = server.post("/v1/jobs", &body);
    assert_eq!(status, 202, "{answer}");
    let (status, answer) = server.post("/v1/recall", &json!({"picture": to_base64(&png(8, 8))}));
    assert_eq!(
        (status, &answer["error"]["param"]),
        (400, &json!("picture"))
    );
}

/// By a tokenizer that knows letters and some words.
#[test]
fn tokens_are_counted_as_the_model_reads_them() {
    let pipeline = tiny_on(&Device::Cpu, PipelineOptions::default());
    let server = Server::over(
        Box::new(pipeline),
        Default::default(),
        Default::default(),
        ServerOptions::default(),
    );
    let count = |prompts: Value| server.post("/v1/tokens", &json!({"prompts": prompts}));
    let (status, counts) = count(json!([
        "",
        "red",
        "(red:1.3) <lora:x:1>",
        "[red:red red:0.5]",
        "red BREAK red"
    ]));
    assert_eq!(status, 200, "{counts}");
    let of = |i: usize| counts["tokens"][i].as_u64().unwrap();
    let (one, room) = (of(1), counts["chunk"].as_u64().unwrap());
    assert!(one > 0);
    assert_eq!((of(0), of(2), of(3), of(4)), (0, one, 2 * one, room + one));
    assert_eq!(count(json!(vec!["x"; 17])).0, 400);
    assert_eq!(count(json!(["<lora:x:many>"])).0, 400);
    // The stand-in tells nothing.
    let (_, nothing) = Server::start().post("/v1/tokens", &json!({"prompts": ["red"]}));
    assert_eq!(nothing, json!({"tokens": null, "chunk": null}));
}
