//! Tensors as rows along the last dimension, and the threads that work on them.

use crate::kernels::Axis;
use crate::ops::check::Op;
use crate::ops::collapse;
use crate::ops::copy::check_count;
use crate::ops::operand::Operand;
use crate::{Buffer, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::rows::{RowVectors, KEPT_BYTES, MOST_KEPT_BY_WAVE};

/// Threads of a block in which each wave has its own row.
const WAVES_BLOCK: u32 = 256;
/// Threads of the largest block.
pub(super) const MAX_BLOCK: usize = 1024;

/// A tensor seen as rows along its last dimension, in place where the rows are dense and evenly spaced.
pub(super) struct Rows<'a> {
    pub operand: Operand<'a>,
    pub count: usize,
    pub columns: usize,
    /// Elements between the starts of rows.
    pub stride: usize,
}

impl<'a> Rows<'a> {
    pub fn new(device: &Device, op: &'static str, x: &'a View<'a>) -> Result<Self> {
        x.check(op)?;
        let Some((&columns, outer)) = x.dims.split_last() else {
            return Err(Error::InvalidArgument {
                op,
                reason: "a tensor without dimensions has no last one".into(),
            });
        };
        check_count(op, columns)?;
        let mut rows = Rows {
            operand: Operand::in_place(x),
            count: outer.iter().product(),
            columns,
            stride: columns,
        };
        if x.is_contiguous() {
            return Ok(rows);
        }
        if x.strides[outer.len()] == 1 {
            let layout = collapse(op, outer, [&x.strides[..outer.len()]])?;
            if layout.dims.rank <= 1 {
                rows.stride = layout.strides[0].s[0] as usize;
                return Ok(rows);
            }
        }
        rows.operand = Operand::contiguous(device, x)?;
        Ok(rows)
    }

    /// A vector that goes along with the rows.
    pub fn parameter<'p>(
        &self,
        device: &Device,
        op: &'static str,
        parameter: &'p View<'p>,
    ) -> Result<Operand<'p>> {
        let x = self.operand.view;
        Op(op).same_dtype(&x, parameter)?;
        parameter.check(op)?;
        if *parameter.dims != [self.columns] {
            return Err(Op(op).mismatch(&x, parameter));
        }
        Operand::contiguous(device, parameter)
    }

    /// Vectors beside the rows, which several rows may share: `vectors` has the shape of these, with strides of zero
    /// where they are shared.
    pub fn beside<'p>(
        &self,
        device: &Device,
        op: &'static str,
        vectors: &'p View<'p>,
    ) -> Result<(Operand<'p>, RowVectors)> {
        self.fits_beside(op, vectors)?;
        let (stride, outer) = self.split(vectors);
        if stride == 1 || self.columns <= 1 {
            if let Some(beside) = self.places(op, outer)? {
                return Ok((Operand::in_place(vectors), beside));
            }
        }
        let (inner, outer, step) = (u32::MAX, 0, self.columns as u32);
        let beside = RowVectors { inner, outer, step };
        Ok((Operand::contiguous(device, vectors)?, beside))
    }

    /// Where a number for each row lies, if `numbers`, which has the shape of these, are that.
    pub fn numbers_beside(&self, op: &'static str, numbers: &View) -> Result<Option<RowVectors>> {
        self.fits_beside(op, numbers)?;
        let (stride, outer) = self.split(numbers);
        match stride {
            0 => self.places(op, outer),
            _ => Ok(None),
        }
    }

    fn fits_beside(&self, op: &'static str, beside: &View) -> Result<()> {
        let x = self.operand.view;
        Op(op).same_dtype(&x, beside)?;
        beside.check(op)?;
        match x.dims == beside.dims {
            true => Ok(()),
            false => Err(Op(op).mismatch(&x, beside)),
        }
    }

    /// The last stride, and those before.
    fn split<'p>(&self, view: &'p View) -> (usize, &'p [usize]) {
        let outer = view.strides.len() - 1;
        (view.strides[outer], &view.strides[..outer])
    }

    /// Where rows are that lie `strides` apart, if two numbers can tell.
    fn places(&self, op: &'static str, strides: &[usize]) -> Result<Option<RowVectors>> {
        let dims = &self.operand.view.dims[..strides.len()];
        let layout = collapse(op, dims, [strides])?;
        let (size, steps) = (layout.dims.size, layout.strides[0].s);
        let (inner, outer, step) = match layout.dims.rank {
            0 | 1 => (u32::MAX, 0, steps[0]),
            2 => (size[1], steps[0], steps[1]),
            _ => return Ok(None),
        };
        Ok(Some(RowVectors { inner, outer, step }))
    }

    /// Rows that are added to these.
    pub fn addend<'r>(
        &self,
        device: &Device,
        op: &'static str,
        addend: &'r View<'r>,
    ) -> Result<Rows<'r>> {
        let x = self.operand.view;
        Op(op).same_dtype(&x, addend)?;
        if x.dims != addend.dims {
            return Err(Op(op).mismatch(&x, addend));
        }
        Rows::new(device, op, addend)
    }

    /// Memory for packed rows like these.
    pub fn output(&self, device: &Device) -> Result<Buffer> {
        let size = self.operand.view.dtype.size_in_bytes();
        device.alloc((self.count * self.columns).saturating_mul(size))
    }

    /// Who works on a row, and how many threads there are for all rows: none if they have no elements.
    pub fn team(&self, device: &Device) -> (Team, LaunchConfig) {
        let wave = device.properties().wave_size as usize;
        let kept = KEPT_BYTES as usize / self.operand.view.dtype.size_in_bytes();
        let (team, blocks, block) = if self.columns <= wave * kept.min(MOST_KEPT_BY_WAVE as usize) {
            let rows_per_block = WAVES_BLOCK as usize / wave;
            (Team::Wave, self.count.div_ceil(rows_per_block), WAVES_BLOCK)
        } else {
            let threads = self
                .columns
                .div_ceil(kept)
                .next_multiple_of(wave)
                .min(MAX_BLOCK);
            (Team::Block, self.count, threads as u32)
        };
        let blocks = if self.columns == 0 { 0 } else { blocks };
        let config = LaunchConfig {
            grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
            block,
            shared_bytes: 0,
        };
        (team, config)
    }
}

/// The threads that share a row, as kernels' names tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Team {
    /// Those of a block.
    Block,
    /// Those of a wave; a block has several rows.
    Wave,
}

impl Team {
    pub const ALL: [Team; 2] = [Team::Block, Team::Wave];
}

impl std::fmt::Display for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Team::Block => "",
            Team::Wave => "_wave",
        })
    }
}

impl Axis for Team {}
