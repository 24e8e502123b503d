//! The allocator: reuse, statistics, exhaustion, and drops while the device fails.

mod common;
mod isolated;

use candle_rocm::ops::affine::affine;
use candle_rocm::ops::binary::{binary, BinaryOp};
use candle_rocm::ops::unary::{unary, UnaryOp};
use candle_rocm::{blas, contiguous_strides, Buffer, Capture, DType, Device, Error, View};
use common::{device, download, upload, Rng};
use hip_sim::client::{Client, Failure};
use isolated::in_child;

const MIB: usize = 1 << 20;

/// The simulator; these tests make it small or let it fail.
fn simulator() -> Client {
    Client::find().expect("ROCM_PATH points at hip-sim")
}

/// Runs `body` in a process whose allocator caches, whatever the environment of the tests says.
fn caching(name: &str, memory: &str, body: impl FnOnce()) {
    in_child(
        name,
        &[("CANDLE_ROCM_ALLOC", "cached"), ("HIP_SIM_MEMORY", memory)],
        body,
    );
}

fn live(device: &Device) -> (usize, usize) {
    let stats = device.memory_stats();
    (stats.live_bytes, stats.live_buffers)
}

#[test]
fn ten_thousand_mixed_operations_make_few_device_allocations_and_leave_nothing() {
    let name = "ten_thousand_mixed_operations_make_few_device_allocations_and_leave_nothing";
    caching(name, "1G", || {
        let device = device();
        let mut rng = Rng::new(1);
        let mut kept: Vec<(Buffer, f32)> = Vec::new();
        for round in 0..10_000 {
            let edge = 1 + rng.below(64);
            let (dims, n) = ([edge, edge], edge * edge);
            let strides = contiguous_strides(&dims);
            let buffer = upload(&device, &vec![1f32; n]);
            let view = View::contiguous(&buffer, DType::F32, &dims, &strides);
            let (result, expected) = match round % 4 {
                0 => (affine(&device, &view, 3.0, 1.0).unwrap(), 4.0),
                1 => (unary(&device, UnaryOp::Neg, &view).unwrap(), -1.0),
                2 => (binary(&device, BinaryOp::Add, &view, &view).unwrap(), 2.0),
                _ => {
                    let bmnk = (1, edge, edge, edge);
                    let product = blas::matmul(&device, DType::F32, bmnk, &view, &view);
                    (product.unwrap(), edge as f32)
                }
            };
            if kept.len() == 16 {
                let (old, value) = kept.swap_remove(rng.below(16));
                if round % 50 == 0 {
                    assert!(download::<f32>(&device, &old).iter().all(|&v| v == value));
                }
            }
            kept.push((result, expected));
        }
        for (buffer, value) in kept.drain(..) {
            assert!(download::<f32>(&device, &buffer)
                .iter()
                .all(|&v| v == value));
        }
        let stats = device.memory_stats();
        assert!(stats.device_allocations < 100, "{stats:?}");
        assert_eq!(
            (stats.live_bytes, stats.live_buffers, stats.ooms),
            (0, 0, 0)
        );
        assert!(
            stats.cache_hits > 19_000 && stats.peak_bytes > 0,
            "{stats:?}"
        );
        device.trim().unwrap();
        let stats = device.memory_stats();
        assert_eq!(stats.cached_bytes, 0);
        assert_eq!(stats.device_frees, stats.device_allocations);
    });
}

#[test]
fn a_dropped_buffer_is_the_next_of_its_size() {
    let name = "a_dropped_buffer_is_the_next_of_its_size";
    caching(name, "1G", || {
        let device = device();
        for bytes in [1, 512, 5000, 300_000, 3 * MIB + 1] {
            let first = device.alloc(bytes).unwrap();
            let address = first.as_ptr();
            drop(first);
            let before = device.memory_stats();
            assert_eq!(
                device.alloc(bytes).unwrap().as_ptr(),
                address,
                "{bytes} bytes"
            );
            let after = device.memory_stats();
            assert_eq!(after.device_allocations, before.device_allocations);
            assert_eq!(after.cache_hits, before.cache_hits + 1);
        }
    });
}

#[test]
fn a_much_larger_block_is_not_spent_on_a_small_request() {
    let name = "a_much_larger_block_is_not_spent_on_a_small_request";
    caching(name, "1G", || {
        let device = device();
        drop(device.alloc(64 * MIB).unwrap());
        let small = device.alloc(8 * MIB).unwrap();
        let stats = device.memory_stats();
        assert_eq!((stats.live_bytes, stats.cached_bytes), (8 * MIB, 64 * MIB));
        // An eighth more is given away.
        drop(small);
        let near = device.alloc(57 * MIB).unwrap();
        assert_eq!(device.memory_stats().live_bytes, 64 * MIB);
        assert_eq!(near.len(), 57 * MIB);
    });
}

#[test]
fn nothing_is_allocated_for_nothing() {
    let device = device();
    let empty = device.alloc(0).unwrap();
    assert!(empty.is_empty() && empty.as_ptr().is_null());
    assert!(device.alloc_zeroed(0).unwrap().is_empty());
    assert!(device.upload(&[]).unwrap().is_empty());
    device.download(&empty, 0, &mut []).unwrap();
    device.copy(&empty, 0, &empty, 0, 0).unwrap();
    assert_eq!(live(&device), (0, 0));
}

#[test]
fn buffers_do_not_overlap() {
    let device = device();
    let mut rng = Rng::new(2);
    let buffers: Vec<Buffer> = (0..500)
        .map(|i| {
            let bytes = 1 + rng.below(if i % 10 == 0 { MIB } else { 5000 });
            device.upload(&vec![i as u8; bytes]).unwrap()
        })
        .collect();
    for (i, buffer) in buffers.iter().enumerate() {
        assert_eq!(buffer.as_ptr().align_offset(256), 0);
        let mut got = vec![0; buffer.len()];
        device.download(buffer, 0, &mut got).unwrap();
        assert!(got.iter().all(|&b| b == i as u8), "buffer {i}");
    }
}

#[test]
fn zeroed_memory_is_zero_even_if_it_was_used_before() {
    let device = device();
    drop(device.upload(&[0xff; 10_000]).unwrap());
    let buffer = device.alloc_zeroed(10_000).unwrap();
    assert_eq!(download::<u8>(&device, &buffer), [0; 10_000]);
}

#[test]
fn a_full_device_gives_a_typed_error_and_works_afterwards() {
    let name = "a_full_device_gives_a_typed_error_and_works_afterwards";
    caching(name, "256M", || {
        let device = device();
        // Something in the cache, which the device is asked to give up before it is called full.
        drop(device.alloc(40 * MIB).unwrap());
        let mut held = Vec::new();
        let error = loop {
            match device.alloc(16 * MIB) {
                Ok(buffer) => held.push(buffer),
                Err(error) => break error,
            }
            assert!(held.len() <= 16);
        };
        let Error::OutOfMemory {
            ordinal,
            requested,
            free,
            total,
            cached,
            live,
        } = error
        else {
            panic!("{error:?}");
        };
        assert!(error_mentions(
            &error,
            &["out of device memory", "16777216"]
        ));
        assert_eq!((ordinal, requested, cached), (0, 16 * MIB, 0));
        assert_eq!(live, held.len() * 16 * MIB);
        assert!(free < 16 * MIB && total >= 256 * MIB, "{free} of {total}");
        // Once when the 40 MiB were given up, once for the final refusal.
        let stats = device.memory_stats();
        assert_eq!(
            (stats.ooms, stats.device_frees, stats.cached_bytes),
            (2, 1, 0)
        );

        held.truncate(2);
        let buffer = upload(&device, &vec![2f32; MIB]);
        let (dims, strides) = ([MIB], [1]);
        let view = View::contiguous(&buffer, DType::F32, &dims, &strides);
        let result = affine(&device, &view, 2.0, 0.0).unwrap();
        assert!(download::<f32>(&device, &result).iter().all(|&v| v == 4.0));
    });
}

fn error_mentions(error: &Error, parts: &[&str]) -> bool {
    parts.iter().all(|part| error.to_string().contains(part))
}

#[test]
fn the_cache_is_emptied_once_when_the_device_is_full() {
    let name = "the_cache_is_emptied_once_when_the_device_is_full";
    caching(name, "256M", || {
        let device = device();
        let cached: Vec<Buffer> = (0..5).map(|_| device.alloc(32 * MIB).unwrap()).collect();
        drop(cached);
        assert_eq!(device.memory_stats().cached_bytes, 160 * MIB);
        // 96 MiB are left and 112 asked for: with the cache gone they fit.
        let large = device.alloc(112 * MIB).unwrap();
        let stats = device.memory_stats();
        assert_eq!((stats.ooms, stats.cached_bytes), (1, 0));
        assert_eq!((stats.device_frees, stats.device_allocations), (5, 6));
        assert_eq!(large.len(), 112 * MIB);
        // What can never fit does not disturb what exists.
        let error = device.alloc(1 << 40).unwrap_err();
        assert!(error.is_out_of_memory());
        assert_eq!(live(&device), (112 * MIB, 1));
    });
}

#[test]
fn a_full_gpu_gets_back_what_its_other_devices_cache() {
    let name = "a_full_gpu_gets_back_what_its_other_devices_cache";
    caching(name, "256M", || {
        let (first, second) = (device(), Device::new(0).unwrap());
        // On the other device's stream there is still work that uses the memory.
        let buffer = upload(&first, &vec![1f32; 32 * MIB / 4]);
        let (dims, strides) = ([buffer.len() / 4], [1]);
        let view = View::contiguous(&buffer, DType::F32, &dims, &strides);
        let result = affine(&first, &view, 2.0, 0.0).unwrap();
        drop(first.alloc(128 * MIB).unwrap());
        drop(buffer);
        assert_eq!(first.memory_stats().cached_bytes, 160 * MIB);
        let large = second.alloc(200 * MIB).unwrap();
        assert_eq!(large.len(), 200 * MIB);
        let (first_stats, stats) = (first.memory_stats(), second.memory_stats());
        assert_eq!((first_stats.cached_bytes, first_stats.device_frees), (0, 2));
        assert_eq!((first_stats.ooms, stats.ooms), (0, 1));
        assert!(download::<f32>(&first, &result).iter().all(|&v| v == 2.0));
        // A device that is gone is not asked.
        drop((result, first));
        assert!(second.alloc(1 << 40).unwrap_err().is_out_of_memory());
    });
}

#[test]
fn two_devices_that_find_the_gpu_full_at_once_do_not_wait_for_each_other() {
    let name = "two_devices_that_find_the_gpu_full_at_once_do_not_wait_for_each_other";
    caching(name, "32M", || {
        let devices = [device(), Device::new(0).unwrap()];
        std::thread::scope(|scope| {
            for device in &devices {
                scope.spawn(move || {
                    for _ in 0..50 {
                        // Each alone fits, both do not: the one gives up its cache for the other, or the other fails.
                        drop(device.alloc(18 * MIB));
                        drop(device.alloc(11 * MIB));
                    }
                });
            }
        });
        for device in &devices {
            device.trim().unwrap();
            assert_eq!(device.memory_stats().cached_bytes, 0);
        }
    });
}

#[test]
fn what_is_uploaded_takes_little_more_than_its_size_and_is_used_again() {
    let name = "what_is_uploaded_takes_little_more_than_its_size_and_is_used_again";
    caching(name, "1G", || {
        let device = device();
        let weights = vec![7u8; 9 * MIB + 1];
        let buffer = device.upload(&weights).unwrap();
        let rounded = 9 * MIB + (64 << 10);
        assert_eq!(device.memory_stats().live_bytes, rounded);
        let address = buffer.as_ptr();
        drop(buffer);
        // The next upload of that size gets it, and so does what is allocated otherwise.
        let again = device.upload(&weights).unwrap();
        assert_eq!(again.as_ptr(), address);
        drop(again);
        let other = device.alloc(9 * MIB + 1).unwrap();
        assert_eq!(other.as_ptr(), address);
        let stats = device.memory_stats();
        assert_eq!((stats.device_allocations, stats.cache_hits), (1, 2));
    });
}

#[test]
fn a_full_device_does_not_spoil_a_capture() {
    let name = "a_full_device_does_not_spoil_a_capture";
    caching(name, "256M", || {
        let device = device();
        let x = upload(&device, &[1f32; 64]);
        let (dims, strides) = ([64], [1]);
        let view = View::contiguous(&x, DType::F32, &dims, &strides);
        affine(&device, &view, 2.0, 0.0).unwrap();
        drop(device.alloc(100 * MIB).unwrap());
        let capture = Capture::begin(&device).unwrap();
        let result = affine(&device, &view, 2.0, 0.0).unwrap();
        // It would fit with the cache gone, for which the stream would have to be waited for.
        let error = device.alloc(200 * MIB).unwrap_err();
        assert!(error.is_out_of_memory(), "{error:?}");
        let graph = capture.end().unwrap();
        // SAFETY: operand and result are alive.
        unsafe { graph.launch().unwrap() };
        assert_eq!(download::<f32>(&device, &result), [2.0; 64]);
        drop(device.alloc(200 * MIB).unwrap());
    });
}

#[test]
fn a_refused_allocation_is_tried_again() {
    let name = "a_refused_allocation_is_tried_again";
    caching(name, "1G", || {
        let device = device();
        let sim = simulator();
        sim.inject(Failure::Malloc, 1);
        let buffer = device.alloc(3 * MIB).unwrap();
        assert_eq!((buffer.len(), device.memory_stats().ooms), (3 * MIB, 1));
        drop(buffer);
        device.synchronize().unwrap();
    });
}

#[test]
fn trimming_keeps_slabs_that_are_in_use() {
    let name = "trimming_keeps_slabs_that_are_in_use";
    caching(name, "1G", || {
        let device = device();
        let small = device.upload(&[7; 100]).unwrap();
        drop(device.alloc(100).unwrap());
        drop(device.alloc(3 * MIB).unwrap());
        device.trim().unwrap();
        let stats = device.memory_stats();
        assert_eq!((stats.live_buffers, stats.device_frees), (1, 1));
        assert_eq!(download::<u8>(&device, &small), [7; 100]);
        drop(small);
        device.trim().unwrap();
        assert_eq!(device.memory_stats().cached_bytes, 0);
    });
}

#[test]
fn direct_allocation_takes_and_frees_exact_sizes() {
    let name = "direct_allocation_takes_and_frees_exact_sizes";
    in_child(name, &[("CANDLE_ROCM_ALLOC", "direct")], || {
        let device = device();
        let buffer = device.upload(&[1; 1000]).unwrap();
        let stats = device.memory_stats();
        assert_eq!((stats.live_bytes, stats.device_allocations), (1000, 1));
        drop(buffer);
        let stats = device.memory_stats();
        assert_eq!(
            (stats.live_bytes, stats.cached_bytes, stats.device_frees),
            (0, 0, 1)
        );
    });
}

#[test]
fn a_failing_copy_is_an_error_and_the_next_one_works() {
    in_child(
        "a_failing_copy_is_an_error_and_the_next_one_works",
        &[],
        || {
            let device = device();
            let buffer = device.upload(&[1; 64]).unwrap();
            simulator().inject(Failure::Copy, 1);
            let error = device.upload_into(&[2; 64], &buffer, 0).unwrap_err();
            assert!(matches!(error, Error::Hip { .. }), "{error:?}");
            assert!(error.to_string().contains("hipMemcpyAsync"), "{error}");
            assert_eq!(download::<u8>(&device, &buffer), [1; 64]);
        },
    );
}

#[test]
fn a_failing_launch_names_the_kernel() {
    in_child("a_failing_launch_names_the_kernel", &[], || {
        let device = device();
        let buffer = upload(&device, &[1f32; 64]);
        let (dims, strides) = ([64], [1]);
        let view = View::contiguous(&buffer, DType::F32, &dims, &strides);
        affine(&device, &view, 2.0, 0.0).unwrap();
        simulator().inject(Failure::Launch, 1);
        let error = affine(&device, &view, 2.0, 0.0).unwrap_err();
        let Error::Launch { kernel, arch, .. } = &error else {
            panic!("{error:?}");
        };
        assert!(
            kernel.starts_with("affine") && *arch == device.properties().full_arch,
            "{error}"
        );
        let result = affine(&device, &view, 2.0, 0.0).unwrap();
        assert_eq!(download::<f32>(&device, &result), [2.0; 64]);
    });
}

#[test]
fn dropping_everything_on_a_lost_device_does_not_panic_and_is_reported_later() {
    let name = "dropping_everything_on_a_lost_device_does_not_panic_and_is_reported_later";
    for mode in ["cached", "direct"] {
        in_child(name, &[("CANDLE_ROCM_ALLOC", mode)], || {
            let device = device();
            let survivor = Device::new(device.ordinal()).unwrap();
            let buffer = upload(&device, &[1f32; 4]);
            let (dims, strides) = ([2, 2], [2, 1]);
            let view = View::contiguous(&buffer, DType::F32, &dims, &strides);
            let product = blas::matmul(&device, DType::F32, (1, 2, 2, 2), &view, &view).unwrap();
            let event = candle_rocm::Event::new(&device).unwrap();
            let large = device.alloc(5 * MIB).unwrap();
            let sim = simulator();
            sim.inject(Failure::Lost, 1);
            assert!(device.synchronize().is_err());
            drop((product, buffer, event, large));
            drop(device);
            sim.inject(Failure::Lost, 0);
            let deferred = survivor.synchronize().unwrap_err();
            assert!(matches!(deferred, Error::Deferred(_)), "{deferred:?}");
            survivor.synchronize().unwrap();
            assert_eq!(
                download::<u8>(&survivor, &survivor.upload(&[9; 9]).unwrap()),
                [9; 9]
            );
        });
    }
}

/// Waiting for the stream would spoil the capture, so nothing is given back meanwhile.
#[test]
fn exhaustion_during_a_capture_leaves_it_whole() {
    let name = "exhaustion_during_a_capture_leaves_it_whole";
    caching(name, "64M", || {
        let device = device();
        let input = upload(&device, &[1f32; 64]);
        let (dims, strides) = ([64], [1]);
        let view = View::contiguous(&input, DType::F32, &dims, &strides);
        drop(affine(&device, &view, 2.0, 0.0).unwrap());
        // Cached, and of no use for what follows.
        drop(device.alloc(40 * MIB).unwrap());
        let capture = Capture::begin(&device).unwrap();
        let output = affine(&device, &view, 2.0, 0.0).unwrap();
        let refused = device.alloc(30 * MIB);
        assert!(
            matches!(refused, Err(Error::OutOfMemory { .. })),
            "{refused:?}"
        );
        let graph = capture.end().unwrap();
        // SAFETY: the input is alive.
        unsafe { graph.launch() }.unwrap();
        assert_eq!(download::<f32>(&device, &output), [2.0; 64]);
        // Outside it is given back.
        device.alloc(30 * MIB).unwrap();
    });
}
