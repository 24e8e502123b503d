//! Who lets a kernel be used: what was not verified on this GPU is verified first.

use super::notices::tell;
use super::plain::{Feature, Plain, INSTRUCTIONS};
use super::product::Product;
use super::state::{features_of, instruction_name, State};
use super::store::{Form, Outcome};
use super::trial::{self, Trial};
use crate::config::{Allocation, Config, Mode, ScaledMultiplier, Verify};
use crate::module::Function;
use crate::sync::lock;
use crate::{DeclaredKernel, Device, Error, Family, Matrix, Result};
use candle_rocm_kernels::CkInstance;
use std::sync::OnceLock;

/// What a check found: nothing, or what is wrong. An error is none of these: then nothing is known.
pub(crate) type Finding = Result<Option<String>>;

/// How a kernel is verified.
#[derive(Clone, Copy)]
pub(crate) struct Check {
    /// Has the kernel compute something and compares it with the host.
    pub run: fn(&Device, &DeclaredKernel) -> Finding,
    /// What takes the kernel's place if it is wrong in its plain form, too; empty if nothing does.
    pub instead: &'static str,
}

/// All checks. They are made of operations, which lead here: so they are handed over when a device is opened.
pub(crate) struct Checks {
    /// Of one of [`INSTRUCTIONS`], by its name.
    pub instruction: fn(&Device, &str) -> Finding,
    /// The check of a kernel; none for those that are the plainest form of their operation.
    pub of_kernel: fn(&DeclaredKernel) -> Option<Check>,
    /// Of a product by rocBLAS.
    pub product: fn(&Device, &Product) -> Finding,
    /// Of Composable Kernel's attention.
    pub composable: fn(&Device, CkInstance) -> Finding,
}

static CHECKS: OnceLock<&'static Checks> = OnceLock::new();

/// Makes the checks known.
pub(crate) fn install(checks: &'static Checks) {
    CHECKS.get_or_init(|| checks);
}

pub(super) fn checks() -> Option<&'static Checks> {
    CHECKS.get().copied()
}

/// A kernel that may be used.
pub(crate) struct Admitted {
    pub function: Function,
    pub keep: Keep,
}

/// How long it may be used without being asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// As long as the process runs.
    Verified,
    /// As long, by devices that verify nothing.
    Unverified,
    /// Once.
    No,
}

/// The kernel for a device; `launches` says whether it is launched now.
///
/// # Errors
/// [`Error::SwitchedOff`] if it is wrong in every form; [`Error::InvalidArgument`] during a capture, in which nothing can
/// be verified; what went wrong before anything was known.
pub(crate) fn function(
    device: &Device,
    kernel: &DeclaredKernel,
    launches: bool,
) -> Result<Admitted> {
    let gpu = device.gpu();
    let load = |plain: Plain, keep: Keep| {
        let function = device.shared().modules.declared(gpu, kernel, plain)?;
        Ok(Admitted { function, keep })
    };
    if kernel.family == Family::Instructions {
        let plain = trial::form_of(gpu.ordinal, INSTRUCTIONS_ON_TRIAL, launches);
        return load(plain.unwrap_or(Plain::NONE), Keep::No);
    }
    let subject = name_of(kernel);
    if let Some(plain) = trial::form_of(gpu.ordinal, &subject, launches) {
        return load(plain, Keep::No);
    }
    let (Some(checks), true) = (checks(), verifies(device)) else {
        return load(Plain::NONE, Keep::Unverified);
    };
    let features = features(device)?;
    let Some(check) = (checks.of_kernel)(kernel) else {
        return load(features, Keep::Verified);
    };
    if State::of(device).outcome(device, &subject).is_none() {
        // What cannot be compiled, or is not there, is no matter of verification.
        load(features, Keep::No)?;
    }
    let forms = [features, features.and(Plain::form_of(kernel))];
    let found = settle(device, &subject, &forms, check.instead, &|bench| {
        (check.run)(bench, kernel)
    })?;
    match found.as_ref().map(|outcome| outcome.form) {
        // It could not be verified now, for lack of memory: the next use tries again.
        None => load(features, Keep::No),
        Some(Form::Full) => load(forms[0], Keep::Verified),
        Some(Form::Plain) => load(forms[1], Keep::Verified),
        Some(Form::Off) => Err(switched_off(device, &kernel.name, &found)),
    }
}

/// The form in which a device's kernels are compiled, but for those that are wrong in it.
///
/// # Errors
/// Those of [`function`].
pub(crate) fn features(device: &Device) -> Result<Plain> {
    let state = State::of(device);
    if let Some(features) = state.features() {
        return Ok(features);
    }
    let (Some(checks), true) = (checks(), verifies(device)) else {
        return Ok(Plain::NONE);
    };
    let known = || features_of(|name| state.outcome(device, name));
    if let Some(features) = known() {
        state.set_features(features);
        return Ok(features);
    }
    refuse_in_capture(device, "instructions")?;
    let _busy = (!trial::is_open(device.ordinal())).then(|| lock(state.busy()));
    if let Some(features) = known() {
        state.set_features(features);
        return Ok(features);
    }
    let bench = bench(device)?;
    let mut plain = Plain::NONE;
    let mut found = Vec::new();
    for (name, feature) in INSTRUCTIONS {
        // Without those that were found to be wrong before: what is made of them is not at fault.
        let trial = Trial::open(device.ordinal(), INSTRUCTIONS_ON_TRIAL, plain);
        let wrong = (checks.instruction)(&bench, name)?;
        drop(trial);
        let outcome = match (wrong, feature) {
            (None, _) => Outcome::right(),
            (Some(reason), Some(feature)) => {
                plain.insert(feature);
                Outcome::wrong(Form::Plain, &reason, PLAIN)
            }
            (Some(reason), None) => Outcome::wrong(Form::Off, &reason, ""),
        };
        let name = instruction_name(name);
        tell(device, &name, &outcome);
        found.push((name, outcome));
    }
    state.record(device, &found);
    let features = known().unwrap_or(Plain::NONE);
    state.set_features(features);
    Ok(features)
}

/// What is on trial while instructions are verified.
const INSTRUCTIONS_ON_TRIAL: &str = "instructions";

/// What takes the place of a form that is wrong, if a plainer one is right.
const PLAIN: &str = "its plain form";

/// Whether a device's kernels are verified.
pub(super) fn verifies(device: &Device) -> bool {
    device.config().verify != Verify::Off
}

/// Verifies the forms of something one after the other until one is right. None if there was no memory for it.
pub(super) fn settle(
    device: &Device,
    subject: &str,
    forms: &[Plain],
    instead: &str,
    check: &dyn Fn(&Device) -> Finding,
) -> Result<Option<Outcome>> {
    let state = State::of(device);
    if let Some(outcome) = state.outcome(device, subject) {
        return Ok(Some(outcome));
    }
    refuse_in_capture(device, subject)?;
    let _busy = (!trial::is_open(device.ordinal())).then(|| lock(state.busy()));
    if let Some(outcome) = state.outcome(device, subject) {
        return Ok(Some(outcome));
    }
    let bench = bench(device)?;
    let mut reason = String::new();
    let mut outcome = None;
    for (index, plain) in forms.iter().enumerate() {
        if index > 0 && *plain == forms[index - 1] {
            continue;
        }
        let trial = Trial::open(device.ordinal(), subject, *plain);
        let finding = check(&bench);
        drop(trial);
        let wrong = match finding {
            Ok(wrong) => wrong,
            Err(error) if error.is_out_of_memory() => return Ok(None),
            // What it needs is switched off, or its plain form does not even compile.
            Err(error) if error.is_switched_off() || index > 0 => Some(error.to_string()),
            Err(error) => return Err(error),
        };
        match wrong {
            Some(wrong) if reason.is_empty() => reason = wrong,
            Some(wrong) => reason = format!("{reason}; in its plain form: {wrong}"),
            None if index == 0 => outcome = Some(Outcome::right()),
            None => outcome = Some(Outcome::wrong(Form::Plain, &reason, PLAIN)),
        }
        if outcome.is_some() {
            break;
        }
    }
    let outcome = outcome.unwrap_or_else(|| Outcome::wrong(Form::Off, &reason, instead));
    tell(device, subject, &outcome);
    state.record(device, &[(subject.to_string(), outcome.clone())]);
    Ok(Some(outcome))
}

pub(super) fn switched_off(device: &Device, kernel: &str, found: &Option<Outcome>) -> Error {
    let reason = found.as_ref().map(|outcome| outcome.reason.clone());
    Error::SwitchedOff {
        kernel: kernel.to_string(),
        arch: device.properties().full_arch.clone(),
        reason: reason.unwrap_or_default(),
    }
}

/// What a kernel's outcome is remembered as.
pub(super) fn name_of(kernel: &DeclaredKernel) -> String {
    let file = kernel.family.file_name();
    format!("{}/{}", file.trim_end_matches(".hip"), kernel.name)
}

fn refuse_in_capture(device: &Device, subject: &str) -> Result<()> {
    device.check_not_capturing(
        "verification",
        &format!("{subject} has not been verified yet; have it computed once before"),
    )
}

/// What a check says of a kernel now, whatever is remembered.
#[doc(hidden)] // For tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    /// What is wrong.
    pub wrong: Option<String>,
    /// Whether the check launched the kernel.
    pub launched: bool,
}

/// Runs a kernel's check; none for a kernel without one.
///
/// # Errors
/// The device's.
#[doc(hidden)] // For tests.
pub fn try_kernel(device: &Device, kernel: &DeclaredKernel) -> Result<Option<Tried>> {
    let Some(check) = checks().and_then(|checks| (checks.of_kernel)(kernel)) else {
        return Ok(None);
    };
    let features = features(device)?;
    let bench = bench(device)?;
    let trial = Trial::open(device.ordinal(), &name_of(kernel), features);
    let wrong = (check.run)(&bench, kernel)?;
    let launched = trial.end();
    Ok(Some(Tried { wrong, launched }))
}

/// A device to verify on, beside the work of the one that asks: with a stream and memory of its own.
fn bench(device: &Device) -> Result<Device> {
    if trial::is_open(device.ordinal()) {
        return Ok(device.clone());
    }
    let config = Config {
        runtime: device.config().runtime,
        matmul: None,
        scaled: Some(ScaledMultiplier::Own),
        quantized: None,
        attention: None,
        miopen: Mode::Off,
        synchronize: false,
        allocation: Allocation::Cached,
        verify: device.config().verify,
    };
    Device::with_config(device.ordinal(), config)
}

impl Device {
    /// The matrix instructions that kernels use on this device: those of its generation, unless verification found
    /// them to be wrong.
    ///
    /// # Errors
    /// What went wrong while they were verified.
    pub(crate) fn matrix(&self) -> Result<Option<Matrix>> {
        let matrix = self.properties().arch.generation().matrix();
        if matrix.is_none() || features(self)?.lacks(Feature::Matrix) {
            return Ok(None);
        }
        Ok(matrix)
    }
}
