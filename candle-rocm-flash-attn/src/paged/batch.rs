//! What one forward pass needs to know about its sequences.

use candle::{bail, Device, Result, Tensor};

/// A sequence of a forward pass.
#[derive(Clone, Copy, Debug)]
pub struct PagedSequence<'a> {
    /// Its blocks, in the order of positions.
    pub blocks: &'a [u32],
    /// Its tokens, the new ones included.
    pub keys: usize,
    /// New tokens: the last ones.
    pub rows: usize,
}

/// A sequence as the CPU reads it.
#[derive(Clone, Debug)]
pub(super) struct HostSequence {
    pub first_row: usize,
    pub rows: usize,
    pub keys: usize,
    pub blocks: Vec<u32>,
}

/// The sequences of one forward pass, on the host and on the device. All layers share it.
pub struct PagedBatch {
    tokens: usize,
    block_size: usize,
    pub(super) sequences: Vec<HostSequence>,
    /// Of each new token, its position and its place in the cache.
    pub(super) positions: Vec<u32>,
    pub(super) slots: Vec<u32>,
    longest: usize,
    last_block: Option<usize>,
    pub(super) device: Option<DeviceBatch>,
}

/// The numbers that kernels read, u32.
pub(super) struct DeviceBatch {
    pub positions: Tensor,
    pub slots: Tensor,
    /// Running sums of rows and of keys.
    pub cu_rows: Tensor,
    pub cu_keys: Tensor,
    /// `(sequences, blocks of the longest)`.
    pub table: Tensor,
    pub max_rows: usize,
}

impl PagedBatch {
    /// # Errors
    /// For a sequence without new tokens, with more new tokens than tokens, or with too few blocks; and those of the
    /// device.
    pub fn new(sequences: &[PagedSequence], block_size: usize, device: &Device) -> Result<Self> {
        let mut batch = Self {
            tokens: 0,
            block_size,
            sequences: Vec::with_capacity(sequences.len()),
            positions: Vec::new(),
            slots: Vec::new(),
            longest: 0,
            last_block: None,
            device: None,
        };
        for (i, sequence) in sequences.iter().enumerate() {
            let PagedSequence { blocks, keys, rows } = *sequence;
            let used = keys.div_ceil(block_size.max(1));
            if rows == 0 || rows > keys || block_size == 0 || blocks.len() < used {
                bail!(
                    "sequence {i}: {rows} new of {keys} tokens in {} blocks of {block_size}",
                    blocks.len()
                )
            }
            let blocks = &blocks[..used];
            batch.sequences.push(HostSequence {
                first_row: batch.positions.len(),
                rows,
                keys,
                blocks: blocks.to_vec(),
            });
            for position in keys - rows..keys {
                let slot = blocks[position / block_size] as usize * block_size;
                let slot = u32::try_from(slot + position % block_size);
                batch.slots.push(slot.map_err(candle::Error::wrap)?);
                batch.positions.push(position as u32);
            }
            batch.longest = batch.longest.max(keys);
            let last = blocks.iter().map(|b| *b as usize).max();
            batch.last_block = batch.last_block.max(last);
        }
        if batch.sequences.is_empty() {
            bail!("a batch without sequences")
        }
        batch.tokens = batch.positions.len();
        if device.is_rocm() {
            batch.device = Some(batch.upload(device)?);
        }
        Ok(batch)
    }

    /// One copy to the device for all numbers.
    fn upload(&self, device: &Device) -> Result<DeviceBatch> {
        let sums = |count: fn(&HostSequence) -> usize| {
            let mut sum = 0;
            std::iter::once(0)
                .chain(self.sequences.iter().map(move |s| {
                    sum += count(s) as u32;
                    sum
                }))
                .collect::<Vec<u32>>()
        };
        let width = self.longest.div_ceil(self.block_size);
        let mut table = vec![0; self.sequences.len() * width];
        for (row, sequence) in table.chunks_exact_mut(width).zip(&self.sequences) {
            row[..sequence.blocks.len()].copy_from_slice(&sequence.blocks);
        }
        let parts = [
            self.positions.clone(),
            self.slots.clone(),
            sums(|s| s.rows),
            sums(|s| s.keys),
            table,
        ];
        let lengths = parts.each_ref().map(Vec::len);
        let all = Tensor::from_vec(parts.concat(), lengths.iter().sum::<usize>(), device)?;
        let mut start = 0;
        let mut next = |len: usize| {
            start += len;
            all.narrow(0, start - len, len)
        };
        Ok(DeviceBatch {
            positions: next(lengths[0])?,
            slots: next(lengths[1])?,
            cu_rows: next(lengths[2])?,
            cu_keys: next(lengths[3])?,
            table: next(lengths[4])?.reshape((self.sequences.len(), width))?,
            max_rows: self.sequences.iter().map(|s| s.rows).max().unwrap_or(0),
        })
    }

    /// New tokens of all sequences.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Tokens of the longest sequence: one more than its last position. Of a [`DecodeShape`]'s batch, what it has room
    /// for.
    pub fn positions(&self) -> usize {
        self.longest
    }

    /// The position of each new token, u32 `(tokens)`, on the batch's device.
    ///
    /// # Errors
    /// If the device fails.
    pub fn position_ids(&self, device: &Device) -> Result<Tensor> {
        match &self.device {
            Some(batch) => Ok(batch.positions.clone()),
            None => Tensor::new(self.positions.as_slice(), device),
        }
    }

    /// The largest number of a block.
    pub(super) fn last_block(&self) -> Option<usize> {
        self.last_block
    }
}

/// The shape of a batch of one new token for each sequence, whose numbers lie on a ROCm device and may change between
/// uses: launches depend on the shape only, so that a graph of them stays valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeShape {
    /// Sequences, those included that only fill the batch up.
    pub sequences: usize,
    /// Tokens that a sequence may have, the new one included.
    pub capacity: usize,
    /// Tokens of a block.
    pub block_size: usize,
}

impl DecodeShape {
    fn table_row(&self) -> usize {
        self.capacity.div_ceil(self.block_size.max(1))
    }

    /// Lengths of the parts of the numbers: positions, slots, running sums of rows and of keys, block table.
    fn lengths(&self) -> [usize; 5] {
        let n = self.sequences;
        [n, n, n + 1, n + 1, n * self.table_row()]
    }

    /// How many numbers a batch has.
    pub fn numbers(&self) -> usize {
        self.lengths().iter().sum()
    }

    /// Appends the numbers of some sequences to `out`: each `rows` is 1. Sequences that are missing have no keys and
    /// write nothing.
    ///
    /// # Errors
    /// If the sequences do not fit the shape.
    pub fn write(&self, sequences: &[PagedSequence], out: &mut Vec<u32>) -> Result<()> {
        let start = out.len();
        out.resize(start + self.numbers(), 0);
        let mut rest = &mut out[start..];
        let [positions, slots, cu_rows, cu_keys, table] = self.lengths().map(|len| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(len);
            rest = after;
            part
        });
        slots.fill(u32::MAX);
        if sequences.len() > self.sequences || self.block_size == 0 {
            bail!("{} sequences do not fit {self:?}", sequences.len())
        }
        let rows = table.chunks_exact_mut(self.table_row().max(1));
        for (i, (sequence, row)) in sequences.iter().zip(rows).enumerate() {
            let PagedSequence { blocks, keys, rows } = *sequence;
            let used = keys.div_ceil(self.block_size);
            if rows != 1 || keys == 0 || keys > self.capacity || blocks.len() < used {
                bail!(
                    "sequence {i}: {rows} new of {keys} tokens in {} blocks do not fit {self:?}",
                    blocks.len()
                )
            }
            row[..used].copy_from_slice(&blocks[..used]);
            let position = keys - 1;
            let slot = blocks[used - 1] as usize * self.block_size + position % self.block_size;
            slots[i] = u32::try_from(slot).map_err(candle::Error::wrap)?;
            positions[i] = position as u32;
            cu_keys[i + 1] = keys as u32;
        }
        for i in 0..self.sequences {
            cu_rows[i + 1] = i as u32 + 1;
            cu_keys[i + 1] += cu_keys[i];
        }
        Ok(())
    }

    /// Lets a sequence turn its row by another position than its place, in the numbers that [`DecodeShape::write`] has
    /// appended.
    ///
    /// # Errors
    /// For sequences and positions beyond the shape's.
    pub fn turn(&self, numbers: &mut [u32], sequence: usize, position: usize) -> Result<()> {
        let is_within = sequence < self.sequences && position < self.capacity;
        match (u32::try_from(position), numbers.get_mut(sequence)) {
            // Positions come first.
            (Ok(position), Some(number)) if is_within => *number = position,
            _ => bail!("sequence {sequence} at position {position} does not fit {self:?}"),
        }
        Ok(())
    }

    /// The batch whose numbers `numbers` has, u32 and dense, at each time that it is used.
    ///
    /// # Errors
    /// For a tensor of another length.
    pub fn batch(&self, numbers: &Tensor) -> Result<PagedBatch> {
        if numbers.dims() != [self.numbers()] || !numbers.device().is_rocm() {
            bail!(
                "{self:?} has {} numbers on a ROCm device, not {:?}",
                self.numbers(),
                numbers.shape()
            )
        }
        let mut start = 0;
        let [positions, slots, cu_rows, cu_keys, table] = self.lengths().map(|len| {
            start += len;
            numbers.narrow(0, start - len, len)
        });
        Ok(PagedBatch {
            tokens: self.sequences,
            block_size: self.block_size,
            sequences: Vec::new(),
            positions: Vec::new(),
            slots: Vec::new(),
            longest: self.capacity,
            last_block: None,
            device: Some(DeviceBatch {
                positions: positions?,
                slots: slots?,
                cu_rows: cu_rows?,
                cu_keys: cu_keys?,
                table: table?.reshape((self.sequences, self.table_row()))?,
                max_rows: 1,
            }),
        })
    }
}
