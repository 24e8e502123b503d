//! Convolutions through MIOpen, where it has something better than this crate's own kernels.
//!
//! Which of the two computes a convolution is decided once for each combination of shapes, options and dtype, and
//! remembered by the device. `CANDLE_ROCM_MIOPEN` says how, when a device is made:
//!
//! * `off`: own kernels.
//! * `fast` (the default): MIOpen's immediate mode, which looks into its databases and estimates; nothing is measured.
//!   The first of its solutions that compiles is taken. Passed over are its reference kernels, those that need a larger
//!   workspace than [`WORKSPACE_LIMIT_BYTES`], and whatever it ranks behind a matrix product over columns: that is what
//!   [`ops::conv`](crate::ops::conv) does itself, with fewer and larger products.
//! * `tune`: MIOpen measures its solutions (without searching their parameters exhaustively) and keeps what it finds in
//!   its user database, where `fast` finds it later; then the best of them and the own kernels are measured, and the
//!   fastest is taken. GPUs that MIOpen's databases do not know, RDNA3 among them, need this: MIOpen 3.5 estimates
//!   nothing but columns for them.
//!
//! MIOpen compiles what it has not met before, for seconds and silently: that is told once. When further solutions would
//! have to be compiled after [`PATIENCE`], or none compiles, the own kernels compute, and `fast` remembers that beside
//! the compiled kernels, until `tune` measures the convolution.
//!
//! Where MIOpen is missing, refuses or fails before anything was computed, the own kernels compute. A failure of a
//! chosen solution is an error. During a capture nothing is decided: convolutions of shapes never met before use the
//! own kernels then.

mod choice;
mod convolution;
mod refusals;
mod session;
mod waiting;

pub use crate::config::Mode;
use crate::pool::Pool;
use crate::slots::Kept;
use crate::sync::lock;
use crate::verify::{compare_with_own, difference_of, Finding};
use crate::{Buffer, Device, Result, Stream};
use choice::Choice;
pub use convolution::Convolution;
pub(crate) use session::Operands;
use session::{Prepared, Session};
use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

/// Largest workspace of a solution; on small devices it is at most a [`WORKSPACE_FRACTION`]th of the memory. Solutions
/// that transpose their operands need room for copies of them: this is enough for an image decoder's layers at 1024 x
/// 1024 in f16.
pub const WORKSPACE_LIMIT_BYTES: usize = 1 << 30;
/// The workspace is at most the memory divided by this.
pub const WORKSPACE_FRACTION: usize = 16;

/// After this time no further solution of a convolution is compiled. The compiling of one cannot be interrupted.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What a device has decided about a convolution.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The convolution.
    pub convolution: Convolution,
    /// MIOpen's number of the solver that computes it, or why the own kernels do.
    pub solver: std::result::Result<u64, String>,
}

/// What the device has decided so far, in no order.
#[doc(hidden)] // For tests.
pub fn decisions(device: &Device) -> Vec<Decision> {
    let state = lock(state(device));
    let decision = |(convolution, choice): (&Convolution, &Choice)| Decision {
        convolution: *convolution,
        solver: choice.solver(),
    };
    state.choices.iter().map(decision).collect()
}

/// How the device asks MIOpen.
pub fn mode(device: &Device) -> Mode {
    device.config().miopen
}

/// MIOpen on a device's stream.
pub(crate) fn state(device: &Device) -> &Mutex<MiOpen> {
    device.slot()
}

/// MIOpen on a device's stream, and what is known of the convolutions met.
#[derive(Default)]
pub(crate) struct MiOpen {
    /// Goes before the session whose library made its descriptors.
    choices: HashMap<Convolution, Choice>,
    session: Connection,
}

/// A handle is made when the first convolution asks for it.
#[derive(Default)]
enum Connection {
    #[default]
    Untried,
    Unusable(String),
    Open(Session),
}

impl MiOpen {
    /// Whether there is nothing to ask: the own kernels compute this convolution.
    pub fn leaves_to_own(&self, device: &Device, convolution: &Convolution) -> bool {
        match self.choices.get(convolution) {
            _ if mode(device) == Mode::Off => true,
            Some(choice) => matches!(choice, Choice::Own(_)),
            None => device.pool().is_capturing(),
        }
    }

    /// Enqueues the convolution; `false` if the own kernels are to compute it instead. `own` enqueues it on those, to
    /// be measured.
    pub fn convolve(
        &mut self,
        device: &Device,
        convolution: &Convolution,
        operands: Operands,
        own: &dyn Fn() -> Result<()>,
    ) -> Result<bool> {
        device.enter()?;
        if self.leaves_to_own(device, convolution) {
            return Ok(false);
        }
        if !self.choices.contains_key(convolution) {
            let choice = match self.open(device) {
                Ok(session) => session.choose(device, mode(device), convolution, operands, own)?,
                Err(reason) => Choice::Own(reason.to_string()),
            };
            self.choices.insert(*convolution, choice);
        }
        match (self.choices.get(convolution), &mut self.session) {
            (Some(Choice::Library(prepared)), Connection::Open(session)) => {
                let name = verified_name(convolution, prepared);
                let compare = || compare(device, session, prepared, operands, own);
                if compare_with_own(device, &name, compare)? {
                    session.run(device, prepared, operands)?;
                    return Ok(true);
                }
                let reason = format!("{name} gave a wrong result when it was verified");
                self.choices.insert(*convolution, Choice::Own(reason));
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    fn open(&mut self, device: &Device) -> std::result::Result<&mut Session, &str> {
        if matches!(self.session, Connection::Untried) {
            self.session = match Session::new(device) {
                Ok(session) => Connection::Open(session),
                Err(error) => Connection::Unusable(error.to_string()),
            };
        }
        match &mut self.session {
            Connection::Open(session) => Ok(session),
            Connection::Unusable(reason) => Err(reason),
            Connection::Untried => Err("not tried yet"),
        }
    }
}

/// What a solver is verified as: for each dtype and direction once.
fn verified_name(convolution: &Convolution, prepared: &Prepared) -> String {
    let direction = match convolution.transposed {
        true => "transposed",
        false => "forward",
    };
    let solver = prepared.solution.solution_id;
    format!("miopen/{} {direction} solver {solver}", convolution.dtype)
}

/// Compares a solution with the own kernels, on the operands of the convolution at hand.
fn compare(
    device: &Device,
    session: &mut Session,
    prepared: &Prepared,
    operands: Operands,
    own: &dyn Fn() -> Result<()>,
) -> Finding {
    let c = &prepared.convolution;
    let count: usize = c.y.iter().map(|size| *size as usize).product();
    let y = Buffer::unowned(device, operands.y, count * c.dtype.size_in_bytes());
    let result = || -> Result<Vec<u8>> {
        let mut bytes = vec![0; y.len()];
        device.download(&y, 0, &mut bytes)?;
        Ok(bytes)
    };
    own()?;
    let want = result()?;
    session.run(device, prepared, operands)?;
    Ok(difference_of(c.dtype, &result()?, &want))
}

impl Kept for Mutex<MiOpen> {
    fn give_back(&self, pool: &Pool, stream: &Stream) {
        if let Connection::Open(session) = &mut lock(self).session {
            session.give_back(pool, stream);
        }
    }
}
