//! Attention as it is written: product, softmax, product, over as many rows at once as memory allows.

use super::problem::{Problem, ProblemArguments};
use super::{Attempt, Attention};
use crate::blas::{matmul_into, Output};
use crate::kernels::{kernels, Ptr};
use crate::ops::cast::cast;
use crate::ops::operand::Operand;
use crate::{contiguous_strides, Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::attention::Part;

/// Threads of a row.
const THREADS: u32 = 256;

kernels! {
    /// Scores, masks and softmax of a matrix of products, in place.
    weigh_scores = "attention_scores_{dtype}" [dtype: DType = [DType::F32, DType::F64]] in Family::AttentionScores
        => (problem: ProblemArguments, matrix: Ptr, part: Part);

    /// Keys, or values, of one sequence out of the cache.
    gather_cached = "kv_cache_gather" in Family::KvCache
        => (problem: ProblemArguments, to: Ptr, index: u32, values: u32);
}

/// One sequence's place in the batch.
struct Sequence {
    rows: usize,
    keys: usize,
    first_row: usize,
    first_key: usize,
}

/// A dense matrix `[rows of all or keys of all, heads, size]` in the type that is computed in.
struct Wide {
    buffer: Buffer,
    heads: usize,
    size: usize,
}

impl Wide {
    fn of(device: &Device, operand: &Operand, dtype: DType) -> Result<Self> {
        let view = operand.view();
        let [heads, size] = *view
            .dims
            .last_chunk::<2>()
            .expect("checked to have three dimensions");
        Ok(Wide {
            buffer: cast(device, &view, dtype)?,
            heads,
            size,
        })
    }

    /// Elements before a row or key.
    fn offset(&self, line: usize, head: usize) -> usize {
        (line * self.heads + head) * self.size
    }
}

/// Computes, with at most `score_bytes` for scores, or one row's of one group of heads.
pub(super) fn run(
    device: &Device,
    attention: &Attention,
    problem: &Problem,
    score_bytes: usize,
) -> Result<Attempt> {
    let shape = &problem.shape;
    let paged = shape.block_size != 0;
    if paged && [shape.width, shape.v_width].iter().any(|w| w % 8 != 0) {
        return Ok(Attempt::Refused(
            "head sizes of a cache must be multiples of 8".into(),
        ));
    }
    if !paged && problem.kv_dtype == DType::U8 {
        return Ok(Attempt::Refused("8-bit keys must be in a cache".into()));
    }
    let wide = match problem.dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    };
    let q = Wide::of(device, &problem.q, wide)?;
    let dense = match paged {
        true => None,
        false => Some((
            Wide::of(device, &problem.k, wide)?,
            Wide::of(device, &problem.v, wide)?,
        )),
    };
    let result = &problem.result().out;
    let mut out = None;
    if problem.dtype != wide {
        let elements = result.len() / problem.dtype.size_in_bytes();
        out = Some(device.alloc_zeroed(elements * wide.size_in_bytes())?);
    } else {
        // Rows of sequences without keys are not touched below.
        let zeros = device.alloc_zeroed(result.len())?;
        device.copy(&zeros, 0, result, 0, result.len())?;
    }
    for (index, sequence) in sequences(device, problem)?.iter().enumerate() {
        if sequence.rows == 0 {
            continue;
        }
        let gathered;
        let (k, v, first_key) = match &dense {
            Some((k, v)) => (k, v, sequence.first_key),
            None => {
                gathered = gather(device, problem, index, sequence.keys)?;
                (&gathered.0, &gathered.1, 0)
            }
        };
        for kv_head in 0..shape.kv_heads as usize {
            let group = Group {
                device,
                problem,
                index,
                sequence,
                kv_head,
                wide,
            };
            group.run(
                &q,
                k,
                v,
                first_key,
                out.as_ref().unwrap_or(result),
                score_bytes,
            )?;
        }
    }
    if let Some(out) = out {
        let dims = [out.len() / wide.size_in_bytes()];
        let narrowed = cast(
            device,
            &View::contiguous(&out, wide, &dims, &[1]),
            attention.q.dtype,
        )?;
        device.copy(&narrowed, 0, result, 0, result.len())?;
    }
    Ok(Attempt::Done)
}

/// The heads of one sequence that share a head of keys.
struct Group<'a> {
    device: &'a Device,
    problem: &'a Problem<'a>,
    index: usize,
    sequence: &'a Sequence,
    kv_head: usize,
    wide: DType,
}

impl Group<'_> {
    fn run(
        &self,
        q: &Wide,
        k: &Wide,
        v: &Wide,
        first_key: usize,
        out: &Buffer,
        score_bytes: usize,
    ) -> Result<()> {
        let shape = &self.problem.shape;
        let (group, keys) = (shape.group as usize, self.sequence.keys);
        let row_bytes = (group * keys).saturating_mul(self.wide.size_in_bytes());
        let chunk = (score_bytes / row_bytes.max(1)).clamp(1, self.sequence.rows);
        let scores = self.device.alloc(chunk * row_bytes)?;
        let head = self.kv_head * group;
        let mut first_row = 0;
        while first_row < self.sequence.rows {
            let rows = chunk.min(self.sequence.rows - first_row);
            let line = self.sequence.first_row + first_row;
            if keys > 0 && q.size > 0 {
                let q_dims = [group, rows, q.size];
                let q_strides = [q.size, q.heads * q.size, 1];
                let k_dims = [group, q.size, keys];
                let k_strides = [0, 1, k.heads * k.size];
                let output = Output {
                    buffer: &scores,
                    dtype: self.wide,
                    offset: 0,
                    row_stride: keys,
                    batch_stride: rows * keys,
                };
                matmul_into(
                    self.device,
                    (group, rows, keys, q.size),
                    &self.view(&q.buffer, q.offset(line, head), &q_dims, &q_strides),
                    &self.view(
                        &k.buffer,
                        k.offset(first_key, self.kv_head),
                        &k_dims,
                        &k_strides,
                    ),
                    &output,
                )?;
            }
            self.weigh(&scores, first_row, rows)?;
            if keys > 0 && v.size > 0 {
                let p_dims = [group, rows, keys];
                let v_dims = [group, keys, v.size];
                let v_strides = [0, v.heads * v.size, 1];
                let (o_row, o_head) = (shape.o_row as usize, shape.o_head as usize);
                let start = match self.problem.cu_rows {
                    None => self.index * shape.o_batch as usize,
                    Some(_) => self.sequence.first_row * o_row,
                };
                let output = Output {
                    buffer: out,
                    dtype: self.wide,
                    offset: start + first_row * o_row + head * o_head,
                    row_stride: o_row,
                    batch_stride: o_head,
                };
                matmul_into(
                    self.device,
                    (group, rows, v.size, keys),
                    &self.view(&scores, 0, &p_dims, &contiguous_strides(&p_dims)),
                    &self.view(
                        &v.buffer,
                        v.offset(first_key, self.kv_head),
                        &v_dims,
                        &v_strides,
                    ),
                    &output,
                )?;
            }
            first_row += rows;
        }
        Ok(())
    }

    fn view<'v>(
        &self,
        buffer: &'v Buffer,
        offset: usize,
        dims: &'v [usize],
        strides: &'v [usize],
    ) -> View<'v> {
        View {
            buffer,
            dtype: self.wide,
            offset,
            dims,
            strides,
        }
    }

    /// Scores, masks and softmax in place.
    fn weigh(&self, scores: &Buffer, first_row: usize, rows: usize) -> Result<()> {
        let part = Part {
            sequence: self.index as u32,
            kv_head: self.kv_head as u32,
            first_row: first_row as u32,
            rows: rows as u32,
        };
        let config = LaunchConfig {
            grid: self.problem.shape.group * part.rows,
            block: THREADS,
            shared_bytes: 0,
        };
        let (problem, scores) = (self.problem.arguments(), Ptr::to(scores));
        let kernel = weigh_scores::of(self.wide)?;
        // SAFETY: the matrix has the scores of the part.
        unsafe { kernel.launch(self.device, config, problem, scores, part) }
    }
}

/// Keys and values of one sequence out of the cache.
fn gather(device: &Device, problem: &Problem, index: usize, keys: usize) -> Result<(Wide, Wide)> {
    let shape = &problem.shape;
    let heads = shape.kv_heads as usize;
    let kernel = gather_cached::of()?;
    let one = |size: u32, values: bool| -> Result<Wide> {
        let size = size as usize;
        let buffer = device.alloc(keys * heads * size * DType::F32.size_in_bytes())?;
        let config = LaunchConfig::for_elements(keys * heads * size / 8);
        let (to, index) = (Ptr::to(&buffer), index as u32);
        // SAFETY: there is room for all keys of the sequence.
        unsafe {
            kernel.launch(
                device,
                config,
                problem.arguments(),
                to,
                index,
                values.into(),
            )?
        };
        Ok(Wide {
            buffer,
            heads,
            size,
        })
    };
    Ok((one(shape.width, false)?, one(shape.v_width, true)?))
}

/// Where each sequence is; reads lengths from the device if they are there.
fn sequences(device: &Device, problem: &Problem) -> Result<Vec<Sequence>> {
    let shape = &problem.shape;
    let (rows, keys) = (shape.rows as usize, shape.keys as usize);
    let (Some(cu_rows), Some(cu_keys)) = (&problem.cu_rows, &problem.cu_keys) else {
        return Ok((0..shape.batch as usize)
            .map(|index| Sequence {
                rows,
                keys,
                first_row: index * rows,
                first_key: index * keys,
            })
            .collect());
    };
    let read = |operand: &Operand| -> Result<Vec<usize>> {
        let view = operand.view();
        let mut bytes = vec![0; 4 * (shape.batch as usize + 1)];
        device.download(view.buffer, 4 * view.offset, &mut bytes)?;
        let words = bytes.chunks_exact(4);
        Ok(words
            .map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]) as usize)
            .collect())
    };
    let (row_starts, key_starts) = (read(cu_rows)?, read(cu_keys)?);
    let sequences: Vec<_> = (row_starts.windows(2).zip(key_starts.windows(2)))
        .map(|(rows, keys)| Sequence {
            rows: rows[1].saturating_sub(rows[0]),
            keys: keys[1].saturating_sub(keys[0]),
            first_row: rows[0],
            first_key: keys[0],
        })
        .collect();
    if sequences.iter().any(|s| s.rows > rows || s.keys > keys) {
        return Err(Error::InvalidArgument {
            op: super::OP.0,
            reason: format!(
                "a sequence is longer than the maxima given, {rows} rows and {keys} keys"
            ),
        });
    }
    Ok(sequences)
}
