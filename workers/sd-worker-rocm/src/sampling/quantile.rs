//! Quantiles, which are found on the host.

use candle_core::{Result, Tensor, D};

/// The quantile, 0 to 1, of each row of the last dimension, which is kept as 1. Between two values it is interpolated.
pub(super) fn quantiles(x: &Tensor, quantile: f64) -> Result<Tensor> {
    let mut shape = x.dims().to_vec();
    let count = x.dim(D::Minus1)?;
    let values = x.flatten_all()?.to_vec1::<f32>()?;
    let rows = values.chunks_exact(count.max(1)).map(|row| {
        let mut row = row.to_vec();
        row.sort_by(f32::total_cmp);
        let place = quantile * (count - 1) as f64;
        let (low, high) = (row[place.floor() as usize], row[place.ceil() as usize]);
        (f64::from(low) + place.fract() * f64::from(high - low)) as f32
    });
    let rows: Vec<f32> = rows.collect();
    shape.pop();
    shape.push(1);
    Tensor::from_vec(rows, shape, x.device())
}
