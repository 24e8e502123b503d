//! Compares operations on `Device::Rocm` with an f64 (integers: exact) computation on the CPU, and keeps a table of
//! what was compared.
//!
//! [`suites`] lists what there is to compare. A [`Suite`] takes a [`Context`] and fills a [`Report`]; what fails is data
//! there, never a panic. The tests of this crate run each suite in full; `rocm-doctor` runs them small.

/// Ends a suite with an error that says what does not hold.
macro_rules! ensure {
    ($holds:expr $(,)?) => {
        ensure!($holds, "{} does not hold", stringify!($holds))
    };
    ($holds:expr, $($message:tt)+) => {
        {
            let holds: bool = $holds;
            if !holds {
                candle_core::bail!($($message)+)
            }
        }
    };
}

/// Ends a suite with an error if two values differ.
macro_rules! ensure_eq {
    ($got:expr, $want:expr $(,)?) => {
        ensure_eq!($got, $want, "{}", stringify!($got))
    };
    ($got:expr, $want:expr, $($message:tt)+) => {
        match (&$got, &$want) {
            (got, want) => ensure!(
                *got == *want,
                "{}: {got:?} instead of {want:?}",
                format_args!($($message)+)
            ),
        }
    };
}

/// A test for each suite named: `test: "suite"`.
#[macro_export]
macro_rules! tests {
    ($($test:ident: $suite:literal),* $(,)?) => {
        $(
            #[test]
            fn $test() {
                $crate::check($suite);
            }
        )*
    };
}

pub mod oracle;
mod report;
mod suite;
mod suites;

pub use report::{Comparison, Report};
pub use suite::{check, Context, Size, Suite};
pub use suites::suites;

use candle_core::{DType, Device, Result, Tensor};

/// The dtypes that operations compute with.
pub const DTYPES: [DType; 10] = [
    DType::U8,
    DType::U32,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
];

/// The floating-point ones.
pub const FLOATS: [DType; 5] = [
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::F8E4M3,
];

/// How an operand lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Arrangement {
    /// Row-major.
    Contiguous,
    /// First and last dimension swapped.
    Transposed,
    /// A window that starts inside a larger tensor.
    Narrowed,
    /// Stride 0 along the first dimension.
    Broadcast,
}

impl Arrangement {
    /// Every arrangement.
    pub const ALL: [Self; 4] = [
        Self::Contiguous,
        Self::Transposed,
        Self::Narrowed,
        Self::Broadcast,
    ];
}

/// Reproducible values in `[low, high)` (SplitMix64), shuffled enough that neighbours differ.
pub fn values(count: usize, seed: u64, low: f64, high: f64) -> Vec<f64> {
    let mut state = seed;
    (0..count)
        .map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            low + (high - low) * (z >> 11) as f64 / (1u64 << 53) as f64
        })
        .collect()
}

/// A tensor of `shape` in `arrangement` on `device`: the same numbers in the same memory layout on every device.
pub fn tensor(
    device: &Device,
    dtype: DType,
    shape: &[usize],
    arrangement: Arrangement,
    seed: u64,
    (low, high): (f64, f64),
) -> Result<Tensor> {
    let make = |dims: &[usize]| {
        let numbers = values(dims.iter().product(), seed, low, high);
        Tensor::from_vec(numbers, dims, &Device::Cpu)?
            .to_dtype(dtype)?
            .to_device(device)
    };
    let last = shape.len().saturating_sub(1);
    match arrangement {
        Arrangement::Contiguous => make(shape),
        Arrangement::Transposed => {
            let mut swapped = shape.to_vec();
            swapped.swap(0, last);
            make(&swapped)?.transpose(0, last)
        }
        Arrangement::Narrowed => {
            let larger: Vec<usize> = shape.iter().map(|d| d + 3).collect();
            let mut view = make(&larger)?;
            for (dim, &size) in shape.iter().enumerate() {
                view = view.narrow(dim, 2, size)?;
            }
            Ok(view)
        }
        Arrangement::Broadcast => {
            let mut one = shape.to_vec();
            one[0] = 1.min(shape[0]);
            make(&one)?.broadcast_as(shape)
        }
    }
}

/// The tensor's values in f64, in row-major order.
pub fn to_f64(tensor: &Tensor) -> Result<Vec<f64>> {
    let tensor = tensor
        .to_device(&Device::Cpu)?
        .contiguous()?
        .flatten_all()?;
    widen(&tensor)?.to_vec1()
}

/// A float tensor on the CPU as f64.
pub fn widen(tensor: &Tensor) -> Result<Tensor> {
    tensor.to_dtype(DType::F64)
}

/// Squared distance over squared length, of the finite expected values; an error text if NaN or infinities disagree.
pub fn nmse(got: &[f64], want: &[f64]) -> std::result::Result<f64, String> {
    if got.len() != want.len() {
        return Err(format!("{} elements instead of {}", got.len(), want.len()));
    }
    let (mut error, mut norm) = (0.0, 0.0);
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        if w.is_finite() && g.is_finite() {
            error += (g - w) * (g - w);
            norm += w * w;
        } else if !(g == w || g.is_nan() && w.is_nan()) {
            return Err(format!("element {i} is {g} instead of {w}"));
        }
    }
    Ok(if error == 0.0 { 0.0 } else { error / norm })
}

/// The text of an error, which there must be.
pub(crate) fn error_of<T>(outcome: Result<T>, what: &str) -> Result<String> {
    match outcome {
        Ok(_) => candle_core::bail!("{what} gives no error"),
        Err(error) => Ok(error.to_string()),
    }
}

/// The device under test.
pub fn rocm() -> Device {
    Device::new_rocm(0).unwrap_or_else(|error| {
        panic!("this test needs an AMD GPU or hip-sim (scripts/test sets it up): {error}")
    })
}

/// Name of a dtype in the table.
pub fn name(dtype: DType) -> &'static str {
    dtype.as_str()
}
