//! Several devices at once, of different archs and wave sizes; threads; operations and kernels written by a user.

#[path = "../../../candle-rocm/tests/isolated/mod.rs"]
mod isolated;

use candle_core::backend::BackendStorage;
use candle_core::rocm_backend::candle_rocm::{self, Args, LaunchConfig};
use candle_core::{
    CpuStorage, CustomOp1, DType, Device, Layout, Result, RocmStorage, Shape, Tensor,
};
use differential::{nmse, rocm, tensor, to_f64, Arrangement};
use isolated::in_child;

/// Runs `body` with two devices: hip-sim's gfx942 and gfx1100, or on a machine with GPUs the first two of these.
fn with_two_devices(test: &str, body: impl FnOnce(&Device, &Device) -> Result<()>) {
    in_child(test, &[("HIP_SIM_ARCH", "gfx942,gfx1100")], || {
        let run = || {
            let first = Device::new_rocm(0)?;
            let second = match candle_rocm::Device::count()? {
                1 => Device::new_rocm_with_stream(0)?,
                _ => Device::new_rocm(1)?,
            };
            body(&first, &second)
        };
        run().unwrap_or_else(|error| panic!("{test}: {error}"));
    });
}

/// A little of everything: products, norms, reductions, sorting, indexing. In f32.
fn network(device: &Device, seed: u64) -> Result<Tensor> {
    let part = |shape: &[usize], seed| {
        tensor(
            device,
            DType::F32,
            shape,
            Arrangement::Contiguous,
            seed,
            (-1., 1.),
        )
    };
    let x = part(&[6, 40], seed)?;
    let hidden = candle_nn::ops::rms_norm(
        &x.matmul(&part(&[40, 33], seed + 1)?)?,
        &part(&[33], seed + 2)?,
        1e-5,
    )?;
    let weights = candle_nn::ops::softmax_last_dim(&hidden)?;
    let order = weights
        .sum(1)?
        .add(&hidden.max(1)?)?
        .arg_sort_last_dim(true)?;
    weights.gelu_erf()?.index_select(&order, 0)
}

fn agree(got: &Tensor, want: &Tensor) -> Result<()> {
    assert_eq!(got.shape(), want.shape());
    let error =
        nmse(&to_f64(got)?, &to_f64(want)?).unwrap_or_else(|difference| panic!("{difference}"));
    assert!(error <= 1e-6, "NMSE {error:e}");
    Ok(())
}

#[test]
fn devices_of_two_archs_work_at_once() {
    with_two_devices("devices_of_two_archs_work_at_once", |first, second| {
        let [one, other] = [first, second].map(|device| {
            let device = device.as_rocm_device().expect("a ROCm device").device();
            device.properties().clone()
        });
        if one.name.contains("hip-sim") {
            assert_eq!(
                (one.arch.as_str(), other.arch.as_str()),
                ("gfx942", "gfx1100")
            );
            assert_eq!((one.wave_size, other.wave_size), (64, 32));
        }
        std::thread::scope(|scope| {
            let threads = [first, second].map(|device| {
                scope.spawn(move || {
                    for seed in 0..20 {
                        agree(&network(device, seed)?, &network(&Device::Cpu, seed)?)?;
                    }
                    Ok(())
                })
            });
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().expect("the thread does not panic"))
        })
    });
}

#[test]
fn one_thread_takes_turns_between_devices() {
    with_two_devices("one_thread_takes_turns_between_devices", |first, second| {
        for seed in 0..10 {
            // Both enqueued before either is waited for.
            let results = [network(first, seed)?, network(second, seed)?];
            let want = network(&Device::Cpu, seed)?;
            results.iter().try_for_each(|got| agree(got, &want))?;
        }
        Ok(())
    });
}

#[test]
fn tensors_move_between_devices() {
    with_two_devices("tensors_move_between_devices", |first, second| {
        for dtype in differential::DTYPES {
            for arrangement in Arrangement::ALL {
                let make = |d: &Device| tensor(d, dtype, &[4, 5, 3], arrangement, 3, (0., 9.));
                let want = to_f64(&make(&Device::Cpu)?)?;
                for route in [
                    [first, second, &Device::Cpu],
                    [second, first, &Device::Cpu],
                    [&Device::Cpu, second, first],
                    [second, &Device::Cpu, second],
                ] {
                    let mut moved = make(route[0])?;
                    for device in &route[1..] {
                        moved = moved.to_device(device)?;
                        assert!(moved.device().same_device(device));
                    }
                    assert_eq!(to_f64(&moved)?, want, "{dtype:?} {arrangement:?}");
                }
            }
        }
        // What was enqueued on the one is finished before the other reads it.
        let mut x = Tensor::zeros(1000, DType::F32, first)?;
        for _ in 0..20 {
            x = (x + 1.)?.to_device(second)?;
            x = (x * 2.)?.to_device(first)?;
        }
        let want = (0..20).fold(0f32, |v, _| (v + 1.) * 2.);
        assert!(x.to_vec1::<f32>()?.iter().all(|v| *v == want));
        let error = x
            .add(&Tensor::zeros(1000, DType::F32, second)?)
            .expect_err("two devices");
        assert!(error.to_string().contains("device mismatch"), "{error}");
        Ok(())
    });
}

#[test]
fn threads_share_a_device() -> Result<()> {
    let device = rocm();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|thread| {
                let device = &device;
                scope.spawn(move || {
                    for round in 0..15 {
                        let seed = 100 * thread + round;
                        agree(&network(device, seed)?, &network(&Device::Cpu, seed)?)?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("the thread does not panic"))
    })
}

/// A user's operation: reverses the last dimension, by a kernel of the user's that takes any view of two dimensions.
struct Reverse;

const REVERSE: &str = r#"
    extern "C" __global__ void reverse(const float* x, float* y, unsigned rows, unsigned columns, unsigned row_stride, unsigned column_stride) {
        for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * columns; i += gridDim.x * blockDim.x) {
            const unsigned row = i / columns, column = columns - 1 - i % columns;
            y[i] = x[row * row_stride + column * column_stride];
        }
    }
"#;

impl CustomOp1 for Reverse {
    fn name(&self) -> &'static str {
        "reverse"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        candle_core::bail!("reverse: only on a GPU")
    }

    fn rocm_fwd(&self, x: &RocmStorage, layout: &Layout) -> Result<(RocmStorage, Shape)> {
        let (rows, columns) = layout.shape().dims2()?;
        let count = rows * columns;
        let device = x.device();
        let out = device.device().alloc(count * 4)?;
        let args = Args::new()
            .ptr(x.buffer(), layout.start_offset() * 4)
            .ptr(&out, 0)
            .u32(rows as u32)
            .u32(columns as u32)
            .u32(layout.stride()[0] as u32)
            .u32(layout.stride()[1] as u32);
        let kernel = device.get_or_load_custom_kernel(REVERSE, "reverse")?;
        // SAFETY: the arguments are the kernel's, and the layout lies in its buffer.
        unsafe { kernel.launch(LaunchConfig::for_elements(count), &args)? };
        Ok((
            x.with_buffer(out, DType::F32, count),
            layout.shape().clone(),
        ))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(gradient.apply_op1(Reverse)?))
    }
}

#[test]
fn a_users_operation_with_a_kernel_of_its_own() {
    with_two_devices(
        "a_users_operation_with_a_kernel_of_its_own",
        |first, second| {
            // Compiled for each arch.
            for device in [first, second] {
                for arrangement in Arrangement::ALL {
                    let x = tensor(device, DType::F32, &[3, 7], arrangement, 5, (-1., 1.))?;
                    let got = x.apply_op1(Reverse)?.to_vec2::<f32>()?;
                    let want = x.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
                    for (got, mut want) in got.into_iter().zip(want) {
                        want.reverse();
                        assert_eq!(got, want, "{arrangement:?}");
                    }
                }
                // Its result goes on, and so does its gradient.
                let x = candle_core::Var::from_tensor(&Tensor::new(&[[1f32, 2., 3.]], device)?)?;
                let loss = x
                    .apply_op1(Reverse)?
                    .mul(&Tensor::new(&[[10f32, 20., 30.]], device)?)?
                    .sum_all()?;
                let gradients = loss.backward()?;
                let gradient = gradients.get(&x).expect("a gradient").to_vec2::<f32>()?;
                assert_eq!(gradient, [[30., 20., 10.]]);
            }
            Ok(())
        },
    );
}

#[test]
fn a_users_operation_without_a_kernel_is_an_error() -> Result<()> {
    struct CpuOnly;
    impl CustomOp1 for CpuOnly {
        fn name(&self) -> &'static str {
            "cpu-only"
        }
        fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
            Ok((x.clone(), layout.shape().clone()))
        }
    }
    let x = Tensor::zeros(3, DType::F32, &rocm())?;
    let error = x
        .apply_op1(CpuOnly)
        .expect_err("there is no rocm_fwd")
        .to_string();
    assert!(
        error.contains("cpu-only") && error.to_lowercase().contains("rocm"),
        "{error}"
    );
    Ok(())
}
