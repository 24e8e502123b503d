//! What operations ask of their arguments before anything is computed, on every device.

use crate::{bail, DType, Result};

/// For a window that moves over images: both its size and its steps must be there.
pub(crate) fn pool(op: &str, window: (usize, usize), step: (usize, usize)) -> Result<()> {
    if window.0 == 0 || window.1 == 0 {
        bail!(
            "{op}: the window {window:?} has no elements; its height and width must be 1 at least"
        )
    }
    if step.0 == 0 || step.1 == 0 {
        bail!("{op}: the stride {step:?} does not move; both must be 1 at least")
    }
    Ok(())
}

/// For resizing: neither side may be of size 0, and the outcome must be countable.
pub(crate) fn resize(op: &str, batch: &[usize], from: &[usize], to: &[usize]) -> Result<()> {
    if from.contains(&0) || to.contains(&0) {
        bail!("{op}: images of {from:?} cannot become {to:?}; all sizes must be 1 at least")
    }
    let elements = batch
        .iter()
        .chain(to)
        .try_fold(1usize, |n, &d| n.checked_mul(d));
    match elements {
        Some(n) if n <= MOST_ELEMENTS => Ok(()),
        _ => bail!("{op}: {batch:?} images of {to:?} are too large"),
    }
}

/// Elements of the widest dtype that memory can be asked for.
const MOST_ELEMENTS: usize = isize::MAX as usize / 8;

/// What a convolution takes, along one dimension after the other.
pub(crate) struct Convolution<'a> {
    pub op: &'static str,
    /// Sizes of the input.
    pub input: &'a [usize],
    /// Sizes of the kernel.
    pub kernel: &'a [usize],
    pub padding: usize,
    pub stride: usize,
    pub dilation: usize,
    pub groups: usize,
}

impl Convolution<'_> {
    /// An error where nothing can be computed, or where filters would be left over. `filters` is the number of output
    /// channels.
    pub(crate) fn check(&self, filters: usize) -> Result<()> {
        let Self {
            op,
            input,
            kernel,
            padding,
            groups,
            ..
        } = self;
        self.check_options()?;
        if filters % groups != 0 {
            bail!("{op}: {filters} output channels cannot be divided into {groups} groups")
        }
        for (&size, &kernel_size) in input.iter().zip(*kernel) {
            let padded = padding.checked_mul(2).and_then(|p| p.checked_add(size));
            match (padded, self.span(kernel_size)) {
                (Some(padded), Some(span)) if padded <= MOST_ELEMENTS => {
                    if span > padded {
                        bail!(
                            "{op}: a kernel of {kernel:?} with a dilation of {} is larger than the input of {input:?} \
                             with a padding of {padding}",
                            self.dilation
                        )
                    }
                }
                _ => bail!(
                    "{op}: a padding of {padding} or a dilation of {} is too large",
                    self.dilation
                ),
            }
        }
        Ok(())
    }

    /// The same for a transposed convolution.
    pub(crate) fn check_transposed(&self, output_padding: usize) -> Result<()> {
        let Self {
            op,
            input,
            padding,
            stride,
            ..
        } = self;
        self.check_options()?;
        for (&size, &kernel_size) in input.iter().zip(self.kernel) {
            let Some(last) = size.checked_sub(1) else {
                bail!("{op}: the input of {input:?} has no elements")
            };
            let whole = (last.checked_mul(*stride))
                .and_then(|n| n.checked_add(self.span(kernel_size)?))
                .and_then(|n| n.checked_add(output_padding));
            match (whole, padding.checked_mul(2)) {
                (Some(whole), Some(cut)) if whole <= MOST_ELEMENTS => {
                    if whole <= cut {
                        bail!(
                            "{op}: a padding of {padding} leaves nothing of the {whole} elements that an input of {input:?} \
                             gives"
                        )
                    }
                }
                _ => bail!("{op}: stride, dilation or padding is too large"),
            }
        }
        Ok(())
    }

    fn check_options(&self) -> Result<()> {
        let op = self.op;
        let options = [
            ("stride", self.stride),
            ("dilation", self.dilation),
            ("number of groups", self.groups),
        ];
        for (name, value) in options {
            if value == 0 {
                bail!("{op}: the {name} must be 1 at least")
            }
        }
        if self.kernel.contains(&0) {
            bail!("{op}: the kernel of {:?} has no elements", self.kernel)
        }
        Ok(())
    }

    /// Elements from the kernel's first to its last, both included.
    fn span(&self, kernel: usize) -> Option<usize> {
        (kernel - 1).checked_mul(self.dilation)?.checked_add(1)
    }
}

/// For uniformly distributed numbers.
pub(crate) fn uniform(lo: f64, up: f64) -> Result<()> {
    if !(lo <= up && lo.is_finite() && up.is_finite()) {
        bail!("rand: there are no numbers from {lo} to {up}")
    }
    Ok(())
}

/// For normally distributed numbers.
pub(crate) fn normal(mean: f64, deviation: f64) -> Result<()> {
    if !(deviation >= 0. && deviation.is_finite() && mean.is_finite()) {
        bail!("randn: there is no normal distribution with mean {mean} and standard deviation {deviation}")
    }
    Ok(())
}

/// For tensors that are made anew: their bytes must be countable.
pub(crate) fn size(dims: &[usize], dtype: DType) -> Result<()> {
    let limit = isize::MAX as usize / dtype.size_in_bytes().max(1);
    let mut elements = Some(1usize);
    if !dims.contains(&0) {
        elements = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    }
    match elements {
        Some(n) if n <= limit => Ok(()),
        _ => bail!("a tensor of {dims:?} in {dtype:?} has more bytes than can be counted"),
    }
}
