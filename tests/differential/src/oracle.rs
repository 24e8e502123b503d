//! What functions of a row of numbers are, in f64 and in plain loops: an oracle that shares no code with candle.
//!
//! Where NaN or nothing is among the numbers, PyTorch's rules hold: NaN is the greatest of all and the least of all, and
//! of equals the first is chosen.

/// A sum without the rounding errors of a plain one (Neumaier 1974).
#[derive(Default)]
struct Sum {
    sum: f64,
    lost: f64,
}

impl Sum {
    fn add(&mut self, x: f64) {
        let next = self.sum + x;
        self.lost += match self.sum.abs() >= x.abs() {
            true => (self.sum - next) + x,
            false => (x - next) + self.sum,
        };
        self.sum = next;
    }

    fn value(&self) -> f64 {
        // What was lost of infinities is not a number.
        match self.sum.is_finite() {
            true => self.sum + self.lost,
            false => self.sum,
        }
    }
}

/// The sum.
pub fn sum(row: &[f64]) -> f64 {
    let mut all = Sum::default();
    row.iter().for_each(|x| all.add(*x));
    all.value()
}

/// Sum over number.
pub fn mean(row: &[f64]) -> f64 {
    sum(row) / row.len() as f64
}

/// Sum of squared distances from the mean over one less than their number.
pub fn var(row: &[f64]) -> f64 {
    let mean = mean(row);
    let squares: Vec<f64> = row.iter().map(|x| (x - mean) * (x - mean)).collect();
    sum(&squares) / (row.len() as f64 - 1.)
}

/// Root of the sum of squares.
pub fn norm(row: &[f64]) -> f64 {
    let squares: Vec<f64> = row.iter().map(|x| x * x).collect();
    sum(&squares).sqrt()
}

/// Place of the number that is chosen over all before it and before none behind it.
fn chosen(row: &[f64], better: impl Fn(f64, f64) -> bool) -> usize {
    let mut best = 0;
    for (i, &x) in row.iter().enumerate() {
        let known = row[best];
        if !known.is_nan() && (x.is_nan() || better(x, known)) {
            best = i;
        }
    }
    best
}

/// Place of the greatest.
pub fn argmax(row: &[f64]) -> usize {
    chosen(row, |x, known| x > known)
}

/// Place of the least.
pub fn argmin(row: &[f64]) -> usize {
    chosen(row, |x, known| x < known)
}

/// The greatest.
pub fn max(row: &[f64]) -> f64 {
    row[argmax(row)]
}

/// The least.
pub fn min(row: &[f64]) -> f64 {
    row[argmin(row)]
}

/// Logarithm of the sum of exponentials.
pub fn log_sum_exp(row: &[f64]) -> f64 {
    let most = max(row);
    if !most.is_finite() {
        return most;
    }
    let terms: Vec<f64> = row.iter().map(|x| (x - most).exp()).collect();
    most + sum(&terms).ln()
}

/// Exponentials over their sum.
pub fn softmax(row: &[f64]) -> Vec<f64> {
    let most = max(row);
    let terms: Vec<f64> = row.iter().map(|x| (x - most).exp()).collect();
    let all = sum(&terms);
    terms.into_iter().map(|x| x / all).collect()
}

/// Logarithm of the softmax.
pub fn log_softmax(row: &[f64]) -> Vec<f64> {
    let most = max(row);
    let terms: Vec<f64> = row.iter().map(|x| (x - most).exp()).collect();
    let all = sum(&terms).ln();
    row.iter().map(|x| x - most - all).collect()
}

/// Sums of each number and all before it.
pub fn cumsum(row: &[f64]) -> Vec<f64> {
    let mut all = Sum::default();
    let next = |x: &f64| {
        all.add(*x);
        all.value()
    };
    row.iter().map(next).collect()
}

/// Over the root of the mean square.
pub fn rms_norm(row: &[f64], eps: f64) -> Vec<f64> {
    let squares: Vec<f64> = row.iter().map(|x| x * x).collect();
    let root = (mean(&squares) + eps).sqrt();
    row.iter().map(|x| x / root).collect()
}

/// Distance from the mean over the standard deviation.
pub fn layer_norm(row: &[f64], eps: f64) -> Vec<f64> {
    let middle = mean(row);
    let squares: Vec<f64> = row.iter().map(|x| (x - middle) * (x - middle)).collect();
    let root = (mean(&squares) + eps).sqrt();
    row.iter().map(|x| (x - middle) / root).collect()
}

/// From the least to the greatest.
pub fn sorted(row: &[f64]) -> Vec<f64> {
    let mut row = row.to_vec();
    row.sort_by(|a, b| match (a.is_nan(), b.is_nan()) {
        (true, true) => std::cmp::Ordering::Equal,
        (true, false) => std::cmp::Ordering::Greater,
        (false, true) => std::cmp::Ordering::Less,
        // Zeros of both signs are equal.
        (false, false) => a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal),
    });
    row
}

/// The greater of two.
pub fn maximum(a: f64, b: f64) -> f64 {
    max(&[a, b])
}

/// The lesser of two.
pub fn minimum(a: f64, b: f64) -> f64 {
    min(&[a, b])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_chosen_wherever_it_stands() {
        for place in 0..4 {
            let mut row = [3., -1., 7., 2.];
            row[place] = f64::NAN;
            assert_eq!((argmax(&row), argmin(&row)), (place, place));
            assert!(max(&row).is_nan() && min(&row).is_nan());
            assert!(sorted(&row)[3].is_nan() && !sorted(&row)[2].is_nan());
        }
        assert_eq!((argmax(&[1., 3., 3.]), argmin(&[2., 1., 1.])), (1, 1));
    }

    #[test]
    fn sums_lose_nothing() {
        assert_eq!(sum(&[1e100, 1., -1e100]), 1.);
        assert_eq!(sum(&[f64::INFINITY, 1.]), f64::INFINITY);
        assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY]).is_nan());
        assert_eq!(mean(&[0.1; 10]), 0.1);
        assert_eq!(var(&[1., 2., 3., 4.]), 5. / 3.);
        assert_eq!(norm(&[3., 4.]), 5.);
    }

    #[test]
    fn exponentials_of_extremes() {
        let inf = f64::INFINITY;
        assert_eq!(log_sum_exp(&[-inf, -inf]), -inf);
        assert_eq!(log_sum_exp(&[inf, 0.]), inf);
        assert!((log_sum_exp(&[1000., 1000.]) - 1000. - 2f64.ln()).abs() < 1e-12);
        assert_eq!(softmax(&[-inf, 0., -inf]), [0., 1., 0.]);
        assert!(softmax(&[-inf, -inf]).iter().all(|x| x.is_nan()));
        assert_eq!(log_softmax(&[0., -inf]), [0., -inf]);
        assert_eq!(cumsum(&[1., inf, 2.]), [1., inf, inf]);
        assert_eq!(rms_norm(&[3., 3.], 0.), [1., 1.]);
        assert_eq!(layer_norm(&[1., 3.], 0.), [-1., 1.]);
    }
}
