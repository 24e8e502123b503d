//! What a product does with its results: activations, scales and sums, and gate and up in one.

use super::*;

#[test]
fn epilogues_on_every_path() {
    fn check<T: Element>(device: &Device, limit: f64) {
        let mut rng = Rng::new(11);
        let (rows, cols) = (35, 512);
        let weights = Weights::new(device, Format::Q5K, rows, cols, &mut rng);
        for columns in [1, 3, 20] {
            let x =
                HostTensor::contiguous(rng.vec::<T>(columns * cols, -1.0, 1.0), &[columns, cols]);
            let bias =
                HostTensor::<T>::with_layout(&[rows], Layout::Offset, |n| rng.vec(n, -3.0, 3.0));
            let residual = HostTensor::<T>::with_layout(&[columns, rows], Layout::Offset, |n| {
                rng.vec(n, -3.0, 3.0)
            });
            let buffers = [
                x.upload(device),
                bias.upload(device),
                residual.upload(device),
            ];
            let seen: Vec<f32> = x.storage.iter().map(|v| v.to_f64() as f32).collect();
            let sums = product(&weights, &eight_bits(&seen));
            let quantized = QuantizedActivations::quantize(device, &x.view(&buffers[0])).unwrap();
            for activation in [None, Some(Activation::Silu), Some(Activation::Gelu)] {
                let epilogue = Epilogue {
                    bias: Some(bias.view(&buffers[1])),
                    activation,
                    residual: Some(residual.view(&buffers[2])),
                };
                let (bias, residual) = (bias.values(), residual.values());
                let want: Vec<f64> = (0..columns * rows)
                    .map(|i| {
                        let v = sums[i] + bias[i % rows].to_f64();
                        let v = match activation {
                            None => v,
                            Some(Activation::Silu) => silu(v),
                            _ => gelu(v),
                        };
                        v + residual[i].to_f64()
                    })
                    .collect();
                let multiply = if columns <= MATVEC_MAX_COLUMNS {
                    matvec
                } else {
                    matmul
                };
                let y = multiply(device, &weights.matrix(), &quantized, &epilogue, T::DTYPE);
                let what = format!("{columns} columns, {activation:?}, {:?}", T::DTYPE);
                assert_close::<T>(&download(device, &y.unwrap()), &want, limit, &what);
                let y =
                    linear_quantized(device, &weights.matrix(), &quantized, &epilogue, T::DTYPE);
                assert_close::<T>(&download(device, &y.unwrap()), &want, limit, &what);
            }
        }
    }
    let device = device();
    check::<f32>(&device, SUMMED);
    check::<f16>(&device, 1e-6);
    check::<bf16>(&device, 1e-4);
}

#[test]
fn gate_and_up_in_one_kernel_or_several() {
    let device = device();
    let mut rng = Rng::new(12);
    for format in [Format::Q4_0, Format::Q6K] {
        let (rows, cols) = (37, 256);
        let gate = Weights::new(&device, format, rows, cols, &mut rng);
        let up = Weights::new(&device, format, rows, cols, &mut rng);
        for columns in [1, 2, 3, 8, 17] {
            let x =
                HostTensor::contiguous(rng.vec::<f32>(columns * cols, -1.0, 1.0), &[columns, cols]);
            let buffer = x.upload(&device);
            let (seen, limit) =
                match multiplies_floats(&device, &gate.matrix(), columns, DType::F32).unwrap() {
                    true => (exact(&x.storage), ROUNDED),
                    false => (eight_bits(&x.storage), 1e-10),
                };
            let products = product(&gate, &seen).into_iter().zip(product(&up, &seen));
            let want: Vec<f64> = products.map(|(g, u)| silu(g) * u).collect();
            let what = format!("{format}, {columns} columns");
            let got = gated(
                &device,
                &gate.matrix(),
                &up.matrix(),
                &x.view(&buffer),
                Activation::Silu,
            );
            assert_close::<f32>(&download(&device, &got.unwrap()), &want, limit, &what);
            if columns > MATVEC_MAX_COLUMNS {
                continue;
            }
            let quantized = QuantizedActivations::quantize(&device, &x.view(&buffer)).unwrap();
            let residual =
                HostTensor::contiguous(rng.vec::<f32>(columns * rows, -1.0, 1.0), &[columns, rows]);
            let added = residual.upload(&device);
            let got = gated_matvec(
                &device,
                &gate.matrix(),
                &up.matrix(),
                &quantized,
                Activation::Silu,
                Some(residual.view(&added)),
                DType::F32,
            );
            let sums = want.iter().zip(&residual.storage);
            let want: Vec<f64> = sums.map(|(w, r)| w + f64::from(*r)).collect();
            assert_close::<f32>(&download(&device, &got.unwrap()), &want, 1e-10, &what);
        }
    }
}
