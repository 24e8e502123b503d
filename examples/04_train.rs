//! Training: a small network learns which of two interleaved spirals a point belongs to.
//!
//!     cargo run -p examples --example 04_train

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{linear, loss, AdamW, Module, Optimizer, ParamsAdamW, VarBuilder, VarMap};

/// Points of the plane and the spiral that each is on.
fn spirals(points: usize, device: &Device) -> Result<(Tensor, Tensor)> {
    let (mut places, mut labels) = (Vec::new(), Vec::new());
    for i in 0..points {
        let t = i as f32 / points as f32;
        for label in 0..2u32 {
            let angle = t * 5. + label as f32 * std::f32::consts::PI;
            places.extend([t * angle.cos(), t * angle.sin()]);
            labels.push(label);
        }
    }
    let places = Tensor::from_vec(places, (2 * points, 2), device)?;
    Ok((places, Tensor::from_vec(labels, 2 * points, device)?))
}

fn main() -> Result<()> {
    let device = Device::rocm_if_available(0)?;
    // Random numbers are the same on every GPU.
    if device.is_rocm() {
        device.set_seed(1)?;
    }
    let (places, labels) = spirals(60, &device)?;

    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, &device);
    let layers = [
        linear(2, 32, vb.pp("first"))?,
        linear(32, 32, vb.pp("second"))?,
        linear(32, 2, vb.pp("third"))?,
    ];
    let logits = |x: &Tensor| -> Result<Tensor> {
        let hidden = layers[0].forward(x)?.tanh()?;
        layers[2].forward(&layers[1].forward(&hidden)?.tanh()?)
    };

    let parameters = ParamsAdamW {
        lr: 0.02,
        ..Default::default()
    };
    let mut optimizer = AdamW::new(variables.all_vars(), parameters)?;
    for step in 0..200 {
        let loss = loss::cross_entropy(&logits(&places)?, &labels)?;
        optimizer.backward_step(&loss)?;
        if step % 50 == 0 {
            println!("step {step}: loss {:.4}", loss.to_scalar::<f32>()?);
        }
    }

    let right = logits(&places)?
        .argmax(1)?
        .eq(&labels)?
        .to_dtype(DType::F32)?
        .mean_all()?
        .to_scalar::<f32>()?;
    println!("{:.1} % of the points are told apart", 100. * right);
    assert!(right > 0.95);
    Ok(())
}
