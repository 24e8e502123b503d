//! Scripts among `alwayson_scripts` that this server stands for, besides the web UI's own of seeds.

use super::lenient::number;
use crate::editing::SoftInpainting;
use crate::prompt::dynamic::is_dynamic;
use crate::request::Drawn;
use serde_json::Value;
use worker::http::ApiError;

/// How the extension's name begins; its version follows.
const DYNAMIC_PROMPTS: &str = "dynamic prompts";
/// Its arguments that ask for what is not implemented: where they stand, and what they are.
const NOT_DRAWN: [(usize, &str); 6] = [
    (3, "magic prompts"),
    (4, "I'm feeling lucky"),
    (5, "attention grabber"),
    (10, "a fixed seed"),
    (11, "seeds apart from the prompts"),
    (13, "Jinja2 templates"),
];
const NEGATIVE: usize = 12;
const NO_PICTURES: usize = 14;
/// Whole numbers that must be these.
const COUNTS: [(usize, u64, &str); 2] = [
    (2, 1, "combinatorial batches"),
    (15, 0, "a limit of generations"),
];

/// What the extension Dynamic Prompts is asked for, if the script is that one and switched on.
///
/// # Errors
/// 400 that names what of it is not implemented.
pub(super) fn drawn(name: &str, args: &[Value], negative: &str) -> Result<Option<Drawn>, ApiError> {
    if !name.to_lowercase().starts_with(DYNAMIC_PROMPTS) {
        return Ok(None);
    }
    let refused = |what: &str| {
        ApiError::field(
            "alwayson_scripts",
            format!("{name}: {what} is not implemented here; leave it out"),
        )
    };
    let is_on = |at: usize| match args.get(at) {
        Some(Value::Bool(on)) => *on,
        Some(value) => number(value).is_some_and(|number| number.as_f64() != Some(0.0)),
        None => false,
    };
    for (at, what) in NOT_DRAWN {
        if is_on(at) {
            return Err(refused(what));
        }
    }
    if is_on(NO_PICTURES) {
        return Err(refused("a request without pictures"));
    }
    if is_on(NEGATIVE) && is_dynamic(negative) {
        return Err(refused("a negative prompt that is taken as it is"));
    }
    for (at, usual, what) in COUNTS {
        let asked = args.get(at).and_then(number);
        if is_on(1) && asked.is_some_and(|asked| asked.as_u64() != Some(usual)) {
            return Err(refused(what));
        }
    }
    Ok(Some(if is_on(1) { Drawn::All } else { Drawn::Random }))
}

/// What the web UI's own extension of this name is asked for, if the script is that one; it is switched on.
///
/// # Errors
/// 400 for what are no numbers, too many, or out of range.
pub(super) fn soft_inpainting(
    name: &str,
    args: &[Value],
) -> Result<Option<SoftInpainting>, ApiError> {
    if !name.eq_ignore_ascii_case("soft inpainting") {
        return Ok(None);
    }
    let refused = |reason: &str| ApiError::field("alwayson_scripts", format!("{name}: {reason}"));
    let numbers = args.iter().skip(1).map(|value| number(value)?.as_f64());
    let numbers: Option<Vec<f64>> = numbers.collect();
    let numbers = numbers.ok_or_else(|| refused("behind the switch there are numbers only"))?;
    let settings = SoftInpainting::of_numbers(&numbers).map_err(|e| refused(&e))?;
    Ok(Some(settings))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(args: Value) -> Result<Option<Drawn>, ApiError> {
        drawn("Dynamic Prompts v2.17.1", args.as_array().unwrap(), "{a|b}")
    }

    #[test]
    fn soft_inpainting_has_six_numbers() {
        let of = |args: Value| soft_inpainting("Soft Inpainting", args.as_array().unwrap());
        let asked = of(json!([true, 2, "0.5", 4, 0, 0.5, 2])).unwrap().unwrap();
        let usual = SoftInpainting::default();
        assert_eq!((asked.schedule_bias, usual.schedule_bias), (2.0, 1.0));
        assert_eq!(of(json!([true])).unwrap(), Some(usual));
        assert_eq!(soft_inpainting("ADetailer", &[]).unwrap(), None);
        for (args, part) in [
            (json!([true, "much"]), "numbers only"),
            (json!([true, 1, 1, 0]), "transition_contrast_boost"),
            (json!([true, 1, 1, 4, 0, 1, 2, 3]), "6 numbers"),
        ] {
            let error = of(args).unwrap_err();
            assert!(error.message.contains(part), "{}", error.message);
        }
    }

    #[test]
    fn dynamic_prompts() {
        assert_eq!(asked(json!([true])).unwrap(), Some(Drawn::Random));
        // As the extension's own page sends it.
        let all = json!([
            true, true, 1, false, false, false, 1.1, 1.5, 100, 0.7, false, false, false, false,
            false, 0, "m"
        ]);
        assert_eq!(asked(all.clone()).unwrap(), Some(Drawn::All));
        assert_eq!(drawn("ADetailer", &[json!(true)], "").unwrap(), None);
        for (at, value, part) in [
            (2, json!(3), "batches"),
            (3, json!(true), "magic"),
            (11, json!(true), "seeds apart"),
            (12, json!(true), "negative"),
            (13, json!(true), "Jinja2"),
            (14, json!(true), "without pictures"),
            (15, json!(20), "limit"),
        ] {
            let mut args = all.clone();
            args[at] = value;
            let error = asked(args).unwrap_err();
            assert!(error.message.contains(part), "{}", error.message);
        }
    }
}
