//! Arithmetic on the elements of tensors, of which that on integers wraps, in every profile of the build.

use float8::F8E4M3;
use half::{bf16, f16};

use crate::dummy_dtype::{F4, F6E2M3, F6E3M2, F8E8M0};
use crate::WithDType;

/// What elements of every dtype can do. Integers wrap, as on the devices and in PyTorch.
pub trait Arithmetic: Copy {
    fn sum_with(self, other: Self) -> Self;
    fn difference_with(self, other: Self) -> Self;
    fn product_with(self, other: Self) -> Self;
    /// An integer by 0 is 0; divisors are looked at beforehand (`integers::check_divisor`).
    fn quotient_with(self, other: Self) -> Self;
    /// An integer as such; nothing for floats.
    fn integer(self) -> Option<i64>;
    /// The lowest bits of an integer; for floats, the nearest.
    fn from_integer(value: i64) -> Self;
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Arithmetic for $t {
            #[inline(always)]
            fn sum_with(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn difference_with(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn product_with(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn quotient_with(self, other: Self) -> Self {
                match other {
                    0 => 0,
                    other => self.wrapping_div(other),
                }
            }
            fn integer(self) -> Option<i64> {
                Some(self as i64)
            }
            fn from_integer(value: i64) -> Self {
                value as $t
            }
        }
    )*};
}

macro_rules! floats {
    ($($t:ty, $from:expr;)*) => {$(
        impl Arithmetic for $t {
            #[inline(always)]
            fn sum_with(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn difference_with(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn product_with(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn quotient_with(self, other: Self) -> Self {
                self / other
            }
            fn integer(self) -> Option<i64> {
                None
            }
            fn from_integer(value: i64) -> Self {
                $from(value as f64)
            }
        }
    )*};
}

integers!(u8 u32 i16 i32 i64);
floats! {
    bf16, bf16::from_f64;
    f16, f16::from_f64;
    f32, |v| v as f32;
    f64, |v| v;
    F8E4M3, F8E4M3::from_f64;
    // These are only stored.
    F4, <F4 as WithDType>::from_f64;
    F6E2M3, <F6E2M3 as WithDType>::from_f64;
    F6E3M2, <F6E3M2 as WithDType>::from_f64;
    F8E8M0, <F8E8M0 as WithDType>::from_f64;
}
