//! The types of GGUF files, those that upstream lacks among them, against the PyPI package `gguf`: numbers, values to
//! the bit, and the encodings that it chooses; for the formats that it cannot quantize, how near the values come.

use candle_core::quantized::{gguf_file, GgmlDType, QMatMul, QStorage, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};
use std::sync::Arc;

/// The types that upstream lacks, their numbers, and bits per value.
const ADDED: [(GgmlDType, u32, f64); 14] = [
    (GgmlDType::IQ2XXS, 16, 2.0625),
    (GgmlDType::IQ2XS, 17, 2.3125),
    (GgmlDType::IQ3XXS, 18, 3.0625),
    (GgmlDType::IQ1S, 19, 1.5625),
    (GgmlDType::IQ4NL, 20, 4.5),
    (GgmlDType::IQ3S, 21, 3.4375),
    (GgmlDType::IQ2S, 22, 2.5625),
    (GgmlDType::IQ4XS, 23, 4.25),
    (GgmlDType::IQ1M, 29, 1.75),
    (GgmlDType::TQ1_0, 34, 1.6875),
    (GgmlDType::TQ2_0, 35, 2.0625),
    (GgmlDType::MXFP4, 39, 4.25),
    (GgmlDType::NVFP4, 40, 4.5),
    (GgmlDType::F8E4M3, 4096, 8.5),
];

/// What a file of `tests/fixtures/gguf-types` says of a type.
struct Record {
    number: u32,
    blocks: Vec<u8>,
    values: Vec<f32>,
    /// Of the values of all blocks; zero in `quantize.bin`, which has them all.
    hash: u64,
}

fn records(name: &str) -> Vec<Record> {
    let folder = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/gguf-types"
    );
    let file = std::fs::read(format!("{folder}/{name}")).expect("the fixture is there");
    let mut rest = file.as_slice();
    let mut records = Vec::new();
    while !rest.is_empty() {
        let mut take = |bytes| {
            let (head, tail) = rest.split_at(bytes);
            rest = tail;
            head
        };
        let mut number = || u32::from_le_bytes(take(4).try_into().unwrap());
        let (type_number, bytes, values) = (number(), number() as usize, number() as usize);
        let blocks = take(bytes).to_vec();
        let values = take(values * 4).chunks_exact(4);
        let values = values.map(|v| f32::from_le_bytes(v.try_into().unwrap()));
        records.push(Record {
            number: type_number,
            blocks,
            values: values.collect(),
            hash: match name {
                "dequantize.bin" => u64::from_le_bytes(take(8).try_into().unwrap()),
                _ => 0,
            },
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

/// Loads one row of blocks from a GGUF file that has nothing else.
fn load(number: u32, blocks: &[u8], elem_count: usize, device: &Device) -> Result<QTensor> {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend([1u64, 0, 1].map(u64::to_le_bytes).concat());
    file.extend(b"x");
    file.extend(1u32.to_le_bytes());
    file.extend((elem_count as u64).to_le_bytes());
    file.extend(number.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(blocks);
    let mut file = std::io::Cursor::new(file);
    gguf_file::Content::read(&mut file)?.tensor(&mut file, "x", device)
}

/// Elements and bytes of a block, as `gguf` lists them.
fn block(number: u32) -> (usize, usize) {
    match number {
        2 => (32, 18),
        3 => (32, 20),
        6 => (32, 22),
        7 => (32, 24),
        8 => (32, 34),
        10 => (256, 84),
        11 => (256, 110),
        12 => (256, 144),
        13 => (256, 176),
        14 => (256, 210),
        16 => (256, 66),
        17 => (256, 74),
        18 => (256, 98),
        19 => (256, 50),
        20 => (32, 18),
        21 => (256, 110),
        22 => (256, 82),
        23 => (256, 136),
        29 => (256, 56),
        34 => (256, 54),
        35 => (256, 66),
        39 => (32, 17),
        40 => (64, 36),
        _ => panic!("type {number} is not in the fixture"),
    }
}

fn normal(count: usize, scale: f64) -> Vec<f32> {
    // Box-Muller over a linear congruential generator: the same numbers everywhere.
    let mut state = 7u64;
    let mut uniform = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((state >> 33) as f64 + 0.5) / (1u64 << 31) as f64
    };
    let mut one = || {
        let (radius, angle) = (uniform(), uniform() * std::f64::consts::TAU);
        ((-2. * radius.ln()).sqrt() * angle.cos() * scale) as f32
    };
    (0..count).map(|_| one()).collect()
}

/// Blocks that are read where they are give the same products and rows as those that were copied.
#[test]
fn blocks_are_read_where_they_are() -> Result<()> {
    let (n, k) = (6, 512);
    let x = Tensor::from_vec(normal(3 * k, 1.0), (3, k), &Device::Cpu)?;
    let weights = Tensor::from_vec(normal(n * k, 0.1), (n, k), &Device::Cpu)?;
    let upstream = [
        GgmlDType::F16,
        GgmlDType::Q4_0,
        GgmlDType::Q5_1,
        GgmlDType::Q8_0,
        GgmlDType::Q3K,
        GgmlDType::Q4K,
        GgmlDType::Q6K,
    ];
    let added = ADDED.map(|(dtype, _, _)| dtype);
    for dtype in upstream.into_iter().chain(added) {
        let copied = QTensor::quantize(&weights, dtype)?;
        let bytes = Arc::new(copied.data()?.into_owned());
        let data = Shared(bytes.clone());
        let in_place = QStorage::in_place(data, dtype).expect("aligned blocks");
        let in_place = QTensor::new(in_place, (n, k))?;
        assert_eq!(in_place.data()?.as_ptr(), bytes.as_ptr(), "{dtype:?}");
        let ids = Tensor::new(&[4u32, 0], &Device::Cpu)?;
        let rows = |tensor: &QTensor| tensor.embedding(&ids)?.to_vec2::<f32>();
        assert_eq!(rows(&in_place)?, rows(&copied)?, "{dtype:?}");
        let product = |tensor| QMatMul::from_qtensor(tensor)?.forward(&x)?.to_vec2::<f32>();
        assert_eq!(product(in_place)?, product(copied)?, "{dtype:?}");
        // No whole number of blocks.
        let cut = Shared(Arc::new(bytes[..bytes.len() - 1].to_vec()));
        assert!(QStorage::in_place(cut, dtype).is_none(), "{dtype:?}");
    }
    Ok(())
}

/// Bytes that several hold.
struct Shared(Arc<Vec<u8>>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn values_are_those_of_gguf() -> Result<()> {
    for record in records("dequantize.bin") {
        let (elements, bytes) = block(record.number);
        let elem_count = record.blocks.len() / bytes * elements;
        let tensor = load(record.number, &record.blocks, elem_count, &Device::Cpu)?;
        assert_eq!(tensor.dtype().block_size(), elements, "{tensor:?}");
        assert_eq!(tensor.dtype().type_size(), bytes, "{tensor:?}");
        assert!(*tensor.data()? == *record.blocks, "{tensor:?}");
        let values = tensor.dequantize(&Device::Cpu)?.to_vec1::<f32>()?;
        for (i, (got, want)) in values.iter().zip(&record.values).enumerate() {
            let same = got.to_bits() == want.to_bits();
            assert!(same, "{tensor:?}: value {i} is {got}, not {want}");
        }
        assert_eq!(hash(&values), record.hash, "{tensor:?}: all blocks");
    }
    Ok(())
}

#[test]
fn encodings_are_those_of_gguf() -> Result<()> {
    for record in records("quantize.bin") {
        let of_number = |(_, number, _): &&(GgmlDType, u32, f64)| *number == record.number;
        let dtype = match (ADDED.iter().find(of_number), record.number) {
            (Some((dtype, _, _)), _) => *dtype,
            (None, 2) => GgmlDType::Q4_0,
            (None, 3) => GgmlDType::Q4_1,
            (None, 6) => GgmlDType::Q5_0,
            (None, 7) => GgmlDType::Q5_1,
            (None, 8) => GgmlDType::Q8_0,
            (None, number) => panic!("type {number}"),
        };
        let count = record.values.len();
        let values = Tensor::from_vec(record.values, count, &Device::Cpu)?;
        let tensor = QTensor::quantize(&values, dtype)?;
        assert!(*tensor.data()? == *record.blocks, "{tensor:?}");
    }
    Ok(())
}

#[test]
fn every_added_type_survives_a_file() -> Result<()> {
    for (dtype, number, bits) in ADDED {
        let values = Tensor::from_vec(normal(3 * 512, 0.1), (3, 512), &Device::Cpu)?;
        let tensor = QTensor::quantize(&values, dtype)?;
        let size = tensor.storage_size_in_bytes();
        assert_eq!(size as f64 * 8., bits * 3. * 512., "{dtype:?}");
        let mut file = std::io::Cursor::new(Vec::new());
        gguf_file::write(&mut file, &[], &[("x", &tensor)])?;
        file.set_position(0);
        let content = gguf_file::Content::read(&mut file)?;
        let again = content.tensor(&mut file, "x", &Device::Cpu)?;
        assert_eq!(again.dtype(), dtype);
        assert_eq!(again.data()?, tensor.data()?, "{dtype:?}");
        let by_number = load(number, &tensor.data()?, 3 * 512, &Device::Cpu)?;
        assert_eq!(by_number.dtype(), dtype, "number {number}");
    }
    for number in [4, 5, 31, 32, 33, 36, 37, 38, 41] {
        let error = load(number, &[], 256, &Device::Cpu).expect_err("withdrawn");
        let named = error.to_string().contains(&format!("tensor {number}"));
        assert!(named, "{error}");
    }
    Ok(())
}

/// The squared error of normally distributed values, relative to their squares: what was measured, rounded up by a
/// twentieth. No code of the same rate can get below 2^(-2 bits); the formats stay within about twice that (TQ1_0 and
/// TQ2_0 are for weights that are ternary).
const MOST_ERROR: [(GgmlDType, f64); 14] = [
    (GgmlDType::IQ2XXS, 0.113),
    (GgmlDType::IQ2XS, 0.0864),
    (GgmlDType::IQ3XXS, 0.0328),
    (GgmlDType::IQ1S, 0.209),
    (GgmlDType::IQ4NL, 0.00574),
    (GgmlDType::IQ3S, 0.0175),
    (GgmlDType::IQ2S, 0.0606),
    (GgmlDType::IQ4XS, 0.00579),
    (GgmlDType::IQ1M, 0.179),
    (GgmlDType::TQ1_0, 0.69),
    (GgmlDType::TQ2_0, 0.69),
    (GgmlDType::MXFP4, 0.0141),
    (GgmlDType::NVFP4, 0.0083),
    (GgmlDType::F8E4M3, 0.0008),
];

/// The squared error of each value.
fn errors(values: &[f32], tensor: &QTensor) -> Result<Vec<f64>> {
    let got = tensor.dequantize(&Device::Cpu)?.flatten_all()?;
    let pairs = values.iter().zip(got.to_vec1::<f32>()?);
    Ok(pairs.map(|(v, got)| f64::from(v - got).powi(2)).collect())
}

#[test]
fn errors_are_what_the_bits_allow() -> Result<()> {
    for scale in [1e-3, 0.02, 30.] {
        let values = normal(64 * 256, scale);
        let squares: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
        let tensor = Tensor::from_slice(&values, (64, 256), &Device::Cpu)?;
        for (dtype, most) in MOST_ERROR {
            let quantized = QTensor::quantize(&tensor, dtype)?;
            let error = errors(&values, &quantized)?.iter().sum::<f64>() / squares;
            // The smallest scale of NVFP4 is 2^-10: small tensors need a scale of their own beside it.
            if dtype != GgmlDType::NVFP4 || scale > 0.01 {
                assert!(error < most, "{dtype:?} at {scale}: {error}");
            }
        }
    }
    Ok(())
}

#[test]
fn importance_moves_the_error_to_where_it_matters_less() -> Result<()> {
    let values = normal(32 * 512, 0.05);
    let tensor = Tensor::from_slice(&values, (32, 512), &Device::Cpu)?;
    let importance: Vec<f32> = (0..512)
        .map(|i| if i % 4 == 0 { 30. } else { 1. })
        .collect();
    let weighted = |tensor: &QTensor| -> Result<f64> {
        let errors = errors(&values, tensor)?;
        Ok(errors
            .iter()
            .enumerate()
            .map(|(i, e)| e * f64::from(importance[i % 512]))
            .sum())
    };
    for (dtype, _, _) in ADDED {
        let plain = weighted(&QTensor::quantize(&tensor, dtype)?)?;
        let with = weighted(&QTensor::quantize_imatrix(&tensor, &importance, dtype)?)?;
        let fixed = matches!(
            dtype,
            GgmlDType::TQ1_0 | GgmlDType::TQ2_0 | GgmlDType::MXFP4 | GgmlDType::F8E4M3
        );
        match fixed {
            true => assert_eq!(with, plain, "{dtype:?} has one encoding"),
            false => assert!(with < plain * 0.95, "{dtype:?}: {with} against {plain}"),
        }
        // An importance of nothing says nothing.
        let none = QTensor::quantize_imatrix(&tensor, &[0.; 512], dtype)?;
        let same = none.data()? == QTensor::quantize(&tensor, dtype)?.data()?;
        assert!(same, "{dtype:?}");
    }
    Ok(())
}

#[test]
fn zeros_and_outliers_keep_blocks_finite() -> Result<()> {
    let mut values = vec![0f32; 4 * 256];
    values[256] = 1e-30;
    values[512..768].copy_from_slice(&normal(256, 0.1));
    values[600] = 400.;
    values[1000] = -1.;
    let tensor = Tensor::from_slice(&values, (4, 256), &Device::Cpu)?;
    for (dtype, _, _) in ADDED {
        let quantized = QTensor::quantize(&tensor, dtype)?;
        let got = quantized
            .dequantize(&Device::Cpu)?
            .flatten_all()?
            .to_vec1::<f32>()?;
        assert!(got.iter().all(|v| v.is_finite()), "{dtype:?}");
        assert!(got[..256].iter().all(|v| *v == 0.), "{dtype:?}");
        // A codebook has no entry of one large and seven small elements.
        assert!(
            got[600] > 100. && got[600] < 500.,
            "{dtype:?}: {}",
            got[600]
        );
    }
    Ok(())
}

#[test]
fn products_are_those_of_the_values() -> Result<()> {
    for (dtype, _, _) in ADDED {
        for (m, k, n) in [(1, 256, 3), (5, 512, 7), (33, 768, 1)] {
            let weights = Tensor::from_vec(normal(n * k, 0.05), (n, k), &Device::Cpu)?;
            let quantized = QTensor::quantize(&weights, dtype)?;
            let values = quantized.dequantize(&Device::Cpu)?.to_dtype(DType::F64)?;
            let x = Tensor::from_vec(normal(m * k, 1.), (m, k), &Device::Cpu)?;
            let ids = Tensor::new(&[n as u32 - 1, 0], &Device::Cpu)?;
            let rows = quantized.embedding(&ids)?.to_dtype(DType::F64)?;
            let wanted = values.index_select(&ids, 0)?.to_vec2::<f64>()?;
            assert_eq!(rows.to_vec2::<f64>()?, wanted, "{dtype:?}");
            let product = QMatMul::from_qtensor(quantized)?;
            for (input, limit) in [(DType::F32, 1e-12), (DType::F16, 1e-6), (DType::BF16, 1e-4)] {
                let x = x.to_dtype(input)?;
                let got = product.forward(&x)?;
                assert_eq!((got.dtype(), got.dims()), (input, [m, n].as_slice()));
                let want = x.to_dtype(DType::F64)?.matmul(&values.t()?)?;
                let error = (got.to_dtype(DType::F64)? - &want)?.sqr()?.sum_all()?;
                let error = (error / want.sqr()?.sum_all()?)?.to_scalar::<f64>()?;
                assert!(error < limit, "{dtype:?} {m}x{k}x{n} {input:?}: {error}");
            }
        }
    }
    Ok(())
}

/// Types that the CPU multiplies sixteen rows of the weights at a time: near the values' products, and each row the
/// same to the bit whichever others are multiplied with it.
#[test]
fn products_of_panels() -> Result<()> {
    for dtype in [
        GgmlDType::Q4_0,
        GgmlDType::Q4_1,
        GgmlDType::Q5_0,
        GgmlDType::Q5_1,
        GgmlDType::Q8_0,
    ] {
        for (m, k, n) in [(1, 64, 1), (3, 64, 16), (7, 96, 17), (21, 1088, 40)] {
            let weights = Tensor::from_vec(normal(n * k, 0.05), (n, k), &Device::Cpu)?;
            let quantized = QTensor::quantize(&weights, dtype)?;
            let values = quantized.dequantize(&Device::Cpu)?;
            let x = Tensor::from_vec(normal(m * k, 1.), (m, k), &Device::Cpu)?;
            let product = QMatMul::from_qtensor(quantized)?;
            let got = product.forward(&x)?;
            let want = x.matmul(&values.t()?)?;
            let error = (&got - &want)?.sqr()?.sum_all()?;
            let error = (error / want.sqr()?.sum_all()?)?.to_scalar::<f32>()?;
            assert!(error < 5e-4, "{dtype:?} {m}x{k}x{n}: {error}");
            for row in 0..m {
                let alone = product.forward(&x.narrow(0, row, 1)?)?;
                let among = got.narrow(0, row, 1)?;
                assert_eq!(
                    among.to_vec2::<f32>()?,
                    alone.to_vec2::<f32>()?,
                    "{dtype:?} {m}x{k}x{n}"
                );
            }
        }
    }
    Ok(())
}

/// Of the types of this fork, too, each row of a product is the same to the bit whichever others are multiplied with it.
#[test]
fn products_of_rows_are_their_own() -> Result<()> {
    for (dtype, _, _) in ADDED {
        for (m, k, n) in [(2, 256, 1), (4, 1280, 7), (9, 768, 6)] {
            let weights = Tensor::from_vec(normal(n * k, 0.05), (n, k), &Device::Cpu)?;
            let product = QMatMul::from_qtensor(QTensor::quantize(&weights, dtype)?)?;
            let x = Tensor::from_vec(normal(m * k, 1.), (m, k), &Device::Cpu)?;
            let got = product.forward(&x)?;
            for row in 0..m {
                let alone = product.forward(&x.narrow(0, row, 1)?)?;
                let among = got.narrow(0, row, 1)?;
                let same = among.to_vec2::<f32>()? == alone.to_vec2::<f32>()?;
                assert!(same, "{dtype:?} {m}x{k}x{n}: row {row}");
            }
        }
    }
    Ok(())
}

/// Products with the columns of a unit matrix are the elements themselves: every code of the types whose elements are
/// decoded by instructions, with scales of every kind.
#[test]
fn products_decode_every_code() -> Result<()> {
    // NaN and -0 are not among the format's elements.
    let code = |code: u8| {
        if matches!(code, 0x7f | 0x80 | 0xff) {
            0
        } else {
            code
        }
    };
    let f8 = |d: f32| {
        let codes = (0..=255u8).map(code).collect::<Vec<_>>();
        let blocks = codes
            .chunks(64)
            .map(|codes| [&d.to_le_bytes()[..], codes].concat());
        blocks.collect::<Vec<_>>().concat()
    };
    let nibbles = |from: u8, count: u8| {
        let codes = (0..count).map(move |i| from.wrapping_add(i) & 15);
        codes
            .map(|code| code << 4 | (15 - code))
            .collect::<Vec<_>>()
    };
    let f8: Vec<u8> = [1., 0.0123, -3e-30, 1e30]
        .into_iter()
        .flat_map(f8)
        .collect();
    let mxfp4: Vec<u8> = [0, 1, 2, 100, 127, 128, 200, 250]
        .into_iter()
        .flat_map(|exponent| [exponent].into_iter().chain(nibbles(exponent, 16)))
        .collect();
    let nvfp4: Vec<u8> = (0..=255u8)
        .step_by(4)
        .flat_map(|s| (s..=s + 3).chain(nibbles(s, 32)))
        .collect();
    for (dtype, bytes) in [
        (GgmlDType::F8E4M3, f8),
        (GgmlDType::MXFP4, mxfp4),
        (GgmlDType::NVFP4, nvfp4),
    ] {
        let k = 64;
        let n = bytes.len() / dtype.type_size() * dtype.block_size() / k;
        let storage = QStorage::from_data(bytes.into(), &Device::Cpu, dtype)?;
        let weights = QTensor::new(storage, (n, k))?;
        let values = weights.dequantize(&Device::Cpu)?.t()?.to_vec2::<f32>()?;
        let product = QMatMul::from_qtensor(weights)?;
        let unit = Tensor::eye(k, DType::F32, &Device::Cpu)?;
        let together = product.forward(&unit)?.to_vec2::<f32>()?;
        for (i, (found, values)) in together.iter().zip(&values).enumerate() {
            assert_eq!(found, values, "{dtype:?} element {i} of all");
        }
        for (i, values) in values.iter().enumerate() {
            let alone = product.forward(&unit.narrow(0, i, 1)?)?;
            assert_eq!(&alone.to_vec2::<f32>()?[0], values, "{dtype:?} element {i}");
        }
    }
    Ok(())
}

#[test]
fn misfits_are_errors() -> Result<()> {
    let tensor = Tensor::zeros((2, 48), DType::F32, &Device::Cpu)?;
    assert!(QTensor::quantize(&tensor, GgmlDType::IQ4NL).is_err());
    let tensor = Tensor::zeros((2, 64), DType::F32, &Device::Cpu)?;
    let quantized = QTensor::quantize(&tensor, GgmlDType::IQ4NL)?;
    let beyond = Tensor::new(&[2u32], &Device::Cpu)?;
    let error = quantized.embedding(&beyond).expect_err("out of range");
    assert!(error.to_string().contains("out of range"), "{error}");
    let short = Tensor::zeros((1, 32), DType::F32, &Device::Cpu)?;
    assert!(QMatMul::from_qtensor(quantized)?.forward(&short).is_err());
    Ok(())
}
