//! Running all launches of all cases on all archs and in all orders, and what is found by that.

use super::case::{Case, Reference};
use super::finding::{Finding, Kind};
use super::golden::Golden;
use super::judge::{judge, judge_pair, Fault, Outputs};
use super::prepare::{points, Data, Ready};
use super::session::{Ran, Refusal, Session, Setup, Source};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::Mutex;
use std::time::Duration;

/// Crashes of a case in one setup, after which its other launches are left out: each costs a process.
const MOST_CRASHES: usize = 3;

/// What runs are made with.
pub(super) struct Plan<'a> {
    pub program: &'a Path,
    pub source: Source<'a>,
    pub setups: Vec<Setup>,
    pub cases: &'a [Case],
    pub limit: Duration,
    pub jobs: usize,
    pub seed: u64,
    pub golden: Option<&'a Golden>,
    pub progress: &'a (dyn Fn(&str) + Sync),
}

/// A fault at a launch in a setup.
pub(super) struct Seen {
    pub case: usize,
    pub launch: usize,
    pub setup: usize,
    /// The setup that it was compared with.
    pub other: Option<usize>,
    pub fault: Fault,
}

/// All that runs gave.
#[derive(Default)]
pub(super) struct Runs {
    pub seen: Vec<Seen>,
    /// Launches that were carried out, by case.
    pub launches: BTreeMap<usize, usize>,
    /// Archs that cases ran on, by case.
    pub archs: BTreeMap<usize, Vec<String>>,
}

/// Why nothing could run.
pub(super) enum Obstacle {
    /// The unit does not compile on a setup.
    Rejected(Setup, String),
    /// A worker does not work.
    Broken(String),
}

/// Launches of cases, in order.
pub(super) struct Launches<'a>(pub Vec<(usize, Ready<'a>)>);

/// Prepares all launches of all cases; cases with mistakes have none.
pub(super) fn launches<'a>(cases: &'a [Case], seed: u64) -> (Launches<'a>, Vec<Finding>) {
    let (mut all, mut mistakes) = (Vec::new(), Vec::new());
    for (index, case) in cases.iter().enumerate() {
        let points = match points(case) {
            Ok(points) => points,
            Err(why) => {
                mistakes.push(mistake(case, why));
                continue;
            }
        };
        for point in points {
            match Ready::new(case, &point, &Data::new(), seed) {
                Ok(ready) => all.push((index, ready)),
                Err(why) => {
                    let mut found = mistake(case, why);
                    found.sizes = point;
                    mistakes.push(found);
                    break;
                }
            }
        }
    }
    (Launches(all), mistakes)
}

fn mistake(case: &Case, why: String) -> Finding {
    let mut finding = Finding::of_unit(Kind::Case, &case.kernel, None, why);
    finding.case = Some(case.name.clone());
    finding
}

/// What a launch gave in a setup; none if it was left out.
type Result1 = Option<Result<Outputs, Vec<Fault>>>;

impl Plan<'_> {
    /// Runs everything.
    pub fn run(&self, launches: &Launches) -> Result<Runs, Obstacle> {
        let Launches(launches) = launches;
        if launches.is_empty() {
            return Ok(Runs::default());
        }
        let hung: Vec<AtomicBool> = self.cases.iter().map(|_| AtomicBool::new(false)).collect();
        let results: Vec<Mutex<(Vec<Result1>, String)>> =
            self.setups.iter().map(|_| Mutex::default()).collect();
        let (next, obstacle) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for _ in 0..self.jobs.clamp(1, self.setups.len().max(1)) {
                scope.spawn(|| loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(setup) = self.setups.get(index) else {
                        return;
                    };
                    if !lock(&obstacle).is_empty() {
                        return;
                    }
                    match self.run_setup(setup, launches, &hung) {
                        Ok(done) => *lock(&results[index]) = done,
                        Err(why) => lock(&obstacle).push((index, why)),
                    }
                });
            }
        });
        let obstacles = obstacle
            .into_inner()
            .unwrap_or_else(|error| error.into_inner());
        if let Some((_, why)) = obstacles.into_iter().min_by_key(|(index, _)| *index) {
            return Err(why);
        }
        let results = results
            .into_iter()
            .map(|each| each.into_inner().unwrap_or_else(|error| error.into_inner()));
        Ok(self.compare(launches, results.collect()))
    }

    fn start(&self, setup: &Setup) -> Result<Session, Obstacle> {
        Session::start(self.program, setup, &self.source, self.limit).map_err(|refusal| {
            match refusal {
                Refusal::Rejected(log) => Obstacle::Rejected(setup.clone(), log),
                Refusal::Broken(why) => Obstacle::Broken(why),
            }
        })
    }

    fn run_setup(
        &self,
        setup: &Setup,
        launches: &[(usize, Ready)],
        hung: &[AtomicBool],
    ) -> Result<(Vec<Result1>, String), Obstacle> {
        let mut session = self.start(setup)?;
        let arch = session.arch.clone();
        (self.progress)(&format!("running on {arch}, order {}", setup.order()));
        let mut crashes = BTreeMap::<usize, usize>::new();
        let mut results = Vec::new();
        for (case, ready) in launches {
            let crashed = crashes.get(case).copied().unwrap_or(0);
            if crashed >= MOST_CRASHES || hung[*case].load(Ordering::Relaxed) {
                results.push(None);
                continue;
            }
            let ran = session.run(ready);
            if let Ran::Died { hangs, .. } = &ran {
                *crashes.entry(*case).or_default() += 1;
                if *hangs {
                    hung[*case].store(true, Ordering::Relaxed);
                }
                results.push(Some(judge(ready, ran)));
                session = self.start(setup)?;
                continue;
            }
            results.push(Some(judge(ready, ran)));
        }
        Ok((results, arch))
    }

    fn compare(&self, launches: &[(usize, Ready)], results: Vec<(Vec<Result1>, String)>) -> Runs {
        let mut runs = Runs::default();
        for (launch, (case, ready)) in launches.iter().enumerate() {
            let case = *case;
            let all: Vec<Option<&Result<Outputs, Vec<Fault>>>> = results
                .iter()
                .map(|(each, _)| each.get(launch).and_then(Option::as_ref))
                .collect();
            let mut add = |setup: usize, other: Option<usize>, fault: Fault| {
                runs.seen.push(Seen {
                    case,
                    launch,
                    setup,
                    other,
                    fault,
                });
            };
            for (setup, result) in all.iter().enumerate() {
                let outputs = match result {
                    None => continue,
                    Some(Ok(outputs)) => outputs,
                    Some(Err(faults)) => {
                        faults
                            .iter()
                            .for_each(|fault| add(setup, None, fault.clone()));
                        continue;
                    }
                };
                let of_golden = self
                    .golden
                    .and_then(|golden| golden.judge(ready, outputs, setup == 0));
                if let Some(fault) = of_golden {
                    add(setup, None, fault);
                }
                // The same arch in its first order, and the first arch.
                let same = |other: &usize| self.setups[*other].arch == self.setups[setup].arch;
                let first_of_arch = (0..setup).find(same);
                let first = if setup == 0 { None } else { Some(0) };
                let pair = match first_of_arch {
                    Some(other) => Some((Kind::Order, other)),
                    None => first.map(|other| (Kind::Width, other)),
                };
                let others = pair.and_then(|(kind, other)| match all[other] {
                    Some(Ok(others)) => Some((kind, other, others)),
                    _ => None,
                });
                if let Some((kind, other, others)) = others {
                    if let Some(fault) = judge_pair(ready, kind, outputs, others) {
                        add(setup, Some(other), fault);
                    }
                }
            }
            *runs.launches.entry(case).or_default() += all.iter().flatten().count();
            let archs = runs.archs.entry(case).or_default();
            for (result, (_, arch)) in all.iter().zip(&results) {
                if result.is_some() && !archs.contains(arch) {
                    archs.push(arch.clone());
                }
            }
        }
        runs
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|error| error.into_inner())
}

/// Findings by case and kind: each at its first launch, with the number of all.
pub(super) fn findings(plan: &Plan, launches: &Launches, seen: &[Seen]) -> Vec<(Finding, usize)> {
    let mut order: Vec<usize> = (0..seen.len()).collect();
    order.sort_by_key(|&at| (seen[at].case, seen[at].launch, seen[at].setup));
    let mut found: Vec<((usize, Kind), (Finding, usize))> = Vec::new();
    for at in order {
        let Seen {
            case,
            launch,
            setup,
            other,
            fault,
        } = &seen[at];
        let key = (*case, fault.kind);
        let setup = &plan.setups[*setup];
        let arch = setup.arch.clone().unwrap_or_else(|| "the GPU".to_string());
        let at_first = match found.iter_mut().find(|(each, _)| *each == key) {
            Some((_, (finding, _))) => {
                finding.count += 1;
                finding
            }
            None => {
                let ready = &launches.0[*launch].1;
                let finding = Finding {
                    kind: fault.kind,
                    kernel: ready.case.kernel.clone(),
                    case: Some(ready.case.name.clone()),
                    archs: Vec::new(),
                    orders: Vec::new(),
                    sizes: ready.point.clone(),
                    message: fault.message.clone(),
                    difference: fault.difference.clone(),
                    file: None,
                    line: None,
                    count: 1,
                    input: None,
                    known: None,
                };
                found.push((key, (finding, at)));
                match found.last_mut() {
                    Some((_, (finding, _))) => finding,
                    None => continue,
                }
            }
        };
        let with = other.and_then(|other| plan.setups[other].arch.clone());
        for arch in [Some(arch), with.filter(|_| fault.kind == Kind::Width)]
            .into_iter()
            .flatten()
        {
            if !at_first.archs.contains(&arch) {
                at_first.archs.push(arch);
            }
        }
        if !at_first.orders.contains(&setup.order()) {
            at_first.orders.push(setup.order());
        }
    }
    found.into_iter().map(|(_, finding)| finding).collect()
}

/// Whether a case's outputs are compared with a reference.
pub(super) fn has_reference(case: &Case) -> bool {
    !matches!(case.reference, Reference::None)
}
