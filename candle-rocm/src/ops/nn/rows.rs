//! Tensors as rows along the last dimension, and the threads that work on them.

use crate::ops::collapse;
use crate::ops::copy::check_count;
use crate::ops::operand::{check_same_dtype, shape_mismatch, Operand};
use crate::{Args, Buffer, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

/// Bytes of a row that a thread of a block keeps in registers, as in `rows.h`.
const KEPT_BYTES: usize = 64;
/// Most elements of a row that a thread keeps in registers where a wave has a row, as in `rows.h`.
const KEPT_BY_WAVE: usize = 16;
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
        check_same_dtype(op, x, parameter)?;
        parameter.check(op)?;
        if *parameter.dims != [self.columns] {
            return Err(shape_mismatch(op, x, parameter));
        }
        Operand::contiguous(device, parameter)
    }

    /// Rows that are added to these.
    pub fn addend<'r>(
        &self,
        device: &Device,
        op: &'static str,
        addend: &'r View<'r>,
    ) -> Result<Rows<'r>> {
        let x = self.operand.view;
        check_same_dtype(op, x, addend)?;
        if x.dims != addend.dims {
            return Err(shape_mismatch(op, x, addend));
        }
        Rows::new(device, op, addend)
    }

    /// Memory for packed rows like these.
    pub fn output(&self, device: &Device) -> Result<Buffer> {
        let size = self.operand.view.dtype.size_in_bytes();
        device.alloc((self.count * self.columns).saturating_mul(size))
    }

    /// Launches `<name>_<dtype>`, in which a block has a row, or `<name>_wave_<dtype>`, in which a wave has one.
    pub fn launch(&self, device: &Device, family: Family, name: &str, args: &Args) -> Result<()> {
        if self.count * self.columns == 0 {
            return Ok(());
        }
        let dtype = self.operand.view.dtype;
        let wave = device.properties().wave_size as usize;
        let kept = KEPT_BYTES / dtype.size_in_bytes();
        let (name, blocks, block) = if self.columns <= wave * kept.min(KEPT_BY_WAVE) {
            let rows_per_block = WAVES_BLOCK as usize / wave;
            (
                format!("{name}_wave_{dtype}"),
                self.count.div_ceil(rows_per_block),
                WAVES_BLOCK,
            )
        } else {
            let threads = self
                .columns
                .div_ceil(kept)
                .next_multiple_of(wave)
                .min(MAX_BLOCK);
            (format!("{name}_{dtype}"), self.count, threads as u32)
        };
        let config = LaunchConfig {
            grid: blocks.min(LaunchConfig::MAX_GRID as usize) as u32,
            block,
            shared_bytes: 0,
        };
        device.kernel(family, &name)?.launch(config, args)
    }
}
