//! Attention on the CPU: every score, in f32, one row at a time.

use crate::op::{FlashAttn, Sequences};
use candle::{CpuStorage, DType, Layout, Result, Shape, Tensor};
use half::{bf16, f16};

type Operand<'a> = (&'a CpuStorage, &'a Layout);

/// Elements in row-major order.
fn values((storage, layout): Operand) -> Result<Vec<f32>> {
    let mut at = vec![layout.start_offset()];
    for (&dim, &stride) in layout.dims().iter().zip(layout.stride()) {
        at = at
            .iter()
            .flat_map(|start| (0..dim).map(move |i| start + i * stride))
            .collect();
    }
    let at = at.into_iter();
    Ok(match storage {
        CpuStorage::F16(x) => at.map(|i| x[i].to_f32()).collect(),
        CpuStorage::BF16(x) => at.map(|i| x[i].to_f32()).collect(),
        CpuStorage::F32(x) => at.map(|i| x[i]).collect(),
        _ => candle::bail!("flash-attn is for f16, bf16 and f32"),
    })
}

fn dtype((storage, _): Operand) -> DType {
    use candle::backend::BackendStorage;
    storage.dtype()
}

/// Whole numbers of a tensor in row-major order.
fn numbers(tensor: &Tensor) -> Result<Vec<usize>> {
    let numbers = tensor
        .flatten_all()?
        .to_dtype(DType::I64)?
        .to_vec1::<i64>()?;
    let numbers = numbers.into_iter().map(usize::try_from);
    numbers
        .collect::<std::result::Result<_, _>>()
        .map_err(candle::Error::wrap)
}

/// Where the rows and keys of a sequence lie in the flattened operands.
struct Sequence {
    first_row: usize,
    rows: usize,
    /// The place of each key.
    keys: Vec<usize>,
    /// Ranges of positions that see each other.
    prefix: Vec<[i64; 2]>,
}

fn sequences(op: &FlashAttn, q: &Layout, k: &Layout) -> Result<Vec<Sequence>> {
    let Sequences::Packed {
        seqlens_q,
        seqlens_k,
        paged,
        ..
    } = &op.sequences
    else {
        let (batch, rows, _, _) = q.shape().dims4()?;
        let (k_batch, keys, _, _) = k.shape().dims4()?;
        if batch != k_batch {
            candle::bail!(
                "flash-attn: q {:?} and k {:?} do not fit together",
                q.shape(),
                k.shape()
            )
        }
        let one = |b| Sequence {
            first_row: b * rows,
            rows,
            keys: (b * keys..(b + 1) * keys).collect(),
            prefix: Vec::new(),
        };
        return Ok((0..batch).map(one).collect());
    };
    let (total, _, _) = q.shape().dims3()?;
    let (starts, key_starts) = (numbers(seqlens_q)?, numbers(seqlens_k)?);
    let batch = starts.len().saturating_sub(1);
    let sorted = |starts: &[usize]| starts.is_sorted();
    if batch == 0 || starts.len() != key_starts.len() || !sorted(&starts) || !sorted(&key_starts) {
        candle::bail!("flash-attn: {starts:?} and {key_starts:?} are not running sums of lengths")
    }
    let table = match paged {
        Some(paged) => Some((numbers(&paged.table)?, paged.table.dims2()?.1, k.dims()[1])),
        None => None,
    };
    let ranges = match paged.as_ref().and_then(|paged| paged.seen_ranges.as_ref()) {
        Some(ranges) => ranges.to_dtype(DType::I64)?.to_vec3::<i64>()?,
        None => vec![Vec::new(); batch],
    };
    let entries = match &table {
        Some(_) => k.dims()[0] * k.dims()[1],
        None => k.dims()[0],
    };
    let mut sequences = Vec::with_capacity(batch);
    for (b, ranges) in ranges.iter().enumerate().take(batch) {
        let range = key_starts[b]..key_starts[b + 1];
        let keys: Option<Vec<usize>> = match &table {
            None => Some(range.collect()),
            Some((table, width, size)) => (0..range.len())
                .map(|j| Some(table.get(b * width + j / size)? * size + j % size))
                .collect(),
        };
        let keys = keys.filter(|keys| keys.iter().all(|key| *key < entries));
        let (Some(keys), true) = (keys, starts[b + 1] <= total) else {
            candle::bail!(
                "flash-attn: sequence {b} leaves q {:?} or k {:?}",
                q.shape(),
                k.shape()
            )
        };
        sequences.push(Sequence {
            first_row: starts[b],
            rows: starts[b + 1] - starts[b],
            keys,
            prefix: ranges.iter().map(|range| [range[0], range[1]]).collect(),
        });
    }
    Ok(sequences)
}

/// Attention of all sequences.
pub(crate) fn attend(
    op: &FlashAttn,
    q: Operand,
    k: Operand,
    v: Operand,
) -> Result<(CpuStorage, Shape)> {
    op.check((dtype(q), q.1), (dtype(k), k.1), (dtype(v), v.1))?;
    let last_two = |layout: &Layout| -> Result<(usize, usize)> {
        Ok((
            layout.dim(candle::D::Minus2)?,
            layout.dim(candle::D::Minus1)?,
        ))
    };
    let ((heads, size), (kv_heads, k_size)) = (last_two(q.1)?, last_two(k.1)?);
    if size != k_size || kv_heads == 0 || heads % kv_heads != 0 {
        candle::bail!(
            "flash-attn: q {:?} and k {:?} do not fit together",
            q.1.shape(),
            k.1.shape()
        )
    }
    let slopes = match &op.slopes {
        Some(slopes) => slopes.to_vec1::<f32>()?,
        None => vec![0.; heads],
    };
    if slopes.len() != heads {
        candle::bail!(
            "flash-attn: {} ALiBi slopes for {heads} heads",
            slopes.len()
        )
    }
    let window = op.window(k.1);
    let cap = op.softcap.unwrap_or(0.);
    let (queries, keys, vals) = (values(q)?, values(k)?, values(v)?);
    let mut out = vec![0f32; queries.len()];
    for sequence in sequences(op, q.1, k.1)? {
        for row in 0..sequence.rows {
            let position = (row + sequence.keys.len()) as i64 - sequence.rows as i64;
            let visible = |j: i64| {
                let both = |range: &[i64; 2]| {
                    [position, j]
                        .iter()
                        .all(|x| (range[0]..range[1]).contains(x))
                };
                window.left.is_none_or(|left| j >= position - left as i64)
                    && window
                        .right
                        .is_none_or(|right| j <= position + right as i64)
                    || sequence.prefix.iter().any(both)
            };
            for (head, slope) in slopes.iter().enumerate() {
                let at = ((sequence.first_row + row) * heads + head) * size;
                let kv_head = head / (heads / kv_heads);
                let mut scores = Vec::new();
                for (j, key) in sequence
                    .keys
                    .iter()
                    .enumerate()
                    .filter(|(j, _)| visible(*j as i64))
                {
                    let start = (key * kv_heads + kv_head) * size;
                    let pairs = queries[at..at + size]
                        .iter()
                        .zip(&keys[start..start + size]);
                    let mut score = pairs.map(|(a, b)| a * b).sum::<f32>() * op.scale;
                    if cap != 0. {
                        score = cap * (score / cap).tanh();
                    }
                    score -= slope * (position - j as i64).abs() as f32;
                    scores.push((start, score));
                }
                let max = scores.iter().map(|s| s.1).fold(f32::NEG_INFINITY, f32::max);
                let sum: f32 = scores.iter().map(|s| (s.1 - max).exp()).sum();
                for (start, score) in scores {
                    let weight = (score - max).exp() / sum;
                    for (to, value) in out[at..at + size]
                        .iter_mut()
                        .zip(&vals[start..start + size])
                    {
                        *to += weight * value;
                    }
                }
            }
        }
    }
    let storage = match q.0 {
        CpuStorage::F16(_) => CpuStorage::F16(out.into_iter().map(f16::from_f32).collect()),
        CpuStorage::BF16(_) => CpuStorage::BF16(out.into_iter().map(bf16::from_f32).collect()),
        _ => CpuStorage::F32(out),
    };
    Ok((storage, q.1.shape().clone()))
}
