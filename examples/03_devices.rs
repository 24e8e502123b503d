//! Several GPUs, of different kinds if need be: what they are, a thread for each, and tensors that move.
//!
//!     cargo run -p examples --example 03_devices

use candle_core::rocm_backend::candle_rocm;
use candle_core::{Device, Result, Tensor};

/// A sum that every device finds the same way.
fn work(device: &Device, part: usize) -> Result<f32> {
    let rows = Tensor::arange(0f32, 1000., device)?.reshape((10, 100))?;
    let mean = (rows.sum(1)? / 100.)?;
    mean.get(part % 10)?.to_scalar::<f32>()
}

fn main() -> Result<()> {
    let count = candle_rocm::Device::count().unwrap_or(0);
    let mut devices = Vec::new();
    for ordinal in 0..count {
        let device = Device::new_rocm(ordinal)?;
        let properties = device.as_rocm_device()?.device().properties().clone();
        println!("{ordinal}: {} ({})", properties.name, properties.arch);
        devices.push(device);
    }
    if devices.is_empty() {
        println!("no AMD GPU: the CPU stands in");
        devices.push(Device::Cpu);
    }

    // A device may be shared by threads; each device has a stream, on which its work runs in order.
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = devices
            .iter()
            .enumerate()
            .map(|(part, device)| scope.spawn(move || work(device, part)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().expect("the thread does not panic"))
            .collect::<Result<Vec<f32>>>()
    })?;
    for (part, result) in results.iter().enumerate() {
        assert_eq!(*result, (part % 10) as f32 * 100. + 49.5);
    }

    // Around all devices and back. Operands of one operation have to be on one device: nothing moves by itself.
    let mut tensor = Tensor::arange(0f32, 8., &devices[0])?;
    for device in devices.iter().chain([&Device::Cpu]) {
        tensor = (tensor.to_device(device)? + 1.)?;
    }
    println!("{tensor}");
    assert_eq!(
        tensor.get(0)?.to_scalar::<f32>()?,
        devices.len() as f32 + 1.
    );
    Ok(())
}
