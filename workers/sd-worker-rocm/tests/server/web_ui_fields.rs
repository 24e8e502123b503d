//! Fields of the web UI beside those that every client sends: they reach the picture's text, and the request.

use crate::support::{info, parse, png, Server, JSON};
use sd_worker_rocm::image_io;
use sd_worker_rocm::jobs::QueueOptions;
use sd_worker_rocm::pipeline::{Family, ModelInfo};
use sd_worker_rocm::server::ServerOptions;
use serde_json::{json, Value};

fn ask(server: &Server, path: &str, body: &Value) -> Value {
    let (status, answer) = server.post(&format!("/sdapi/v1/{path}"), body);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The text of the first picture.
fn text(answer: &Value) -> String {
    let info: Value = serde_json::from_str(answer["info"].as_str().unwrap()).unwrap();
    info["infotexts"][0].as_str().unwrap().to_string()
}

fn start() -> String {
    image_io::to_base64(&png(64, 64))
}

#[test]
fn fields_reach_the_pictures_text() {
    let server = Server::start();
    let body = json!({"prompt": "a <lora:nowhere:1> cat", "disable_extra_networks": "true", "s_min_uncond": "1.5"});
    let said = text(&ask(&server, "txt2img", &body));
    assert!(said.starts_with("a  cat\n"), "{said}");
    assert!(
        said.contains("NGMS: 1.5") && !said.contains("Loras"),
        "{said}"
    );
    let mut body =
        json!({"prompt": "x", "init_images": [start()], "initial_noise_multiplier": 0.9});
    let said = text(&ask(&server, "img2img", &body));
    assert!(said.contains("Noise multiplier: 0.9"), "{said}");
    body["initial_noise_multiplier"] = json!(1);
    let said = text(&ask(&server, "img2img", &body));
    assert!(!said.contains("Noise multiplier"), "{said}");
    for (path, field, value) in [
        ("txt2img", "initial_noise_multiplier", json!(0.9)),
        ("img2img", "initial_noise_multiplier", json!(7)),
        ("txt2img", "s_min_uncond", json!(-1)),
    ] {
        let mut body = json!({"prompt": "x", "init_images": [start()]});
        body[field] = value;
        let (status, answer) = server.post(&format!("/sdapi/v1/{path}"), &body);
        assert_eq!(status, 400, "{field}: {answer}");
    }
}

#[test]
fn soft_inpainting_is_taken_from_its_script() {
    let server = Server::start();
    let script = |args: Value| json!({"Soft Inpainting": {"args": args}});
    let mut body = json!({
        "prompt": "x", "init_images": [start()], "mask": start(),
        "alwayson_scripts": script(json!([true, 2, 0.5, 4, 0.25, 0.5, "2"])),
    });
    let said = text(&ask(&server, "img2img", &body));
    for part in [
        "Soft inpainting enabled: True",
        "Soft inpainting schedule bias: 2",
        "Soft inpainting preservation strength: 0.5",
        "Soft inpainting mask influence: 0.25",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    body["alwayson_scripts"] = script(json!([false, 2, 0.5, 4, 0.25, 0.5, 2]));
    let said = text(&ask(&server, "img2img", &body));
    assert!(!said.contains("Soft inpainting"), "{said}");
    // Without a mask the extension does nothing.
    body["alwayson_scripts"] = script(json!([true]));
    body["mask"] = Value::Null;
    let said = text(&ask(&server, "img2img", &body));
    assert!(!said.contains("Soft inpainting"), "{said}");
}

#[test]
fn settings_of_noise_are_followed() {
    let server = Server::start();
    let eta = |more: Value| {
        let mut body = json!({"prompt": "x", "override_settings": more});
        let said = |body: &Value| {
            let said = text(&ask(&server, "txt2img", body));
            let eta = said.split(", Eta: ").nth(1)?;
            Some(eta.split(',').next()?.to_string())
        };
        ["DDIM", "Euler a", "DPM adaptive"].map(|sampler| {
            body["sampler_name"] = json!(sampler);
            said(&body)
        })
    };
    let texts = |of: [Option<&str>; 3]| of.map(|eta| eta.map(String::from));
    assert_eq!(eta(json!({})), texts([None, None, Some("1")]));
    let both = json!({"eta_ddim": 0.25, "eta_ancestral": "0.5"});
    assert_eq!(eta(both), texts([Some("0.25"), Some("0.5"), Some("0.5")]));
    let body = json!({"prompt": "x", "init_images": [start()], "override_settings": {"initial_noise_multiplier": 0.8}});
    let said = text(&ask(&server, "img2img", &body));
    assert!(said.contains("Noise multiplier: 0.8"), "{said}");
}

#[test]
fn the_text_of_a_picture_fills_what_is_open() {
    let server = Server::start();
    let infotext = "a cat\nNegative prompt: dog\nSteps: 7, Sampler: Euler, CFG scale: 3, Seed: 77, Size: 64x96, RNG: CPU, \
                    NGMS: 2, Mask blur: 4, Version: v1.10";
    let body = json!({"prompt": "", "infotext": infotext, "steps": 3});
    let answer = ask(&server, "txt2img", &body);
    let said = text(&answer);
    for part in [
        "a cat\nNegative prompt: dog\nSteps: 3, Sampler: Euler,",
        "CFG scale: 3, Seed: 77, Size: 64x96",
        "NGMS: 2",
        "RNG: CPU",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(
        answer["parameters"]["infotext_left_out"],
        json!(["Mask blur: 4"])
    );
}

#[test]
fn dynamic_prompts_are_drawn() {
    let server = Server::start();
    let scripts = json!({"Dynamic Prompts v2.17.1": {"args": [true, true, 1]}});
    let body = json!({"prompt": "a {red|blue} cat", "seed": 5, "alwayson_scripts": scripts});
    let answer = ask(&server, "txt2img", &body);
    let info: Value = serde_json::from_str(answer["info"].as_str().unwrap()).unwrap();
    let texts = info["infotexts"].as_array().unwrap();
    let starts = |i: usize| {
        texts[i]
            .as_str()
            .unwrap()
            .lines()
            .next()
            .unwrap()
            .to_string()
    };
    assert_eq!(
        (texts.len(), starts(0), starts(1)),
        (2, "a red cat".into(), "a blue cat".into())
    );
    let mut magic = body.clone();
    magic["alwayson_scripts"] =
        json!({"Dynamic Prompts v2.17.1": {"args": [true, false, 1, true]}});
    let (status, answer) = server.post("/sdapi/v1/txt2img", &magic);
    assert_eq!(status, 400);
    assert!(
        answer["detail"].as_str().unwrap().contains("magic prompts"),
        "{answer}"
    );
}

#[test]
fn pictures_are_saved_where_the_operator_says() {
    let folder = tempfile::tempdir().unwrap();
    let options = ServerOptions {
        save_dir: Some(folder.path().to_path_buf()),
        ..ServerOptions::default()
    };
    let server = Server::with(QueueOptions::default(), options);
    let files = || -> Vec<Vec<u8>> {
        let files = std::fs::read_dir(folder.path()).unwrap();
        files
            .map(|file| std::fs::read(file.unwrap().path()).unwrap())
            .collect()
    };
    let mut body = json!({"prompt": "x", "batch_size": 2});
    ask(&server, "txt2img", &body);
    body["save_images"] = json!(true);
    body["do_not_save_samples"] = json!(true);
    ask(&server, "txt2img", &body);
    assert_eq!(files().len(), 0);
    body["do_not_save_samples"] = json!(false);
    body["send_images"] = json!(false);
    let answer = ask(&server, "txt2img", &body);
    assert_eq!(answer["images"], json!([]));
    let said: Vec<String> = files()
        .iter()
        .map(|file| image_io::parameters_of(file).unwrap().unwrap())
        .collect();
    assert_eq!(said.len(), 2);
    assert!(said.contains(&text(&answer)), "{said:?}");
    // Where there is no folder, they are sent as ever.
    let server = Server::start();
    body["send_images"] = json!(true);
    assert_eq!(
        ask(&server, "txt2img", &body)["images"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}

#[test]
fn distilled_guidance_of_models_that_have_no_other() {
    let of = |family| Server::of(ModelInfo { family, ..info() });
    let flux2 = of(Family::Flux2);
    let said = text(&ask(
        &flux2,
        "txt2img",
        &json!({"prompt": "x", "distilled_cfg_scale": 3.5, "cfg_scale": 1}),
    ));
    assert!(said.contains("CFG scale: 3.5,"), "{said}");
    let both = json!({"prompt": "x", "distilled_cfg_scale": 3.5, "cfg_scale": 2});
    let (status, _, answer) = flux2.send(
        "POST",
        "/sdapi/v1/txt2img",
        JSON,
        both.to_string().as_bytes(),
    );
    let answer = parse(&answer);
    assert_eq!(
        (status, &answer["error"]["param"]),
        (400, &json!("distilled_cfg_scale"))
    );
    // Models without it are guided by the other.
    let said = text(&ask(
        &of(Family::Sd1),
        "txt2img",
        &json!({"prompt": "x", "distilled_cfg_scale": 3.5, "cfg_scale": 2}),
    ));
    assert!(said.contains("CFG scale: 2,"), "{said}");
}
