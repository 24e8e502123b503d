//! What clients of the web UI send that asks for nothing: numbers in other clothes, scripts that are switched off.

use serde_json::{Map, Number, Value};

/// Fields that are numbers; Pydantic, which reads them there, takes text, whole floats and booleans for them, too.
const NUMBERS: [&str; 44] = [
    "seed",
    "batch_size",
    "n_iter",
    "steps",
    "cfg_scale",
    "distilled_cfg_scale",
    "width",
    "height",
    "eta",
    "clip_skip",
    "denoising_strength",
    "mask_blur",
    "mask_blur_x",
    "mask_blur_y",
    "inpainting_mask_invert",
    "inpainting_fill",
    "inpaint_full_res_padding",
    "s_churn",
    "s_tmin",
    "s_tmax",
    "s_noise",
    "s_min_uncond",
    "initial_noise_multiplier",
    "image_cfg_scale",
    "hr_scale",
    "hr_second_pass_steps",
    "hr_resize_x",
    "hr_resize_y",
    "hr_cfg",
    "firstphase_width",
    "firstphase_height",
    "refiner_switch_at",
    "subseed",
    "subseed_strength",
    "seed_resize_from_w",
    "seed_resize_from_h",
    "resize_mode",
    "upscaling_resize",
    "upscaling_resize_w",
    "upscaling_resize_h",
    "extras_upscaler_2_visibility",
    "gfpgan_visibility",
    "codeformer_visibility",
    "codeformer_weight",
];

/// Fields that are switches, for which Pydantic takes words and numbers, too.
const SWITCHES: [&str; 11] = [
    "inpaint_full_res",
    "include_init_images",
    "send_images",
    "save_images",
    "do_not_save_samples",
    "override_settings_restore_afterwards",
    "enable_hr",
    "restore_faces",
    "tiling",
    "disable_extra_networks",
    "upscaling_crop",
];

/// Makes numbers and booleans of what Pydantic takes for them.
pub(super) fn coerce(map: &mut Map<String, Value>) {
    for name in SWITCHES {
        if let Some(value) = map.get_mut(name) {
            if let Some(on) = switch(value) {
                *value = Value::Bool(on);
            }
        }
    }
    for name in NUMBERS {
        if let Some(value) = map.get_mut(name) {
            if let Some(number) = number(value) {
                *value = Value::Number(number);
            }
        }
    }
}

/// A switch; nothing for what is none.
fn switch(value: &Value) -> Option<bool> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        Value::String(text) => text.trim().to_lowercase(),
        _ => return None,
    };
    match text.as_str() {
        "1" | "1.0" | "true" | "t" | "yes" | "y" | "on" => Some(true),
        "0" | "0.0" | "false" | "f" | "no" | "n" | "off" => Some(false),
        _ => None,
    }
}

/// Whole numbers stay or become whole; nothing for what is no number.
pub(super) fn number(value: &Value) -> Option<Number> {
    let float = match value {
        Value::Bool(on) => return Some(u8::from(*on).into()),
        Value::String(text) => match text.trim().parse::<i64>() {
            Ok(whole) => return Some(whole.into()),
            Err(_) => text.trim().parse::<f64>().ok()?,
        },
        Value::Number(number) if number.is_f64() => number.as_f64()?,
        Value::Number(number) => return Some(number.clone()),
        _ => return None,
    };
    // Up to here floats hold every whole number.
    let whole = float.fract() == 0.0 && float.abs() < 9e15;
    match whole {
        true => Some((float as i64).into()),
        false => Number::from_f64(float),
    }
}

/// Whether a script among `alwayson_scripts` does nothing with these arguments, beside these fields of the request.
pub(super) fn is_off(name: &str, args: &[Value], request: &Map<String, Value>) -> bool {
    let switched_off = |value: &Value| match value {
        Value::Bool(on) => !on,
        Value::Object(fields) => ["enabled", "enable", "ad_enable", "is_enabled"]
            .iter()
            .any(|name| fields.get(*name) == Some(&Value::Bool(false))),
        _ => false,
    };
    let zero =
        |value: &Value| value.is_null() || number(value).and_then(|n| n.as_f64()) == Some(0.0);
    match (name.to_lowercase().as_str(), args) {
        (_, []) => true,
        // The web UI's own, with what its page always sends. Arguments: seed, extras, subseed, its strength, sizes.
        ("seed", [_, extras, ..]) if switched_off(extras) => true,
        ("seed", [_, _, _, strength, sizes @ ..]) => zero(strength) && sizes.iter().all(zero),
        ("seed", _) => args.len() < 2,
        ("sampler", args) => ["steps", "sampler_name", "scheduler"]
            .iter()
            .zip(args)
            .all(|(field, value)| request.get(*field) == Some(value)),
        // A picture comes before the switch.
        ("roop" | "reactor", [_, switch, ..]) => switched_off(switch),
        // Most have a switch as their first argument, or as a field of each.
        (_, [first, rest @ ..]) => match first {
            Value::Bool(on) => !on,
            _ => switched_off(first) && rest.iter().all(switched_off),
        },
    }
}

/// Takes what the web UI's script of seeds says into the fields that say the same.
pub(super) fn is_of_seeds(name: &str, args: &[Value], request: &mut Map<String, Value>) -> bool {
    /// Of its arguments, but for the switch.
    const FIELDS: [(usize, &str); 5] = [
        (0, "seed"),
        (2, "subseed"),
        (3, "subseed_strength"),
        (4, "seed_resize_from_w"),
        (5, "seed_resize_from_h"),
    ];
    if !name.eq_ignore_ascii_case("seed") {
        return false;
    }
    for (at, field) in FIELDS {
        if let Some(number) = args.get(at).and_then(number) {
            request.insert(field.to_string(), number.into());
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn numbers_in_other_clothes() {
        for (given, read) in [
            (json!("20"), json!(20)),
            (json!(" 7.5 "), json!(7.5)),
            (json!(20.0), json!(20)),
            (json!(-1.0), json!(-1)),
            (json!(7.25), json!(7.25)),
            (json!(true), json!(1)),
            (
                json!(18446744073709551615u64),
                json!(18446744073709551615u64),
            ),
            (json!("many"), json!("many")),
            (json!([1]), json!([1])),
            (json!("nan"), json!("nan")),
        ] {
            let mut map = Map::from_iter([("steps".to_string(), given.clone())]);
            coerce(&mut map);
            assert_eq!(map["steps"], read, "{given}");
        }
    }

    #[test]
    fn scripts_that_do_nothing() {
        let request = json!({"steps": 20, "sampler_name": "Euler a", "scheduler": "Automatic"});
        let request = request.as_object().unwrap();
        let off = |name: &str, args: Value| is_off(name, args.as_array().unwrap(), request);
        assert!(off("anything", json!([])));
        assert!(off("ADetailer", json!([false])));
        assert!(off("ADetailer", json!([false, true, {"ad_model": "face"}])));
        assert!(off(
            "ADetailer",
            json!([{"ad_enable": false}, {"enabled": false}])
        ));
        assert!(off("Refiner", json!([false, "", 0.8])));
        assert!(off("Seed", json!([5, false, -1, 0, 0, 0])));
        assert!(off("Seed", json!([5, true, -1, 0, 0, 0])));
        assert!(off("Sampler", json!([20, "Euler a", "Automatic"])));
        assert!(!off(
            "ADetailer",
            json!([true, false, {"ad_model": "face"}])
        ));
        assert!(!off("ADetailer", json!([{"ad_model": "face"}])));
        assert!(!off("Refiner", json!([true, "xl", 0.8])));
        assert!(!off("Seed", json!([5, true, -1, 0.4, 0, 0])));
        assert!(!off("Seed", json!([5, true])));
        assert!(!off("Sampler", json!([30, "Euler a", "Automatic"])));
        assert!(!off("dynamic prompts", json!(["x"])));
        assert!(off("roop", json!(["data:image/png;base64,", false, "0"])));
        assert!(!off(
            "reactor",
            json!(["data:image/png;base64,", true, "0"])
        ));
    }
}
