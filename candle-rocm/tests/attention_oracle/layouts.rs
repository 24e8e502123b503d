//! A case on the device: sequences of one length, behind each other, or with keys in blocks.

use super::{run, Case, Extras, Outcome, Values};
use crate::common::{Element, HostTensor};
use candle_rocm::ops::attention::{Attention, Lengths, Tier, SCORE_BYTES};
use candle_rocm::Device;

/// Runs sequences of one length.
pub fn fixed<T: Element>(
    device: &Device,
    case: &Case,
    values: &Values<T>,
    tier: Tier,
    score_bytes: usize,
) -> Outcome {
    let batch = case.rows.len();
    let tensor = |values: &[T], length: usize, heads, width| {
        HostTensor::contiguous(values.to_vec(), &[batch, length, heads, width])
    };
    let q = tensor(&values.q, case.rows[0], case.heads, case.width);
    let k = tensor(&values.k, case.keys[0], case.kv_heads, case.width);
    let v = tensor(&values.v, case.keys[0], case.kv_heads, case.v_width);
    let mask_dims = [batch, case.heads, case.rows[0], case.keys[0]];
    let mask = (case.mask).then(|| HostTensor::contiguous(values.mask.clone(), &mask_dims));
    let extras = Extras::new(case);
    let (qb, kb, vb) = (q.upload(device), k.upload(device), v.upload(device));
    let (sb, pb) = (extras.slopes.upload(device), extras.prefix.upload(device));
    let ib = extras.sinks.upload(device);
    let mb = mask.as_ref().map(|mask| mask.upload(device));
    let mut problem = Attention::new(q.view(&qb), k.view(&kb), v.view(&vb), case.scale);
    problem.alibi = case.alibi.then(|| extras.slopes.view(&sb));
    problem.sinks = case.sinks.then(|| extras.sinks.view(&ib));
    problem.prefix = (!case.prefix.is_empty()).then(|| extras.prefix.view(&pb));
    problem.mask = mask
        .as_ref()
        .zip(mb.as_ref())
        .map(|(mask, buffer)| mask.view(buffer));
    run(device, case, tier, score_bytes, problem, Lengths::Fixed)
}

/// Runs sequences behind each other.
pub fn packed<T: Element>(device: &Device, case: &Case, values: &Values<T>, tier: Tier) -> Outcome {
    let q = HostTensor::contiguous(values.q.clone(), &case.q_dims());
    let k = HostTensor::contiguous(values.k.clone(), &case.k_dims());
    let v = HostTensor::contiguous(values.v.clone(), &case.v_dims());
    let extras = Extras::new(case);
    let (qb, kb, vb) = (q.upload(device), k.upload(device), v.upload(device));
    let (sb, rb, cb) = (
        extras.slopes.upload(device),
        extras.cu_rows.upload(device),
        extras.cu_keys.upload(device),
    );
    let ib = extras.sinks.upload(device);
    let lengths = Lengths::Packed {
        cu_rows: extras.cu_rows.view(&rb),
        cu_keys: extras.cu_keys.view(&cb),
        max_rows: *case.rows.iter().max().unwrap(),
        max_keys: *case.keys.iter().max().unwrap(),
    };
    let mut problem = Attention::new(q.view(&qb), k.view(&kb), v.view(&vb), case.scale);
    problem.alibi = case.alibi.then(|| extras.slopes.view(&sb));
    problem.sinks = case.sinks.then(|| extras.sinks.view(&ib));
    run(device, case, tier, SCORE_BYTES, problem, lengths)
}

/// Runs sequences whose keys lie in blocks, numbered from the last to the first; what lies behind the last key of a
/// sequence is NaN.
pub fn paged<T: Element>(
    device: &Device,
    case: &Case,
    values: &Values<T>,
    tier: Tier,
    block_size: usize,
) -> Outcome {
    let batch = case.rows.len();
    let max_keys = *case.keys.iter().max().unwrap();
    let width = max_keys.div_ceil(block_size);
    let blocks = batch * width;
    let cache = |values: &[T], size: usize| {
        let mut values = values.chunks_exact(case.kv_heads * size);
        let mut cache = vec![T::from_f64(f64::NAN); blocks * block_size * case.kv_heads * size];
        for (b, &keys) in case.keys.iter().enumerate() {
            for key in 0..keys {
                let block = blocks - 1 - (b * width + key / block_size);
                let at = (block * block_size + key % block_size) * case.kv_heads * size;
                cache[at..][..case.kv_heads * size].copy_from_slice(values.next().unwrap());
            }
        }
        HostTensor::contiguous(cache, &[blocks, block_size, case.kv_heads, size])
    };
    let q = HostTensor::contiguous(values.q.clone(), &case.q_dims());
    let (k, v) = (cache(&values.k, case.width), cache(&values.v, case.v_width));
    let numbers = (0..blocks as u32).rev().collect();
    let table = HostTensor::contiguous(numbers, &[batch, width]);
    let extras = Extras::new(case);
    let (qb, kb, vb) = (q.upload(device), k.upload(device), v.upload(device));
    let (tb, rb, cb) = (
        table.upload(device),
        extras.cu_rows.upload(device),
        extras.cu_keys.upload(device),
    );
    let lengths = Lengths::Paged {
        cu_rows: extras.cu_rows.view(&rb),
        cu_keys: extras.cu_keys.view(&cb),
        max_rows: *case.rows.iter().max().unwrap(),
        max_keys,
        blocks: table.view(&tb),
    };
    let ib = extras.sinks.upload(device);
    let mut problem = Attention::new(q.view(&qb), k.view(&kb), v.view(&vb), case.scale);
    problem.sinks = case.sinks.then(|| extras.sinks.view(&ib));
    run(device, case, tier, SCORE_BYTES, problem, lengths)
}
