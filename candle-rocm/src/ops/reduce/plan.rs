//! How the work of a reduction is laid out.

use super::super::{collapse, copy, Dims, Strides};
use super::{ReduceOp, COLUMNS, ROWS};
use crate::{LaunchConfig, Result, View};
use candle_rocm_kernels::shared::reduce::{
    PacksPlan, Plan as StridedPlan, MOST_COLUMNS, MOST_INDEX_COLUMNS, REDUCE_BLOCK,
};

/// Threads of a block.
const BLOCK: u64 = REDUCE_BLOCK as u64;
/// Enough blocks to fill any GPU; a constant, so that the order of additions is the same on all of them.
const WANTED_BLOCKS: u64 = 1024;
/// Elements that a thread should have at least before a reduction is cut into more parts.
const MIN_PER_THREAD: u64 = 16;
/// Neighbouring outputs whose elements, adjacent in memory, make a wave's loads dense.
const DENSE_COLUMNS: u64 = 32;
/// Packs of columns that fill a cache line.
const LINE_PACKS: u64 = 8;
/// Lanes that join their results without meeting at a barrier.
const FEW_LANES: u64 = 32;

/// Which kernels do the work, with what only they are told.
#[derive(Clone, Copy)]
enum Way {
    /// Any layout, element by element. Neighbouring threads share an output (`lanes_fast`), or have neighbouring ones.
    Strided {
        lanes_fast: bool,
        kept: (Dims, Strides),
        reduced: (Dims, Strides),
    },
    /// The reduced elements are neighbours, read in packs; the outputs' rows are `stride` apart.
    Rows { stride: u64 },
    /// Packs of outputs are neighbours in `matrix_columns`, of which each has its reduced elements `row_stride` apart.
    Columns {
        pack: u64,
        row_stride: u64,
        matrix_stride: u64,
        matrix_columns: u64,
    },
}

/// A reduction's work: outputs over blocks and threads, reduced elements over lanes and parts.
pub(super) struct Plan {
    outputs: u64,
    reduced: u64,
    part_size: u64,
    parts: u64,
    lanes: u64,
    divisor: f64,
    way: Way,
}

/// What a kernel takes: the plan, and for packs which way they lie.
pub(super) enum KernelPlan {
    Strided(StridedPlan),
    Packs(&'static str, PacksPlan),
}

impl Plan {
    /// `in_packs` says whether kernels for packs may be used.
    pub(super) fn new(
        op: ReduceOp,
        src: &View,
        is_reduced: impl Fn(usize) -> bool,
        (outputs, reduced): (usize, usize),
        in_packs: bool,
    ) -> Result<Self> {
        let way = choose_way(op, src, is_reduced, reduced, in_packs)?;
        let mut plan = Self::whole(op, outputs, reduced, way);
        plan.cut();
        Ok(plan)
    }

    /// Joins partial results `[outputs, parts]`. What takes their indices along has no kernel for packs.
    pub(super) fn join(op: ReduceOp, outputs: usize, parts: usize, in_packs: bool) -> Self {
        let way = if op.gives_index() || !in_packs {
            let line = |stride: u32| {
                let mut strides = Strides::default();
                strides.s[0] = stride;
                let dims = Dims {
                    rank: 1,
                    ..Dims::default()
                };
                (dims, strides)
            };
            Way::Strided {
                lanes_fast: true,
                kept: line(parts as u32),
                reduced: line(1),
            }
        } else {
            Way::Rows {
                stride: parts as u64,
            }
        };
        Self::whole(op, outputs, parts, way)
    }

    /// Not cut into parts.
    fn whole(op: ReduceOp, outputs: usize, reduced: usize, way: Way) -> Self {
        let mut plan = Plan {
            outputs: outputs as u64,
            reduced: reduced as u64,
            part_size: reduced as u64,
            parts: 1,
            lanes: 1,
            divisor: 1.0,
            way,
        };
        plan.choose_lanes(op);
        plan
    }

    /// About eight elements a thread until the block is full. Along columns, a block spans enough neighbours for dense
    /// loads first.
    fn choose_lanes(&mut self, op: ReduceOp) {
        let share = (self.reduced / 8).max(1).next_power_of_two();
        match self.way {
            Way::Strided { lanes_fast, .. } => {
                let columns = self.outputs.next_power_of_two().min(DENSE_COLUMNS);
                self.lanes = share.min(if lanes_fast { BLOCK } else { BLOCK / columns });
            }
            Way::Rows { .. } => {
                self.lanes = share.min(BLOCK);
                // With rows enough, fewer threads for each spend less of their time on joining, which takes longer with
                // indices.
                let enough = if op.gives_index() { 4 } else { 8 } * WANTED_BLOCKS;
                while self.lanes > FEW_LANES && self.tiles() >= enough {
                    self.lanes /= 2;
                }
            }
            Way::Columns { pack, .. } => {
                let packs = (self.outputs / pack).next_power_of_two();
                let mut columns = packs.min(DENSE_COLUMNS);
                self.lanes = share.min(BLOCK / columns);
                // A second launch for the parts costs more than short runs of columns, and less with fewer parts;
                // indices have shorter packs.
                while columns > LINE_PACKS
                    && (self.tiles() * self.most_parts() < WANTED_BLOCKS / 4
                        || self.tiles() < WANTED_BLOCKS && !op.gives_index())
                {
                    columns /= 2;
                    self.lanes = share.min(BLOCK / columns);
                }
            }
        }
    }

    fn most_parts(&self) -> u64 {
        (self.reduced / (self.lanes * MIN_PER_THREAD)).max(1)
    }

    /// Cuts the reduced elements into parts if there are too few outputs to fill a GPU.
    fn cut(&mut self) {
        let parts = (WANTED_BLOCKS / self.tiles()).clamp(1, self.most_parts());
        // Parts of rows begin where packs do.
        let unit = match self.way {
            Way::Rows { .. } => self.lanes * MIN_PER_THREAD,
            _ => self.lanes,
        };
        self.part_size = self.reduced.div_ceil(parts).next_multiple_of(unit);
        self.parts = self.reduced.div_ceil(self.part_size);
    }

    /// What sums of floats are divided by before they are rounded.
    pub(super) fn divide_by(&mut self, divisor: f64) {
        self.divisor = divisor;
    }

    pub(super) fn parts(&self) -> usize {
        self.parts as usize
    }

    /// Pieces of work for a block.
    fn tiles(&self) -> u64 {
        let pack = match self.way {
            Way::Columns { pack, .. } => pack,
            _ => 1,
        };
        self.outputs.div_ceil(BLOCK / self.lanes * pack) * self.parts
    }

    pub(super) fn config(&self) -> LaunchConfig {
        LaunchConfig {
            grid: self.tiles().min(LaunchConfig::MAX_GRID.into()) as u32,
            block: BLOCK as u32,
            shared_bytes: 0,
        }
    }

    /// The plan as the kernels take it.
    pub(super) fn of_kernel(&self) -> KernelPlan {
        let packs = |row_stride, matrix_stride, matrix_columns| PacksPlan {
            outputs: self.outputs,
            reduced: self.reduced,
            part_size: self.part_size,
            divisor: self.divisor,
            tiles: self.tiles(),
            row_stride,
            matrix_stride,
            matrix_columns,
            parts: self.parts as u32,
            lanes_log2: self.lanes.ilog2(),
        };
        match self.way {
            Way::Strided {
                lanes_fast,
                kept,
                reduced,
            } => KernelPlan::Strided(StridedPlan {
                outputs: self.outputs,
                reduced: self.reduced,
                part_size: self.part_size,
                divisor: self.divisor,
                parts: self.parts as u32,
                lanes: self.lanes as u32,
                lanes_fast: u32::from(lanes_fast),
                kept_dims: kept.0,
                kept_strides: kept.1,
                reduced_dims: reduced.0,
                reduced_strides: reduced.1,
            }),
            Way::Rows { stride } => KernelPlan::Packs(ROWS, packs(stride, 0, 0)),
            Way::Columns {
                row_stride,
                matrix_stride,
                matrix_columns,
                ..
            } => KernelPlan::Packs(COLUMNS, packs(row_stride, matrix_stride, matrix_columns)),
        }
    }
}

fn choose_way(
    op: ReduceOp,
    src: &View,
    is_reduced: impl Fn(usize) -> bool,
    reduced: usize,
    in_packs: bool,
) -> Result<Way> {
    let name = op.as_str();
    let rank = src.dims.len();
    let leading = (0..rank).take_while(|&axis| !is_reduced(axis)).count();
    if in_packs && src.is_contiguous() && (leading..rank).all(&is_reduced) {
        return Ok(Way::Rows {
            stride: reduced as u64,
        });
    }
    let side = |wanted: bool| -> (Vec<usize>, Vec<usize>) {
        (0..rank)
            .filter(|&axis| is_reduced(axis) == wanted)
            .map(|axis| (src.dims[axis], src.strides[axis]))
            .unzip()
    };
    let (dims, strides) = side(false);
    let kept = collapse(name, &dims, [&strides])?;
    let (dims, strides) = side(true);
    let inner = collapse(name, &dims, [&strides])?;
    let innermost = |dims: &Dims, strides: &Strides| {
        let last = dims.rank as usize - 1;
        if dims.size[last] == 1 {
            u32::MAX
        } else {
            strides.s[last]
        }
    };
    let reduced_step = innermost(&inner.dims, &inner.strides[0]);
    let kept_step = innermost(&kept.dims, &kept.strides[0]);
    if in_packs && inner.dims.rank == 1 && reduced_step == 1 && kept.dims.rank == 1 {
        return Ok(Way::Rows {
            stride: kept.strides[0].s[0].into(),
        });
    }
    if in_packs && inner.dims.rank == 1 && kept_step == 1 && kept.dims.rank <= 2 {
        let size = src.dtype.size_in_bytes();
        let pack = columns_in_pack(op, size);
        let line = kept.dims.rank as usize - 1;
        let matrix_columns = u64::from(kept.dims.size[line]);
        let row_stride = u64::from(inner.strides[0].s[0]);
        let matrix_stride = u64::from(if line == 0 { 0 } else { kept.strides[0].s[0] });
        let start = (copy::address(src.buffer, src.offset * size) / size) as u64;
        if [matrix_columns, row_stride, matrix_stride, start]
            .iter()
            .all(|elements| elements.is_multiple_of(pack))
        {
            return Ok(Way::Columns {
                pack,
                row_stride,
                matrix_stride,
                matrix_columns,
            });
        }
    }
    Ok(Way::Strided {
        lanes_fast: reduced_step <= kept_step,
        kept: (kept.dims, kept.strides[0]),
        reduced: (inner.dims, inner.strides[0]),
    })
}

/// Columns that a thread of `reduce_packs.hip` has: 16 bytes of them, within the operation's limit.
fn columns_in_pack(op: ReduceOp, size: usize) -> u64 {
    let most = if op.gives_index() {
        MOST_INDEX_COLUMNS
    } else {
        MOST_COLUMNS
    };
    (16 / size as u64).min(most.into())
}
