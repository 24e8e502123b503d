//! Every GGUF type that the PyPI package `gguf` knows, against the values that it computes, to the bit.
//!
//! `tests/fixtures/gguf-types/make.py` made the blocks; those of the types with a codebook use each of its entries.

mod common;

use candle_rocm::ops::quantized::{dequantize, Format};
use candle_rocm::{DType, Device};
use common::{assert_exact, device, download};
use half::{bf16, f16};

/// Blocks of a type, the values of the first ones, and the hash of all values.
struct Record {
    format: Format,
    blocks: Vec<u8>,
    values: Vec<f32>,
    hash: u64,
}

impl Record {
    fn elem_count(&self) -> usize {
        self.blocks.len() / self.format.type_size() * self.format.block_size()
    }

    fn dequantize(&self, device: &Device, to: DType) -> candle_rocm::Buffer {
        let blocks = device.upload(&self.blocks).unwrap();
        dequantize(device, self.format, &blocks, 0, self.elem_count(), to).unwrap()
    }
}

fn records() -> Vec<Record> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/fixtures/gguf-types/dequantize.bin"
    );
    let file = std::fs::read(path).unwrap();
    let mut rest = file.as_slice();
    let mut records = Vec::new();
    while !rest.is_empty() {
        let mut take = |bytes| {
            let (head, tail) = rest.split_at(bytes);
            rest = tail;
            head
        };
        let mut number = || u32::from_le_bytes(take(4).try_into().unwrap());
        let (format, bytes, values) = (number(), number() as usize, number() as usize);
        records.push(Record {
            format: Format::from_number(format).unwrap(),
            blocks: take(bytes).to_vec(),
            values: common::from_bytes(take(values * 4)),
            hash: u64::from_le_bytes(take(8).try_into().unwrap()),
        });
    }
    records
}

/// FNV-1a of the values' bytes.
fn hash(values: &[f32]) -> u64 {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |state, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}

#[test]
fn every_type_that_gguf_dequantizes_is_recorded() {
    let recorded: Vec<Format> = records().iter().map(|record| record.format).collect();
    for format in Format::ALL {
        // The package has no code for the two activation formats, and plain formats have no blocks. 8-bit floats are in
        // no other program's files.
        let absent = !format.is_weight() || *format == Format::F8E4M3;
        assert_eq!(recorded.contains(format), !absent, "{format}");
    }
}

#[test]
fn values_are_those_of_gguf() {
    let device = device();
    for record in records() {
        let what = record.format.to_string();
        let got: Vec<f32> = download(&device, &record.dequantize(&device, DType::F32));
        assert_exact(&got[..record.values.len()], &record.values, &what);
        assert_eq!(hash(&got), record.hash, "{what}: values of all blocks");

        // The compiler may fuse a product with its rounding, by adding zero: then zeros lose their sign.
        let unsigned = |v: f32| if v == 0. { 0. } else { v };
        let half = download::<f16>(&device, &record.dequantize(&device, DType::F16));
        let half: Vec<f32> = half.iter().map(|v| unsigned(v.to_f32())).collect();
        let want = got.iter().map(|v| unsigned(f16::from_f32(*v).to_f32()));
        assert_exact(&half, &want.collect::<Vec<_>>(), &format!("{what} to f16"));

        let half = download::<bf16>(&device, &record.dequantize(&device, DType::BF16));
        let half: Vec<f32> = half.iter().map(|v| unsigned(v.to_f32())).collect();
        let want = got.iter().map(|v| unsigned(bf16::from_f32(*v).to_f32()));
        assert_exact(&half, &want.collect::<Vec<_>>(), &format!("{what} to bf16"));
    }
}

#[test]
fn every_byte_pattern_decodes_the_same_at_any_place_of_a_buffer() {
    let device = device();
    for record in records() {
        // Blocks are not aligned, and more of them than one launch has threads for eight elements each.
        let (bytes, elements) = (record.format.type_size(), record.format.block_size());
        let distinct = record.blocks.len() / bytes;
        let count = 1 + 2 * distinct;
        let blocks: Vec<u8> = (0..count)
            .flat_map(|i| &record.blocks[i % distinct * bytes..][..bytes])
            .copied()
            .collect();
        let blocks = device.upload(&blocks).unwrap();
        let got = dequantize(
            &device,
            record.format,
            &blocks,
            0,
            count * elements,
            DType::F32,
        )
        .unwrap();
        let got: Vec<f32> = download(&device, &got);
        let (first, rest) = got.split_at(distinct * elements);
        let what = record.format.to_string();
        assert_eq!(hash(first), record.hash, "{what}");
        assert_exact(&rest[..first.len()], first, &what);
        assert_exact(&rest[first.len()..], &first[..elements], &what);
    }
}
