//! Scripts among `alwayson_scripts` that this server stands for, besides the web UI's own of seeds.

use super::lenient::number;
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn asked(args: Value) -> Result<Option<Drawn>, ApiError> {
        drawn("Dynamic Prompts v2.17.1", args.as_array().unwrap(), "{a|b}")
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
