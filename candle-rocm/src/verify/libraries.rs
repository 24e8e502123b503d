//! Whether what libraries compute is right: rocBLAS for each dtype and transposition, Composable Kernel for each
//! instance, MIOpen for each solver.

use super::admit::{checks, settle, switched_off, verifies, Finding};
use super::notices::tell;
use super::plain::Plain;
use super::product::Product;
use super::state::State;
use super::store::{Form, Outcome};
use super::trial;
use crate::{Device, Error, Result};
use candle_rocm_kernels::CkInstance;

/// Whether rocBLAS computes such products rightly; after the first time, that costs one look at memory.
///
/// # Errors
/// Those of a kernel that is verified.
pub(crate) fn product_is_right(device: &Device, product: &Product) -> Result<bool> {
    let (Some(checks), true) = (checks(), verifies(device)) else {
        return Ok(true);
    };
    let state = State::of(device);
    if let Some(known) = state.product(product.index()) {
        return Ok(known);
    }
    let name = product.name();
    if trial::form_of(device.ordinal(), &name, true).is_some() {
        return Ok(true);
    }
    let found = settle(device, &name, &[Plain::NONE], "the own product", &|bench| {
        (checks.product)(bench, product)
    })?;
    // Without memory to verify it, it is asked again.
    let Some(outcome) = found else {
        return Ok(true);
    };
    let is_right = outcome.form == Form::Full;
    state.set_product(product.index(), is_right);
    Ok(is_right)
}

/// What is said where rocBLAS is forced for a product that it gets wrong.
pub(crate) fn refused_product(device: &Device, product: &Product) -> Error {
    let name = product.name();
    let found = State::of(device).outcome(device, &name);
    switched_off(device, &name, &found)
}

/// Refuses an instance of Composable Kernel's attention that is wrong.
///
/// # Errors
/// [`Error::SwitchedOff`](crate::Error::SwitchedOff), and those of a kernel that is verified.
pub(crate) fn check_composable(device: &Device, instance: CkInstance) -> Result<()> {
    let (Some(checks), true) = (checks(), verifies(device)) else {
        return Ok(());
    };
    let name = format!("ck/{}", instance.kernel_name());
    if trial::form_of(device.ordinal(), &name, true).is_some() {
        return Ok(());
    }
    let own = "attention by own kernels";
    let found = settle(device, &name, &[Plain::NONE], own, &|bench| {
        (checks.composable)(bench, instance)
    })?;
    match found.as_ref().map(|outcome| outcome.form) {
        Some(Form::Off) => Err(switched_off(device, &name, &found)),
        _ => Ok(()),
    }
}

/// Whether a library's function is right, which the caller compares with its own kernels when it is first asked.
///
/// # Errors
/// What went wrong while they were compared.
pub(crate) fn compare_with_own(
    device: &Device,
    name: &str,
    compare: impl FnOnce() -> Finding,
) -> Result<bool> {
    if !verifies(device) {
        return Ok(true);
    }
    let state = State::of(device);
    if let Some(outcome) = state.outcome(device, name) {
        return Ok(outcome.form == Form::Full);
    }
    let outcome = match compare()? {
        None => Outcome::right(),
        Some(reason) => Outcome::wrong(Form::Off, &reason, "the own kernels"),
    };
    tell(device, name, &outcome);
    state.record(device, &[(name.to_string(), outcome.clone())]);
    Ok(outcome.form == Form::Full)
}

/// Whether an attempt came to its end, or what it was refused for: a kernel that is switched off, so that another takes
/// its place.
///
/// # Errors
/// All others.
pub(crate) fn or_reason<T>(attempt: Result<T>) -> Result<std::result::Result<T, String>> {
    match attempt {
        Ok(done) => Ok(Ok(done)),
        Err(error) if error.is_switched_off() => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}
