//! What a problem's operands agree on.

use super::{Attention, Lengths, Order, OP};
use crate::{DType, Result, View};

/// Sizes that the operands agree on.
pub(super) struct Sizes {
    pub batch: usize,
    pub rows: usize,
    pub keys: usize,
    pub rows_of_all: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub width: usize,
    pub v_width: usize,
    /// Whether the rows of all sequences lie behind each other.
    pub packed: bool,
}

impl Sizes {
    /// Checks shapes and dtypes against each other.
    pub fn new(a: &Attention) -> Result<Self> {
        let (k, v) = (a.k.dims, a.v.dims);
        let rank = match a.lengths {
            Lengths::Packed { .. } => 3,
            Lengths::Fixed | Lengths::Paged { .. } => 4,
        };
        if k.len() != rank || v.len() != rank || k[..rank - 1] != v[..rank - 1] {
            return Err(OP.mismatch(&a.k, &a.v));
        }
        let (kv_heads, width, v_width) = (k[rank - 2], k[rank - 1], v[rank - 1]);
        let (batch, rows, keys, heads) = match (&a.lengths, a.q.dims) {
            (Lengths::Fixed, &[batch, rows, heads, size]) if size == width && k[0] == batch => {
                (batch, rows, k[1], heads)
            }
            (
                Lengths::Packed {
                    cu_rows,
                    cu_keys,
                    max_rows,
                    max_keys,
                }
                | Lengths::Paged {
                    cu_rows,
                    cu_keys,
                    max_rows,
                    max_keys,
                    ..
                },
                &[_, heads, size],
            ) if size == width => {
                let &[starts] = cu_rows.dims else {
                    return Err(OP.invalid("starts of rows must have one dimension"));
                };
                if starts < 2 || cu_keys.dims != cu_rows.dims {
                    return Err(OP.mismatch(cu_rows, cu_keys));
                }
                integers(cu_rows)?;
                integers(cu_keys)?;
                (starts - 1, *max_rows, *max_keys, heads)
            }
            _ => return Err(OP.mismatch(&a.q, &a.k)),
        };
        if heads > 0 && (kv_heads == 0 || !heads.is_multiple_of(kv_heads)) {
            return Err(OP.invalid(format!(
                "the number of key heads, {kv_heads}, must divide that of query heads, {heads}"
            )));
        }
        let packed = !matches!(a.lengths, Lengths::Fixed);
        let sizes = Sizes {
            batch,
            rows,
            keys,
            rows_of_all: if packed { a.q.dims[0] } else { batch * rows },
            heads,
            kv_heads,
            width,
            v_width,
            packed,
        };
        sizes.check_options(a)?;
        Ok(sizes)
    }

    fn check_options(&self, a: &Attention) -> Result<()> {
        if let Lengths::Paged { blocks, .. } = &a.lengths {
            integers(blocks)?;
            if !matches!(*blocks.dims, [batch, _] if batch == self.batch) {
                return Err(OP.mismatch(&a.q, blocks));
            }
            let held = blocks.dims[1].saturating_mul(a.k.dims[1]);
            if held < self.keys {
                return Err(OP.invalid(format!(
                    "a row of the block table holds {held} keys, fewer than the longest sequence's {}",
                    self.keys
                )));
            }
        }
        if a.quantized && a.order != Order::RowsHeads {
            return Err(OP.invalid(
                "a result in 8 bits has the heads of a row behind each other: Order::RowsHeads",
            ));
        }
        if let Some(alibi) = &a.alibi {
            OP.has_dtype(alibi, DType::F32)?;
            if *alibi.dims != [self.heads] {
                return Err(OP.mismatch(&a.q, alibi));
            }
        }
        if let Some(sinks) = &a.sinks {
            OP.has_dtype(sinks, DType::F32)?;
            if *sinks.dims != [self.heads] {
                return Err(OP.mismatch(&a.q, sinks));
            }
        }
        if a.chunk == Some(0) {
            return Err(OP.invalid("a chunk has at least one position"));
        }
        if let Some(prefix) = &a.prefix {
            OP.has_dtype(prefix, DType::I32)?;
            if !matches!(*prefix.dims, [batch, _, 2] if batch == self.batch) {
                return Err(OP.mismatch(&a.q, prefix));
            }
        }
        if let Some(mask) = &a.mask {
            if self.packed {
                return Err(OP.invalid("a mask needs sequences of one length"));
            }
            if *mask.dims != [self.batch, self.heads, self.rows, self.keys] {
                return Err(OP.mismatch(&a.q, mask));
            }
            if mask.dtype == DType::U8 {
                return Err(OP.unsupported(mask.dtype));
            }
        }
        Ok(())
    }
}

fn integers(view: &View) -> Result<()> {
    match view.dtype {
        DType::U32 | DType::I32 => Ok(()),
        dtype => Err(OP.unsupported(dtype)),
    }
}
