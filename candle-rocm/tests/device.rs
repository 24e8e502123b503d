//! Devices, transfers, and errors that kernels report.

mod common;
mod isolated;

use candle_rocm::{Args, Device, Error, IndexOp, LaunchConfig};
use common::{device, Rng};
use isolated::in_child;

fn bytes(seed: u64, count: usize) -> Vec<u8> {
    Rng::new(seed).any(count)
}

#[test]
fn properties_are_those_of_the_ordinal() {
    let device = device();
    let properties = device.properties();
    let is_known = ["gfx", "sm_"]
        .iter()
        .any(|make| properties.arch.as_str().starts_with(make));
    assert!(is_known, "{properties:?}");
    assert!(properties.full_arch.starts_with(properties.arch.as_str()));
    assert!(!properties.arch.as_str().contains(':'));
    let wide = properties.arch.as_str().starts_with("gfx9");
    assert_eq!(properties.wave_size, if wide { 64 } else { 32 });
    assert!(properties.compute_units > 0 && properties.max_threads_per_block >= 256);
    assert!(properties.shared_bytes_per_block >= 32 << 10);
    let (free, total) = device.memory_info().unwrap();
    assert!(free <= total && total <= properties.total_memory);
    let parts: Vec<usize> = properties.pci_id.split([':', '.']).map(str::len).collect();
    assert_eq!(parts, [4, 2, 2, 1], "{}", properties.pci_id);
}

#[test]
fn an_ordinal_beyond_the_last_is_a_typed_error() {
    let count = Device::count().unwrap();
    let error = Device::new(count).unwrap_err();
    assert!(
        matches!(error, Error::InvalidOrdinal { ordinal, count: c } if ordinal == count && c == count),
        "{error:?}"
    );
}

#[test]
fn every_device_of_a_mixed_machine_has_its_own_arch() {
    let name = "every_device_of_a_mixed_machine_has_its_own_arch";
    in_child(
        name,
        &[("HIP_SIM_ARCH", "gfx1100,gfx942"), ("HIP_SIM_DEVICES", "2")],
        || {
            let (first, second) = (Device::new(0).unwrap(), Device::new(1).unwrap());
            assert_eq!(first.properties().arch, "gfx1100");
            assert_eq!(second.properties().arch, "gfx942");
            assert_eq!(
                (first.properties().wave_size, second.properties().wave_size),
                (32, 64)
            );
            // Kernels are compiled for the device that they run on.
            let source = "extern \"C\" __global__ void wave(unsigned* out) { *out = warpSize; }";
            for device in [first, second] {
                let out = device.alloc(4).unwrap();
                let kernel = device.custom_kernel(source, "wave").unwrap();
                let config = LaunchConfig {
                    grid: 1,
                    block: 1,
                    shared_bytes: 0,
                };
                // SAFETY: the kernel writes one word.
                unsafe { kernel.launch(config, &Args::new().ptr(&out, 0)) }.unwrap();
                let mut got = [0; 4];
                device.download(&out, 0, &mut got).unwrap();
                assert_eq!(u32::from_le_bytes(got), device.properties().wave_size);
            }
        },
    );
}

#[test]
fn without_a_device_the_error_says_so() {
    in_child(
        "without_a_device_the_error_says_so",
        &[("HIP_SIM_DEVICES", "0")],
        || {
            for error in [Device::count().unwrap_err(), Device::new(0).unwrap_err()] {
                assert!(matches!(error, Error::NoDevice { .. }), "{error:?}");
                assert!(error.is_no_device());
                assert!(
                    error.to_string().starts_with("no AMD GPU is available: "),
                    "{error}"
                );
            }
        },
    );
}

#[test]
fn without_rocm_the_error_says_where_was_looked() {
    let name = "without_rocm_the_error_says_where_was_looked";
    let path = [("ROCM_PATH", "/nonexistent"), ("LD_LIBRARY_PATH", "")];
    in_child(name, &path, || match Device::count() {
        Err(error @ Error::Load(_)) => {
            assert!(error.to_string().contains("/nonexistent/lib"), "{error}")
        }
        // A ROCm of the system answers instead.
        other => assert!(!matches!(other, Err(Error::Load(_)))),
    });
}

#[test]
fn transfers_of_every_size_round_trip() {
    let device = device();
    let chunk = 4 << 20;
    for count in [
        0,
        1,
        63,
        64,
        65,
        4097,
        chunk - 1,
        chunk,
        chunk + 1,
        2 * chunk + 5,
        3 * chunk,
    ] {
        let sent = bytes(count as u64, count);
        let buffer = device.upload(&sent).unwrap();
        assert_eq!(buffer.len(), count);
        let mut got = vec![0; count];
        device.download(&buffer, 0, &mut got).unwrap();
        assert!(got == sent, "{count} bytes");
    }
}

#[test]
fn the_source_of_an_upload_may_be_reused_at_once() {
    let device = device();
    let mut source = bytes(1, 9 << 20);
    let expected = source.clone();
    let buffer = device.upload(&source).unwrap();
    source.fill(0xee);
    let mut got = vec![0; expected.len()];
    device.download(&buffer, 0, &mut got).unwrap();
    assert!(got == expected);
}

#[test]
fn many_small_uploads_keep_their_contents() {
    let device = device();
    // 24 MB in pieces of an odd size: the staging chunks are filled and reused several times.
    let pieces: Vec<Vec<u8>> = (0..8000).map(|i| bytes(i, 3001)).collect();
    let buffer = device.alloc(8000 * 3001).unwrap();
    for (i, piece) in pieces.iter().enumerate() {
        device.upload_into(piece, &buffer, i * 3001).unwrap();
    }
    let mut got = vec![0; buffer.len()];
    device.download(&buffer, 0, &mut got).unwrap();
    assert!(got == pieces.concat());
}

#[test]
fn parts_of_buffers_are_copied_on_and_between_devices() {
    let (here, there) = (device(), device());
    let sent = bytes(2, 1000);
    let source = here.upload(&sent).unwrap();
    for target in [&here, &there] {
        let copy = target.alloc_zeroed(600).unwrap();
        here.copy(&source, 100, &copy, 50, 500).unwrap();
        let mut got = vec![0xff; 600];
        target.download(&copy, 0, &mut got).unwrap();
        assert_eq!(got[50..550], sent[100..600]);
        assert!(got[..50].iter().chain(&got[550..]).all(|&b| b == 0));
    }
}

#[test]
fn copies_between_gpus_arrive() {
    in_child(
        "copies_between_gpus_arrive",
        &[("HIP_SIM_DEVICES", "2")],
        || {
            let (first, second) = (Device::new(0).unwrap(), Device::new(1).unwrap());
            let sent = bytes(3, 100_000);
            let source = first.upload(&sent).unwrap();
            let copy = second.alloc(sent.len()).unwrap();
            first.copy(&source, 0, &copy, 0, sent.len()).unwrap();
            // The source's memory is reused while the copy may still run; the copy must not see that.
            drop(source);
            let _next = first.upload(&vec![0; sent.len()]).unwrap();
            let mut got = vec![0; sent.len()];
            second.download(&copy, 0, &mut got).unwrap();
            assert!(got == sent);
        },
    );
}

#[test]
fn ranges_outside_of_a_buffer_are_typed_errors() {
    let device = device();
    let buffer = device.alloc(16).unwrap();
    let outside = |result: candle_rocm::Result<()>| {
        assert!(
            matches!(
                result,
                Err(Error::OutOfBounds {
                    buffer_bytes: 16,
                    ..
                })
            ),
            "{result:?}"
        );
    };
    outside(device.upload_into(&[0; 9], &buffer, 8));
    outside(device.download(&buffer, 17, &mut []));
    outside(device.copy(&buffer, 8, &buffer, 0, 9));
    outside(device.copy(&buffer, 0, &buffer, usize::MAX, 2));
}

#[test]
fn memory_of_another_device_is_refused() {
    let (here, there) = (device(), device());
    assert!(here.same_device(&here.clone()) && !here.same_device(&there));
    let buffer = there.alloc(4).unwrap();
    let refused = here.upload_into(&[0; 4], &buffer, 0);
    assert!(
        matches!(refused, Err(Error::DeviceMismatch { .. })),
        "{refused:?}"
    );
    let refused = here.download(&buffer, 0, &mut [0; 4]);
    assert!(
        matches!(refused, Err(Error::DeviceMismatch { .. })),
        "{refused:?}"
    );
}

const REPORT: &str = "
    extern \"C\" __global__ void report(unsigned* word, unsigned op, long long index) {
        word[0] = op;
        word[1] = 3;
        ((long long*)word)[1] = index;
    }";

#[test]
fn a_bad_index_surfaces_at_the_next_wait_and_only_there() {
    let device = device();
    let kernel = device.custom_kernel(REPORT, "report").unwrap();
    let config = LaunchConfig {
        grid: 1,
        block: 1,
        shared_bytes: 0,
    };
    for op in IndexOp::ALL {
        let args = Args::new()
            .ptr(&device.error_word(), 0)
            .u32(op as u32)
            .i64(-7);
        // SAFETY: the arguments are the kernel's.
        unsafe { kernel.launch(config, &args) }.unwrap();
        let error = device.synchronize().unwrap_err();
        assert!(
            matches!(error, Error::IndexOutOfRange { op: name, index: -7, size: 3 } if name == op.as_str()),
            "{error:?}"
        );
        device.synchronize().unwrap();
    }
    let buffer = device.alloc_zeroed(8).unwrap();
    let args = Args::new().ptr(&device.error_word(), 0).u32(1).i64(1 << 40);
    // SAFETY: as above.
    unsafe { kernel.launch(config, &args) }.unwrap();
    let error = device.download(&buffer, 0, &mut [0; 8]).unwrap_err();
    assert!(matches!(error, Error::IndexOutOfRange { index, .. } if index == 1 << 40));
    device.download(&buffer, 0, &mut [0; 8]).unwrap();
}

#[test]
fn random_counters_are_never_given_twice() {
    let device = device();
    device.set_seed(5);
    assert_eq!(device.seed(), 5);
    assert_eq!(device.reserve_random(10), (5, 0));
    assert_eq!(device.clone().reserve_random(3), (5, 10));
    assert_eq!(device.reserve_random(1), (5, 13));
    device.set_seed(5);
    assert_eq!(device.reserve_random(1), (5, 0));
}
