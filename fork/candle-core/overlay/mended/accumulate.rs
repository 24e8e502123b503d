//! Sums: what they are made in, and over which elements.
//!
//! Floats of every size are added up in f64 and rounded once, integers in i64, where overflow wraps.

use float8::F8E4M3;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::{CpuStorage, DType, Error, Layout, Result, WithDType};

/// The dtype in which something of several steps is computed, so that nothing rounds or overflows between them: f32 for
/// the floats of less than 32 bits, any other itself.
pub(crate) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 | DType::F8E4M3 => DType::F32,
        dtype => dtype,
    }
}

/// An element that can be added up.
pub(crate) trait Accumulate: WithDType {
    /// What its sums are made in.
    type Sum: Copy + Default + Send + Sync;

    /// The sum and one element more.
    fn added(sum: Self::Sum, element: Self) -> Self::Sum;

    /// Two sums together.
    fn join(a: Self::Sum, b: Self::Sum) -> Self::Sum;

    /// All of a slice.
    fn total(elements: &[Self]) -> Self::Sum;

    /// A sum as an element: rounded, or cut off to the bits that an integer has.
    fn of(sum: Self::Sum) -> Self;

    /// The mean of so many elements with this sum; that of integers is cut off towards zero. `count` is not 0 for those.
    fn mean(sum: Self::Sum, count: usize) -> Self;
}

macro_rules! floats {
    ($($float:ty = $total:path),* $(,)?) => {$(
        impl Accumulate for $float {
            type Sum = f64;

            #[inline(always)]
            fn added(sum: f64, element: Self) -> f64 {
                sum + WithDType::to_f64(element)
            }

            #[inline(always)]
            fn join(a: f64, b: f64) -> f64 {
                a + b
            }

            fn total(elements: &[Self]) -> f64 {
                $total(elements)
            }

            #[inline(always)]
            fn of(sum: f64) -> Self {
                <Self as WithDType>::from_f64(sum)
            }

            #[inline(always)]
            fn mean(sum: f64, count: usize) -> Self {
                <Self as WithDType>::from_f64(sum / count as f64)
            }
        }
    )*};
}

macro_rules! integers {
    ($($integer:ty),* $(,)?) => {$(
        impl Accumulate for $integer {
            type Sum = i64;

            #[inline(always)]
            fn added(sum: i64, element: Self) -> i64 {
                sum.wrapping_add(element as i64)
            }

            #[inline(always)]
            fn join(a: i64, b: i64) -> i64 {
                a.wrapping_add(b)
            }

            fn total(elements: &[Self]) -> i64 {
                elements.iter().fold(0, |sum, &element| Self::added(sum, element))
            }

            #[inline(always)]
            fn of(sum: i64) -> Self {
                sum as Self
            }

            #[inline(always)]
            fn mean(sum: i64, count: usize) -> Self {
                (sum / count as i64) as Self
            }
        }
    )*};
}

floats!(
    f16 = of_halves,
    bf16 = of_halves,
    f32 = of_floats,
    f64 = of_floats,
    F8E4M3 = of_floats,
);
integers!(u8, u32, i16, i32, i64);

/// Sums that a processor makes side by side.
const LANES: usize = 8;

fn of_floats<T: WithDType>(elements: &[T]) -> f64 {
    let mut sums = [0f64; LANES];
    let chunks = elements.chunks_exact(LANES);
    let rest = chunks.remainder().iter().map(|x| x.to_f64());
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += x.to_f64();
        }
    }
    sums.iter().sum::<f64>() + rest.sum::<f64>()
}

fn of_halves<T>(elements: &[T]) -> f64
where
    [T]: HalfFloatSliceExt,
{
    let mut floats = [0f32; 512];
    let pieces = elements.chunks(floats.len()).map(|piece| {
        let floats = &mut floats[..piece.len()];
        piece.convert_to_f32_slice(floats);
        of_floats(floats)
    });
    pieces.sum()
}

/// A storage of the same dtype, made of the elements of one that computes: `by_dtype!(storage, "sum", v => f(v))`.
macro_rules! by_dtype {
    ($storage:expr, $op:expr, $elements:ident => $made:expr) => {
        match $storage {
            $crate::CpuStorage::U8($elements) => $crate::CpuStorage::U8($made),
            $crate::CpuStorage::U32($elements) => $crate::CpuStorage::U32($made),
            $crate::CpuStorage::I16($elements) => $crate::CpuStorage::I16($made),
            $crate::CpuStorage::I32($elements) => $crate::CpuStorage::I32($made),
            $crate::CpuStorage::I64($elements) => $crate::CpuStorage::I64($made),
            $crate::CpuStorage::F16($elements) => $crate::CpuStorage::F16($made),
            $crate::CpuStorage::BF16($elements) => $crate::CpuStorage::BF16($made),
            $crate::CpuStorage::F32($elements) => $crate::CpuStorage::F32($made),
            $crate::CpuStorage::F64($elements) => $crate::CpuStorage::F64($made),
            $crate::CpuStorage::F8E4M3($elements) => $crate::CpuStorage::F8E4M3($made),
            other => {
                let dtype = $crate::backend::BackendStorage::dtype(other);
                return Err($crate::Error::UnsupportedDTypeForOp(dtype, $op).bt());
            }
        }
    };
}
pub(crate) use by_dtype;

/// The sums along `axes`, in row-major order of the other axes.
pub(crate) fn sum(src: &CpuStorage, layout: &Layout, axes: &[usize]) -> Result<CpuStorage> {
    fn finished<T: Accumulate>(src: &[T], layout: &Layout, axes: &[usize]) -> Vec<T> {
        sums(src, layout, axes).into_iter().map(T::of).collect()
    }
    Ok(by_dtype!(src, "sum", v => finished(v, layout, axes)))
}

/// The means along `axes`, in row-major order of the other axes.
pub(crate) fn mean(src: &CpuStorage, layout: &Layout, axes: &[usize]) -> Result<CpuStorage> {
    let dims = layout.dims();
    let count = axes.iter().map(|&axis| dims[axis]).product();
    let means: usize = (0..dims.len())
        .filter(|axis| !axes.contains(axis))
        .map(|axis| dims[axis])
        .product();
    if count == 0 && means > 0 && src_is_int(src) {
        return Err(Error::EmptyTensor { op: "mean" }.bt());
    }
    fn finished<T: Accumulate>(src: &[T], layout: &Layout, axes: &[usize], count: usize) -> Vec<T> {
        let sums = sums(src, layout, axes).into_iter();
        sums.map(|sum| T::mean(sum, count)).collect()
    }
    Ok(by_dtype!(src, "mean", v => finished(v, layout, axes, count)))
}

fn src_is_int(src: &CpuStorage) -> bool {
    crate::backend::BackendStorage::dtype(src).is_int()
}

/// Axes of a tensor that are as one.
struct Axis {
    size: usize,
    stride: usize,
    /// Between sums of neighbours: 0 along what is summed up.
    step: usize,
}

fn sums<T: Accumulate>(src: &[T], layout: &Layout, axes: &[usize]) -> Vec<T::Sum> {
    let (dims, strides) = (layout.dims(), layout.stride());
    let mut count = 1;
    let mut all: Vec<Axis> = Vec::with_capacity(dims.len());
    // From the last axis to the first.
    for axis in (0..dims.len()).rev() {
        let (size, stride) = (dims[axis], strides[axis]);
        let is_summed = axes.contains(&axis);
        let step = if is_summed { 0 } else { count };
        if !is_summed {
            count *= size;
        }
        match all.last_mut() {
            Some(inner)
                if stride == inner.stride * inner.size
                    && (step == 0) == (inner.step == 0)
                    && size > 0
                    && inner.size > 0 =>
            {
                inner.size *= size
            }
            _ if size == 1 => (),
            _ => all.push(Axis { size, stride, step }),
        }
    }
    let mut sums = vec![T::Sum::default(); count];
    if layout.shape().elem_count() == 0 {
        return sums;
    }
    let (inner, outer) = match all.split_first() {
        Some((inner, outer)) => (inner, outer),
        None => {
            sums[0] = T::added(sums[0], src[layout.start_offset()]);
            return sums;
        }
    };
    let mut at = vec![0; outer.len()];
    let (mut from, mut to) = (layout.start_offset(), 0);
    loop {
        match (inner.step, inner.stride) {
            (0, 1) => sums[to] = T::join(sums[to], T::total(&src[from..from + inner.size])),
            (0, stride) => {
                let elements = (0..inner.size).map(|i| src[from + i * stride]);
                sums[to] = elements.fold(sums[to], T::added);
            }
            (step, stride) => {
                for i in 0..inner.size {
                    let sum = &mut sums[to + i * step];
                    *sum = T::added(*sum, src[from + i * stride]);
                }
            }
        }
        // The next place of the outer axes, the innermost of them first.
        let mut axis = 0;
        loop {
            let Some(outer) = outer.get(axis) else {
                return sums;
            };
            at[axis] += 1;
            from += outer.stride;
            to += outer.step;
            if at[axis] < outer.size {
                break;
            }
            from -= outer.size * outer.stride;
            to -= outer.size * outer.step;
            at[axis] = 0;
            axis += 1;
        }
    }
}
