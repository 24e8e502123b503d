//! Slots of a mixture in the order of their experts, for tiles.

use crate::kernels::{kernels, Ptr};
use crate::ops::check::Op;
use crate::ops::quantized::matmul::Experts;
use crate::{Buffer, Device, Family, IndexOp, LaunchConfig, Result};
use candle_rocm_kernels::shared::quantized::{ExpertTile, Slots, MAX_EXPERTS};

kernels! {
    /// Sorts slots by expert.
    sort_slots = "moe_sort" in Family::MoeQuantized
        => (slots: Slots, columns: u32, order: Ptr, tiles: Ptr, error: Ptr);
}

pub(super) const OP: Op = Op(IndexOp::IndexedMoe.as_str());

/// Experts that the sorting kernel has counters for.
pub(super) const MAX_SORTED_EXPERTS: usize = MAX_EXPERTS as usize;

/// Whether sorting is right.
pub(super) fn works(device: &Device) -> Result<bool> {
    sort_slots::of()?.works(device)
}

/// Slots in the order of their experts, on the device.
pub(super) struct Sorted {
    /// The number of tiles, in the place of one, and the tiles.
    tiles: Buffer,
    order: Buffer,
    /// How many tiles there are at most.
    pub most: usize,
}

impl Sorted {
    /// As the tiled kernels take them.
    pub fn experts(&self, routing: &Slots) -> Experts {
        Experts {
            tiles: self.tiles.as_ptr().cast_const().cast(),
            order: self.order.as_ptr().cast_const().cast(),
            matrix_bytes: routing.matrix_bytes,
            outputs_per_input: routing.slots_per_column,
        }
    }
}

/// Sorts slots by expert, for tiles of so many columns.
pub(super) fn sort(device: &Device, routing: &Slots, columns: usize) -> Result<Sorted> {
    let (slots, experts) = (routing.slots as usize, routing.experts as usize);
    // Every expert may leave its last tile partly empty.
    let most = slots / columns + experts.min(slots);
    let word = size_of::<u32>();
    let order = device.alloc(slots * word)?;
    let tiles = device.alloc((1 + most) * size_of::<ExpertTile>())?;
    let config = LaunchConfig {
        grid: 1,
        block: 256,
        shared_bytes: 0,
    };
    // SAFETY: there is room for the order of all slots and for as many tiles as there can be.
    unsafe {
        sort_slots::of()?.launch(
            device,
            config,
            *routing,
            columns as u32,
            Ptr::to(&order),
            Ptr::to(&tiles),
            Ptr::to(&device.error_word()),
        )?;
    }
    Ok(Sorted { tiles, order, most })
}
