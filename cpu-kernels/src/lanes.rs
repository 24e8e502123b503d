//! Several f32 side by side, as the processor has them.

use std::sync::OnceLock;

/// What the processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// AVX-512.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Whatever the compiler may take for granted.
    Plain,
}

impl Level {
    /// The best level of this processor.
    pub(crate) fn detect() -> Self {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| *Self::all().first().unwrap_or(&Level::Plain))
    }

    /// All that this processor has, best first.
    pub(crate) fn all() -> Vec<Self> {
        let mut levels = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
            if avx2 && is_x86_feature_detected!("avx512f") {
                levels.push(Level::Avx512);
            }
            if avx2 {
                levels.push(Level::Avx2);
            }
        }
        levels.push(Level::Plain);
        levels
    }
}

/// Whether this processor has the instructions that the products are made of.
pub fn has_products() -> bool {
    Level::detect() != Level::Plain
}

/// Lanes of f32. Everything is inlined into functions that are compiled for the instructions.
///
/// # Safety
/// The processor must have the instructions, and pointers must be good for the lanes that are read or written.
pub(crate) trait Lanes: Copy {
    /// How many.
    const N: usize;
    /// That many f32.
    type V: Copy;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    /// The first `count` lanes; the others are 0.
    unsafe fn load_part(from: *const f32, count: usize) -> Self::V;
    unsafe fn store(to: *mut f32, x: Self::V);
    /// Asks for what will be read soon, wherever that is.
    #[inline(always)]
    unsafe fn prefetch(_: *const f32) {}
    /// The first `count` lanes only.
    unsafe fn store_part(to: *mut f32, x: Self::V, count: usize);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// a b + c
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The greater one; `b` where one is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// The lesser one; `b` where one is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `a` with the sign of `b`; `a` is not negative.
    unsafe fn with_sign(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn abs(a: Self::V) -> Self::V;
    /// `a` times 2 to the power of the integer in the low bits of `shifted`, which is [`ROUND`] and the integer, from
    /// -127 (which gives 0) to 128 (which gives infinity).
    unsafe fn times_power(a: Self::V, shifted: Self::V) -> Self::V;
    #[inline(always)]
    unsafe fn sum(x: Self::V) -> f32 {
        let mut all = [0f32; 16];
        Self::store(all.as_mut_ptr(), x);
        let mut width = Self::N;
        while width > 1 {
            width /= 2;
            for i in 0..width {
                all[i] += all[i + width];
            }
        }
        all[0]
    }
    #[inline(always)]
    unsafe fn greatest(x: Self::V) -> f32 {
        let mut all = [0f32; 16];
        Self::store(all.as_mut_ptr(), x);
        all[1..Self::N]
            .iter()
            .fold(all[0], |a, b| if *b > a { *b } else { a })
    }
}

/// 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
pub(crate) const ROUND: f32 = 12_582_912.0;

/// e to the power of `x` within two units in the last place; 0 where that is below the smallest normal number, infinity
/// from 88.4 on, NaN of NaN.
#[inline(always)]
pub(crate) unsafe fn exp<L: Lanes>(x: L::V) -> L::V {
    // ln 2 in two parts, of which the first times a small integer is exact.
    const LN_2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
    // min and max give their second operand for NaN.
    let x = L::max(L::splat(-87.7), L::min(L::splat(89.0), x));
    let shifted = L::fma(x, L::splat(std::f32::consts::LOG2_E), L::splat(ROUND));
    let whole = L::sub(shifted, L::splat(ROUND));
    let part = L::fma(whole, L::splat(-LN_2.0), x);
    let part = L::fma(whole, L::splat(-LN_2.1), part);
    // Taylor's series; the rest lies within half of ln 2, where the next term is 5e-9.
    let mut power = L::splat(1.0 / 5040.0);
    for term in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        power = L::fma(power, part, L::splat(term));
    }
    L::times_power(power, shifted)
}

/// The error function: Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26, whose error is at most 1.5e-7;
/// with the rounding of f32 it is at most 4e-7.
#[inline(always)]
pub(crate) unsafe fn erf<L: Lanes>(x: L::V) -> L::V {
    let one = L::splat(1.0);
    let size = L::abs(x);
    let t = L::div(one, L::fma(size, L::splat(0.327_591_1), one));
    let mut series = L::splat(1.061_405_4);
    for term in [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6] {
        series = L::fma(series, t, L::splat(term));
    }
    let tail = exp::<L>(L::mul(L::sub(L::splat(0.0), size), size));
    let value = L::sub(one, L::mul(L::mul(series, t), tail));
    L::with_sign(value, x)
}

/// x / (1 + exp(-x))
#[inline(always)]
pub(crate) unsafe fn silu<L: Lanes>(x: L::V) -> L::V {
    let power = exp::<L>(L::sub(L::splat(0.0), x));
    L::div(x, L::add(L::splat(1.0), power))
}

/// A function of one number. Not a closure: these are not compiled for the instructions of those who call them.
pub(crate) trait Map<L: Lanes> {
    unsafe fn of(&self, x: L::V) -> L::V;
}

/// The function of all elements of `x`, written to as many places from `to` on.
#[inline(always)]
pub(crate) unsafe fn map<L: Lanes>(x: &[f32], f: &impl Map<L>, to: *mut f32) {
    let whole = x.len() / L::N * L::N;
    let from = x.as_ptr();
    let mut i = 0;
    while i < whole {
        L::store(to.add(i), f.of(L::load(from.add(i))));
        i += L::N;
    }
    let rest = x.len() - whole;
    if rest > 0 {
        L::store_part(
            to.add(whole),
            f.of(L::load_part(from.add(whole), rest)),
            rest,
        );
    }
}

/// Eight lanes of the compiler's.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

#[inline(always)]
fn each(f: impl Fn(usize) -> f32) -> [f32; 8] {
    std::array::from_fn(f)
}

impl Lanes for Plain {
    const N: usize = 8;
    type V = [f32; 8];
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        from.cast::<[f32; 8]>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn load_part(from: *const f32, count: usize) -> Self::V {
        let mut all = [0.0; 8];
        std::ptr::copy_nonoverlapping(from, all.as_mut_ptr(), count.min(8));
        all
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, x: Self::V) {
        to.cast::<[f32; 8]>().write_unaligned(x);
    }
    #[inline(always)]
    unsafe fn store_part(to: *mut f32, x: Self::V, count: usize) {
        std::ptr::copy_nonoverlapping(x.as_ptr(), to, count.min(8));
    }
    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] - b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i] / b[i])
    }
    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        each(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        each(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        each(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn with_sign(a: Self::V, b: Self::V) -> Self::V {
        each(|i| a[i].copysign(b[i]))
    }
    #[inline(always)]
    unsafe fn abs(a: Self::V) -> Self::V {
        each(|i| a[i].abs())
    }
    #[inline(always)]
    unsafe fn times_power(a: Self::V, shifted: Self::V) -> Self::V {
        each(|i| {
            let exponent = shifted[i].to_bits().wrapping_add(127) << 23;
            a[i] * f32::from_bits(exponent)
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
    use core::arch::x86_64::*;

    /// Eight lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2;

    /// All ones in the first `count` of eight lanes.
    #[inline(always)]
    unsafe fn first(count: usize) -> __m256i {
        let order = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        _mm256_cmpgt_epi32(_mm256_set1_epi32(count.min(8) as i32), order)
    }

    impl Lanes for Avx2 {
        const N: usize = 8;
        type V = __m256;
        #[inline(always)]
        unsafe fn prefetch(from: *const f32) {
            _mm_prefetch::<_MM_HINT_T0>(from.cast());
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self::V {
            _mm256_set1_ps(x)
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self::V {
            _mm256_loadu_ps(from)
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f32, count: usize) -> Self::V {
            _mm256_maskload_ps(from, first(count))
        }
        #[inline(always)]
        unsafe fn store(to: *mut f32, x: Self::V) {
            _mm256_storeu_ps(to, x)
        }
        #[inline(always)]
        unsafe fn store_part(to: *mut f32, x: Self::V, count: usize) {
            _mm256_maskstore_ps(to, first(count), x)
        }
        #[inline(always)]
        unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
            _mm256_add_ps(a, b)
        }
        #[inline(always)]
        unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
            _mm256_sub_ps(a, b)
        }
        #[inline(always)]
        unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
            _mm256_mul_ps(a, b)
        }
        #[inline(always)]
        unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
            _mm256_div_ps(a, b)
        }
        #[inline(always)]
        unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            _mm256_fmadd_ps(a, b, c)
        }
        #[inline(always)]
        unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
            _mm256_max_ps(a, b)
        }
        #[inline(always)]
        unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
            _mm256_min_ps(a, b)
        }
        #[inline(always)]
        unsafe fn with_sign(a: Self::V, b: Self::V) -> Self::V {
            _mm256_or_ps(a, _mm256_and_ps(b, _mm256_set1_ps(-0.0)))
        }
        #[inline(always)]
        unsafe fn abs(a: Self::V) -> Self::V {
            _mm256_andnot_ps(_mm256_set1_ps(-0.0), a)
        }
        #[inline(always)]
        unsafe fn times_power(a: Self::V, shifted: Self::V) -> Self::V {
            let exponent = _mm256_add_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(127));
            let power = _mm256_slli_epi32::<23>(exponent);
            _mm256_mul_ps(a, _mm256_castsi256_ps(power))
        }
    }

    /// Sixteen lanes.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx512;

    /// Ones for the first `count` of sixteen lanes.
    #[inline(always)]
    fn mask(count: usize) -> __mmask16 {
        ((1u32 << count.min(16)) - 1) as __mmask16
    }

    impl Lanes for Avx512 {
        const N: usize = 16;
        type V = __m512;
        #[inline(always)]
        unsafe fn prefetch(from: *const f32) {
            _mm_prefetch::<_MM_HINT_T0>(from.cast());
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self::V {
            _mm512_set1_ps(x)
        }
        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self::V {
            _mm512_loadu_ps(from)
        }
        #[inline(always)]
        unsafe fn load_part(from: *const f32, count: usize) -> Self::V {
            _mm512_maskz_loadu_ps(mask(count), from)
        }
        #[inline(always)]
        unsafe fn store(to: *mut f32, x: Self::V) {
            _mm512_storeu_ps(to, x)
        }
        #[inline(always)]
        unsafe fn store_part(to: *mut f32, x: Self::V, count: usize) {
            _mm512_mask_storeu_ps(to, mask(count), x)
        }
        #[inline(always)]
        unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
            _mm512_add_ps(a, b)
        }
        #[inline(always)]
        unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
            _mm512_sub_ps(a, b)
        }
        #[inline(always)]
        unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
            _mm512_mul_ps(a, b)
        }
        #[inline(always)]
        unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
            _mm512_div_ps(a, b)
        }
        #[inline(always)]
        unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            _mm512_fmadd_ps(a, b, c)
        }
        #[inline(always)]
        unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
            _mm512_max_ps(a, b)
        }
        #[inline(always)]
        unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
            _mm512_min_ps(a, b)
        }
        #[inline(always)]
        unsafe fn with_sign(a: Self::V, b: Self::V) -> Self::V {
            let sign = _mm512_and_si512(_mm512_castps_si512(b), _mm512_set1_epi32(i32::MIN));
            _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(a), sign))
        }
        #[inline(always)]
        unsafe fn abs(a: Self::V) -> Self::V {
            _mm512_abs_ps(a)
        }
        #[inline(always)]
        unsafe fn times_power(a: Self::V, shifted: Self::V) -> Self::V {
            let exponent = _mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127));
            let power = _mm512_slli_epi32::<23>(exponent);
            _mm512_mul_ps(a, _mm512_castsi512_ps(power))
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// Defines a function that calls `$of::<L>` with the lanes of a level.
macro_rules! for_each_level {
    ($(#[$doc:meta])* $name:ident = $of:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)?) => {
        $(#[$doc])*
        #[allow(clippy::too_many_arguments)]
        pub(crate) unsafe fn $name(level: crate::lanes::Level, $($argument: $kind),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx512($($argument: $kind),*) $(-> $result)? {
                $of::<crate::lanes::Avx512>($($argument),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            #[allow(clippy::too_many_arguments)]
            unsafe fn avx2($($argument: $kind),*) $(-> $result)? {
                $of::<crate::lanes::Avx2>($($argument),*)
            }
            match level {
                #[cfg(target_arch = "x86_64")]
                crate::lanes::Level::Avx512 => avx512($($argument),*),
                #[cfg(target_arch = "x86_64")]
                crate::lanes::Level::Avx2 => avx2($($argument),*),
                crate::lanes::Level::Plain => $of::<crate::lanes::Plain>($($argument),*),
            }
        }
    };
}
pub(crate) use for_each_level;
