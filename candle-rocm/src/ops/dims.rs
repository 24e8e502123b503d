//! Shapes and strides as kernels take them, with as few dimensions as possible.

use crate::{Error, Result};
use candle_rocm_kernels::shared::dims::MAX_RANK;

pub(crate) use candle_rocm_kernels::shared::dims::{Dims, Strides};

/// One shape and the strides of `K` operands over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collapsed<const K: usize> {
    pub dims: Dims,
    pub strides: [Strides; K],
}

/// Sizes and, per dimension, the strides of all operands, after merging.
type Merged<const K: usize> = Vec<(usize, [usize; K])>;

/// Drops dimensions of size 1 and merges neighbours that every operand walks as one. At least one dimension remains.
fn merge<const K: usize>(dims: &[usize], strides: [&[usize]; K]) -> Merged<K> {
    let mut merged: Merged<K> = Vec::with_capacity(dims.len());
    for (d, &size) in dims.iter().enumerate() {
        if size == 1 {
            continue;
        }
        let steps = strides.map(|s| s[d]);
        match merged.last_mut() {
            Some((outer_size, outer_steps))
                if (0..K).all(|k| Some(outer_steps[k]) == steps[k].checked_mul(size)) =>
            {
                *outer_size *= size;
                *outer_steps = steps;
            }
            _ => merged.push((size, steps)),
        }
    }
    if merged.is_empty() {
        merged.push((1, [1; K]));
    }
    merged
}

fn pack<const K: usize>(op: &'static str, merged: &Merged<K>) -> Result<Collapsed<K>> {
    if merged.len() > MAX_RANK as usize {
        return Err(Error::TooLarge {
            op,
            what: "number of dimensions that do not merge",
            value: merged.len(),
            limit: MAX_RANK as usize,
        });
    }
    let narrow = |what, value: usize| {
        u32::try_from(value).map_err(|_| Error::TooLarge {
            op,
            what,
            value,
            limit: u32::MAX as usize,
        })
    };
    let mut collapsed = Collapsed {
        dims: Dims {
            rank: merged.len() as u32,
            ..Dims::default()
        },
        strides: [Strides::default(); K],
    };
    for (d, (size, steps)) in merged.iter().enumerate() {
        collapsed.dims.size[d] = narrow("size of a dimension", *size)?;
        for (k, &step) in steps.iter().enumerate() {
            collapsed.strides[k].s[d] = narrow("stride", step)?;
        }
    }
    for k in 0..K {
        let span = merged.iter().fold(0usize, |sum, (size, steps)| {
            sum.saturating_add(size.saturating_sub(1).saturating_mul(steps[k]))
        });
        narrow("span of a strided operand", span)?;
    }
    Ok(collapsed)
}

/// The fewest dimensions that describe `K` operands of one shape: sizes of 1 vanish, and neighbouring dimensions merge
/// where every operand walks them as one. The rank is at least 1. Each of `strides` is as long as `dims`.
///
/// # Errors
/// [`Error::TooLarge`] if more than 8 dimensions remain, or if a size, stride or span needs more than 32 bits.
pub(crate) fn collapse<const K: usize>(
    op: &'static str,
    dims: &[usize],
    strides: [&[usize]; K],
) -> Result<Collapsed<K>> {
    pack(op, &merge(dims, strides))
}

/// [`collapse`] for kernels that index with 64 bits when one dimension is left: then its size has no limit.
pub(super) fn collapse_any_length<const K: usize>(
    op: &'static str,
    dims: &[usize],
    strides: [&[usize]; K],
) -> Result<Collapsed<K>> {
    let mut merged = merge(dims, strides);
    if let [(size, _)] = &mut merged[..] {
        // Such kernels do not read the size.
        *size = (*size).min(2);
    } else {
        let count = merged.iter().fold(1usize, |n, d| n.saturating_mul(d.0));
        if count > u32::MAX as usize {
            return Err(Error::TooLarge {
                op,
                what: "number of elements of a strided tensor",
                value: count,
                limit: u32::MAX as usize,
            });
        }
    }
    pack(op, &merged)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OP: &str = "test";

    fn sizes<const K: usize>(collapsed: &Collapsed<K>) -> &[u32] {
        &collapsed.dims.size[..collapsed.dims.rank as usize]
    }

    fn steps<const K: usize>(collapsed: &Collapsed<K>, k: usize) -> &[u32] {
        &collapsed.strides[k].s[..collapsed.dims.rank as usize]
    }

    #[test]
    fn contiguous_is_one_dimension() {
        let c = collapse(OP, &[2, 3, 4], [&[12, 4, 1]]).unwrap();
        assert_eq!(sizes(&c), [24]);
        assert_eq!(steps(&c, 0), [1]);
    }

    #[test]
    fn ones_vanish_whatever_their_stride() {
        let c = collapse(OP, &[1, 5, 1, 3, 1], [&[99, 3, 7, 1, 0]]).unwrap();
        assert_eq!(sizes(&c), [15]);
        let c = collapse(OP, &[1, 1], [&[5, 9]]).unwrap();
        assert_eq!((sizes(&c), steps(&c, 0)), (&[1][..], &[1][..]));
        let c = collapse(OP, &[], [&[]]).unwrap();
        assert_eq!(sizes(&c), [1]);
    }

    #[test]
    fn a_dimension_merges_only_if_all_operands_agree() {
        let c = collapse(OP, &[2, 3, 4], [&[12, 4, 1], &[0, 4, 1]]).unwrap();
        assert_eq!(sizes(&c), [2, 12]);
        assert_eq!(steps(&c, 0), [12, 1]);
        assert_eq!(steps(&c, 1), [0, 1]);
    }

    #[test]
    fn scalars_merge_to_stride_zero() {
        let c = collapse(OP, &[7, 6, 5], [&[30, 5, 1], &[0, 0, 0]]).unwrap();
        assert_eq!(sizes(&c), [210]);
        assert_eq!(steps(&c, 1), [0]);
    }

    #[test]
    fn transposed_and_narrowed_stay_apart() {
        let c = collapse(OP, &[4, 6], [&[1, 4]]).unwrap();
        assert_eq!((sizes(&c), steps(&c, 0)), (&[4, 6][..], &[1, 4][..]));
        let c = collapse(OP, &[2, 3, 4], [&[60, 10, 1]]).unwrap();
        assert_eq!(sizes(&c), [2, 3, 4]);
        let c = collapse(OP, &[2, 3, 4], [&[30, 10, 1]]).unwrap();
        assert_eq!((sizes(&c), steps(&c, 0)), (&[6, 4][..], &[10, 1][..]));
    }

    #[test]
    fn beyond_eight_dimensions_and_32_bits_is_an_error() {
        let dims = [2; 9];
        let strides: Vec<usize> = (0..9).map(|d| 3usize.pow(9 - d)).collect();
        assert!(matches!(
            collapse(OP, &dims, [&strides]),
            Err(Error::TooLarge {
                value: 9,
                limit: 8,
                ..
            })
        ));
        let big = 1usize << 32;
        assert!(matches!(
            collapse(OP, &[big], [&[1]]),
            Err(Error::TooLarge { .. })
        ));
        assert!(matches!(
            collapse(OP, &[3, 2], [&[big / 2, 1]]),
            Err(Error::TooLarge { .. })
        ));
    }

    #[test]
    fn one_dimension_of_any_length() {
        let big = 1usize << 40;
        let c = collapse_any_length(OP, &[big], [&[1], &[0]]).unwrap();
        assert_eq!(c.dims.rank, 1);
        assert_eq!((steps(&c, 0), steps(&c, 1)), (&[1][..], &[0][..]));
        assert!(matches!(
            collapse_any_length(OP, &[big, 2], [&[0, 1]]),
            Err(Error::TooLarge { .. })
        ));
    }
}
