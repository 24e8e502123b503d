//! What the writer writes, the reader reads; what was written is what is loaded.

mod common;

use candle_core::quantized::GgmlDType;
use candle_core::Device;
use proptest::prelude::*;
use std::io::Cursor;
use worker::gguf::{load, Array, Format, Gguf, GgufWriter, MappedGguf, NewTensor, Value, Weights};

fn text() -> impl Strategy<Value = String> {
    proptest::collection::vec(any::<char>(), 0..8).prop_map(|chars| chars.into_iter().collect())
}

fn elements<T: std::fmt::Debug, S: Strategy<Value = T>>(of: S) -> impl Strategy<Value = Vec<T>> {
    proptest::collection::vec(of, 0..5)
}

fn finite(v: f64) -> f64 {
    // NaN is not equal to itself.
    if v.is_nan() {
        0.5
    } else {
        v
    }
}

fn array() -> impl Strategy<Value = Array> {
    let flat = prop_oneof![
        elements(any::<u8>()).prop_map(Array::U8),
        elements(any::<i8>()).prop_map(Array::I8),
        elements(any::<u16>()).prop_map(Array::U16),
        elements(any::<i16>()).prop_map(Array::I16),
        elements(any::<u32>()).prop_map(Array::U32),
        elements(any::<i32>()).prop_map(Array::I32),
        elements(any::<u64>()).prop_map(Array::U64),
        elements(any::<i64>()).prop_map(Array::I64),
        elements(any::<f32>().prop_map(|v| finite(v.into()) as f32)).prop_map(Array::F32),
        elements(any::<f64>().prop_map(finite)).prop_map(Array::F64),
        elements(any::<bool>()).prop_map(Array::Bool),
        elements(text()).prop_map(Array::String),
    ];
    flat.prop_recursive(2, 8, 3, |inner| {
        proptest::collection::vec(inner, 1..3).prop_map(Array::Array)
    })
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f64>().prop_map(|v| Value::F64(finite(v))),
        any::<f32>().prop_map(|v| Value::F32(finite(v.into()) as f32)),
        any::<bool>().prop_map(Value::Bool),
        text().prop_map(Value::String),
        array().prop_map(Value::Array),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn metadata_survives(values in proptest::collection::vec(value(), 0..6)) {
        let metadata: Vec<(String, Value)> =
            values.into_iter().enumerate().map(|(i, v)| (format!("key.{i}"), v)).collect();
        let file = GgufWriter::new(Vec::new(), &metadata, &[]).unwrap().finish().unwrap();
        let gguf = Gguf::read(Cursor::new(file)).unwrap();
        prop_assert_eq!(gguf.metadata().count(), metadata.len());
        for (key, value) in &metadata {
            prop_assert_eq!(gguf.get(key), Some(value));
        }
    }
}

fn new_tensor(name: &str, dims: &[u64], ty: &str) -> NewTensor {
    NewTensor {
        name: name.to_string(),
        dims: dims.to_vec(),
        format: Format::from_name(ty).unwrap(),
    }
}

#[test]
fn tensors_are_written_in_pieces_and_loaded_from_the_map() {
    let tensors = [
        new_tensor("odd", &[3], "f32"),
        new_tensor("blocks", &[64, 2], "Q8_0"),
        new_tensor("last", &[5, 1], "F16"),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut writer = GgufWriter::new(std::fs::File::create(&path).unwrap(), &[], &tensors).unwrap();
    let data: Vec<Vec<u8>> = tensors
        .iter()
        .enumerate()
        .map(|(t, tensor)| {
            let bytes = tensor.bytes().unwrap();
            (0..bytes)
                .map(|i| (i as usize * 7 + t * 31) as u8 & 0x3f)
                .collect()
        })
        .collect();
    for bytes in &data {
        for piece in bytes.chunks(5) {
            writer.write(piece).unwrap();
        }
    }
    writer.finish().unwrap();

    let file = MappedGguf::open(&path).unwrap();
    for (tensor, bytes) in tensors.iter().zip(&data) {
        let info = file.header().tensor(&tensor.name).unwrap();
        assert_eq!(&*file.bytes(&tensor.name, info), bytes.as_slice());
        let loaded = load(&file, &tensor.name, &Device::Cpu).unwrap();
        assert_eq!(&*loaded.data().unwrap(), bytes.as_slice());
        // Pages that were given back come again.
        assert_eq!(&*file.bytes(&tensor.name, info), bytes.as_slice());
    }
    let blocks = load(&file, "blocks", &Device::Cpu).unwrap();
    assert_eq!(blocks.dtype(), GgmlDType::Q8_0);
    assert_eq!(blocks.shape().dims(), [2, 64]);
    let missing = load(&file, "absent", &Device::Cpu).unwrap_err().to_string();
    assert!(missing.contains("tensor absent is missing"), "{missing}");
}

#[test]
fn the_writer_refuses_what_does_not_fit() {
    let ragged = [new_tensor("ragged", &[33], "Q8_0")];
    let error = GgufWriter::new(Vec::new(), &[], &ragged).err().unwrap();
    assert!(error.to_string().contains("ragged"), "{error}");

    let tensors = [new_tensor("short", &[2], "F32")];
    let mut writer = GgufWriter::new(Vec::new(), &[], &tensors).unwrap();
    writer.write(&[0; 4]).unwrap();
    let error = writer.write(&[0; 5]).unwrap_err();
    assert!(error.to_string().contains("holds 8 bytes"), "{error}");
    let error = writer.finish().err().unwrap();
    assert!(error.to_string().contains("4 of its 8 bytes"), "{error}");
}
