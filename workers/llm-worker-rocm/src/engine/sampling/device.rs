//! The choice on an AMD GPU: the chosen tokens come back, and the probabilities that are asked for.

use super::chain::xtc_now;
use super::chosen::{not_a_number, nothing_left, Chosen};
use super::host;
use super::report::Given;
use super::request::SamplingRequest;
use crate::engine::api::{GeneratedToken, PromptToken, SamplingOptions};
use candle_core::rocm_backend::candle_rocm::ops::sampling::{self, Choice, Edit};
use candle_core::rocm_backend::candle_rocm::{Buffer, Device};
use candle_core::{bail, Result, RocmStorage, Storage, Tensor};
use std::collections::HashMap;
use std::ops::Deref;

const OP: &str = "sampling";

fn rocm(storage: &Storage) -> Result<&RocmStorage> {
    match storage {
        Storage::Rocm(storage) => Ok(storage),
        _ => bail!("{OP}: the logits are not on a ROCm device"),
    }
}

/// See [`super::choose`]. May change `logits`. Rows that ask for what the device does not do are brought to the host.
pub(super) fn choose(logits: &Tensor, requests: &[SamplingRequest]) -> Result<Vec<Chosen>> {
    let of_host = |on_host: bool| {
        let rows = (0u32..).zip(requests);
        rows.filter(move |(_, request)| request.needs_host() == on_host)
    };
    let rows: Vec<u32> = of_host(true).map(|(row, _)| row).collect();
    if rows.is_empty() {
        let requests: Vec<&SamplingRequest> = requests.iter().collect();
        return choose_there(logits, &requests);
    }
    let part = |rows: &[u32]| logits.index_select(&Tensor::new(rows, logits.device())?, 0);
    let (others, there): (Vec<u32>, Vec<&SamplingRequest>) = of_host(false).unzip();
    let there = match others.is_empty() {
        true => Vec::new(),
        false => choose_there(&part(&others)?, &there)?,
    };
    let here = part(&rows)?.to_vec2::<f32>()?;
    let (mut here, mut there) = (here.into_iter(), there.into_iter());
    let all = requests.iter().map(|request| {
        let chosen = match request.needs_host() {
            true => here.next().map(|row| host::choose(&row, request)),
            false => there.next(),
        };
        chosen.unwrap_or_else(|| Err(not_a_number()))
    });
    Ok(all.collect())
}

fn choose_there(logits: &Tensor, requests: &[&SamplingRequest]) -> Result<Vec<Chosen>> {
    let vocab = logits.dim(1)?;
    let logits = logits.contiguous()?;
    let edits = edits(requests);
    let (masked, masks) = masks(requests, vocab);
    let reported: Vec<u32> = (0..)
        .zip(requests)
        .filter(|(_, request)| request.top_logprobs.is_some())
        .map(|(row, _)| row)
        .collect();
    let changed = !edits.is_empty() || !masked.is_empty();
    let adjusted = if changed && !reported.is_empty() {
        logits.copy()?
    } else {
        logits.clone()
    };
    let (storage, layout) = adjusted.storage_and_layout();
    let storage = rocm(storage.deref())?;
    let view = storage.view(layout, OP)?;
    let device = storage.buffer().device();
    sampling::edit(device, &view, &edits)?;
    sampling::mask(device, &view, &masked, &masks)?;
    let choices: Vec<Choice> = requests
        .iter()
        .map(|request| choice(request.options, request.position))
        .collect();
    let tokens = sampling::choose(device, &view, &choices)?;
    let mut chosen: Vec<Chosen> = words(device, &tokens)?.into_iter().map(chosen).collect();
    if !reported.is_empty() {
        report(&logits, requests, &tokens, &reported, &mut chosen)?;
    }
    Ok(chosen)
}

/// Bias and penalties, one edit for a row and token.
fn edits(requests: &[&SamplingRequest]) -> Vec<Edit> {
    let mut edits = Vec::new();
    for (row, request) in (0..).zip(requests) {
        let mut of_row: HashMap<u32, Edit> = HashMap::new();
        let plain = |token| Edit {
            row,
            token,
            bias: 0.0,
            penalty: 1.0,
            subtract: 0.0,
        };
        for (token, bias) in &request.options.logit_bias {
            of_row.entry(*token).or_insert(plain(*token)).bias = *bias;
        }
        for (token, of_token) in request.edits(&request.samplers().0) {
            let edit = of_row.entry(token).or_insert(plain(token));
            (edit.penalty, edit.subtract) = (of_token.factor, of_token.less);
        }
        edits.extend(of_row.into_values());
    }
    edits
}

/// Rows with a constraint, and their masks behind each other, each as long as the vocabulary asks for.
fn masks(requests: &[&SamplingRequest], vocab: usize) -> (Vec<u32>, Vec<u32>) {
    let words = vocab.div_ceil(32);
    let (mut rows, mut masks) = (Vec::new(), Vec::new());
    for (row, request) in (0..).zip(requests) {
        if let Some(mask) = &request.mask {
            rows.push(row);
            masks.extend(mask.iter().copied().chain(std::iter::repeat(0)).take(words));
        }
    }
    (rows, masks)
}

/// What the device's number of a token means.
pub(super) fn chosen(token: u32) -> Chosen {
    match token {
        sampling::NOT_A_NUMBER => Err(not_a_number()),
        sampling::NOTHING_LEFT => Err(nothing_left()),
        token => Ok(GeneratedToken {
            token,
            logprob: None,
            top: Vec::new(),
            share: None,
        }),
    }
}

/// The token behind `position` others, as kernels are told.
pub(in crate::engine) fn choice(options: &SamplingOptions, position: u32) -> Choice {
    Choice {
        temperature: options.temperature,
        top_k: options
            .top_k
            .map_or(0, |k| u32::try_from(k).unwrap_or(u32::MAX)),
        typical_p: options.typical_p.unwrap_or(1.0),
        top_p: options.top_p.unwrap_or(1.0),
        log_min_p: options.min_p.unwrap_or(0.0).ln(),
        top_n_sigma: options.top_n_sigma.unwrap_or(0.0),
        dynamic_range: options.dynamic_temperature.map_or(0.0, |d| d.range),
        dynamic_exponent: options.dynamic_temperature.map_or(1.0, |d| d.exponent),
        xtc_threshold: xtc_now(options, position).unwrap_or(1.0),
        seed: [options.seed as u32, (options.seed >> 32) as u32],
        position,
    }
}

/// Adds the probabilities that were asked for.
fn report(
    logits: &Tensor,
    requests: &[&SamplingRequest],
    tokens: &Buffer,
    rows: &[u32],
    chosen: &mut [Chosen],
) -> Result<()> {
    let most = rows
        .iter()
        .filter_map(|row| requests[*row as usize].top_logprobs)
        .max()
        .unwrap_or(0);
    let top = most.min(logits.dim(1)?);
    let (storage, layout) = logits.storage_and_layout();
    let storage = rocm(storage.deref())?;
    let device = storage.buffer().device();
    let view = storage.view(layout, OP)?;
    let (likely, values) = sampling::report(device, &view, tokens, rows, top)?;
    let (likely, values) = (words(device, &likely)?, words(device, &values)?);
    for (i, row) in rows.iter().enumerate() {
        let Ok(token) = &mut chosen[*row as usize] else {
            continue;
        };
        let count = requests[*row as usize].top_logprobs.unwrap_or(0).min(top);
        let values = &values[i * (top + 1)..(i + 1) * (top + 1)];
        token.logprob = Some(f32::from_bits(values[0]));
        token.top = likely[i * top..i * top + count]
            .iter()
            .zip(&values[1..])
            .map(|(token, value)| (*token, f32::from_bits(*value)))
            .collect();
    }
    Ok(())
}

/// The probabilities of given tokens, see [`super::report`].
pub(super) fn report_given(logits: &Tensor, given: &[Given]) -> Result<Vec<PromptToken>> {
    let logits = logits.contiguous()?;
    let (count, vocab) = logits.dims2()?;
    let top = given.iter().map(|given| given.top).max().unwrap_or(0);
    let top = top.min(vocab);
    let mut tokens = vec![0u32; count];
    for given in given {
        tokens[given.row] = given.token;
    }
    let rows: Vec<u32> = given.iter().map(|given| given.row as u32).collect();
    let tokens = Tensor::new(tokens.as_slice(), logits.device())?;
    let (tokens, _) = tokens.storage_and_layout();
    let (storage, layout) = logits.storage_and_layout();
    let storage = rocm(storage.deref())?;
    let device = storage.buffer().device();
    let view = storage.view(layout, OP)?;
    let tokens = rocm(tokens.deref())?.buffer();
    let (likely, values) = sampling::report(device, &view, tokens, &rows, top)?;
    let (likely, values) = (words(device, &likely)?, words(device, &values)?);
    let told = given.iter().enumerate().map(|(i, given)| {
        let values = &values[i * (top + 1)..(i + 1) * (top + 1)];
        let likely = likely[i * top..].iter().zip(&values[1..]);
        let likely = likely.map(|(token, value)| (*token, f32::from_bits(*value)));
        PromptToken {
            token: given.token,
            logprob: f32::from_bits(values[0]),
            top: likely.take(given.top).collect(),
        }
    });
    Ok(told.collect())
}

/// What a buffer holds.
fn words(device: &Device, buffer: &Buffer) -> Result<Vec<u32>> {
    let mut bytes = vec![0; buffer.len()];
    device.download(buffer, 0, &mut bytes)?;
    let words = bytes.chunks_exact(4);
    Ok(words
        .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect())
}
