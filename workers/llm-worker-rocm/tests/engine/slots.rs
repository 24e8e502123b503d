//! Slots that are saved and restored, and models that sleep.

use super::speculation::look_up;
use super::*;
use llm_worker_rocm::engine::api::{DraftSource, SlotAction, SpeculationOptions};
use llm_worker_rocm::engine::snapshots::Snapshots;
use llm_worker_rocm::engine::Reload;
use std::path::Path;

/// As a llama with a window of 10 tokens.
fn windowed(file: &mut File) {
    file.set("llama.attention.sliding_window", u32(10));
}

fn ask(engine: &Engine, namespace: u64, prompt: Vec<u32>) -> (Vec<u32>, usize) {
    let mut asked = request(prompt, SamplingOptions::greedy(), 4);
    asked.namespace = namespace;
    let (found, end) = outcome(&mut engine.submit(asked).unwrap());
    let found = found.iter().map(|t| t.token).collect();
    (found, end.unwrap().cached_tokens)
}

fn refusal(engine: &Engine, action: SlotAction) -> String {
    match engine.slot(0, 1, action) {
        Err(Failure::Invalid(reason)) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_slot_knows_outlives_its_engine() {
    for (change, kv_dtype) in [
        (windowed as fn(&mut File), KvDType::F32),
        (|_: &mut File| {}, KvDType::F16),
        (windowed, KvDType::Q4_0),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("slot.bin");
        let (save, restore) = (
            SlotAction::Save(path.clone()),
            SlotAction::Restore(path.clone()),
        );
        let options = EngineOptions {
            kv_dtype: Some(kv_dtype),
            max_step_tokens: 16,
            ..options()
        };
        let engine = Engine::start(model(change), &options).unwrap();
        assert!(refusal(&engine, save.clone()).contains("nothing"));
        let (answer, cached) = ask(&engine, 1, prompt(3, 50));
        assert_eq!(cached, 0);
        // 53 of 54 tokens are computed, 52 of them in whole blocks.
        let done = engine.slot(0, 1, save.clone()).unwrap();
        assert_eq!(
            (done.tokens, done.bytes),
            (52, path.metadata().unwrap().len())
        );
        assert!(engine.slot(0, 2, save.clone()).is_err(), "another client's");
        let slots = engine.slots().unwrap();
        assert_eq!(
            (slots.len(), slots[0].tokens, slots[0].request),
            (16, 54, None)
        );

        let other = Engine::start(model(change), &options).unwrap();
        let done = other.slot(5, 1, restore.clone()).unwrap();
        assert_eq!((done.tokens, other.status().prompt_tokens), (52, 0));
        assert_eq!(ask(&other, 2, prompt(3, 50)).1, 0);
        assert_eq!(ask(&other, 1, prompt(3, 50)), (answer.clone(), 48));
        assert_eq!(other.slot(5, 1, SlotAction::Erase).unwrap().tokens, 52);
        assert_eq!(ask(&other, 1, prompt(3, 50)), (answer, 0));
        eventually(&other, nothing_held);

        // Files of others, and no files.
        let refused = |engine: &Engine, what: &str| {
            let reason = refusal(engine, restore.clone());
            assert!(
                reason.contains(what) && reason.contains("slot.bin"),
                "{reason}"
            );
            eventually(engine, nothing_held);
        };
        let another = model(|file| {
            change(file);
            file.set("llama.rope.freq_base", common::f32(5e5));
        });
        refused(&Engine::start(another, &options).unwrap(), "another model");
        let bits = Engine::start(
            model(change),
            &EngineOptions {
                kv_dtype: Some(KvDType::Bf16),
                ..options.clone()
            },
        );
        refused(&bits.unwrap(), "bf16");
        let whole = std::fs::read(&path).unwrap();
        let fresh = Engine::start(model(change), &options).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        refused(&fresh, "bytes");
        let mut changed = whole.clone();
        changed[whole.len() / 2] ^= 1;
        std::fs::write(&path, changed).unwrap();
        refused(&fresh, "checksum");
        assert_eq!(ask(&fresh, 1, prompt(3, 50)).1, 0, "nothing of it is known");
        std::fs::remove_file(&path).unwrap();
        refused(&fresh, "slot.bin");
        assert!(fresh.slot(16, 1, restore.clone()).is_err());
    }
}

fn by_model() -> SpeculationOptions {
    SpeculationOptions {
        source: DraftSource::Model,
        max: 3,
        least_probability: 0.0,
        ..look_up()
    }
}

/// A llama that counts the tokens that it is given.
struct Counted {
    inner: Box<dyn Forward>,
    tokens: Arc<AtomicUsize>,
}

impl Forward for Counted {
    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.inner.context_length()
    }

    fn device(&self) -> &Device {
        self.inner.device()
    }

    fn can_take_back(&self) -> bool {
        true
    }

    fn kv_dtype(&self) -> KvDType {
        self.inner.kv_dtype()
    }

    fn kv_token_bytes(&self, dtype: KvTypes) -> usize {
        self.inner.kv_token_bytes(dtype)
    }

    fn snapshots(&mut self) -> Option<&mut dyn Snapshots> {
        self.inner.snapshots()
    }

    fn reserve(&mut self, cache: &CacheOptions) -> candle_core::Result<()> {
        self.inner.reserve(cache)
    }

    fn forward(&mut self, step: &Step) -> candle_core::Result<Tensor> {
        self.tokens.fetch_add(step.tokens.len(), Ordering::SeqCst);
        self.inner.forward(step)
    }
}

/// What a draft model knows goes with what the model knows, and is of use to the same one only.
#[test]
fn a_slot_has_what_a_draft_model_knows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("slot.bin");
    let (save, restore) = (
        SlotAction::Save(path.clone()),
        SlotAction::Restore(path.clone()),
    );
    let start = |change: fn(&mut File), block_size: usize| {
        let tokens = Arc::new(AtomicUsize::new(0));
        let mut draft = model(change);
        draft.forward = Box::new(Counted {
            inner: draft.forward,
            tokens: tokens.clone(),
        });
        let loaded = model(|_| {}).with_draft(draft).unwrap();
        let options = EngineOptions {
            speculation: by_model(),
            block_size,
            ..options()
        };
        (Engine::start(loaded, &options).unwrap(), tokens)
    };
    let read = |tokens: &Arc<AtomicUsize>| tokens.swap(0, Ordering::SeqCst);
    let (engine, tokens) = start(|_| {}, 4);
    let (answer, _) = ask(&engine, 1, prompt(3, 50));
    assert!(read(&tokens) >= 50);
    engine.slot(0, 1, save).unwrap();
    let with_draft = path.metadata().unwrap().len();
    let (other, tokens) = start(|_| {}, 4);
    other.slot(2, 1, restore.clone()).unwrap();
    assert_eq!(ask(&other, 1, prompt(3, 50)), (answer.clone(), 48));
    let few = read(&tokens);
    assert!(few < 10, "{few} tokens are read");
    eventually(&other, nothing_held);
    // Another draft model, and none: the same answers.
    let another = |file: &mut File| {
        file.set("llama.rope.freq_base", common::f32(500.0));
    };
    let (other, tokens) = start(another, 4);
    other.slot(2, 1, restore.clone()).unwrap();
    assert_eq!(ask(&other, 1, prompt(3, 50)), (answer.clone(), 48));
    assert!(read(&tokens) >= 50);
    let plain = Engine::start(model(|_| {}), &options()).unwrap();
    plain.slot(2, 1, restore.clone()).unwrap();
    assert_eq!(ask(&plain, 1, prompt(3, 50)), (answer.clone(), 48));
    plain.slot(2, 1, SlotAction::Save(path.clone())).unwrap();
    assert!(path.metadata().unwrap().len() < with_draft);
    // A file without one is of use beside a draft model.
    let (other, _) = start(|_| {}, 4);
    other.slot(2, 1, restore.clone()).unwrap();
    assert_eq!(ask(&other, 1, prompt(3, 50)), (answer, 48));
    let (blocks, _) = start(|_| {}, 8);
    assert!(refusal(&blocks, restore).contains("blocks of 4"));
    eventually(&blocks, nothing_held);
}

#[test]
fn a_draft_model_sleeps_and_wakes_with_its_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    tiny_llama().write(&path);
    let loaded = |path: &Path| -> worker::Result<LoadedModel> {
        let load = || load_file(ModelFile::open(path)?, &LoadOptions::default());
        load()?.with_draft(load()?)
    };
    let own = path.clone();
    let lone = folder.path().join("lone");
    let without = lone.clone();
    let reload: Reload = Box::new(move || {
        let mut model = loaded(&own)?;
        if without.exists() {
            model.draft = None;
        }
        Ok(model)
    });
    let options = EngineOptions {
        speculation: by_model(),
        ..options()
    };
    let engine = Engine::start_reloadable(loaded(&path).unwrap(), &options, Some(reload)).unwrap();
    let answers = |engine: &Engine| {
        let asked = request(prompt(3, 50), SamplingOptions::greedy(), 20);
        let (found, end) = outcome(&mut engine.submit(asked).unwrap());
        let found: Vec<u32> = found.iter().map(|t| t.token).collect();
        (found, end.unwrap().drafts.accepted)
    };
    let before = answers(&engine);
    assert!(before.1 > 8, "{before:?}");
    engine.sleep().unwrap();
    assert!(engine.status().asleep);
    assert_eq!(answers(&engine), before);
    // The way back leads without the draft model: that is no way back.
    engine.sleep().unwrap();
    std::fs::write(&lone, "").unwrap();
    let refused = engine.wake_up();
    assert!(matches!(refused, Err(Failure::Internal(text)) if text.contains("draft")));
    assert!(engine.status().asleep);
    std::fs::remove_file(&lone).unwrap();
    assert_eq!(answers(&engine), before);
}

/// A llama that can be loaded again, unless its file is gone.
fn reloadable(path: &Path, options: &EngineOptions) -> Engine {
    tiny_llama().write(path);
    let loaded = |path: &Path| {
        let file = ModelFile::open(path)?;
        load_file(file, &LoadOptions::default())
    };
    let own = path.to_path_buf();
    let reload: Reload = Box::new(move || loaded(&own));
    Engine::start_reloadable(loaded(path).unwrap(), options, Some(reload)).unwrap()
}

#[test]
fn a_model_sleeps_and_the_next_request_wakes_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let endless = EngineOptions {
        context_shift: Some(4),
        ..options()
    };
    let engine = reloadable(&path, &endless);
    let (answer, _) = ask(&engine, 1, prompt(3, 50));
    engine.sleep().unwrap();
    engine.sleep().unwrap();
    let status = engine.status();
    assert!(status.asleep && status.kv_blocks_cached == 0, "{status:?}");
    // Its prefixes are lost, its answers the same.
    assert_eq!(ask(&engine, 1, prompt(3, 50)), (answer.clone(), 0));
    assert!(!engine.status().asleep);
    let long = engine
        .submit(request(prompt(1, 20), warm(1), usize::MAX))
        .unwrap();
    eventually(&engine, |status| status.running == 1);
    assert!(matches!(engine.sleep(), Err(Failure::Invalid(_))));
    drop(long);
    eventually(&engine, nothing_held);
    engine.sleep().unwrap();
    let gone = folder.path().join("gone.gguf");
    std::fs::rename(&path, &gone).unwrap();
    let mut failed = engine.submit(request(prompt(1, 20), warm(1), 5)).unwrap();
    let (_, end) = outcome(&mut failed);
    assert!(matches!(end, Err(Failure::Internal(text)) if text.contains("sleeps")));
    assert!(engine.wake_up().is_err() && engine.status().asleep);
    std::fs::rename(&gone, &path).unwrap();
    engine.wake_up().unwrap();
    assert_eq!(ask(&engine, 1, prompt(3, 50)), (answer, 0));
    engine.sleep().unwrap();
    engine.stop(Duration::from_secs(5));
    assert_eq!(engine.wake_up(), Err(Failure::Stopping));
}

#[test]
fn a_model_falls_asleep_when_nothing_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        sleep_after: Some(Duration::from_millis(50)),
        ..options()
    };
    let engine = reloadable(&folder.path().join("model.gguf"), &options);
    eventually(&engine, |status| status.asleep);
    let (answer, _) = ask(&engine, 1, prompt(3, 50));
    eventually(&engine, |status| status.asleep);
    assert_eq!(ask(&engine, 1, prompt(3, 50)).0, answer);
    // Without a way back nobody sleeps.
    let other = start(options);
    assert!(matches!(other.sleep(), Err(Failure::Invalid(_))));
    std::thread::sleep(Duration::from_millis(150));
    assert!(!other.status().asleep);
}

#[test]
fn requests_choose_their_slots() {
    let engine = start(EngineOptions {
        max_sequences: 2,
        ..options()
    });
    let asked = |slot: Option<usize>, len: usize| Request {
        slot,
        ..request(prompt(1, 6), SamplingOptions::greedy(), len)
    };
    let slot_of = |ticket: &mut Ticket| match ticket.events.blocking_recv() {
        Some(Event::Started { slot, .. }) => slot,
        other => panic!("{other:?}"),
    };
    let mut long = engine.submit(asked(Some(1), 100)).unwrap();
    assert_eq!(slot_of(&mut long), Some(1));
    // One waits for its slot, and lets those pass that take any.
    let mut same = engine.submit(asked(Some(1), 1)).unwrap();
    let mut other = engine.submit(asked(None, 1)).unwrap();
    assert_eq!(slot_of(&mut other), Some(0));
    assert_eq!(tokens(&mut long).len(), 100);
    assert_eq!(slot_of(&mut same), Some(1));
    let refused = engine.submit(asked(Some(2), 1)).err();
    assert!(matches!(refused, Some(Failure::Invalid(reason)) if reason.contains("slot 2")));
}

#[test]
fn what_is_known_can_be_left_out() {
    let engine = start(options());
    let ask = |afresh: bool| {
        let asked = Request {
            afresh,
            ..request(prompt(3, 30), SamplingOptions::greedy(), 4)
        };
        outcome(&mut engine.submit(asked).unwrap())
            .1
            .unwrap()
            .cached_tokens
    };
    assert_eq!(
        [ask(false), ask(false), ask(true), ask(false)],
        [0, 28, 0, 28]
    );
}
