//! What `quantization_config` says of matrices of integers.

use super::{IntegerScales, Packer};
use crate::hf::quantized::scheme::{only, refuse};
use serde_json::Value as Json;

/// A number of bits that is read.
fn bits(json: &Json, key: &str, read: &[u64]) -> Result<usize, String> {
    match json[key].as_u64().filter(|bits| read.contains(bits)) {
        Some(bits) => Ok(bits as usize),
        None => refuse(key, &json[key]),
    }
}

/// Inputs of a group; none where -1 says that all are one.
fn group(json: &Json) -> Result<Option<usize>, String> {
    let size = &json["group_size"];
    match (size.as_i64(), size.as_u64()) {
        (Some(-1), _) => Ok(None),
        (_, Some(size @ 1..=0x7fff_ffff)) => Ok(Some(size as usize)),
        _ => refuse("group_size", size),
    }
}

/// A switch that must be like that if it is there.
fn switch(json: &Json, key: &str, value: bool) -> Result<(), String> {
    match &json[key] {
        Json::Null => Ok(()),
        found if *found == Json::Bool(value) => Ok(()),
        found => refuse(key, found),
    }
}

/// GPTQ's: AutoGPTQ's and GPTQModel's files.
pub(in crate::hf::quantized) fn gptq(json: &Json) -> Result<Packer, String> {
    // GPTQModel says so of the other methods that it has.
    if json["format"] == "gemm" {
        return awq(json);
    }
    const FORMATS: [&str; 2] = ["gptq", "gptq_v2"];
    only(json, "checkpoint_format", &FORMATS)?;
    only(json, "format", &FORMATS)?;
    only(json, "pack_dtype", &["int32"])?;
    switch(json, "is_marlin_format", false)?;
    for (module, settings) in json["dynamic"].as_object().into_iter().flatten() {
        // What is left as it is has no codes.
        if !module.starts_with("-:") {
            return refuse("dynamic", settings);
        }
    }
    let version = [&json["checkpoint_format"], &json["format"]];
    Ok(Packer::Gptq {
        bits: bits(json, "bits", &[4, 8])?,
        group: group(json)?,
        ordered: json["desc_act"] == true,
        less_one: !version.iter().any(|version| **version == "gptq_v2"),
    })
}

/// AWQ's.
pub(in crate::hf::quantized) fn awq(json: &Json) -> Result<Packer, String> {
    for key in ["version", "format", "checkpoint_format"] {
        if let Some(version) = json[key].as_str() {
            if !version.eq_ignore_ascii_case("gemm") {
                return refuse(key, &json[key]);
            }
        }
    }
    only(json, "pack_dtype", &["int32"])?;
    switch(json, "zero_point", true)?;
    bits(json, "bits", &[4])?;
    Ok(Packer::Awq {
        group: group(json)?,
    })
}

/// compressed-tensors' of weights that are integers, by the format in which they are stored.
pub(in crate::hf::quantized) fn tensors(weights: &Json, format: &str) -> Result<Packer, String> {
    let is_packed = format == "pack-quantized";
    let widths: &[u64] = if is_packed { &[4, 8] } else { &[8] };
    let shared = match weights["strategy"].as_str() {
        Some("tensor") => IntegerScales::Tensor,
        Some("channel") => IntegerScales::Channel,
        Some("group") | None => match (group(weights)?, &weights["strategy"]) {
            (Some(size), _) => IntegerScales::Group(size),
            (None, Json::Null) => IntegerScales::Channel,
            (None, _) => return refuse("group_size", &weights["group_size"]),
        },
        Some(_) => return refuse("strategy", &weights["strategy"]),
    };
    let has_zeros = match &weights["symmetric"] {
        Json::Null | Json::Bool(true) => false,
        Json::Bool(false) => true,
        other => return refuse("symmetric", other),
    };
    // Zero points of other types are products' offsets.
    if has_zeros {
        only(weights, "zp_dtype", &["torch.int8"])?;
    }
    Ok(Packer::Tensors {
        bits: bits(weights, "num_bits", widths)?,
        shared,
        has_zeros,
        is_packed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn makers_say_how_they_packed() {
        let found = gptq(&json!({"bits": 4, "group_size": 128, "desc_act": false, "sym": true}));
        let expected = Packer::Gptq {
            bits: 4,
            group: Some(128),
            ordered: false,
            less_one: true,
        };
        assert_eq!(found, Ok(expected));
        let found = gptq(&json!({"bits": 8, "group_size": -1, "desc_act": true,
            "checkpoint_format": "gptq_v2", "dynamic": {"-:.*gate$": {}}}));
        let expected = Packer::Gptq {
            bits: 8,
            group: None,
            ordered: true,
            less_one: false,
        };
        assert_eq!(found, Ok(expected));
        let found =
            awq(&json!({"bits": 4, "group_size": 64, "zero_point": true, "version": "GEMM"}));
        assert_eq!(found, Ok(Packer::Awq { group: Some(64) }));
        let weights = json!({"num_bits": 4, "type": "int", "symmetric": false, "strategy": "group",
            "group_size": 32});
        let expected = Packer::Tensors {
            bits: 4,
            shared: IntegerScales::Group(32),
            has_zeros: true,
            is_packed: true,
        };
        assert_eq!(tensors(&weights, "pack-quantized"), Ok(expected));
    }

    #[test]
    fn others_are_refused_by_name() {
        let check = |found: Result<Packer, String>, why: &str| {
            let reason = found.unwrap_err();
            assert!(reason.contains(why), "{reason}");
        };
        let with = |key: &str, value: Json| {
            let mut json = json!({"bits": 4, "group_size": 128});
            json[key] = value;
            json
        };
        for width in [json!(2), json!(3), json!(16), json!("4"), Json::Null] {
            check(gptq(&with("bits", width)), "bits");
        }
        for size in [
            json!(0),
            json!(-2),
            json!(1u64 << 40),
            json!(1.5),
            Json::Null,
        ] {
            check(gptq(&with("group_size", size)), "group_size");
        }
        check(gptq(&with("checkpoint_format", json!("marlin"))), "marlin");
        check(
            gptq(&with("is_marlin_format", json!(true))),
            "is_marlin_format",
        );
        let other = json!({"+:.*down.*": {"bits": 8}});
        check(gptq(&with("dynamic", other)), "dynamic");
        check(awq(&with("version", json!("gemv"))), "gemv");
        check(awq(&with("zero_point", json!(false))), "zero_point");
        check(awq(&with("bits", json!(8))), "bits 8");
        let weights = |key: &str, value: Json| {
            let mut json = json!({"num_bits": 8, "strategy": "channel"});
            json[key] = value;
            json
        };
        let stored = |key: &str, value: Json| tensors(&weights(key, value), "int-quantized");
        assert!(stored("num_bits", json!(8)).is_ok());
        check(stored("num_bits", json!(4)), "num_bits 4");
        check(stored("strategy", json!("block")), "block");
        check(stored("strategy", json!("group")), "group_size");
    }
}
