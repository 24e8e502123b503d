//! Ranks whose tensors go through RCCL: the simulator's, or the real one where there are GPUs. Each test runs in a
//! process of its own, with as many devices as it needs.

mod common;

use candle::{DType, Device, Result, Tensor, Var};
use candle_rocm_collective::rccl::{self, Settings};
use candle_rocm_collective::training::{are_equal, Chain, DistributedOptimizer};
use candle_rocm_collective::{host, Choice, Communicator, Error, Lifeline, Options, Reduce};
use common::{free_port, place, ranks};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const CHILD: &str = "CANDLE_ROCM_TEST_CHILD";
const PORT: &str = "CANDLE_ROCM_TEST_PORT";
const NODE: &str = "CANDLE_ROCM_TEST_NODE";

/// A process of this test binary that runs one test, with so many devices if they are simulated.
fn child(name: &str, devices: usize, environment: &[(&str, String)]) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, name)
        .env("HIP_SIM_DEVICES", devices.to_string())
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test binary starts")
}

/// Runs a test in a process of its own, if GPUs are asked for.
fn on_gpus(name: &str, devices: usize, environment: &[(&str, String)], body: impl FnOnce()) {
    if std::env::var(CHILD).as_deref() == Ok(name) {
        return body();
    }
    if std::env::var("CANDLE_ROCM_TEST_DEVICE").as_deref() != Ok("rocm") {
        eprintln!("CANDLE_ROCM_TEST_DEVICE is not rocm: no GPU is asked for");
        return;
    }
    let output = child(name, devices, environment)
        .wait_with_output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{name}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

fn gpus(count: usize) -> Vec<Device> {
    (0..count).map(|at| Device::new_rocm(at).unwrap()).collect()
}

/// Whole numbers, so that sums are exact in any order.
fn numbers(rank: &Communicator, count: usize, dtype: DType) -> Result<Tensor> {
    let values = (0..count).map(|at| ((at * 7 + rank.rank() * 11) % 23) as f32);
    Tensor::from_vec(values.collect::<Vec<_>>(), count, &Device::Cpu)?
        .to_dtype(dtype)?
        .to_device(rank.device())
}

fn values(x: &Tensor) -> Result<Vec<f64>> {
    let x = x.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    x.flatten_all()?.to_vec1::<f64>()
}

/// One of each collective, in every dtype that is reduced.
fn everything(rank: &Communicator) -> Result<Vec<Vec<f64>>> {
    let mut found = Vec::new();
    for dtype in [
        DType::U8,
        DType::U32,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ] {
        // Across its rows, from its middle: neither dense nor at the beginning.
        let x = numbers(rank, 84, dtype)?.reshape((6, 14))?;
        let x = x.narrow(0, 1, 4)?.t()?.narrow(0, 1, 12)?;
        found.push(values(&rank.all_reduce(&x, Reduce::Sum)?)?);
        found.push(values(&rank.all_reduce(&x, Reduce::Max)?)?);
        found.push(values(&rank.start_all_reduce(&x, Reduce::Min)?.wait()?)?);
        found.push(values(&rank.all_gather(&x)?)?);
        found.push(values(&rank.reduce_scatter(&x, Reduce::Sum)?)?);
        found.push(values(&rank.broadcast(&x, 1)?)?);
        let (next, before) = (
            (rank.rank() + 1) % rank.size(),
            (rank.rank() + rank.size() - 1) % rank.size(),
        );
        let received = rank.exchange(&[(&x, next)], &[((12, 4).into(), dtype, before)])?;
        found.push(values(&received[0])?);
        rank.barrier()?;
    }
    // Several on their way at once, and one on the device's own stream behind them.
    let x = numbers(rank, 5000, DType::F32)?;
    let begun = [
        rank.start_all_reduce(&x, Reduce::Sum)?,
        rank.start_all_reduce(&(&x * 2.0)?, Reduce::Sum)?,
    ];
    found.push(values(&rank.all_reduce(&x, Reduce::Max)?)?);
    for begun in begun {
        found.push(values(&begun.wait()?)?);
    }
    let part = rank
        .split(Some(rank.rank() as u32 % 2))?
        .expect("it has a color");
    found.push(values(&part.all_reduce(&x, Reduce::Sum)?)?);
    Ok(found)
}

fn of_the_cpu(size: usize) -> Vec<Vec<Vec<f64>>> {
    let group = host::group(&vec![Device::Cpu; size]).unwrap();
    let found = ranks(group, |rank| everything(&rank));
    found.into_iter().map(Result::unwrap).collect()
}

#[test]
fn gpus_of_a_process_get_what_ranks_in_memory_get() {
    let name = "gpus_of_a_process_get_what_ranks_in_memory_get";
    on_gpus(name, 4, &[], || {
        for size in [2, 4] {
            let group = rccl::group(&gpus(size)).unwrap();
            assert_eq!(
                (group[1].rank(), group[1].size(), group[1].backend()),
                (1, size, "rccl")
            );
            assert!(group[0].is_capturable() && group[0].runs_in_background());
            let found = ranks(group, |rank| everything(&rank));
            for (found, expected) in found.into_iter().zip(of_the_cpu(size)) {
                assert_eq!(found.unwrap(), expected);
            }
        }
        assert!(rccl::version().unwrap().starts_with('2'));
    });
}

/// What each process of a group of several does: two GPUs here, one there.
fn several(run: impl Fn(Communicator) -> Result<()> + Sync) {
    let node: usize = std::env::var(NODE).unwrap().parse().unwrap();
    let port = std::env::var(PORT).unwrap().parse().unwrap();
    let mut meeting = place(port, node, 2).meet(&[]).unwrap();
    // Each process has GPUs of its own.
    let here = match node {
        0 => vec![Device::new_rocm(0).unwrap(), Device::new_rocm(1).unwrap()],
        _ => vec![Device::new_rocm(2).unwrap()],
    };
    let group = rccl::connect(&mut meeting, &here).unwrap();
    for result in ranks(group, run) {
        result.unwrap();
    }
}

fn processes(name: &str) -> Vec<Child> {
    let port = free_port().to_string();
    let node = |node: usize| {
        let environment = [(PORT, port.clone()), (NODE, node.to_string())];
        child(name, 3, &environment)
    };
    vec![node(0), node(1)]
}

fn succeeds(child: Child) {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}\n{said}"
    );
}

/// Runs a test in two processes, if GPUs are asked for. `watch` sees both; each child runs `body`.
fn in_processes(
    name: &str,
    body: impl Fn(Communicator) -> Result<()> + Sync,
    watch: impl FnOnce(Vec<Child>),
) {
    if std::env::var(CHILD).as_deref() == Ok(name) {
        return several(body);
    }
    if std::env::var("CANDLE_ROCM_TEST_DEVICE").as_deref() == Ok("rocm") {
        watch(processes(name));
    }
}

#[test]
fn gpus_of_two_processes_get_what_ranks_in_memory_get() {
    in_processes(
        "gpus_of_two_processes_get_what_ranks_in_memory_get",
        |rank| {
            let found = everything(&rank)?;
            assert_eq!(found, of_the_cpu(3)[rank.rank()]);
            // Nobody leaves while another one still works.
            rank.barrier()
        },
        |children| children.into_iter().for_each(succeeds),
    );
}

#[test]
fn a_process_that_is_killed_is_named() {
    in_processes(
        "a_process_that_is_killed_is_named",
        |rank| {
            rank.barrier()?;
            if rank.rank() == 2 {
                // Ready to be killed.
                println!("READY");
                loop {
                    std::thread::park();
                }
            }
            let x = numbers(&rank, 100, DType::F32)?;
            let reduced = rank
                .all_reduce(&x, Reduce::Sum)
                .and_then(|_| rank.barrier());
            let error = reduced.unwrap_err();
            let is_named = matches!(
                Error::of(&error),
                Some(Error::RankFailed {
                    rank: 2,
                    size: 3,
                    ..
                })
            );
            assert!(is_named, "{error}");
            assert!(rank.barrier().is_err());
            Ok(())
        },
        |mut children| {
            use std::io::{BufRead, BufReader};
            let mut victim = children.pop().unwrap();
            let said = BufReader::new(victim.stdout.take().unwrap());
            let ready = said
                .lines()
                .map_while(std::io::Result::ok)
                .find(|line| line.contains("READY"));
            assert!(ready.is_some());
            victim.kill().unwrap();
            victim.wait().unwrap();
            children.into_iter().for_each(succeeds);
        },
    );
}

#[test]
fn calls_that_do_not_fit_are_named() {
    let name = "calls_that_do_not_fit_are_named";
    on_gpus(name, 2, &[], || {
        let results = ranks(rccl::group(&gpus(2)).unwrap(), |rank| {
            let x = Tensor::zeros((3, 1 + rank.rank()), DType::F32, rank.device())?;
            rank.all_reduce(&x, Reduce::Sum)?;
            rank.barrier()
        });
        for result in results {
            let error = result.unwrap_err();
            let text = error.to_string();
            assert!(
                matches!(Error::of(&error), Some(Error::Mismatch { .. })),
                "{text}"
            );
            assert!(text.contains("[3, 1]") && text.contains("[3, 2]"), "{text}");
        }
        let results = ranks(rccl::group(&gpus(2)).unwrap(), |rank| match rank.rank() {
            0 => {
                rank.send(&Tensor::zeros(3, DType::F32, rank.device())?, 1)?;
                rank.barrier()
            }
            _ => {
                rank.recv(4, DType::F32, 0)?;
                rank.barrier()
            }
        });
        for result in results {
            let error = result.unwrap_err();
            assert!(
                matches!(Error::of(&error), Some(Error::Mismatch { .. })),
                "{error}"
            );
        }
    });
}

#[test]
fn a_rank_that_gives_up_ends_the_group() {
    let name = "a_rank_that_gives_up_ends_the_group";
    on_gpus(name, 3, &[], || {
        let results = ranks(rccl::group(&gpus(3)).unwrap(), |rank| {
            if rank.rank() == 1 {
                rank.abort("its GPU is lost");
            }
            rank.barrier()
        });
        let failed = Error::RankFailed {
            rank: 1,
            size: 3,
            reason: "its GPU is lost".to_string(),
        };
        for result in results {
            let error = result.unwrap_err();
            assert_eq!(Error::of(&error), Some(&failed), "{error}");
        }
    });
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let name = "a_rank_that_does_not_come_is_named";
    on_gpus(name, 2, &[], || {
        let settings = Settings {
            collective: Duration::from_millis(200),
            ..Settings::default()
        };
        let results = ranks(
            rccl::group_with(&gpus(2), settings).unwrap(),
            |rank| match rank.rank() {
                0 => rank.barrier(),
                _ => Ok(()),
            },
        );
        let error = results[0].as_ref().unwrap_err();
        let is_named = matches!(
            Error::of(error),
            Some(Error::TimedOut {
                rank: 1,
                size: 2,
                ..
            })
        );
        assert!(is_named, "{error}");
    });
}

#[test]
fn what_rccl_cannot_do_is_refused() {
    let refused = |devices: &[Device]| {
        let error = rccl::group(devices).unwrap_err();
        assert!(
            matches!(Error::of(&error), Some(Error::InvalidArgument { .. })),
            "{error}"
        );
    };
    refused(&[]);
    refused(&[Device::Cpu, Device::Cpu]);
    on_gpus("what_rccl_cannot_do_is_refused", 2, &[], || {
        let gpu = Device::new_rocm(0).unwrap();
        refused(&[gpu.clone(), Device::new_rocm_with_stream(0).unwrap()]);
        // One rank is a group as well.
        let alone = rccl::group(&[gpu]).unwrap().remove(0);
        let x = numbers(&alone, 3, DType::F32).unwrap();
        let sum = alone.all_reduce(&x, Reduce::Sum).unwrap();
        assert_eq!(values(&sum).unwrap(), values(&x).unwrap());
        alone.barrier().unwrap();
    });
}

#[test]
fn a_start_that_fails_is_no_end_of_the_program() {
    let name = "a_start_that_fails_is_no_end_of_the_program";
    on_gpus(
        name,
        2,
        &[("HIP_SIM_FAIL", "rccl-init:1".to_string())],
        || {
            let error = rccl::group(&gpus(2)).unwrap_err();
            let is_named = matches!(
                Error::of(&error),
                Some(Error::Unavailable {
                    backend: "rccl",
                    ..
                })
            );
            assert!(is_named, "{error}");
            assert_eq!(host::group(&gpus(2)).unwrap().len(), 2);
        },
    );
}

#[test]
fn a_first_collective_that_hangs_is_aborted() {
    let name = "a_first_collective_that_hangs_is_aborted";
    on_gpus(
        name,
        2,
        &[("HIP_SIM_FAIL", "rccl-hang:1".to_string())],
        || {
            let settings = Settings {
                proof: Duration::from_millis(500),
                ..Settings::default()
            };
            let error = rccl::group_with(&gpus(2), settings).unwrap_err();
            let text = error.to_string();
            assert!(
                matches!(Error::of(&error), Some(Error::Stalled { size: 2, .. })),
                "{text}"
            );
            assert!(
                text.contains("NCCL_PROTO=Simple") && text.contains("iommu=pt"),
                "{text}"
            );
        },
    );
}

#[test]
fn a_start_that_hangs_is_left_behind() {
    let name = "a_start_that_hangs_is_left_behind";
    on_gpus(name, 2, &[], || {
        let group = common::nodes(2, |mut meeting| {
            if meeting.node() == 0 {
                let settings = Settings {
                    start: Duration::from_millis(500),
                    ..Settings::default()
                };
                let here = [Device::new_rocm(0)?];
                return rccl::connect_with(&mut meeting, &here, settings).map(|_| ());
            }
            // One that meets the others, takes part in what is said before, and then does not come.
            meeting.all_gather(b"")?;
            meeting.all_gather(&1u64.to_le_bytes())?;
            meeting.broadcast(b"")?;
            let lifeline = Lifeline::new(&mut meeting, &[1, 1])?;
            let (tell, told) = std::sync::mpsc::channel();
            lifeline.on_failure(move |failure| tell.send(failure.clone()).unwrap());
            let failure = told.recv().unwrap();
            assert!(
                matches!(failure, Error::RankFailed { rank: 0, .. }),
                "{failure}"
            );
            Ok(())
        });
        let error = group[0].as_ref().unwrap_err();
        let is_named = matches!(Error::of(error), Some(Error::Stalled { size: 2, .. }));
        assert!(is_named, "{error}");
        group[1].as_ref().unwrap();
    });
}

#[test]
fn errors_of_rccl_end_the_group() {
    let name = "errors_of_rccl_end_the_group";
    // The proof of two ranks is six calls.
    on_gpus(name, 2, &[("HIP_SIM_FAIL", "rccl:7".to_string())], || {
        let results = ranks(rccl::group(&gpus(2)).unwrap(), |rank| {
            let x = numbers(&rank, 9, DType::F32)?;
            rank.all_reduce(&x, Reduce::Sum)?;
            rank.barrier()
        });
        for result in results {
            let error = result.unwrap_err();
            let is_named = matches!(Error::of(&error), Some(Error::RankFailed { size: 2, .. }));
            assert!(is_named && error.to_string().contains("RCCL"), "{error}");
        }
    });
}

#[test]
fn it_can_be_asked_for_and_is_among_what_is_tried() {
    let name = "it_can_be_asked_for_and_is_among_what_is_tried";
    on_gpus(name, 2, &[], || {
        for choice in [Choice::Rccl, Choice::Auto] {
            let options = Options {
                choice,
                remembers: false,
                ..Options::default()
            };
            let group = candle_rocm_collective::group(&gpus(2), &options).unwrap();
            let report = group[0].report().unwrap();
            assert!(
                report.tried.iter().any(|tried| tried.name == "rccl"),
                "{report}"
            );
            if choice == Choice::Rccl {
                assert_eq!(group[0].backend(), "rccl");
            }
            let sum = |rank: Communicator| {
                let x = numbers(&rank, 9, DType::F32)?;
                values(&rank.all_reduce(&x, Reduce::Sum)?)
            };
            let expected = ranks(host::group(&vec![Device::Cpu; 2]).unwrap(), sum);
            for (found, expected) in ranks(group, sum).into_iter().zip(expected) {
                assert_eq!(found.unwrap(), expected.unwrap());
            }
        }
    });
}

/// What two layers learn in some steps, each rank from rows of its own, and whether all ranks have the same weights.
fn learn(rank: &Communicator) -> Result<(Vec<f64>, bool)> {
    let device = rank.device();
    let matrix = |seed: usize, shape: (usize, usize)| {
        let value = |at: usize| ((at * 13 + seed * 29) % 17) as f32 / 17.0 - 0.5;
        let values: Vec<f32> = (0..shape.0 * shape.1).map(value).collect();
        Tensor::from_vec(values, shape, device)
    };
    let layers = [
        Var::from_tensor(&matrix(1, (5, 8))?)?,
        Var::from_tensor(&matrix(2, (8, 3))?)?,
    ];
    let (x, y) = (
        matrix(3 + rank.rank(), (4, 5))?,
        matrix(7 + rank.rank(), (4, 3))?,
    );
    let blocks = layers.iter().map(|layer| vec![layer.clone()]).collect();
    let mut optimizer: DistributedOptimizer<candle_nn::SGD> =
        DistributedOptimizer::with_buckets(rank.clone(), blocks, 0.5, 1)?;
    for _ in 0..4 {
        let mut chain = Chain::new(&x);
        chain.block(|x| x.matmul(&layers[0])?.tanh())?;
        chain.block(|x| x.matmul(&layers[1]))?;
        optimizer.step_chain(chain, |found| candle_nn::loss::mse(found, &y))?;
    }
    let weights = layers.iter().map(|layer| values(layer));
    Ok((
        weights.collect::<Result<Vec<_>>>()?.concat(),
        are_equal(rank, &layers)?,
    ))
}

#[test]
fn gradients_are_reduced_on_a_stream_of_their_own() {
    let name = "gradients_are_reduced_on_a_stream_of_their_own";
    on_gpus(name, 2, &[], || {
        let of_the_cpu = ranks(host::group(&vec![Device::Cpu; 2]).unwrap(), |rank| {
            learn(&rank)
        });
        let found = ranks(rccl::group(&gpus(2)).unwrap(), |rank| learn(&rank));
        for (found, expected) in found.into_iter().zip(of_the_cpu) {
            let ((found, are_equal), (expected, _)) = (found.unwrap(), expected.unwrap());
            assert!(are_equal);
            let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-5;
            assert!(
                found.iter().zip(&expected).all(near),
                "{found:?} {expected:?}"
            );
        }
    });
}

#[test]
fn collectives_are_recorded_in_graphs() {
    let name = "collectives_are_recorded_in_graphs";
    on_gpus(name, 2, &[], || {
        let results = ranks(rccl::group(&gpus(2)).unwrap(), |rank| {
            let x = numbers(&rank, 64, DType::F32)?;
            let expected = values(&rank.all_reduce(&x, Reduce::Sum)?)?;
            let device = rank.device().as_rocm_device()?.device().clone();
            let capture = candle_rocm::Capture::begin(&device)?;
            let sum = rank.all_reduce(&x, Reduce::Sum)?;
            let twice = rank.all_reduce(&sum, Reduce::Sum)?;
            let graph = capture.end()?;
            for _ in 0..3 {
                // SAFETY: the tensor that was made before lives until the results have been read.
                unsafe { graph.launch()? };
            }
            let found = values(&twice)?;
            rank.barrier()?;
            Ok((found, expected))
        });
        for result in results {
            let (found, expected) = result.unwrap();
            let twice: Vec<f64> = expected.iter().map(|value| 2.0 * value).collect();
            assert_eq!(found, twice);
        }
    });
}
