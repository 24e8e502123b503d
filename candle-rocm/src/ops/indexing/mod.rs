//! Reading and writing at places that an index tensor names.
//!
//! `u32::MAX` of u32 and `i64::MAX` of i64 name no place: reads give 0, writes are left out. Any other index out of
//! range does the same, and the next call that waits for the device fails with [`Error::IndexOutOfRange`]. The largest
//! values of the smaller dtypes, such as 255, are indices as any other.

mod read;
mod scatter;
mod tuning;

use super::cast::cast;
use super::check::Op;
use super::copy::{check_count, contiguous, copy_strided};
use super::{collapse, Collapsed};
use crate::{Buffer, DType, DeclaredKernel, Device, Error, IndexOp, Result, View};
use candle_rocm_kernels::shared::indexing::{
    self as shared, Along, Indexing, ID_I16, ID_I32, ID_I64, ID_U32, ID_U8,
};
use read::Gather;
use scatter::Scatter;

/// Takes the slices of `src` along `dim` that the one-dimensional `ids`, of an integer dtype, name. The result has
/// `src`'s shape with `ids`' length in `dim`.
///
/// # Errors
/// [`Error::UnsupportedDType`] for other index dtypes, [`Error::ShapeMismatch`], [`Error::InvalidArgument`] for `dim`,
/// [`Error::InvalidView`], [`Error::TooLarge`] for operands of 2^32 elements or more.
pub fn index_select(device: &Device, src: &View, ids: &View, dim: usize) -> Result<Buffer> {
    const OP: IndexOp = IndexOp::IndexSelect;
    check_dim(OP, src, dim)?;
    let [count] = ids.dims else {
        return Err(check(OP).mismatch(src, ids));
    };
    let mut dims = src.dims.to_vec();
    dims[dim] = *count;
    let id_strides = only(dim, dims.len(), ids.strides[0]);
    Gather {
        op: OP,
        src,
        ids,
        dims: &dims,
        id_strides: &id_strides,
        dim,
    }
    .run(device)
}

/// Takes one element of `src` for each of `ids`, of an integer dtype: the one at the id's own place, except for `dim`,
/// where the id says the place. `ids` has `src`'s rank and is nowhere larger than `src`, except in `dim`. The result
/// has `ids`' shape.
///
/// # Errors
/// Those of [`index_select`].
pub fn gather(device: &Device, src: &View, ids: &View, dim: usize) -> Result<Buffer> {
    const OP: IndexOp = IndexOp::Gather;
    check_dim(OP, src, dim)?;
    let fits = src.dims.len() == ids.dims.len()
        && (0..src.dims.len()).all(|d| d == dim || ids.dims[d] <= src.dims[d]);
    if !fits {
        return Err(check(OP).mismatch(src, ids));
    }
    of_places(src, ids, dim).run(device)
}

/// [`gather`] by rows in LDS, which only pays for more elements than verification should take.
pub(crate) fn gather_by_rows(
    device: &Device,
    src: &View,
    ids: &View,
    dim: usize,
) -> Result<Buffer> {
    of_places(src, ids, dim).run_by_rows(device)
}

fn of_places<'a>(src: &'a View<'a>, ids: &'a View<'a>, dim: usize) -> Gather<'a> {
    Gather {
        op: IndexOp::Gather,
        src,
        ids,
        dims: ids.dims,
        id_strides: ids.strides,
        dim,
    }
}

/// Writes each element of `src` to `dst`: to its own place, except for `dim`, where the id, of an integer dtype, says the
/// place. Of several elements for one place the last along `dim` stays. `ids` has `src`'s shape, which is `dst`'s
/// except in `dim`; `dst` is contiguous.
///
/// # Errors
/// Those of [`index_select`], [`Error::DTypeMismatch`], and [`Error::InvalidArgument`] for a strided `dst`.
pub fn scatter_set(device: &Device, dst: &View, ids: &View, src: &View, dim: usize) -> Result<()> {
    let scatter = Scatter::new(IndexOp::ScatterSet, dst, ids, ids.strides, src, dim)?;
    scatter.set(device)
}

/// As [`scatter_set`], but adds to what is there; `ids` may be of any integer dtype. Integers wrap on overflow. Floats
/// are added in order along `dim` if that leaves enough to do in parallel, as 64 rows of a few thousand elements or
/// 4,096 columns do; otherwise in no fixed order. Small floats are added up in f32, for which there is memory for both
/// tensors for a time, and rounded once.
///
/// # Errors
/// Those of [`scatter_set`].
pub fn scatter_add(device: &Device, dst: &View, ids: &View, src: &View, dim: usize) -> Result<()> {
    const OP: IndexOp = IndexOp::ScatterAdd;
    let scatter = Scatter::new(OP, dst, ids, ids.strides, src, dim)?;
    if scatter::sums_in_place(dst.dtype) {
        return scatter.add(device);
    }
    let (sums, terms) = (
        cast(device, dst, DType::F32)?,
        cast(device, src, DType::F32)?,
    );
    let strides = [dst, src].map(|view| crate::contiguous_strides(view.dims));
    let to = View::contiguous(&sums, DType::F32, dst.dims, &strides[0]);
    let from = View::contiguous(&terms, DType::F32, src.dims, &strides[1]);
    Scatter::new(OP, &to, ids, ids.strides, &from, dim)?.add(device)?;
    let rounded = cast(device, &to, dst.dtype)?;
    let rounded = View::contiguous(&rounded, dst.dtype, dst.dims, &strides[0]);
    copy_strided(device, &rounded, dst.buffer, dst.offset)
}

/// A copy of `base` to whose slices along `dim`, named by the one-dimensional `ids` of any integer dtype, those of
/// `src` are added. As by [`scatter_add`], but always in order, and sums of small floats need no memory. `src` has `base`'s shape with `ids`' length in `dim`.
///
/// # Errors
/// Those of [`scatter_add`].
pub fn index_add(
    device: &Device,
    base: &View,
    ids: &View,
    src: &View,
    dim: usize,
) -> Result<Buffer> {
    const OP: IndexOp = IndexOp::IndexAdd;
    check_dim(OP, src, dim)?;
    if *ids.dims != [src.dims[dim]] {
        return Err(check(OP).mismatch(ids, src));
    }
    let id_strides = only(dim, src.dims.len(), ids.strides[0]);
    let out = contiguous(device, base)?;
    let strides = crate::contiguous_strides(base.dims);
    let dst = View::contiguous(&out, base.dtype, base.dims, &strides);
    Scatter::new(OP, &dst, ids, &id_strides, src, dim)?.add(device)?;
    Ok(out)
}

/// Bytes of LDS that kernels have for rows.
const ROW_BYTES: usize = shared::ROW_BYTES as usize;

/// Every kernel that is declared here.
pub(in crate::ops) fn declared() -> Vec<DeclaredKernel> {
    [read::declared(), scatter::declared()].concat()
}

/// The dimensions besides `dim`, with the strides of `K` operands.
fn besides<const K: usize>(
    op: IndexOp,
    dim: usize,
    dims: &[usize],
    strides: [&[usize]; K],
) -> Result<Collapsed<K>> {
    let others = |values: &[usize]| -> Vec<usize> {
        let mut values = values.to_vec();
        values.remove(dim);
        values
    };
    let strides = strides.map(others);
    collapse(
        op.as_str(),
        &others(dims),
        std::array::from_fn(|k| &strides[k][..]),
    )
}

/// Number of an index dtype.
fn id_type(op: IndexOp, dtype: DType) -> Result<u32> {
    match dtype {
        DType::U8 => Ok(ID_U8),
        DType::U32 => Ok(ID_U32),
        DType::I64 => Ok(ID_I64),
        DType::I16 => Ok(ID_I16),
        DType::I32 => Ok(ID_I32),
        _ => Err(Error::UnsupportedDType {
            op: match op {
                IndexOp::IndexSelect => "index-select by ids",
                IndexOp::Gather => "gather by ids",
                IndexOp::ScatterSet => "scatter by ids",
                IndexOp::ScatterAdd => "scatter-add by ids",
                IndexOp::IndexAdd => "index-add by ids",
                IndexOp::MoeGemm | IndexOp::IndexedMoe => op.as_str(),
            },
            dtype,
        }),
    }
}

/// Strides that are 0 except along `dim`.
fn only(dim: usize, rank: usize, stride: usize) -> Vec<usize> {
    let mut strides = vec![0; rank];
    strides[dim] = stride;
    strides
}

fn check_dim(op: IndexOp, view: &View, dim: usize) -> Result<()> {
    if dim < view.dims.len() {
        return Ok(());
    }
    Err(check(op).invalid(format!(
        "there is no dimension {dim} in a tensor of shape {:?}",
        view.dims
    )))
}

fn check(op: IndexOp) -> Op {
    Op(op.as_str())
}

/// The kernels compute places in 32 bits.
fn check_operand(op: IndexOp, view: &View) -> Result<()> {
    view.check(op.as_str())?;
    check_count(op.as_str(), view.span().unwrap_or(usize::MAX))
}
