//! Products with quantized matrices, and activations in 8 bits.

use super::rows::normalized;
use super::{split_dtype, unknown};
use crate::ops::norm;
use crate::ops::quantized::halves::{in_tiles as product_of_halves, Tiles};
use crate::ops::quantized::{
    dequantize, few as product_of_few, matmul as product_by_tiles, matvec as product_in_one_pass,
    Epilogue, Format, QuantizedActivations, QuantizedMatrix,
};
use crate::verify::admit::Finding;
use crate::verify::bench::{
    bytes_of, compare, difference, read, spoil_memory, tolerance, Numbers, Tensor,
};
use crate::{Buffer, DType, DeclaredKernel, Device, Result};
use half::f16;

/// Elements of a block of activations, which share a scale.
const BLOCK: usize = 32;
/// Bytes of a block's scale and sums.
const SCALE_BYTES: usize = 8;

/// The format whose name is a kernel's last word but for `after` behind it.
pub(super) fn format_of(name: &str, after: Option<&str>) -> Option<Format> {
    let name = match after {
        Some(after) => name.strip_suffix(after)?,
        None => name,
    };
    // Names of formats have words of their own, such as `iq2_xxs`.
    let formats = Format::ALL.iter().copied();
    let named = formats.filter(|f| name.ends_with(&format!("_{f}")));
    named.max_by_key(|f| f.to_string().len())
}

/// Blocks whose scales are finite and of like magnitude.
pub(super) fn blocks(format: Format, count: usize) -> Vec<u8> {
    let mut numbers = Numbers::new(count as u64);
    let size = format.type_size();
    let mut bytes: Vec<u8> = (0..count * size).map(|_| numbers.bits() as u8).collect();
    let halves: &[usize] = match format {
        Format::Q4_1 | Format::Q5_1 | Format::Q4K | Format::Q5K => &[0, 2],
        Format::Q2K => &[80, 82],
        Format::Q3K => &[108],
        Format::Q6K => &[208],
        Format::TQ1_0 => &[52],
        Format::TQ2_0 => &[64],
        // Scales of their own kinds, below.
        Format::Q8K | Format::IQ1M | Format::MXFP4 | Format::NVFP4 | Format::F8E4M3 => &[],
        _ => &[0],
    };
    for (index, block) in bytes.chunks_exact_mut(size).enumerate() {
        match format {
            Format::F8E4M3 => floats(block, index % 2 == 1, numbers.uniform(-0.1, 0.1) as f32),
            Format::Q8K => {
                let scale = numbers.uniform(-0.1, 0.1) as f32;
                block[..4].copy_from_slice(&scale.to_le_bytes());
            }
            // The highest bits of a half that is spread over the block.
            Format::IQ1M => block[55] = block[55] & 0x0f | 0x20,
            Format::MXFP4 => block[0] = 120 + numbers.below(8) as u8,
            // Small floats without NaN, below 2 each.
            Format::NVFP4 => block[..4].iter_mut().for_each(|scale| *scale &= 0x3f),
            _ => {}
        }
        for &at in halves {
            let scale = f16::from_f64(numbers.uniform(-0.1, 0.1));
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    bytes
}

/// Makes numbers of the bits of a block of 8-bit floats; of `small` ones, all are below the normal numbers, which some
/// instructions take for zeros, and the scale makes up for it.
fn floats(block: &mut [u8], small: bool, scale: f32) {
    let scale = if small { scale * 16384.0 } else { scale };
    let (head, elements) = block.split_at_mut(size_of::<f32>());
    head.copy_from_slice(&scale.to_le_bytes());
    for bits in elements {
        let (mask, is_none) = (if small { 0x87 } else { 0xff }, [0x7f, 0x80, 0xff]);
        *bits &= mask;
        if is_none.contains(bits) {
            *bits = 0x08;
        }
    }
}

/// Matrices in a format on the device, and their elements: as they are dequantized, element by element.
pub(super) struct Matrices {
    pub buffer: Buffer,
    pub values: Vec<f64>,
}

impl Matrices {
    pub fn new(device: &Device, format: Format, elements: usize) -> Result<Self> {
        let buffer = device.upload(&blocks(format, elements / format.block_size()))?;
        let floats = dequantize(device, format, &buffer, 0, elements, DType::F32)?;
        Ok(Matrices {
            values: read(device, &floats, DType::F32)?,
            buffer,
        })
    }
}

/// Activations in 8 bits as numbers, `[columns, len]`.
pub(super) fn numbers_of(device: &Device, x: &QuantizedActivations) -> Result<Vec<f64>> {
    let bytes = bytes_of(device, x.buffer())?;
    let (len, stride) = (x.vector_len(), x.vector_len().next_multiple_of(128));
    let (quants, scales) = bytes.split_at(x.columns() * stride);
    let value = |i: usize| {
        let at = i / len * stride + i % len;
        let scale = &scales[at / BLOCK * SCALE_BYTES..][..4];
        let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
        f64::from(quants[at] as i8) * f64::from(scale)
    };
    Ok((0..x.columns() * len).map(value).collect())
}

/// `x wᵀ`, with rows of `k` in both.
pub(super) fn product(x: &[f64], w: &[f64], k: usize) -> Vec<f64> {
    let mut out = Vec::new();
    for x in x.chunks(k) {
        out.extend(
            w.chunks(k)
                .map(|w| w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>()),
        );
    }
    out
}

pub(super) fn activations(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let (columns, len) = (9, 288);
    if let Some((_, dtype)) = split_dtype(&kernel.name) {
        let x = Tensor::random(device, dtype, &[columns, len], (-3.0, 2.0))?;
        spoil_memory(
            device,
            columns * len.next_multiple_of(128) / BLOCK * (BLOCK + SCALE_BYTES),
        )?;
        let quantized = QuantizedActivations::quantize(device, &x.view())?;
        return compare_quants(device, &quantized, &x.values);
    }
    let x = Tensor::random(device, DType::F32, &[columns, len], (-3.0, 2.0))?;
    let residual = Tensor::random(device, DType::F32, &[columns, len], (-1.0, 1.0))?;
    let weight = Tensor::random(device, DType::F32, &[len], (0.5, 1.5))?;
    let (xs, ws, eps) = (x.view(), weight.view(), 1e-5);
    let (values, normed) = match kernel.name.as_str() {
        "rms_norm_quantize" => {
            let normed = norm::rms_norm_quantize(device, &xs, &ws, eps)?;
            (x.values.clone(), normed)
        }
        "add_rms_norm_quantize" => {
            let r = residual.view();
            let (sum, normed) = norm::add_rms_norm_quantize(device, &xs, &r, &ws, eps)?;
            let pairs = x.values.iter().zip(&residual.values);
            let values: Vec<f64> = pairs.map(|(x, r)| x + r).collect();
            if let Some(wrong) = compare(device, &sum, DType::F32, &values)? {
                return Ok(Some(wrong));
            }
            (values, normed)
        }
        _ => return unknown(kernel),
    };
    let want = normalized(&values, &weight.values, None);
    if let Some(wrong) = compare(device, &normed.floats, DType::F32, &want)? {
        return Ok(Some(wrong));
    }
    compare_quants(device, &normed.quantized, &want)
}

/// Each is within half a step of its block: a 127th of the largest magnitude.
fn compare_quants(device: &Device, x: &QuantizedActivations, want: &[f64]) -> Finding {
    let got = numbers_of(device, x)?;
    for (block, (got, want)) in got.chunks(BLOCK).zip(want.chunks(BLOCK)).enumerate() {
        let most = want.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let is_wrong =
            |(g, w): (&f64, &f64)| (g - w).abs().is_nan() || (g - w).abs() > most * 0.6 / 127.0;
        if let Some(i) = got.iter().zip(want).position(is_wrong) {
            let (g, w) = (got[i], want[i]);
            return Ok(Some(format!(
                "element {i} of block {block} is {g:e} instead of {w:e}"
            )));
        }
    }
    Ok(None)
}

/// Elements of a row: several of the largest blocks.
const INNER: usize = 768;
/// The same where rows are a multiple of 16 bytes in every format of 256 elements.
const INNER_ALIGNED: usize = 2048;

/// What sums in f32 of exact products may differ by.
fn summed() -> f64 {
    10.0 * tolerance(DType::F32)
}

/// Checks `columns` vectors times `rows` of a matrix with rows of `inner` elements.
fn check(
    device: &Device,
    format: Format,
    (columns, rows, inner): (usize, usize, usize),
    limit: f64,
    run: impl Fn(&Device, &QuantizedMatrix, &QuantizedActivations) -> Result<Buffer>,
) -> Finding {
    let weights = Matrices::new(device, format, rows * inner)?;
    let x = Tensor::random(device, DType::F32, &[columns, inner], (-1.0, 1.0))?;
    let x = QuantizedActivations::quantize(device, &x.view())?;
    let matrix = QuantizedMatrix::new(format, &weights.buffer, rows, inner);
    spoil_memory(device, columns * rows * size_of::<f32>())?;
    let out = run(device, &matrix, &x)?;
    let want = product(&numbers_of(device, &x)?, &weights.values, inner);
    let got = read(device, &out, DType::F32)?;
    Ok(difference(&got, &want, limit))
}

pub(super) fn matvec(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((head, columns)) = kernel.name.rsplit_once('_') else {
        return unknown(kernel);
    };
    let (Some(format), Ok(columns)) = (format_of(head, None), columns.parse()) else {
        return unknown(kernel);
    };
    check(
        device,
        format,
        (columns, 75, INNER),
        summed(),
        |device, w, x| product_in_one_pass(device, w, x, &Epilogue::default(), DType::F32),
    )
}

/// Several tiles of rows, and one that is not full.
pub(super) fn halves(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some(format) = format_of(&kernel.name, None) else {
        return unknown(kernel);
    };
    let columns = match ["_8_", "_16_", "_32_"].map(|most| kernel.name.contains(most)) {
        [true, ..] => 7,
        [_, true, _] => 11,
        _ => 19,
    };
    let run = |device: &Device, tiles, w: &QuantizedMatrix, x: &QuantizedActivations| {
        product_of_halves(
            device,
            tiles,
            (w, None),
            x,
            &Epilogue::default(),
            DType::F32,
        )
    };
    let shape = (columns, 75, INNER_ALIGNED);
    let limit = tolerance(DType::F16);
    match kernel.name.contains("_tall_") {
        true => check(device, format, shape, limit, |device, w, x| {
            run(device, Tiles::Tall, w, x)
        }),
        false => check(device, format, shape, limit, |device, w, x| {
            run(device, Tiles::Low, w, x)
        }),
    }
}

pub(super) fn matmul(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some(format) = format_of(&kernel.name, None) else {
        return unknown(kernel);
    };
    let few = ["matmul_few_16", "matmul_few_32"].map(|few| kernel.name.starts_with(few));
    let columns = match few {
        [true, _] => 11,
        [_, true] => 19,
        _ if kernel.name.starts_with("matmul_wide") => 71,
        _ => 19,
    };
    if few.contains(&true) {
        return check(
            device,
            format,
            (columns, 75, INNER),
            summed(),
            |device, w, x| product_of_few(device, w, x, &Epilogue::default(), DType::F32),
        );
    }
    check(
        device,
        format,
        (columns, 75, INNER),
        summed(),
        |device, w, x| product_by_tiles(device, w, x, &Epilogue::default(), DType::F32),
    )
}
