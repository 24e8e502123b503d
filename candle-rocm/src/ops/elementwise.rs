//! What the element-wise launchers share. The device side is `elementwise.h`.

use super::dims::{collapse_any_length, Collapsed, Dims, Strides};
use crate::kernels::Ptr;
use crate::{Buffer, DType, Device, Error, LaunchConfig, Result, View};

/// What element-wise kernels take. The views were checked, and the output has room for all elements.
pub(super) struct Work<'a, const K: usize> {
    pub config: LaunchConfig,
    pub count: u64,
    pub dims: Dims,
    pub strides: [Strides; K],
    pub inputs: [Ptr<'a>; K],
    pub output: Ptr<'a>,
}

/// A kernel over the elements of `K` inputs of one shape.
pub(super) struct Elementwise<const K: usize> {
    count: usize,
    layout: Collapsed<K>,
    /// Size of the widest element type among inputs and output, in bytes.
    widest: usize,
}

impl<const K: usize> Elementwise<K> {
    /// Verifies the inputs and merges their dimensions. `out` is the type of the result.
    ///
    /// # Errors
    /// [`Error::InvalidView`], [`Error::ShapeMismatch`], [`Error::TooLarge`].
    pub fn new(op: &'static str, inputs: [&View; K], out: DType) -> Result<Self> {
        let first = inputs[0];
        for input in inputs {
            input.check(op)?;
            if input.dims != first.dims {
                return Err(Error::ShapeMismatch {
                    op,
                    lhs: first.dims.to_vec(),
                    rhs: input.dims.to_vec(),
                });
            }
        }
        Ok(Self {
            count: element_count(op, first.dims, out)?,
            layout: collapse_any_length(op, first.dims, inputs.map(|v| v.strides))?,
            widest: inputs
                .iter()
                .map(|v| v.dtype.size_in_bytes())
                .fold(out.size_in_bytes(), usize::max),
        })
    }

    /// Allocates the output, of type `out`, and has `launch` enqueue the kernel.
    pub fn run(
        &self,
        device: &Device,
        inputs: [&View; K],
        out: DType,
        launch: impl FnOnce(Work<K>) -> Result<()>,
    ) -> Result<Buffer> {
        let output = device.alloc(self.count * out.size_in_bytes())?;
        if self.count > 0 {
            launch(Work {
                config: LaunchConfig::for_elements(self.threads()),
                count: self.count as u64,
                dims: self.layout.dims,
                strides: self.layout.strides,
                inputs: inputs.map(Ptr::of),
                output: Ptr::to(&output),
            })?;
        }
        Ok(output)
    }

    /// Threads worth starting: one per pack where the kernel reads packs, one per element where it gathers. Any number
    /// is correct.
    fn threads(&self) -> usize {
        let pack = pack_length(self.widest);
        let last = self.layout.dims.rank as usize - 1;
        let whole_rows = last == 0 || (self.layout.dims.size[last] as usize).is_multiple_of(pack);
        if whole_rows && self.layout.strides.iter().all(|s| s.s[last] <= 1) {
            self.count.div_ceil(pack)
        } else {
            self.count
        }
    }
}

/// `pack_length` of `elementwise.h`: elements that one thread handles at a time.
fn pack_length(bytes: usize) -> usize {
    if bytes <= 2 {
        8
    } else {
        16 / bytes
    }
}

/// Product of the dimensions, such that a buffer of `dtype` can hold them.
fn element_count(op: &'static str, dims: &[usize], dtype: DType) -> Result<usize> {
    let limit = isize::MAX as usize / dtype.size_in_bytes();
    if dims.contains(&0) {
        return Ok(0);
    }
    let count = dims.iter().fold(1usize, |n, &d| n.saturating_mul(d));
    if count > limit {
        return Err(Error::TooLarge {
            op,
            what: "number of elements",
            value: count,
            limit,
        });
    }
    Ok(count)
}
