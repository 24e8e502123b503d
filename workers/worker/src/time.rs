//! Points in time as others read them.

use chrono::{SecondsFormat, Utc};
use std::time::{SystemTime, UNIX_EPOCH};

/// Now as RFC 3339 with milliseconds, in UTC: `2026-01-31T12:00:00.000Z`.
pub fn timestamp() -> String {
    Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// Now in whole seconds since 1970, as OpenAI's answers have it.
pub fn unix() -> i64 {
    Utc::now().timestamp()
}

/// A point in time in seconds since 1970.
pub fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_moment_in_three_forms() {
        let seconds = unix_seconds(SystemTime::now());
        assert!((seconds - unix() as f64).abs() < 2.0);
        let parsed = chrono::DateTime::parse_from_rfc3339(&timestamp()).unwrap();
        assert!((parsed.timestamp() as f64 - seconds).abs() < 2.0);
        assert_eq!(unix_seconds(UNIX_EPOCH), 0.0);
    }
}
