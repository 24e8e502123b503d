//! Products of f8e4m3 with scales: by kernels of our own or, where that is asked for or [was found](tune_scaled) to be
//! faster, by hipBLASLt. It is never needed: what it has no solution for, gets wrong or fails at is our own kernels'.

mod measured;
mod problem;
mod session;
mod tune;

use super::measured::Size;
use crate::config::ScaledMultiplier;
use crate::ops::scaled::{self, Scales};
use crate::slots::Kept;
use crate::sync::lock;
use crate::sys::hipblaslt::HipBlasLt;
use crate::verify::{compare_with_own, difference_within, Finding};
use crate::{Buffer, DType, Device, Result, View};
use measured::{Class, Measured};
use problem::Problem;
use session::Session;
use std::sync::Mutex;
pub use tune::{forget_scaled, tune_scaled, ScaledTiming};

/// `(a · scale_a) (b · scale_b)ᵀ + bias`, as [`ops::scaled::scaled_matmul`](crate::ops::scaled::scaled_matmul) has it, by
/// whoever [is to](crate::config::Config::scaled) compute it. hipBLASLt takes products of one matrix `b` with scales of
/// both tensors or of the rows of both, and sizes that are multiples of 16, on GPUs with instructions for them.
///
/// # Errors
/// Those of [`ops::scaled::scaled_matmul`](crate::ops::scaled::scaled_matmul), and [`Error::Load`](crate::Error::Load)
/// where hipBLASLt is asked for and is not there.
pub fn scaled_matmul(
    device: &Device,
    a: &View,
    b: &View,
    scale_a: &Scales,
    scale_b: &Scales,
    bias: Option<&View>,
    to: DType,
) -> Result<Buffer> {
    let own = || scaled::scaled_matmul(device, a, b, scale_a, scale_b, bias, to);
    let forced = device.config().scaled;
    if forced == Some(ScaledMultiplier::Own) {
        return own();
    }
    if forced.is_some() {
        HipBlasLt::get()?;
    } else if !Measured::of(device).has_any(device.gpu()) {
        return own();
    }
    let Some(problem) = Problem::new(device, a, b, scale_a, scale_b, bias, to) else {
        return own();
    };
    match Library::of(device).multiply(device, &problem, forced.is_some(), &own)? {
        Some(result) => Ok(result),
        None => own(),
    }
}

/// hipBLASLt for a device: a handle is made when the first product asks for it.
#[derive(Default)]
struct Library(Mutex<Connection>);

impl Kept for Library {}

#[derive(Default)]
enum Connection {
    #[default]
    Untried,
    Unusable(String),
    Open(Session),
}

impl Connection {
    fn open(&mut self, device: &Device) -> std::result::Result<&mut Session, &str> {
        if matches!(self, Connection::Untried) {
            *self = match Session::new(device) {
                Ok(session) => Connection::Open(session),
                Err(error) => Connection::Unusable(error.to_string()),
            };
        }
        match self {
            Connection::Open(session) => Ok(session),
            Connection::Unusable(reason) => Err(reason),
            Connection::Untried => Err("not tried yet"),
        }
    }
}

impl Library {
    fn of(device: &Device) -> &Self {
        device.slot()
    }

    /// The product, if hipBLASLt is to compute it, and does: asked for, or remembered as the faster.
    fn multiply(
        &self,
        device: &Device,
        problem: &Problem,
        is_forced: bool,
        own: &dyn Fn() -> Result<Buffer>,
    ) -> Result<Option<Buffer>> {
        let mut connection = lock(&self.0);
        let is_new = matches!(*connection, Connection::Untried);
        if is_new && device.pool().is_capturing() {
            return Ok(None);
        }
        let Ok(session) = connection.open(device) else {
            return Ok(None);
        };
        let class = Class::of(problem);
        if !is_forced && !Measured::of(device).is_faster(device.gpu(), class, session.version()) {
            return Ok(None);
        }
        if session.prepare(device, problem)?.is_err() {
            return Ok(None);
        }
        let compare = || compare(device, session, problem, own);
        if !compare_with_own(device, &problem.verified_name(), compare)? {
            return Ok(None);
        }
        Ok(session.multiply(device, problem)?.ok())
    }
}

/// Compares hipBLASLt with the own kernels on the product at hand, for which it has a solution: not to compute it then is
/// as wrong.
fn compare(
    device: &Device,
    session: &mut Session,
    problem: &Problem,
    own: &dyn Fn() -> Result<Buffer>,
) -> Finding {
    let got = match session.multiply(device, problem)? {
        Ok(got) => got,
        Err(reason) => return Ok(Some(reason)),
    };
    let bytes = |buffer: &Buffer| -> Result<Vec<u8>> {
        let mut bytes = vec![0; buffer.len()];
        device.download(buffer, 0, &mut bytes)?;
        Ok(bytes)
    };
    // Products are exact and sums are in f32 on both sides: each has rounded once.
    let tolerance = match problem.to {
        DType::F32 => 1e-4,
        DType::F16 => 2e-3,
        _ => 1.6e-2,
    };
    let (got, want) = (bytes(&got)?, bytes(&own()?)?);
    Ok(difference_within(problem.to, &got, &want, tolerance))
}
