//! Every suite in few shapes, as `rocm-doctor` runs them.

use differential::{rocm, suites, Context, Report, Size};

#[test]
fn every_suite_in_few_shapes() {
    let context = Context {
        device: rocm(),
        size: Size::Small,
    };
    let mut report = Report::default();
    for suite in suites().into_iter().filter(|suite| suite.uses_device) {
        let before = report.comparisons().len();
        suite.run(&context, &mut report);
        assert!(
            report.comparisons().len() > before,
            "{} compares nothing",
            suite.name
        );
    }
    let failures: Vec<String> = report.failures().collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
