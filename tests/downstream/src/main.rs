//! Multiplies matrices on `Device::Rocm` and runs a kernel of its own, with nothing but candle's names.

use candle_core::rocm_backend::candle_rocm::{Args, LaunchConfig};
use candle_core::{DType, Device, DeviceLocation, Module, Result, Storage, Tensor};

const DOUBLE: &str = r#"
extern "C" __global__ void double_it(const float* x, float* y, unsigned n) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * 2.0f;
}
"#;

/// A candle user's own operation with its own kernel.
struct Double;

impl candle_core::CustomOp1 for Double {
    fn name(&self) -> &'static str {
        "double"
    }

    fn cpu_fwd(
        &self,
        _: &candle_core::CpuStorage,
        _: &candle_core::Layout,
    ) -> Result<(candle_core::CpuStorage, candle_core::Shape)> {
        candle_core::bail!("only on a GPU")
    }

    fn rocm_fwd(
        &self,
        x: &candle_core::RocmStorage,
        l: &candle_core::Layout,
    ) -> Result<(candle_core::RocmStorage, candle_core::Shape)> {
        use candle_core::backend::BackendStorage;
        let count = l.shape().elem_count();
        let device = x.device();
        let out = device.device().alloc(count * 4)?;
        let kernel = device.get_or_load_custom_kernel(DOUBLE, "double_it")?;
        let args = Args::new().ptr(x.buffer(), l.start_offset() * 4).ptr(&out, 0).u32(count as u32);
        // SAFETY: the arguments are those of DOUBLE, and both buffers have `count` elements.
        unsafe { kernel.launch(LaunchConfig::for_elements(count), &args)? };
        Ok((x.with_buffer(out, DType::F32, count), l.shape().clone()))
    }
}

fn main() -> Result<()> {
    let device = Device::new_rocm(0)?;
    assert!(device.is_rocm() && candle_core::utils::rocm_is_available());
    assert_eq!(device.location(), DeviceLocation::Rocm { gpu_id: 0 });
    assert!(device.supports_bf16());

    let a = Tensor::arange(0f32, 6., &device)?.reshape((2, 3))?;
    let b = Tensor::arange(0f32, 12., &device)?.reshape((3, 4))?;
    let c = a.matmul(&b)?;
    assert_eq!(c.to_vec2::<f32>()?, [[20., 23., 26., 29.], [56., 68., 80., 92.]]);
    assert!(format!("{c}").contains("rocm:0"));
    assert!(matches!(&*c.storage_and_layout().0, Storage::Rocm(_)));

    let linear = candle_nn::Linear::new(b.t()?.contiguous()?, None);
    assert_eq!(linear.forward(&a)?.to_vec2::<f32>()?, c.to_vec2::<f32>()?);

    let doubled = c.apply_op1_no_bwd(&Double)?;
    assert_eq!(doubled.to_vec2::<f32>()?, c.affine(2., 0.)?.to_vec2::<f32>()?);
    println!("{c}");
    Ok(())
}
