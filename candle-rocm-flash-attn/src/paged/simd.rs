//! Inner loops of attention on the CPU. Written as plain arithmetic on lanes, compiled for the vector units that a
//! machine may have; for AVX-512 in its instructions, because compilers make pairs of lanes of it.

#[cfg(target_arch = "x86_64")]
mod avx512;

/// Lanes that are summed apart: one AVX-512 register, two of AVX.
const LANES: usize = 16;

/// One query's scores, weights and sum so far: the state of an online softmax.
pub(super) struct Line<'a> {
    pub query: &'a [f32],
    pub out: &'a mut [f32],
    pub max: f32,
    pub sum: f32,
}

impl Line<'_> {
    /// What makes the result of the weighted sum; with a sink, a score that counts in the sum of the weights alone.
    pub(super) fn factor(&self, sink: Option<f32>) -> f32 {
        let Some(sink) = sink.filter(|sink| *sink != f32::NEG_INFINITY) else {
            return 1.0 / self.sum;
        };
        let max = self.max.max(sink);
        let shrink = (self.max - max).exp();
        shrink / (self.sum * shrink + (sink - max).exp())
    }
}

/// What happens to a product on its way to a score.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    pub scale: f32,
    pub softcap: Option<f32>,
}

/// Takes a few keys and values, one behind the other, into a line. `weights` has room for a number for each.
pub(super) fn attend(
    line: &mut Line,
    keys: &[f32],
    values: &[f32],
    scale: Scale,
    weights: &mut [f32],
) {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has what the function was compiled for.
            return unsafe { avx512::attend(line, keys, values, scale, weights) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has what the function was compiled for.
            return unsafe { attend_avx2(line, keys, values, scale, weights) };
        }
    }
    attend_body::<{ cfg!(target_arch = "aarch64") }>(line, keys, values, scale, weights)
}

/// The sum of products of two vectors of one length.
pub(super) fn product(a: &[f32], b: &[f32]) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: the processor has what the function was compiled for.
        return unsafe { product_avx2(a, b) };
    }
    dot::<{ cfg!(target_arch = "aarch64") }>(a, b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn product_avx2(a: &[f32], b: &[f32]) -> f32 {
    dot::<true>(a, b)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn attend_avx2(line: &mut Line, keys: &[f32], values: &[f32], scale: Scale, w: &mut [f32]) {
    attend_body::<true>(line, keys, values, scale, w)
}

#[inline(always)]
fn attend_body<const FMA: bool>(
    line: &mut Line,
    keys: &[f32],
    values: &[f32],
    scale: Scale,
    weights: &mut [f32],
) {
    let (width, v_width) = (line.query.len(), line.out.len());
    for (weight, key) in weights.iter_mut().zip(keys.chunks_exact(width)) {
        *weight = dot::<FMA>(line.query, key);
    }
    soften::<FMA>(line, scale, weights);
    for (weight, value) in weights.iter().zip(values.chunks_exact(v_width)) {
        for (out, v) in line.out.iter_mut().zip(value) {
            *out = fma::<FMA>(*weight, *v, *out);
        }
    }
}

/// Products become scores and these weights; what the line has so far is scaled to the new maximum.
#[inline(always)]
fn soften<const FMA: bool>(line: &mut Line, scale: Scale, weights: &mut [f32]) {
    let mut max = line.max;
    for weight in weights.iter_mut() {
        let mut score = *weight * scale.scale;
        if let Some(cap) = scale.softcap {
            score = cap * (score / cap).tanh();
        }
        *weight = score;
        max = if score > max { score } else { max };
    }
    if max > line.max {
        let factor = exp::<FMA>(line.max - max);
        line.sum *= factor;
        line.out.iter_mut().for_each(|x| *x *= factor);
        line.max = max;
    }
    // Only if no score is a number above minus infinity; their weights are 0 or NaN then.
    let max = if max == f32::NEG_INFINITY { 0.0 } else { max };
    for weight in weights.iter_mut() {
        *weight = exp::<FMA>(*weight - max);
    }
    for weight in weights.iter() {
        line.sum += weight;
    }
}

#[inline(always)]
fn fma<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FMA {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

#[inline(always)]
fn dot<const FMA: bool>(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a
        .remainder()
        .iter()
        .zip(b.remainder())
        .map(|(a, b)| a * b)
        .sum();
    for (a, b) in a.zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum = fma::<FMA>(*a, *b, *sum);
        }
    }
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            sums[i] += sums[i + half];
        }
        half /= 2;
    }
    sums[0] + rest
}

/// The exponential of a number that is not above 0, to about 1e-7 of it: a power of two times a polynomial.
#[inline(always)]
fn exp<const FMA: bool>(x: f32) -> f32 {
    /// Below, the result is as good as 0.
    const LEAST: f32 = -87.0;
    /// Adding and subtracting it rounds to whole numbers.
    const ROUND: f32 = 12_582_912.0;
    /// The natural logarithm of 2 in two parts, the first with few bits.
    const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];
    let zero = x < LEAST;
    let x = if zero { LEAST } else { x };
    let power = fma::<FMA>(x, std::f32::consts::LOG2_E, ROUND) - ROUND;
    let r = fma::<FMA>(power, -LN2[1], fma::<FMA>(power, -LN2[0], x));
    let mut sum = 1.0 / 720.0;
    for factor in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        sum = fma::<FMA>(sum, r, factor);
    }
    // NaN casts to 0 and stays NaN in the sum.
    let scale = f32::from_bits(((power as i32 + 127) << 23) as u32);
    if zero {
        0.0
    } else {
        sum * scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_processor_attends_alike() {
        if !is_x86_feature_detected!("avx512f") {
            eprintln!("skipped: this processor has no AVX-512");
            return;
        }
        let number = |i: usize| ((i * 7919 % 1000) as f32 - 500.0) / 400.0;
        for (width, v_width, count) in [(64, 64, 16), (40, 72, 7), (5, 200, 1), (128, 3, 34)] {
            let query: Vec<f32> = (0..width).map(number).collect();
            let keys: Vec<f32> = (0..count * width).map(|i| number(i + 1)).collect();
            let values: Vec<f32> = (0..count * v_width).map(|i| number(i + 2)).collect();
            let scale = Scale {
                scale: 0.3,
                softcap: (count == 7).then_some(5.0),
            };
            let run = |plain: bool| {
                let mut out = vec![0.5; v_width];
                let mut line = Line {
                    query: &query,
                    out: &mut out,
                    max: -0.25,
                    sum: 1.0,
                };
                let mut weights = vec![0.0; count];
                if plain {
                    attend_body::<true>(&mut line, &keys, &values, scale, &mut weights);
                } else {
                    attend(&mut line, &keys, &values, scale, &mut weights);
                }
                let state = [line.max, line.sum];
                [out, weights, state.to_vec()].concat()
            };
            for (got, want) in run(false).iter().zip(run(true)) {
                assert!(
                    (got - want).abs() <= 1e-5 * want.abs().max(1.0),
                    "{got} for {want}"
                );
            }
        }
    }

    #[test]
    fn exponentials_are_close() {
        for i in 0..8700 {
            let x = -(i as f32) / 100.0;
            let (got, want) = (exp::<false>(x), f64::from(x).exp());
            assert!(
                (f64::from(got) - want).abs() <= 3e-7 * want,
                "{x}: {got} for {want}"
            );
        }
        assert_eq!(exp::<false>(f32::NEG_INFINITY), 0.0);
        assert!(exp::<false>(f32::NAN).is_nan());
    }
}
