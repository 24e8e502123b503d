//! Verification: checks reach the kernels that they are for, find nothing where nothing is wrong, and find every fault
//! that hip-sim injects, whose place the next form, tier or library then takes.

mod common;
#[allow(dead_code)] // its other half is for other tests
mod isolated;

use candle_rocm::verify::try_kernel;
use candle_rocm::{ops, DeclaredKernel, Device, Only};
use common::device;

fn exists_on(device: &Device, kernel: &DeclaredKernel) -> bool {
    let properties = device.properties();
    match kernel.only {
        None => true,
        Some(Only::Wave32) => properties.wave_size == 32,
        Some(Only::Matrix) => properties.arch.generation().matrix().is_some(),
    }
}

/// Sums of small floats are joined along rows, so nobody launches these.
const NOT_LAUNCHED: [&str; 3] = ["sum_f32_f16", "sum_f32_bf16", "sum_f32_f8e4m3"];

#[test]
fn checks_launch_their_kernels_and_find_them_right() {
    let device = device();
    let only = std::env::var("VERIFY_ONLY").unwrap_or_default();
    let mut tried = 0;
    let mut failures = Vec::new();
    for kernel in ops::kernels() {
        if !exists_on(&device, &kernel) || !kernel.family.file_name().contains(&only) {
            continue;
        }
        let started = std::time::Instant::now();
        match try_kernel(&device, &kernel) {
            Ok(None) => continue,
            Ok(Some(result)) => {
                let expected = !NOT_LAUNCHED.contains(&kernel.name.as_str());
                if result.wrong.is_some() || result.launched != expected {
                    failures.push(format!("{}: {result:?}", kernel.name));
                }
            }
            Err(error) => failures.push(format!("{}: {error}", kernel.name)),
        }
        tried += 1;
        if !only.is_empty() {
            eprintln!("{} {:?}", kernel.name, started.elapsed());
        }
    }
    assert!(
        failures.is_empty(),
        "{tried} tried\n{}",
        failures.join("\n")
    );
    assert!(tried > 0);
}
