//! What jobs ask of the picture that they start from.

use crate::support::{png, Server};
use image::{DynamicImage, ImageFormat, Rgba, RgbaImage};
use sd_worker_rocm::image_io::to_base64;
use serde_json::{json, Value};
use std::io::Cursor;

fn job(more: Value) -> Value {
    let mut job = json!({"operation": "image_transform", "prompt": "a door", "steps": 1, "width": 512, "height": 512});
    for (field, value) in more.as_object().unwrap() {
        job[field] = value.clone();
    }
    job
}

/// A picture whose left half is transparent.
fn transparent() -> String {
    let pixels = RgbaImage::from_fn(64, 64, |x, _| Rgba([9, 9, 9, 255 * u8::from(x >= 32)]));
    let mut png = Cursor::new(Vec::new());
    let picture = DynamicImage::from(pixels);
    picture.write_to(&mut png, ImageFormat::Png).unwrap();
    to_base64(&png.into_inner())
}

#[test]
fn what_is_asked_for_is_in_the_pictures_text() {
    let server = Server::start();
    let asked = job(json!({
        "input_image": transparent(), "mask_from_alpha": true, "only_masked": true, "mask_padding": 7,
        "mask_fill": "latent noise", "soft_mask": true, "resize_mode": "crop", "outpaint": {"left": 64},
    }));
    let id = server.submit(&asked);
    server.wait_for(&id, "completed");
    let job = server.get(&format!("/v1/jobs/{id}")).1;
    let text = job["images"][0]["parameters"].as_str().unwrap();
    for part in [
        "Inpaint area: Only masked",
        "Masked area padding: 7",
        "Masked content: latent noise",
        "Soft mask: True",
        "Resize mode: Crop and resize",
        "Outpaint: \"left=64,right=0,top=0,bottom=0\"",
    ] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn wrong_fields_are_named() {
    let server = Server::start();
    let soft = json!({"operation": "image_inpaint", "init_image": transparent(), "mask_image": transparent(),
        "soft_inpainting": {"mask_influence": 0.5}, "latent_mask": transparent()});
    let mut asked = job(soft);
    let id = server.submit(&asked);
    server.wait_for(&id, "completed");
    let made = server.get(&format!("/v1/jobs/{id}")).1;
    let text = made["images"][0]["parameters"].as_str().unwrap();
    assert!(
        text.contains("Soft inpainting mask influence: 0.5"),
        "{text}"
    );
    asked["soft_inpainting"]["mask_influence"] = json!(2);
    let (status, answer) = server.post("/v1/jobs", &asked);
    let param = &answer["error"]["param"];
    assert_eq!((status, param), (400, &json!("soft_inpainting")));
    for (field, more) in [
        ("soft_inpainting", json!({"soft_inpainting": {}})),
        ("latent_mask", json!({"latent_mask": transparent()})),
        ("mask_from_alpha", json!({"mask_from_alpha": true})),
        ("mask_fill", json!({"mask_fill": "plaid"})),
        ("resize_mode", json!({"resize_mode": "fold"})),
        ("only_masked", json!({"only_masked": true})),
        ("outpaint", json!({"outpaint": {"top": 1_000_000}})),
    ] {
        let mut asked = job(more);
        asked["input_image"] = json!(to_base64(&png(64, 64)));
        let (status, answer) = server.post("/v1/jobs", &asked);
        let text = answer.to_string();
        assert_eq!(status, 400, "{text}");
        assert!(text.contains(field), "{field}: {text}");
    }
}
