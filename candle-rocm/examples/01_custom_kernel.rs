//! A kernel of your own on device memory: upload, launch, download.
//!
//!     cargo run -p candle-rocm --example 01_custom_kernel

use candle_rocm::{Args, Device, LaunchConfig};

const SOURCE: &str = r#"
    extern "C" __global__ void saxpy(float* y, const float* x, float a, unsigned n) {
        for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
            y[i] += a * x[i];
    }
"#;

fn main() -> candle_rocm::Result<()> {
    let device = Device::new(0)?;
    let properties = device.properties();
    println!(
        "{} ({}), waves of {}",
        properties.name, properties.arch, properties.wave_size
    );

    let host: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let bytes: Vec<u8> = host.iter().flat_map(|v| v.to_le_bytes()).collect();
    let (x, y) = (device.upload(&bytes)?, device.upload(&bytes)?);

    let args = Args::new().ptr(&y, 0).ptr(&x, 0).f32(2.0).u32(1000);
    let saxpy = device.custom_kernel(SOURCE, "saxpy")?;
    // SAFETY: the arguments are those of the source above, and both buffers have 1000 floats.
    unsafe { saxpy.launch(LaunchConfig::for_elements(host.len()), &args)? };

    let mut last = [0; 4];
    device.download(&y, 4 * 999, &mut last)?;
    println!("999 + 2 * 999 = {}", f32::from_le_bytes(last));
    Ok(())
}
