//! The phases of a worker's life.

/// Where a worker is, with what it has loaded. A lost device is no phase: what is loaded says so.
pub(super) enum Phase<L> {
    Loading,
    Ready(L),
    /// What was loaded stays: answers that began before are still to be fetched.
    Stopping(Option<L>),
}
