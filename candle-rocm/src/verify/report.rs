//! What was verified, for people.

use super::notices::SwitchedOff;
use super::state::State;
use super::store::Form;
use crate::config::Verify;
use crate::Device;

/// What verification has found on a GPU, in this process and, where it is remembered, before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verification {
    /// When things are verified.
    pub mode: Verify,
    /// Names of all that was verified: kernels behind their family, instructions, ways to call libraries.
    pub verified: Vec<String>,
    /// What of that is not used as it is.
    pub switched_off: Vec<SwitchedOff>,
}

impl Device {
    /// What verification has found on this device's GPU so far. Nothing is computed for it.
    pub fn verification(&self) -> Verification {
        let all = State::of(self).all(self);
        let switched_off = all.iter().filter(|(_, of)| of.form != Form::Full);
        Verification {
            mode: self.config().verify,
            switched_off: switched_off
                .map(|(name, of)| SwitchedOff::new(name, of))
                .collect(),
            verified: all.into_iter().map(|(name, _)| name).collect(),
        }
    }
}
