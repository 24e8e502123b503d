//! How much of the engine batches may have.
//!
//! Requests that somebody waits for go first: a batch leaves one place free for the next of them, and takes up no new
//! request beyond a quarter of the places while one of them runs. In the engine's queue they stand before all requests of
//! batches, and their prompts are computed first.

use crate::engine::api::Status;

/// Most requests of a batch at once, whatever the engine takes.
const MOST: usize = 256;

/// How many requests of batches there may be, of which there are `own`.
pub(super) fn limit(parallel: usize, status: &Status, own: usize) -> usize {
    let parallel = parallel.min(MOST);
    let others = (status.running + status.waiting).saturating_sub(own);
    match others {
        0 => parallel.saturating_sub(1).max(1),
        // Somebody waits already, or would, for what runs now.
        _ if status.waiting > 0 || status.running + 1 >= parallel.max(2) => 0,
        _ => (parallel / 4).max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_go_first() {
        let limit = |parallel, running, waiting, own| {
            let status = Status {
                running,
                waiting,
                ..Status::default()
            };
            limit(parallel, &status, own)
        };
        assert_eq!(limit(16, 0, 0, 0), 15);
        assert_eq!(limit(16, 9, 0, 9), 15);
        // One other runs.
        assert_eq!(limit(16, 10, 0, 9), 4);
        // All places but one are taken, or somebody waits.
        assert_eq!(limit(16, 15, 0, 4), 0);
        assert_eq!(limit(16, 10, 1, 4), 0);
        assert_eq!(limit(1, 0, 0, 0), 1);
        assert_eq!(limit(1, 1, 0, 0), 0);
        assert_eq!(limit(usize::MAX, 0, 0, 0), 255);
    }
}
