//! Suites: what there is to compare, by name.

use crate::{rocm, suites, Arrangement, Report};
use candle_core::{Device, DeviceLocation, Result};
use std::panic::{catch_unwind, AssertUnwindSafe};

/// How much a suite compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Every operation and dtype, in few shapes and memory layouts: seconds for all suites on a GPU.
    Small,
    /// Everything.
    Full,
}

/// What a suite runs on.
#[derive(Clone, Debug)]
pub struct Context {
    /// The device under test.
    pub device: Device,
    /// How much is compared.
    pub size: Size,
}

impl Context {
    /// All of a list, or in small runs the first `small` of it.
    pub fn first<'a, T>(&self, small: usize, all: &'a [T]) -> &'a [T] {
        match self.size {
            Size::Small => &all[..small.min(all.len())],
            Size::Full => all,
        }
    }

    /// Ways of lying in memory: all, or in small runs a dense one and one with gaps and an offset.
    pub fn arrangements(&self) -> &'static [Arrangement] {
        self.pick(
            &[Arrangement::Contiguous, Arrangement::Narrowed],
            &Arrangement::ALL,
        )
    }

    /// The same GPU with a stream of its own.
    pub(crate) fn another_stream(&self) -> Result<Device> {
        match self.device.location() {
            DeviceLocation::Rocm { gpu_id } => Device::new_rocm_with_stream(gpu_id),
            other => candle_core::bail!("{other:?} is no AMD GPU"),
        }
    }

    /// One of two values.
    pub fn pick<T>(&self, small: T, full: T) -> T {
        match self.size {
            Size::Small => small,
            Size::Full => full,
        }
    }
}

type Run = fn(&Context, &mut Report) -> Result<()>;

/// Comparisons of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// Its name, as no other suite has.
    pub name: &'static str,
    /// Whether what passes belongs into the table of operations and dtypes.
    pub is_listed: bool,
    /// Whether the device under test has a part in it.
    pub uses_device: bool,
    run: Run,
}

impl Suite {
    /// One whose comparisons belong into the table of operations.
    pub(crate) const fn listed(name: &'static str, run: Run) -> Self {
        Suite {
            name,
            is_listed: true,
            uses_device: true,
            run,
        }
    }

    /// One of behaviour beside that: errors, gradients, several operations together.
    pub(crate) const fn unlisted(name: &'static str, run: Run) -> Self {
        Suite {
            name,
            is_listed: false,
            uses_device: true,
            run,
        }
    }

    /// One that tries the CPU's side of what others compare with.
    pub(crate) const fn on_cpu(name: &'static str, run: Run) -> Self {
        Suite {
            uses_device: false,
            ..Self::unlisted(name, run)
        }
    }

    /// Compares. What ends a suite early, an error or a panic, is recorded as a failure of the operation that has the
    /// suite's name; an unlisted suite that made no comparison of its own and came to its end passes as one.
    pub fn run(&self, context: &Context, report: &mut Report) {
        let before = report.comparisons().len();
        let outcome = catch_unwind(AssertUnwindSafe(|| (self.run)(context, report)));
        let failure = match outcome {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(panic) => Some(format!("panics: {}", message(&*panic))),
        };
        let compared = report.comparisons().len() > before;
        match failure {
            None if compared => {}
            None if self.is_listed => {
                let nothing = "nothing was compared".to_string();
                report.record(self.name, "", "", Some(nothing));
            }
            outcome => report.record(self.name, "", "", outcome),
        }
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    match panic.downcast_ref::<String>() {
        Some(message) => message,
        None => panic.downcast_ref::<&str>().copied().unwrap_or("?"),
    }
}

/// Runs a suite in full on the device under test, as a test: writes its table for the support page if
/// `CANDLE_ROCM_SUPPORT_DIR` names a folder, then panics if anything failed.
pub fn check(name: &str) {
    let suite = suites()
        .into_iter()
        .find(|suite| suite.name == name)
        .unwrap_or_else(|| panic!("there is no suite {name}"));
    let context = Context {
        device: rocm(),
        size: Size::Full,
    };
    let mut report = Report::default();
    suite.run(&context, &mut report);
    if let (true, Some(folder)) = (suite.is_listed, std::env::var_os("CANDLE_ROCM_SUPPORT_DIR")) {
        let arch = std::env::var("HIP_SIM_ARCH").unwrap_or_else(|_| "device".into());
        let file = std::path::Path::new(&folder).join(format!("{name}-{arch}.tsv"));
        report
            .write_table(&file)
            .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    }
    let failures: Vec<String> = report.failures().collect();
    assert!(
        failures.is_empty(),
        "{} of {} comparisons failed:\n{}",
        failures.len(),
        report.comparisons().len(),
        failures[..failures.len().min(40)].join("\n")
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Tensor};
    use std::collections::BTreeSet;

    fn on_cpu(run: Run) -> Vec<(String, Option<String>)> {
        let context = Context {
            device: Device::Cpu,
            size: Size::Small,
        };
        let mut seen = Vec::new();
        let mut report = Report::observed(|comparison| {
            // candle's errors have backtraces behind their first line, if the environment asks for them.
            let failure = comparison.failure.as_deref();
            let failure = failure.map(|text| text.lines().next().unwrap_or_default().to_string());
            seen.push((comparison.op.clone(), failure));
        });
        Suite::unlisted("suite", run).run(&context, &mut report);
        drop(report);
        seen
    }

    #[test]
    fn what_fails_is_data() {
        assert_eq!(on_cpu(|_, _| Ok(())), [("suite".to_string(), None)]);
        let [(op, failure)] = &on_cpu(|_, _| candle_core::bail!("no way"))[..] else {
            panic!("one failure");
        };
        assert_eq!((op.as_str(), failure.as_deref()), ("suite", Some("no way")));
        let panics = on_cpu(|_, _| panic!("at the disco"));
        assert_eq!(panics[0].1.as_deref(), Some("panics: at the disco"));
        let compared = on_cpu(|context, report| {
            let ones = |shape: usize| Tensor::ones(shape, DType::F32, &context.device);
            report.compare("same", "f32", "", 0., ones(3), ones(3));
            report.compare("twice", "f32", "", 0., ones(3), ones(3)? * 2.);
            report.compare("shape", "f32", "", 0., ones(3), ones(4));
            report.compare("error", "f32", "", 0., ones(3)?.get(7), ones(3));
            ensure_eq!(1 + 1, 3, "a sum");
            Ok(())
        });
        let failed: Vec<&str> = compared
            .iter()
            .filter(|(_, failure)| failure.is_some())
            .map(|(op, _)| op.as_str())
            .collect();
        assert_eq!(failed, ["twice", "shape", "error", "suite"]);
        assert_eq!(compared[0], ("same".to_string(), None));
        let (_, last) = &compared[4];
        assert_eq!(last.as_deref(), Some("a sum: 2 instead of 3"));
    }

    /// Each suite has its own name, and a test that runs it.
    #[test]
    fn every_suite_is_tested_once() {
        let names: Vec<&str> = suites().iter().map(|suite| suite.name).collect();
        let distinct: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(distinct.len(), names.len());
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
        let mut tested = Vec::new();
        for file in std::fs::read_dir(folder).unwrap() {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            let Some((_, tests)) = text.split_once("differential::tests! {") else {
                continue;
            };
            let (tests, _) = tests.split_once('}').unwrap();
            let names = tests.split('"').skip(1).step_by(2);
            tested.extend(names.map(str::to_string));
        }
        tested.sort();
        assert!(tested.iter().eq(distinct.iter()), "{tested:?} {distinct:?}");
    }

    #[test]
    fn small_runs_take_the_beginning_of_a_list() {
        let [small, full] = [Size::Small, Size::Full].map(|size| Context {
            device: Device::Cpu,
            size,
        });
        assert_eq!(small.first(2, &[1, 2, 3]), [1, 2]);
        assert_eq!(small.first(5, &[1, 2, 3]), [1, 2, 3]);
        assert_eq!(full.first(2, &[1, 2, 3]), [1, 2, 3]);
        assert!(full.arrangements().len() > small.arrangements().len());
    }
}
