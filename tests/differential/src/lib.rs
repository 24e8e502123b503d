//! Compares operations on `Device::Rocm` with an f64 (integers: exact) computation on the CPU, and keeps a table of
//! what was compared.

use std::collections::BTreeMap;

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

/// What was compared, and what failed.
#[derive(Debug, Default)]
pub struct Report {
    /// Comparisons per operation and dtype.
    passed: BTreeMap<(String, String), usize>,
    failures: Vec<String>,
}

impl Report {
    /// Compares `got` with `want`; integers, and floats with a limit of 0, must be equal.
    pub fn compare(
        &mut self,
        op: &str,
        dtype: &str,
        what: &str,
        limit: f64,
        got: Result<Tensor>,
        want: Result<Tensor>,
    ) {
        let outcome = got
            .and_then(|got| Ok((got.shape().clone(), to_f64(&got)?)))
            .and_then(|got| {
                want.and_then(|want| Ok((got, (want.shape().clone(), to_f64(&want)?))))
            });
        let failure = match outcome {
            Err(error) => Some(error.to_string()),
            Ok(((got_shape, _), (want_shape, _))) if got_shape != want_shape => {
                Some(format!("shape {got_shape:?} instead of {want_shape:?}"))
            }
            Ok(((_, got), (_, want))) => match nmse(&got, &want) {
                Err(difference) => Some(difference),
                Ok(error) if error > limit => Some(format!("NMSE {error:e} exceeds {limit:e}")),
                Ok(_) => None,
            },
        };
        self.record(op, dtype, what, failure);
    }

    /// Counts a comparison that was made elsewhere.
    pub fn record(&mut self, op: &str, dtype: &str, what: &str, failure: Option<String>) {
        match failure {
            Some(failure) => self
                .failures
                .push(format!("{op} {dtype} {what}: {failure}")),
            None => *self.passed.entry((op.into(), dtype.into())).or_default() += 1,
        }
    }

    /// Writes the table for the support page if `CANDLE_ROCM_SUPPORT_DIR` names a folder, then panics if anything
    /// failed.
    pub fn finish(self, name: &str) {
        if let Some(folder) = std::env::var_os("CANDLE_ROCM_SUPPORT_DIR") {
            let arch = std::env::var("HIP_SIM_ARCH").unwrap_or_else(|_| "device".into());
            let mut lines = String::new();
            for ((op, dtype), count) in &self.passed {
                lines.push_str(&format!("{op}\t{dtype}\t{count}\n"));
            }
            let file = std::path::Path::new(&folder).join(format!("{name}-{arch}.tsv"));
            std::fs::write(&file, lines).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        }
        let compared: usize = self.passed.values().sum();
        assert!(compared > 0, "nothing was compared");
        assert!(
            self.failures.is_empty(),
            "{} of {} comparisons failed:\n{}",
            self.failures.len(),
            self.failures.len() + compared,
            self.failures
                .iter()
                .take(40)
                .cloned()
                .collect::<Vec<_>>()
                .join("\n")
        );
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
