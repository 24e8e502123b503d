//! What was verified, for people.

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

/// Something that gave wrong results.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchedOff {
    /// Its name.
    pub name: String,
    /// What was wrong.
    pub reason: String,
    /// What takes its place; none if nothing does, and using it is an error.
    pub instead: Option<String>,
}

impl std::fmt::Display for SwitchedOff {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} gives wrong results ({}); ", self.name, self.reason)?;
        match &self.instead {
            Some(instead) => write!(f, "{instead} takes its place"),
            None => write!(f, "nothing takes its place"),
        }
    }
}

impl Device {
    /// What verification has found on this device's GPU so far. Nothing is computed for it.
    pub fn verification(&self) -> Verification {
        let all = State::of(self).all(self);
        let switched_off = all.iter().filter(|(_, of)| of.form != Form::Full);
        Verification {
            mode: self.config().verify,
            switched_off: switched_off
                .map(|(name, of)| SwitchedOff {
                    name: name.clone(),
                    reason: of.reason.clone(),
                    instead: Some(of.instead.clone()).filter(|instead| !instead.is_empty()),
                })
                .collect(),
            verified: all.into_iter().map(|(name, _)| name).collect(),
        }
    }
}
