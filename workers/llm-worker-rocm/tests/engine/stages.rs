//! The engine over several devices: what it does on one, and what ends it.

use super::graph_faults::in_a_process_of_its_own;
use super::*;
use hip_sim::client::{Client, Failure as Injected};

/// Tests that run once more in a process whose models have two stages: batches, prefixes, prompts in pieces, guesses,
/// states, saved caches, sleep.
const AGAIN: &[&str] = &[
    "together_as_alone",
    "a_known_beginning",
    "an_equal_beginning",
    "probabilities_are_reported",
    "a_constraint_decides",
    "slots::",
    "speculation::",
    "states::",
    "prompts::",
];

#[test]
fn two_stages_do_what_one_device_does() {
    // A simulated GPU takes minutes for what the CPU does in seconds.
    if split::wanted() > 1 || !device().is_cpu() {
        return;
    }
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.env("CANDLE_ROCM_TEST_STAGES", "2").args(AGAIN);
    // Of several devices, rows take another time.
    again.args(["--skip", "takes_its_time"]);
    let output = again.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}");
    assert!(!text.contains("running 0 tests"), "{text}");
}

fn divided(stages: usize, change: impl FnOnce(&mut File)) -> LoadedModel {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut file = tiny_llama();
    deepen(&mut file, 4);
    change(&mut file);
    file.write(&path);
    let opened = ModelFile::open(&path).unwrap();
    let options = LoadOptions {
        split: split::plan(&opened, &device(), stages),
        ..LoadOptions::default()
    };
    opened.load(&device(), &options).unwrap()
}

/// A prompt of many pieces, beside one that answers meanwhile, against one device with the same steps of a prompt.
#[test]
fn long_prompts_go_through_stages_in_pieces() {
    let options = EngineOptions {
        max_step_tokens: 16,
        kv_blocks: Some(400),
        prefix_cache: false,
        ..options()
    };
    let ask = |model: LoadedModel| {
        let engine = Engine::start(model, &options).unwrap();
        let of_long = || request(prompt(5, 700), warm(3), 12);
        let alone = tokens(&mut engine.submit(of_long()).unwrap());
        let mut short = engine.submit(request(prompt(2, 9), warm(1), 40)).unwrap();
        let mut other = engine.submit(of_long()).unwrap();
        let both = (tokens(&mut short), tokens(&mut other));
        eventually(&engine, nothing_held);
        (alone, both)
    };
    let expected = ask(divided(1, long));
    let found = ask(divided(2, long));
    if device().is_cpu() {
        assert_eq!(found, expected);
    } else {
        // There the rows of a step decide how floats are summed.
        assert_eq!(found.0, expected.0);
    }
}

/// A model that is given up leaves no thread behind, nor one that sleeps; it answers the same when it is loaded again.
#[test]
fn threads_end_with_their_model() {
    let ranks = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        // Of this test's models only: others have two stages at most.
        let own = names.filter(|name| name.trim() == "rank-2");
        own.count()
    };
    let load = || Ok(divided(4, |_| {}));
    let model = load().unwrap();
    assert_eq!(model.forward.stages(), 4);
    let engine = Engine::start_reloadable(model, &options(), Some(Box::new(load))).unwrap();
    let ask = || tokens(&mut engine.submit(request(prompt(2, 9), warm(1), 9)).unwrap());
    // A thread has its name once it runs, and the system may show it a moment longer than it does.
    let until = |count: usize| {
        let start = Instant::now();
        while ranks() != count {
            assert!(start.elapsed() < Duration::from_secs(60), "{}", ranks());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let before = ask();
    until(1);
    engine.sleep().unwrap();
    until(0);
    assert_eq!(ask(), before);
    until(1);
    engine.stop(Duration::from_secs(10));
    drop(engine);
    until(0);
}

#[test]
fn a_lost_gpu_of_several_ends_the_engine_by_name() {
    in_a_process_of_its_own("stages::lost", Some(("HIP_SIM_DEVICES", "2")));
}

#[test]
#[ignore = "its GPUs are lost: run by the test above"]
fn lost() {
    let engine = Engine::start(divided(2, |_| {}), &options()).unwrap();
    let ask = || request(prompt(2, 9), warm(1), 40);
    assert_eq!(tokens(&mut engine.submit(ask()).unwrap()).len(), 40);
    Client::find().unwrap().inject(Injected::Lost, 50);
    let failure = outcome(&mut engine.submit(ask()).unwrap()).1.unwrap_err();
    let Failure::DeviceLost(reason) = failure else {
        panic!("{failure:?}")
    };
    assert!(
        reason.contains("rank ") && reason.contains("rocm:"),
        "{reason}"
    );
    let status = eventually(&engine, |status| status.lost.is_some());
    assert_eq!(status.lost, Some(reason));
}
