//! Graphs that cannot be had, are wrong, or cost more calls than they should. What the other tests must not meet happens
//! in processes of their own.

use super::graphs::{llama, mixed_answers, used};
use super::*;
use candle_core::quantized::GgmlDType;
use hip_sim::client::{Client, Failure as Injected};
use llm_worker_rocm::engine::api::GraphUse;
use llm_worker_rocm::engine::forward::{DecodeOutput, SampleParams};

/// Runs a test of this program in a process of its own, where the simulator does what the others must not meet.
pub fn in_a_process_of_its_own(test: &str, environment: Option<(&str, &str)>) {
    if !device().is_rocm() || Client::find().is_none() {
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test])
        .envs(environment)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

/// What cannot be recorded is enqueued: the shape of a capture that HIP declares spoiled, and all with an attention that
/// waits for the device.
#[test]
fn a_capture_that_fails_fails_no_request() {
    in_a_process_of_its_own(
        "graph_faults::a_shape_less",
        Some(("HIP_SIM_FAIL", "capture:1")),
    );
    let naive = Some(("CANDLE_ROCM_ATTENTION", "naive"));
    in_a_process_of_its_own("graph_faults::without_a_capture", naive);
}

/// The figures of an engine whose answers are those of one without graphs, whatever becomes of its graphs.
fn unharmed() -> Status {
    let (expected, without) = mixed_answers(GgmlDType::F16, KvDType::F16, false);
    let (found, with) = mixed_answers(GgmlDType::F16, KvDType::F16, true);
    assert_eq!(found, expected);
    assert_eq!((with.requests_failed, &without.without_graphs), (0, &None));
    assert!(without.decode.steps > 15 && with.decode.steps > 15);
    with
}

#[test]
#[ignore = "a capture fails: run by the test above"]
fn a_shape_less() {
    let status = unharmed();
    assert!(status.decode.graphs > 0, "{status:?}");
    assert_eq!(status.without_graphs, None);
}

#[test]
#[ignore = "its captures fail: run by the test above"]
fn without_a_capture() {
    let status = unharmed();
    assert_eq!(status.decode.graphs, 0);
    let reason = status.without_graphs.expect("a reason");
    assert!(
        reason.contains("3 shapes of steps could not be recorded"),
        "{reason}"
    );
}

/// A graph that computes something else than its launches is found before anybody sees its tokens.
#[test]
fn wrong_graphs_are_found_and_not_used() {
    let wrong = Some(("HIP_SIM_WRONG", "graph"));
    in_a_process_of_its_own("graph_faults::without_wrong_graphs", wrong);
}

#[test]
#[ignore = "its graphs are wrong: run by the test above"]
fn without_wrong_graphs() {
    let status = unharmed();
    assert_eq!(status.decode.graphs, 0);
    let reason = status.without_graphs.expect("a reason");
    assert!(
        reason.contains("differ from those of its launches"),
        "{reason}"
    );
}

/// Releases that are known for wrong graphs do not get any unless somebody insists.
#[test]
fn releases_with_wrong_graphs_have_none() {
    let known = Some(("HIP_SIM_VERSION", "7.2.3"));
    in_a_process_of_its_own("graph_faults::with_a_known_release", known);
}

#[test]
#[ignore = "needs an old release: run by the test above"]
fn with_a_known_release() {
    let status = unharmed();
    let arch = std::env::var("HIP_SIM_ARCH").unwrap_or_default();
    let known = ["", "gfx942", "gfx950"].contains(&arch.as_str());
    assert_eq!(status.decode.graphs == 0, known, "{status:?}");
    assert_eq!(status.without_graphs.is_some(), known, "{status:?}");
    // Whoever asks for them by name has them.
    let mut forward = with_cache(GgmlDType::F16, GraphUse::On);
    assert!(!is_graph(&mut *forward, &step_of(1, 1)));
    assert!(is_graph(&mut *forward, &step_of(2, 1)));
}

/// A model with a cache for a step of [`step_of`], and what it enqueues as.
fn with_cache(dtype: GgmlDType, graphs: GraphUse) -> Box<dyn Forward> {
    let mut forward = llama(dtype).forward;
    let cache = CacheOptions {
        blocks: 16,
        block_size: 16,
        dtype: KvDType::F16.into(),
        context: 64,
        states: 0,
        window_blocks: 0,
    };
    forward.reserve(&cache).unwrap();
    forward.set_graphs(graphs);
    forward
}

/// A new token behind so many keys, its own included, for each of so many sequences.
fn step_of(keys: usize, count: u32) -> Step {
    let sequences = (0..count).map(|id| StepSequence {
        id: u64::from(id),
        blocks: vec![id],
        keys,
        rows: 1,
        ..StepSequence::default()
    });
    Step {
        tokens: (0..count).map(|id| 4 + keys as u32 + id).collect(),
        sequences: sequences.collect(),
        outputs: (0..count).collect(),
    }
}

/// Whether the step was a graph, once it is done.
fn is_graph(forward: &mut dyn Forward, step: &Step) -> bool {
    let options = SamplingOptions::greedy();
    let sample = SampleParams {
        options: &options,
        position: 0,
    };
    let samples = vec![sample; step.tokens.len()];
    let decoded = forward.decode(step, Some(&samples)).unwrap();
    let DecodeOutput::Tokens(tokens) = decoded.output else {
        panic!("tokens were asked for")
    };
    assert_eq!(tokens.wait().unwrap().len(), step.tokens.len());
    decoded.graph
}

/// What a step enqueues once its shape is known: its words, the graph, an event, and a wait.
#[test]
fn a_step_is_a_launch_a_graph_and_an_event() {
    in_a_process_of_its_own("graph_faults::calls_of_a_step", None);
}

#[test]
#[ignore = "counts what the process does: run by the test above"]
fn calls_of_a_step() {
    let mut forward = with_cache(GgmlDType::Q8_0, GraphUse::On);
    let simulator = Client::find().unwrap();
    let mut calls = |graphs: bool| {
        forward.set_graphs(used(graphs));
        let count = |keys| {
            let before = simulator.counters();
            assert_eq!(
                is_graph(&mut *forward, &step_of(keys, 2)),
                graphs && keys > 1
            );
            let after = simulator.counters();
            (
                after.calls - before.calls,
                after.graphs - before.graphs,
                after.synchronizations - before.synchronizations,
                after.copies + after.memsets - before.copies - before.memsets,
            )
        };
        (1..6).map(count).collect::<Vec<_>>()
    };
    // The first runs launch by launch, the second is recorded and compared.
    let [.., (total, graphs, waits, copies)] = calls(true)[..] else {
        panic!("no steps")
    };
    assert_eq!((total, graphs, waits), (4, 1, 1));
    // The network's own copies are in the graph; there are no others with launches, either.
    for (_, graphs, waits, others) in &calls(false)[1..] {
        assert_eq!((*graphs, *waits, *others), (0, 1, copies));
    }
}

/// HIP gets no graph to make where it has no room for its own allocations.
#[test]
fn a_full_device_has_no_graphs() {
    in_a_process_of_its_own("graph_faults::with_little_memory", None);
}

#[test]
#[ignore = "fills its device: run by the test above"]
fn with_little_memory() {
    const LIMIT: usize = 256 << 20;
    let mut forward = with_cache(GgmlDType::F16, GraphUse::On);
    assert!(Client::find().unwrap().set_memory_limit(0, LIMIT as u64));
    assert!(!is_graph(&mut *forward, &step_of(1, 1)));
    let Device::Rocm(device) = device() else {
        panic!("a ROCm device")
    };
    let (free, total) = device.device().memory_info().unwrap();
    assert_eq!(total, LIMIT);
    let blocks = (free - (4 << 20)) >> 23;
    let hog: Vec<_> = (0..blocks)
        .map(|_| device.device().alloc(8 << 20).unwrap())
        .collect();
    assert!(!is_graph(&mut *forward, &step_of(2, 1)));
    drop(hog);
    device.device().trim().unwrap();
    // The shape is given up, others are not.
    assert!(!is_graph(&mut *forward, &step_of(3, 1)));
    assert!(!is_graph(&mut *forward, &step_of(1, 2)));
    assert!(is_graph(&mut *forward, &step_of(2, 2)));
}

/// Memory that runs out while a step is recorded: the next one tries again.
#[test]
fn a_recording_without_memory_is_made_later() {
    let direct = Some(("CANDLE_ROCM_ALLOC", "direct"));
    in_a_process_of_its_own("graph_faults::with_an_allocation_that_fails", direct);
}

#[test]
#[ignore = "its allocations fail: run by the test above"]
fn with_an_allocation_that_fails() {
    let mut forward = with_cache(GgmlDType::F16, GraphUse::On);
    let simulator = Client::find().unwrap();
    // Loads the kernels, and then another shape tells how many allocations a step makes.
    assert!(!is_graph(&mut *forward, &step_of(1, 1)));
    let before = simulator.counters().mallocs;
    assert!(!is_graph(&mut *forward, &step_of(1, 2)));
    let mallocs = simulator.counters().mallocs - before;
    assert!(mallocs > 10, "{mallocs}");
    // A step makes its launches first, which are recorded then.
    simulator.inject(Injected::Malloc, mallocs + mallocs / 2);
    assert!(!is_graph(&mut *forward, &step_of(2, 2)));
    simulator.inject(Injected::Malloc, 0);
    assert!(is_graph(&mut *forward, &step_of(3, 2)));
    assert_eq!(forward.without_graphs(), None);
}

#[test]
fn a_lost_device_fails_everything_clearly() {
    in_a_process_of_its_own("graph_faults::until_the_device_is_lost", None);
}

#[test]
#[ignore = "loses its device: run by the test above"]
fn until_the_device_is_lost() {
    let engine = Engine::start(
        llama(GgmlDType::Q8_0),
        &EngineOptions {
            max_sequences: 2,
            ..options()
        },
    )
    .unwrap();
    let endless = |i| engine.submit(request(prompt(i, 5), warm(1), 200)).unwrap();
    let mut tickets: Vec<Ticket> = (0..3).map(endless).collect();
    while !matches!(tickets[0].events.blocking_recv(), Some(Event::Token { .. })) {}
    Client::find().unwrap().inject(Injected::Lost, 1);
    // Two that run, and one that waits.
    for ticket in &mut tickets {
        let failure = outcome(ticket).1.unwrap_err();
        assert!(matches!(failure, Failure::DeviceLost(_)), "{failure}");
    }
    let refused = engine.submit(request(prompt(1, 5), warm(1), 4)).err();
    assert!(
        matches!(refused, Some(Failure::DeviceLost(_))),
        "{refused:?}"
    );
    let status = engine.status();
    assert!(status.lost.is_some() && nothing_held(&status), "{status:?}");
}
