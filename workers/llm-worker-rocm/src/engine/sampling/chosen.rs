//! What comes of a choice.

use crate::engine::api::{Failure, GeneratedToken};

/// The token, or why there is none.
pub(in crate::engine) type Chosen = Result<GeneratedToken, Failure>;

const NOT_A_NUMBER: &str = "the model's output is not a number: its file is damaged, or the device computes wrongly (compare with --device cpu)";

/// Why there is no token.
pub(in crate::engine) fn not_a_number() -> Failure {
    Failure::Internal(NOT_A_NUMBER.to_string())
}

/// Whether a model's output was not a number; on the CPU its file is at fault.
pub(crate) fn is_not_a_number(failure: &Failure) -> bool {
    matches!(failure, Failure::Internal(reason) if reason == NOT_A_NUMBER)
}

/// Why there is no token, either.
pub(super) fn nothing_left() -> Failure {
    Failure::Invalid("the constraint and the logit bias leave no token to choose".to_string())
}
