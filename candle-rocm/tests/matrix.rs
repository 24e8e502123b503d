//! Matrix instructions: products of small integers, which every format holds exactly, from every way of loading
//! operands.
//!
//! On an arch without them the kernels report so and nothing is compared.

mod common;

use candle_rocm::{Args, Device, LaunchConfig};
use common::{device, download, to_bytes, Element, Rng};
use half::{bf16, f16};

/// One wave multiplies `rows` x `inner` by `inner` x `columns`, tile by tile: `product_T(a, b, out, rows, columns,
/// inner)`, A by rows, B by columns, and `product_transposed_T` with A by columns and B by rows. `out` starts with K,
/// or 0 without matrix instructions.
const SOURCE: &str = r#"
#include "matrix.h"

#if MATRIX
template <typename T, bool TRANSPOSED> DEVICE_FN void product(const T* a, const T* b, typename matrix::Format<T>::Sum* out, u32 rows, u32 columns, u32 inner) {
    using S = typename matrix::Format<T>::Sum;
    constexpr u32 K = matrix::K<T>;
    __shared__ T staged[matrix::TILE * (K + 16)];
    if (lane() == 0) *out = (S)K;
    ++out;
    for (u32 row = 0; row < rows; row += matrix::TILE) {
        for (u32 column = 0; column < columns; column += matrix::TILE) {
            auto sum = matrix::Accumulator<S>::zero();
            for (u32 k = 0; k < inner; k += K) {
                matrix::FragmentA<T> x;
                matrix::FragmentB<T> y;
                if (TRANSPOSED) {
                    x = matrix::FragmentA<T>::load_transposed(a + k * rows + row, rows);
                    y = matrix::FragmentB<T>::load_transposed(b + k * columns + column, columns);
                } else {
                    // A through LDS with padded rows, B from global memory.
                    barrier();
                    for (u32 i = lane(); i < matrix::TILE * K; i += WAVE) staged[i / K * (K + 16) + i % K] = a[(row + i / K) * inner + k + i % K];
                    barrier();
                    x = matrix::FragmentA<T>::load(staged, K + 16);
                    y = matrix::FragmentB<T>::load(b + column * inner + k, inner);
                }
                matrix::multiply(x, y, sum);
            }
            for (u32 i = 0; i < sum.VALUES; ++i) out[(row + sum.row(i)) * columns + column + sum.column(i)] = sum.values[i];
        }
    }
}
#define PRODUCT(T)                                                                                                             \
    extern "C" __global__ void product_##T(const T* a, const T* b, matrix::Format<T>::Sum* out, u32 rows, u32 columns, u32 inner) { \
        product<T, false>(a, b, out, rows, columns, inner);                                                                    \
    }                                                                                                                          \
    extern "C" __global__ void product_transposed_##T(const T* a, const T* b, matrix::Format<T>::Sum* out, u32 rows, u32 columns, u32 inner) { \
        product<T, true>(a, b, out, rows, columns, inner);                                                                     \
    }
#else
#define PRODUCT(T)                                                                                                             \
    extern "C" __global__ void product_##T(const T*, const T*, u32* out, u32, u32, u32) { *out = 0; }                          \
    extern "C" __global__ void product_transposed_##T(const T*, const T*, u32* out, u32, u32, u32) { *out = 0; }
#endif
PRODUCT(f16)
PRODUCT(bf16)
PRODUCT(i8)
"#;

/// Whether the arch has matrix instructions, and the wave that executes them.
fn matrix_wave(device: &Device) -> Option<u32> {
    let arch = device.properties().arch.as_str();
    match arch {
        "gfx90a" | "gfx942" | "gfx950" | "gfx9-4-generic" => Some(64),
        _ if ["gfx11", "gfx12", "sm_"]
            .iter()
            .any(|family| arch.starts_with(family)) =>
        {
            Some(32)
        }
        _ => None,
    }
}

/// `[a, b]` transposed to `[b, a]`.
fn transpose<T: Copy>(values: &[T], a: usize, b: usize) -> Vec<T> {
    (0..b)
        .flat_map(|j| (0..a).map(move |i| values[i * b + j]))
        .collect()
}

/// Compares products of values below `limit` in magnitude, stored as `bytes` says.
fn check<Sum: Element>(name: &str, limit: i64, bytes: impl Fn(&[i64]) -> Vec<u8>) {
    let device = device();
    let wave = matrix_wave(&device);
    let (rows, columns, inner) = (32, 48, 96);
    let mut rng = Rng::new(5);
    let mut numbers = |n: usize| -> Vec<i64> {
        (0..n)
            .map(|_| rng.below(2 * limit as usize) as i64 - limit)
            .collect()
    };
    // A by rows, B by columns: K contiguous in both.
    let (a, b) = (numbers(rows * inner), numbers(columns * inner));
    let expected: Vec<f64> = (0..rows * columns)
        .map(|at| {
            let (row, column) = (&a[at / columns * inner..], &b[at % columns * inner..]);
            (0..inner).map(|k| row[k] * column[k]).sum::<i64>() as f64
        })
        .collect();
    for (kernel, a, b) in [
        (format!("product_{name}"), a.clone(), b.clone()),
        (
            format!("product_transposed_{name}"),
            transpose(&a, rows, inner),
            transpose(&b, columns, inner),
        ),
    ] {
        let (a, b) = (
            device.upload(&bytes(&a)).unwrap(),
            device.upload(&bytes(&b)).unwrap(),
        );
        let out = device.alloc_zeroed(4 * (1 + rows * columns)).unwrap();
        let config = LaunchConfig {
            grid: 1,
            block: wave.unwrap_or(32),
            shared_bytes: 0,
        };
        let args = Args::new()
            .ptr(&a, 0)
            .ptr(&b, 0)
            .ptr(&out, 0)
            .u32(rows as u32)
            .u32(columns as u32)
            .u32(inner as u32);
        let product = device.custom_kernel(SOURCE, &kernel).unwrap();
        // SAFETY: the arguments are the kernel's, and the matrices have these sizes.
        unsafe { product.launch(config, &args) }.unwrap();
        let got: Vec<f64> = download::<Sum>(&device, &out)
            .into_iter()
            .map(Sum::to_f64)
            .collect();
        assert_eq!(got[0] != 0.0, wave.is_some(), "{kernel}: K is {}", got[0]);
        if wave.is_some() {
            assert_eq!(got[1..], expected, "{kernel}");
        }
    }
}

#[test]
fn products_of_f16() {
    check::<f32>("f16", 32, |values| {
        to_bytes(
            &values
                .iter()
                .map(|&v| f16::from_f32(v as f32))
                .collect::<Vec<_>>(),
        )
    });
}

#[test]
fn products_of_bf16() {
    check::<f32>("bf16", 32, |values| {
        to_bytes(
            &values
                .iter()
                .map(|&v| bf16::from_f32(v as f32))
                .collect::<Vec<_>>(),
        )
    });
}

#[test]
fn products_of_i8() {
    check::<i32>("i8", 128, |values| {
        values.iter().map(|&v| v as i8 as u8).collect()
    });
}
