//! What the service manager is told (`sd_notify`), where it wants to be: a service of `Type=notify` counts as started
//! once its model is there. Without `NOTIFY_SOCKET` nothing of this does anything.

use super::Progress;
use sd_notify::NotifyState;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

/// How often it is told how far loading is.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// How much longer a start may take, each time that it is told, in microseconds.
const MORE_TIME: u32 = 60_000_000;

fn tell(states: &[NotifyState]) {
    // Nobody is lost who does not hear it.
    let _ = sd_notify::notify(states);
}

/// Tells how far loading is, and asks for more time, until `loaded` is there.
pub(super) async fn while_loading<T>(progress: &Progress, loaded: impl Future<Output = T>) -> T {
    let mut loaded = pin!(loaded);
    loop {
        let status = format!(
            "loading, {:.0} %: {}",
            progress.fraction() * 100.0,
            progress.stage().replace('\n', " ")
        );
        tell(&[
            NotifyState::ExtendTimeoutUsec(MORE_TIME),
            NotifyState::Status(&status),
        ]);
        tokio::select! {
            loaded = loaded.as_mut() => return loaded,
            () = tokio::time::sleep(TELL_EVERY) => {}
        }
    }
}

/// Requests are taken.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The end has begun.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
}
