//! A model whose matrices were rounded with scales of some shape, in float32: what differs between two such files is
//! what rounding the weights does, and nothing else.

#![allow(dead_code)] // each program uses its own part

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use float8::F8E4M3;
use llm_worker_rocm::quantize::Scheme;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use worker::gguf::{load, Format, GgufWriter, MappedGguf, NewTensor, Value, Weights};

/// How the matrices of a model's blocks are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Not at all.
    None,
    /// A type of GGUF files, or F8_E4M3: e4m3 with a float32 scale for 64 neighbours.
    Type(GgmlDType),
    /// As `quantize` writes folders: FP8 with scales for blocks of 128 x 128, MXFP4 with those that compressed-tensors
    /// chooses.
    Written(Scheme),
    /// e4m3 with a float32 scale for each row.
    Channel,
    /// e4m3 with a float32 scale for each matrix.
    Matrix,
    /// NVFP4 with a float32 scale for each matrix, with which the largest scale of 16 elements is the largest there is.
    Nvfp4,
}

impl Shape {
    /// All, by the names that tables have.
    pub const ALL: [(&str, Self); 10] = [
        ("none", Self::None),
        ("Q8_0", Self::Type(GgmlDType::Q8_0)),
        ("FP8, 64 elements", Self::Type(GgmlDType::F8E4M3)),
        ("FP8, 128 x 128", Self::Written(Scheme::Fp8)),
        ("FP8, row", Self::Channel),
        ("FP8, matrix", Self::Matrix),
        ("Q4_0", Self::Type(GgmlDType::Q4_0)),
        ("NVFP4", Self::Nvfp4),
        ("MXFP4", Self::Written(Scheme::Mxfp4)),
        ("MXFP4 of GGUF", Self::Type(GgmlDType::MXFP4)),
    ];

    /// Bits of an element with its share of the scales, for matrices of 576 columns and many rows.
    pub fn bits(self) -> f64 {
        match self {
            Self::None => 32.0,
            Self::Type(dtype) => 8.0 * dtype.type_size() as f64 / dtype.block_size() as f64,
            Self::Written(Scheme::Fp8) | Self::Channel | Self::Matrix => 8.0,
            Self::Written(Scheme::Mxfp4) => 4.25,
            Self::Nvfp4 => 4.5,
        }
    }

    /// Rows of values, rounded.
    fn round(self, values: &[f32], columns: usize) -> Vec<f32> {
        let largest = |values: &[f32]| values.iter().fold(0f32, |max, v| max.max(v.abs()));
        match self {
            Self::None => values.to_vec(),
            Self::Type(dtype) => through(values, columns, dtype),
            Self::Written(scheme) => {
                let pieces = values.chunks(scheme.rows() * columns);
                let rounded =
                    pieces.map(|piece| decode(scheme, &scheme.encode(piece, columns), columns));
                rounded.collect::<Vec<_>>().concat()
            }
            Self::Channel => {
                let rows = values.chunks(columns);
                rows.flat_map(|row| scaled(row, largest(row))).collect()
            }
            Self::Matrix => scaled(values, largest(values)),
            Self::Nvfp4 => {
                // The largest scale times the largest element.
                let factor = 448.0 * 6.0 / largest(values);
                let large: Vec<f32> = values.iter().map(|v| v * factor).collect();
                let rounded = through(&large, columns, GgmlDType::NVFP4);
                rounded.iter().map(|v| v / factor).collect()
            }
        }
    }
}

/// To a type of GGUF files and back.
fn through(values: &[f32], columns: usize, dtype: GgmlDType) -> Vec<f32> {
    let shape = (values.len() / columns, columns);
    let tensor = Tensor::from_slice(values, shape, &Device::Cpu).unwrap();
    let tensor = QTensor::quantize(&tensor, dtype).unwrap();
    let tensor = tensor.dequantize(&Device::Cpu).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// To e4m3 and back, the largest magnitude as the largest float.
fn scaled(values: &[f32], largest: f32) -> Vec<f32> {
    let scale = (largest / 448.0).max(f32::MIN_POSITIVE);
    let rounded = |v: &f32| F8E4M3::from_f32(v / scale).to_f32() * scale;
    values.iter().map(rounded).collect()
}

/// What bytes stand for by the layouts' definitions.
fn decode(scheme: Scheme, [elements, scales]: &[Vec<u8>; 2], columns: usize) -> Vec<f32> {
    const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    match scheme {
        Scheme::Fp8 => {
            let scale = |i: usize| {
                let at = i % columns / 128 * 4;
                f32::from_le_bytes(scales[at..at + 4].try_into().unwrap())
            };
            let values = elements.iter().enumerate();
            let value = |(i, bits): (usize, &u8)| F8E4M3::from_bits(*bits).to_f32() * scale(i);
            values.map(value).collect()
        }
        Scheme::Mxfp4 => {
            let value = |i: usize| {
                let code = elements[i / 2] >> (i % 2 * 4) & 15;
                let sign = if code > 7 { -1.0 } else { 1.0 };
                sign * E2M1[usize::from(code & 7)] * 2f32.powi(i32::from(scales[i / 32]) - 127)
            };
            (0..elements.len() * 2).map(value).collect()
        }
    }
}

/// Writes `model` in float32, the matrices of its blocks rounded; returns the squared error of their elements, relative
/// to their squares.
pub fn write(model: &Path, shape: Shape, to: &Path) -> f64 {
    let source = MappedGguf::open(model).unwrap();
    let gguf = source.header();
    let metadata: Vec<(String, Value)> = gguf
        .metadata()
        .filter(|(key, _)| !["general.alignment", "general.file_type"].contains(key))
        .map(|(key, value)| (key.to_string(), value.clone()))
        .collect();
    let table: Vec<NewTensor> = gguf
        .tensors()
        .map(|(name, info)| NewTensor {
            name: name.to_string(),
            dims: info.dims.clone(),
            format: Format::F32,
        })
        .collect();
    let file = BufWriter::new(File::create(to).unwrap());
    let mut writer = GgufWriter::new(file, &metadata, &table).unwrap();
    let (mut error, mut squares) = (0.0, 0.0);
    for new in &table {
        let tensor = load(&source, &new.name, &Device::Cpu).unwrap();
        let tensor = tensor.dequantize(&Device::Cpu).unwrap();
        let mut values: Vec<f32> = tensor.flatten_all().unwrap().to_vec1().unwrap();
        if new.name.starts_with("blk.") && new.dims.len() == 2 {
            let rounded = shape.round(&values, new.dims[0] as usize);
            assert_eq!(rounded.len(), values.len(), "{}", new.name);
            for (value, rounded) in values.iter().zip(&rounded) {
                error += f64::from(value - rounded).powi(2);
                squares += f64::from(*value).powi(2);
            }
            values = rounded;
        }
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        writer.write(&bytes).unwrap();
    }
    writer.finish().unwrap();
    error / squares
}
