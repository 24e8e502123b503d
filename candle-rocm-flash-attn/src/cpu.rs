//! Attention and its gradients on the CPU: every score, in f32, one row at a time. The plain case of f32 is a loop of
//! `cpu-kernels`.

use crate::op::{FlashAttn, Sequences, Window};
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

/// A problem with its numbers in f32.
struct Problem<'a> {
    op: &'a FlashAttn,
    window: Window,
    slopes: Vec<f32>,
    sequences: Vec<Sequence>,
    heads: usize,
    kv_heads: usize,
    size: usize,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

/// What a row sees of a key.
struct Seen {
    /// Where key and value begin.
    start: usize,
    /// Of the softmax.
    weight: f32,
    /// Of dropout.
    factor: f32,
    /// The derivative of the score by the product of query and key.
    slope: f32,
}

impl<'a> Problem<'a> {
    fn new(op: &'a FlashAttn, q: Operand, k: Operand, v: Operand) -> Result<Self> {
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
        Ok(Problem {
            op,
            window: op.window(k.1),
            slopes,
            sequences: sequences(op, q.1, k.1)?,
            heads,
            kv_heads,
            size,
            q: values(q)?,
            k: values(k)?,
            v: values(v)?,
        })
    }

    /// Calls `f` with where each row of each head begins, and what it sees.
    fn each_row(&self, mut f: impl FnMut(usize, &[Seen])) {
        for (index, sequence) in self.sequences.iter().enumerate() {
            for row in 0..sequence.rows {
                for head in 0..self.heads {
                    let at = ((sequence.first_row + row) * self.heads + head) * self.size;
                    f(at, &self.seen(index, row, head, at));
                }
            }
        }
    }

    fn seen(&self, index: usize, row: usize, head: usize, at: usize) -> Vec<Seen> {
        let (sequence, op) = (&self.sequences[index], self.op);
        let position = (row + sequence.keys.len()) as i64 - sequence.rows as i64;
        let visible = |j: i64| {
            let both = |range: &[i64; 2]| {
                [position, j]
                    .iter()
                    .all(|x| (range[0]..range[1]).contains(x))
            };
            let Window { left, right } = self.window;
            left.is_none_or(|left| j >= position - left as i64)
                && right.is_none_or(|right| j <= position + right as i64)
                || sequence.prefix.iter().any(both)
        };
        let cap = op.softcap.unwrap_or(0.);
        let kv_head = head / (self.heads / self.kv_heads);
        let line = (index * self.heads + head) as u32;
        let mut seen = Vec::new();
        let keys = sequence.keys.iter().enumerate();
        for (j, key) in keys.filter(|(j, _)| visible(*j as i64)) {
            let start = (key * self.kv_heads + kv_head) * self.size;
            let pairs = self.q[at..at + self.size]
                .iter()
                .zip(&self.k[start..start + self.size]);
            let mut score = pairs.map(|(a, b)| a * b).sum::<f32>() * op.scale;
            let mut slope = op.scale;
            if cap != 0. {
                let bent = (score / cap).tanh();
                score = cap * bent;
                slope *= 1. - bent * bent;
            }
            score -= self.slopes[head] * (position - j as i64).abs() as f32;
            let factor = match &op.dropout {
                Some(dropout) if dropout.keeps(line, row as u32, j as u32) => dropout.scale(),
                Some(_) => 0.,
                None => 1.,
            };
            seen.push(Seen {
                start,
                weight: score,
                factor,
                slope,
            });
        }
        let max = seen
            .iter()
            .map(|s| s.weight)
            .fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = seen.iter().map(|s| (s.weight - max).exp()).sum();
        for one in &mut seen {
            one.weight = (one.weight - max).exp() / sum;
        }
        seen
    }
}

/// Numbers in the dtype of `like`.
fn narrowed(like: Operand, numbers: Vec<f32>) -> CpuStorage {
    match like.0 {
        CpuStorage::F16(_) => CpuStorage::F16(numbers.into_iter().map(f16::from_f32).collect()),
        CpuStorage::BF16(_) => CpuStorage::BF16(numbers.into_iter().map(bf16::from_f32).collect()),
        _ => CpuStorage::F32(numbers),
    }
}

/// Adds `factor` times `x` to `to`.
fn add(to: &mut [f32], factor: f32, x: &[f32]) {
    for (to, x) in to.iter_mut().zip(x) {
        *to += factor * x;
    }
}

/// Attention of sequences of one length whose rows see all keys, or those up to their own; `None` for any other, and
/// where the check of the operation has something to say.
fn plainly(op: &FlashAttn, q: Operand, k: Operand, v: Operand) -> Option<Vec<f32>> {
    op.check((dtype(q), q.1), (dtype(k), k.1), (dtype(v), v.1))
        .ok()?;
    let (&[batch, rows, heads, size], &[k_batch, keys, kv_heads, k_size]) =
        (q.1.dims(), k.1.dims())
    else {
        return None;
    };
    let has_more = op.slopes.is_some() || op.softcap.is_some() || op.dropout.is_some();
    let causal = match op.window(k.1) {
        Window {
            left: None,
            right: None,
        } => false,
        Window {
            left: None,
            right: Some(0),
        } => true,
        _ => return None,
    };
    let fits = (batch, size) == (k_batch, k_size) && kv_heads > 0 && heads.is_multiple_of(kv_heads);
    if has_more || !matches!(op.sequences, Sequences::Fixed) || !fits {
        return None;
    }
    let attention = cpu_kernels::attention::Attention {
        batch,
        rows,
        keys,
        heads,
        kv_heads,
        size,
        scale: op.scale,
        causal,
    };
    let (q, k, v) = (elements(q)?, elements(k)?, elements(v)?);
    let threads = candle::utils::barrier_pool();
    Some(cpu_kernels::attention::attention(
        threads, &attention, q, k, v,
    ))
}

/// The elements of a contiguous operand of f32.
fn elements<'a>((storage, layout): Operand<'a>) -> Option<&'a [f32]> {
    match storage {
        CpuStorage::F32(all) => {
            let (first, end) = layout.contiguous_offsets()?;
            all.get(first..end)
        }
        _ => None,
    }
}

/// Attention of all sequences.
pub(crate) fn attend(
    op: &FlashAttn,
    q: Operand,
    k: Operand,
    v: Operand,
) -> Result<(CpuStorage, Shape)> {
    if let Some(out) = plainly(op, q, k, v) {
        return Ok((CpuStorage::F32(out), q.1.shape().clone()));
    }
    let problem = Problem::new(op, q, k, v)?;
    let size = problem.size;
    let mut out = vec![0f32; problem.q.len()];
    problem.each_row(|at, seen| {
        for one in seen {
            let value = &problem.v[one.start..one.start + size];
            add(&mut out[at..at + size], one.weight * one.factor, value);
        }
    });
    Ok((narrowed(q, out), q.1.shape().clone()))
}

/// The gradients of [`attend`] with respect to queries, keys and values, given that of its result.
pub(crate) fn backward(
    op: &FlashAttn,
    q: Operand,
    k: Operand,
    v: Operand,
    grad: Operand,
) -> Result<[CpuStorage; 3]> {
    let problem = Problem::new(op, q, k, v)?;
    let (size, grads) = (problem.size, values(grad)?);
    let mut dq = vec![0f32; problem.q.len()];
    let (mut dk, mut dv) = (vec![0f32; problem.k.len()], vec![0f32; problem.v.len()]);
    problem.each_row(|at, seen| {
        let (row, grad) = (at..at + size, &grads[at..at + size]);
        let product = |x: &[f32]| grad.iter().zip(x).map(|(a, b)| a * b).sum::<f32>();
        let of_weights: Vec<f32> = seen
            .iter()
            .map(|one| one.factor * product(&problem.v[one.start..one.start + size]))
            .collect();
        let pairs = seen.iter().zip(&of_weights);
        let mean: f32 = pairs.clone().map(|(one, d)| one.weight * d).sum();
        for (one, d) in pairs {
            let key = one.start..one.start + size;
            let of_product = one.weight * (d - mean) * one.slope;
            add(&mut dv[key.clone()], one.weight * one.factor, grad);
            add(&mut dq[row.clone()], of_product, &problem.k[key.clone()]);
            add(&mut dk[key], of_product, &problem.q[row.clone()]);
        }
    });
    Ok([narrowed(q, dq), narrowed(k, dk), narrowed(v, dv)])
}
