//! Runs small models of candle-transformers on the CPU and on `Device::Rocm`, and compares what they say.
//!
//! A family is one test function: a configuration and a call, in the file of its kind (`tests/decoders.rs`, …). Weights
//! are a pure function of their names, so no file is needed and both devices hold the same numbers.

pub mod gguf;

use candle_core::{DType, Device, Result, Shape, Tensor};
use candle_nn::var_builder::{SimpleBackend, VarBuilder};
use candle_nn::Init;
use differential::{nmse, rocm, to_f64};
use serde_json::Value;

/// Largest NMSE in f32: devices differ in the order of summation, and a model repeats that some hundred times.
pub const F32_LIMIT: f64 = 1e-9;

/// `count` numbers in `[-1, 1)`, multiples of 2^-23, that depend on `name` alone: SplitMix64 seeded with the name's
/// FNV-1a hash. `tests/fixtures/tiny-sd/make_tiny_sd.py` has the same function.
pub fn noise(name: &str, count: usize) -> Vec<f32> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (1..=count as u64)
        .map(|i| {
            let mut z = i.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^= z >> 31;
            ((z >> 40) as i64 - (1 << 23)) as f32 / (1 << 23) as f32
        })
        .collect()
}

/// The weight that belongs to a name: sized so that signals neither grow nor fade from layer to layer.
pub fn weight(name: &str, shape: &Shape) -> Result<Tensor> {
    let mut numbers = noise(name, shape.elem_count());
    let fan_in: usize = shape.dims().iter().skip(1).product();
    let (centre, width) = if name.ends_with("bias") || name.ends_with("running_mean") {
        (0., 0.05)
    } else if shape.rank() <= 1 {
        (1., 0.1) // scales of norms
    } else if name.contains("embedding.weight") && !name.contains("time") {
        (0., 0.5)
    } else {
        (0., (3. / fan_in as f64).sqrt() as f32) // variance 1 / fan_in
    };
    numbers.iter_mut().for_each(|x| *x = centre + *x * width);
    Tensor::from_vec(numbers, shape, &Device::Cpu)
}

/// Number of tokens that the models of text know.
pub const VOCABULARY: u32 = 48;

/// Part of the name of a tensor that is not there; for models that choose by what their file holds.
pub const ABSENT: &str = "absent";

/// Has every tensor that is asked for, rounded to the dtype that the device under test computes in.
struct Weights {
    rounded_to: DType,
    /// About what batch normalisation takes for the variance of its input.
    running_var: f64,
}

impl SimpleBackend for Weights {
    fn get(&self, s: Shape, name: &str, _: Init, dtype: DType, dev: &Device) -> Result<Tensor> {
        if !self.contains_tensor(name) || s.elem_count() == 0 {
            candle_core::bail!("there is no {name} of shape {s:?}");
        }
        let mut tensor = weight(name, &s)?;
        if name.ends_with("running_var") {
            tensor = (tensor * self.running_var)?;
        }
        tensor
            .to_dtype(self.rounded_to)?
            .to_dtype(dtype)?
            .to_device(dev)
    }

    fn get_unchecked(&self, name: &str, _: DType, _: &Device) -> Result<Tensor> {
        candle_core::bail!("{name} is asked for without a shape")
    }

    fn contains_tensor(&self, name: &str) -> bool {
        !name.contains(ABSENT)
    }
}

/// Weights for any model, rounded to one dtype and computing in another, on `device`.
pub fn weights(rounded_to: DType, dtype: DType, device: &Device) -> VarBuilder<'static> {
    let backend = Weights {
        rounded_to,
        running_var: 1.,
    };
    VarBuilder::from_backend(Box::new(backend), dtype, device.clone())
}

/// Lays `changes` over `settings`, both objects.
pub fn merge(settings: &mut Value, changes: Value) {
    if let (Value::Object(settings), Value::Object(changes)) = (settings, changes) {
        settings.extend(changes);
    }
}

/// What one run of a model is given: its weights (it dereferences to them) and, from [`Case::input`] and
/// [`Case::tokens`], what it sees.
pub struct Case {
    weights: VarBuilder<'static>,
    rounded_to: DType,
    sample: u32,
}

impl std::ops::Deref for Case {
    type Target = VarBuilder<'static>;

    fn deref(&self) -> &VarBuilder<'static> {
        &self.weights
    }
}

impl Case {
    /// An input of unit variance (pixels, latents, features).
    pub fn input(&self, name: &str, shape: impl Into<Shape>) -> Result<Tensor> {
        let shape = shape.into();
        let numbers = noise(&format!("{name} {}", self.sample), shape.elem_count());
        let tensor = Tensor::from_vec(numbers, shape, self.device())?;
        (tensor * 3f64.sqrt())?.to_dtype(self.dtype())
    }

    /// Token numbers below [`VOCABULARY`], a row per sentence.
    pub fn tokens<const N: usize>(&self, sentences: &[[u32; N]]) -> Result<Tensor> {
        let ids: Vec<u32> = sentences.iter().flatten().copied().collect();
        let ids = ids
            .iter()
            .map(|id| (id + 11 * self.sample) % VOCABULARY)
            .collect();
        Tensor::from_vec(ids, (sentences.len(), N), self.device())
    }

    /// A decoder's two kinds of call: a prompt at position 0, then one token with what the cache holds.
    pub fn prompt_and_step(
        &self,
        mut forward: impl FnMut(&Tensor, usize) -> Result<Tensor>,
    ) -> Result<Vec<Tensor>> {
        let prompt = [3, 14, 15, 9, 26, 5];
        let first = forward(&self.tokens(&[prompt])?, 0)?;
        Ok(vec![first, forward(&self.tokens(&[[7]])?, prompt.len())?])
    }

    /// A decoder on its way out of a window of 4: a prompt longer than that, more tokens at once, and two one by one.
    pub fn prompt_piece_and_steps(
        &self,
        mut forward: impl FnMut(&Tensor, usize) -> Result<Tensor>,
    ) -> Result<Vec<Tensor>> {
        Ok(vec![
            forward(&self.tokens(&[[3, 14, 15, 9, 26, 5]])?, 0)?,
            forward(&self.tokens(&[[35, 8, 9]])?, 6)?,
            forward(&self.tokens(&[[7]])?, 9)?,
            forward(&self.tokens(&[[32]])?, 10)?,
        ])
    }

    /// The same with other weights for the names.
    pub fn renamed(&self, rename: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        Self {
            weights: self.weights.clone().rename_f(rename),
            ..*self
        }
    }

    /// The same where batch normalisation expects this variance: less of it for networks in which the signal would
    /// fade, more where it would grow.
    pub fn expecting(&self, running_var: f64) -> Self {
        let backend = Weights {
            rounded_to: self.rounded_to,
            running_var,
        };
        Self {
            weights: VarBuilder::from_backend(
                Box::new(backend),
                self.dtype(),
                self.device().clone(),
            ),
            ..*self
        }
    }
}

/// A configuration as its JSON file would give it.
pub fn config<T: serde::de::DeserializeOwned>(json: Value) -> T {
    serde_json::from_value(json).unwrap_or_else(|error| panic!("configuration: {error}"))
}

/// `forward` in f32 says the same on both devices.
pub fn agree(forward: impl Fn(Case) -> Result<Vec<Tensor>>) {
    agree_in(DType::F32, F32_LIMIT, forward)
}

/// `forward` in `dtype` on `Device::Rocm` says what it says in f32 on the CPU with the same (rounded) weights,
/// up to `limit` (NMSE). The test's name stands for the model's.
pub fn agree_in(dtype: DType, limit: f64, forward: impl Fn(Case) -> Result<Vec<Tensor>>) {
    let run = |compute: DType, device: &Device, sample: u32| -> Vec<Tensor> {
        let case = Case {
            weights: weights(dtype, compute, device),
            rounded_to: dtype,
            sample,
        };
        forward(case)
            .unwrap_or_else(|error| panic!("in {} on {device:?}: {error}", compute.as_str()))
    };
    let got = run(dtype, &rocm(), 0);
    let want = run(DType::F32, &Device::Cpu, 0);
    let other = run(DType::F32, &Device::Cpu, 1);
    assert_eq!(got.len(), want.len(), "number of outputs");
    let model = std::thread::current().name().unwrap_or("?").to_owned();
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert_eq!(got.shape(), want.shape(), "shape of output {i}");
        assert!(got.device().is_rocm(), "output {i} left the device");
        let error = distance(got, want);
        println!("{model} {} output {i}: NMSE {error:.1e}", dtype.as_str());
        assert!(
            error <= limit,
            "output {i}: NMSE {error:e} exceeds {limit:e}"
        );
        let spread = distance(&other[i], want);
        assert!(
            spread > 1e4 * F32_LIMIT,
            "output {i} hardly depends on the input: with another one it changes by {spread:e} (NMSE)"
        );
    }
}

/// NMSE between two outputs that must be finite.
pub fn distance(got: &Tensor, want: &Tensor) -> f64 {
    let values = |tensor| to_f64(tensor).expect("an output can be read");
    let (got, want) = (values(got), values(want));
    assert!(
        want.iter().all(|x| x.is_finite()),
        "the expected output is not finite"
    );
    nmse(&got, &want).unwrap_or_else(|difference| panic!("{difference}"))
}
