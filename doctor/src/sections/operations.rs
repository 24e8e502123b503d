//! Every operation of this product in small shapes, against the host.

use crate::report::Measurement;
use crate::{Check, Failure, Options, Section};
use candle_core::Device;
use differential::{suites, Context, Report, Size, Suite};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// See the [module](self).
pub struct Operations;

/// Operations that findings tell one by one; more of them share their cause.
const TOLD: usize = 20;
/// Characters that a finding quotes.
const QUOTED: usize = 300;

const ADVICE: &str = "answers that need it are wrong on this GPU: please send the report. The section verification tells whether the product has noticed and taken another way";

impl Section for Operations {
    fn name(&self) -> &'static str {
        "operations"
    }

    fn about(&self) -> &'static str {
        "every operation and dtype in small shapes, against the host"
    }

    fn limit(&self, _: &Options) -> Duration {
        Duration::from_secs(1200)
    }

    fn run(&self, check: &Check) -> Result<(), Failure> {
        check.progress("opening the device");
        let context = Context {
            device: Device::new_rocm(check.ordinal())?,
            size: Size::Small,
        };
        // No suite is begun after this.
        let budget = check.options().pick(
            Duration::MAX,
            Duration::from_secs(60),
            Duration::from_secs(30),
        );
        let wanted = &check.options().operations;
        let is_wanted = |suite: &Suite| {
            let named = wanted.iter().any(|name| name == suite.name);
            suite.uses_device && (wanted.is_empty() || named)
        };
        let suites: Vec<Suite> = suites().into_iter().filter(is_wanted).collect();
        if suites.is_empty() {
            return Err(format!("there is no group of operations {}", wanted.join(", ")).into());
        }
        let total = suites.len();
        let mut compared = 0;
        let mut failures = BTreeMap::new();
        for (n, suite) in suites.into_iter().enumerate() {
            if check.elapsed() > budget {
                let text = format!(
                    "{} of {total} groups of operations were not tried, to be quick",
                    total - n
                );
                check.info("left", text, "");
                break;
            }
            check.progress(format!("{} ({} of {total})", suite.name, n + 1));
            let start = Instant::now();
            let mut report = Report::default();
            suite.run(&context, &mut report);
            let name = format!("{}, {} comparisons", suite.name, report.comparisons().len());
            check.measure(Measurement::new(name, start.elapsed().as_secs_f64(), "s").detail());
            compared += report.comparisons().len();
            for comparison in report.comparisons() {
                if let Some(failure) = &comparison.failure {
                    let what = format!("{} {}", comparison.op, comparison.dtype);
                    let failure = format!("{}: {failure}", comparison.what);
                    failures.entry(what).or_insert_with(Vec::new).push(failure);
                }
            }
        }
        tell(check, &failures);
        check.note(format!(
            "{compared} comparisons, {} operations wrong",
            failures.len()
        ));
        Ok(())
    }
}

/// Tells each operation that is wrong once, by its first failure.
fn tell(check: &Check, failures: &BTreeMap<String, Vec<String>>) {
    for (what, failures) in failures.iter().take(TOLD) {
        let first: String = failures[0].chars().take(QUOTED).collect();
        let more = match failures.len() {
            1 => String::new(),
            n => format!(" (and {} more)", n - 1),
        };
        check.error("wrong", format!("{what}, {first}{more}"), ADVICE);
    }
    if failures.len() > TOLD {
        let rest: Vec<&str> = failures.keys().skip(TOLD).map(String::as_str).collect();
        check.error("wrong", format!("and also {}", rest.join(", ")), ADVICE);
    }
}
