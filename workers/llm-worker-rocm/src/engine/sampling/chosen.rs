//! What comes of a choice.

use crate::engine::api::{Failure, GeneratedToken};

/// The token, or why there is none.
pub(in crate::engine) type Chosen = Result<GeneratedToken, Failure>;

/// Why there is no token.
pub(super) fn not_a_number() -> Failure {
    Failure::Internal(
        "the model's output is not a number: its file is damaged, or the device computes wrongly (compare with --device cpu)"
            .to_string(),
    )
}

/// Why there is no token, either.
pub(super) fn nothing_left() -> Failure {
    Failure::Invalid("the constraint and the logit bias leave no token to choose".to_string())
}
