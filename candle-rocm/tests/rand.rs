//! Random numbers: the generator's published answers, distributions, and independence of count and call.

mod common;

use candle_rocm::ops::rand::{normal, philox, uniform};
use candle_rocm::{DType, Device, Error};
use common::*;
use float8::F8E4M3;
use half::{bf16, f16};

#[test]
fn philox_gives_the_published_answers() {
    let device = device();
    // Random123, kat_vectors, philox4x32 with 10 rounds.
    let counter = |w: [u128; 4]| w[0] | w[1] << 32 | w[2] << 64 | w[3] << 96;
    for (key, counter, want) in [
        (
            0,
            counter([0; 4]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
        ),
        (
            u64::MAX,
            counter([0xffff_ffff; 4]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
        ),
        (
            0x299f_31d0_a409_3822,
            counter([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        ),
    ] {
        let got: Vec<u32> = download(&device, &philox(&device, key, counter, 4).unwrap());
        assert_eq!(got, want);
    }
}

#[test]
fn philox_carries_into_the_upper_half_of_the_counter() {
    let device = device();
    let start = u128::from(u64::MAX);
    let got: Vec<u32> = download(&device, &philox(&device, 7, start, 8).unwrap());
    let next: Vec<u32> = download(&device, &philox(&device, 7, start + 1, 4).unwrap());
    assert_eq!(got[4..], next);
}

fn seeded<T: Element>(
    device: &Device,
    draw: impl Fn() -> candle_rocm::Result<candle_rocm::Buffer>,
) -> Vec<T> {
    device.set_seed(42);
    download(device, &draw().unwrap())
}

fn prefixes<T: Element>(device: &Device) {
    let what = T::DTYPE;
    let all: Vec<T> = seeded(device, || uniform(device, T::DTYPE, 10_000, -1.0, 1.0));
    let normals: Vec<T> = seeded(device, || normal(device, T::DTYPE, 10_000, 0.0, 1.0));
    for n in [0, 1, 2, 3, 5, 257, 9_999] {
        let some: Vec<T> = seeded(device, || uniform(device, T::DTYPE, n, -1.0, 1.0));
        assert_exact(&some, &all[..n], &format!("{n} uniform {what}"));
        let some: Vec<T> = seeded(device, || normal(device, T::DTYPE, n, 0.0, 1.0));
        assert_exact(&some, &normals[..n], &format!("{n} normal {what}"));
    }
}

#[test]
fn numbers_do_not_depend_on_the_count() {
    let device = device();
    for_each_float!(prefixes(&device));
}

#[test]
fn calls_continue_and_seeds_restart() {
    let device = device();
    device.set_seed(1);
    let first: Vec<f32> = download(&device, &uniform(&device, DType::F32, 8, 0.0, 1.0).unwrap());
    let second: Vec<f32> = download(&device, &uniform(&device, DType::F32, 8, 0.0, 1.0).unwrap());
    device.set_seed(1);
    let both: Vec<f32> = download(
        &device,
        &uniform(&device, DType::F32, 16, 0.0, 1.0).unwrap(),
    );
    assert_eq!(both, [first.clone(), second].concat());
    device.set_seed(2);
    let other: Vec<f32> = download(&device, &uniform(&device, DType::F32, 8, 0.0, 1.0).unwrap());
    assert_ne!(first, other);
}

/// Numbers that every GPU and wave size must give; computed from the published generator by hand on the host.
#[test]
fn uniform_numbers_are_the_generators_words() {
    let device = device();
    let words: Vec<u32> = download(&device, &philox(&device, 42, 0, 64).unwrap());
    let got: Vec<f32> = seeded(&device, || uniform(&device, DType::F32, 64, 0.0, 1.0));
    let want: Vec<f32> = words
        .iter()
        .map(|w| (w >> 8) as f32 / 16_777_216.0)
        .collect();
    assert_exact(&got, &want, "f32");
    let got: Vec<f64> = seeded(&device, || uniform(&device, DType::F64, 32, 0.0, 1.0));
    let want: Vec<f64> = words
        .chunks(2)
        .map(|w| ((u64::from(w[1]) << 32 | u64::from(w[0])) >> 11) as f64 / (1u64 << 53) as f64)
        .collect();
    assert_exact(&got, &want, "f64");
}

#[test]
fn normal_numbers_are_those_of_box_and_muller() {
    let device = device();
    let words: Vec<u32> = download(&device, &philox(&device, 42, 0, 4096).unwrap());
    let got: Vec<f32> = seeded(&device, || normal(&device, DType::F32, 4096, 2.0, 3.0));
    let want: Vec<f64> = words
        .chunks(2)
        .flat_map(|w| {
            let radius = (-2.0 * ((f64::from(w[0]) + 0.5) / 4_294_967_296.0).ln()).sqrt();
            let angle = f64::from(w[1] >> 8) / 16_777_216.0 * std::f64::consts::TAU;
            [
                2.0 + 3.0 * radius * angle.cos(),
                2.0 + 3.0 * radius * angle.sin(),
            ]
        })
        .collect();
    assert_close(&got, &want, 1e-12, "f32");
}

fn moments<T: Element>(device: &Device) {
    let n = 200_000;
    let what = T::DTYPE;
    device.set_seed(5);
    let of = |values: &[T]| {
        let values: Vec<f64> = values.iter().map(|v| v.to_f64()).collect();
        let moment = |center: f64, power: i32| {
            values.iter().map(|v| (v - center).powi(power)).sum::<f64>() / n as f64
        };
        let mean = moment(0.0, 1);
        (mean, moment(mean, 2), moment(mean, 3), moment(mean, 4))
    };
    let (mean, variance, ..) = of(&download(
        device,
        &uniform(device, T::DTYPE, n, -2.0, 6.0).unwrap(),
    ));
    // Standard errors: 2.31 / sqrt(n) = 0.005 and about 0.011; f8e4m3 rounds by up to 0.25, and what would be 6 becomes
    // 5.5.
    let tolerance = if T::DTYPE == DType::F8E4M3 {
        0.15
    } else {
        0.05
    };
    assert!((mean - 2.0).abs() < 0.03, "{what}: mean {mean}");
    assert!(
        (variance - 64.0 / 12.0).abs() < tolerance,
        "{what}: variance {variance}"
    );
    let (mean, variance, third, fourth) = of(&download(
        device,
        &normal(device, T::DTYPE, n, 0.5, 2.0).unwrap(),
    ));
    assert!((mean - 0.5).abs() < 0.03, "{what}: mean {mean}");
    assert!(
        (variance - 4.0).abs() < tolerance,
        "{what}: variance {variance}"
    );
    assert!((third / 8.0).abs() < 0.05, "{what}: skewness {third}");
    assert!(
        (fourth / 16.0 - 3.0).abs() < 0.1,
        "{what}: kurtosis {fourth}"
    );
}

#[test]
fn moments_are_right() {
    let device = device();
    for_each_float!(moments(&device));
}

fn bounds<T: Element>(device: &Device) {
    for (lo, hi) in [
        (0.0, 1.0),
        (-1.0, 0.0),
        (1.0, 1.25),
        (-448.0, -416.0),
        (0.0, 2f64.powi(-8)),
    ] {
        let values: Vec<T> = seeded(device, || uniform(device, T::DTYPE, 100_000, lo, hi));
        for v in values {
            assert!(
                lo <= v.to_f64() && v.to_f64() < hi,
                "{}: {v:?} in [{lo}, {hi})",
                T::DTYPE
            );
        }
    }
}

#[test]
fn the_upper_bound_is_never_reached() {
    let device = device();
    for_each_float!(bounds(&device));
    // One value only.
    let got: Vec<bf16> = download(
        &device,
        &uniform(&device, DType::BF16, 100, 1.0, 1.0 + 1.0 / 128.0).unwrap(),
    );
    assert_eq!(got, [bf16::ONE; 100]);
    let got: Vec<F8E4M3> = download(
        &device,
        &uniform(&device, DType::F8E4M3, 100, 1.0, 1.125).unwrap(),
    );
    assert_eq!(got, [F8E4M3::ONE; 100]);
}

#[test]
fn normal_of_odd_count_and_no_deviation() {
    let device = device();
    let got: Vec<f16> = download(&device, &normal(&device, DType::F16, 7, 1.5, 0.0).unwrap());
    assert_eq!(got, [f16::from_f32(1.5); 7]);
}

#[test]
fn more_than_65535_blocks() {
    let device = device();
    let n = 4 * 256 * 65_600 + 1;
    let values: Vec<F8E4M3> = seeded(&device, || uniform(&device, DType::F8E4M3, n, 1.0, 2.0));
    let words: Vec<u32> = download(&device, &philox(&device, 42, (n / 4) as u128, 4).unwrap());
    let last = F8E4M3::from_f32(1.0 + (words[0] >> 8) as f32 / 16_777_216.0)
        .to_f32()
        .min(1.875);
    assert_eq!(values[n - 1], F8E4M3::from_f32(last));
}

#[test]
fn what_is_refused() {
    let device = device();
    for dtype in [DType::U8, DType::U32, DType::I16, DType::I32, DType::I64] {
        for result in [
            uniform(&device, dtype, 4, 0.0, 1.0),
            normal(&device, dtype, 4, 0.0, 1.0),
        ] {
            assert!(
                matches!(result, Err(Error::UnsupportedDType { .. })),
                "{result:?}"
            );
        }
    }
    for (dtype, lo, hi) in [
        (DType::F32, 1.0, 1.0),
        (DType::F32, 2.0, 1.0),
        (DType::F32, 0.0, f64::INFINITY),
        (DType::F32, f64::NAN, 1.0),
        (DType::F32, -3e38, 3e38),
        (DType::BF16, 1.0, 1.001),
    ] {
        let result = uniform(&device, dtype, 4, lo, hi);
        assert!(
            matches!(result, Err(Error::InvalidArgument { .. })),
            "{result:?}"
        );
    }
    let result = normal(&device, DType::F32, 4, f64::NAN, 1.0);
    assert!(
        matches!(result, Err(Error::InvalidArgument { .. })),
        "{result:?}"
    );
}
