//! Ids at the end of their dtype, integers with fractions, numbers at equal steps, random numbers, quantizers' blocks
//! of one value, activations beyond f16, and arguments that nothing can be computed of.

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor, Var, WithDType, D};
use float8::F8E4M3;
use half::{bf16, f16};

const CPU: Device = Device::Cpu;

/// 256 rows of one number each.
fn bytes() -> Result<Tensor> {
    Tensor::arange(0f32, 256., &CPU)?.reshape((256, 1))
}

#[test]
fn ids_of_small_integers() -> Result<()> {
    for dtype in [DType::U8, DType::I16, DType::I32, DType::U32, DType::I64] {
        let ids = Tensor::new(&[254u32, 255], &CPU)?.to_dtype(dtype)?;
        let column = ids.reshape((2, 1))?;
        let ones = Tensor::ones((2, 1), DType::F32, &CPU)?;
        let last = |rows: Tensor| rows.flatten_all()?.narrow(0, 254, 2)?.to_vec1::<f32>();
        let selected = bytes()?.index_select(&ids, 0)?.flatten_all()?;
        assert_eq!(selected.to_vec1::<f32>()?, [254., 255.], "{dtype:?}");
        let gathered = bytes()?.gather(&column, 0)?.flatten_all()?;
        assert_eq!(gathered.to_vec1::<f32>()?, [254., 255.], "{dtype:?}");
        assert_eq!(last(bytes()?.index_add(&ids, &ones, 0)?)?, [255., 256.]);
        assert_eq!(
            last(bytes()?.scatter_add(&column, &ones, 0)?)?,
            [255., 256.]
        );
        assert_eq!(last(bytes()?.scatter(&column, &ones, 0)?)?, [1., 1.]);
    }
    // Beyond the rows that there are, it is an error as any other.
    let few = bytes()?.narrow(0, 0, 200)?;
    assert!(few.index_select(&Tensor::new(&[255u8], &CPU)?, 0).is_err());
    // No dimension reaches these.
    let none = few.index_select(&Tensor::new(&[u32::MAX, 3], &CPU)?, 0)?;
    assert_eq!(none.flatten_all()?.to_vec1::<f32>()?, [0., 3.]);
    let none = few.index_select(&Tensor::new(&[i64::MAX, 3], &CPU)?, 0)?;
    assert_eq!(none.flatten_all()?.to_vec1::<f32>()?, [0., 3.]);
    Ok(())
}

fn steps<T: WithDType>(start: T, end: T, step: T) -> Result<Vec<f64>> {
    let numbers = Tensor::arange_step(start, end, step, &CPU)?;
    numbers.to_dtype(DType::F64)?.to_vec1()
}

#[test]
fn arange_of_every_dtype() -> Result<()> {
    let tenths = steps(0f32, 1000., 0.1)?;
    assert_eq!(tenths.len(), 10_000);
    assert_eq!(tenths[9999] as f32, 999.9);
    // In f32, 0.7 is a little less.
    assert_eq!(steps(0f32, 7., 0.7)?.len(), 10);
    assert_eq!(steps(0f64, 1., 0.25)?, [0., 0.25, 0.5, 0.75]);
    assert_eq!(steps(250u8, 255, 4)?, [250., 254.]);
    assert_eq!(steps(250u8, 255, 3)?, [250., 253.]);
    assert_eq!(steps(i64::MAX - 2, i64::MAX, 1)?.len(), 2);
    assert_eq!(steps(i64::MIN, i64::MAX, i64::MAX)?.len(), 3);
    assert_eq!(steps(3i32, -4, -3)?, [3., 0., -3.]);
    assert_eq!(steps(3i16, 9, -3)?, [0.; 0]);
    assert_eq!(steps(u32::MAX - 1, u32::MAX, 7)?.len(), 1);
    let coarse = steps(f16::from_f32(2040.), f16::from_f32(2060.), f16::ONE)?;
    assert_eq!(coarse.len(), 20);
    assert_eq!(coarse[19], 2060.);
    assert_eq!(
        steps(bf16::ZERO, bf16::from_f32(1000.), bf16::ONE)?.len(),
        1000
    );
    let coarse = steps(F8E4M3::ZERO, F8E4M3::from_f32(32.), F8E4M3::from_f32(1.))?;
    assert_eq!((coarse.len(), coarse[31]), (32, 32.));
    assert!(steps(0f32, 1., 0.).is_err());
    assert!(steps(0f32, f32::INFINITY, 1.).is_err());
    assert!(steps(f64::NAN, 1., 1.).is_err());
    assert!(steps(0f64, 1e300, 1.).is_err());
    Ok(())
}

fn integers<T: WithDType>(values: &[f64]) -> Result<Tensor> {
    let values: Vec<T> = values.iter().map(|&v| T::from_f64(v)).collect();
    Tensor::from_slice(&values, values.len(), &CPU)
}

fn numbers(x: Tensor) -> Result<Vec<f64>> {
    x.to_dtype(DType::F64)?.to_vec1()
}

fn arithmetic<T: WithDType>() -> Result<()> {
    let x = || integers::<T>(&[10., 3., 49.]);
    assert_eq!(numbers((x()? / 2.)?)?, [5., 1., 24.]);
    assert_eq!(numbers((x()? * 1.5)?)?, [15., 4., 73.]);
    assert_eq!(numbers((x()? / 49.)?)?, [0., 0., 1.]);
    assert_eq!(numbers((x()? / 2.5)?)?, [4., 1., 19.]);
    assert_eq!(numbers((x()? - 3.)?)?, [7., 0., 46.]);
    assert_eq!(numbers((x()? + 0.75)?)?, [10., 3., 49.]);
    assert_eq!(numbers(x()?.affine(0.5, 0.5)?)?, [5., 2., 25.]);
    assert_eq!(numbers((50. - x()?)?)?, [40., 47., 1.]);
    assert_eq!(numbers(x()?.maximum(3.5f64)?)?, [10., 3., 49.]);
    assert_eq!(numbers(x()?.clamp(4.5f32, 20.5f32)?)?, [10., 4., 20.]);
    assert_eq!(numbers(x()?.clamp(-1e9f64, 1e30f64)?)?, [10., 3., 49.]);
    assert_eq!(numbers(x()?.round_to(-1)?)?, [10., 0., 50.]);
    assert_eq!(numbers(x()?.round_to(2)?)?, [10., 3., 49.]);
    // lt, le, eq, ne, ge, gt
    let compared = |by: f64| -> Result<[Vec<f64>; 6]> {
        Ok([
            numbers(x()?.lt(by)?)?,
            numbers(x()?.le(by)?)?,
            numbers(x()?.eq(by)?)?,
            numbers(x()?.ne(by)?)?,
            numbers(x()?.ge(by)?)?,
            numbers(x()?.gt(by)?)?,
        ])
    };
    for by in [
        2.5,
        3.,
        3.5,
        10.,
        48.5,
        49.,
        -0.5,
        -7.,
        1e30,
        -1e30,
        f64::NAN,
        f64::INFINITY,
    ] {
        let with = |holds: fn(&f64, &f64) -> bool| {
            [10f64, 3., 49.]
                .map(|x| f64::from(u8::from(holds(&x, &by))))
                .to_vec()
        };
        let want = [
            with(f64::lt),
            with(f64::le),
            with(f64::eq),
            with(f64::ne),
            with(f64::ge),
            with(f64::gt),
        ];
        assert_eq!(compared(by)?, want, "{:?} {by}", T::DTYPE);
    }
    for nothing in [
        x()? / 0.,
        x()? / f64::NAN,
        x()? * f64::INFINITY,
        x()? + f64::NAN,
        x()?.maximum(f64::NAN),
    ] {
        assert!(nothing.is_err());
    }
    let zero = integers::<T>(&[1., 0., 2.])?;
    assert!(x()?.div(&zero).is_err());
    assert_eq!(
        numbers(x()?.div(&integers::<T>(&[4., 3., 50.])?)?)?,
        [2., 1., 0.]
    );
    Ok(())
}

#[test]
fn integers_with_fractions() -> Result<()> {
    arithmetic::<u8>()?;
    arithmetic::<i16>()?;
    arithmetic::<i32>()?;
    arithmetic::<u32>()?;
    arithmetic::<i64>()?;
    assert_eq!((Tensor::new(&[255u8], &CPU)? / 255.)?.to_vec1::<u8>()?, [1]);
    assert_eq!(
        (Tensor::new(&[200u8], &CPU)? * 1.5)?.to_vec1::<u8>()?,
        [255]
    );
    // Beyond 2^53 whole numbers stay whole.
    let large = Tensor::new(&[i64::MAX, i64::MIN], &CPU)?;
    assert_eq!((&large - 1.)?.to_vec1::<i64>()?, [i64::MAX - 1, i64::MAX]);
    assert_eq!(
        (&large / 3.)?.to_vec1::<i64>()?,
        [i64::MAX / 3, i64::MIN / 3]
    );
    assert_eq!(large.gt(i64::MAX - 1)?.to_vec1::<u8>()?, [1, 0]);
    assert_eq!(
        Tensor::new(&[3u8, 0], &CPU)?.gt(-1i64)?.to_vec1::<u8>()?,
        [1, 1]
    );
    assert_eq!(
        Tensor::new(&[0u8, 3], &CPU)?.eq(256u32)?.to_vec1::<u8>()?,
        [0, 0]
    );
    assert_eq!(
        Tensor::new(&[1u8, 3], &CPU)?
            .maximum(-1i64)?
            .to_vec1::<u8>()?,
        [1, 3]
    );
    Ok(())
}

#[test]
fn integers_wrap() -> Result<()> {
    let [most, one] = [255u8, 1].map(|v| Tensor::new(&[v], &CPU));
    let (most, one) = (most?, one?);
    assert_eq!((&most + &one)?.to_vec1::<u8>()?, [0]);
    assert_eq!((&one - &most)?.to_vec1::<u8>()?, [2]);
    assert_eq!((&most * &most)?.to_vec1::<u8>()?, [1]);
    assert_eq!((&most + 1.)?.to_vec1::<u8>()?, [0]);
    let ids = Tensor::new(&[0u32], &CPU)?;
    assert_eq!(most.index_add(&ids, &most, 0)?.to_vec1::<u8>()?, [254]);
    assert_eq!(most.scatter_add(&ids, &most, 0)?.to_vec1::<u8>()?, [254]);
    let least = Tensor::new(&[i64::MIN], &CPU)?;
    assert_eq!(
        least.div(&Tensor::new(&[-1i64], &CPU)?)?.to_vec1::<i64>()?,
        [i64::MIN]
    );
    assert_eq!((&least / -1.)?.to_vec1::<i64>()?, [i64::MIN]);
    assert_eq!(least.abs()?.to_vec1::<i64>()?, [i64::MIN]);
    // Of a divisor that is broadcast, too.
    let zero = Tensor::new(&[[1i32], [0]], &CPU)?;
    assert!(Tensor::ones((2, 3), DType::I32, &CPU)?
        .broadcast_div(&zero)
        .is_err());
    Ok(())
}

#[test]
fn convolutions_check_their_arguments() -> Result<()> {
    let x = |shape: &[usize]| Tensor::ones(shape, DType::F32, &CPU);
    // Padding, stride, dilation, groups.
    let conv1d = |x: Tensor, k: &[usize], p, s, d, g| {
        x.conv1d(&Tensor::ones(k, DType::F32, &CPU)?, p, s, d, g)
    };
    let conv2d = |x: Tensor, k: &[usize], p, s, d, g| {
        x.conv2d(&Tensor::ones(k, DType::F32, &CPU)?, p, s, d, g)
    };
    assert!(conv2d(x(&[1, 4, 5, 5])?, &[3, 2, 3, 3], 0, 1, 1, 2).is_err());
    assert!(conv2d(x(&[1, 4, 2, 2])?, &[3, 4, 3, 3], 0, 1, 1, 1).is_err());
    assert!(conv2d(x(&[1, 4, 5, 5])?, &[3, 4, 3, 3], 0, 0, 1, 1).is_err());
    assert!(conv2d(x(&[1, 4, 5, 5])?, &[3, 4, 3, 3], 0, 1, 0, 1).is_err());
    assert!(conv2d(x(&[1, 4, 5, 5])?, &[3, 4, 3, 3], 0, 1, 1, 0).is_err());
    assert!(conv2d(x(&[1, 4, 5, 5])?, &[3, 4, 0, 3], 0, 1, 1, 1).is_err());
    assert!(conv2d(x(&[1, 4, 5, 5])?, &[3, 4, 3, 3], usize::MAX, 1, 1, 1).is_err());
    assert_eq!(
        conv2d(x(&[0, 4, 5, 5])?, &[3, 4, 3, 3], 0, 1, 1, 1)?.dims(),
        [0, 3, 3, 3]
    );
    assert!(conv1d(x(&[1, 4, 5])?, &[3, 2, 3], 0, 1, 1, 2).is_err());
    assert!(conv1d(x(&[1, 4, 2])?, &[3, 4, 3], 0, 1, 1, 1).is_err());
    assert!(conv1d(x(&[1, 4, 5])?, &[3, 4, 3], 0, 1, 3, 1).is_err());
    assert!(conv1d(x(&[1, 4, 5])?, &[3, 4, 3], 0, 0, 1, 1).is_err());
    assert_eq!(
        conv1d(x(&[0, 4, 5])?, &[3, 4, 3], 0, 1, 1, 1)?.dims(),
        [0, 3, 3]
    );

    let ones = |shape: &[usize]| Tensor::ones(shape, DType::F32, &CPU);
    assert!(x(&[1, 3, 4])?
        .conv_transpose1d(&ones(&[3, 2, 2])?, 5, 0, 1, 1, 1)
        .is_err());
    assert!(x(&[1, 3, 4])?
        .conv_transpose1d(&ones(&[3, 2, 2])?, 0, 0, 0, 1, 1)
        .is_err());
    assert!(x(&[1, 3, 4])?
        .conv_transpose1d(&ones(&[3, 2, 2])?, 0, 0, 1, 1, 0)
        .is_err());
    assert!(x(&[1, 3, 0])?
        .conv_transpose1d(&ones(&[3, 2, 2])?, 0, 0, 1, 1, 1)
        .is_err());
    assert!(x(&[1, 3, 4, 4])?
        .conv_transpose2d(&ones(&[3, 2, 2, 2])?, 5, 0, 1, 1)
        .is_err());
    // What a padding cuts off is more than the first terms of the size.
    let one = x(&[1, 1, 1])?.conv_transpose1d(&ones(&[1, 1, 3])?, 1, 0, 1, 1, 1)?;
    assert_eq!(one.flatten_all()?.to_vec1::<f32>()?, [1.]);
    Ok(())
}

#[test]
fn nothing_panics_for_sizes_of_zero() -> Result<()> {
    let image = Tensor::ones((1, 1, 4, 4), DType::F32, &CPU)?;
    assert!(image.max_pool2d_with_stride(2, 0).is_err());
    assert!(image.avg_pool2d_with_stride(2, 0).is_err());
    assert!(image.avg_pool2d(0).is_err());
    assert!(image.max_pool2d((0, 2)).is_err());
    let nothing = Tensor::ones((1, 1, 0, 4), DType::F32, &CPU)?;
    assert!(nothing.upsample_nearest2d(2, 2).is_err());
    assert!(nothing.upsample_bilinear2d(2, 2, false).is_err());
    assert!(image.upsample_nearest2d(0, 2).is_err());
    assert!(image
        .upsample_bilinear2d_with_scale(f64::NAN, 1., false)
        .is_err());
    assert!(image
        .upsample_bilinear2d_with_scale(f64::INFINITY, 1., false)
        .is_err());
    assert!(Tensor::ones((1, 1, 0), DType::F32, &CPU)?
        .upsample_nearest1d(2)
        .is_err());
    let none = Tensor::zeros((0, 3), DType::F32, &CPU)?;
    assert_eq!(none.roll(1, 0)?.dims(), [0, 3]);
    assert!(none.chunk(0, 1).is_err());
    assert!(image.unfold(3, 2, 0).is_err());
    assert_eq!(image.unfold(D::Minus1, 2, 1)?.dims(), [1, 1, 4, 3, 2]);
    let scalar = Tensor::new(1f32, &CPU)?;
    assert!(scalar.slice_scatter0(&scalar, 1).is_err());
    assert!(none
        .slice_set(&Tensor::ones((1, 3), DType::F32, &CPU)?, 0, usize::MAX)
        .is_err());
    assert!(Tensor::zeros((usize::MAX, 2), DType::F32, &CPU).is_err());
    assert!(Tensor::ones((1 << 40, 1 << 40), DType::U8, &CPU).is_err());
    Ok(())
}

fn below_the_bound<T: candle_core::FloatDType>() -> Result<()> {
    let [lo, up] = [0., 1.].map(T::from_f64);
    let drawn: Vec<f64> = numbers(Tensor::rand(lo, up, 50_000, &CPU)?)?;
    assert!(
        drawn.iter().all(|v| (0. ..1.).contains(v)),
        "{:?}",
        T::DTYPE
    );
    let mean = drawn.iter().sum::<f64>() / drawn.len() as f64;
    assert!((mean - 0.5).abs() < 0.02, "{:?}: {mean}", T::DTYPE);
    // Neighbours have nothing between them.
    assert_eq!(numbers(Tensor::rand(lo, lo, 3, &CPU)?)?, [0.; 3]);
    assert!(Tensor::rand(up, lo, 3, &CPU).is_err());
    assert!(Tensor::rand(lo, T::from_f64(f64::NAN), 3, &CPU).is_err());
    let drawn: Vec<f64> = numbers(Tensor::randn(lo, up, 20_000, &CPU)?)?;
    assert!(drawn.iter().all(|v| v.abs() < 8.));
    let square = drawn.iter().map(|v| v * v).sum::<f64>() / drawn.len() as f64;
    assert!((square - 1.).abs() < 0.06, "{:?}: {square}", T::DTYPE);
    assert!(Tensor::randn(lo, T::from_f64(-1.), 3, &CPU).is_err());
    Ok(())
}

#[test]
fn random_numbers_below_their_bound() -> Result<()> {
    below_the_bound::<bf16>()?;
    below_the_bound::<f16>()?;
    below_the_bound::<f32>()?;
    below_the_bound::<f64>()?;
    below_the_bound::<F8E4M3>()
}

/// Of blocks with several scales, then of blocks with one.
const QUANTIZED: [GgmlDType; 11] = {
    use GgmlDType::*;
    [Q2K, Q3K, Q4K, Q5K, Q6K, Q8K, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0]
};

#[test]
fn quantizing_blocks_of_one_value() -> Result<()> {
    for dtype in QUANTIZED {
        for value in [1f32, -1., 0., 0.05, -300.] {
            let x = Tensor::full(value, 512, &CPU)?;
            let back = QTensor::quantize(&x, dtype)?
                .dequantize(&CPU)?
                .to_vec1::<f32>()?;
            let far = back.iter().map(|v| (v - value).abs()).fold(0f32, f32::max);
            assert!(far <= value.abs() * 0.01, "{dtype:?} of {value}: {far}");
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1f32; 256];
            values[100] = bad;
            assert!(QTensor::quantize(&Tensor::new(values, &CPU)?, dtype).is_err());
        }
        // The second half of a storage.
        let view = Tensor::arange(0f32, 512., &CPU)?.narrow(0, 256, 256)?;
        let back = QTensor::quantize(&view, dtype)?
            .dequantize(&CPU)?
            .to_vec1::<f32>()?;
        assert!((back[0] - 256.).abs() < 80., "{dtype:?}: {}", back[0]);
    }
    Ok(())
}

#[test]
fn importance_of_zero() -> Result<()> {
    let x = Tensor::full(1f32, (2, 256), &CPU)?;
    for dtype in [
        GgmlDType::Q2K,
        GgmlDType::Q3K,
        GgmlDType::Q4K,
        GgmlDType::Q5K,
        GgmlDType::Q6K,
    ] {
        let mut some = vec![0f32; 256];
        some[3] = 5.;
        for importance in [vec![0f32; 256], some] {
            let back = QTensor::quantize_imatrix(&x, &importance, dtype)?.dequantize(&CPU)?;
            for v in back.flatten_all()?.to_vec1::<f32>()? {
                assert!((v - 1.).abs() < 0.01, "{dtype:?}: {v}");
            }
        }
        for bad in [f32::NAN, -1., f32::INFINITY] {
            assert!(QTensor::quantize_imatrix(&x, &[bad; 256], dtype).is_err());
        }
    }
    assert!(QTensor::quantize_imatrix(&x, &[1.; 256], GgmlDType::Q4_0).is_err());
    Ok(())
}

/// Weights 1 + small, of `k` columns and 20 rows.
fn weights(k: usize, dtype: GgmlDType) -> Result<(QMatMul, Vec<f64>)> {
    let w: Vec<f32> = (0..20 * k)
        .map(|i| 1. + ((i * 37 % 64) as f32 - 32.) / 320.)
        .collect();
    let quantized = QTensor::quantize(&Tensor::from_vec(w, (20, k), &CPU)?, dtype)?;
    let values = quantized
        .dequantize(&CPU)?
        .to_dtype(DType::F64)?
        .flatten_all()?
        .to_vec1()?;
    Ok((QMatMul::from_qtensor(quantized)?, values))
}

#[test]
fn activations_beyond_f16() -> Result<()> {
    let k = 256;
    for dtype in QUANTIZED {
        if dtype == GgmlDType::Q8K {
            continue;
        }
        let (matmul, w) = weights(k, dtype)?;
        let spike = |at: f32| {
            (0..k)
                .map(|i| if i == 0 { at } else { 1. })
                .collect::<Vec<f32>>()
        };
        let rows = [
            vec![3000f32; k],
            vec![1e-7; k],
            vec![1e-30; k],
            vec![1e7; k],
            vec![1e30; k],
            spike(1e6),
            spike(-1e9),
            vec![1.; k],
        ];
        // One row at a time, as in decoding, and all of them.
        for together in [1, rows.len()] {
            for group in rows.chunks(together) {
                let x = Tensor::from_vec(group.concat(), (group.len(), k), &CPU)?;
                for half in [false, true] {
                    let exact = group
                        .iter()
                        .flatten()
                        .all(|v| v.abs() < 6e4 && v.abs() > 6e-5);
                    if half && !exact {
                        continue;
                    }
                    let x = if half {
                        x.to_dtype(DType::F16)?
                    } else {
                        x.clone()
                    };
                    let y = matmul.forward(&x)?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
                    for (x, y) in group.iter().zip(y) {
                        for (w, y) in w.chunks(k).zip(y) {
                            let want: f64 = w.iter().zip(x).map(|(w, x)| w * f64::from(*x)).sum();
                            if half && want.abs() > 65_504. {
                                continue;
                            }
                            let off = (f64::from(y) - want).abs() / want.abs();
                            assert!(off < 0.01, "{dtype:?} {}: {y} instead of {want}", x[0]);
                        }
                    }
                }
            }
        }
        for bad in [f32::NAN, f32::INFINITY] {
            let mut x = vec![1f32; 2 * k];
            x[5] = bad;
            let y = matmul
                .forward(&Tensor::from_vec(x, (2, k), &CPU)?)?
                .to_vec2::<f32>()?;
            assert!(y[0].iter().all(|y| y.is_nan()), "{dtype:?}");
            assert!(y[1].iter().all(|y| y.is_finite()), "{dtype:?}");
        }
    }
    Ok(())
}

/// The only output lies in the padding.
#[test]
fn gradients_of_wide_paddings() -> Result<()> {
    for stride in [10, 2] {
        let x = Var::ones((1, 1, 1, 1), DType::F32, &CPU)?;
        let kernel = Var::new(&[[[[3f32]]]], &CPU)?;
        let grads = x.conv2d(&kernel, 2, stride, 1, 1)?.sum_all()?.backward()?;
        let want = if stride == 2 { 3. } else { 0. };
        let grad = |of: &Var| {
            grads
                .get(of)
                .expect("a gradient")
                .flatten_all()?
                .to_vec1::<f32>()
        };
        assert_eq!(grad(&x)?, [want]);
        let x = Var::ones((1, 1, 1), DType::F32, &CPU)?;
        let kernel = Var::new(&[[[3f32]]], &CPU)?;
        let grads = x.conv1d(&kernel, 2, stride, 1, 1)?.sum_all()?.backward()?;
        let grad = grads.get(&x).expect("a gradient").flatten_all()?;
        assert_eq!(grad.to_vec1::<f32>()?, [want]);
    }
    Ok(())
}
