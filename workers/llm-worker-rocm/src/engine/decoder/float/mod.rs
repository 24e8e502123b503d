//! Matrices of plain numbers on the CPU: halves stay halves in memory, and each sum is made in one order, whatever the
//! number of rows.

use candle_core::quantized::GgmlDType;
use candle_core::utils::barrier_pool;
use candle_core::{bail, DType, Device, Result, Storage, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::cell::RefCell;

#[cfg(target_arch = "x86_64")]
mod avx512;
mod numbers;

use numbers::Numbers;
use worker::gguf::SharedBytes;

/// Rows of the matrix that a thread takes at once.
const TILE: usize = 8;
/// Up to how many rows of the input halves are widened as they are read; for more, once for all.
const FEW: usize = 3;
/// Partial sums of a product: the elements of one AVX-512 register, or of two of AVX.
const LANES: usize = 16;

/// `outputs` rows of `inputs` elements.
pub(super) struct FloatMatrix {
    data: Data,
    outputs: usize,
    inputs: usize,
}

enum Data {
    F32(Numbers<f32>),
    F16(Numbers<f16>),
    BF16(Numbers<bf16>),
}

impl FloatMatrix {
    pub(super) fn new(
        bytes: &[u8],
        dtype: GgmlDType,
        (outputs, inputs): (usize, usize),
    ) -> Result<Self> {
        if bytes.len() != outputs * inputs * dtype.type_size() {
            bail!(
                "{} bytes for {outputs} rows of {inputs} {dtype:?}",
                bytes.len()
            )
        }
        let pairs = || {
            bytes
                .chunks_exact(2)
                .map(|b| u16::from_le_bytes([b[0], b[1]]))
        };
        let data = match dtype {
            GgmlDType::F32 => Data::F32(Numbers::Own(
                bytes
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                    .collect(),
            )),
            GgmlDType::F16 => Data::F16(Numbers::Own(pairs().map(f16::from_bits).collect())),
            GgmlDType::BF16 => Data::BF16(Numbers::Own(pairs().map(bf16::from_bits).collect())),
            dtype => bail!("{dtype:?} is not a plain format"),
        };
        Ok(Self {
            data,
            outputs,
            inputs,
        })
    }

    /// The same of numbers that stay where they are, if they begin where such numbers may.
    pub(super) fn shared(
        bytes: &SharedBytes,
        dtype: GgmlDType,
        (outputs, inputs): (usize, usize),
    ) -> Option<Self> {
        if bytes.len() != outputs * inputs * dtype.type_size() {
            return None;
        }
        let bytes = bytes.clone();
        let data = match dtype {
            GgmlDType::F32 => Data::F32(Numbers::shared(bytes)?),
            GgmlDType::F16 => Data::F16(Numbers::shared(bytes)?),
            GgmlDType::BF16 => Data::BF16(Numbers::shared(bytes)?),
            _ => return None,
        };
        Some(Self {
            data,
            outputs,
            inputs,
        })
    }

    /// Row numbers `rows` as floats, one behind the other.
    fn read<'a>(&'a self, rows: std::ops::Range<usize>, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        let range = rows.start * self.inputs..rows.end * self.inputs;
        scratch.resize(range.len(), 0.0);
        match &self.data {
            Data::F32(data) => return &data[range],
            Data::F16(data) => data[range].convert_to_f32_slice(scratch),
            Data::BF16(data) => {
                for (to, x) in scratch.iter_mut().zip(&data[range]) {
                    *to = x.to_f32();
                }
            }
        }
        scratch
    }

    /// Rows `ids`, f32.
    pub(super) fn rows(&self, ids: &[u32]) -> Result<Tensor> {
        let mut scratch = Vec::new();
        let mut out = Vec::with_capacity(ids.len() * self.inputs);
        for id in ids {
            let id = *id as usize;
            if id >= self.outputs {
                bail!("row {id} of {}", self.outputs)
            }
            out.extend_from_slice(self.read(id..id + 1, &mut scratch));
        }
        Tensor::from_vec(out, (ids.len(), self.inputs), &Device::Cpu)
    }

    /// `(rows, inputs)` of f32 to `(rows, outputs)`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, inputs) = x.dims2()?;
        if inputs != self.inputs || x.dtype() != DType::F32 {
            bail!(
                "{:?} of {:?} times a matrix with {} inputs",
                x.dims(),
                x.dtype(),
                self.inputs
            )
        }
        let x = x.contiguous()?;
        let (storage, layout) = x.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else {
            bail!("the input must be on the CPU, as the matrix is")
        };
        let x = &storage.as_slice::<f32>()?[layout.start_offset()..][..rows * inputs];
        let mut out = vec![0f32; rows * self.outputs];
        let place = Place(out.as_mut_ptr());
        barrier_pool().execute_chunked(self.outputs.div_ceil(TILE), |tiles| {
            thread_local! {
                static SCRATCH: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
            }
            SCRATCH.with_borrow_mut(|scratch| {
                for tile in tiles {
                    let first = tile * TILE;
                    let last = (first + TILE).min(self.outputs);
                    let put = |row: usize, column: usize, value| {
                        // SAFETY: row and column lie in the result, and a column belongs to one thread.
                        unsafe { place.write(row * self.outputs + first + column, value) }
                    };
                    #[cfg(target_arch = "x86_64")]
                    if rows <= FEW && avx512::is_here() {
                        let range = first * inputs..last * inputs;
                        match &self.data {
                            Data::F32(data) => avx512::multiply(x, &data[range], inputs, put),
                            Data::F16(data) => avx512::multiply(x, &data[range], inputs, put),
                            Data::BF16(data) => avx512::multiply(x, &data[range], inputs, put),
                        }
                        continue;
                    }
                    multiply(x, self.read(first..last, scratch), inputs, put);
                }
            })
        });
        Tensor::from_vec(out, (rows, self.outputs), &Device::Cpu)
    }
}

/// A slice that threads write disjoint elements of.
struct Place(*mut f32);

// SAFETY: whoever uses it writes elements that no other thread touches.
unsafe impl Sync for Place {}

impl Place {
    /// # Safety
    /// `at` must lie in the slice, and nobody else may use that element meanwhile.
    unsafe fn write(&self, at: usize, value: f32) {
        // SAFETY: as the caller promises.
        unsafe { self.0.add(at).write(value) }
    }
}

/// The products of each row of `x` with each row of `weights`: `put(row of x, row of weights, product)`.
fn multiply(x: &[f32], weights: &[f32], inputs: usize, put: impl FnMut(usize, usize, f32)) {
    #[cfg(target_arch = "x86_64")]
    {
        if avx512::is_here() {
            return avx512::multiply(x, weights, inputs, put);
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has what the function was compiled for.
            return unsafe { multiply_avx2(x, weights, inputs, put) };
        }
    }
    multiply_by::<{ cfg!(target_arch = "aarch64") }>(x, weights, inputs, put)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn multiply_avx2(x: &[f32], weights: &[f32], inputs: usize, put: impl FnMut(usize, usize, f32)) {
    multiply_by::<true>(x, weights, inputs, put)
}

/// Four rows of the weights at a time, so that each number of `x` that is loaded is used as often.
#[inline(always)]
fn multiply_by<const FMA: bool>(
    x: &[f32],
    weights: &[f32],
    inputs: usize,
    mut put: impl FnMut(usize, usize, f32),
) {
    const COLUMNS: usize = 4;
    for (row, x) in x.chunks_exact(inputs).enumerate() {
        let mut fours = weights.chunks_exact(COLUMNS * inputs);
        let mut column = 0;
        for weights in &mut fours {
            for value in dots::<FMA, COLUMNS>(x, weights, inputs) {
                put(row, column, value);
                column += 1;
            }
        }
        for weights in fours.remainder().chunks_exact(inputs) {
            put(row, column, dots::<FMA, 1>(x, weights, inputs)[0]);
            column += 1;
        }
    }
}

/// Each product's order of sums is the same for every `C`, and that of [`avx512`].
#[inline(always)]
fn dots<const FMA: bool, const C: usize>(x: &[f32], weights: &[f32], inputs: usize) -> [f32; C] {
    let mut sums = [[0f32; LANES]; C];
    let whole = inputs / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        let x = &x[at..at + LANES];
        for (c, sums) in sums.iter_mut().enumerate() {
            let w = &weights[c * inputs + at..c * inputs + at + LANES];
            for lane in 0..LANES {
                sums[lane] = fma::<FMA>(x[lane], w[lane], sums[lane]);
            }
        }
    }
    let mut out = [0f32; C];
    for (c, lanes) in sums.iter_mut().enumerate() {
        let mut half = LANES / 2;
        while half > 0 {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
            half /= 2;
        }
        out[c] = lanes[0];
        for i in whole..inputs {
            out[c] = fma::<FMA>(x[i], weights[c * inputs + i], out[c]);
        }
    }
    out
}

#[inline(always)]
fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_processor_sums_in_the_same_order() {
        if !avx512::is_here() {
            eprintln!("skipped: this processor has no AVX-512");
            return;
        }
        let (rows, inputs, columns) = (5, 37, 11);
        let number = |i: usize| ((i * 7919 % 1000) as f32 - 500.0) / 250.0;
        let x: Vec<f32> = (0..rows * inputs).map(number).collect();
        let weights: Vec<bf16> = (0..columns * inputs)
            .map(|i| bf16::from_f32(number(i + 5)))
            .collect();
        let wide: Vec<f32> = weights.iter().map(|w| w.to_f32()).collect();
        let (mut got, mut want) = (vec![0.0; rows * columns], vec![0.0; rows * columns]);
        avx512::multiply(&x, &weights, inputs, |r, c, v| got[r * columns + c] = v);
        multiply_by::<true>(&x, &wide, inputs, |r, c, v| want[r * columns + c] = v);
        assert_eq!(got, want);
    }

    #[test]
    fn rows_are_alike_in_any_company_and_right() {
        let (rows, inputs, outputs) = (7, 53, 21);
        let number = |i: usize| ((i * 7919 % 1000) as f32 - 500.0) / 250.0;
        let weights: Vec<f16> = (0..outputs * inputs)
            .map(|i| f16::from_f32(number(i)))
            .collect();
        let bytes: Vec<u8> = weights.iter().flat_map(|w| w.to_le_bytes()).collect();
        let matrix = FloatMatrix::new(&bytes, GgmlDType::F16, (outputs, inputs)).unwrap();
        let x: Vec<f32> = (0..rows * inputs).map(|i| number(i + 3)).collect();
        let all = Tensor::from_vec(x.clone(), (rows, inputs), &Device::Cpu).unwrap();
        let together = matrix.forward(&all).unwrap().to_vec2::<f32>().unwrap();
        for (row, got) in together.iter().enumerate() {
            let alone = matrix.forward(&all.narrow(0, row, 1).unwrap()).unwrap();
            assert_eq!(&alone.to_vec2::<f32>().unwrap()[0], got);
            for (column, got) in got.iter().enumerate() {
                let want: f64 = (0..inputs)
                    .map(|i| f64::from(x[row * inputs + i]) * weights[column * inputs + i].to_f64())
                    .sum();
                assert!((f64::from(*got) - want).abs() < 1e-4, "{got} for {want}");
            }
        }
        let row = matrix.rows(&[3]).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(row[0][5], weights[3 * inputs + 5].to_f32());
        assert!(matrix.rows(&[21]).is_err());
    }
}
