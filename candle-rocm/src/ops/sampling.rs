//! The choice of next tokens from rows of logits, on the device: what comes back is a token a row.

use crate::kernels::{kernels, Ptr};
use crate::ops::check::Op;
use crate::{Buffer, DType, Device, Family, LaunchConfig, Result, View};
pub use candle_rocm_kernels::shared::sampling::{Choice, Edit, NOTHING_LEFT, NOT_A_NUMBER};

kernels! {
    /// Changes logits.
    edit_logits = "sampling_edit" in Family::Sampling => (logits: Ptr, edits: Ptr, count: u32, vocab: u32);

    /// Masks rows.
    mask_logits = "sampling_mask" in Family::Sampling
        => (logits: Ptr, rows: Ptr, masks: Ptr, count: u32, vocab: u32);

    /// Chooses a token for each row.
    choose_tokens = "sampling_choose" in Family::Sampling
        => (logits: Ptr, choices: Ptr, tokens: Ptr, rows: u32, vocab: u32);

    /// Reports logarithms of probabilities.
    report_tokens = "sampling_report" in Family::Sampling
        => (logits: Ptr, rows: Ptr, chosen: Ptr, tokens: Ptr, values: Ptr, count: u32, top: u32, vocab: u32);
}

const OP: Op = Op("sampling");
/// Threads that share a row.
const BLOCK: u32 = 1024;

/// Changes logits in place.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for logits that are not contiguous f32 `[rows,
/// vocabulary]`, or edits outside of them.
pub fn edit(device: &Device, logits: &View, edits: &[Edit]) -> Result<()> {
    let (rows, vocab) = sizes(logits)?;
    if let Some(edit) = edits.iter().find(|e| e.row >= rows || e.token >= vocab) {
        return Err(OP.invalid(format!("{edit:?} is outside of {:?}", logits.dims)));
    }
    if edits.is_empty() {
        return Ok(());
    }
    let buffer = upload(device, edits.iter().flat_map(Edit::words))?;
    let count = edits.len();
    let (config, to) = (LaunchConfig::for_elements(count), Ptr::of(logits));
    let kernel = edit_logits::of()?;
    // SAFETY: rows and tokens of all edits were checked.
    unsafe { kernel.launch(device, config, to, Ptr::to(&buffer), count as u32, vocab) }
}

/// Leaves in row `rows[i]` the tokens whose bit is set in the `i`-th of `masks`, each of a bit for each token, lowest
/// first; the others become minus infinity.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for logits that are not contiguous f32 `[rows,
/// vocabulary]`, and masks that do not fit them.
pub fn mask(device: &Device, logits: &View, rows: &[u32], masks: &[u32]) -> Result<()> {
    let (count, vocab) = sizes(logits)?;
    let words = vocab.div_ceil(32) as usize;
    if masks.len() != rows.len() * words || rows.iter().any(|row| *row >= count) {
        return Err(OP.invalid(format!(
            "{} words of masks for rows {rows:?} of {:?}",
            masks.len(),
            logits.dims
        )));
    }
    if rows.is_empty() {
        return Ok(());
    }
    let buffer = upload(device, rows.iter().chain(masks).copied())?;
    let config = LaunchConfig::for_elements(rows.len() * vocab as usize);
    let masks = Ptr::at(&buffer, size_of_val(rows));
    // SAFETY: there is a mask for each of the rows, which were checked.
    unsafe {
        mask_logits::of()?.launch(
            device,
            config,
            Ptr::of(logits),
            Ptr::to(&buffer),
            masks,
            rows.len() as u32,
            vocab,
        )
    }
}

/// A token for each row, u32 `[rows]`, on the device; [`NOT_A_NUMBER`] or [`NOTHING_LEFT`] where there is none.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for logits that are not contiguous f32 `[rows,
/// vocabulary]`, and unless there is a choice for each row.
pub fn choose(device: &Device, logits: &View, choices: &[Choice]) -> Result<Buffer> {
    let (rows, _) = sizes(logits)?;
    if choices.len() != rows as usize {
        return Err(OP.invalid(format!("{} choices for {:?}", choices.len(), logits.dims)));
    }
    let buffer = upload(device, choices.iter().flat_map(Choice::words))?;
    choose_by(device, logits, &buffer, 0)
}

/// [`choose`] by choices that are on the device already, [`Choice::words`] of each row behind each other from
/// `byte_offset`: they may change between launches of a graph.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for logits that are not contiguous f32 `[rows,
/// vocabulary]`, and unless the buffer has a choice for each row.
pub fn choose_by(
    device: &Device,
    logits: &View,
    choices: &Buffer,
    byte_offset: usize,
) -> Result<Buffer> {
    let (rows, vocab) = sizes(logits)?;
    let bytes = rows as usize * size_of::<[u32; Choice::WORDS]>();
    if choices.len().saturating_sub(byte_offset) < bytes {
        return Err(OP.invalid(format!(
            "choices in {choices:?} from byte {byte_offset} for {:?}",
            logits.dims
        )));
    }
    let tokens = device.alloc(rows as usize * size_of::<u32>())?;
    let (choices, to) = (Ptr::at(choices, byte_offset), Ptr::to(&tokens));
    let config = block_a_row(rows);
    // SAFETY: there is a choice and room for a token for each row.
    unsafe {
        choose_tokens::of()?.launch(device, config, Ptr::of(logits), choices, to, rows, vocab)?
    };
    Ok(tokens)
}

/// Logarithms of probabilities in the rows `rows`: of the row's token among `chosen`, u32 for each row of the logits,
/// then of the `top` most likely, most likely first. Gives these tokens, u32 `[rows, top]`, and the numbers, f32
/// `[rows, top + 1]`.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for logits that are not contiguous f32 `[rows,
/// vocabulary]`, rows outside of them, and more tokens than there are.
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
        return Err(OP.invalid(format!(
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
    // SAFETY: the rows were checked; all have a chosen token, and there is room for what is asked of them.
    unsafe {
        report_tokens::of()?.launch(
            device,
            block_a_row(rows.len() as u32),
            Ptr::of(logits),
            Ptr::to(&buffer),
            Ptr::to(chosen),
            Ptr::to(&tokens),
            Ptr::to(&values),
            rows.len() as u32,
            top as u32,
            vocab,
        )?;
    }
    Ok((tokens, values))
}

/// Logarithms of the probabilities of the tokens `chosen`, f32 `[rows]`, as [`report`] gives them of all rows. `numbers`
/// are 0, 1, 2 and so on, u32, one for each row: nothing is uploaded, so it may be recorded into a graph.
///
/// # Safety
/// All of the numbers are below the number of rows when the kernel runs.
///
/// # Errors
/// [`Error::InvalidArgument`](crate::Error::InvalidArgument) for logits that are not contiguous f32 `[rows,
/// vocabulary]`, and unless there are a chosen token and a number for each row.
pub unsafe fn report_by(
    device: &Device,
    logits: &View,
    chosen: &Buffer,
    numbers: &Buffer,
) -> Result<Buffer> {
    let (rows, vocab) = sizes(logits)?;
    let bytes = rows as usize * size_of::<u32>();
    if chosen.len() < bytes || numbers.len() < bytes {
        return Err(OP.invalid(format!("{chosen:?} and {numbers:?} for {:?}", logits.dims)));
    }
    let values = device.alloc(bytes)?;
    let (numbers, to) = (Ptr::to(numbers), Ptr::to(&values));
    let config = block_a_row(rows);
    // SAFETY: all rows have a chosen token and room for a value; the numbers are rows, as the caller promises. No most
    // likely tokens are asked for, so nothing is written in their place.
    unsafe {
        report_tokens::of()?.launch(
            device,
            config,
            Ptr::of(logits),
            numbers,
            Ptr::to(chosen),
            to,
            to,
            rows,
            0,
            vocab,
        )?;
    }
    Ok(values)
}

fn block_a_row(rows: u32) -> LaunchConfig {
    LaunchConfig {
        grid: rows,
        block: BLOCK,
        shared_bytes: 0,
    }
}

fn upload(device: &Device, words: impl Iterator<Item = u32>) -> Result<Buffer> {
    let bytes: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    device.upload(&bytes)
}

/// Rows and vocabulary.
fn sizes(logits: &View) -> Result<(u32, u32)> {
    logits.check(OP.0)?;
    if logits.dtype != DType::F32 {
        return Err(OP.unsupported(logits.dtype));
    }
    match *logits.dims {
        [rows, vocab]
            if logits.is_contiguous()
                && rows <= i32::MAX as usize
                && vocab <= i32::MAX as usize =>
        {
            Ok((rows as u32, vocab as u32))
        }
        _ => Err(OP.invalid(format!(
            "logits {:?} with strides {:?} are not rows behind each other",
            logits.dims, logits.strides
        ))),
    }
}
