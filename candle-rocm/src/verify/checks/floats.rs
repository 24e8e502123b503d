//! Products with matrices of 8-bit floats.

use super::quantized::{product, Matrices};
use super::{split_dtype, unknown};
use crate::ops::moe::indexed_moe;
use crate::ops::quantized::{
    few_floats, matmul_floats, matvec_floats, Epilogue, Format, QuantizedMatrix,
};
use crate::verify::admit::Finding;
use crate::verify::bench::{compare, spoil_memory, Numbers, Tensor};
use crate::{Buffer, DType, DeclaredKernel, Device, Result, View};

const FORMAT: Format = Format::F8E4M3;

/// One of the operations.
type Product = fn(&Device, &QuantizedMatrix, &View, &Epilogue) -> Result<Buffer>;

/// Several tiles of rows, and one that is not full; an odd number of blocks in a row.
const ROWS: usize = 139;
const INNER: usize = 11 * 64;

/// `matvec_<format>_<dtype>_<columns>`, `matmul_few_<columns>_<format>_<dtype>` and `matmul_<tiling>_<format>_<dtype>`.
pub(super) fn products(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let name = kernel.name.as_str();
    let (head, last) = name.rsplit_once('_').unwrap_or((name, ""));
    let one_pass = last.parse().ok();
    let Some((_, dtype)) = split_dtype(if one_pass.is_some() { head } else { name }) else {
        return unknown(kernel);
    };
    let (columns, run): (usize, Product) = match one_pass {
        Some(columns) => (columns, matvec_floats),
        None if name.starts_with("matmul_few_16") => (11, few_floats),
        None if name.starts_with("matmul_few_32") => (19, few_floats),
        None if name.starts_with("matmul_narrow") => (19, matmul_floats),
        None => (71, matmul_floats),
    };
    let weights = Matrices::new(device, FORMAT, ROWS * INNER)?;
    let x = Tensor::random(device, dtype, &[columns, INNER], (-1.0, 1.0))?;
    let matrix = QuantizedMatrix::new(FORMAT, &weights.buffer, ROWS, INNER);
    spoil_memory(device, columns * ROWS * dtype.size_in_bytes())?;
    let out = run(device, &matrix, &x.view(), &Epilogue::default())?;
    let want = product(&x.values, &weights.values, INNER);
    compare(device, &out, dtype, &want)
}

/// Slots of experts one by one: `moe_matvec_<format>_<dtype>`.
pub(super) fn experts(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some((_, dtype)) = split_dtype(&kernel.name) else {
        return unknown(kernel);
    };
    let (experts, top, tokens, n, k) = (5, 2, 11, 37, 3 * 64);
    let weights = Matrices::new(device, FORMAT, experts * n * k)?;
    let x = Tensor::random(device, dtype, &[tokens, 1, k], (-1.0, 1.0))?;
    let mut numbers = Numbers::new(7);
    let ids: Vec<f64> = (0..tokens * top)
        .map(|_| numbers.below(experts) as f64)
        .collect();
    let ids = Tensor::new(device, DType::U32, &[tokens, top], &ids)?;
    spoil_memory(device, tokens * top * n * size_of::<f32>())?;
    let sizes = (experts, n, k);
    let out = indexed_moe(
        device,
        FORMAT,
        &weights.buffer,
        sizes,
        &x.view(),
        &ids.view(),
    )?;
    let mut want = Vec::new();
    for (slot, expert) in ids.values.iter().enumerate() {
        let matrix = &weights.values[*expert as usize * n * k..][..n * k];
        want.extend(product(&x.values[slot / top * k..][..k], matrix, k));
    }
    compare(device, &out, DType::F32, &want)
}
