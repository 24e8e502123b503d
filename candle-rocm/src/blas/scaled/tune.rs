//! Whether hipBLASLt or our own kernels multiply f8e4m3 faster, measured on the GPU at hand.

use super::measured::{Class, Measured};
use super::problem::Problem;
use super::session::{Refusal, Session};
use super::{compare, Library, Size};
use crate::config::ScaledMultiplier;
use crate::measure::{fastest, once};
use crate::ops::cast::cast;
use crate::ops::rand::{normal, uniform};
use crate::ops::scaled::{scaled_matmul, Scales};
use crate::sync::lock;
use crate::verify::compare_with_own;
use crate::{Buffer, DType, Device, Generation, Result, View};
use std::time::Duration;

/// The dtype of the results that are measured.
const TO: DType = DType::BF16;

/// A call that takes so many times as long as our own kernels is measured no more.
const TOO_SLOW: u32 = 4;

/// Rows by which a size is measured: hipBLASLt is asked for multiples of 16 only, so that there are no few.
fn rows(size: Size) -> Option<usize> {
    match size {
        Size::Few => None,
        Size::Narrow => Some(64),
        Size::Wide => Some(512),
    }
}

/// One comparison.
#[derive(Clone, Debug)]
pub struct ScaledTiming {
    /// What it stands for: scales of tensors or rows, and the less of rows and columns.
    pub class: String,
    /// By our own kernels.
    pub own: Duration,
    /// By hipBLASLt, or why it does not compute such products.
    pub hipblaslt: std::result::Result<Duration, String>,
    /// Who multiplies such products from now on.
    pub taken: ScaledMultiplier,
}

/// Measures products of f8e4m3 with a matrix of `(inner dimension, columns)` and remembers for which hipBLASLt is the
/// faster, for this process at once and for later ones if there is a cache on disk. Nothing is measured without it, and
/// on gfx12, where its kernels can read past the end of their operands
/// (<https://github.com/ROCm/rocm-libraries/issues/7992>).
///
/// hipBLASLt may end the process at a product that it has no kernel for. It is written down before that such products are
/// our own kernels', so that this happens once.
///
/// # Errors
/// [`Error::Cache`](crate::Error::Cache) if the result cannot be written, and the device's.
pub fn tune_scaled(device: &Device, (k, n): (usize, usize)) -> Result<Vec<ScaledTiming>> {
    let mut timings = Vec::new();
    if device.properties().arch.generation() == Generation::Rdna4 {
        return Ok(timings);
    }
    let mut connection = lock(&Library::of(device).0);
    let Ok(session) = connection.open(device) else {
        return Ok(timings);
    };
    for class in Class::all() {
        if let Some(m) = rows(class.size) {
            timings.extend(measure(device, session, class, (m, n, k))?);
        }
    }
    Ok(timings)
}

/// Forgets what was measured of a GPU.
///
/// # Errors
/// [`Error::Cache`](crate::Error::Cache) if the file cannot be removed.
pub fn forget_scaled(device: &Device) -> Result<()> {
    Measured::of(device).clear(device.gpu())
}

fn measure(
    device: &Device,
    session: &mut Session,
    class: Class,
    (m, n, k): (usize, usize, usize),
) -> Result<Option<ScaledTiming>> {
    let floats = |count| {
        let numbers = normal(device, DType::F32, count, 0.0, 1.0)?;
        cast(
            device,
            &View::contiguous(&numbers, DType::F32, &[count], &[1]),
            DType::F8E4M3,
        )
    };
    let (a, b) = (floats(m * k)?, floats(n * k)?);
    let counts = if class.by_rows { [m, n] } else { [1, 1] };
    let scales = |count| uniform(device, DType::F32, count, 0.5, 1.5);
    let (scale_a, scale_b) = (scales(counts[0])?, scales(counts[1])?);
    let dims = counts.map(|count| [count]);
    let scales = |at: usize, buffer| {
        let view = View::contiguous(buffer, DType::F32, &dims[at], &[1]);
        match class.by_rows {
            true => Scales::Rows(view),
            false => Scales::Tensor(view),
        }
    };
    let (a_dims, b_dims, strides) = ([m, k], [n, k], [k, 1]);
    let a = View::contiguous(&a, DType::F8E4M3, &a_dims, &strides);
    let b = View::contiguous(&b, DType::F8E4M3, &b_dims, &strides);
    let (scale_a, scale_b) = (scales(0, &scale_a), scales(1, &scale_b));
    let Some(problem) = Problem::new(device, &a, &b, &scale_a, &scale_b, None, TO) else {
        return Ok(None);
    };
    let by_own = || scaled_matmul(device, &a, &b, &scale_a, &scale_b, None, TO);
    let own = fastest(device, || by_own().map(drop))?;

    let measured = Measured::of(device);
    let (gpu, version) = (device.gpu(), session.version());
    measured.insert(gpu, class, ScaledMultiplier::Own, version)?;
    let hipblaslt = match session.prepare(device, &problem)? {
        Err(reason) => Err(reason),
        Ok(()) => {
            let is_right = compare_with_own(device, &problem.verified_name(), || {
                compare(device, session, &problem, &by_own)
            })?;
            match is_right {
                true => time(device, own, || session.multiply(device, &problem))?,
                false => Err("it gave a wrong result when it was verified".to_string()),
            }
        }
    };
    let taken = match &hipblaslt {
        Ok(time) if *time < own => ScaledMultiplier::Hipblaslt,
        _ => ScaledMultiplier::Own,
    };
    measured.insert(gpu, class, taken, version)?;
    Ok(Some(ScaledTiming {
        class: class.to_string(),
        own,
        hipblaslt,
        taken,
    }))
}

/// The time of a product by hipBLASLt.
fn time(
    device: &Device,
    own: Duration,
    mut multiply: impl FnMut() -> Result<std::result::Result<Buffer, Refusal>>,
) -> Result<std::result::Result<Duration, String>> {
    let mut refused = None;
    let mut call = || {
        refused = multiply()?.err();
        Ok(())
    };
    // Loads the kernel.
    call()?;
    let first = once(device, &mut call)?;
    let time = match first > own.saturating_mul(TOO_SLOW) {
        true => first,
        false => fastest(device, call)?,
    };
    // What is refused once is from then on, and takes no time.
    Ok(refused.map_or(Ok(time), Err))
}
