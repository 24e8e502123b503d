//! `/sdcpp/v1/capabilities`.

use crate::sampling::{Sampler, Schedule};
use crate::server::App;
use crate::upscale::Method;
use axum::Json;
use serde_json::{json, Map, Value};
use worker::serve::Model;

/// What requests may ask for.
pub(super) async fn show(Model(app): Model<App>) -> Json<Value> {
    let info = app.queue().info();
    let is_video = info.defaults.video.is_some();
    let mode = if is_video { "vid_gen" } else { "img_gen" };
    let has = |names: &[&str]| -> Value {
        Value::Object(
            names
                .iter()
                .map(|name| (name.to_string(), json!(true)))
                .collect::<Map<_, _>>(),
        )
    };
    let mut features = has(&["init_image", "lora", "cancel_queued", "cancel_generating"]);
    let more: &[&str] = match is_video {
        true => &["end_image"],
        false => &["mask_image", "control_image", "ref_images", "hires"],
    };
    for name in more {
        features[*name] = json!(true);
    }
    let formats = match is_video {
        true => json!(["mp4", "webp", "gif"]),
        false => json!(["png", "jpeg", "webp"]),
    };
    let defaults = defaults(&app);
    let of_mode = |value: &Value| json!({mode: value});
    let upscalers = Method::names().map(String::from);
    let files = app
        .options()
        .upscalers
        .list()
        .into_iter()
        .map(|(name, _)| name);
    let loras = app.options().loras.list().into_iter();
    let loras = loras.filter_map(|(name, path)| {
        let file = path.file_name()?.to_str()?.to_string();
        Some(json!({"name": name, "path": file}))
    });
    let limits = app.options().limits;
    let first = |names: &[&str]| names.first().map(|name| name.to_string());
    Json(json!({
        "model": {"name": info.name, "stem": info.name, "path": info.name},
        "current_mode": mode,
        "supported_modes": [mode],
        "defaults": defaults,
        "output_formats": formats,
        "features": features,
        "defaults_by_mode": of_mode(&defaults),
        "output_formats_by_mode": of_mode(&formats),
        "features_by_mode": of_mode(&features),
        "samplers": Sampler::ALL.iter().filter_map(|sampler| first(sampler.aliases())).collect::<Vec<_>>(),
        "schedulers": Schedule::ALL.iter().filter_map(|schedule| first(schedule.aliases())).collect::<Vec<_>>(),
        "loras": loras.collect::<Vec<Value>>(),
        "upscalers": upscalers.chain(files).map(|name| json!({"name": name})).collect::<Vec<Value>>(),
        "limits": {
            "min_width": info.size_multiple,
            "max_width": limits.max_side,
            "min_height": info.size_multiple,
            "max_height": limits.max_side,
            "max_batch_count": limits.max_batch,
            "max_queue_size": app.queue().options().capacity,
        },
    }))
}

fn defaults(app: &App) -> Value {
    let own = &app.queue().info().defaults;
    let mut defaults = json!({
        "prompt": "",
        "negative_prompt": "",
        "clip_skip": -1,
        "width": own.width,
        "height": own.height,
        "strength": own.strength.unwrap_or(0.8),
        "seed": -1,
        "sample_params": {
            "scheduler": own.schedule().aliases().first(),
            "sample_method": own.sampler.aliases().first(),
            "sample_steps": own.steps,
            "eta": null,
            "shifted_timestep": 0,
            "flow_shift": null,
            "guidance": {"txt_cfg": own.guidance, "img_cfg": null, "slg": {"layers": [], "scale": 0.0}},
        },
        "output_compression": 90,
    });
    match own.video {
        Some(video) => {
            defaults["video_frames"] = json!(video.frames);
            defaults["fps"] = json!(video.fps);
        }
        None => {
            defaults["batch_count"] = json!(1);
            defaults["embed_image_metadata"] = json!(true);
        }
    }
    defaults
}
