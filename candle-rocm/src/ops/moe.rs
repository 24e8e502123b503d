//! Mixture of experts: rows times the matrices that they are routed to.

use super::copy::check_count;
use super::operand::{check_float, check_same_dtype, shape_mismatch, Operand};
use crate::error_word::IndexOp;
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

/// The fields are those of `Experts` in `moe.hip`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Experts {
    slots: u32,
    slots_per_row: u32,
    experts: u32,
    n: u32,
    k: u32,
    op: u32,
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
    let size = x.dtype.size_in_bytes();
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
    let out = device.alloc(slots.saturating_mul(n).saturating_mul(size))?;
    if out.is_empty() {
        return Ok(out);
    }
    for count in [slots, experts, n, k] {
        check_count(OP, count)?;
    }
    let shape = Experts {
        slots: slots as u32,
        slots_per_row: (slots / rows) as u32,
        experts: experts as u32,
        n: n as u32,
        k: k as u32,
        op: IndexOp::MoeGemm as u32,
    };
    let operands =
        [x, weights, routing.slots, routing.experts].map(|view| Operand::contiguous(device, view));
    let scale = routing
        .scale
        .map(|scale| Operand::contiguous(device, scale))
        .transpose()?;
    let mut args = Args::new();
    let [x_dense, weights, slot_of, expert_of] = operands;
    for operand in [&x_dense?, &weights?, &slot_of?, &expert_of?] {
        args = operand.push(args);
    }
    args = match &scale {
        Some(scale) => scale.push(args),
        None => args.u64(0),
    };
    args = args.ptr(&out, 0).ptr(&device.error_word(), 0).value(&shape);
    let (name, config) = kernel.launch_config(device, slots, n);
    device
        .kernel(Family::Moe, &format!("{name}_{}", x.dtype))?
        .launch(config, &args)?;
    Ok(out)
}

/// Outputs of a wave, and of a tile, as in `moe.hip`.
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
                let wave = device.properties().wave_size as usize;
                let waves = slots.saturating_mul(n.div_ceil(WAVE_OUTPUTS));
                ("moe_matvec", waves.div_ceil(256 / wave), 256)
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
