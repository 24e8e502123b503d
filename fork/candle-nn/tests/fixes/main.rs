//! Each fault of the published crate that `patches/` mend; the published crate fails every one of these tests.

mod grads;
mod reduce;

use candle::{Device, Result, Tensor};
use candle_nn::rotary_emb::{rope, rope_i, rope_thd};

type Rope = fn(&Tensor, &Tensor, &Tensor) -> Result<Tensor>;

/// Each op with the dimension of time in its input.
const ROPES: [(&str, Rope, usize); 3] = [
    ("rope", rope, 2),
    ("rope_i", rope_i, 2),
    ("rope_thd", rope_thd, 1),
];

fn numbers(shape: &[usize], scale: f32) -> Result<Tensor> {
    let count = shape.iter().product::<usize>() as f32;
    (Tensor::arange(0f32, count, &Device::Cpu)? * scale as f64)?.reshape(shape)
}

/// Two sequences, one and several steps long, with tables of 5 steps: the same as one by one.
#[test]
fn rope_with_longer_tables() -> Result<()> {
    for (name, rope, time) in ROPES {
        for steps in [1, 3] {
            let mut shape = [2, 2, 2, 8];
            shape[time] = steps;
            let (x, cos, sin) = (
                numbers(&shape, 0.1)?,
                numbers(&[2, 5, 4], 0.3)?,
                numbers(&[2, 5, 4], 0.7)?,
            );
            let both = rope(&x, &cos, &sin)?;
            for i in 0..2 {
                let one = rope(&x.narrow(0, i, 1)?, &cos.get(i)?, &sin.get(i)?)?;
                let got = both.narrow(0, i, 1)?.flatten_all()?.to_vec1::<f32>()?;
                assert_eq!(
                    got,
                    one.flatten_all()?.to_vec1::<f32>()?,
                    "{name}, {steps} steps, sequence {i}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn rope_with_tables_that_do_not_match_is_an_error() -> Result<()> {
    for (name, rope, _) in ROPES {
        let x = numbers(&[2, 3, 3, 8], 0.1)?;
        let batched = numbers(&[2, 5, 4], 0.1)?;
        for other in [numbers(&[5, 4], 0.1)?, numbers(&[2, 4, 4], 0.1)?] {
            let error = rope(&x, &batched, &other).expect_err(name).to_string();
            assert!(error.contains("one shape"), "{error}");
        }
    }
    Ok(())
}
