//! Random numbers. They come from the device's seed and a counter that each call moves on, and are the same on every
//! GPU.

use crate::dtype::ALL_FLOATS;
use crate::kernels::{kernels, Ptr};
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result};
use candle_rocm_kernels::shared::rand::RoundKeys;
use float8::F8E4M3;
use half::{bf16, f16};

/// 32-bit words that the generator gives per counter.
const WORDS: usize = 4;
/// What each round adds to the words of the key.
const KEY_STEPS: [u32; 2] = [0x9e37_79b9, 0xbb67_ae85];

kernels! {
    /// Words of the generator.
    philox_words = "philox_u32" in Family::Rand
        => (dst: Ptr, n: u64, keys: RoundKeys, counter_low: u64, counter_high: u64);

    /// Numbers from `low` to below `low + span`, none of which is above `top`.
    uniform_numbers = "uniform_{dtype}" [dtype: DType = ALL_FLOATS] in Family::Rand
        => (dst: Ptr, n: u64, keys: RoundKeys, counter: u64, low: f64, span: f64, top: f64);

    /// Normally distributed numbers.
    normal_numbers = "normal_{dtype}" [dtype: DType = ALL_FLOATS] in Family::Rand
        => (dst: Ptr, n: u64, keys: RoundKeys, counter: u64, mean: f64, deviation: f64);
}

fn round_keys(key: u64) -> RoundKeys {
    let mut words = [key as u32, (key >> 32) as u32];
    RoundKeys {
        k: std::array::from_fn(|_| {
            let round = words;
            words = std::array::from_fn(|k| words[k].wrapping_add(KEY_STEPS[k]));
            round
        }),
    }
}

/// Four words of Philox 4x32-10 for a counter, computed by the host.
pub(in crate::ops) fn words(key: u64, counter: [u32; WORDS]) -> [u32; WORDS] {
    let multiply = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product >> 32) as u32, product as u32)
    };
    round_keys(key).k.iter().fold(counter, |c, round| {
        let (high0, low0) = multiply(c[0], 0xd251_1f53);
        let (high1, low1) = multiply(c[2], 0xcd9e_8d57);
        [high1 ^ c[1] ^ round[0], low1, high0 ^ c[3] ^ round[1], low0]
    })
}

/// `count` numbers, uniform in `[lo, hi)`, where both bounds are first rounded to the dtype; floating-point dtypes
/// only.
///
/// # Errors
/// [`Error::UnsupportedDType`] for integers, [`Error::InvalidArgument`] unless `lo < hi` after rounding and both are
/// finite.
pub fn uniform(device: &Device, dtype: DType, count: usize, lo: f64, hi: f64) -> Result<Buffer> {
    const OP: &str = "rand_uniform";
    let per_counter = numbers_per_counter(OP, dtype)?;
    let (low, high) = (round(dtype, lo), round(dtype, hi));
    let span = high - low;
    let finite = lo.is_finite() && hi.is_finite() && round_to_compute(dtype, span).is_finite();
    if !(finite && low < high) {
        return Err(Error::InvalidArgument {
            op: OP,
            reason: format!(
                "[{lo}, {hi}) is not a range of finite {dtype} values; the lower bound must be less than the upper one"
            ),
        });
    }
    let (kernel, top) = (uniform_numbers::of(dtype)?, next_below(dtype, high));
    generate(device, dtype, count, per_counter, |work| {
        let (dst, n, keys, counter) = (work.dst, work.count, work.keys, work.counter);
        // SAFETY: there is room for all numbers.
        unsafe { kernel.launch(device, work.config, dst, n, keys, counter, low, span, top) }
    })
}

/// `count` normally distributed numbers; floating-point dtypes only.
///
/// # Errors
/// [`Error::UnsupportedDType`] for integers, [`Error::InvalidArgument`] unless `mean` and `std` are finite.
pub fn normal(device: &Device, dtype: DType, count: usize, mean: f64, std: f64) -> Result<Buffer> {
    const OP: &str = "rand_normal";
    let per_counter = numbers_per_counter(OP, dtype)?;
    if !(mean.is_finite() && std.is_finite()) {
        return Err(Error::InvalidArgument {
            op: OP,
            reason: format!("mean {mean} and standard deviation {std} must be finite"),
        });
    }
    let kernel = normal_numbers::of(dtype)?;
    generate(device, dtype, count, per_counter, |work| {
        let (dst, n, keys, counter) = (work.dst, work.count, work.keys, work.counter);
        // SAFETY: there is room for all numbers.
        unsafe { kernel.launch(device, work.config, dst, n, keys, counter, mean, std) }
    })
}

/// `count` words of Philox 4x32-10 for a key, from a 128-bit counter on, four words a counter. Independent of the
/// device's seed.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub fn philox(device: &Device, key: u64, counter: u128, count: usize) -> Result<Buffer> {
    let dst = device.alloc(count.saturating_mul(size_of::<u32>()))?;
    // SAFETY: there is room for all words.
    unsafe {
        philox_words::of()?.launch(
            device,
            LaunchConfig::for_elements(count.div_ceil(WORDS)),
            Ptr::to(&dst),
            count as u64,
            round_keys(key),
            counter as u64,
            (counter >> 64) as u64,
        )?;
    }
    Ok(dst)
}

/// Numbers that the kernels make of one counter: they spend 64 bits on an f64, 32 on anything else.
fn numbers_per_counter(op: &'static str, dtype: DType) -> Result<usize> {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 | DType::F8E4M3 => Ok(WORDS),
        DType::F64 => Ok(WORDS / 2),
        DType::U8 | DType::U32 | DType::I16 | DType::I32 | DType::I64 => {
            Err(Error::UnsupportedDType { op, dtype })
        }
    }
}

/// What the kernels of both distributions take.
struct Work<'a> {
    config: LaunchConfig,
    dst: Ptr<'a>,
    count: u64,
    keys: RoundKeys,
    counter: u64,
}

fn generate(
    device: &Device,
    dtype: DType,
    count: usize,
    per_counter: usize,
    launch: impl FnOnce(Work) -> Result<()>,
) -> Result<Buffer> {
    let dst = device.alloc(count.saturating_mul(dtype.size_in_bytes()))?;
    if count == 0 {
        return Ok(dst);
    }
    let counters = count.div_ceil(per_counter);
    let (seed, first) = device.reserve_random(counters as u64);
    launch(Work {
        config: LaunchConfig::for_elements(counters),
        dst: Ptr::to(&dst),
        count: count as u64,
        keys: round_keys(seed),
        counter: first,
    })?;
    Ok(dst)
}

/// The nearest value of the dtype.
fn round(dtype: DType, v: f64) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(v).to_f64(),
        DType::BF16 => bf16::from_f64(v).to_f64(),
        DType::F8E4M3 => F8E4M3::from_f64(v).to_f64(),
        DType::F32 => v as f32 as f64,
        _ => v,
    }
}

/// As [`round`], for the type in which the kernels compute.
fn round_to_compute(dtype: DType, v: f64) -> f64 {
    if dtype == DType::F64 {
        v
    } else {
        v as f32 as f64
    }
}

/// The largest value of the dtype below `v`, which is one of its values and not its smallest.
fn next_below(dtype: DType, v: f64) -> f64 {
    // Of negative values the larger bits are the lower value; below zero lies the smallest negative value.
    let step = |bits: u64, sign: u64| match bits {
        _ if bits & !sign == 0 => sign | 1,
        _ if bits & sign != 0 => bits + 1,
        _ => bits - 1,
    };
    match dtype {
        DType::F16 => {
            f16::from_bits(step(f16::from_f64(v).to_bits().into(), 1 << 15) as u16).to_f64()
        }
        DType::BF16 => {
            bf16::from_bits(step(bf16::from_f64(v).to_bits().into(), 1 << 15) as u16).to_f64()
        }
        DType::F8E4M3 => {
            F8E4M3::from_bits(step(F8E4M3::from_f64(v).to_bits().into(), 1 << 7) as u8).to_f64()
        }
        DType::F32 => f32::from_bits(step((v as f32).to_bits().into(), 1 << 31) as u32).into(),
        _ => f64::from_bits(step(v.to_bits(), 1 << 63)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of Random123, the authors' library.
    #[test]
    fn words_are_those_of_philox() {
        let zeros = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
        assert_eq!(words(0, [0; 4]), zeros);
        let ones = [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd];
        assert_eq!(words(u64::MAX, [u32::MAX; 4]), ones);
    }

    #[test]
    fn next_below_is_the_neighbour() {
        assert_eq!(next_below(DType::F16, 1.0), 1.0 - 2f64.powi(-11));
        assert_eq!(next_below(DType::BF16, -1.0), -1.0 - 2f64.powi(-7));
        assert_eq!(next_below(DType::F8E4M3, 0.0), -(2f64.powi(-9)));
        assert_eq!(next_below(DType::F16, -0.0), -(2f64.powi(-24)));
        assert_eq!(next_below(DType::F32, 1.0), 1.0 - 2f64.powi(-24));
        assert_eq!(next_below(DType::F64, 1.0), 1.0 - 2f64.powi(-53));
    }
}
