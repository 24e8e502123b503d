//! What instructions make of known values: for verification alone.

use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result};

kernels! {
    /// Exchange between lanes.
    lanes = "instructions_lanes" in Family::Instructions => (values: Ptr, out: Ptr);

    /// Votes, shuffles and barriers, which have no plainer form.
    waves = "instructions_waves" in Family::Instructions => (values: Ptr, out: Ptr);

    /// Exchange through shared memory inside a wave.
    lds = "instructions_lds" in Family::Instructions => (values: Ptr, out: Ptr);

    /// Bytes and halves.
    bytes = "instructions_bytes" in Family::Instructions => (values: Ptr, out: Ptr);

    /// Products of four bytes.
    dot = "instructions_dot" in Family::Instructions => (values: Ptr, out: Ptr);

    /// Loads from any address.
    loads = "instructions_loads" in Family::Instructions => (values: Ptr, out: Ptr);

    /// Matrix instructions on floats.
    matrix = "instructions_matrix_{dtype}" [dtype: DType = [DType::F16, DType::BF16]] in Family::Instructions,
        only crate::Only::Matrix => (a: Ptr, b: Ptr, c: Ptr, out: Ptr);

    /// The same on bytes.
    matrix_bytes = "instructions_matrix_i8" in Family::Instructions, only crate::Only::Matrix
        => (a: Ptr, b: Ptr, out: Ptr);
}

/// Threads that work on words.
pub(crate) const THREADS: usize = 512;
/// Threads of a block.
pub(crate) const BLOCK: usize = 256;
/// Elements of one of the matrices that [`products`] gives.
pub(crate) const MATRIX: usize = 16 * 16;

/// A kernel on words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Words {
    Lanes,
    Waves,
    Lds,
    Bytes,
    Dot,
    Loads,
}

impl Words {
    /// Words that each thread gives.
    pub(crate) const fn results(self) -> usize {
        match self {
            Words::Lanes | Words::Waves => 8,
            Words::Lds | Words::Dot => 1,
            Words::Bytes => 5,
            Words::Loads => 16,
        }
    }

    /// What each thread makes of `values`, which has a word for each of them and a few more: `[results, THREADS]`.
    pub(crate) fn run(self, device: &Device, values: &Buffer) -> Result<Buffer> {
        let word = size_of::<u32>();
        let out = device.alloc_zeroed(self.results() * THREADS * word)?;
        values.check_range("instructions", 0, (THREADS + 4) * word)?;
        let config = LaunchConfig {
            grid: (THREADS / BLOCK) as u32,
            block: BLOCK as u32,
            shared_bytes: 0,
        };
        let (values, to) = (Ptr::to(values), Ptr::to(&out));
        // SAFETY: there is a word for each thread and room for its results; loads reach four words further.
        unsafe {
            match self {
                Words::Lanes => lanes::of()?.launch(device, config, values, to)?,
                Words::Waves => waves::of()?.launch(device, config, values, to)?,
                Words::Lds => lds::of()?.launch(device, config, values, to)?,
                Words::Bytes => bytes::of()?.launch(device, config, values, to)?,
                Words::Dot => dot::of()?.launch(device, config, values, to)?,
                Words::Loads => loads::of()?.launch(device, config, values, to)?,
            }
        }
        Ok(out)
    }
}

/// Elements of a matrix for [`products`] and [`products_of_bytes`]: 32 rows of 32, the most that they take.
pub(crate) const OPERAND: usize = 32 * 32;

/// What one wave makes of matrices of f16 or bf16, whose rows of `k` elements lie behind each other: `a b` of the first
/// 16 rows of `a` and 16 columns of `b`, then `k`, `c (a b)` with all `k` rows of `a`, and the largest of each column of
/// `a b`; f32.
pub(crate) fn products(device: &Device, dtype: DType, operands: [&Buffer; 3]) -> Result<Buffer> {
    let out = device.alloc_zeroed((2 * MATRIX + 1 + 16) * size_of::<f32>())?;
    let [a, b, c] = operand(operands, dtype)?;
    let (config, to) = (one_wave(device), Ptr::to(&out));
    // SAFETY: the operands have the elements, and the results room.
    unsafe { matrix::of(dtype)?.launch(device, config, a, b, c, to)? };
    Ok(out)
}

/// `a b` of bytes, of 16 rows and columns, and `k`; i32.
pub(crate) fn products_of_bytes(device: &Device, operands: [&Buffer; 2]) -> Result<Buffer> {
    let out = device.alloc_zeroed((MATRIX + 1) * size_of::<i32>())?;
    let [a, b] = operand(operands, DType::U8)?;
    let (config, to) = (one_wave(device), Ptr::to(&out));
    // SAFETY: as in `products`.
    unsafe { matrix_bytes::of()?.launch(device, config, a, b, to)? };
    Ok(out)
}

fn operand<const COUNT: usize>(
    buffers: [&Buffer; COUNT],
    dtype: DType,
) -> Result<[Ptr<'_>; COUNT]> {
    for buffer in buffers {
        buffer.check_range("instructions", 0, OPERAND * dtype.size_in_bytes())?;
    }
    Ok(buffers.map(Ptr::to))
}

fn one_wave(device: &Device) -> LaunchConfig {
    LaunchConfig {
        grid: 1,
        block: device.properties().wave_size,
        shared_bytes: 0,
    }
}
