//! Results that are on their way.

use candle::{Result, Tensor};
use std::fmt;

/// A tensor that is still being reduced. Work of the device that is enqueued before [`wait`](Pending::wait) runs beside
/// it; work after it sees the result. Dropped, it is waited for as well, so that memory stays as long as it is read.
pub struct Pending {
    result: Tensor,
    /// Has the device wait; not called twice.
    arrive: Option<Box<dyn FnOnce() -> Result<()> + Send>>,
}

impl Pending {
    /// What is there already.
    pub fn done(result: Tensor) -> Self {
        Self {
            result,
            arrive: None,
        }
    }

    /// A result that may be used after `arrive`, which keeps what is needed until then.
    pub(crate) fn until(
        result: Tensor,
        arrive: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Self {
        Self {
            result,
            arrive: Some(Box::new(arrive)),
        }
    }

    /// The result. The device waits for it, the host as a rule does not.
    ///
    /// # Errors
    /// Those of the collective that were not known when it began, and those of devices.
    pub fn wait(mut self) -> Result<Tensor> {
        self.arrive.take().map_or(Ok(()), |arrive| arrive())?;
        Ok(self.result.clone())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(arrive) = self.arrive.take() {
            // Nobody asks for the result: an error shows at the next call of the group.
            let _ = arrive();
        }
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Pending({:?} {:?})",
            self.result.dtype(),
            self.result.shape()
        )
    }
}
