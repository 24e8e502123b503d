//! Reductions: element by element, in the order of ranks, each partial result in the element's type.

use half::{bf16, f16};
use hip_abi::rccl::{DataType, Op};

/// An element that can be reduced.
trait Element: Copy {
    const BYTES: usize;
    fn read(bytes: &[u8]) -> Self;
    fn write(self, bytes: &mut [u8]);
    fn combine(self, other: Self, op: Op) -> Self;
}

macro_rules! elements {
    ($($type:ty: $sum:expr, $prod:expr;)*) => {
        $(impl Element for $type {
            const BYTES: usize = size_of::<$type>();

            fn read(bytes: &[u8]) -> Self {
                let mut own = [0; size_of::<$type>()];
                own.copy_from_slice(bytes);
                <$type>::from_le_bytes(own)
            }

            fn write(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }

            fn combine(self, other: Self, op: Op) -> Self {
                let (sum, prod): (fn(Self, Self) -> Self, fn(Self, Self) -> Self) = ($sum, $prod);
                match op {
                    Op::Sum => sum(self, other),
                    Op::Prod => prod(self, other),
                    Op::Max if other > self => other,
                    Op::Min if other < self => other,
                    Op::Max | Op::Min => self,
                }
            }
        })*
    };
}

elements! {
    i8: i8::wrapping_add, i8::wrapping_mul;
    u8: u8::wrapping_add, u8::wrapping_mul;
    i32: i32::wrapping_add, i32::wrapping_mul;
    u32: u32::wrapping_add, u32::wrapping_mul;
    i64: i64::wrapping_add, i64::wrapping_mul;
    u64: u64::wrapping_add, u64::wrapping_mul;
    f16: |a, b| f16::from_f32(a.to_f32() + b.to_f32()), |a, b| f16::from_f32(a.to_f32() * b.to_f32());
    bf16: |a, b| bf16::from_f32(a.to_f32() + b.to_f32()), |a, b| bf16::from_f32(a.to_f32() * b.to_f32());
    f32: |a, b| a + b, |a, b| a * b;
    f64: |a, b| a + b, |a, b| a * b;
}

fn fold<T: Element>(sum: &mut [u8], next: &[u8], op: Op) {
    for (own, other) in (sum.chunks_exact_mut(T::BYTES)).zip(next.chunks_exact(T::BYTES)) {
        T::read(own).combine(T::read(other), op).write(own);
    }
}

/// Combines `next` into `sum`. 8-bit floats, which are not reduced, stay as they are.
pub(super) fn reduce(sum: &mut [u8], next: &[u8], dtype: DataType, op: Op) {
    match dtype {
        DataType::Int8 => fold::<i8>(sum, next, op),
        DataType::Uint8 => fold::<u8>(sum, next, op),
        DataType::Int32 => fold::<i32>(sum, next, op),
        DataType::Uint32 => fold::<u32>(sum, next, op),
        DataType::Int64 => fold::<i64>(sum, next, op),
        DataType::Uint64 => fold::<u64>(sum, next, op),
        DataType::Float16 => fold::<f16>(sum, next, op),
        DataType::Float32 => fold::<f32>(sum, next, op),
        DataType::Float64 => fold::<f64>(sum, next, op),
        DataType::Bfloat16 => fold::<bf16>(sum, next, op),
        DataType::Float8e4m3 | DataType::Float8e5m2 => {}
    }
}
