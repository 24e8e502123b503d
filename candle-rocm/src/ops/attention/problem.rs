//! A checked problem in the form that the kernels take.

use super::packed::PackedCache;
use super::sizes::Sizes;
use super::{Attended, Attention, Lengths, Order, OP};
use crate::kernels::{Argument, Params, Ptr};
use crate::launch::Fault;
use crate::ops::check::Op;
use crate::ops::operand::Operand;
use crate::{Args, ArgumentType, DType, Device, Error, Result, View};
use candle_rocm_kernels::shared::attention as shared;
pub(super) use shared::{Shape, UNLIMITED};

/// Largest head size of the kernels.
pub(super) const MAX_HEAD: usize = 512;
/// Elements of one 8-bit scale.
pub(super) const SCALED: usize = shared::SCALED as usize;
/// Elements that a kernel loads at once: strides must be multiples.
const VECTOR: usize = 8;

/// Numbers of dtypes in [`Shape`].
fn format(dtype: DType) -> Result<u32> {
    Ok(match dtype {
        DType::F16 => shared::F16,
        DType::BF16 => shared::BF16,
        DType::F32 => shared::F32,
        DType::U8 => shared::I8,
        DType::F64 => shared::F64,
        _ => return Err(OP.unsupported(dtype)),
    })
}

/// A vector or table without gaps.
fn dense<'a>(device: &Device, view: &View<'a>) -> Result<Operand<'a>> {
    view.check(OP.0)?;
    Operand::contiguous(device, view)
}

fn push(args: Args, operand: &Operand) -> Args {
    let view = operand.view();
    args.ptr(view.buffer, view.offset * view.dtype.size_in_bytes())
}

fn push_optional(args: Args, operand: &Option<Operand>) -> Args {
    match operand {
        Some(operand) => push(args, operand),
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
    /// A cache that has formats of its own; `kv_dtype` is u8 then.
    pub packed: Option<PackedCache<'a>>,
    pub cu_rows: Option<Operand<'a>>,
    pub cu_keys: Option<Operand<'a>>,
    pub table: Option<Operand<'a>>,
    alibi: Option<Operand<'a>>,
    sinks: Option<Operand<'a>>,
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
        let mut problem = Self::without_result(device, a)?;
        let elements = problem.rows_of_all() * problem.shape.heads as usize;
        let size = problem.shape.v_width as usize * a.q.dtype.size_in_bytes();
        problem.result.out = device.alloc(elements.saturating_mul(size))?;
        if a.log_sum_exp {
            let bytes = elements.saturating_mul(DType::F32.size_in_bytes());
            problem.result.log_sum_exp = Some(device.alloc(bytes)?);
        }
        Ok(problem)
    }

    /// The same without memory for the result.
    ///
    /// # Errors
    /// Those of [`super::attention()`].
    pub fn without_result(device: &Device, a: &Attention<'a>) -> Result<Self> {
        let (q_format, kv_format) = (format(a.q.dtype)?, format(a.k.dtype)?);
        if a.q.dtype == DType::U8 {
            return Err(OP.unsupported(DType::U8));
        }
        let f64s = [a.q.dtype, a.k.dtype].map(|d| d == DType::F64);
        if a.k.dtype != a.v.dtype || f64s[0] != f64s[1] {
            let rhs = if f64s[0] != f64s[1] { &a.q } else { &a.v };
            return Err(Error::DTypeMismatch {
                op: OP.0,
                lhs: a.k.dtype,
                rhs: rhs.dtype,
            });
        }
        let sizes = Sizes::new(a)?;
        let aligned = sizes.width.is_multiple_of(VECTOR) && sizes.v_width.is_multiple_of(VECTOR);
        let vector = aligned.then_some(VECTOR);
        let rows = |view| Operand::with_dense_rows(OP, device, view, vector);
        let q = rows(&a.q)?;
        let (k, v, scales) = match &a.packed {
            // It was checked when it was made.
            Some(_) => (Operand::in_place(&a.k), Operand::in_place(&a.v), None),
            None => {
                let (k, v) = (rows(&a.k)?, rows(&a.v)?);
                let scales = Self::scales(a, &k, &v)?;
                (k, v, scales)
            }
        };
        let mut shape = Shape {
            batch: narrow("number of sequences", sizes.batch)?,
            heads: narrow("number of heads", sizes.heads)?,
            kv_heads: narrow("number of heads", sizes.kv_heads)?,
            group: narrow("number of heads", sizes.heads / sizes.kv_heads.max(1))?,
            rows: narrow("number of rows", sizes.rows)?,
            keys: narrow("number of keys", sizes.keys)?,
            width: narrow("head size", sizes.width)?,
            v_width: narrow("head size", sizes.v_width)?,
            q_format,
            k_format: kv_format,
            v_format: kv_format,
            left: limit("left window", a.window.left)?,
            right: limit("right window", a.window.right)?,
            chunk: narrow("chunk", a.chunk.unwrap_or(0))?,
            scale: a.scale,
            softcap: a.softcap.unwrap_or(0.0),
            ..Shape::default()
        };
        if let Some(cache) = &a.packed {
            Self::check_packed(a, cache)?;
            cache.describe(&mut shape);
        }
        let split = |operand: &Operand| -> Result<(u64, u32, u32)> {
            let (outer, [row, head, _]) = (operand.view().strides.split_last_chunk::<3>())
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
            cu_rows = Some(dense(device, r)?);
            cu_keys = Some(dense(device, k)?);
        }
        if let Lengths::Paged { blocks, .. } = &a.lengths {
            shape.block_size = narrow("block size", a.k.dims[1])?;
            shape.table_row = narrow("row of the block table", blocks.dims[1])?;
            table = Some(dense(device, blocks)?);
        }
        let optional =
            |view: &Option<View<'a>>| (view.as_ref()).map(|view| dense(device, view)).transpose();
        let (alibi, prefix) = (optional(&a.alibi)?, optional(&a.prefix)?);
        let sinks = optional(&a.sinks)?;
        if let Some(prefix) = &a.prefix {
            shape.ranges = narrow("number of prefix ranges", prefix.dims[1])?;
        }
        let mask = match &a.mask {
            Some(mask) => {
                mask.check(OP.0)?;
                shape.mask_format = format(mask.dtype)?;
                [
                    shape.mask_batch,
                    shape.mask_head,
                    shape.mask_row,
                    shape.mask_key,
                ] = std::array::from_fn(|d| mask.strides[d] as u64);
                Some(Operand::in_place(mask))
            }
            None => {
                shape.mask_format = shared::NONE;
                None
            }
        };
        Ok(Problem {
            shape,
            dtype: a.q.dtype,
            kv_dtype: a.k.dtype,
            q,
            k,
            v,
            scales,
            packed: a.packed,
            cu_rows,
            cu_keys,
            table,
            alibi,
            sinks,
            mask,
            prefix,
            result: Attended {
                out: device.alloc(0)?,
                log_sum_exp: None,
                quantized: None,
            },
        })
    }

    /// Keys and values of a packed cache are its own, in blocks.
    fn check_packed(a: &Attention, cache: &PackedCache) -> Result<()> {
        let own = [(&a.k, cache.k.view()), (&a.v, cache.v.view())];
        let fits = own.iter().all(|(given, own)| {
            given.buffer.as_ptr() == own.buffer.as_ptr()
                && given.dims == own.dims
                && given.strides == own.strides
                && given.offset == 0
        });
        if !fits || !matches!(a.lengths, Lengths::Paged { .. }) || a.scales.is_some() {
            return Err(OP.invalid(
                "keys and values of a packed cache are the views that it gives, in blocks and without other scales",
            ));
        }
        Ok(())
    }

    /// Scales belong to 8-bit elements and lie as these do: every stride a 32nd.
    fn scales(
        a: &Attention<'a>,
        k: &Operand,
        v: &Operand,
    ) -> Result<Option<(Operand<'a>, Operand<'a>)>> {
        let (k_scales, v_scales) = match (&a.scales, a.k.dtype) {
            (None, DType::U8) => return Err(OP.invalid("8-bit keys and values need scales")),
            (None, _) => return Ok(None),
            (Some(scales), DType::U8) => scales,
            (Some(_), dtype) => {
                return Err(OP.invalid(format!(
                    "scales belong to keys and values of 8 bits, not {dtype}"
                )))
            }
        };
        check_scales(OP, k_scales, &a.k, k.view().strides)?;
        check_scales(OP, v_scales, &a.v, v.view().strides)?;
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
        let operands = [
            &self.alibi,
            &self.sinks,
            &self.mask,
            &self.prefix,
            &self.table,
        ];
        operands.iter().any(|operand| operand.is_some())
            || self.scales.is_some()
            || self.packed.is_some()
            || self.shape.softcap != 0.0
            || self.result.log_sum_exp.is_some()
    }

    /// Whether the rows of all sequences lie behind each other.
    pub fn is_packed(&self) -> bool {
        self.cu_rows.is_some()
    }

    /// Addresses of queries, keys, values and the result.
    pub fn push_tensors(&self, args: Args) -> Args {
        let args = push(push(push(args, &self.q), &self.k), &self.v);
        args.ptr(&self.result.out, 0)
    }

    /// Addresses of the starts of the sequences' rows and keys, or nulls.
    pub fn push_starts(&self, args: Args) -> Args {
        push_optional(push_optional(args, &self.cu_rows), &self.cu_keys)
    }

    /// What every attention kernel begins with.
    pub fn arguments(&self) -> ProblemArguments<'_> {
        let lse = self.result.log_sum_exp.as_ref();
        self.arguments_with(Ptr::to(&self.result.out), lse.map_or(Ptr::NULL, Ptr::to))
    }

    /// The same with a result, which lies as that of the problem does, and its log-sum-exp.
    pub fn arguments_with<'p>(&'p self, out: Ptr<'p>, lse: Ptr<'p>) -> ProblemArguments<'p> {
        fn optional<'p>(operand: &'p Option<Operand>) -> Ptr<'p> {
            operand.as_ref().map_or(Ptr::NULL, Operand::ptr)
        }
        let [k_scales, v_scales] = match (&self.packed, &self.scales) {
            (Some(cache), _) => cache.factors(),
            (None, Some((k, v))) => [k.ptr(), v.ptr()],
            (None, None) => [Ptr::NULL; 2],
        };
        ProblemArguments {
            operands: [
                self.q.ptr(),
                self.k.ptr(),
                self.v.ptr(),
                k_scales,
                v_scales,
                out,
                lse,
                optional(&self.cu_rows),
                optional(&self.cu_keys),
                optional(&self.table),
                optional(&self.alibi),
                optional(&self.sinks),
                optional(&self.mask),
                optional(&self.prefix),
            ],
            shape: self.shape,
        }
    }
}

/// `ATTENTION_PARAMETERS` of the kernels: addresses of queries, keys, values, scales of both, result, log-sum-exp,
/// starts of rows and keys, block table, slopes, sinks, mask and prefix ranges, null where the problem has none; then
/// [`Shape`].
#[derive(Clone, Copy)]
pub(super) struct ProblemArguments<'a> {
    operands: [Ptr<'a>; 14],
    shape: Shape,
}

impl Argument for ProblemArguments<'_> {
    fn declare(element: Option<DType>, types: &mut Vec<ArgumentType>) {
        for _ in 0..14 {
            Ptr::declare(element, types);
        }
        Shape::declare(element, types);
    }

    fn pass(&self, params: &mut Params) -> std::result::Result<(), Fault> {
        for operand in &self.operands {
            operand.pass(params)?;
        }
        self.shape.pass(params)
    }
}

/// Checks that factors belong to 8-bit elements that lie with `strides`.
pub(super) fn check_scales(op: Op, scales: &View, of: &View, strides: &[usize]) -> Result<()> {
    op.has_dtype(scales, DType::F16)?;
    let (last, outer) = of.dims.split_last().expect("checked to have dimensions");
    let same = scales.dims.split_last() == Some((&(last / SCALED), outer));
    if !same || !last.is_multiple_of(SCALED) {
        return Err(op.mismatch(of, scales));
    }
    let outer = outer.len();
    let parallel = (0..outer)
        .all(|d| scales.dims[d] <= 1 || scales.strides[d] * SCALED == strides[d])
        && (scales.dims[outer] <= 1 || scales.strides[outer] == 1);
    if !parallel {
        return Err(op.invalid(format!(
            "scales with strides {:?} do not lie as their elements with strides {strides:?} do",
            scales.strides
        )));
    }
    scales.check(op.0)
}

/// Positions and their differences are computed with 32 signed bits.
fn narrow(what: &'static str, value: usize) -> Result<u32> {
    OP.narrow(what, value, i32::MAX as u32)
}

fn limit(what: &'static str, size: Option<usize>) -> Result<u32> {
    size.map_or(Ok(UNLIMITED), |size| narrow(what, size))
}
