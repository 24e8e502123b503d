//! Rows times the matrices of experts that are floats.

use crate::dtype::FLOATS;
use crate::error_word::IndexOp;
use crate::kernels::{kernels, Axis, Ptr};
use crate::ops::check::Op;
use crate::ops::copy::check_count;
use crate::ops::operand::Operand;
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::moe::{Experts, OUTPUTS, TILE_M, TILE_N, TILE_THREADS};
use std::fmt;

kernels! {
    /// A wave for a few outputs of a slot; `slot_of` and `scale` may be null.
    multiply_few = "moe_matvec_{numbers}" [numbers: Numbers = Numbers::ALL] in Family::MoeRows
        => (x: Ptr, weights: Ptr, slot_of: Ptr, expert_of: Ptr, scale: Ptr, out: Ptr, error: Ptr, shape: Experts);

    /// Tiles; `scale` may be null.
    multiply_many = "moe_matmul_{dtype}" [dtype: DType = FLOATS] in Family::MoeRows
        => (x: Ptr, weights: Ptr, slot_of: Ptr, expert_of: Ptr, scale: Ptr, out: Ptr, error: Ptr, shape: Experts);
}

/// The dtypes of experts' matrices, and of what they are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    weights: DType,
    x: DType,
}

impl Numbers {
    const ALL: [Self; 5] = [
        Self::new(DType::F16, DType::F16),
        Self::new(DType::BF16, DType::BF16),
        Self::new(DType::F32, DType::F32),
        Self::new(DType::F16, DType::F32),
        Self::new(DType::BF16, DType::F32),
    ];

    const fn new(weights: DType, x: DType) -> Self {
        Numbers { weights, x }
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.weights == self.x {
            true => write!(f, "{}", self.x),
            false => write!(f, "{}_{}", self.weights, self.x),
        }
    }
}

impl Axis for Numbers {}

const OP: Op = Op(IndexOp::MoeGemm.as_str());

/// Which rows meet which experts. A slot is a pair of a row and one of its experts; the slots of row `r` of `x [rows,
/// k]` are `r * per_row` to `(r + 1) * per_row`, with `per_row` = slots / rows.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'a> {
    /// The slots in the order of their experts, `[slots]` of u32, each once.
    pub slots: &'a View<'a>,
    /// The expert of each of these, `[slots]` of u32. Slots of one expert should be neighbours: each run of them reads
    /// its matrix once.
    pub experts: &'a View<'a>,
    /// A factor for each slot's result, in the slots' own order: `slots` elements of f32 in any shape.
    pub scale: Option<&'a View<'a>>,
}

/// The kernels; the choice between them depends on the shapes only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoeKernel {
    /// A wave for a few outputs of one slot: reads an expert's matrix once for each of its slots.
    Matvec,
    /// Tiles through LDS: reads an expert's matrix once for up to 32 slots.
    Matmul,
}

impl MoeKernel {
    /// What suits `slots` that are spread over `experts`. A tile does the work of 32 rows whatever it holds, so it pays
    /// from about two rows for each expert on.
    pub fn for_slots(slots: usize, experts: usize) -> Self {
        if slots <= 2 * experts {
            MoeKernel::Matvec
        } else {
            MoeKernel::Matmul
        }
    }
}

/// `out[slot] = scale[slot] * weights[expert of slot] x[row of slot]`, `[slots, n]` in x's dtype: f16, bf16 or f32,
/// summed in f32. `weights` is `[experts, n, k]`. A slot that `routing` leaves out has no defined result.
///
/// # Errors
/// [`Error::UnsupportedDType`](crate::Error::UnsupportedDType), [`Error::DTypeMismatch`](crate::Error::DTypeMismatch),
/// [`Error::ShapeMismatch`](crate::Error::ShapeMismatch), [`Error::InvalidView`](crate::Error::InvalidView),
/// [`Error::TooLarge`](crate::Error::TooLarge). A slot or expert that does not exist is an
/// [`Error::IndexOutOfRange`](crate::Error::IndexOutOfRange) of the next call that waits for the device.
pub fn moe_gemm(device: &Device, x: &View, weights: &View, routing: Routing) -> Result<Buffer> {
    let slots = routing.slots.elem_count();
    let experts = weights.dims.first().copied().unwrap_or(0);
    let suits = MoeKernel::for_slots(slots, experts);
    // A kernel that is switched off leaves its work to the other.
    let kernel = match FLOATS.contains(&x.dtype) && !suits.works(device, x.dtype)? {
        true => suits.other(),
        false => suits,
    };
    moe_gemm_with(device, kernel, x, weights, routing)
}

/// [`moe_gemm`] with a kernel of the caller's choice.
///
/// # Errors
/// Those of [`moe_gemm`].
pub fn moe_gemm_with(
    device: &Device,
    kernel: MoeKernel,
    x: &View,
    weights: &View,
    routing: Routing,
) -> Result<Buffer> {
    OP.float(x.dtype, false)?;
    OP.same_dtype(x, weights)?;
    let (&[rows, k], &[experts, n, weights_k]) = (x.dims, weights.dims) else {
        return Err(OP.mismatch(x, weights));
    };
    if k != weights_k {
        return Err(OP.mismatch(x, weights));
    }
    let slots = routing.slots.elem_count();
    if routing.slots.dims != [slots] || !slots.is_multiple_of(rows) {
        return Err(OP.mismatch(x, routing.slots));
    }
    if routing.experts.dims != [slots] {
        return Err(OP.mismatch(routing.slots, routing.experts));
    }
    for ids in [routing.slots, routing.experts] {
        OP.has_dtype(ids, DType::U32)?;
    }
    if let Some(scale) = routing.scale {
        OP.has_dtype(scale, DType::F32)?;
        if scale.elem_count() != slots {
            return Err(OP.mismatch(routing.slots, scale));
        }
    }
    for view in [x, weights, routing.slots, routing.experts]
        .into_iter()
        .chain(routing.scale)
    {
        view.check(OP.0)?;
    }
    let product = Product {
        op: IndexOp::MoeGemm,
        x,
        weights,
        dims: (experts, n, k),
        slots: Some(routing.slots),
        experts: routing.experts,
        scale: routing.scale,
        may_lack: false,
    };
    product.launch(device, kernel)
}

/// Slots in the order of their rows, `experts` of u32 with one for each slot: `out[slot] = weights[experts[slot]] x[row
/// of slot]`, f32 `[slots, n]`. `x` is f32, `weights` `[experts, n, k]` of f32, f16 or bf16. `u32::MAX` names no
/// expert; the slot becomes zero, as with one that does not exist, which is reported. The caller has checked that views
/// and shapes fit.
pub(super) fn slot_by_slot(
    device: &Device,
    op: IndexOp,
    x: &View,
    weights: &View,
    dims: (usize, usize, usize),
    experts: &View,
) -> Result<Buffer> {
    let product = Product {
        op,
        x,
        weights,
        dims,
        slots: None,
        experts,
        scale: None,
        may_lack: true,
    };
    product.launch(device, MoeKernel::Matvec)
}

/// A product whose operands fit.
struct Product<'a> {
    op: IndexOp,
    x: &'a View<'a>,
    weights: &'a View<'a>,
    /// Experts, rows of a matrix, elements of a row.
    dims: (usize, usize, usize),
    /// As in [`Routing`]; without them, slots are in their own order.
    slots: Option<&'a View<'a>>,
    experts: &'a View<'a>,
    scale: Option<&'a View<'a>>,
    /// Whether a slot may have no expert.
    may_lack: bool,
}

impl Product<'_> {
    /// `[slots, n]` in x's dtype.
    fn launch(&self, device: &Device, kernel: MoeKernel) -> Result<Buffer> {
        let op = self.op.as_str();
        let (experts, n, k) = self.dims;
        let slots = self.experts.elem_count();
        let size = self.x.dtype.size_in_bytes();
        let out = device.alloc(slots.saturating_mul(n).saturating_mul(size))?;
        if out.is_empty() {
            return Ok(out);
        }
        for count in [slots, experts, n, k] {
            check_count(op, count)?;
        }
        // There are slots, so there are rows: all but the last of x's dimensions.
        let rows: usize = self.x.dims.iter().rev().skip(1).product();
        let shape = Experts {
            slots: slots as u32,
            slots_per_row: (slots / rows) as u32,
            experts: experts as u32,
            n: n as u32,
            k: k as u32,
            op: self.op as u32,
            may_lack: self.may_lack.into(),
        };
        let dense = |view| Operand::contiguous(device, view);
        let (x, weights, experts) = (dense(self.x)?, dense(self.weights)?, dense(self.experts)?);
        let slot_of = self.slots.map(dense).transpose()?;
        let scale = self.scale.map(dense).transpose()?;
        fn optional<'p>(operand: &'p Option<Operand>) -> Ptr<'p> {
            operand.as_ref().map_or(Ptr::NULL, Operand::ptr)
        }
        let config = kernel.config(device, slots, n);
        let (x, weights, experts) = (x.ptr(), weights.ptr(), experts.ptr());
        let (slot_of, scale) = (optional(&slot_of), optional(&scale));
        let (y, word) = (Ptr::to(&out), device.error_word());
        let (error, numbers) = (
            Ptr::to(&word),
            Numbers::new(self.weights.dtype, self.x.dtype),
        );
        // SAFETY: operands are dense and were checked against each other, and the output has room for all slots.
        unsafe {
            match kernel {
                MoeKernel::Matvec => multiply_few::of(numbers)?.launch(
                    device, config, x, weights, slot_of, experts, scale, y, error, shape,
                )?,
                MoeKernel::Matmul => multiply_many::of(numbers.x)?.launch(
                    device, config, x, weights, slot_of, experts, scale, y, error, shape,
                )?,
            }
        }
        Ok(out)
    }
}

/// Threads of a block of the matvec kernel, if there are enough outputs for blocks on every compute unit, or else.
const MATVEC_BLOCKS: [usize; 2] = [256, 64];

impl MoeKernel {
    fn other(self) -> Self {
        match self {
            MoeKernel::Matvec => MoeKernel::Matmul,
            MoeKernel::Matmul => MoeKernel::Matvec,
        }
    }

    /// Whether it gives right results for experts and rows of a dtype.
    fn works(self, device: &Device, dtype: DType) -> Result<bool> {
        match self {
            MoeKernel::Matvec => multiply_few::of(Numbers::new(dtype, dtype))?.works(device),
            MoeKernel::Matmul => multiply_many::of(dtype)?.works(device),
        }
    }

    fn config(self, device: &Device, slots: usize, n: usize) -> LaunchConfig {
        let (blocks, block) = match self {
            MoeKernel::Matvec => {
                let properties = device.properties();
                let wave = properties.wave_size as usize;
                let waves = slots.saturating_mul(n.div_ceil(OUTPUTS as usize));
                // Small blocks spread the few waves of a small matrix over more compute units.
                let [large, small] = MATVEC_BLOCKS;
                let block = match waves < properties.compute_units as usize * (large / wave) {
                    true => small,
                    false => large,
                };
                (waves.div_ceil(block / wave), block as u32)
            }
            MoeKernel::Matmul => {
                let rows = slots.div_ceil(TILE_M as usize);
                (
                    rows.saturating_mul(n.div_ceil(TILE_N as usize)),
                    TILE_THREADS,
                )
            }
        };
        LaunchConfig {
            grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
            block,
            shared_bytes: 0,
        }
    }
}
