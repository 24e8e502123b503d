//! Units for the tests: plain HIP.

use rocm_port::check::{Check, Finding, Kind, Report, Targets};
use rocm_port::model::PortedUnit;
use std::time::Duration;

/// A unit of this text.
pub fn unit(source: &str) -> PortedUnit {
    PortedUnit {
        name: "unit".to_string(),
        source: source.to_string(),
        kernels: Vec::new(),
    }
}

/// A check of a unit that only runs on the simulator.
pub fn simulated(unit: &PortedUnit) -> Check<'_> {
    Check::new(unit)
        .compile_for(Targets::None)
        .orders(2)
        .limit(Duration::from_secs(20))
}

/// The one finding of a report.
pub fn only(report: &Report, kind: Kind) -> &Finding {
    let kinds: Vec<Kind> = report.failures().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [kind], "{report}");
    &report.findings[0]
}
