//! What rows of a pass have besides their tokens: other embeddings, other positions, a view ahead.

use super::part::Part;
use super::rotary::{Tables, TurnedRows};
use crate::engine::forward::Step;
use crate::engine::media::StepMedia;
use candle_core::{bail, Result, Tensor};
use candle_rocm_flash_attn::paged::{PagedBatch, PagedSequence};

/// The same on the device, for all blocks.
#[derive(Default)]
pub(super) struct MediaPass {
    /// Rows whose embeddings are others: the first one, and what they are.
    rows: Vec<(usize, Tensor)>,
    /// What is added behind each of the first blocks, at the same rows.
    deep: Vec<Vec<(usize, Tensor)>>,
    /// What rows are turned by, where that is not their place.
    pub turned: Option<TurnedRows>,
    /// Rows that see beyond themselves.
    pub ahead: Vec<AheadRows>,
    /// They do so in blocks with a window only.
    pub ahead_in_windows: bool,
}

/// Rows that see all keys up to the same one.
pub(super) struct AheadRows {
    /// The first one.
    pub row: usize,
    pub rows: usize,
    pub keys: usize,
    /// In the blocks of the cache, and in those of a sliding window where these are others.
    all: AheadBatches,
    windows: Option<AheadBatches>,
}

/// Where rows that see ahead find their keys.
pub(super) struct AheadBatches {
    /// Each as the last row of a sequence of its own.
    pub together: PagedBatch,
    /// One of them.
    pub alone: PagedBatch,
}

impl AheadRows {
    /// Those of a block that sees `left` keys before a row's own, or all.
    pub(super) fn batches(&self, left: Option<usize>) -> &AheadBatches {
        let windows = self.windows.as_ref();
        windows.filter(|_| left.is_some()).unwrap_or(&self.all)
    }
}

impl MediaPass {
    /// What the blocks of a part need of it, on its device.
    pub(super) fn new(
        media: &StepMedia,
        step: &Step,
        (block_size, has_windows): (usize, bool),
        (tables, axes): (&Tables, &[u8]),
        part: &Part,
    ) -> Result<Self> {
        let device = tables.device();
        if !media.turns.is_empty() && axes.is_empty() {
            bail!("this model has one position for each token, not three")
        }
        let turns = match media.turns.is_empty() {
            true => &step.turns(),
            false => &media.turns,
        };
        let depth = media.rows.iter().map(|(_, f)| f.deep.len()).max();
        let deep = (0..depth.unwrap_or(0)).map(|block| -> Result<Vec<_>> {
            let rows = media.rows.iter().filter(|_| part.blocks.contains(&block));
            rows.filter_map(|(row, f)| Some((*row, f.deep.get(block)?)))
                .map(|(row, deep)| Ok((row, deep.to_device(device)?)))
                .collect()
        });
        // Embeddings are the first part's business.
        let rows = media.rows.iter().filter(|_| part.is_first());
        let rows = rows.map(|(row, features)| Ok((*row, features.rows.to_device(device)?)));
        let ahead = media.ahead.iter().map(|ahead| {
            let batches = |blocks: &[u32]| -> Result<AheadBatches> {
                let alone = PagedSequence {
                    blocks,
                    keys: ahead.keys,
                    rows: 1,
                };
                Ok(AheadBatches {
                    together: PagedBatch::new(&vec![alone; ahead.rows], block_size, device)?,
                    alone: PagedBatch::new(&[alone], block_size, device)?,
                })
            };
            let sequence = &step.sequences[ahead.sequence];
            Ok(AheadRows {
                row: ahead.row,
                rows: ahead.rows,
                keys: ahead.keys,
                all: batches(&sequence.blocks)?,
                windows: match has_windows {
                    true => Some(batches(&sequence.window_blocks)?),
                    false => None,
                },
            })
        });
        Ok(Self {
            rows: rows.collect::<Result<_>>()?,
            deep: deep.collect::<Result<_>>()?,
            turned: match turns.is_empty() {
                true => None,
                false => Some(tables.turned(turns, axes)?),
            },
            ahead: ahead.collect::<Result<_>>()?,
            ahead_in_windows: false,
        })
    }

    /// Rows that see beyond themselves in a block that sees `left` keys before a row's own, or all.
    pub(super) fn ahead(&self, left: Option<usize>) -> &[AheadRows] {
        match self.ahead_in_windows && left.is_none() {
            true => &[],
            false => &self.ahead,
        }
    }

    /// Tokens of all rows, the first one of the vocabulary, which pads texts, for those of pictures.
    pub(super) fn text_ids(&self, ids: &Tensor) -> Result<Tensor> {
        let mut parts = Vec::new();
        let mut done = 0;
        for (row, features) in &self.rows {
            let rows = features.dim(0)?;
            parts.push(ids.narrow(0, done, row - done)?);
            parts.push(ids.narrow(0, *row, rows)?.zeros_like()?);
            done = row + rows;
        }
        if parts.is_empty() {
            return Ok(ids.clone());
        }
        parts.push(ids.narrow(0, done, ids.dim(0)? - done)?);
        parts.retain(|part| part.elem_count() > 0);
        Tensor::cat(&parts, 0)
    }

    /// Embeddings with the pictures' rows in their places.
    pub(super) fn placed(&self, x: Tensor) -> Result<Tensor> {
        if self.rows.is_empty() {
            return Ok(x);
        }
        let width = x.dim(1)?;
        let mut parts = Vec::new();
        let mut done = 0;
        for (row, features) in &self.rows {
            if features.dim(1)? != width {
                bail!(
                    "rows of a picture have {} elements, those of the model {width}",
                    features.dim(1)?
                )
            }
            if *row > done {
                parts.push(x.narrow(0, done, row - done)?);
            }
            parts.push(features.to_dtype(x.dtype())?);
            done = row + features.dim(0)?;
        }
        if done < x.dim(0)? {
            parts.push(x.narrow(0, done, x.dim(0)? - done)?);
        }
        Tensor::cat(&parts, 0)
    }

    /// Whether anything is added behind a block.
    pub(super) fn has_behind(&self, block: usize) -> bool {
        self.deep.get(block).is_some_and(|deep| !deep.is_empty())
    }

    /// What is added behind a block, for all rows of a pass like `x`.
    pub(super) fn behind(&self, block: usize, x: &Tensor) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let nothing = |rows: usize| Tensor::zeros((rows, width), x.dtype(), x.device());
        let mut parts = Vec::new();
        let mut done = 0;
        for (row, features) in &self.deep[block] {
            if *row > done {
                parts.push(nothing(row - done)?);
            }
            parts.push(features.to_dtype(x.dtype())?);
            done = row + features.dim(0)?;
        }
        if done < rows {
            parts.push(nothing(rows - done)?);
        }
        Tensor::cat(&parts, 0)
    }
}
