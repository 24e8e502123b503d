//! The rate of a GPU's clock, which the driver does not tell.

use candle_kfd::Clocks;

/// Nanoseconds of so many ticks of the GPU's clock, by how far it and the host's have come from one moment to another;
/// none if they stand still, or the driver does not tell how fast the host's is.
pub(crate) fn nanoseconds(begin: &Clocks, now: &Clocks, ticks: i64) -> Option<f64> {
    let gpu = now.gpu.checked_sub(begin.gpu).filter(|ticks| *ticks > 0)?;
    let system = now.system.checked_sub(begin.system)?;
    let seconds = system as f64 / now.system_hz as f64;
    (now.system_hz > 0).then_some(ticks as f64 * (seconds * 1e9 / gpu as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_both_clocks() {
        let at = |gpu, system| Clocks {
            gpu,
            cpu: 0,
            system,
            system_hz: 1 << 20,
        };
        // 2048 ticks of the GPU in as many of a clock of 2^20 Hz.
        let (begin, now) = (at(1000, 50), at(3048, 2098));
        let second = 1 << 20;
        assert_eq!(nanoseconds(&begin, &now, second), Some(1e9));
        assert_eq!(nanoseconds(&begin, &now, -second), Some(-1e9));
        assert_eq!(nanoseconds(&begin, &at(1000, 70), second), None);
        assert_eq!(nanoseconds(&begin, &at(999, 70), second), None);
        let unknown = Clocks {
            system_hz: 0,
            ..now
        };
        assert_eq!(nanoseconds(&begin, &unknown, second), None);
    }
}
