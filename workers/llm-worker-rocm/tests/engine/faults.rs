//! Requests that are cancelled, late, too many or at fault, against a forward pass that fails on demand.

use super::*;
use candle_core::rocm_backend::candle_rocm::Error;

/// A model that is slow, and stumbles over some tokens.
struct Faulty {
    inner: Box<dyn Forward>,
    pause: Duration,
    fault: fn() -> candle_core::Result<()>,
    steps: Arc<AtomicUsize>,
}

impl Forward for Faulty {
    fn vocab_size(&self) -> usize {
        self.inner.vocab_size()
    }

    fn context_length(&self) -> usize {
        self.inner.context_length()
    }

    fn device(&self) -> &Device {
        self.inner.device()
    }

    fn kv_dtype(&self) -> KvDType {
        self.inner.kv_dtype()
    }

    fn kv_token_bytes(&self, dtype: KvTypes) -> usize {
        self.inner.kv_token_bytes(dtype)
    }

    fn reserve(&mut self, cache: &CacheOptions) -> candle_core::Result<()> {
        self.inner.reserve(cache)
    }

    fn forward(&mut self, step: &Step) -> candle_core::Result<Tensor> {
        self.steps.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(self.pause);
        if step.tokens.contains(&POISON) {
            (self.fault)()?;
        }
        self.inner.forward(step)
    }
}

fn faulty(
    pause: Duration,
    fault: fn() -> candle_core::Result<()>,
    options: EngineOptions,
) -> (Engine, Arc<AtomicUsize>) {
    let steps = Arc::new(AtomicUsize::new(0));
    let model = model(|_| {});
    let forward = Box::new(Faulty {
        inner: model.forward,
        pause,
        fault,
        steps: steps.clone(),
    });
    let engine = Engine::start(LoadedModel { forward, ..model }, &options).unwrap();
    (engine, steps)
}

fn fine() -> candle_core::Result<()> {
    Ok(())
}

fn slow(options: EngineOptions) -> (Engine, Arc<AtomicUsize>) {
    faulty(Duration::from_millis(20), fine, options)
}

#[test]
fn a_finished_ticket_ends_its_request_as_answered() {
    let (engine, steps) = slow(EngineOptions {
        max_sequences: 1,
        max_waiting: 4,
        ..options()
    });
    let ask = || engine.submit(request(prompt(2, 9), warm(1), 100)).unwrap();
    let mut ticket = ask();
    while !matches!(ticket.events.blocking_recv(), Some(Event::Token { .. })) {}
    let before = steps.load(Ordering::SeqCst);
    ticket.finish();
    let status = eventually(&engine, nothing_held);
    assert!(steps.load(Ordering::SeqCst) <= before + 2);
    assert_eq!(
        (status.requests_finished, status.requests_cancelled),
        (1, 0)
    );
    // Its time counts: requests take less than the second that is assumed before there was one.
    let mut running = ask();
    while !matches!(running.events.blocking_recv(), Some(Event::Token { .. })) {}
    let waiting: Vec<Ticket> = (0..4).map(|_| ask()).collect();
    let refused = engine.submit(request(prompt(2, 9), warm(1), 100)).err();
    let Some(Failure::QueueFull { retry_after, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert!(retry_after < Duration::from_secs(4), "{retry_after:?}");
    drop((running, waiting));
}

#[test]
fn a_dropped_ticket_ends_its_request_within_a_step() {
    let (engine, steps) = slow(options());
    let mut ticket = engine.submit(request(prompt(2, 9), warm(1), 100)).unwrap();
    while !matches!(ticket.events.blocking_recv(), Some(Event::Token { .. })) {}
    assert_eq!(engine.status().running, 1);
    drop(ticket);
    let before = steps.load(Ordering::SeqCst);
    let status = eventually(&engine, nothing_held);
    assert!(steps.load(Ordering::SeqCst) <= before + 1);
    assert_eq!(status.requests_cancelled, 1);
    // One that waits, too.
    let one = EngineOptions {
        max_sequences: 1,
        ..options()
    };
    let (engine, _) = slow(one);
    let mut first = engine.submit(request(prompt(2, 9), warm(1), 10)).unwrap();
    drop(engine.submit(request(prompt(3, 9), warm(1), 10)).unwrap());
    assert_eq!(tokens(&mut first).len(), 10);
    assert_eq!(eventually(&engine, nothing_held).requests_cancelled, 1);
}

#[test]
fn deadlines_and_full_queues_fail_visibly() {
    let one = EngineOptions {
        max_sequences: 1,
        max_waiting: 2,
        ..options()
    };
    let (engine, _) = faulty(Duration::from_millis(40), fine, one);
    let within = |milliseconds| Request {
        deadline: Some(Instant::now() + Duration::from_millis(milliseconds)),
        ..request(prompt(2, 9), warm(1), 110)
    };
    let mut running = engine.submit(within(3000)).unwrap();
    while !matches!(running.events.blocking_recv(), Some(Event::Token { .. })) {}
    let mut waiting = engine.submit(within(100)).unwrap();
    let other = engine.submit(within(10_000)).unwrap();
    match engine.submit(within(10_000)).err() {
        Some(Failure::QueueFull {
            waiting: 2,
            retry_after,
        }) => {
            assert!(retry_after >= Duration::from_secs(1));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(outcome(&mut waiting).1.unwrap_err(), Failure::Timeout(0));
    let (before, end) = outcome(&mut running);
    match end {
        Err(Failure::Timeout(count)) => assert_eq!(count, before.len() + 1),
        end => panic!("{end:?}"),
    }
    drop(other);
    eventually(&engine, nothing_held);
}

#[test]
fn stopping_lets_running_requests_end_within_the_grace() {
    let options = || EngineOptions {
        max_sequences: 1,
        ..options()
    };
    let (engine, _) = slow(options());
    let mut short = engine.submit(request(prompt(2, 9), warm(1), 5)).unwrap();
    let mut waiting = engine.submit(request(prompt(2, 9), warm(1), 5)).unwrap();
    while !matches!(short.events.blocking_recv(), Some(Event::Token { .. })) {}
    engine.stop(Duration::from_secs(60));
    assert_eq!(tokens(&mut short).len(), 4);
    assert_eq!(outcome(&mut waiting).1.unwrap_err(), Failure::Stopping);
    let late = engine.submit(request(prompt(2, 9), warm(1), 5)).err();
    assert_eq!(late, Some(Failure::Stopping));
    let (engine, _) = slow(options());
    let mut long = engine.submit(request(prompt(2, 9), warm(1), 100)).unwrap();
    while !matches!(long.events.blocking_recv(), Some(Event::Token { .. })) {}
    engine.stop(Duration::from_millis(50));
    assert_eq!(outcome(&mut long).1.unwrap_err(), Failure::Stopping);
    assert!(nothing_held(&engine.status()));
}

#[test]
fn stopping_lets_preempted_requests_end_and_starts_no_others() {
    // Room for either of the two, not for both.
    let options = EngineOptions {
        kv_blocks: Some(16),
        ..options()
    };
    let (engine, _) = faulty(Duration::from_millis(10), fine, options);
    let submit = |seed, length, answer| {
        let request = request(prompt(seed, length), warm(1), answer);
        engine.submit(request).unwrap()
    };
    let mut first = submit(2, 9, 40);
    let mut second = submit(3, 9, 40);
    eventually(&engine, |status| status.running == 2);
    // It left the queue, but there are no blocks for its prompt.
    let mut unstarted = submit(4, 50, 5);
    eventually(&engine, |status| status.preemptions > 0);
    engine.stop(Duration::from_secs(20));
    assert_eq!(tokens(&mut first).len(), 40);
    assert_eq!(tokens(&mut second).len(), 40);
    assert_eq!(outcome(&mut unstarted).1.unwrap_err(), Failure::Stopping);
    assert!(nothing_held(&engine.status()));
}

/// As [`warm`], without the token that faulty models stumble over.
fn harmless() -> SamplingOptions {
    SamplingOptions {
        logit_bias: [(POISON, f32::NEG_INFINITY)].into(),
        ..warm(1)
    }
}

/// One request of several fails, whatever the kind of fault; the others come out as if it had not been there.
fn one_fails(fault: fn() -> candle_core::Result<()>) -> Failure {
    let (engine, _) = faulty(Duration::ZERO, fault, options());
    let others = || -> Vec<Ticket> {
        (0..4)
            .map(|i| {
                engine
                    .submit(request(prompt(i, 9), harmless(), 12))
                    .unwrap()
            })
            .collect()
    };
    let expected: Vec<Vec<u32>> = others().iter_mut().map(tokens).collect();
    let mut tickets = others();
    let mut bad = prompt(7, 9);
    bad[4] = POISON;
    let mut bad = engine.submit(request(bad, harmless(), 12)).unwrap();
    let failure = outcome(&mut bad).1.unwrap_err();
    let found: Vec<Vec<u32>> = tickets.iter_mut().map(tokens).collect();
    assert_eq!(found, expected);
    let status = eventually(&engine, nothing_held);
    assert_eq!((status.requests_failed, status.requests_finished), (1, 8));
    failure
}

#[test]
fn a_fault_ends_only_the_request_that_causes_it() {
    let failure = one_fails(|| candle_core::bail!("a bad kernel"));
    assert!(matches!(failure, Failure::Internal(text) if text.contains("a bad kernel")));
    if device().is_rocm() {
        // What the others become is up to the host alone.
        return;
    }
    let failure = one_fails(|| panic!("a panic of a test"));
    assert!(matches!(failure, Failure::Internal(text) if text.contains("panicked")));
    let failure = one_fails(|| {
        Err(candle_core::Error::from(Error::OutOfMemory {
            ordinal: 0,
            requested: 1 << 30,
            free: 0,
            total: 1 << 30,
            cached: 0,
            live: 1 << 30,
        }))
    });
    assert!(matches!(failure, Failure::OutOfMemory(_)), "{failure}");
}

#[test]
fn many_clients_that_come_and_go_leave_nothing_behind() {
    // A simulated device takes minutes for as many as a CPU has within a second.
    let (clients, rounds) = match device().is_rocm() {
        true => (16, 3),
        false => (64, 6),
    };
    let engine = start(EngineOptions {
        kv_blocks: Some(48),
        max_sequences: 8,
        max_step_tokens: 48,
        max_waiting: clients as usize / 2,
        ..options()
    });
    let client = |id: u32| {
        let engine = engine.clone();
        std::thread::spawn(move || {
            let mut state = id.wrapping_mul(2_654_435_761);
            let mut random = |below: u32| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 16) % below
            };
            let mut counts = [0u64; 3];
            for _ in 0..rounds {
                let asked = request(prompt(random(5), 1 + random(60)), warm(id.into()), 30);
                let mut ticket = match engine.submit(asked) {
                    Ok(ticket) => ticket,
                    Err(Failure::QueueFull { .. }) => {
                        std::thread::sleep(Duration::from_millis(5));
                        counts[2] += 1;
                        continue;
                    }
                    Err(failure) => panic!("{failure}"),
                };
                let patience = random(60);
                let mut seen = 0;
                let finished = loop {
                    if seen == patience {
                        break false;
                    }
                    match ticket.events.blocking_recv().expect("an event of the end") {
                        Event::Started { .. } | Event::Progress { .. } | Event::Prompt(_) => {}
                        Event::Token { .. } => seen += 1,
                        Event::Finished(summary) => {
                            assert_eq!(summary.generated_tokens, 30);
                            break true;
                        }
                        Event::Failed(failure) => panic!("{failure}"),
                    }
                };
                counts[usize::from(finished)] += 1;
            }
            counts
        })
    };
    let threads: Vec<_> = (0..clients).map(client).collect();
    let mut sums = [0u64; 3];
    for client in threads {
        let counts = client.join().unwrap();
        sums.iter_mut().zip(counts).for_each(|(sum, c)| *sum += c);
    }
    let [left, finished, refused] = sums;
    assert_eq!(left + finished + refused, u64::from(clients * rounds));
    assert!(left > 0 && finished > 0, "{sums:?}");
    let status = eventually(&engine, nothing_held);
    // A client may leave when its answer is just complete.
    assert!(status.requests_finished >= finished, "{status:?} {sums:?}");
    let ended = status.requests_finished + status.requests_cancelled;
    assert_eq!(ended, left + finished, "{status:?} {sums:?}");
    assert_eq!(status.requests_failed, 0);
}
