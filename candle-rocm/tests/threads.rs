//! Many threads on one device.

mod common;

use candle_rocm::ops::affine::affine;
use candle_rocm::ops::unary::{unary, UnaryOp};
use candle_rocm::{blas, contiguous_strides, Buffer, DType, Device, View};
use common::{device, download, upload, Rng};
use std::thread;

const THREADS: usize = 8;
const ROUNDS: usize = 60;

#[test]
fn device_buffer_and_kernel_may_be_shared() {
    fn shared<T: Send + Sync>() {}
    shared::<Device>();
    shared::<Buffer>();
    shared::<candle_rocm::Kernel>();
    shared::<candle_rocm::Event>();
    shared::<candle_rocm::Graph>();
    shared::<candle_rocm::Error>();
}

/// Uploads, computes in several ways, downloads, and verifies.
fn work(device: &Device, seed: u64) {
    let mut rng = Rng::new(seed);
    for round in 0..ROUNDS {
        let edge = 1 + rng.below(40);
        let value = (1 + rng.below(9)) as f32;
        let (dims, strides) = ([edge, edge], contiguous_strides(&[edge, edge]));
        let host = vec![value; edge * edge];
        let buffer = upload(device, &host);
        let view = View::contiguous(&buffer, DType::F32, &dims, &strides);
        let (result, expected) = match round % 4 {
            0 => (affine(device, &view, 2.0, 1.0).unwrap(), 2.0 * value + 1.0),
            1 => (unary(device, UnaryOp::Sqr, &view).unwrap(), value * value),
            2 => {
                let bmnk = (1, edge, edge, edge);
                let product = blas::matmul(device, DType::F32, bmnk, &view, &view).unwrap();
                (product, value * value * edge as f32)
            }
            _ => {
                let copy = device.alloc(buffer.len()).unwrap();
                device.copy(&buffer, 0, &copy, 0, buffer.len()).unwrap();
                (copy, value)
            }
        };
        drop(buffer);
        if round % 7 == 0 {
            device.synchronize().unwrap();
        }
        let got = download::<f32>(device, &result);
        assert!(
            got.iter().all(|&v| v == expected),
            "round {round}: {} is not {expected}",
            got[0]
        );
    }
}

#[test]
fn eight_threads_share_a_device() {
    let device = device();
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let device = &device;
            scope.spawn(move || work(device, seed as u64));
        }
    });
    let stats = device.memory_stats();
    assert_eq!((stats.live_bytes, stats.live_buffers), (0, 0));
}

#[test]
fn eight_threads_each_have_a_device() {
    thread::scope(|scope| {
        for seed in 0..THREADS {
            scope.spawn(move || work(&device(), 100 + seed as u64));
        }
    });
}

#[test]
fn a_buffer_may_be_dropped_in_another_thread() {
    let device = device();
    for _ in 0..100 {
        let buffer = upload(&device, &[3f32; 1000]);
        let (dims, strides) = ([1000], [1]);
        let result = affine(
            &device,
            &View::contiguous(&buffer, DType::F32, &dims, &strides),
            2.0,
            0.0,
        );
        thread::spawn(move || drop(buffer)).join().unwrap();
        // Takes the same memory, behind the kernel that reads it.
        let _other = upload(&device, &[0f32; 1000]);
        assert_eq!(download::<f32>(&device, &result.unwrap()), [6.0; 1000]);
    }
}

#[test]
fn one_thread_may_switch_between_devices() {
    let devices: Vec<Device> = (0..Device::count().unwrap())
        .flat_map(|ordinal| [Device::new(ordinal).unwrap(), Device::new(ordinal).unwrap()])
        .collect();
    for round in 0..20 {
        for device in &devices {
            work_once(device, round as f32);
        }
    }
}

fn work_once(device: &Device, value: f32) {
    let buffer = upload(device, &[value; 10]);
    let (dims, strides) = ([10], [1]);
    let view = View::contiguous(&buffer, DType::F32, &dims, &strides);
    let result = affine(device, &view, 1.0, 1.0).unwrap();
    assert_eq!(download::<f32>(device, &result), [value + 1.0; 10]);
}
