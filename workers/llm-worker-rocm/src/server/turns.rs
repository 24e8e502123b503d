//! Work of which only so much runs at a time, one piece after the other.

use super::error::{blocking, QUEUE_FULL};
use axum::http::StatusCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;
use worker::http::ApiError;
use worker::observe::{Part, RequestScope};

/// Lets so many pieces of work run at a time, and a number of them wait.
pub(super) struct Turns {
    /// What the work is, for traces.
    name: &'static str,
    /// Taken by what runs and by what waits.
    places: Arc<Semaphore>,
    /// Taken by what runs.
    turn: Arc<Semaphore>,
    most: usize,
}

impl Turns {
    /// For work called `name`: `at_once` run at a time; `most` may run or wait.
    pub(super) fn new(name: &'static str, at_once: usize, most: usize) -> Self {
        Self {
            name,
            places: Arc::new(Semaphore::new(most)),
            turn: Arc::new(Semaphore::new(at_once)),
            most,
        }
    }

    /// Runs `work` on a thread of its own once it is its turn. Dropping the future gives up work that waits; what runs
    /// cannot be interrupted, and keeps its turn and its place until it is done.
    ///
    /// # Errors
    /// 429 if as many run or wait as may; the work's own.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            let reason = format!("{} requests wait already; try again soon", self.most);
            let mut error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, QUEUE_FULL, reason);
            error.retry_after = Some(Duration::from_secs(1));
            error
        })?;
        let (name, arrived) = (self.name, Instant::now());
        let turn = self.turn.clone().acquire_owned().await;
        let turn = turn.map_err(|_| ApiError::internal("nobody has a turn any more"))?;
        blocking(move || {
            let _held = (place, turn);
            let started = Instant::now();
            let result = work();
            let Some(scope) = RequestScope::current().filter(RequestScope::is_traced) else {
                return result;
            };
            let part = Part::new(name, arrived, Instant::now());
            let part = part.part(Part::new("queue", arrived, started));
            scope.trace(match &result {
                Ok(_) => part,
                Err(error) => part.failed(error.code, error.message.clone()),
            });
            result
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{ready, Future};
    use std::pin::Pin;
    use std::sync::mpsc;

    /// Lets a future go on once.
    async fn is_done(future: Pin<&mut impl Future>) -> bool {
        tokio::select! {
            biased;
            _ = future => true,
            () = ready(()) => false,
        }
    }

    /// Work that says when it begins and ends when it is told to.
    struct Work {
        began: mpsc::Receiver<()>,
        end: mpsc::Sender<()>,
    }

    fn work() -> (Work, impl FnOnce() -> Result<(), ApiError> + Send + 'static) {
        let (tell, began) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        let run = move || {
            // Both fail where the test has forgotten this work: then it ends at once.
            let _ = tell.send(());
            let _ = ended.recv();
            Ok(())
        };
        (Work { began, end }, run)
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_keeps_its_turn_and_its_place() {
        let turns = Turns::new("work", 1, 2);
        let (first, run) = work();
        let mut left = Box::pin(turns.run(run));
        assert!(!is_done(left.as_mut()).await);
        first.began.recv().unwrap();
        // The client goes away; the work goes on.
        drop(left);
        let (second, run) = work();
        let mut waiting = Box::pin(turns.run(run));
        assert!(!is_done(waiting.as_mut()).await);
        let third = turns.run(|| Ok(())).await;
        assert_eq!(third.unwrap_err().code, QUEUE_FULL);
        let early = second.began.recv_timeout(Duration::from_millis(100));
        assert!(early.is_err(), "two at once");
        first.end.send(()).unwrap();
        second.end.send(()).unwrap();
        waiting.await.unwrap();
        second.began.recv().unwrap();
        // Both places are free again.
        turns.run(|| Ok(())).await.unwrap();
    }
}
