//! Images as the kernels of pooling and upsampling take them.

use super::copy::check_count;
use crate::{Error, Result, View};

/// A view `[batch, channels, height, width]` that 32 bits can index.
pub(super) struct Images {
    pub batch: usize,
    pub channels: usize,
    pub height: usize,
    pub width: usize,
    /// In elements, outermost first.
    pub strides: [u32; 4],
}

impl Images {
    /// # Errors
    /// [`Error::InvalidArgument`] unless the view has four dimensions; [`Error::InvalidView`]; [`Error::TooLarge`] if
    /// it has or spans 2^32 elements or more.
    pub fn new(op: &'static str, x: &View) -> Result<Self> {
        let [batch, channels, height, width] = *x.dims else {
            return Err(Error::InvalidArgument {
                op,
                reason: format!(
                    "the input must be [batch, channels, height, width], not of the shape {:?}",
                    x.dims
                ),
            });
        };
        x.check(op)?;
        // No size, and no stride that moves anywhere, exceeds these two.
        check_count(op, x.elem_count())?;
        check_count(op, x.span().unwrap_or(usize::MAX))?;
        let mut strides = [0; 4];
        for (stride, (&step, &size)) in strides.iter_mut().zip(x.strides.iter().zip(x.dims)) {
            *stride = if size > 1 { step as u32 } else { 0 };
        }
        Ok(Images {
            batch,
            channels,
            height,
            width,
            strides,
        })
    }
}
