//! The GGUF reader against damaged and hostile files.

mod common;

use common::{array, raw, string, strings, tiny_llama, u32, File, Tensor};
use std::io::Cursor;
use worker::gguf::{Array, Gguf, GgufError, MappedGguf, Value, Weights};

fn read(file: &File) -> Result<Gguf, GgufError> {
    Gguf::read(Cursor::new(file.bytes()))
}

fn error(file: &File) -> String {
    read(file).expect_err("the file is broken").to_string()
}

#[test]
fn a_valid_file_is_read_as_written() {
    let file = tiny_llama();
    let gguf = read(&file).unwrap();
    assert_eq!(gguf.version, 3);
    assert_eq!(gguf.alignment, 32);
    assert_eq!(gguf.file_bytes, file.bytes().len() as u64);
    assert_eq!(gguf.require_str("general.architecture").unwrap(), "llama");
    assert_eq!(gguf.require_u32("llama.embedding_length").unwrap(), 32);
    assert_eq!(
        gguf.get_bool("tokenizer.ggml.add_bos_token").unwrap(),
        Some(false)
    );
    assert_eq!(
        gguf.require_strings("tokenizer.ggml.merges").unwrap(),
        ["t h", "th e"]
    );
    assert_eq!(gguf.tensors().count(), 11);
    let query = gguf
        .require_tensor("blk.0.attn_k.weight", &[32, 16])
        .unwrap();
    assert_eq!((query.bytes, query.elem_count()), (32 * 16 * 4, 32 * 16));
}

#[test]
fn every_value_type_is_read() {
    let mut file = File::default();
    for (code, bytes) in [
        (0, vec![200]),
        (1, vec![0xFF]),
        (2, vec![1, 2]),
        (3, vec![0xFE, 0xFF]),
        (4, vec![1, 0, 0, 0]),
        (5, vec![0xFF; 4]),
        (6, 1.5f32.to_le_bytes().to_vec()),
        (7, vec![1]),
        (10, vec![1, 0, 0, 0, 0, 0, 0, 1]),
        (11, vec![0xFF; 8]),
        (12, (-2.5f64).to_le_bytes().to_vec()),
    ] {
        file.set(&format!("scalar.{code}"), raw(code, bytes.clone()));
        file.set(&format!("array.{code}"), array(code, 1, bytes));
    }
    file.set("nested", array(9, 1, strings_bytes(&["a", "b"])));
    let gguf = read(&file).unwrap();
    let get = |key: &str| gguf.get(key).cloned().unwrap();
    assert_eq!(get("scalar.0"), Value::U8(200));
    assert_eq!(get("scalar.1"), Value::I8(-1));
    assert_eq!(get("scalar.2"), Value::U16(0x0201));
    assert_eq!(get("scalar.3"), Value::I16(-2));
    assert_eq!(get("scalar.4"), Value::U32(1));
    assert_eq!(get("scalar.5"), Value::I32(-1));
    assert_eq!(get("scalar.6"), Value::F32(1.5));
    assert_eq!(get("scalar.7"), Value::Bool(true));
    assert_eq!(get("scalar.10"), Value::U64(1 << 56 | 1));
    assert_eq!(get("scalar.11"), Value::I64(-1));
    assert_eq!(get("scalar.12"), Value::F64(-2.5));
    assert_eq!(get("array.5"), Value::Array(Array::I32(vec![-1])));
    assert_eq!(get("array.7"), Value::Array(Array::Bool(vec![true])));
    assert_eq!(get("array.12"), Value::Array(Array::F64(vec![-2.5])));
    let inner = Array::String(vec!["a".to_string(), "b".to_string()]);
    assert_eq!(get("nested"), Value::Array(Array::Array(vec![inner])));
}

/// Element type, count and bytes of an array of strings, as an element of another array.
fn strings_bytes(values: &[&str]) -> Vec<u8> {
    let mut bytes = 8u32.to_le_bytes().to_vec();
    bytes.extend((values.len() as u64).to_le_bytes());
    for value in values {
        bytes.extend((value.len() as u64).to_le_bytes());
        bytes.extend(value.as_bytes());
    }
    bytes
}

#[test]
fn bad_magic_and_versions() {
    let mut file = tiny_llama();
    file.magic = *b"PK\x03\x04";
    assert!(error(&file).contains("not a GGUF file"));
    for (version, needle) in [
        (0, "version 0"),
        (1, "version 1"),
        (4, "version 4"),
        (3u32.swap_bytes(), "big-endian"),
    ] {
        let mut file = tiny_llama();
        file.version = version;
        assert!(error(&file).contains(needle), "{}", error(&file));
    }
    assert!(Gguf::read(Cursor::new(b"")).is_err());
}

#[test]
fn huge_counts_end_before_anything_is_allocated() {
    for count in [1 << 20, 1 << 40, u64::MAX / 14, u64::MAX] {
        let mut file = tiny_llama();
        file.tensor_count = Some(count);
        assert!(error(&file).contains("truncated or damaged"));
        let mut file = tiny_llama();
        file.metadata_count = Some(count);
        assert!(error(&file).contains("truncated or damaged"));
        for element in [0, 8, 9, 12] {
            let mut file = tiny_llama();
            file.metadata
                .insert(0, ("bomb".to_string(), array(element, count, Vec::new())));
            assert!(error(&file).contains("bomb"), "{}", error(&file));
        }
        let mut file = tiny_llama();
        file.metadata.insert(
            0,
            ("bomb".to_string(), raw(8, count.to_le_bytes().to_vec())),
        );
        assert!(error(&file).contains("bomb"), "{}", error(&file));
    }
}

#[test]
fn metadata_elements_are_limited_even_where_the_file_has_them() {
    let mut file = File::default();
    let count = (1 << 22) + 1;
    file.set("bomb", array(0, count, vec![0; count as usize]));
    assert!(error(&file).contains("limit"), "{}", error(&file));
}

#[test]
fn arrays_cannot_nest_without_end() {
    let mut bytes = Vec::new();
    for _ in 0..100_000 {
        bytes.extend(9u32.to_le_bytes());
        bytes.extend(1u64.to_le_bytes());
    }
    let mut file = File::default();
    file.set("bomb", raw(9, bytes));
    assert!(error(&file).contains("nested"), "{}", error(&file));
}

#[test]
fn alignment_must_be_a_power_of_two() {
    for alignment in [0, 3, 48, u32::MAX] {
        let mut file = tiny_llama();
        file.set("general.alignment", u32(alignment));
        assert!(
            error(&file).contains(&format!("it is {alignment}")),
            "{}",
            error(&file)
        );
    }
    let mut file = tiny_llama();
    file.set("general.alignment", string("32"));
    assert!(error(&file).contains("of type string"));
}

#[test]
fn shapes_and_offsets_must_make_sense() {
    let name = "blk.0.attn_q.weight";
    type Change = fn(&mut Tensor);
    let cases: [(Change, &str); 9] = [
        (|t| t.dims = vec![1 << 32, 1 << 32], "overflows"),
        (|t| t.dims = vec![1 << 61, 2, 2], "overflows"),
        // The element count fits, the bytes do not.
        (|t| t.dims = vec![1 << 62], "overflows"),
        (|t| t.dims = vec![32, 0], "zero"),
        (|t| t.dims = vec![1; 6], "rank 6"),
        (|t| t.type_code = 4, "format number 4 is not supported"),
        (
            |t| (t.type_code, t.dims) = (12, vec![32, 32]),
            "no multiple of the 256",
        ),
        (|t| t.offset = Some(1 << 40), "past the end"),
        (|t| t.offset = Some(u64::MAX - 31), "past the end"),
    ];
    for (change, needle) in cases {
        let mut file = tiny_llama();
        change(file.tensor_mut(name));
        let error = error(&file);
        assert!(
            error.contains(name) && error.contains(needle),
            "{needle}: {error}"
        );
    }
    let mut file = tiny_llama();
    file.tensor_mut(name).offset = Some(4);
    assert!(error(&file).contains("not a multiple of the alignment"));
}

#[test]
fn names_must_be_unique_and_clean() {
    let mut file = tiny_llama();
    file.metadata
        .push(("general.architecture".to_string(), string("llama")));
    assert!(error(&file).contains("general.architecture appears twice"));
    let mut file = tiny_llama();
    let twin = file.tensors[0].clone();
    file.tensors.push(twin);
    assert!(error(&file).contains("token_embd.weight appears twice"));
    for name in ["", "general.architecture\0"] {
        let mut file = tiny_llama();
        file.set(name, u32(1));
        assert!(error(&file).contains("not a valid name"));
    }
    let mut file = tiny_llama();
    file.set(&"k".repeat(65_536), u32(1));
    assert!(error(&file).contains("65536 bytes long"));
}

#[test]
fn types_and_booleans_are_checked() {
    let mut file = tiny_llama();
    file.set("odd", raw(13, vec![0; 8]));
    assert!(error(&file).contains("unknown value type 13"));
    let mut file = tiny_llama();
    file.set("odd", raw(7, vec![2]));
    assert!(error(&file).contains("2 is not a boolean"));
}

#[test]
fn missing_and_mistyped_keys_are_named() {
    let mut file = File::default();
    file.set("text", string("x")).set("list", strings(&["x"]));
    let gguf = read(&file).unwrap();
    assert_eq!(
        gguf.require_u32("absent").unwrap_err().to_string(),
        "metadata absent is missing"
    );
    assert_eq!(
        gguf.get_u32("text").unwrap_err().to_string(),
        "metadata text is of type string, it must be u32"
    );
    assert_eq!(gguf.get_u32("absent").unwrap(), None);
    assert!(gguf.get_f32s("list").is_err());
    assert!(gguf
        .require_tensor("absent", &[1])
        .unwrap_err()
        .to_string()
        .contains("tensor absent"));
}

#[test]
fn tensor_types_that_candle_lacks_are_named() {
    let mut file = tiny_llama();
    let tensor = file.tensor_mut("blk.0.attn_q.weight");
    (tensor.type_code, tensor.dims) = (26, vec![32, 32]);
    let gguf = read(&file).unwrap();
    let error = gguf
        .require_tensor("blk.0.attn_q.weight", &[32, 32])
        .unwrap_err()
        .to_string();
    assert!(error.contains("I32"), "{error}");
}

#[test]
fn truncation_anywhere_is_an_error() {
    let bytes = tiny_llama().bytes();
    assert!(bytes.len() > 20 * 997);
    for length in (0..bytes.len()).step_by(997).chain(0..200) {
        let error = Gguf::read(Cursor::new(&bytes[..length]))
            .expect_err("truncated")
            .to_string();
        assert!(!error.is_empty());
    }
}

#[test]
fn parts_of_a_split_file_are_one_model() {
    let folder = tempfile::tempdir().unwrap();
    let whole = tiny_llama();
    let path = |part: usize| folder.path().join(format!("m-0000{part}-of-00002.gguf"));
    for part in 1..=2 {
        let mut file = tiny_llama();
        file.set("split.count", u32(2));
        file.tensors = whole
            .tensors
            .iter()
            .skip(part - 1)
            .step_by(2)
            .cloned()
            .collect();
        file.write(&path(part));
    }
    let file = MappedGguf::open(&path(1)).unwrap();
    assert_eq!(file.header().get("split.count"), None);
    assert_eq!(file.header().tensors().count(), whole.tensors.len());
    for tensor in &whole.tensors {
        let info = file.header().tensor(&tensor.name).unwrap();
        assert_eq!(
            &*file.bytes(&tensor.name, info),
            tensor.data,
            "{}",
            tensor.name
        );
        file.give_back(&tensor.name, info);
    }
    std::fs::copy(path(1), path(2)).unwrap();
    let error = MappedGguf::open(&path(1)).unwrap_err().to_string();
    assert!(error.contains("in an earlier part, too"), "{error}");
    std::fs::remove_file(path(2)).unwrap();
    let error = MappedGguf::open(&path(1)).unwrap_err().to_string();
    assert!(error.contains("m-00002-of-00002.gguf"), "{error}");
}
