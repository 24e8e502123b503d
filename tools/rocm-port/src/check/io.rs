//! What a reference sees of a case: sizes, scalars and inputs; and where it puts the outputs.

use super::dtype::DType;
use super::expression::{Names, Number};
use super::tolerance::Expected;
use std::collections::{BTreeMap, BTreeSet};

/// A buffer as a reference sees it.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    pub dtype: DType,
    pub length: usize,
    /// What it holds before the kernel; an output's is empty.
    pub bytes: Vec<u8>,
}

/// A case at one combination of sizes, for its reference.
///
/// # Panics
/// All that take a name panic if the case has no such size, scalar or buffer; [`Io::set`] and its kin if the number of
/// elements is another. What panics in a reference is told as the reference's failure.
#[derive(Debug)]
pub struct Io {
    names: Names,
    scalars: BTreeMap<String, f64>,
    buffers: BTreeMap<String, Contents>,
    expected: BTreeMap<String, Expected>,
    ignored: BTreeMap<String, BTreeSet<usize>>,
}

/// What should come out: values by buffer, and elements that may hold anything.
#[derive(Clone, Debug, Default)]
pub(super) struct Outcome {
    pub expected: BTreeMap<String, Expected>,
    pub ignored: BTreeMap<String, BTreeSet<usize>>,
}

impl Io {
    pub(super) fn new(
        names: Names,
        scalars: BTreeMap<String, f64>,
        buffers: BTreeMap<String, Contents>,
    ) -> Self {
        Io {
            names,
            scalars,
            buffers,
            expected: BTreeMap::new(),
            ignored: BTreeMap::new(),
        }
    }

    pub(super) fn into_outcome(self) -> Outcome {
        Outcome {
            expected: self.expected,
            ignored: self.ignored,
        }
    }

    /// A size, or a name of [`super::Case::with`].
    pub fn size(&self, name: &str) -> usize {
        match self.names.get(name) {
            Some(Number::Whole(value)) => {
                usize::try_from(*value).unwrap_or_else(|_| panic!("size {name} is {value}"))
            }
            _ => panic!("there is no size {name:?}"),
        }
    }

    /// A scalar argument, rounded to its type; also a size.
    pub fn scalar(&self, name: &str) -> f64 {
        let scalar = self.scalars.get(name).copied();
        let name_of_all = || self.names.get(name).map(|number| number.real());
        scalar
            .or_else(name_of_all)
            .unwrap_or_else(|| panic!("there is no scalar {name:?}"))
    }

    fn buffer(&self, name: &str) -> &Contents {
        let found = self.buffers.get(name);
        found.unwrap_or_else(|| panic!("there is no buffer {name:?}"))
    }

    /// Number of a buffer's elements.
    pub fn len(&self, name: &str) -> usize {
        self.buffer(name).length
    }

    /// A buffer's numbers before the kernel, exactly (64-bit integers are rounded).
    pub fn input(&self, name: &str) -> Vec<f64> {
        let buffer = self.buffer(name);
        buffer.dtype.decode_all(&buffer.bytes)
    }

    /// The same as `f32`, as kernels that compute in it see them.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.input(name)
            .into_iter()
            .map(|value| value as f32)
            .collect()
    }

    /// The same as integers.
    pub fn integers(&self, name: &str) -> Vec<i64> {
        let buffer = self.buffer(name);
        let integers = buffer.dtype.decode_integers(&buffer.bytes);
        integers.into_iter().map(|value| value as i64).collect()
    }

    /// The same as indices.
    pub fn indices(&self, name: &str) -> Vec<usize> {
        let index =
            |value: i64| usize::try_from(value).unwrap_or_else(|_| panic!("{name} has {value}"));
        self.integers(name).into_iter().map(index).collect()
    }

    /// The bytes of a buffer before the kernel.
    pub fn bytes(&self, name: &str) -> &[u8] {
        &self.buffer(name).bytes
    }

    /// Says what an output should hold.
    pub fn set(&mut self, name: &str, values: impl IntoIterator<Item = f64>) {
        self.expect(name, Expected::Floats(values.into_iter().collect()));
    }

    /// The same for integers, exactly.
    pub fn set_integers<T: Into<i128>>(&mut self, name: &str, values: impl IntoIterator<Item = T>) {
        let values = values.into_iter().map(Into::into).collect();
        self.expect(name, Expected::Integers(values));
    }

    /// The same as bytes of the output's type.
    pub fn set_bytes(&mut self, name: &str, bytes: Vec<u8>) {
        self.expect(name, Expected::Bytes(bytes));
    }

    /// Elements of an output that may hold anything, and may stay unwritten.
    pub fn ignore(&mut self, name: &str, elements: impl IntoIterator<Item = usize>) {
        self.ignored
            .entry(name.to_string())
            .or_default()
            .extend(elements);
    }

    fn expect(&mut self, name: &str, expected: Expected) {
        let buffer = self.buffer(name);
        let length = match &expected {
            Expected::Floats(values) => values.len(),
            Expected::Integers(values) => values.len(),
            Expected::Bytes(bytes) => bytes.len() / buffer.dtype.size(),
        };
        assert_eq!(
            length, buffer.length,
            "elements of {name}: the reference's, and the buffer's"
        );
        self.expected.insert(name.to_string(), expected);
    }
}

/// What a backward kernel should give: the derivative of `sum(upstream * forward(x))` by each element of `x`, by
/// central differences that are extrapolated once, in f64. `forward` is called four times for each element.
///
/// ```
/// let square = |x: &[f64]| x.iter().map(|v| v * v).collect::<Vec<f64>>();
/// let dx = rocm_port::check::gradient(square, &[3.0, -1.0], &[1.0, 10.0]);
/// assert!((dx[0] - 6.0).abs() < 1e-8 && (dx[1] + 20.0).abs() < 1e-8);
/// ```
pub fn gradient(forward: impl Fn(&[f64]) -> Vec<f64>, x: &[f64], upstream: &[f64]) -> Vec<f64> {
    let weighed = |at: usize, value: f64| -> f64 {
        let mut moved = x.to_vec();
        moved[at] = value;
        let y = forward(&moved);
        assert_eq!(
            y.len(),
            upstream.len(),
            "outputs of the forward function, and gradients"
        );
        y.iter().zip(upstream).map(|(y, up)| y * up).sum()
    };
    let slope = |at: usize, step: f64| {
        (weighed(at, x[at] + step) - weighed(at, x[at] - step)) / (2.0 * step)
    };
    let derivative = |at: usize| {
        let step = 1e-3 * x[at].abs().max(1.0);
        (4.0 * slope(at, step / 2.0) - slope(at, step)) / 3.0
    };
    (0..x.len()).map(derivative).collect()
}
