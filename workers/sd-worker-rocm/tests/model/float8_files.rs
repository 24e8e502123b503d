//! Names of scales, and files that are not understood.

use super::stored::{floats, raw, save, File, Raw};
use candle_core::{DType, Device};
use safetensors::Dtype;
use sd_worker_rocm::weights::file::Float8;
use sd_worker_rocm::weights::Weights;
use std::path::{Path, PathBuf};

/// A matrix `a.b.weight` of 64 columns with a scale.
fn small(scale: &str) -> File {
    let bits = raw(Dtype::F8_E4M3, &[2, 64], (0..64).chain(0..64).collect());
    File::from([
        ("a.b.weight".to_string(), bits),
        ("a.b.bias".to_string(), floats(&[1.0, 2.0], &[2])),
        (format!("a.b.{scale}"), floats(&[0.25], &[1])),
    ])
}

fn open(place: &Path, file: &File, metadata: &[(&str, String)]) -> worker::Result<Weights> {
    let path: PathBuf = place.join("small.safetensors");
    save(&path, file, metadata);
    Weights::open(&path)
}

#[test]
fn names_of_scales() {
    let place = tempfile::tempdir().unwrap();
    for scale in ["weight_scale", "scale_weight", "weight_scale_inv"] {
        let mut file = small(scale);
        // Scales of inputs, which are not rounded here, and marks.
        for name in ["a.b.input_scale", "a.b.scale_input"] {
            file.insert(name.to_string(), floats(&[7.0], &[]));
        }
        file.insert(
            "scaled_fp8".to_string(),
            raw(Dtype::F8_E4M3, &[2], vec![0; 2]),
        );
        // A layer in 16 bits whose scale is 1.
        file.insert("c.weight".to_string(), floats(&[5.0], &[1, 1]));
        file.insert("c.scale_weight".to_string(), floats(&[1.0], &[]));
        let weights = open(place.path(), &file, &[]).unwrap();
        let names: Vec<&str> = weights.names().collect();
        assert_eq!(names, ["a.b.bias", "a.b.weight", "c.weight"]);
        assert_eq!(weights.quantized().collect::<Vec<_>>(), ["a.b.weight"]);
        let matrix = weights
            .load("a.b.weight", DType::F32, &Device::Cpu)
            .unwrap();
        let row = matrix.to_vec2::<f32>().unwrap().remove(1);
        let expected: Vec<f32> = (0..64)
            .map(|bits| Float8::E4m3.value(bits) * 0.25)
            .collect();
        assert_eq!(row, expected);
    }
    // Stacked matrices of OpenCLIP have the scale's name behind theirs.
    let mut file = small("weight_scale");
    let bits = file.remove("a.b.weight").unwrap();
    let scale = file.remove("a.b.weight_scale").unwrap();
    file.insert("attn.in_proj_weight".to_string(), bits);
    file.insert("attn.in_proj_weight_scale".to_string(), scale);
    let mut weights = open(place.path(), &file, &[]).unwrap();
    weights.split("attn.in_proj_weight", "attn.q.weight".to_string(), 1, 1);
    assert!(weights.is_quantized("attn.q.weight"));
    let half = weights
        .load_quantized("attn.q.weight", &Device::Cpu)
        .unwrap();
    let half = half
        .dequantize(&Device::Cpu)
        .unwrap()
        .to_vec2::<f32>()
        .unwrap();
    assert_eq!(half[0][63], Float8::E4m3.value(63) * 0.25);
    // What is put together or turned of such pieces.
    let names = [
        "attn.in_proj_weight".to_string(),
        "attn.q.weight".to_string(),
    ];
    weights.stack(&names, "all.weight".to_string());
    assert!(weights.is_quantized("all.weight"));
    let all = weights.load_quantized("all.weight", &Device::Cpu).unwrap();
    assert_eq!(all.shape().dims(), [3, 64]);
    // What is turned is no longer in rows of blocks.
    let mut weights = open(place.path(), &small("weight_scale"), &[]).unwrap();
    weights.transpose("a.b.weight");
    assert!(!weights.is_quantized("a.b.weight"));
    let turned = weights
        .load("a.b.weight", DType::F32, &Device::Cpu)
        .unwrap();
    assert_eq!(turned.dims(), [64, 2]);
    let turned = turned.to_vec2::<f32>().unwrap();
    assert_eq!(turned[63], [Float8::E4m3.value(63) * 0.25; 2]);
}

#[test]
fn what_is_not_understood_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let base = small("weight_scale");
    type Change<'a> = Box<dyn Fn(&mut File) + 'a>;
    let put = |name: &'static str, raw: Raw| {
        move |file: &mut File| {
            file.insert(name.to_string(), raw.clone());
        }
    };
    let comfy = |text: &str| {
        let bytes = text.as_bytes().to_vec();
        put("a.b.comfy_quant", raw(Dtype::U8, &[bytes.len()], bytes))
    };
    let changes: Vec<(Change, &[&str])> = vec![
        (
            Box::new(put("a.b.pre_quant_scale", floats(&[1.0; 64], &[64]))),
            &["a.b.weight", "pre_quant_scale"],
        ),
        (
            Box::new(put("a.b.weight_scale_2", floats(&[2.0], &[]))),
            &["weight_scale_2"],
        ),
        (
            Box::new(put("a.b.weight.absmax", floats(&[1.0], &[]))),
            &["weight.absmax"],
        ),
        (
            Box::new(put("a.b.weight_zero_point", floats(&[0.0], &[]))),
            &["weight_zero_point"],
        ),
        (
            Box::new(put("a.b.scale_weight", floats(&[1.0], &[]))),
            &["two scales"],
        ),
        (
            Box::new(put("a.b.weight_scale", floats(&[f32::NAN], &[]))),
            &["weight_scale", "positive"],
        ),
        (
            Box::new(put("a.b.weight_scale", floats(&[-1.0], &[]))),
            &["positive"],
        ),
        (
            Box::new(put("a.b.weight_scale", floats(&[1.0; 3], &[3]))),
            &["do not fit"],
        ),
        (
            Box::new(put("a.b.weight_scale", floats(&[], &[0]))),
            &["do not fit"],
        ),
        (
            Box::new(put("a.b.weight_scale", raw(Dtype::U8, &[1], vec![1]))),
            &["weight_scale", "not as floats"],
        ),
        (
            Box::new(put(
                "a.b.weight_scale",
                raw(Dtype::F8_E8M0, &[1], vec![255]),
            )),
            &["positive"],
        ),
        (
            Box::new(put("c.weight_scale", floats(&[2.0], &[]))),
            &["c.weight_scale", "not of a matrix"],
        ),
        (
            Box::new(put("c.weight", raw(Dtype::I8, &[1], vec![1]))),
            &["c.weight", "I8"],
        ),
        (
            Box::new(put("c.weight", raw(Dtype::F8_E4M3FNUZ, &[1], vec![1]))),
            &["F8_E4M3FNUZ"],
        ),
        (
            Box::new(put("c.weight", raw(Dtype::F8_E8M0, &[1], vec![1]))),
            &["c.weight", "exponents"],
        ),
        (
            Box::new(comfy(r#"{"format": "int8_tensorwise"}"#)),
            &["a.b", "int8_tensorwise"],
        ),
        (
            Box::new(comfy(r#"{"format": "nvfp4"}"#)),
            &["a.b.weight", "Nvfp4"],
        ),
        (
            Box::new(comfy(r#"{"format": "mxfp8"}"#)),
            &["a.b.weight_scale", "not in 8 bits"],
        ),
        (
            Box::new(|file: &mut File| {
                comfy(r#"{"format": "mxfp8"}"#)(file);
                put("a.b.weight_scale", raw(Dtype::U8, &[128, 8], vec![1; 1024]))(file);
            }),
            &["a.b.weight_scale", "tiles"],
        ),
        (
            Box::new(|file: &mut File| {
                comfy(r#"{"format": "nvfp4"}"#)(file);
                file.get_mut("a.b.weight").unwrap().dtype = Dtype::U8;
            }),
            &["has no a.b.weight_scale_2"],
        ),
        (
            Box::new(|file: &mut File| {
                comfy(r#"{"format": "nvfp4"}"#)(file);
                file.get_mut("a.b.weight").unwrap().dtype = Dtype::U8;
                put("a.b.weight_scale_2", floats(&[0.0], &[]))(file);
                put(
                    "a.b.weight_scale",
                    raw(Dtype::F8_E4M3, &[128, 8], vec![1; 1024]),
                )(file);
            }),
            &["a.b.weight_scale", "positive"],
        ),
        (
            Box::new(comfy(r#"{"format": "float8_e5m2"}"#)),
            &["a.b.weight", "E5m2"],
        ),
        (Box::new(comfy("{")), &["a.b", "comfy_quant"]),
        (
            Box::new(|file: &mut File| {
                comfy(r#"{"format": "float8_e4m3fn"}"#)(file);
                file.remove("a.b.weight_scale");
            }),
            &["has no scale"],
        ),
    ];
    for (change, words) in &changes {
        let mut file = base.clone();
        change(&mut file);
        let error = open(place.path(), &file, &[]).expect_err(words[0]);
        assert_eq!(error.exit_code(), worker::error::EXIT_BAD_INPUT);
        for word in *words {
            assert!(error.to_string().contains(word), "{error}");
        }
    }
    let layers = r#"{"layers": {"a.b": {"format": "svdquant"}}}"#.to_string();
    let metadata = [("_quantization_metadata", layers)];
    let error = open(place.path(), &base, &metadata)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("a.b") && error.contains("svdquant"),
        "{error}"
    );

    // What is no number is found when the matrix is read, as blocks and as numbers.
    let mut file = base;
    file.get_mut("a.b.weight").unwrap().bytes[100] = 0xff;
    let weights = open(place.path(), &file, &[]).unwrap();
    let blocks = weights
        .load_quantized("a.b.weight", &Device::Cpu)
        .map(|_| ());
    let numbers = weights
        .load("a.b.weight", DType::BF16, &Device::Cpu)
        .map(|_| ());
    for read in [blocks, numbers] {
        let error = read.unwrap_err();
        assert_eq!(error.exit_code(), worker::error::EXIT_BAD_INPUT);
        let text = error.to_string();
        assert!(text.contains("a.b.weight: row 1 has a"), "{text}");
    }
}
