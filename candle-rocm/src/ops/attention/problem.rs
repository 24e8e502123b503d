//! A checked problem in the form that the kernels take.

use super::sizes::Sizes;
use super::{Attended, Attention, Lengths, Order, CHECK, OP};
use crate::ops::check::Op;
use crate::ops::copy::contiguous;
use crate::{Args, Buffer, DType, Device, Error, Result, View};

/// Largest head size of the kernels.
pub(super) const MAX_HEAD: usize = 512;
/// Elements of one 8-bit scale.
pub(super) const SCALED: usize = 32;
/// Elements that a kernel loads at once: strides must be multiples.
const VECTOR: usize = 8;
/// A [`Shape::left`] or [`Shape::right`] without limit.
pub(super) const UNLIMITED: u32 = u32::MAX;

/// Sizes, strides (in elements) and options by value; `struct Shape` of `attention/common.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub(super) struct Shape {
    pub batch: u32,
    pub heads: u32,
    pub kv_heads: u32,
    /// Heads of queries that share a head of keys.
    pub group: u32,
    /// Rows and keys of every sequence, or of the longest.
    pub rows: u32,
    pub keys: u32,
    /// Sizes of a key and of a value.
    pub width: u32,
    pub v_width: u32,
    pub q_dtype: u32,
    pub kv_dtype: u32,
    pub q_batch: u64,
    pub k_batch: u64,
    pub v_batch: u64,
    pub o_batch: u64,
    pub q_row: u32,
    pub q_head: u32,
    pub k_row: u32,
    pub k_head: u32,
    pub v_row: u32,
    pub v_head: u32,
    pub o_row: u32,
    pub o_head: u32,
    /// Keys of a cache block, 0 without one; then `k_batch` and `v_batch` are strides of blocks.
    pub block_size: u32,
    /// Entries of a sequence in the block table.
    pub table_row: u32,
    pub left: u32,
    pub right: u32,
    pub scale: f32,
    /// 0 without one.
    pub softcap: f32,
    /// Prefix ranges of a sequence.
    pub ranges: u32,
    pub mask_dtype: u32,
    pub mask_batch: u64,
    pub mask_head: u64,
    pub mask_row: u64,
    pub mask_key: u64,
    /// Elements between heads in the log-sum-exp.
    pub lse_head: u64,
}

/// [`Shape::mask_dtype`] of a problem without a mask.
const NO_MASK: u32 = 5;

/// Numbers of dtypes in [`Shape`]; `enum Format` of `attention/common.h`.
fn format(dtype: DType) -> Result<u32> {
    Ok(match dtype {
        DType::F16 => 0,
        DType::BF16 => 1,
        DType::F32 => 2,
        DType::U8 => 3,
        DType::F64 => 4,
        _ => return Err(CHECK.unsupported(dtype)),
    })
}

/// An operand in place, or its dense copy.
#[derive(Debug)]
pub(super) struct Operand<'a> {
    copy: Option<Buffer>,
    view: View<'a>,
    /// Of the memory that is used, in elements.
    pub strides: Vec<usize>,
}

impl<'a> Operand<'a> {
    /// In place where the last dimension is dense and 16-byte loads of 8 elements are aligned, as far as `aligned` asks for it.
    fn new(device: &Device, view: &View<'a>, aligned: bool) -> Result<Self> {
        view.check(OP)?;
        let last = view.dims.len() - 1;
        let dense = view.strides[last] == 1 || view.dims[last] <= 1;
        let starts = view.dims[..last].iter().zip(&view.strides[..last]);
        let address = view.buffer.as_ptr() as usize + view.offset * view.dtype.size_in_bytes();
        let fits = !aligned
            || address.is_multiple_of(16.min(VECTOR * view.dtype.size_in_bytes()))
                && starts
                    .filter(|(&dim, _)| dim > 1)
                    .all(|(_, stride)| stride.is_multiple_of(VECTOR));
        if dense && fits {
            return Ok(Self::in_place(view));
        }
        Ok(Operand {
            copy: Some(contiguous(device, view)?),
            view: *view,
            strides: crate::contiguous_strides(view.dims),
        })
    }

    fn in_place(view: &View<'a>) -> Self {
        Operand {
            copy: None,
            view: *view,
            strides: view.strides.to_vec(),
        }
    }

    /// A vector or table without gaps.
    fn dense(device: &Device, view: &View<'a>) -> Result<Self> {
        view.check(OP)?;
        let copy = match view.is_contiguous() {
            true => None,
            false => Some(contiguous(device, view)?),
        };
        Ok(Operand {
            copy,
            view: *view,
            strides: crate::contiguous_strides(view.dims),
        })
    }

    fn push(&self, args: Args) -> Args {
        match &self.copy {
            Some(copy) => args.ptr(copy, 0),
            None => args.ptr(
                self.view.buffer,
                self.view.offset * self.view.dtype.size_in_bytes(),
            ),
        }
    }

    /// The operand as a view.
    pub fn view(&self) -> View<'_> {
        View {
            buffer: self.copy.as_ref().unwrap_or(self.view.buffer),
            offset: if self.copy.is_some() {
                0
            } else {
                self.view.offset
            },
            strides: &self.strides,
            ..self.view
        }
    }
}

fn push_optional(args: Args, operand: &Option<Operand>) -> Args {
    match operand {
        Some(operand) => operand.push(args),
        None => args.u64(0),
    }
}

/// A checked problem: operands that kernels can read, memory for the result, and [`Shape`].
#[derive(Debug)]
pub(super) struct Problem<'a> {
    pub shape: Shape,
    pub dtype: DType,
    pub kv_dtype: DType,
    pub q: Operand<'a>,
    pub k: Operand<'a>,
    pub v: Operand<'a>,
    scales: Option<(Operand<'a>, Operand<'a>)>,
    pub cu_rows: Option<Operand<'a>>,
    pub cu_keys: Option<Operand<'a>>,
    pub table: Option<Operand<'a>>,
    alibi: Option<Operand<'a>>,
    pub mask: Option<Operand<'a>>,
    prefix: Option<Operand<'a>>,
    result: Attended,
}

impl<'a> Problem<'a> {
    /// Checks and prepares a problem.
    ///
    /// # Errors
    /// Those of [`super::attention()`].
    pub fn new(device: &Device, a: &Attention<'a>) -> Result<Self> {
        let (q_format, kv_format) = (format(a.q.dtype)?, format(a.k.dtype)?);
        if a.q.dtype == DType::U8 {
            return Err(CHECK.unsupported(DType::U8));
        }
        let f64s = [a.q.dtype, a.k.dtype].map(|d| d == DType::F64);
        if a.k.dtype != a.v.dtype || f64s[0] != f64s[1] {
            let rhs = if f64s[0] != f64s[1] { &a.q } else { &a.v };
            return Err(Error::DTypeMismatch {
                op: OP,
                lhs: a.k.dtype,
                rhs: rhs.dtype,
            });
        }
        let sizes = Sizes::new(a)?;
        let aligned = sizes.width.is_multiple_of(VECTOR) && sizes.v_width.is_multiple_of(VECTOR);
        let q = Operand::new(device, &a.q, aligned)?;
        let k = Operand::new(device, &a.k, aligned)?;
        let v = Operand::new(device, &a.v, aligned)?;
        let scales = Self::scales(a, &k, &v)?;
        let mut shape = Shape {
            batch: narrow("number of sequences", sizes.batch)?,
            heads: narrow("number of heads", sizes.heads)?,
            kv_heads: narrow("number of heads", sizes.kv_heads)?,
            group: narrow("number of heads", sizes.heads / sizes.kv_heads.max(1))?,
            rows: narrow("number of rows", sizes.rows)?,
            keys: narrow("number of keys", sizes.keys)?,
            width: narrow("head size", sizes.width)?,
            v_width: narrow("head size", sizes.v_width)?,
            q_dtype: q_format,
            kv_dtype: kv_format,
            left: limit("left window", a.window.left)?,
            right: limit("right window", a.window.right)?,
            scale: a.scale,
            softcap: a.softcap.unwrap_or(0.0),
            ..Shape::default()
        };
        let split = |operand: &Operand| -> Result<(u64, u32, u32)> {
            let (outer, [row, head, _]) = (operand.strides.split_last_chunk::<3>())
                .expect("checked to have three dimensions");
            let batch = outer.first().copied().unwrap_or(0) as u64;
            Ok((batch, narrow("stride", *row)?, narrow("stride", *head)?))
        };
        (shape.q_batch, shape.q_row, shape.q_head) = split(&q)?;
        (shape.k_batch, shape.k_row, shape.k_head) = split(&k)?;
        (shape.v_batch, shape.v_row, shape.v_head) = split(&v)?;
        let size = sizes.v_width;
        let rows_of_all = sizes.rows_of_all;
        let (o_row, o_head) = match a.order {
            Order::RowsHeads => (sizes.heads * size, size),
            Order::HeadsRows if sizes.packed => (size, rows_of_all * size),
            Order::HeadsRows => (size, sizes.rows * size),
        };
        shape.o_row = narrow("stride", o_row)?;
        shape.o_head = narrow("stride", o_head)?;
        if !sizes.packed {
            shape.o_batch = (sizes.rows * sizes.heads * size) as u64;
        }
        shape.lse_head = if sizes.packed {
            rows_of_all
        } else {
            sizes.rows
        } as u64;
        let (mut cu_rows, mut cu_keys, mut table) = (None, None, None);
        if let Lengths::Packed {
            cu_rows: r,
            cu_keys: k,
            ..
        }
        | Lengths::Paged {
            cu_rows: r,
            cu_keys: k,
            ..
        } = &a.lengths
        {
            cu_rows = Some(Operand::dense(device, r)?);
            cu_keys = Some(Operand::dense(device, k)?);
        }
        if let Lengths::Paged { blocks, .. } = &a.lengths {
            shape.block_size = narrow("block size", a.k.dims[1])?;
            shape.table_row = narrow("row of the block table", blocks.dims[1])?;
            table = Some(Operand::dense(device, blocks)?);
        }
        let dense = |view: &Option<View<'a>>| {
            (view.as_ref())
                .map(|view| Operand::dense(device, view))
                .transpose()
        };
        let (alibi, prefix) = (dense(&a.alibi)?, dense(&a.prefix)?);
        if let Some(prefix) = &a.prefix {
            shape.ranges = narrow("number of prefix ranges", prefix.dims[1])?;
        }
        let mask = match &a.mask {
            Some(mask) => {
                mask.check(OP)?;
                shape.mask_dtype = format(mask.dtype)?;
                [
                    shape.mask_batch,
                    shape.mask_head,
                    shape.mask_row,
                    shape.mask_key,
                ] = std::array::from_fn(|d| mask.strides[d] as u64);
                Some(Operand::in_place(mask))
            }
            None => {
                shape.mask_dtype = NO_MASK;
                None
            }
        };
        let elements = rows_of_all * sizes.heads;
        let out = device.alloc((elements * size).saturating_mul(a.q.dtype.size_in_bytes()))?;
        let log_sum_exp = match a.log_sum_exp {
            true => Some(device.alloc(elements * DType::F32.size_in_bytes())?),
            false => None,
        };
        Ok(Problem {
            shape,
            dtype: a.q.dtype,
            kv_dtype: a.k.dtype,
            q,
            k,
            v,
            scales,
            cu_rows,
            cu_keys,
            table,
            alibi,
            mask,
            prefix,
            result: Attended {
                out,
                log_sum_exp,
                quantized: None,
            },
        })
    }

    /// Scales belong to 8-bit elements and lie as these do: every stride a 32nd.
    fn scales(
        a: &Attention<'a>,
        k: &Operand,
        v: &Operand,
    ) -> Result<Option<(Operand<'a>, Operand<'a>)>> {
        let (k_scales, v_scales) = match (&a.scales, a.k.dtype) {
            (None, DType::U8) => return Err(CHECK.invalid("8-bit keys and values need scales")),
            (None, _) => return Ok(None),
            (Some(scales), DType::U8) => scales,
            (Some(_), dtype) => {
                return Err(CHECK.invalid(format!(
                    "scales belong to keys and values of 8 bits, not {dtype}"
                )))
            }
        };
        check_scales(OP, k_scales, &a.k, &k.strides)?;
        check_scales(OP, v_scales, &a.v, &v.strides)?;
        Ok(Some((
            Operand::in_place(k_scales),
            Operand::in_place(v_scales),
        )))
    }

    /// Whether the result has no elements.
    pub fn is_empty(&self) -> bool {
        self.result.out.is_empty()
    }

    /// The result, once a tier has enqueued its computation.
    pub fn into_result(self) -> Attended {
        self.result
    }

    /// The rows of all sequences.
    pub fn rows_of_all(&self) -> usize {
        match self.is_packed() {
            true => self.q.view().dims[0],
            false => self.shape.batch as usize * self.shape.rows as usize,
        }
    }

    /// The memory of the result.
    pub fn result(&self) -> &Attended {
        &self.result
    }

    /// Why kernels with vector loads cannot take the problem, if so.
    pub fn refusal(&self) -> Option<String> {
        let widths = [self.shape.width, self.shape.v_width].map(|w| w as usize);
        if self.dtype == DType::F64 {
            return Some("it has no f64".into());
        }
        if widths
            .iter()
            .any(|w| !w.is_multiple_of(VECTOR) || *w > MAX_HEAD || *w == 0)
        {
            return Some(format!(
                "the head size must be a multiple of {VECTOR} up to {MAX_HEAD}, not {widths:?}"
            ));
        }
        None
    }

    /// Whether there is anything beyond queries, keys, values, their lengths and a window.
    pub fn has_extras(&self) -> bool {
        let operands = [&self.alibi, &self.mask, &self.prefix, &self.table];
        operands.iter().any(|operand| operand.is_some())
            || self.scales.is_some()
            || self.shape.softcap != 0.0
            || self.result.log_sum_exp.is_some()
    }

    /// Whether the rows of all sequences lie behind each other.
    pub fn is_packed(&self) -> bool {
        self.cu_rows.is_some()
    }

    /// Addresses of queries, keys, values and the result.
    pub fn push_tensors(&self, args: Args) -> Args {
        let args = self.v.push(self.k.push(self.q.push(args)));
        args.ptr(&self.result.out, 0)
    }

    /// Addresses of the starts of the sequences' rows and keys, or nulls.
    pub fn push_starts(&self, args: Args) -> Args {
        push_optional(push_optional(args, &self.cu_rows), &self.cu_keys)
    }

    /// The arguments that every attention kernel begins with, as `ATTENTION_PARAMETERS` of `attention/common.h` has them: addresses (null where
    /// the problem has no such operand), then [`Shape`].
    pub fn args(&self) -> Args {
        let args = self.v.push(self.k.push(self.q.push(Args::new())));
        let args = match &self.scales {
            Some((k, v)) => v.push(k.push(args)),
            None => args.u64(0).u64(0),
        };
        let args = args.ptr(&self.result.out, 0);
        let args = match &self.result.log_sum_exp {
            Some(lse) => args.ptr(lse, 0),
            None => args.u64(0),
        };
        let args = push_optional(self.push_starts(args), &self.table);
        let args = push_optional(args, &self.alibi);
        let args = push_optional(args, &self.mask);
        push_optional(args, &self.prefix).value(&self.shape)
    }
}

/// Checks that factors belong to 8-bit elements that lie with `strides`.
pub(super) fn check_scales(
    op: &'static str,
    scales: &View,
    of: &View,
    strides: &[usize],
) -> Result<()> {
    let check = Op(op);
    check.has_dtype(scales, DType::F16)?;
    let (last, outer) = of.dims.split_last().expect("checked to have dimensions");
    let same = scales.dims.split_last() == Some((&(last / SCALED), outer));
    if !same || !last.is_multiple_of(SCALED) {
        return Err(check.mismatch(of, scales));
    }
    let outer = outer.len();
    let parallel = (0..outer)
        .all(|d| scales.dims[d] <= 1 || scales.strides[d] * SCALED == strides[d])
        && (scales.dims[outer] <= 1 || scales.strides[outer] == 1);
    if !parallel {
        return Err(check.invalid(format!(
            "scales with strides {:?} do not lie as their elements with strides {strides:?} do",
            scales.strides
        )));
    }
    scales.check(op)
}

/// Positions and their differences are computed with 32 signed bits.
fn narrow(what: &'static str, value: usize) -> Result<u32> {
    CHECK.narrow(what, value, i32::MAX as u32)
}

fn limit(what: &'static str, size: Option<usize>) -> Result<u32> {
    size.map_or(Ok(UNLIMITED), |size| narrow(what, size))
}
