//! Planted faults.

use crate::units::{only, simulated, unit};
use rocm_port::check::{Case, DType, Fill, Kind};

/// A case of `kernel(const int *x, int *y, int n)` with one block.
fn plain(kernel: &str, sizes: &[i64]) -> Case {
    Case::new(kernel)
        .size("n", sizes.iter().copied())
        .block(128)
        .input("x", DType::I32, "n", Fill::ints(-9, 9))
        .output("y", DType::I32, "n")
        .value("n", DType::I32, "n")
}

#[test]
fn a_ballot_of_32_lanes_is_wrong_in_waves_of_64() {
    let unit = unit(
        r#"
extern "C" __global__ void positive(const int *x, int *y, int n) {
    int i = threadIdx.x;
    bool yes = i < n && x[i] > 0;
    // Right for lanes of a wave of 32 only.
    unsigned mask = (unsigned)__ballot(yes);
    if (i < n) y[i] = mask >> (i % 32) & 1;
}
"#,
    );
    let case = plain("positive", &[10, 100]).reference(|io| {
        let x = io.integers("x");
        io.set_integers("y", x.iter().map(|v| i64::from(*v > 0)).collect::<Vec<_>>());
    });
    let report = simulated(&unit).case(case).run().unwrap();
    let finding = only(&report, Kind::Reference);
    assert_eq!(finding.archs, ["gfx942"]);
    assert!(
        finding.sizes["n"] > 32 && finding.sizes["n"] < 64,
        "{finding}"
    );
    // The smallest input can be run again, and shows the same.
    let input = finding.input.as_ref().unwrap();
    let cases = rocm_port::check::parse_cases(input, std::path::Path::new("")).unwrap();
    let again = simulated(&unit)
        .cases(cases)
        .without_shrinking()
        .run()
        .unwrap();
    let again = only(&again, Kind::Reference);
    assert_eq!(
        (&again.difference, &again.archs),
        (&finding.difference, &finding.archs)
    );
}
