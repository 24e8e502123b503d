//! What the tests of all kernel families share: a device, reproducible data, layouts, and comparison.

// Each test binary uses its own part of this module.
#![allow(dead_code)]

use candle_rocm::{Buffer, DType, Device, View};
use float8::F8E4M3;
use half::{bf16, f16};

/// Largest tolerated normalised mean squared error of element-wise results.
pub const NMSE_LIMIT: f64 = 1e-7;

/// The device that the tests run on: a GPU, or hip-sim if `ROCM_PATH` points at it.
pub fn device() -> Device {
    Device::new(0).unwrap_or_else(|error| {
        panic!(
            "these tests need an AMD GPU, or hip-sim: `cargo build -p hip-sim`, `hip-sim install DIR`, ROCM_PATH=DIR \
             (ROCM_PATH is {:?}): {error}",
            std::env::var_os("ROCM_PATH")
        )
    })
}

/// Reproducible random numbers: SplitMix64.
pub struct Rng(u64);

impl Rng {
    /// A generator whose numbers depend on the seed only.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[low, high)`.
    pub fn uniform(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// `n` values, uniform in `[low, high)`, converted to `T` (integers truncate).
    pub fn vec<T: Element>(&mut self, n: usize, low: f64, high: f64) -> Vec<T> {
        (0..n)
            .map(|_| T::from_f64(self.uniform(low, high)))
            .collect()
    }

    /// `n` values of uniformly random bits: every magnitude, and for floats infinities and NaN.
    pub fn any<T: Element>(&mut self, n: usize) -> Vec<T> {
        (0..n).map(|_| T::from_bits(self.bits())).collect()
    }
}

/// A Rust type of an element.
pub trait Element: Copy + PartialEq + PartialOrd + std::fmt::Debug + 'static {
    /// Its dtype.
    const DTYPE: DType;
    /// Nearest value; integers truncate and saturate, as Rust's `as`.
    fn from_f64(v: f64) -> Self;
    /// The same from a 32-bit float. (`half` rounds from f64 by the upper 32 bits only, so this way is nearer for
    /// bf16.)
    fn from_f32(v: f32) -> Self;
    /// The value; exact except for 64-bit integers.
    fn to_f64(self) -> f64;
    /// The low bits, reinterpreted.
    fn from_bits(bits: u64) -> Self;
    /// The bits, zero-extended.
    fn to_bits(self) -> u64;
}

macro_rules! element {
    ($ty:ty, $dtype:ident, $from_f64:expr, $from_f32:expr, $to_f64:expr, $from_bits:expr, $to_bits:expr) => {
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            fn from_f64(v: f64) -> Self {
                $from_f64(v)
            }
            fn from_f32(v: f32) -> Self {
                $from_f32(v)
            }
            fn to_f64(self) -> f64 {
                $to_f64(self)
            }
            fn from_bits(bits: u64) -> Self {
                $from_bits(bits)
            }
            fn to_bits(self) -> u64 {
                $to_bits(self)
            }
        }
    };
}

element!(
    u8,
    U8,
    |v| v as u8,
    |v| v as u8,
    f64::from,
    |b| b as u8,
    u64::from
);
element!(
    u32,
    U32,
    |v| v as u32,
    |v| v as u32,
    f64::from,
    |b| b as u32,
    u64::from
);
element!(
    i16,
    I16,
    |v| v as i16,
    |v| v as i16,
    f64::from,
    |b| b as i16,
    |v| v as u16 as u64
);
element!(
    i32,
    I32,
    |v| v as i32,
    |v| v as i32,
    f64::from,
    |b| b as i32,
    |v| v as u32 as u64
);
element!(
    i64,
    I64,
    |v| v as i64,
    |v| v as i64,
    |v| v as f64,
    |b| b as i64,
    |v| v as u64
);
element!(
    f16,
    F16,
    f16::from_f64,
    f16::from_f32,
    f16::to_f64,
    |b| f16::from_bits(b as u16),
    |v: f16| v.to_bits().into()
);
element!(
    bf16,
    BF16,
    bf16::from_f64,
    bf16::from_f32,
    bf16::to_f64,
    |b| bf16::from_bits(b as u16),
    |v: bf16| v.to_bits().into()
);
element!(
    f32,
    F32,
    |v| v as f32,
    |v| v,
    f64::from,
    |b| f32::from_bits(b as u32),
    |v: f32| v.to_bits().into()
);
element!(
    f64,
    F64,
    |v| v,
    f64::from,
    |v| v,
    f64::from_bits,
    f64::to_bits
);
element!(
    F8E4M3,
    F8E4M3,
    F8E4M3::from_f64,
    F8E4M3::from_f32,
    // By path: a method call on a value would find the trait's function, not the type's, which takes a reference.
    |v| F8E4M3::to_f64(&v),
    |b| F8E4M3::from_bits(b as u8),
    |v| F8E4M3::to_bits(&v).into()
);

/// Whether a value is not equal to itself.
pub fn is_nan<T: Element>(v: T) -> bool {
    v.partial_cmp(&v).is_none()
}

/// Calls a generic function once for every element type: `for_each_dtype!(check(&device))` calls `check::<T>(&device)`.
#[macro_export]
macro_rules! for_each_dtype {
    ($f:ident($($arg:expr),*)) => {{
        $crate::for_each_integer!($f($($arg),*));
        $crate::for_each_float!($f($($arg),*));
    }};
}

/// [`for_each_dtype`] for the integers.
#[macro_export]
macro_rules! for_each_integer {
    ($f:ident($($arg:expr),*)) => {{
        $f::<u8>($($arg),*);
        $f::<u32>($($arg),*);
        $f::<i16>($($arg),*);
        $f::<i32>($($arg),*);
        $f::<i64>($($arg),*);
    }};
}

/// [`for_each_dtype`] for the floating-point types.
#[macro_export]
macro_rules! for_each_float {
    ($f:ident($($arg:expr),*)) => {{
        $f::<half::f16>($($arg),*);
        $f::<half::bf16>($($arg),*);
        $f::<f32>($($arg),*);
        $f::<f64>($($arg),*);
        $f::<float8::F8E4M3>($($arg),*);
    }};
}

/// Little-endian bytes of the values, as device memory holds them.
pub fn to_bytes<T: Element>(values: &[T]) -> Vec<u8> {
    let size = T::DTYPE.size_in_bytes();
    values
        .iter()
        .flat_map(|v| v.to_bits().to_le_bytes().into_iter().take(size))
        .collect()
}

/// The inverse of [`to_bytes`].
pub fn from_bytes<T: Element>(bytes: &[u8]) -> Vec<T> {
    bytes
        .chunks_exact(T::DTYPE.size_in_bytes())
        .map(|chunk| {
            let mut bits = [0; 8];
            bits[..chunk.len()].copy_from_slice(chunk);
            T::from_bits(u64::from_le_bytes(bits))
        })
        .collect()
}

/// Copies values to the device.
pub fn upload<T: Element>(device: &Device, values: &[T]) -> Buffer {
    device.upload(&to_bytes(values)).expect("upload")
}

/// Copies a whole buffer from the device.
pub fn download<T: Element>(device: &Device, buffer: &Buffer) -> Vec<T> {
    let mut bytes = vec![0; buffer.len()];
    device.download(buffer, 0, &mut bytes).expect("download");
    from_bytes(&bytes)
}

/// How a tensor's elements lie in its buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Row-major from the start of the buffer.
    Contiguous,
    /// Row-major from an odd offset.
    Offset,
    /// The first and last dimension swapped in memory.
    Transposed,
    /// A window of a tensor that is larger in every dimension.
    Narrowed,
    /// Stride 0 in the first dimension.
    BroadcastFirst,
    /// Stride 0 in the last dimension.
    BroadcastLast,
    /// Stride 0 in all dimensions.
    Scalar,
}

impl Layout {
    /// Every layout.
    pub const ALL: [Layout; 7] = [
        Layout::Contiguous,
        Layout::Offset,
        Layout::Transposed,
        Layout::Narrowed,
        Layout::BroadcastFirst,
        Layout::BroadcastLast,
        Layout::Scalar,
    ];
}

/// A tensor on the host with a layout: the buffer's contents and the view's geometry.
#[derive(Clone, Debug)]
pub struct HostTensor<T> {
    /// Every element of the buffer, those that the view skips too.
    pub storage: Vec<T>,
    /// Elements before the first.
    pub offset: usize,
    /// Size of each dimension.
    pub dims: Vec<usize>,
    /// Distance between neighbours, in elements.
    pub strides: Vec<usize>,
}

impl<T: Element> HostTensor<T> {
    /// A contiguous tensor.
    pub fn contiguous(values: Vec<T>, dims: &[usize]) -> Self {
        assert_eq!(values.len(), dims.iter().product::<usize>());
        HostTensor {
            storage: values,
            offset: 0,
            dims: dims.to_vec(),
            strides: row_major(dims),
        }
    }

    /// A tensor of the given layout whose buffer `fill(n)` supplies.
    pub fn with_layout(dims: &[usize], layout: Layout, fill: impl FnOnce(usize) -> Vec<T>) -> Self {
        let rank = dims.len();
        let (offset, strides, used) = match layout {
            Layout::Contiguous => (0, row_major(dims), dims.iter().product()),
            Layout::Offset => (3, row_major(dims), dims.iter().product()),
            Layout::Transposed => {
                let mut swapped = dims.to_vec();
                if rank > 1 {
                    swapped.swap(0, rank - 1);
                }
                let mut strides = row_major(&swapped);
                if rank > 1 {
                    strides.swap(0, rank - 1);
                }
                (0, strides, dims.iter().product())
            }
            Layout::Narrowed => {
                let larger: Vec<usize> = dims.iter().map(|d| d + 3).collect();
                let strides = row_major(&larger);
                // One step into every dimension.
                (strides.iter().sum(), strides, larger.iter().product())
            }
            Layout::BroadcastFirst => {
                let mut strides = row_major(dims);
                if rank > 0 {
                    strides[0] = 0;
                }
                (1, strides, dims.iter().skip(1).product())
            }
            Layout::BroadcastLast => {
                let mut strides = row_major(&dims[..rank.saturating_sub(1)]);
                strides.resize(rank, 0);
                (2, strides, dims.iter().rev().skip(1).product())
            }
            Layout::Scalar => (5, vec![0; rank], 1usize),
        };
        let storage = fill(offset + used);
        assert_eq!(storage.len(), offset + used);
        HostTensor {
            storage,
            offset,
            dims: dims.to_vec(),
            strides,
        }
    }

    /// Position in the buffer of each element, in row-major order.
    pub fn positions(&self) -> Vec<usize> {
        let mut positions = vec![self.offset];
        for (&dim, &stride) in self.dims.iter().zip(&self.strides) {
            positions = positions
                .iter()
                .flat_map(|start| (0..dim).map(move |i| start + i * stride))
                .collect();
        }
        positions
    }

    /// The elements in row-major order.
    pub fn values(&self) -> Vec<T> {
        self.positions()
            .into_iter()
            .map(|at| self.storage[at])
            .collect()
    }

    /// Number of elements.
    pub fn elem_count(&self) -> usize {
        self.dims.iter().product()
    }

    /// Copies the whole buffer to the device.
    pub fn upload(&self, device: &Device) -> Buffer {
        upload(device, &self.storage)
    }

    /// The view of `buffer`, which [`HostTensor::upload`] gave, with this geometry.
    pub fn view<'a>(&'a self, buffer: &'a Buffer) -> View<'a> {
        View {
            buffer,
            dtype: T::DTYPE,
            offset: self.offset,
            dims: &self.dims,
            strides: &self.strides,
        }
    }
}

/// Row-major strides without gaps.
pub fn row_major(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for i in (1..dims.len()).rev() {
        strides[i - 1] = strides[i] * dims[i];
    }
    strides
}

/// Normalised mean squared error: the squared distance over the squared length of `want`, of the finite elements.
pub fn nmse(got: &[f64], want: &[f64]) -> f64 {
    let mut error = 0.0;
    let mut norm = 0.0;
    for (&g, &w) in got.iter().zip(want).filter(|(_, w)| w.is_finite()) {
        error += (g - w) * (g - w);
        norm += w * w;
    }
    if error == 0.0 {
        0.0
    } else {
        error / norm
    }
}

/// Panics unless NaN and infinities agree in place and sign, and the NMSE of the rest is within the limit.
pub fn assert_close<T: Element>(got: &[T], want: &[f64], limit: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: element count");
    let got: Vec<f64> = got.iter().map(|v| v.to_f64()).collect();
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        let agree = if w.is_finite() {
            g.is_finite()
        } else {
            g == w || (g.is_nan() && w.is_nan())
        };
        assert!(agree, "{what}: element {i} is {g}, expected {w}");
    }
    let error = nmse(&got, want);
    let worst = got
        .iter()
        .zip(want)
        .enumerate()
        .map(|(i, (g, w))| ((g - w).abs(), i))
        .filter(|(d, _)| d.is_finite())
        .fold((0.0, 0), |a, b| if b.0 > a.0 { b } else { a });
    assert!(
        error <= limit,
        "{what}: NMSE {error:e} exceeds {limit:e}; worst at element {}: {} instead of {}",
        worst.1,
        got[worst.1],
        want[worst.1]
    );
}

/// Panics unless every element has the same bits; NaN equals any NaN.
pub fn assert_exact<T: Element>(got: &[T], want: &[T], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: element count");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let both_nan = g.to_f64().is_nan() && w.to_f64().is_nan();
        assert!(
            both_nan || g.to_bits() == w.to_bits(),
            "{what}: element {i} is {g:?} (bits {:#x}), expected {w:?} (bits {:#x})",
            g.to_bits(),
            w.to_bits()
        );
    }
}
