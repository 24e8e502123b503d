//! A rank that works in a thread of its own.

use super::command::{Command, Obey, Told};
use super::failure::Failed;
use super::plan::Rank;
use super::watch::{State, Watch};
use crate::engine::device::{diagnose, DeviceFault};
use crate::engine::forward::SampleParams;
use candle_core::{bail, Device, Result};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use worker::device::release_unused;

/// How often a wait looks whether the group has ended.
const LOOK: Duration = Duration::from_millis(20);
/// How long a thread may take to end.
const END: Duration = Duration::from_secs(5);

/// A rank besides the one that answers, wherever it works.
pub trait Member: Send {
    /// Which one.
    fn rank(&self) -> &Rank;

    /// Tells it what to do.
    ///
    /// # Errors
    /// If it is gone.
    fn tell(&self, number: u64, command: &Arc<Command>) -> Result<()>;

    /// Waits for what it has to say to the command that it was told first and has not answered.
    ///
    /// # Errors
    /// If the command or the group has failed.
    fn told(&self) -> Result<Told>;
}

/// A rank in a thread of this process.
pub struct RankThread {
    rank: Rank,
    commands: Sender<(u64, Arc<Command>)>,
    answers: Receiver<Result<Told>>,
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

impl RankThread {
    /// Starts the thread, which works until it is dropped or told to stop.
    ///
    /// # Errors
    /// The system's.
    pub fn spawn(
        rank: Rank,
        watch: &Arc<Watch>,
        mut model: impl Obey + 'static,
    ) -> std::io::Result<Self> {
        let (commands, told) = mpsc::channel::<(u64, Arc<Command>)>();
        let (reply, answers) = mpsc::channel();
        let (own, own_watch) = (rank.clone(), watch.clone());
        let builder = std::thread::Builder::new().name(format!("rank-{}", rank.number));
        let thread = builder.spawn(move || {
            own_watch.mark(own.number).is_here();
            for (number, command) in told {
                if matches!(*command, Command::Stop) {
                    break;
                }
                let answer = guarded(&own, &own_watch, &mut model, (number, &command), None);
                if reply.send(answer).is_err() {
                    break;
                }
            }
            drop(model);
            if let Err(error) = release_unused(&own.device) {
                tracing::warn!("{error}");
            }
        })?;
        Ok(Self {
            rank,
            commands,
            answers,
            watch: watch.clone(),
            thread: Some(thread),
        })
    }
}

impl Member for RankThread {
    fn rank(&self) -> &Rank {
        &self.rank
    }

    fn tell(&self, number: u64, command: &Arc<Command>) -> Result<()> {
        self.watch.mark(self.rank.number).is_told();
        match self.commands.send((number, command.clone())) {
            Ok(()) => Ok(()),
            Err(_) => bail!("its thread has ended"),
        }
    }

    fn told(&self) -> Result<Told> {
        loop {
            match self.answers.recv_timeout(LOOK) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) => self.watch.check()?,
                Err(RecvTimeoutError::Disconnected) => bail!("its thread has ended"),
            }
        }
    }
}

impl Drop for RankThread {
    fn drop(&mut self) {
        let _ = self.commands.send((u64::MAX, Arc::new(Command::Stop)));
        let Some(thread) = self.thread.take() else {
            return;
        };
        let start = Instant::now();
        while !thread.is_finished() {
            // One that hangs in its device's driver never ends; the process is about to.
            if self.watch.failure().is_some() && start.elapsed() >= END {
                tracing::error!(
                    "{} does not end; its thread is left behind",
                    self.rank.name()
                );
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // What it panicked of was told.
        let _ = thread.join();
    }
}

/// Has a rank carry a command out. If it panics, loses its device, or leaves others of its stage behind that wait for it,
/// the group ends; the next stage is told of other failures.
pub(super) fn guarded(
    rank: &Rank,
    watch: &Watch,
    model: &mut dyn Obey,
    (number, command): (u64, &Command),
    samples: Option<&[SampleParams]>,
) -> Result<Told> {
    let _works = watch.mark(rank.number).begin();
    let outcome = catch_unwind(AssertUnwindSafe(|| model.obey(number, command, samples)));
    let error = match outcome {
        Ok(Ok(told)) => return Ok(told),
        Ok(Err(error)) => error,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            watch.fail(
                rank.number,
                &format!("it panicked: {}", text.unwrap_or_default()),
            );
            watch.check()?;
            bail!("a rank panicked")
        }
    };
    // Who says that another one has failed is not at fault.
    if Failed::of(&error).is_none() {
        let lost = match &rank.device {
            Device::Rocm(_) => {
                let _asks = watch.mark(rank.number).enter(State::Device);
                diagnose(&rank.device, &error)
            }
            _ => DeviceFault::Other(error.to_string()),
        };
        match lost {
            DeviceFault::Lost(reason) => watch.fail(rank.number, &reason),
            _ if rank.shards > 1 => match candle_rocm_collective::Error::of(&error) {
                // One of this stage's, which did not come to a collective.
                Some(candle_rocm_collective::Error::TimedOut { rank: missing, .. }) => {
                    watch.fail(rank.number - rank.shard + missing, &error.to_string());
                }
                _ => watch.fail(rank.number, &error.to_string()),
            },
            _ => {}
        }
    }
    model.fail(number, &error.to_string());
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::api::GraphUse;
    use crate::engine::group::link::{local, At, Inlet, LocalOutlet, Outlet};
    use crate::engine::group::plan::{SplitPlan, StagePlan};

    /// A limit for ranks that do not hang.
    const NEVER: Duration = Duration::from_secs(3600);

    /// The first of two stages, which does as it is asked to by a function.
    struct Stage<F> {
        act: F,
        outlet: LocalOutlet,
    }

    impl<F: FnMut(&mut LocalOutlet, At) -> Result<()> + Send> Obey for Stage<F> {
        fn obey(&mut self, number: u64, _: &Command, _: Option<&[SampleParams]>) -> Result<Told> {
            (self.act)(&mut self.outlet, (number, 0)).map(|()| Told::Done)
        }

        fn fail(&mut self, number: u64, reason: &str) {
            self.outlet.fail((number, usize::MAX), reason);
        }
    }

    /// Has the first of two stages act, and the second one, this thread, take what comes. Gives what both have to say.
    fn outcomes(
        act: impl FnMut(&mut LocalOutlet, At) -> Result<()> + Send + 'static,
        (steps, limit): (u64, Duration),
    ) -> (Vec<[Result<()>; 2]>, Option<Failed>) {
        let stage = |block: usize| StagePlan {
            blocks: block..block + 1,
            devices: vec![Device::Cpu],
            shares: Vec::new(),
        };
        let plan = SplitPlan {
            stages: vec![stage(0), stage(1)],
        };
        let ranks = plan.ranks();
        // Threads are looked at one by one, as those of GPUs are.
        let names = ranks.iter().map(|rank| (rank.name(), false));
        let watch = Watch::new(names, limit);
        let watcher = watch.start().unwrap();
        let (outlet, mut inlet) = local(1, &Device::Cpu, &watch).unwrap();
        let model = Stage { act, outlet };
        let thread = RankThread::spawn(ranks[0].clone(), &watch, model).unwrap();
        let command = Arc::new(Command::SetGraphs(GraphUse::Off));
        let mut outcomes = Vec::new();
        for number in 1..=steps {
            let _under_way = watch.begin();
            thread.tell(number, &command).unwrap();
            let taken = inlet.take((number, 0), &[]);
            outcomes.push([thread.told().map(drop), taken.map(drop)]);
        }
        let failure = watch.failure();
        drop(thread);
        watch.end();
        watcher.join().unwrap();
        (outcomes, failure)
    }

    fn at_fault(failure: Option<Failed>) -> String {
        let Some(Failed::Group { rank, reason }) = failure else {
            panic!("the group goes on: {failure:?}")
        };
        assert_eq!(rank, "rank 0 of 2 (cpu)");
        reason
    }

    #[test]
    fn a_rank_that_hangs_ends_the_group_by_name() {
        let (gate, closed) = mpsc::channel::<()>();
        let hang = move |_: &mut LocalOutlet, _: At| {
            let _ = closed.recv();
            Ok(())
        };
        let (outcomes, failure) = outcomes(hang, (1, Duration::from_millis(200)));
        let reason = at_fault(failure);
        assert!(reason.contains("does not get on"), "{reason}");
        for outcome in outcomes.into_iter().flatten() {
            let error = outcome.unwrap_err();
            assert!(
                matches!(Failed::of(&error), Some(Failed::Group { .. })),
                "{error}"
            );
        }
        // It goes on once nobody is left who could open the gate; until then its thread was left behind.
        drop(gate);
    }

    #[test]
    fn a_rank_that_panics_ends_the_group_by_name() {
        let (outcomes, failure) = outcomes(|_, _| panic!("a panic of a test"), (1, NEVER));
        let reason = at_fault(failure);
        assert!(reason.contains("a panic of a test"), "{reason}");
        assert!(outcomes
            .into_iter()
            .flatten()
            .all(|outcome| outcome.is_err()));
    }

    #[test]
    fn an_error_ends_its_step_only_and_the_next_stage_knows() {
        let mut steps = 0;
        let stumble = move |outlet: &mut LocalOutlet, at: At| {
            steps += 1;
            match steps {
                // What is handed on before an error stays behind.
                2 => {
                    outlet.hand((at.0, 1), &[])?;
                    bail!("a bad kernel")
                }
                _ => outlet.hand(at, &[]),
            }
        };
        let (outcomes, failure) = outcomes(stumble, (3, NEVER));
        assert_eq!(failure, None);
        let [[first, taken], [error, before], [last, then]] = &outcomes[..] else {
            panic!("not three steps")
        };
        assert!(first.is_ok() && taken.is_ok() && last.is_ok() && then.is_ok());
        let error = error.as_ref().unwrap_err();
        assert!(error.to_string().contains("a bad kernel"), "{error}");
        assert_eq!(Failed::of(error), None);
        assert!(before.is_err());
    }
}
