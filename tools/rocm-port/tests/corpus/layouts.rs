//! Layouts of tensors: sizes of dimensions and strides in elements.

/// A layout, and why it is there.
#[derive(Clone, Debug)]
pub struct Layout {
    pub name: &'static str,
    pub dims: Vec<usize>,
    pub strides: Vec<usize>,
}

impl Layout {
    pub fn new(name: &'static str, dims: &[usize], strides: &[usize]) -> Self {
        Self {
            name,
            dims: dims.to_vec(),
            strides: strides.to_vec(),
        }
    }

    /// Row after row.
    pub fn contiguous(dims: &[usize]) -> Self {
        let strides = (0..dims.len()).map(|d| dims[d + 1..].iter().product());
        Self {
            name: "contiguous",
            dims: dims.to_vec(),
            strides: strides.collect(),
        }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.dims.iter().product()
    }

    /// Elements that storage needs.
    pub fn storage(&self) -> usize {
        let last = self
            .dims
            .iter()
            .zip(&self.strides)
            .map(|(d, s)| (d - 1) * s);
        last.sum::<usize>() + 1
    }

    /// Where element `i` (in order of rows) is.
    pub fn at(&self, mut i: usize) -> usize {
        let mut at = 0;
        for (size, stride) in self.dims.iter().zip(&self.strides).rev() {
            at += i % size * stride;
            i /= size;
        }
        at
    }

    /// Where each element is.
    pub fn all(&self) -> Vec<usize> {
        (0..self.elements()).map(|i| self.at(i)).collect()
    }

    /// Sizes and strides behind each other, as candle's kernels take them.
    pub fn info(&self) -> Vec<u64> {
        self.dims
            .iter()
            .chain(&self.strides)
            .map(|&n| n as u64)
            .collect()
    }
}

/// Layouts of one operand: of one element, of odd sizes, longer than a pass of a vectorized kernel, transposed,
/// broadcast, with gaps.
pub fn layouts() -> Vec<Layout> {
    vec![
        Layout::contiguous(&[1]),
        Layout::contiguous(&[5, 67]),
        Layout::new("transposed", &[7, 19], &[1, 7]),
        Layout::new("broadcast", &[3, 5, 11], &[11, 0, 1]),
        Layout::new("with gaps", &[4, 9], &[24, 2]),
    ]
}
