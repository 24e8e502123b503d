//! Networks of videos whose tokens are at several times: a first frame that is there already, and the rest.

use crate::models::VarBuilder;
use candle_core::{DType, Result, Tensor};

/// A table of scales and shifts, `(rows, width)`, f32; `shape` may have ones in front.
pub(super) fn table(vb: &VarBuilder, shape: &[usize]) -> Result<Tensor> {
    let table = vb.get(shape, "scale_shift_table")?;
    table.to_dtype(DType::F32)?.flatten_to(table.rank() - 2)
}

/// So many successive tokens, and the projected time that they are at, `(rows, width)`, f32.
#[derive(Debug, Clone)]
pub(super) struct Stretch {
    pub(super) tokens: usize,
    pub(super) time: Tensor,
}

/// For each stretch the table's rows with its time added, `(1, 1, width)` each.
pub(super) type Modulated = Vec<(usize, Vec<Tensor>)>;

/// The table's rows with each stretch's time.
pub(super) fn modulations(
    table: &Tensor,
    stretches: &[Stretch],
    dtype: DType,
) -> Result<Modulated> {
    let stretches = stretches.iter().map(|stretch| {
        let rows = (table + &stretch.time)?.to_dtype(dtype)?;
        let rows = rows.chunk(rows.dim(0)?, 0)?;
        let rows = rows.iter().map(|row| row.unsqueeze(0)?.contiguous());
        Ok((stretch.tokens, rows.collect::<Result<_>>()?))
    });
    stretches.collect()
}

/// `of` every stretch of tokens of `x`, `(batch, tokens, width)`.
pub(super) fn in_stretches(
    x: &Tensor,
    by: &Modulated,
    of: impl Fn(&Tensor, &[Tensor]) -> Result<Tensor>,
) -> Result<Tensor> {
    if let [(_, by)] = by.as_slice() {
        return of(x, by);
    }
    let mut start = 0;
    let mut parts = Vec::new();
    for (tokens, by) in by {
        parts.push(of(&x.narrow(1, start, *tokens)?.contiguous()?, by)?);
        start += tokens;
    }
    Tensor::cat(&parts, 1)
}
