//! The cache in memory, and attention by threads.

use super::batch::HostSequence;
use super::format::{rotation, CacheDType, CacheFormat, SCALED};
use super::packed::{rotate, Packed};
use super::simd::{self, Line, Scale};
use super::{Attend, CacheShape, PagedBatch, Rotary};
use candle::utils::barrier_pool;
use candle::{DType, Device, Layout, Result, Storage, Tensor};
use half::{bf16, f16};
use std::cell::RefCell;
use std::ops::{Deref, Range};

/// Queries that read a block of keys together: as many as fit into the nearest cache with their results.
const LINES: usize = 32;

/// Memory is `[blocks, kv_heads, block_size, size]`: the entries of a head lie together.
pub(super) struct Store {
    pub(super) keys: Half,
    /// None where the last elements of keys are the values.
    values: Option<Half>,
    /// Neighbours that turn together before they are stored, of keys and of values.
    turns: [usize; 2],
}

/// Keys, or values. Fresh pages of zeros cost nothing until they are written.
pub(super) enum Half {
    F32(Vec<f32>),
    F16(Vec<u16>),
    BF16(Vec<u16>),
    Q8_0 { values: Vec<i8>, scales: Vec<u16> },
    Packed(Packed),
}

impl Half {
    /// So many vectors of `size` elements.
    fn new(vectors: usize, size: usize, dtype: CacheDType) -> Self {
        let elements = vectors * size;
        match dtype {
            CacheDType::F32 => Self::F32(vec![0.0; elements]),
            CacheDType::F16 => Self::F16(vec![0; elements]),
            CacheDType::BF16 => Self::BF16(vec![0; elements]),
            CacheDType::Q8_0 if size.is_multiple_of(SCALED) => Self::Q8_0 {
                values: vec![0; elements],
                scales: vec![0; elements / SCALED],
            },
            dtype => Self::Packed(Packed::new(vectors, size, dtype)),
        }
    }

    fn write(&mut self, start: usize, x: &[f32]) {
        let range = start..start + x.len();
        match self {
            Self::F32(data) => data[range].copy_from_slice(x),
            Self::F16(data) => {
                for (to, x) in data[range].iter_mut().zip(x) {
                    *to = f16::from_f32(*x).to_bits();
                }
            }
            Self::BF16(data) => {
                for (to, x) in data[range].iter_mut().zip(x) {
                    *to = bf16::from_f32(*x).to_bits();
                }
            }
            Self::Q8_0 { values, scales } => {
                for (i, x) in x.chunks_exact(SCALED).enumerate() {
                    let largest = x.iter().fold(0f32, |m, x| m.max(x.abs()));
                    let factor = largest / 127.0;
                    let inverse = if factor == 0.0 { 0.0 } else { 1.0 / factor };
                    let first = start + i * SCALED;
                    scales[first / SCALED] = f16::from_f32(factor).to_bits();
                    for (to, x) in values[first..first + SCALED].iter_mut().zip(x) {
                        *to = (x * inverse).round() as i8;
                    }
                }
            }
            Self::Packed(packed) => packed.write(start / packed.size(), x),
        }
    }

    /// Bytes of so many elements.
    fn bytes(&self, elements: usize) -> usize {
        match self {
            Self::F32(_) => 4 * elements,
            Self::F16(_) | Self::BF16(_) => 2 * elements,
            Self::Q8_0 { .. } => elements + elements / SCALED * 2,
            Self::Packed(packed) => packed.bytes(elements / packed.size()),
        }
    }

    fn append_bytes(&self, range: Range<usize>, out: &mut Vec<u8>) {
        match self {
            Self::F32(data) => out.extend(data[range].iter().flat_map(|x| x.to_le_bytes())),
            Self::F16(data) | Self::BF16(data) => {
                out.extend(data[range].iter().flat_map(|x| x.to_le_bytes()));
            }
            Self::Q8_0 { values, scales } => {
                let factors = &scales[range.start / SCALED..range.end / SCALED];
                out.extend(values[range].iter().map(|x| *x as u8));
                out.extend(factors.iter().flat_map(|x| x.to_le_bytes()));
            }
            Self::Packed(packed) => packed.append_bytes(vectors(packed, range), out),
        }
    }

    fn take_bytes(&mut self, range: Range<usize>, bytes: &[u8]) {
        fn words(to: &mut [u16], bytes: &[u8]) {
            for (to, pair) in to.iter_mut().zip(bytes.chunks_exact(2)) {
                *to = u16::from_le_bytes([pair[0], pair[1]]);
            }
        }
        match self {
            Self::F32(data) => {
                for (to, x) in data[range].iter_mut().zip(bytes.chunks_exact(4)) {
                    *to = f32::from_le_bytes([x[0], x[1], x[2], x[3]]);
                }
            }
            Self::F16(data) | Self::BF16(data) => words(&mut data[range], bytes),
            Self::Q8_0 { values, scales } => {
                let (of_values, factors) = bytes.split_at(range.len());
                words(
                    &mut scales[range.start / SCALED..range.end / SCALED],
                    factors,
                );
                for (to, x) in values[range].iter_mut().zip(of_values) {
                    *to = *x as i8;
                }
            }
            Self::Packed(packed) => {
                let vectors = vectors(packed, range);
                packed.take_bytes(vectors, bytes);
            }
        }
    }

    pub(super) fn read<'a>(&'a self, range: Range<usize>, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        scratch.clear();
        match self {
            Self::F32(data) => return &data[range],
            Self::F16(data) => {
                scratch.extend(data[range].iter().map(|x| f16::from_bits(*x).to_f32()));
            }
            Self::BF16(data) => {
                scratch.extend(data[range].iter().map(|x| bf16::from_bits(*x).to_f32()));
            }
            Self::Q8_0 { values, scales } => {
                let factors = scales[range.start / SCALED..range.end / SCALED].iter();
                for (factor, x) in factors.zip(values[range].chunks_exact(SCALED)) {
                    let factor = f16::from_bits(*factor).to_f32();
                    scratch.extend(x.iter().map(|x| f32::from(*x) * factor));
                }
            }
            Self::Packed(packed) => packed.read(vectors(packed, range), scratch),
        }
        scratch
    }
}

/// The vectors that elements are of.
fn vectors(packed: &Packed, elements: Range<usize>) -> Range<usize> {
    elements.start / packed.size()..elements.end / packed.size()
}

/// The elements of an f32 tensor and what lies between those of neighbouring tokens; heads of a token lie behind each
/// other.
pub(super) fn with_rows<T>(tensor: &Tensor, f: impl FnOnce(&[f32], usize) -> T) -> Result<T> {
    let (_, heads, size) = tensor.dims3()?;
    let dense = matches!(*tensor.stride(), [_, head, 1] if head == size || heads == 1);
    let tensor = if dense && tensor.dtype() == DType::F32 {
        tensor.clone()
    } else {
        tensor.to_dtype(DType::F32)?.contiguous()?
    };
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => {
            let data = &storage.as_slice::<f32>()?[layout.start_offset()..];
            Ok(f(data, layout.stride()[0]))
        }
        _ => candle::bail!("the tensors must be on the device of the cache"),
    }
}

/// The elements of a vector or table without gaps.
fn dense<'a, S: Deref<Target = Storage>>((storage, layout): &'a (S, &Layout)) -> Result<&'a [f32]> {
    match (&**storage, layout.contiguous_offsets()) {
        (Storage::Cpu(storage), Some((start, end))) => Ok(&storage.as_slice()?[start..end]),
        _ => candle::bail!(
            "rotary tables and sinks must be on the device of the cache, without gaps"
        ),
    }
}

/// A part of a slice that threads write disjoint ranges of.
#[derive(Clone, Copy)]
pub(super) struct Shared<T>(pub *mut T);

// SAFETY: whoever uses it writes ranges that no other thread touches.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// # Safety
    /// The range must lie in the slice, and nobody else may use it meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn range(&self, start: usize, len: usize) -> &mut [T] {
        // SAFETY: as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// Cosines and sines.
struct Turn<'a> {
    cos: &'a [f32],
    sin: &'a [f32],
    pairs: usize,
    interleaved: bool,
}

impl<'a> Turn<'a> {
    fn new<S: Deref<Target = Storage>>(
        (cos, sin): &'a ((S, &Layout), (S, &Layout)),
        rotary: &Rotary,
    ) -> Result<Self> {
        Ok(Self {
            cos: dense(cos)?,
            sin: dense(sin)?,
            pairs: rotary.cos.dim(1)?,
            interleaved: rotary.interleaved,
        })
    }

    fn apply(&self, head: &mut [f32], position: usize) {
        let row = position * self.pairs..(position + 1) * self.pairs;
        let angles = self.cos[row.clone()].iter().zip(&self.sin[row]);
        if self.interleaved {
            for (pair, (cos, sin)) in head.chunks_exact_mut(2).zip(angles) {
                let (a, b) = (pair[0], pair[1]);
                pair[0] = a * cos - b * sin;
                pair[1] = a * sin + b * cos;
            }
        } else {
            let (first, second) = head.split_at_mut(self.pairs);
            for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(angles) {
                (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
            }
        }
    }
}

impl Store {
    /// With values of their `own`, or in the keys.
    pub(super) fn new(shape: &CacheShape, format: CacheFormat, own: bool) -> Self {
        let entries = shape.blocks * shape.block_size * shape.kv_heads;
        let turns = |turns: bool, size| if turns { rotation(size) } else { 0 };
        Self {
            keys: Half::new(entries, shape.head_size, format.keys),
            values: own.then(|| Half::new(entries, shape.v_head_size, format.values)),
            turns: [
                turns(format.turn_keys, shape.head_size),
                turns(format.turn_values, shape.v_head_size),
            ],
        }
    }

    pub(super) fn has_values(&self) -> bool {
        self.values.is_some()
    }

    /// Elements of a block's keys and values.
    fn block_elements(shape: &CacheShape) -> [usize; 2] {
        let entries = shape.block_size * shape.kv_heads;
        [entries * shape.head_size, entries * shape.v_head_size]
    }

    pub(super) fn block_bytes(&self, shape: &CacheShape) -> usize {
        let [keys, values] = Self::block_elements(shape);
        let of_values = self.values.as_ref().map_or(0, |half| half.bytes(values));
        self.keys.bytes(keys) + of_values
    }

    pub(super) fn read_block(&self, shape: &CacheShape, block: usize, out: &mut Vec<u8>) {
        let [keys, values] = Self::block_elements(shape);
        self.keys
            .append_bytes(block * keys..(block + 1) * keys, out);
        if let Some(half) = &self.values {
            half.append_bytes(block * values..(block + 1) * values, out);
        }
    }

    pub(super) fn write_block(&mut self, shape: &CacheShape, block: usize, bytes: &[u8]) {
        let [keys, values] = Self::block_elements(shape);
        let (of_keys, of_values) = bytes.split_at(self.keys.bytes(keys));
        self.keys
            .take_bytes(block * keys..(block + 1) * keys, of_keys);
        if let Some(half) = &mut self.values {
            half.take_bytes(block * values..(block + 1) * values, of_values);
        }
    }

    pub(super) fn write(
        &mut self,
        shape: &CacheShape,
        q: Option<&Tensor>,
        k: &Tensor,
        v: Option<&Tensor>,
        batch: &PagedBatch,
        rotary: Option<&Rotary>,
    ) -> Result<Option<Tensor>> {
        let tables = rotary.map(|r| (r.cos.storage_and_layout(), r.sin.storage_and_layout()));
        let turn = match (&tables, rotary) {
            (Some(tables), Some(rotary)) => Some(Turn::new(tables, rotary)?),
            _ => None,
        };
        with_rows(k, |k, row| {
            let mut key = vec![0.0; shape.head_size];
            for (token, (slot, position)) in batch.slots.iter().zip(&batch.positions).enumerate() {
                for head in 0..shape.kv_heads {
                    let start = token * row + head * shape.head_size;
                    key.copy_from_slice(&k[start..start + shape.head_size]);
                    if let Some(turn) = &turn {
                        turn.apply(&mut key, *position as usize);
                    }
                    rotate(&mut key, self.turns[0]);
                    let entry = entry(shape, *slot as usize, head);
                    self.keys.write(entry * shape.head_size, &key);
                }
            }
        })?;
        if let (Some(v), Some(values)) = (v, &mut self.values) {
            let mut value = vec![0.0; shape.v_head_size];
            with_rows(v, |v, row| {
                for (token, slot) in batch.slots.iter().enumerate() {
                    for head in 0..shape.kv_heads {
                        let start = token * row + head * shape.v_head_size;
                        let entry = entry(shape, *slot as usize, head);
                        value.copy_from_slice(&v[start..start + shape.v_head_size]);
                        rotate(&mut value, self.turns[1]);
                        values.write(entry * shape.v_head_size, &value);
                    }
                }
            })?;
        }
        let Some(q) = q else {
            return Ok(None);
        };
        Ok(Some(turned(shape, q, batch, turn.as_ref())?))
    }

    pub(super) fn turn(
        &self,
        shape: &CacheShape,
        q: &Tensor,
        batch: &PagedBatch,
        rotary: &Rotary,
    ) -> Result<Tensor> {
        let tables = (
            rotary.cos.storage_and_layout(),
            rotary.sin.storage_and_layout(),
        );
        turned(shape, q, batch, Some(&Turn::new(&tables, rotary)?))
    }

    pub(super) fn attend(
        &self,
        shape: &CacheShape,
        q: &Tensor,
        batch: &PagedBatch,
        scores: &Attend,
    ) -> Result<Tensor> {
        let (tokens, heads, _) = q.dims3()?;
        let sinks = scores.sinks.map(Tensor::storage_and_layout);
        let sinks = sinks.as_ref().map(dense).transpose()?;
        let group = heads / shape.kv_heads;
        let rows_at_once = (LINES / group.max(1)).max(1);
        let heads_at_once = group.clamp(1, LINES);
        // Longest first, so that no thread is left with a long one at the end.
        let mut tasks: Vec<Task> = batch
            .sequences
            .iter()
            .flat_map(|sequence| {
                let starts = (0..sequence.rows).step_by(rows_at_once);
                starts.flat_map(move |start| {
                    (0..shape.kv_heads).flat_map(move |kv_head| {
                        let (first, end) = (kv_head * group, (kv_head + 1) * group);
                        let starts = (first..end).step_by(heads_at_once);
                        starts.map(move |head| Task {
                            sequence,
                            rows: start..(start + rows_at_once).min(sequence.rows),
                            kv_head,
                            heads: head..(head + heads_at_once).min(end),
                        })
                    })
                })
            })
            .collect();
        tasks.sort_by_key(|task| {
            std::cmp::Reverse(task.sequence.keys - task.sequence.rows + task.rows.end)
        });
        let out = with_rows(q, |q, row| {
            let mut out = vec![0.0; tokens * heads * shape.v_head_size];
            let shared = Shared(out.as_mut_ptr());
            barrier_pool().execute_chunked(tasks.len(), |range| {
                for task in &tasks[range] {
                    self.run(task, shape, (q, row, heads), (scores, sinks), &shared);
                }
            });
            out
        })?;
        let out = Tensor::from_vec(out, (tokens, heads, shape.v_head_size), &Device::Cpu)?;
        out.to_dtype(q.dtype())
    }

    fn run(
        &self,
        task: &Task,
        shape: &CacheShape,
        (q, q_row, heads): (&[f32], usize, usize),
        (scores, sinks): (&Attend, Option<&[f32]>),
        out: &Shared<f32>,
    ) {
        thread_local! {
            static SCRATCH: RefCell<[Vec<f32>; 3]> = const { RefCell::new([const { Vec::new() }; 3]) };
        }
        let (size, v_size, block_size) = (shape.head_size, shape.v_head_size, shape.block_size);
        let first_position = task.sequence.keys - task.sequence.rows;
        // Queries that turn as the keys did, behind each other.
        let mut turned = Vec::new();
        if self.turns[0] > 0 {
            let heads = task.heads.len() * size;
            turned.reserve(task.rows.len() * heads);
            for row in task.rows.clone() {
                let start = (task.sequence.first_row + row) * q_row + task.heads.start * size;
                turned.extend_from_slice(&q[start..start + heads]);
            }
            rotate(&mut turned, self.turns[0]);
        }
        let mut own = turned.chunks_exact(size);
        let mut lines: Vec<(Range<usize>, Line)> = task
            .rows
            .clone()
            .flat_map(|row| task.heads.clone().map(move |head| (row, head)))
            .map(|(row, head)| {
                let token = task.sequence.first_row + row;
                let position = first_position + row;
                let first = scores.first(position);
                // SAFETY: a token's head belongs to one task.
                let out = unsafe { out.range((token * heads + head) * v_size, v_size) };
                let start = token * q_row + head * size;
                let line = Line {
                    query: own.next().unwrap_or(&q[start..start + size]),
                    out,
                    max: f32::NEG_INFINITY,
                    sum: 0.0,
                };
                (first..position + 1, line)
            })
            .collect();
        let first = lines.iter().map(|(seen, _)| seen.start).min().unwrap_or(0);
        let last = lines.iter().map(|(seen, _)| seen.end).max().unwrap_or(0);
        let scale = Scale {
            scale: scores.scale,
            softcap: scores.softcap,
        };
        SCRATCH.with_borrow_mut(|[keys, values, weights]| {
            weights.resize(block_size, 0.0);
            for block in first / block_size..last.div_ceil(block_size) {
                let start = block * block_size;
                let count = block_size.min(last - start);
                let number = task.sequence.blocks[block] as usize;
                let entry = entry(shape, number * block_size, task.kv_head);
                let keys = self.keys.read(entry * size..(entry + count) * size, keys);
                let values = match &self.values {
                    Some(own) => own.read(entry * v_size..(entry + count) * v_size, values),
                    None => last_elements(keys, (size, v_size), values),
                };
                for (seen, line) in &mut lines {
                    let from = seen.start.max(start);
                    let to = seen.end.min(start + count);
                    if from < to {
                        let (from, to) = (from - start, to - start);
                        simd::attend(
                            line,
                            &keys[from * size..to * size],
                            &values[from * v_size..to * v_size],
                            scale,
                            &mut weights[..to - from],
                        );
                    }
                }
            }
        });
        for (i, (_, line)) in lines.into_iter().enumerate() {
            let sink = sinks.map(|sinks| sinks[task.heads.start + i % task.heads.len()]);
            let factor = line.factor(sink);
            line.out.iter_mut().for_each(|x| *x *= factor);
            rotate(line.out, self.turns[1]);
        }
    }
}

/// Queries by their positions, if they turn.
fn turned(
    shape: &CacheShape,
    q: &Tensor,
    batch: &PagedBatch,
    turn: Option<&Turn>,
) -> Result<Tensor> {
    let width = q.dim(1)? * shape.head_size;
    let turned = with_rows(q, |q, row| {
        let mut out = vec![0.0; batch.tokens() * width];
        let shared = Shared(out.as_mut_ptr());
        barrier_pool().execute_chunked(batch.tokens(), |tokens| {
            for token in tokens {
                // SAFETY: each token's range lies in `out` and belongs to one thread.
                let to = unsafe { { &shared }.range(token * width, width) };
                to.copy_from_slice(&q[token * row..token * row + width]);
                if let Some(turn) = turn {
                    for head in to.chunks_exact_mut(shape.head_size) {
                        turn.apply(head, batch.positions[token] as usize);
                    }
                }
            }
        });
        out
    })?;
    let turned = Tensor::from_vec(turned, q.shape().clone(), &Device::Cpu)?;
    turned.to_dtype(q.dtype())
}

/// Rows of a sequence that look at one head of keys.
struct Task<'a> {
    sequence: &'a HostSequence,
    rows: Range<usize>,
    kv_head: usize,
    /// The heads of queries among these that look.
    heads: Range<usize>,
}

/// The last `v_size` elements of vectors of `size`, behind each other.
pub(super) fn last_elements<'a>(
    keys: &[f32],
    (size, v_size): (usize, usize),
    scratch: &'a mut Vec<f32>,
) -> &'a [f32] {
    scratch.clear();
    for key in keys.chunks_exact(size) {
        scratch.extend_from_slice(&key[size - v_size..]);
    }
    scratch
}

/// Where the entry of a slot is, in vectors.
pub(super) fn entry(shape: &CacheShape, slot: usize, head: usize) -> usize {
    let (block, within) = (slot / shape.block_size, slot % shape.block_size);
    (block * shape.kv_heads + head) * shape.block_size + within
}
