//! The choice of next tokens from rows of logits, on the device: what comes back is a token a row.

use crate::{Args, Buffer, DType, Device, Error, LaunchConfig, Result, View};
use candle_rocm_kernels::Family;

const OP: &str = "sampling";
/// Threads that share a row.
const BLOCK: u32 = 1024;

/// What becomes of one logit before the choice: `logit + bias`, divided by `penalty` if that is above 0 and multiplied otherwise, less `subtract`. At
/// most one for a row and token.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Edit {
    /// The row.
    pub row: u32,
    /// The token.
    pub token: u32,
    /// Added first.
    pub bias: f32,
    /// 1 is off.
    pub penalty: f32,
    /// Taken off last.
    pub subtract: f32,
}

/// How a row's token is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct Choice {
    /// 0 takes the largest logit.
    pub temperature: f32,
    /// Only so many of the largest; 0 is all.
    pub top_k: u32,
    /// Only those nearest to the expected surprise that together have this share; 1 is all.
    pub typical_p: f32,
    /// Only the largest that together have this share; 1 is all.
    pub top_p: f32,
    /// Only those whose logarithm of the probability is no further below the largest; minus infinity is all.
    pub log_min_p: f32,
    /// The low and the high word of the seed.
    pub seed: [u32; 2],
    /// Place in the random sequence.
    pub position: u32,
}

impl Choice {
    /// Words of a choice in device memory.
    pub const WORDS: usize = 8;

    /// The choice as it lies in device memory.
    pub fn words(&self) -> [u32; Self::WORDS] {
        let [temperature, typical_p, top_p, log_min_p] =
            [self.temperature, self.typical_p, self.top_p, self.log_min_p].map(f32::to_bits);
        [
            temperature,
            self.top_k,
            typical_p,
            top_p,
            log_min_p,
            self.seed[0],
            self.seed[1],
            self.position,
        ]
    }
}

/// What [`choose`] gives in place of a token if a row has NaN.
pub const NOT_A_NUMBER: u32 = u32::MAX;
/// What [`choose`] gives in place of a token if all of a row is minus infinity.
pub const NOTHING_LEFT: u32 = u32::MAX - 1;

/// Changes logits in place.
///
/// # Errors
/// [`Error::InvalidArgument`] for logits that are not contiguous f32 `[rows, vocabulary]`, or edits outside of them.
pub fn edit(device: &Device, logits: &View, edits: &[Edit]) -> Result<()> {
    let (rows, vocab) = sizes(logits)?;
    if let Some(edit) = edits.iter().find(|e| e.row >= rows || e.token >= vocab) {
        return Err(invalid(format!("{edit:?} is outside of {:?}", logits.dims)));
    }
    if edits.is_empty() {
        return Ok(());
    }
    let words = edits.iter().flat_map(|e| {
        let floats = [e.bias, e.penalty, e.subtract].map(f32::to_bits);
        [e.row, e.token, floats[0], floats[1], floats[2]]
    });
    let buffer = upload(device, words)?;
    let count = edits.len();
    let args = at(logits).ptr(&buffer, 0).u32(count as u32).u32(vocab);
    device
        .kernel(Family::Sampling, "sampling_edit")?
        .launch(LaunchConfig::for_elements(count), &args)
}

/// Leaves in row `rows[i]` the tokens whose bit is set in the `i`-th of `masks`, each of a bit for each token, lowest first; the others become minus infinity.
///
/// # Errors
/// [`Error::InvalidArgument`] for logits that are not contiguous f32 `[rows, vocabulary]`, and masks that do not fit them.
pub fn mask(device: &Device, logits: &View, rows: &[u32], masks: &[u32]) -> Result<()> {
    let (count, vocab) = sizes(logits)?;
    let words = vocab.div_ceil(32) as usize;
    if masks.len() != rows.len() * words || rows.iter().any(|row| *row >= count) {
        return Err(invalid(format!(
            "{} words of masks for rows {rows:?} of {:?}",
            masks.len(),
            logits.dims
        )));
    }
    if rows.is_empty() {
        return Ok(());
    }
    let buffer = upload(device, rows.iter().chain(masks).copied())?;
    let args = at(logits)
        .ptr(&buffer, 0)
        .ptr(&buffer, size_of_val(rows))
        .u32(rows.len() as u32)
        .u32(vocab);
    device.kernel(Family::Sampling, "sampling_mask")?.launch(
        LaunchConfig::for_elements(rows.len() * vocab as usize),
        &args,
    )
}

/// A token for each row, u32 `[rows]`, on the device; [`NOT_A_NUMBER`] or [`NOTHING_LEFT`] where there is none.
///
/// # Errors
/// [`Error::InvalidArgument`] for logits that are not contiguous f32 `[rows, vocabulary]`, and unless there is a choice for each row.
pub fn choose(device: &Device, logits: &View, choices: &[Choice]) -> Result<Buffer> {
    let (rows, _) = sizes(logits)?;
    if choices.len() != rows as usize {
        return Err(invalid(format!(
            "{} choices for {:?}",
            choices.len(),
            logits.dims
        )));
    }
    let buffer = upload(device, choices.iter().flat_map(Choice::words))?;
    choose_by(device, logits, &buffer, 0)
}

/// [`choose`] by choices that are on the device already, [`Choice::words`] of each row behind each other from `byte_offset`: they may change
/// between launches of a graph.
///
/// # Errors
/// [`Error::InvalidArgument`] for logits that are not contiguous f32 `[rows, vocabulary]`, and unless the buffer has a choice for each row.
pub fn choose_by(
    device: &Device,
    logits: &View,
    choices: &Buffer,
    byte_offset: usize,
) -> Result<Buffer> {
    let (rows, vocab) = sizes(logits)?;
    let bytes = rows as usize * size_of::<[u32; Choice::WORDS]>();
    if choices.len().saturating_sub(byte_offset) < bytes {
        return Err(invalid(format!(
            "choices in {choices:?} from byte {byte_offset} for {:?}",
            logits.dims
        )));
    }
    let tokens = device.alloc(rows as usize * size_of::<u32>())?;
    let args = at(logits)
        .ptr(choices, byte_offset)
        .ptr(&tokens, 0)
        .u32(rows)
        .u32(vocab);
    device
        .kernel(Family::Sampling, "sampling_choose")?
        .launch(block_a_row(rows), &args)?;
    Ok(tokens)
}

/// Logarithms of probabilities in the rows `rows`: of the row's token among `chosen`, u32 for each row of the logits, then of the `top` most likely, most likely first. Gives
/// these tokens, u32 `[rows, top]`, and the numbers, f32 `[rows, top + 1]`.
///
/// # Errors
/// [`Error::InvalidArgument`] for logits that are not contiguous f32 `[rows, vocabulary]`, rows outside of them, and more tokens than there are.
pub fn report(
    device: &Device,
    logits: &View,
    chosen: &Buffer,
    rows: &[u32],
    top: usize,
) -> Result<(Buffer, Buffer)> {
    let (count, vocab) = sizes(logits)?;
    let fits = chosen.len() >= count as usize * size_of::<u32>()
        && rows.iter().all(|row| *row < count)
        && top <= vocab as usize;
    if !fits {
        return Err(invalid(format!(
            "rows {rows:?} and the {top} most likely tokens of {:?}",
            logits.dims
        )));
    }
    let tokens = device.alloc(rows.len() * top * size_of::<u32>())?;
    let values = device.alloc(rows.len() * (top + 1) * size_of::<f32>())?;
    if rows.is_empty() {
        return Ok((tokens, values));
    }
    let buffer = upload(device, rows.iter().copied())?;
    let args = at(logits)
        .ptr(&buffer, 0)
        .ptr(chosen, 0)
        .ptr(&tokens, 0)
        .ptr(&values, 0)
        .u32(rows.len() as u32)
        .u32(top as u32)
        .u32(vocab);
    device
        .kernel(Family::Sampling, "sampling_report")?
        .launch(block_a_row(rows.len() as u32), &args)?;
    Ok((tokens, values))
}

fn block_a_row(rows: u32) -> LaunchConfig {
    LaunchConfig {
        grid: rows,
        block: BLOCK,
        shared_bytes: 0,
    }
}

fn at(logits: &View) -> Args {
    Args::new().ptr(logits.buffer, logits.offset * size_of::<f32>())
}

fn upload(device: &Device, words: impl Iterator<Item = u32>) -> Result<Buffer> {
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    device.upload(&bytes)
}

/// Rows and vocabulary.
fn sizes(logits: &View) -> Result<(u32, u32)> {
    logits.check(OP)?;
    if logits.dtype != DType::F32 {
        return Err(Error::UnsupportedDType {
            op: OP,
            dtype: logits.dtype,
        });
    }
    match *logits.dims {
        [rows, vocab]
            if logits.is_contiguous()
                && rows <= i32::MAX as usize
                && vocab <= i32::MAX as usize =>
        {
            Ok((rows as u32, vocab as u32))
        }
        _ => Err(invalid(format!(
            "logits {:?} with strides {:?} are not rows behind each other",
            logits.dims, logits.strides
        ))),
    }
}

fn invalid(reason: String) -> Error {
    Error::InvalidArgument { op: OP, reason }
}
