//! Who computes a convolution: decided once, and what becomes of failures while deciding.

use crate::bench::*;
use crate::common;
use candle_rocm::miopen::{decisions, mode, Mode};
use candle_rocm::{Device, Error};

#[test]
fn a_decision_is_made_once() {
    let bench = Bench::new(None);
    let other = Problem {
        stride: 2,
        ..image()
    };
    bench.learn::<f32>(&image());
    bench.learn::<f32>(&other);
    for _ in 0..5 {
        assert!(bench.check::<f32>(&image(), CONTIGUOUS));
    }
    let counts = [CREATE, COUNT, COMPILE, RUN].map(|f| bench.calls(f));
    assert_eq!(counts, [1, 1, 1, 5]);
    assert!(bench.check::<f32>(&other, CONTIGUOUS));
    let counts = [CREATE, COUNT, COMPILE, RUN].map(|f| bench.calls(f));
    assert_eq!(counts, [1, 2, 2, 6]);
    assert_eq!(bench.calls(c"miopenCreateTensorDescriptor"), 6);
    // Another device on the same GPU has a stream, and so a handle, of its own.
    let second = common::device();
    image().check::<f32>(&second, CONTIGUOUS);
    assert_eq!((bench.calls(CREATE), bench.calls(COUNT)), (2, 3));
    drop(second);
    assert_eq!(bench.calls(c"miopenDestroy"), 1);
    assert_eq!(bench.calls(c"miopenDestroyTensorDescriptor"), 3);
    assert_eq!(bench.calls(c"miopenDestroyConvolutionDescriptor"), 1);
}

/// Products, thin convolutions, f64 and outputs that could not be led back are never asked for.
#[test]
fn what_is_not_worth_asking_is_not_asked() {
    let bench = Bench::new(None);
    let product = Problem {
        taps: vec![1, 1],
        padding: 0,
        ..image()
    };
    let thin = Problem {
        c_out: 3,
        ..image()
    };
    let beyond = Problem {
        stride: 2,
        output_padding: 2,
        ..image().transposed()
    };
    for problem in [product, thin, beyond] {
        assert!(!bench.check::<f32>(&problem, CONTIGUOUS));
    }
    assert!(!bench.check::<f64>(&image(), CONTIGUOUS));
    assert_eq!(bench.calls(CREATE), 0);
}

/// With a stride, a kernel of one element is no product any more; MIOpen's favourite is columns then.
#[test]
fn products_over_columns_stay_with_the_own_kernels() {
    let bench = Bench::new(None);
    let strided = Problem {
        taps: vec![1, 1],
        padding: 0,
        stride: 2,
        ..image()
    };
    for _ in 0..3 {
        assert!(!bench.check::<f32>(&strided, CONTIGUOUS));
    }
    assert_eq!([COUNT, COMPILE, RUN].map(|f| bench.calls(f)), [1, 0, 0]);
    let reason = bench.decision().solver.unwrap_err();
    assert!(reason.contains("more than columns"), "{reason}");
}

/// Where MIOpen has neither measurements nor an estimate, as on most of RDNA, nothing is taken until something was
/// measured; that is kept in its database, and `fast` finds it.
#[test]
fn what_tune_finds_is_found_by_fast() {
    let bench = Bench::new(None);
    let problem = Problem {
        x: vec![1, 19, 8, 8],
        ..image()
    };
    assert_eq!(bench.check::<f32>(&problem, CONTIGUOUS), bench.is_cdna());
    bench.learn::<f32>(&problem);
    let later = common::device();
    problem.check::<f32>(&later, CONTIGUOUS);
    assert_eq!(decisions(&later)[0].solver, Ok(84));
}

#[test]
fn off_asks_for_nothing() {
    let bench = Bench::new(Some("off"));
    assert_eq!(mode(&bench.device), Mode::Off);
    assert!(!bench.check::<f32>(&image(), CONTIGUOUS));
    assert_eq!(bench.calls(CREATE), 0);
    assert!(decisions(&bench.device).is_empty());
}

#[test]
fn tune_measures_once() {
    let bench = Bench::new(Some("tune"));
    assert_eq!(mode(&bench.device), Mode::Tune);
    for problem in [image(), image().transposed(), sequence()] {
        for _ in 0..3 {
            bench.check::<f32>(&problem, CONTIGUOUS);
        }
    }
    assert_eq!([CREATE, FIND, COUNT].map(|f| bench.calls(f)), [1, 3, 3]);
    for decision in decisions(&bench.device) {
        match decision.solver {
            Ok(solver) => assert!([84, 85, 86, 91, 97, 107, 108].contains(&solver)),
            Err(reason) => assert!(reason.starts_with("measured"), "{reason}"),
        }
    }
}

#[test]
fn other_values_are_an_error() {
    let bench = Bench::new(None);
    for value in ["", "exhaustive", "Fast"] {
        std::env::set_var(VARIABLE, value);
        let error = Device::new(0).unwrap_err();
        assert!(
            matches!(error, Error::InvalidArgument { op: VARIABLE, .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("off, fast or tune"), "{error}");
    }
    std::env::remove_var(VARIABLE);
    drop(bench);
}

#[test]
fn failures_while_deciding_leave_it_to_the_own_kernels() {
    for function in [
        CREATE,
        c"miopenCreateTensorDescriptor",
        c"miopenSetTensorDescriptor",
        c"miopenCreateConvolutionDescriptor",
        c"miopenInitConvolutionDescriptor",
        c"miopenSetConvolutionAttribute",
        c"miopenSetConvolutionFindMode",
        c"miopenGetConvolutionForwardOutputDim",
        COUNT,
        c"miopenConvolutionForwardGetSolution",
    ] {
        let bench = Bench::new(None);
        bench.sim.fail_miopen(function, 1, 7);
        for _ in 0..3 {
            assert!(!bench.check::<f32>(&image(), CONTIGUOUS), "{function:?}");
        }
        let reason = bench.decision().solver.unwrap_err();
        assert!(
            reason.contains(function.to_str().unwrap())
                && reason.contains("miopenStatusUnknownError"),
            "{reason}"
        );
        assert_eq!(bench.calls(function), 1, "remembered");
    }
}

/// Without MIOpen's own measurements, what it offers by estimate is measured.
#[test]
fn tune_does_without_find() {
    for (nth, function) in [c"miopenConvolutionForwardGetWorkSpaceSize", FIND]
        .into_iter()
        .enumerate()
    {
        let bench = Bench::new(Some("tune"));
        bench.sim.fail_miopen(function, 1, 6);
        let problem = Problem {
            x: vec![1, 21, 6, 5 + nth],
            ..image()
        };
        assert!(
            bench.check::<f32>(&problem, CONTIGUOUS),
            "measured at least"
        );
        let solvers: &[u64] = match bench.is_cdna() {
            true => &[84, 107, 91, 85],
            false => &[91, 85],
        };
        match bench.decision().solver {
            Ok(solver) => assert!(solvers.contains(&solver), "{solver}"),
            Err(reason) => assert!(reason.starts_with("measured"), "{reason}"),
        }
        // Each was run once to warm up and three times, and the chosen one once more.
        let runs = bench.calls(RUN) as usize;
        let measured = 4 * solvers.len();
        assert!((measured..=measured + 1).contains(&runs), "{runs}");
    }
    let bench = Bench::new(Some("tune"));
    bench.sim.fail_miopen(COUNT, 1, 6);
    assert!(!bench.check::<f32>(&image(), CONTIGUOUS));
    let reason = bench.decision().solver.unwrap_err();
    assert!(reason.contains("miopenStatusNotImplemented"), "{reason}");
}

/// Builds of MIOpen may lack sources of kernels: the next solution is tried, if there is one.
#[test]
fn a_solution_that_does_not_compile_is_passed_over() {
    let bench = Bench::new(None);
    bench.learn::<f32>(&image());
    bench.sim.fail_miopen(COMPILE, 1, 7);
    for _ in 0..3 {
        assert_eq!(bench.check::<f32>(&image(), CONTIGUOUS), bench.is_cdna());
    }
    match bench.decision().solver {
        Ok(solver) => assert_eq!((solver, bench.calls(COMPILE)), (107, 2)),
        Err(reason) => {
            assert!(reason.contains(COMPILE.to_str().unwrap()), "{reason}");
            assert_eq!(bench.calls(COMPILE), 1);
            // Nobody waits for that again, until it is measured anew.
            let later = common::device();
            image().check::<f32>(&later, CONTIGUOUS);
            let reason = decisions(&later)[0].solver.clone().unwrap_err();
            assert!(reason.contains("found before"), "{reason}");
            assert_eq!(bench.calls(COMPILE), 1);
            bench.learn::<f32>(&image());
            let after = common::device();
            image().check::<f32>(&after, CONTIGUOUS);
            assert!(decisions(&after)[0].solver.is_ok());
        }
    }
}

/// A solution that fails while it is measured is out of the race.
#[test]
fn a_failure_while_measuring_is_no_error() {
    let bench = Bench::new(Some("tune"));
    for nth in [1, 2] {
        bench.sim.fail_miopen(RUN, nth, 7);
        let problem = Problem {
            dilation: nth as usize,
            ..image()
        };
        bench.check::<f32>(&problem, CONTIGUOUS);
    }
    assert_eq!(decisions(&bench.device).len(), 2);
}
