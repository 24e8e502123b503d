//! Orthogonal changes of weights: OFT (Qiu et al. 2023) and BOFT (Liu et al. 2023), as LyCORIS has them.

use candle_core::{DType, Device, Result, Tensor};

/// Largest block of a rotation, which is inverted on the host.
const MOST_BLOCK: usize = 2048;

/// A weight as a matrix.
pub(super) fn rows(weight: &Tensor) -> Result<Tensor> {
    let outputs = weight.dim(0)?;
    weight.reshape((outputs, weight.elem_count() / outputs))
}

/// Blocks of a weight's rows, each multiplied by the transpose of its rotation.
pub(super) fn turned(blocks: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (count, size, _) = blocks.dims3()?;
    let flat = rows(weight)?;
    let (outputs, columns) = flat.dims2()?;
    if count * size != outputs {
        candle_core::bail!("OFT has {count} blocks of {size} for {outputs} outputs")
    }
    let flat = flat.reshape((count, size, columns))?;
    let turned = blocks.transpose(1, 2)?.contiguous()?.matmul(&flat)?;
    turned.reshape((outputs, columns))
}

/// All stages of a butterfly; each is as far from doing nothing as `strength` says.
pub(super) fn butterfly(blocks: &Tensor, weight: &Tensor, strength: f64) -> Result<Tensor> {
    let (stages, count, size, _) = blocks.dims4()?;
    let mut x = rows(weight)?;
    let (outputs, columns) = x.dims2()?;
    let span = |stage: usize| (size / 2).checked_shl(stage as u32).filter(|k| *k > 0);
    let last = stages.checked_sub(1).and_then(span);
    if count * size != outputs || !last.is_some_and(|k| outputs.is_multiple_of(2 * k)) {
        candle_core::bail!("BOFT has {stages} x {count} blocks of {size} for {outputs} outputs")
    }
    let unit = Tensor::eye(size, DType::F32, weight.device())?;
    for stage in 0..stages {
        let k = (size / 2) << stage;
        let groups = outputs / 2 / k;
        let turn = blocks.get(stage)?;
        let turn = (turn * strength)?.broadcast_add(&(&unit * (1.0 - strength))?)?;
        // What lies `k` apart comes together.
        x = x
            .reshape((groups, 2, k, columns))?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((count, size, columns))?;
        x = turn.matmul(&x)?;
        x = x
            .reshape((groups, k, 2, columns))?
            .transpose(1, 2)?
            .contiguous()?
            .reshape((outputs, columns))?;
    }
    Ok(x)
}

/// Rows multiplied by a factor each.
pub(super) fn rescaled(x: Tensor, factors: Option<&Tensor>) -> Result<Tensor> {
    let Some(factors) = factors else {
        return Ok(x);
    };
    let outputs = x.dim(0)?;
    x.broadcast_mul(&factors.to_device(x.device())?.reshape((outputs, 1))?)
}

/// The rotations of OFT's blocks, `(…, size, size)`, by Cayley's transform of their skew parts; those are scaled back to
/// the norm `most`, if they exceed it.
///
/// # Errors
/// If blocks are not square or too large, or have no rotation.
pub fn rotations(blocks: &Tensor, most: Option<f64>) -> Result<Tensor> {
    let dims = blocks.dims().to_vec();
    let [.., rows, size] = dims[..] else {
        candle_core::bail!("blocks of shape {dims:?} are not square")
    };
    if rows != size || size == 0 || size > MOST_BLOCK {
        candle_core::bail!("blocks of shape {dims:?}; they must be square, up to {MOST_BLOCK}")
    }
    let values = blocks
        .to_device(&Device::Cpu)?
        .to_dtype(DType::F64)?
        .flatten_all()?
        .to_vec1::<f64>()?;
    let mut skew = vec![0.0; values.len()];
    for (block, out) in values
        .chunks_exact(size * size)
        .zip(skew.chunks_exact_mut(size * size))
    {
        for i in 0..size {
            for j in 0..size {
                out[i * size + j] = block[i * size + j] - block[j * size + i];
            }
        }
    }
    let norm = skew.iter().map(|q| q * q).sum::<f64>().sqrt();
    let factor = match most {
        Some(most) if norm > most => most / norm,
        _ => 1.0,
    };
    skew.iter_mut().for_each(|q| *q *= factor);
    let mut all = Vec::with_capacity(values.len());
    for block in skew.chunks_exact(size * size) {
        all.extend(cayley(block, size)?);
    }
    Tensor::from_vec(all, dims, &Device::Cpu)?
        .to_dtype(DType::F32)?
        .to_device(blocks.device())
}

/// `(1 + q) / (1 - q)` of a square matrix: the solution of `r (1 - q) = 1 + q`.
fn cayley(q: &[f64], size: usize) -> Result<Vec<f64>> {
    // Transposed, both sides: (1 - q)' r' = (1 + q)', by Gauss and Jordan.
    let unit = |i: usize, j: usize| f64::from(u8::from(i == j));
    let mut left: Vec<f64> = (0..size * size)
        .map(|at| unit(at / size, at % size) - q[at % size * size + at / size])
        .collect();
    let mut right: Vec<f64> = (0..size * size)
        .map(|at| unit(at / size, at % size) + q[at % size * size + at / size])
        .collect();
    for column in 0..size {
        let best = (column..size).max_by(|a, b| {
            let size_of = |row: &usize| left[row * size + column].abs();
            size_of(a).total_cmp(&size_of(b))
        });
        let pivot = best.unwrap_or(column);
        let value = left[pivot * size + column];
        if !value.is_finite() || value == 0.0 {
            candle_core::bail!("a block has no rotation")
        }
        for at in 0..size {
            left.swap(column * size + at, pivot * size + at);
            right.swap(column * size + at, pivot * size + at);
        }
        for at in 0..size {
            left[column * size + at] /= value;
            right[column * size + at] /= value;
        }
        for row in (0..size).filter(|row| *row != column) {
            let factor = left[row * size + column];
            if factor == 0.0 {
                continue;
            }
            for at in 0..size {
                left[row * size + at] -= factor * left[column * size + at];
                right[row * size + at] -= factor * right[column * size + at];
            }
        }
    }
    Ok((0..size * size)
        .map(|at| right[at % size * size + at / size])
        .collect())
}
