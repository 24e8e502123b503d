//! Orthogonal changes of weights: OFT (Qiu et al. 2023) and BOFT (Liu et al. 2023), of outputs as LyCORIS has them and of
//! inputs as PEFT has them.

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

/// The weight's columns, block by block, each stage of `(stages, blocks, size, size)` after the other; the columns of a
/// block lie twice as far apart with each. One block is that of all.
pub(super) fn inputs_turned(stages: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (depth, blocks, size, _) = stages.dims4()?;
    let mut x = rows(weight)?;
    let (outputs, inputs) = x.dims2()?;
    let count = inputs / size.max(1);
    let group = |stage: usize| size.checked_shl(stage as u32).filter(|group| *group > 0);
    let last = depth.checked_sub(1).and_then(group);
    let fits = size > 0 && count * size == inputs && (blocks == count || blocks == 1);
    if !fits || !last.is_some_and(|group| group <= inputs && inputs.is_multiple_of(group)) {
        candle_core::bail!("{depth} x {blocks} blocks of {size} for {inputs} inputs")
    }
    if depth > 1 && !size.is_multiple_of(2) {
        candle_core::bail!("blocks of {size} cannot be halved")
    }
    for stage in 0..depth {
        let turn = stages.get(stage)?.transpose(1, 2)?.contiguous()?;
        let turn = turn.broadcast_as((count, size, size))?.contiguous()?;
        // Halves of blocks that stand at even and at odd places of a group come together.
        let (half, halves) = (size / 2, 2usize << stage);
        let order: Vec<u32> = (0..inputs)
            .map(|i| match stage {
                0 => i as u32,
                _ => {
                    let (first, inner) = (i / (half * halves) * halves, i / half % halves);
                    let place = match inner < halves / 2 {
                        true => 2 * inner,
                        false => 2 * (inner - halves / 2) + 1,
                    };
                    ((first + place) * half + i % half) as u32
                }
            })
            .collect();
        let mut back = vec![0u32; inputs];
        for (i, from) in order.iter().enumerate() {
            back[*from as usize] = i as u32;
        }
        let device = weight.device();
        x = x.index_select(&Tensor::new(back, device)?, 1)?;
        x = x.reshape((outputs, count, size))?.transpose(0, 1)?;
        x = x.contiguous()?.matmul(&turn)?.transpose(0, 1)?;
        x = x.contiguous()?.reshape((outputs, inputs))?;
        x = x.index_select(&Tensor::new(order, device)?, 1)?;
    }
    Ok(x)
}

/// How PEFT's OFT makes rotations of skew matrices.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Turns {
    /// By a series of so many terms in place of Cayley's transform.
    pub series: Option<usize>,
    /// The most that all blocks together may turn (COFT).
    pub most: Option<f64>,
}

impl Turns {
    /// The rotations of blocks of which a file has what is above the diagonal, `(blocks, size (size - 1) / 2)`:
    /// `(1, blocks, size, size)`.
    ///
    /// # Errors
    /// If there is no such size, or it is too large.
    pub fn rotations(&self, above: &Tensor) -> Result<Tensor> {
        let (blocks, numbers) = above.dims2()?;
        let size = (2..=MOST_BLOCK).find(|size| size * (size - 1) / 2 == numbers);
        let Some(size) = size else {
            candle_core::bail!("{numbers} numbers are not above a diagonal")
        };
        let device = above.device();
        let above: Vec<Vec<f32>> = above.to_dtype(DType::F32)?.to_vec2()?;
        let mut values = vec![0f32; blocks * size * size];
        for (block, numbers) in values.chunks_exact_mut(size * size).zip(&above) {
            let norm = numbers
                .iter()
                .map(|q| 2.0 * f64::from(*q).powi(2))
                .sum::<f64>();
            let most = self.most.map(|most| most / (blocks as f64).sqrt());
            let factor = match most {
                Some(most) if norm.sqrt() > most => (most / norm.sqrt()) as f32,
                _ => 1.0,
            };
            let places = (0..size).flat_map(|i| (i + 1..size).map(move |j| (i, j)));
            for ((i, j), number) in places.zip(numbers) {
                block[i * size + j] = number * factor;
            }
        }
        let half = Tensor::from_vec(values, (1, blocks, size, size), device)?;
        let Some(terms) = self.series else {
            // PEFT's transform has the other sign.
            return rotations(&half.neg()?, None);
        };
        let q = (&half - half.transpose(2, 3)?)?.squeeze(0)?.contiguous()?;
        let unit = Tensor::eye(size, DType::F32, device)?;
        let mut sum = unit.broadcast_as(q.shape())?.contiguous()?;
        if terms > 1 {
            sum = (sum + (&q * 2.0)?)?;
        }
        if terms > 2 {
            let mut power = q.matmul(&q)?;
            sum = (sum + (&power * 2.0)?)?;
            for _ in 3..terms - 1 {
                power = power.matmul(&q)?;
                sum = (sum + (&power * 2.0)?)?;
            }
            sum = (sum + power.matmul(&q)?)?;
        }
        sum.unsqueeze(0)
    }
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
