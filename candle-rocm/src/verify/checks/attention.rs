//! Attention's tiers, and the cache of keys and values.

use super::{split_dtype, unknown};
use crate::ops::attention::kv_cache::{self, KvCache, Rotary, Tokens};
use crate::ops::attention::{attention_on, Attention, Lengths, Tier, Window, SCORE_BYTES};
use crate::verify::admit::Finding;
use crate::verify::bench::{compare, difference, encode, read, spoil_memory, tolerance, Tensor};
use crate::{contiguous_strides, Buffer, DType, DeclaredKernel, Device, Result, View};
use candle_rocm_kernels::CkInstance;
use half::f16;

/// A problem: one sequence, causal unless there is one row for each head only.
pub(super) struct Problem {
    pub rows: usize,
    pub keys: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub width: usize,
    pub dtype: DType,
    pub kv_dtype: DType,
}

pub(super) fn matrix(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let dtype = match kernel.name.contains("_bf16_") {
        true => DType::BF16,
        false => DType::F16,
    };
    let Some(width) = last_number(&kernel.name) else {
        return unknown(kernel);
    };
    let problem = Problem {
        rows: 41,
        keys: 55,
        heads: 8,
        kv_heads: 2,
        width,
        dtype,
        kv_dtype: dtype,
    };
    problem.check(device, Tier::Matrix)
}

pub(super) fn tiled(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let Some(chunks) = last_number(&kernel.name) else {
        return unknown(kernel);
    };
    let problem = Problem {
        rows: 41,
        keys: 55,
        heads: 4,
        kv_heads: 2,
        width: 64 * chunks,
        dtype: DType::F32,
        kv_dtype: DType::F32,
    };
    problem.check(device, Tier::Tiled)
}

/// The kernels for few rows: `attention_split_<dtype>_<elements of a lane>_<rows>`, and the one that joins their parts.
pub(super) fn split(device: &Device, kernel: &DeclaredKernel) -> Finding {
    let words: Vec<&str> = kernel.name.split('_').collect();
    let (kv_dtype, elements, rows) = match words[..] {
        [_, _, dtype, elements, rows] => {
            let dtype = DType::ALL.into_iter().find(|d| d.as_str() == dtype);
            let Some(dtype) = dtype else {
                return unknown(kernel);
            };
            (dtype, elements, rows)
        }
        [_, "combine"] => (DType::F32, "8", "1"),
        _ => return unknown(kernel),
    };
    // Rows of a tile are those of all heads that share one of the keys.
    let group = match rows {
        "1" => 1,
        "4" => 3,
        _ => 7,
    };
    let problem = Problem {
        rows: 1,
        keys: 1003,
        heads: 2 * group,
        kv_heads: 2,
        width: if elements == "16" { 320 } else { 64 },
        dtype: DType::F32,
        kv_dtype,
    };
    problem.check(device, Tier::Tiled)
}

/// An instance of Composable Kernel.
pub(super) fn composable(device: &Device, instance: CkInstance) -> Finding {
    let dtype = match instance.bf16 {
        true => DType::BF16,
        false => DType::F16,
    };
    let problem = Problem {
        rows: 141,
        keys: 155,
        heads: 4,
        kv_heads: 2,
        width: instance.head as usize,
        dtype,
        kv_dtype: dtype,
    };
    problem.run(device, Tier::Ck, instance.causal, instance.varlen)
}

fn last_number(name: &str) -> Option<usize> {
    name.rsplit('_').next()?.parse().ok()
}

impl Problem {
    fn check(&self, device: &Device, tier: Tier) -> Finding {
        self.run(device, tier, true, false)
    }

    fn run(&self, device: &Device, tier: Tier, causal: bool, packed: bool) -> Finding {
        let width = self.width;
        let (q_dims, k_dims) = (
            [1, self.rows, self.heads, width],
            [1, self.keys, self.kv_heads, width],
        );
        let skip = usize::from(packed);
        let q = Tensor::random(device, self.dtype, &q_dims[skip..], (-1.0, 1.0))?;
        let k = Keys::new(device, self.kv_dtype, &k_dims[skip..], (-1.0, 1.0))?;
        let v = Keys::new(device, self.kv_dtype, &k_dims[skip..], (-1.0, 2.0))?;
        let starts = |end: usize| Tensor::new(device, DType::U32, &[2], &[0.0, end as f64]);
        let (cu_rows, cu_keys) = (starts(self.rows)?, starts(self.keys)?);
        let scale = 1.0 / (width as f32).sqrt();
        let mut a = Attention::new(q.view(), k.view(), v.view(), scale);
        a.scales = k.scales().zip(v.scales());
        if causal {
            a.window = Window::CAUSAL;
        }
        if packed {
            a.lengths = Lengths::Packed {
                cu_rows: cu_rows.view(),
                cu_keys: cu_keys.view(),
                max_rows: self.rows,
                max_keys: self.keys,
            };
        }
        spoil_memory(device, q.values.len() * self.dtype.size_in_bytes())?;
        let attended = attention_on(device, &a, tier, SCORE_BYTES)?;
        let want = self.textbook(&q.values, &k.values, &v.values, causal);
        // Weights and results are rounded to the dtype.
        let got = read(device, &attended.out, self.dtype)?;
        Ok(difference(&got, &want, 2.0 * tolerance(self.dtype)))
    }

    /// `softmax(q kᵀ / sqrt(width)) v`, row by row.
    pub fn textbook(&self, q: &[f64], k: &[f64], v: &[f64], causal: bool) -> Vec<f64> {
        let (width, group) = (self.width, self.heads / self.kv_heads);
        let scale = 1.0 / (width as f64).sqrt();
        let mut out = Vec::new();
        for row in 0..self.rows {
            let last = match causal {
                true => row + self.keys - self.rows,
                false => self.keys - 1,
            };
            for head in 0..self.heads {
                let q = &q[(row * self.heads + head) * width..][..width];
                let line = |of: usize| (of * self.kv_heads + head / group) * width;
                let scores: Vec<f64> = (0..=last)
                    .map(|key| {
                        let k = &k[line(key)..][..width];
                        scale * q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>()
                    })
                    .collect();
                let most = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
                let sum: f64 = weights.iter().sum();
                let mut result = vec![0.0; width];
                for (key, weight) in weights.iter().enumerate() {
                    let v = &v[line(key)..][..width];
                    let pairs = result.iter_mut().zip(v);
                    pairs.for_each(|(r, v)| *r += weight / sum * v);
                }
                out.extend(result);
            }
        }
        out
    }
}

/// Elements that share a scale in 8 bits.
const SCALED: usize = 32;

/// Keys or values: in 8 bits with scales.
struct Keys {
    values: Vec<f64>,
    tensor: Option<Tensor>,
    bytes: Option<[Buffer; 2]>,
    dims: [Vec<usize>; 2],
    strides: [Vec<usize>; 2],
}

impl Keys {
    fn new(device: &Device, dtype: DType, dims: &[usize], range: (f64, f64)) -> Result<Self> {
        let mut of_scales = dims.to_vec();
        if let Some(last) = of_scales.last_mut() {
            *last /= SCALED;
        }
        let both = [dims.to_vec(), of_scales];
        let strides = [contiguous_strides(&both[0]), contiguous_strides(&both[1])];
        let (values, tensor, bytes) = match dtype {
            DType::U8 => {
                let quants = Tensor::random(device, DType::I16, dims, (-127.0, 127.0))?.values;
                let scale = f16::from_f64(range.1 / 127.0);
                let raw: Vec<u8> = quants.iter().map(|q| *q as i8 as u8).collect();
                let scales = vec![scale.to_f64(); quants.len() / SCALED];
                let values = quants.iter().map(|q| q * scale.to_f64()).collect();
                let scales = device.upload(&encode(DType::F16, &scales))?;
                (values, None, Some([device.upload(&raw)?, scales]))
            }
            _ => {
                let tensor = Tensor::random(device, dtype, dims, range)?;
                (tensor.values.clone(), Some(tensor), None)
            }
        };
        Ok(Keys {
            values,
            tensor,
            bytes,
            dims: both,
            strides,
        })
    }

    fn part(&self, index: usize, dtype: DType) -> Option<View<'_>> {
        let buffer = &self.bytes.as_ref()?[index];
        let (dims, strides) = (&self.dims[index], &self.strides[index]);
        Some(View::contiguous(buffer, dtype, dims, strides))
    }

    fn view(&self) -> View<'_> {
        let bytes = self.part(0, DType::U8);
        let tensor = self.tensor.as_ref().map(Tensor::view);
        bytes.or(tensor).expect("one of the two")
    }

    fn scales(&self) -> Option<View<'_>> {
        self.part(1, DType::F16)
    }
}

/// Blocks of a cache, entries of a block, heads, and elements of a head.
const CACHE: [usize; 4] = [5, 16, 2, 64];
const TOKENS: usize = 37;

pub(super) fn kv_cache(device: &Device, kernel: &DeclaredKernel) -> Finding {
    if split_dtype(&kernel.name).is_some() {
        return unknown(kernel);
    }
    let (dtype, [blocks, size, heads, width]) = (DType::F16, CACHE);
    let dims = [TOKENS, heads, width];
    let q = Tensor::random(device, dtype, &[TOKENS, 3 * heads, width], (-1.0, 1.0))?;
    let k = Tensor::random(device, dtype, &dims, (-2.0, 1.0))?;
    let v = Tensor::random(device, dtype, &dims, (-1.0, 2.0))?;
    let zeros = vec![0.0; blocks * size * heads * width];
    let (k_cache, v_cache) = (
        Tensor::new(device, dtype, &CACHE, &zeros)?,
        Tensor::new(device, dtype, &CACHE, &zeros)?,
    );
    let half = 16;
    let cos = Tensor::random(device, DType::F32, &[TOKENS, half], (-1.0, 1.0))?;
    let sin = Tensor::random(device, DType::F32, &[TOKENS, half], (-1.0, 0.5))?;
    let positions: Vec<f64> = (0..TOKENS).map(|t| (t * 5 % TOKENS) as f64).collect();
    let positions = Tensor::new(device, DType::U32, &[TOKENS], &positions)?;
    // Each has a place of its own; the last is not written.
    let mut places: Vec<f64> = (0..TOKENS)
        .map(|t| (t * 7 % (blocks * size)) as f64)
        .collect();
    places[TOKENS - 1] = f64::from(u32::MAX);
    let slots = Tensor::new(device, DType::U32, &[TOKENS], &places)?;
    let cache = KvCache {
        k: k_cache.view(),
        v: v_cache.view(),
        scales: None,
    };
    let tokens = Tokens {
        q: Some(q.view()),
        k: k.view(),
        v: v.view(),
        slots: slots.view(),
    };
    let rotary = Rotary {
        cos: cos.view(),
        sin: sin.view(),
        interleaved: false,
        positions: positions.view(),
    };
    spoil_memory(device, q.values.len() * dtype.size_in_bytes())?;
    let turned = kv_cache::write(device, &cache, &tokens, Some(&rotary))?;
    let turn = |x: &[f64], token: usize| -> Vec<f64> {
        let mut y = x.to_vec();
        let row = positions.values[token] as usize * half;
        for i in 0..half {
            let (c, s) = (cos.values[row + i], sin.values[row + i]);
            y[i] = x[i] * c - x[i + half] * s;
            y[i + half] = x[i] * s + x[i + half] * c;
        }
        y
    };
    let (mut want_k, mut want_v) = (zeros.clone(), zeros);
    for (token, place) in places.iter().enumerate().take(TOKENS - 1) {
        let to = *place as usize * heads * width;
        let from = token * heads * width;
        for head in 0..heads {
            let x = &k.values[from + head * width..][..width];
            want_k[to + head * width..][..width].copy_from_slice(&turn(x, token));
        }
        want_v[to..][..heads * width].copy_from_slice(&v.values[from..][..heads * width]);
    }
    for (buffer, want) in [(k_cache.buffer(), &want_k), (v_cache.buffer(), &want_v)] {
        if let Some(wrong) = compare(device, buffer, dtype, want)? {
            return Ok(Some(wrong));
        }
    }
    let Some(turned) = turned else {
        return Ok(Some("there are no queries".to_string()));
    };
    let rows = q.values.chunks(width).enumerate();
    let want: Vec<f64> = rows
        .flat_map(|(row, x)| turn(x, row / (3 * heads)))
        .collect();
    compare(device, &turned, dtype, &want)
}
