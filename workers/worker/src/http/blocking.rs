//! Work that takes long, on a thread where it holds nobody up.

use super::ApiError;
use crate::observe::RequestScope;
use std::any::Any;

/// Runs work on a thread of its own, as a part of the request that asks for it.
///
/// # Errors
/// 500 if it panics.
pub async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    let scope = RequestScope::current();
    let work = move || match scope {
        Some(scope) => scope.enter(work),
        None => work(),
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        let text = match error.try_into_panic() {
            Ok(panic) => panic_text(&*panic),
            Err(error) => error.to_string(),
        };
        ApiError::internal(format!("internal error: {text}"))
    })
}

/// As [`blocking`], for work that itself may fail.
///
/// # Errors
/// Its own, and 500 if it panics.
pub async fn try_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    blocking(work).await?
}

/// What a panic said.
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| text.to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn results_errors_and_panics() {
        assert_eq!(blocking(|| 5).await, Ok(5));
        let refused = ApiError::invalid("no");
        let error = refused.clone();
        assert_eq!(try_blocking::<()>(move || Err(error)).await, Err(refused));
        let panicked = blocking(|| panic!("on purpose {}", 1)).await.unwrap_err();
        assert_eq!(panicked.status, 500);
        assert_eq!(panicked.message, "internal error: on purpose 1");
    }
}
