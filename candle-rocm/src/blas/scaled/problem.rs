//! What hipBLASLt is asked for.

use crate::ops::cast::halve_fnuz;
use crate::ops::copy::contiguous;
use crate::ops::scaled::Scales;
use crate::sys::hipblaslt;
use crate::{Buffer, DType, Device, Generation, Result, View};
use std::ffi::{c_int, c_void};

/// Rows, columns and the length of rows are multiples of this.
const MULTIPLE: usize = 16;

/// A product of two matrices that hipBLASLt may have a solution for. Operands were checked to lie in their buffers.
pub(super) struct Problem<'a> {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: View<'a>,
    pub b: View<'a>,
    scale_a: View<'a>,
    scale_b: View<'a>,
    /// Whether scales belong to rows, not to tensors.
    pub by_rows: bool,
    bias: Option<View<'a>>,
    pub to: DType,
    /// How the GPU reads 8-bit floats.
    pub encoding: c_int,
}

/// Rows of floats without gaps, as the GPU's instructions read them.
pub(super) enum Floats<'a> {
    InPlace(View<'a>),
    Copy(Buffer),
}

impl<'a> Floats<'a> {
    pub fn new(device: &Device, view: &View<'a>, encoding: c_int) -> Result<Self> {
        Ok(match encoding {
            hipblaslt::DATATYPE_F8E4M3_FNUZ => Floats::Copy(halve_fnuz(device, view)?),
            _ if view.is_contiguous() => Floats::InPlace(*view),
            _ => Floats::Copy(contiguous(device, view)?),
        })
    }

    pub fn address(&self) -> *const c_void {
        match self {
            Floats::InPlace(view) => address(view),
            Floats::Copy(buffer) => buffer.as_ptr(),
        }
    }
}

fn address(view: &View) -> *const c_void {
    let offset = view.offset * view.dtype.size_in_bytes();
    view.buffer.as_ptr().wrapping_byte_add(offset)
}

/// How a GPU's instructions read 8-bit floats; none for a GPU that has none.
fn encoding(device: &Device) -> Option<c_int> {
    match device.properties().arch.generation() {
        Generation::Cdna3 => Some(hipblaslt::DATATYPE_F8E4M3_FNUZ),
        Generation::Cdna4 | Generation::Rdna4 => Some(hipblaslt::DATATYPE_F8E4M3),
        _ => None,
    }
}

impl<'a> Problem<'a> {
    /// The product, if it is one of those that hipBLASLt is asked for; whatever is wrong with it, our own kernels say.
    pub fn new(
        device: &Device,
        a: &View<'a>,
        b: &View<'a>,
        scale_a: &Scales<'a>,
        scale_b: &Scales<'a>,
        bias: Option<&View<'a>>,
        to: DType,
    ) -> Option<Self> {
        let (scale_a, scale_b, by_rows) = match (scale_a, scale_b) {
            (Scales::Tensor(a), Scales::Tensor(b)) => (*a, *b, false),
            (Scales::Rows(a), Scales::Rows(b)) => (*a, *b, true),
            _ => return None,
        };
        let ([outer @ .., rows, k], [n, of_b]) = (a.dims, b.dims) else {
            return None;
        };
        let m = outer.iter().try_fold(*rows, |m, dim| m.checked_mul(*dim))?;
        let encoding = encoding(device)?;
        let fits = |size: usize| {
            size > 0 && size.is_multiple_of(MULTIPLE) && c_int::try_from(size).is_ok()
        };
        let scales = |view: &View, rows: usize| {
            let count = if by_rows { rows } else { 1 };
            view.dtype == DType::F32 && view.is_contiguous() && view.elem_count() == count
        };
        let are_fit = k == of_b
            && [m, *n, *k].into_iter().all(fits)
            && [a, b].iter().all(|view| view.dtype == DType::F8E4M3)
            && scales(&scale_a, m)
            && scales(&scale_b, *n)
            && matches!(to, DType::F32 | DType::F16 | DType::BF16)
            && bias.is_none_or(|b| b.dtype == to && b.dims == [*n] && b.is_contiguous());
        let views = [Some(a), Some(b), Some(&scale_a), Some(&scale_b), bias];
        let are_there = |view: &View| {
            view.check("scaled matmul").is_ok() && view.buffer.device().same_device(device)
        };
        if !are_fit || !views.into_iter().flatten().all(are_there) {
            return None;
        }
        Some(Problem {
            m,
            n: *n,
            k: *k,
            a: *a,
            b: *b,
            scale_a,
            scale_b,
            by_rows,
            bias: bias.copied(),
            to,
            encoding,
        })
    }

    /// What products like this are verified as.
    pub fn verified_name(&self) -> String {
        let scales = if self.by_rows { "rows" } else { "tensors" };
        let bias = if self.bias.is_some() { " and bias" } else { "" };
        format!("hipblaslt/f8e4m3 to {}, scales of {scales}{bias}", self.to)
    }

    /// The factor of the product: two operands in FNUZ are halves.
    pub fn alpha(&self) -> f32 {
        match self.encoding {
            hipblaslt::DATATYPE_F8E4M3_FNUZ => 4.0,
            _ => 1.0,
        }
    }

    /// hipBLASLt's number for the result's dtype.
    pub fn output_type(&self) -> c_int {
        match self.to {
            DType::F16 => hipblaslt::DATATYPE_F16,
            DType::BF16 => hipblaslt::DATATYPE_BF16,
            _ => hipblaslt::DATATYPE_F32,
        }
    }

    pub fn scale_a(&self) -> *const c_void {
        address(&self.scale_a)
    }

    pub fn scale_b(&self) -> *const c_void {
        address(&self.scale_b)
    }

    pub fn bias(&self) -> Option<*const c_void> {
        self.bias.as_ref().map(address)
    }
}
