//! Products of 8-bit floats, and activations as such.

use super::quantized::{product, Matrices};
use super::rows::normalized;
use super::{split_dtype, unknown};
use crate::ops::norm::{add_rms_norm_quantize, rms_norm_quantize};
use crate::ops::quantized::float8::in_tiles as product_in_tiles;
use crate::ops::quantized::{Epilogue, FloatActivations, Format, QuantizedMatrix, Scaling};
use crate::ops::scaled::{in_tiles as scaled_in_tiles, Scales, Tile, BLOCK as SCALED_BLOCK};
use crate::verify::admit::Finding;
use crate::verify::bench::{bytes_of, compare, difference, read, spoil_memory, tolerance, Tensor};
use crate::{DType, DeclaredKernel, Device, Family, Result};

/// Activations as numbers, `[columns, len]`.
fn numbers_of(device: &Device, x: &FloatActivations) -> Result<Vec<f64>> {
    let values = x.values(&bytes_of(device, x.buffer())?);
    Ok(values.into_iter().map(f64::from).collect())
}

pub(super) fn activations(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let (columns, len) = (9, 320);
    let dims = [columns, len];
    if let Some((head, dtype)) = split_dtype(&kernel.name) {
        let scaling = match head {
            "quantize_mx" => Scaling::Mx,
            _ => Scaling::Steps,
        };
        let x = Tensor::random(device, dtype, &dims, (-3.0, 2.0))?;
        spoil_memory(device, columns * 2 * len)?;
        let floats = FloatActivations::quantize(device, &x.view(), scaling)?;
        return compare_floats(device, &floats, &x.values);
    }
    let x = Tensor::random(device, DType::F32, &dims, (-3.0, 2.0))?;
    let residual = Tensor::random(device, DType::F32, &dims, (-1.0, 1.0))?;
    let weight = Tensor::random(device, DType::F32, &[len], (0.5, 1.5))?;
    let (xs, ws, eps) = (x.view(), weight.view(), 1e-5);
    let (values, normed) = match kernel.name.as_str() {
        "rms_norm_float8" => {
            let normed = rms_norm_quantize(device, &xs, &ws, eps)?;
            (x.values.clone(), normed)
        }
        "add_rms_norm_float8" => {
            let r = residual.view();
            let (sum, normed) = add_rms_norm_quantize(device, &xs, &r, &ws, eps)?;
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
    compare_floats(device, &normed.quantized, &want)
}

/// Each is within half a step of itself, or of the smallest that its scale leaves.
fn compare_floats(device: &Device, x: &FloatActivations, want: &[f64]) -> Finding {
    let got = numbers_of(device, x)?;
    let size = x.scaling().block();
    for (block, (got, want)) in got.chunks(size).zip(want.chunks(size)).enumerate() {
        let most = want.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let is_wrong = |(g, w): (&f64, &f64)| {
            let limit = w.abs() / 16.0 * 1.05 + most / 448.0 / 400.0;
            (g - w).abs().is_nan() || (g - w).abs() > limit
        };
        if let Some(i) = got.iter().zip(want).position(is_wrong) {
            let (g, w) = (got[i], want[i]);
            return Ok(Some(format!(
                "element {i} of block {block} is {g:e} instead of {w:e}"
            )));
        }
    }
    Ok(None)
}

/// What sums in f32 of exact products may differ by; instructions may keep fewer bits of them.
fn summed() -> f64 {
    tolerance(DType::F16)
}

/// `matmul_float8_<edge>` and `matmul_mx_<edge>`: some tiles in both directions, the last ones not full.
pub(super) fn matmul(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let edge = kernel.name.rsplit('_').next();
    let Some(edge) = edge.and_then(|edge| edge.parse().ok()) else {
        return unknown(kernel);
    };
    let (format, scaling) = match kernel.family {
        Family::MatmulMx => (Format::MXFP4, Scaling::Mx),
        _ => (Format::F8E4M3, Scaling::Steps),
    };
    let (columns, rows, inner) = (139, 75, 320);
    let weights = Matrices::new(device, format, rows * inner)?;
    let x = Tensor::random(device, DType::F32, &[columns, inner], (-1.0, 1.5))?;
    let x = FloatActivations::quantize(device, &x.view(), scaling)?;
    let matrix = QuantizedMatrix::new(format, &weights.buffer, rows, inner);
    spoil_memory(device, columns * rows * size_of::<f32>())?;
    let epilogue = Epilogue::default();
    let out = product_in_tiles(device, edge, &matrix, &x, &epilogue, DType::F32)?;
    let want = product(&numbers_of(device, &x)?, &weights.values, inner);
    let got = read(device, &out, DType::F32)?;
    Ok(difference(&got, &want, summed()))
}

/// `scaled_matrix_<edge>` and `scaled_vector`.
pub(super) fn scaled(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let tile = match kernel.name.as_str() {
        "scaled_vector" => Tile::Vector,
        name => match name.rsplit('_').next().and_then(|edge| edge.parse().ok()) {
            Some(edge) => Tile::Matrix(edge),
            None => return unknown(kernel),
        },
    };
    let [m, n, k] = [139usize, 171, 331];
    let blocks = k.div_ceil(SCALED_BLOCK);
    let range = (-3.0, 4.0);
    let a = Tensor::random(device, DType::F8E4M3, &[m, k], range)?;
    let b = Tensor::random(device, DType::F8E4M3, &[n, k], (-1.0, 2.0))?;
    let scale_a = Tensor::random(device, DType::F32, &[m, blocks], (0.5, 2.0))?;
    let b_blocks = [n.div_ceil(SCALED_BLOCK), blocks];
    let scale_b = Tensor::random(device, DType::F32, &b_blocks, (0.5, 2.0))?;
    let scaled = |values: &[f64], scales: &[f64], rows: usize| -> Vec<f64> {
        let scale = |i: usize| scales[i / k / rows * blocks + i % k / SCALED_BLOCK];
        let values = values.iter().enumerate();
        values.map(|(i, value)| value * scale(i)).collect()
    };
    let want = product(
        &scaled(&a.values, &scale_a.values, 1),
        &scaled(&b.values, &scale_b.values, SCALED_BLOCK),
        k,
    );
    spoil_memory(device, m * n * size_of::<f32>())?;
    let scales = (
        &Scales::Blocks(scale_a.view()),
        &Scales::Blocks(scale_b.view()),
    );
    let out = scaled_in_tiles(device, tile, (&a.view(), &b.view()), scales, DType::F32)?;
    Ok(difference(
        &read(device, &out, DType::F32)?,
        &want,
        summed(),
    ))
}
