//! The choice among backends that are slow, wrong or stuck, on the CPU.

use super::{choose, fastest, Attempt, Candidate, Choice, Options, Outcome};
use crate::{host, Backend, Communicator, Error, Reduce};
use candle::{DType, Device, Result, Shape, Tensor};
use std::sync::Arc;
use std::time::Duration;

/// What is wrong with a backend that otherwise goes through the host's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// One element of sums of more than 1000 is wrong, on the last rank.
    Sum,
    /// Messages are lost.
    Messages,
    /// The last rank does not come back from a sum.
    Hang,
    /// What was only enqueued has failed.
    Late,
}

#[derive(Debug)]
struct Faulty {
    fault: Fault,
    is_last: bool,
    inner: Arc<dyn Backend>,
}

impl Backend for Faulty {
    fn name(&self) -> &'static str {
        "faulty"
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn all_reduce(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        if self.is_last && self.fault == Fault::Hang {
            loop {
                std::thread::park();
            }
        }
        let sum = self.inner.all_reduce(x, by)?;
        match self.is_last && self.fault == Fault::Sum && sum.elem_count() > 1000 {
            false => Ok(sum),
            true => {
                let n = sum.elem_count();
                let head = sum.narrow(0, 0, n - 1)?;
                let last = (sum.narrow(0, n - 1, 1)? + 1.0)?;
                Tensor::cat(&[head, last], 0)
            }
        }
    }

    fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        self.inner.all_gather(x)
    }

    fn reduce_scatter(&self, x: &Tensor, by: Reduce) -> Result<Tensor> {
        self.inner.reduce_scatter(x, by)
    }

    fn broadcast(&self, x: &Tensor, root: usize) -> Result<Tensor> {
        self.inner.broadcast(x, root)
    }

    fn send(&self, x: &Tensor, to: usize) -> Result<()> {
        match self.fault {
            Fault::Messages => Ok(()),
            _ => self.inner.send(x, to),
        }
    }

    fn recv(&self, shape: &Shape, dtype: DType, from: usize) -> Result<Tensor> {
        self.inner.recv(shape, dtype, from)
    }

    fn barrier(&self) -> Result<()> {
        self.inner.barrier()
    }

    fn check(&self) -> Result<()> {
        match self.fault {
            Fault::Late => Err(Error::TimedOut {
                rank: 1,
                size: 2,
                op: "a collective",
                waited: Duration::ZERO,
            }
            .into()),
            _ => self.inner.check(),
        }
    }

    fn abort(&self, reason: &str) {
        self.inner.abort(reason);
    }
}

fn faulty(fault: Fault, devices: &[Device], timeout: Duration) -> Result<Vec<Communicator>> {
    let inner = host::group_within(devices, timeout)?;
    let wrap = |rank: Communicator| {
        let faulty = Faulty {
            fault,
            is_last: rank.rank() + 1 == rank.size(),
            inner: rank.carrier().clone(),
        };
        Communicator::new(
            rank.rank(),
            rank.size(),
            rank.device().clone(),
            Arc::new(faulty),
        )
    };
    Ok(inner.into_iter().map(wrap).collect())
}

const HOST: Candidate = Candidate {
    name: "host",
    make: host::group_within,
};

/// Candidates of which "peers" has a fault.
fn with_fault(make: fn(&[Device], Duration) -> Result<Vec<Communicator>>) -> [Candidate; 2] {
    [
        Candidate {
            name: "peers",
            make,
        },
        HOST,
    ]
}

fn options(choice: Choice, patience: Duration) -> Options {
    Options {
        choice,
        patience,
        sizes: vec![400, 4000],
        ..Options::default()
    }
}

const LONG: Duration = Duration::from_secs(60);

/// The reason for which "peers" was ruled out, the host being left.
fn ruled_out(candidates: &[Candidate], patience: Duration) -> String {
    let devices = [Device::Cpu, Device::Cpu, Device::Cpu];
    let group = choose(&devices, &options(Choice::Auto, patience), candidates).unwrap();
    assert_eq!(group[0].backend(), "host");
    let report = group[2].report().unwrap();
    assert!(matches!(report.tried[1].outcome, Outcome::Works { .. }));
    let Outcome::RuledOut { reason } = &report.tried[0].outcome else {
        panic!("{report}");
    };
    let text = report.to_string();
    assert!(
        text.contains(reason.as_str()) && text.ends_with("taken: host"),
        "{text}"
    );
    // What is left works.
    let sums = std::thread::scope(|scope| {
        let threads = group.iter().map(|rank| {
            scope.spawn(|| {
                let x = Tensor::new(&[rank.rank() as f32], rank.device())?;
                rank.all_reduce(&x, Reduce::Sum)?.to_vec1::<f32>()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads
            .into_iter()
            .map(|t| t.join().unwrap().unwrap())
            .collect::<Vec<_>>()
    });
    assert_eq!(sums, vec![vec![3.0]; 3]);
    // Asked for by name, it is an error with the same reason.
    let refused = choose(&devices, &options(Choice::Peers, patience), candidates).unwrap_err();
    let Some(Error::Unavailable {
        backend: "peers",
        reason: named,
    }) = Error::of(&refused)
    else {
        panic!("{refused}");
    };
    // Whichever rank tells it first, and of whichever: several may be waiting for each other.
    let told = |reason: &str| {
        let (_, told) = reason.split_once(": ").unwrap_or_default();
        told.replace(|c: char| c.is_ascii_digit(), "")
    };
    assert_eq!(told(named), told(reason));
    reason.clone()
}

#[test]
fn wrong_sums_rule_a_backend_out() {
    let reason = ruled_out(&with_fault(|d, t| faulty(Fault::Sum, d, t)), LONG);
    assert!(
        reason.starts_with(
            "rank 2: the sum of 1021 elements F32 is wrong: element 1020 is 7 instead of 6"
        ),
        "{reason}"
    );
}

#[test]
fn a_rank_that_hangs_rules_a_backend_out() {
    let patience = Duration::from_secs(2);
    let reason = ruled_out(
        &with_fault(|d, t| faulty(Fault::Hang, d, t * 100)),
        patience,
    );
    assert!(reason.contains("gave no answer within 2s"), "{reason}");
}

#[test]
fn lost_messages_and_late_errors_rule_a_backend_out() {
    let make = |d: &[Device], _| faulty(Fault::Messages, d, Duration::from_millis(300));
    let reason = ruled_out(&with_fault(make), LONG);
    assert!(reason.contains("did not come to"), "{reason}");
    let reason = ruled_out(&with_fault(|d, t| faulty(Fault::Late, d, t)), LONG);
    assert!(reason.contains("did not come to a collective"), "{reason}");
}

#[test]
fn what_cannot_be_made_is_ruled_out_with_its_reason() {
    let make = |_: &[Device], _| {
        Err(Error::Unavailable {
            backend: "peers",
            reason: "GPU 1 does not reach GPU 0".to_string(),
        }
        .into())
    };
    assert_eq!(
        ruled_out(&with_fault(make), LONG),
        "GPU 1 does not reach GPU 0"
    );
}

#[test]
fn several_that_work_are_measured() {
    let both = [
        Candidate {
            name: "peers",
            ..HOST
        },
        HOST,
    ];
    let devices = [Device::Cpu, Device::Cpu];
    let group = choose(&devices, &options(Choice::Auto, LONG), &both).unwrap();
    let report = group[1].report().unwrap();
    assert!(!report.was_remembered);
    for tried in &report.tried {
        let Outcome::Works { times } = &tried.outcome else {
            panic!("{report}");
        };
        let sizes: Vec<usize> = times.iter().map(|&(size, _)| size).collect();
        assert_eq!(sizes, [400, 4000]);
    }
    assert_eq!(report.fastest.len(), 2);
    // Nothing is measured where there is no choice.
    let group = choose(&devices, &options(Choice::Host, LONG), &both).unwrap();
    let report = group[0].report().unwrap();
    let times = Vec::new();
    assert_eq!(report.tried[0].outcome, Outcome::Works { times });
    assert_eq!(report.to_string(), "host: sums are right\ntaken: host");
}

#[test]
fn each_size_gets_what_was_fastest() {
    let devices = [Device::Cpu, Device::Cpu];
    let attempt = |name: &'static str, times: [u64; 3]| Attempt {
        name,
        ranks: Some(host::group(&devices).unwrap()),
        outcome: Outcome::Works {
            times: (0..3)
                .map(|i| (1 << i, Duration::from_micros(times[i])))
                .collect(),
        },
    };
    let mut tried = vec![attempt("a", [5, 9, 9]), attempt("b", [7, 9, 8])];
    assert_eq!(fastest(&tried, &[1, 2, 4]).unwrap(), ["a", "a", "b"]);
    // What graphs can record, as host cannot, may take up to twice as long.
    tried[0].ranks = Some(faulty(Fault::Late, &devices, LONG).unwrap());
    assert_eq!(fastest(&tried, &[1, 2, 4]).unwrap(), ["a"; 3]);
    tried[0] = Attempt {
        ranks: tried[0].ranks.take(),
        ..attempt("a", [15, 15, 17])
    };
    assert_eq!(fastest(&tried, &[1, 2, 4]).unwrap(), ["b", "a", "b"]);
    tried[0].rule_out("wrong".to_string());
    assert_eq!(fastest(&tried, &[1, 2, 4]).unwrap(), ["b"; 3]);
    tried[1].rule_out("wrong".to_string());
    assert_eq!(fastest(&tried, &[1, 2, 4]), None);
}

#[test]
fn choices_are_read_by_name() {
    for choice in Choice::ALL {
        assert_eq!(choice.as_str().parse(), Ok(choice));
    }
    let error = "nccl".parse::<Choice>().unwrap_err().to_string();
    assert!(error.contains("nccl") && error.contains("peers"), "{error}");
    // One device, or none of ours.
    let alone = choose(&[Device::Cpu], &options(Choice::Peers, LONG), &[HOST]).unwrap();
    assert_eq!(alone.len(), 1);
    let none = choose(
        &[Device::Cpu, Device::Cpu],
        &options(Choice::Rccl, LONG),
        &[HOST],
    );
    assert!(none.unwrap_err().to_string().contains("no such backend"));
    assert!(choose(&[], &options(Choice::Auto, LONG), &[HOST]).is_err());
}
