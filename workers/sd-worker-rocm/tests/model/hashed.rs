//! Weights that are a function of tensor name and index, as `tests/fixtures/tiny-sd/make_tiny_sd.py` makes them.

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::SimpleBackend;
use candle_nn::Init;
use sd_worker_rocm::models::VarBuilder;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// Uniform in [-1, 1), 24 bits, exact in f32.
pub fn uniform(name: &str, count: usize) -> Vec<f32> {
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    (1..=count as u64)
        .map(|i| {
            let mut z = i.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(hash);
            z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            z ^= z >> 31;
            ((z >> 40) as i64 - (1 << 23)) as f32 / (1 << 23) as f32
        })
        .collect()
}

/// The weight of this name and shape.
pub fn weight(prefix: &str, name: &str, shape: &[usize]) -> Tensor {
    let count: usize = shape.iter().product();
    // Counters have no dimensions.
    let fan_in: usize = shape.iter().skip(1).product();
    let scale = (3.0 / fan_in as f64).sqrt() as f32;
    let full = format!("{prefix}.{name}");
    let values = uniform(&full, count).into_iter().map(|u| {
        if name.ends_with("bias") {
            u * 0.05
        } else if shape.len() == 1 {
            1.0 + u * 0.1
        } else if name.contains("embedding.weight") && !name.contains("time") {
            u * 0.5
        } else {
            u * scale
        }
    });
    Tensor::from_vec(values.collect(), shape, &Device::Cpu).unwrap()
}

/// Makes the tensors that a network asks for, and remembers them.
#[derive(Clone)]
pub struct Hashed {
    prefix: &'static str,
    /// Names, of those that a network may do without, that it must do without.
    absent: fn(&str) -> bool,
    made: Arc<Mutex<HashMap<String, Tensor>>>,
}

impl SimpleBackend for Hashed {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        let tensor = weight(self.prefix, name, shape.dims());
        let mut made = self.made.lock().unwrap();
        made.insert(name.to_string(), tensor.clone());
        tensor.to_device(dev)?.to_dtype(dtype)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name} is asked for without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !(self.absent)(name)
    }
}

/// A network and its tensors, on the CPU.
pub fn network<M>(
    prefix: &'static str,
    absent: fn(&str) -> bool,
    device: &Device,
    build: impl Fn(VarBuilder) -> Result<M>,
) -> (M, HashMap<String, Tensor>) {
    let backend = Hashed {
        prefix,
        absent,
        made: Arc::default(),
    };
    let boxed = Box::new(backend.clone());
    let vb = candle_nn::VarBuilder::from_backend(boxed, DType::F32, device.clone());
    let network = build(vb.into()).unwrap();
    let made = backend.made.lock().unwrap().clone();
    (network, made)
}

/// The biases that diffusers' UNet does not have.
pub fn unet_absent(name: &str) -> bool {
    ["to_q.bias", "to_k.bias", "to_v.bias"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// The projection that a plain text tower does not have.
pub fn clip_absent(name: &str) -> bool {
    name == "text_projection.weight"
}

pub fn nothing_absent(_: &str) -> bool {
    false
}
