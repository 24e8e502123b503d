//! An operation of your own with a kernel of your own, differentiable and usable like any other.
//!
//!     cargo run -p examples --example 02_custom_kernel

use candle_core::backend::BackendStorage;
use candle_core::rocm_backend::candle_rocm::{Args, LaunchConfig};
use candle_core::{
    CpuStorage, CustomOp1, DType, Device, Layout, Result, RocmStorage, Shape, Tensor, Var,
};

/// Compiled for the GPU at hand when it is first launched, and kept on disk.
const SOURCE: &str = r#"
    extern "C" __global__ void hard_swish(const float* x, float* y, unsigned n) {
        for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            float gate = x[i] + 3.0f;
            gate = gate < 0.0f ? 0.0f : gate > 6.0f ? 6.0f : gate;
            y[i] = x[i] * gate / 6.0f;
        }
    }
"#;

/// x clamp(x + 3, 0, 6) / 6
struct HardSwish;

impl CustomOp1 for HardSwish {
    fn name(&self) -> &'static str {
        "hard-swish"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            candle_core::bail!("hard-swish: the input has to be contiguous")
        };
        let values = &x.as_slice::<f32>()?[start..end];
        let result = values.iter().map(|v| v * (v + 3.).clamp(0., 6.) / 6.);
        Ok((CpuStorage::F32(result.collect()), layout.shape().clone()))
    }

    fn rocm_fwd(&self, x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
        if x.dtype() != DType::F32 || !layout.is_contiguous() {
            candle_core::bail!("hard-swish: the input has to be contiguous and f32")
        }
        let count = layout.shape().elem_count();
        let device = x.device();
        let out = device.device().alloc(count * 4)?;
        // A view may begin inside its buffer. Offsets of layouts count elements, those of arguments bytes.
        let args = Args::new()
            .ptr(x.buffer(), layout.start_offset() * 4)
            .ptr(&out, 0)
            .u32(count as u32);
        let kernel = device.get_or_load_custom_kernel(SOURCE, "hard_swish")?;
        // SAFETY: the arguments are those of the source above, and both buffers have `count` elements.
        unsafe { kernel.launch(LaunchConfig::for_elements(count), &args)? };
        Ok((
            x.with_buffer(out, DType::F32, count),
            layout.shape().clone(),
        ))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        // 0 below -3, 1 above 3, (2 x + 3) / 6 between.
        let slope = ((x * 2.)? + 3.)?.affine(1. / 6., 0.)?;
        let slope = x.ge(3.)?.where_cond(&x.ones_like()?, &slope)?;
        let slope = x.le(-3.)?.where_cond(&x.zeros_like()?, &slope)?;
        Ok(Some(gradient.mul(&slope)?))
    }
}

fn main() -> Result<()> {
    let device = Device::rocm_if_available(0)?;
    let x = Tensor::new(&[-4f32, -1., 0., 1., 4., 5.], &device)?;
    let y = x.apply_op1(HardSwish)?;
    println!("{y}");
    assert_eq!(y.get(4)?.to_scalar::<f32>()?, 4.);

    // Views with an offset work too, and so does the gradient.
    let tail = Var::from_tensor(&x.narrow(0, 3, 3)?)?;
    let gradients = tail.apply_op1(HardSwish)?.sum_all()?.backward()?;
    let Some(gradient) = gradients.get(&tail) else {
        candle_core::bail!("the gradient is missing")
    };
    println!("gradient {gradient}");
    assert_eq!(gradient.to_vec1::<f32>()?[1..], [1., 1.]);
    Ok(())
}
