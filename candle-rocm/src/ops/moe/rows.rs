//! Rows times the matrices of experts that are floats.

use crate::error_word::IndexOp;
use crate::ops::copy::check_count;
use crate::ops::operand::{check_float, check_same_dtype, shape_mismatch, Operand};
use crate::{Args, Buffer, DType, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

const OP: &str = IndexOp::MoeGemm.as_str();

/// Which rows meet which experts. A slot is a pair of a row and one of its experts; the slots of row `r` of `x [rows, k]` are
/// `r * per_row` to `(r + 1) * per_row`, with `per_row` = slots / rows.
#[derive(Clone, Copy, Debug)]
pub struct Routing<'a> {
    /// The slots in the order of their experts, `[slots]` of u32, each once.
    pub slots: &'a View<'a>,
    /// The expert of each of these, `[slots]` of u32. Slots of one expert should be neighbours: each run of them reads its matrix once.
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
    /// What suits `slots` that are spread over `experts`. A tile does the work of 32 rows whatever it holds, so it pays from about
    /// two rows for each expert on.
    pub fn for_slots(slots: usize, experts: usize) -> Self {
        if slots <= 2 * experts {
            MoeKernel::Matvec
        } else {
            MoeKernel::Matmul
        }
    }
}

/// `out[slot] = scale[slot] * weights[expert of slot] x[row of slot]`, `[slots, n]` in x's dtype: f16, bf16 or f32, summed in f32.
/// `weights` is `[experts, n, k]`. A slot that `routing` leaves out has no defined result.
///
/// # Errors
/// [`Error::UnsupportedDType`], [`Error::DTypeMismatch`], [`Error::ShapeMismatch`], [`Error::InvalidView`], [`Error::TooLarge`].
/// A slot or expert that does not exist is an [`Error::IndexOutOfRange`] of the next call that waits for the device.
pub fn moe_gemm(device: &Device, x: &View, weights: &View, routing: Routing) -> Result<Buffer> {
    let slots = routing.slots.elem_count();
    let experts = weights.dims.first().copied().unwrap_or(0);
    moe_gemm_with(
        device,
        MoeKernel::for_slots(slots, experts),
        x,
        weights,
        routing,
    )
}

/// The fields are those of `Experts` in `moe/rows.hip`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Experts {
    slots: u32,
    slots_per_row: u32,
    experts: u32,
    n: u32,
    k: u32,
    op: u32,
    may_lack: u32,
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
    check_float(OP, x.dtype, false)?;
    check_same_dtype(OP, x, weights)?;
    let (&[rows, k], &[experts, n, weights_k]) = (x.dims, weights.dims) else {
        return Err(shape_mismatch(OP, x, weights));
    };
    if k != weights_k {
        return Err(shape_mismatch(OP, x, weights));
    }
    let slots = routing.slots.elem_count();
    if routing.slots.dims != [slots] || !slots.is_multiple_of(rows) {
        return Err(shape_mismatch(OP, x, routing.slots));
    }
    if routing.experts.dims != [slots] {
        return Err(shape_mismatch(OP, routing.slots, routing.experts));
    }
    for ids in [routing.slots, routing.experts] {
        check_dtype(ids, DType::U32)?;
    }
    if let Some(scale) = routing.scale {
        check_dtype(scale, DType::F32)?;
        if scale.elem_count() != slots {
            return Err(shape_mismatch(OP, routing.slots, scale));
        }
    }
    for view in [x, weights, routing.slots, routing.experts]
        .into_iter()
        .chain(routing.scale)
    {
        view.check(OP)?;
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

/// Slots in the order of their rows, `experts` of u32 with one for each slot: `out[slot] = weights[experts[slot]] x[row of slot]`, f32
/// `[slots, n]`. `x` is f32, `weights` `[experts, n, k]` of f32, f16 or bf16. `u32::MAX` names no expert; the slot becomes zero, as with
/// one that does not exist, which is reported. The caller has checked that views and shapes fit.
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
        let optional = |operand: &Option<Operand>, args: Args| match operand {
            Some(operand) => operand.push(args),
            None => args.u64(0),
        };
        let args = optional(&slot_of, weights.push(x.push(Args::new())));
        let args = optional(&scale, experts.push(args));
        let args = args.ptr(&out, 0).ptr(&device.error_word(), 0).value(&shape);
        let (name, config) = kernel.launch_config(device, slots, n);
        let dtype = match (self.weights.dtype, self.x.dtype) {
            (weights, x) if weights == x => x.to_string(),
            (weights, x) => format!("{weights}_{x}"),
        };
        device
            .kernel(Family::MoeRows, &format!("{name}_{dtype}"))?
            .launch(config, &args)?;
        Ok(out)
    }
}

/// Threads of a block of the matvec kernel, if there are enough outputs for blocks on every compute unit, or else.
const MATVEC_BLOCKS: [usize; 2] = [256, 64];
/// Outputs of a wave, and of a tile, as in `moe/rows.hip`.
const WAVE_OUTPUTS: usize = 4;
const TILE: (usize, usize) = (32, 64);

impl MoeKernel {
    fn launch_config(
        self,
        device: &Device,
        slots: usize,
        n: usize,
    ) -> (&'static str, LaunchConfig) {
        let (name, blocks, block) = match self {
            MoeKernel::Matvec => {
                let properties = device.properties();
                let wave = properties.wave_size as usize;
                let waves = slots.saturating_mul(n.div_ceil(WAVE_OUTPUTS));
                // Small blocks spread the few waves of a small matrix over more compute units.
                let [large, small] = MATVEC_BLOCKS;
                let block = match waves < properties.compute_units as usize * (large / wave) {
                    true => small,
                    false => large,
                };
                ("moe_matvec", waves.div_ceil(block / wave), block as u32)
            }
            MoeKernel::Matmul => {
                let tiles = slots.div_ceil(TILE.0).saturating_mul(n.div_ceil(TILE.1));
                ("moe_matmul", tiles, 128)
            }
        };
        let config = LaunchConfig {
            grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
            block,
            shared_bytes: 0,
        };
        (name, config)
    }
}

fn check_dtype(view: &View, dtype: DType) -> Result<()> {
    if view.dtype == dtype {
        return Ok(());
    }
    Err(Error::DTypeMismatch {
        op: OP,
        lhs: view.dtype,
        rhs: dtype,
    })
}
