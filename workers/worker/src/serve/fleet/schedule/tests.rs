use super::*;

const NOTHING_KNOWN: Free<'_> = &|_| None;

fn schedule(count: usize, models: Option<usize>, memory: Option<u64>) -> (Schedule, Instant) {
    let now = Instant::now();
    let limits = Limits {
        models,
        memory,
        waiting: 1000,
    };
    let mut schedule = Schedule::new(limits);
    schedule.slots = vec![Slot::new(Place::Cpu, 10, now); count];
    (schedule, now)
}

/// Has a model loaded that there is room for.
fn load(schedule: &mut Schedule, id: Id, now: Instant) {
    schedule.want(id);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Load(id)]);
    schedule.loaded(id, 10, now);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), []);
    assert_eq!(schedule.slots[id].phase, Phase::Loaded);
}

#[test]
fn the_one_unused_longest_makes_room() {
    let (mut schedule, now) = schedule(3, Some(2), None);
    load(&mut schedule, 0, now);
    load(&mut schedule, 1, now);
    // Asked for again, so that the other one is the older.
    assert_eq!(schedule.enter(0, None), Entry::Admitted);
    schedule.answered(0, now);
    // Several that wait for one model take one place.
    for _ in 0..3 {
        assert_eq!(schedule.enter(2, None), Entry::Waits);
    }
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Unload(1)]);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), []);
    schedule.ended(1, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Load(2)]);
    schedule.loaded(2, 10, now);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Admit(2)]);
    assert_eq!(schedule.slots[2].answers(), 3);
    assert_eq!(schedule.slots[0].phase, Phase::Loaded);
}

#[test]
fn a_model_that_answers_keeps_its_place_and_takes_nothing_new() {
    let (mut schedule, now) = schedule(2, Some(1), None);
    load(&mut schedule, 0, now);
    assert_eq!(schedule.enter(0, None), Entry::Admitted);
    assert_eq!(schedule.enter(1, None), Entry::Waits);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), []);
    // Behind the one that waits for the place.
    assert_eq!(schedule.enter(0, None), Entry::Waits);
    schedule.answered(0, now);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Unload(0)]);
    schedule.ended(0, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Load(1)]);
    schedule.loaded(1, 10, now);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Admit(1)]);
    schedule.answered(1, now);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Unload(1)]);
    schedule.ended(1, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Load(0)]);
}

#[test]
fn a_client_that_leaves_gives_the_place_back() {
    let (mut schedule, now) = schedule(2, Some(1), None);
    load(&mut schedule, 0, now);
    assert_eq!(schedule.enter(0, None), Entry::Admitted);
    assert_eq!(schedule.enter(1, None), Entry::Waits);
    schedule.steps(now, NOTHING_KNOWN);
    assert_eq!(schedule.enter(0, None), Entry::Waits);
    schedule.give_up(1);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Admit(0)]);
    assert_eq!(schedule.slots[0].answers(), 2);
    assert_eq!(schedule.slots[1].phase, Phase::Unloaded);
}

#[test]
fn one_that_is_being_loaded_is_waited_for() {
    let (mut schedule, now) = schedule(2, Some(1), None);
    schedule.enter(0, None);
    schedule.enter(1, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Load(0)]);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), []);
    schedule.loaded(0, 10, now);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Admit(0)]);
    schedule.answered(0, now);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Unload(0)]);
}

#[test]
fn pinned_models_stay() {
    let (mut schedule, now) = schedule(3, Some(2), None);
    schedule.slots[0].pinned = true;
    load(&mut schedule, 0, now);
    load(&mut schedule, 1, now);
    schedule.slots[1].pinned = true;
    schedule.enter(2, None);
    let steps = schedule.steps(now, NOTHING_KNOWN);
    assert!(
        matches!(&steps[..], [Step::Refuse(2, reason)] if reason.contains("--models-max")),
        "{steps:?}"
    );
    schedule.slots[1].pinned = false;
    schedule.enter(2, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Unload(1)]);
    let patience = Patience {
        sleep: None,
        unload: Some(Duration::ZERO),
    };
    schedule.slots[0].patience = patience;
    assert_eq!(schedule.overdue(now).0, []);
}

#[test]
fn memory_is_made_by_sleep_then_by_ending() {
    let (mut schedule, now) = schedule(3, None, Some(25));
    schedule.slots[0].can_sleep = true;
    load(&mut schedule, 0, now);
    load(&mut schedule, 1, now);
    schedule.enter(2, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Sleep(0)]);
    // One that asks for the sleeping one waits until it sleeps.
    schedule.slept(0, Some(6));
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Unload(1)]);
    schedule.ended(1, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Load(2)]);
    schedule.loaded(2, 16, now);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Admit(2)]);
    schedule.answered(2, now);
    // It wakes up where it is, once there is room.
    schedule.enter(0, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Unload(2)]);
    schedule.ended(2, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Wake(0)]);
}

#[test]
fn one_that_cannot_sleep_ends_and_one_too_large_is_tried_alone() {
    let (mut schedule, now) = schedule(2, None, Some(15));
    schedule.slots[0].can_sleep = true;
    load(&mut schedule, 0, now);
    schedule.slots[1].needs = 100;
    schedule.enter(1, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Sleep(0)]);
    schedule.slept(0, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Unload(0)]);
    schedule.ended(0, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Load(1)]);
    schedule.loaded(1, 100, now);
    schedule.steps(now, NOTHING_KNOWN);
    schedule.slots[1].pinned = true;
    schedule.enter(0, None);
    let steps = schedule.steps(now, NOTHING_KNOWN);
    assert!(
        matches!(&steps[..], [Step::Refuse(0, reason)] if reason.contains("--models-memory")),
        "{steps:?}"
    );
}

#[test]
fn without_a_budget_the_systems_free_memory_counts() {
    let (mut schedule, now) = schedule(2, None, None);
    load(&mut schedule, 0, now);
    schedule.enter(1, None);
    assert_eq!(schedule.steps(now, &|_| Some(9)), [Step::Unload(0)]);
    schedule.ended(0, None);
    assert_eq!(schedule.steps(now, &|_| Some(10)), [Step::Load(1)]);
}

#[test]
fn a_load_that_failed_for_memory_is_tried_again_after_another_went() {
    let (mut schedule, now) = schedule(2, None, None);
    load(&mut schedule, 0, now);
    schedule.enter(1, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Load(1)]);
    assert!(schedule.cramped(1));
    schedule.ended(1, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Unload(0)]);
    schedule.ended(0, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Load(1)]);
    assert!(!schedule.cramped(1));
}

#[test]
fn each_place_loads_one_at_a_time() {
    let (mut schedule, now) = schedule(4, None, None);
    for id in [2, 3] {
        schedule.slots[id].place = Place::gpu(id - 2);
    }
    for id in 0..4 {
        schedule.enter(id, None);
    }
    let expected = [Step::Load(0), Step::Load(2), Step::Load(3)];
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), expected);
    schedule.loaded(2, 1, now);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Admit(2)]);
    schedule.loaded(0, 1, now);
    assert_eq!(
        schedule.steps(now, NOTHING_KNOWN),
        [Step::Admit(0), Step::Load(1)]
    );
}

#[test]
fn idle_models_sleep_then_go() {
    let (mut schedule, now) = schedule(1, None, None);
    schedule.slots[0].can_sleep = true;
    schedule.slots[0].patience = Patience {
        sleep: Some(Duration::from_secs(5)),
        unload: Some(Duration::from_secs(9)),
    };
    load(&mut schedule, 0, now);
    let at = |seconds| now + Duration::from_secs(seconds);
    assert_eq!(schedule.overdue(at(4)), (Vec::new(), Some(at(5))));
    assert_eq!(schedule.overdue(at(5)), (vec![Step::Sleep(0)], Some(at(9))));
    schedule.slept(0, Some(1));
    assert_eq!(schedule.overdue(at(9)).0, [Step::Unload(0)]);
    schedule.ended(0, None);
    // What a request says counts until the next one.
    let forever = Patience::default();
    schedule.enter(0, Some(forever));
    schedule.steps(now, NOTHING_KNOWN);
    schedule.loaded(0, 1, now);
    schedule.steps(now, NOTHING_KNOWN);
    assert_eq!(schedule.overdue(at(99)), (Vec::new(), None));
    schedule.answered(0, now);
    assert_eq!(schedule.overdue(at(99)), (Vec::new(), None));
    assert_eq!(schedule.enter(0, None), Entry::Admitted);
    schedule.answered(0, at(100));
    assert_eq!(schedule.overdue(at(109)).0, [Step::Unload(0)]);
}

#[test]
fn a_crashed_model_waits_without_holding_others_up() {
    let (mut schedule, now) = schedule(2, Some(1), None);
    schedule.ended(0, Some(now + Duration::from_secs(3)));
    schedule.enter(0, None);
    schedule.enter(1, None);
    assert_eq!(schedule.steps(now, NOTHING_KNOWN), [Step::Load(1)]);
    let later = now + Duration::from_secs(3);
    assert_eq!(schedule.overdue(now).1, Some(later));
    schedule.loaded(1, 1, now);
    schedule.steps(now, NOTHING_KNOWN);
    schedule.answered(1, now);
    assert_eq!(schedule.steps(later, NOTHING_KNOWN), [Step::Unload(1)]);
}

#[test]
fn only_so_many_wait() {
    let (mut schedule, _) = schedule(1, None, None);
    schedule.limits.waiting = 2;
    assert_eq!(schedule.enter(0, None), Entry::Waits);
    assert_eq!(schedule.enter(0, None), Entry::Waits);
    assert_eq!(schedule.enter(0, None), Entry::Full);
}

/// Many requests, loads that fail, crashes and clients that leave, in an order that a fixed seed gives: limits hold at
/// every moment, answers are never cut off, and in the end everybody was served.
#[test]
fn nobody_starves_and_limits_hold() {
    for seed in 1..=40u64 {
        let mut random = seed;
        let mut roll = |below: usize| {
            // Knuth's generator of MMIX.
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) as usize % below
        };
        let most = 1 + roll(3);
        let memory = Some(12 + 10 * roll(3) as u64).filter(|_| seed % 2 == 0);
        let (mut schedule, now) = schedule(6, Some(most), memory);
        for slot in &mut schedule.slots {
            slot.can_sleep = roll(2) == 0;
        }
        let mut answers = [0; 6];
        let mut waiting = [0; 6];
        let mut pending: Vec<Step> = Vec::new();
        let mut asked = 0;
        let mut served = 0;
        let mut left = 0;
        for round in 0..3000 {
            match roll(6) {
                0 | 1 if round < 2000 => {
                    let id = roll(6);
                    asked += 1;
                    match schedule.enter(id, None) {
                        Entry::Admitted => answers[id] += 1,
                        Entry::Waits => waiting[id] += 1,
                        Entry::Full => unreachable!(),
                    }
                }
                2 => {
                    if let Some(id) = (0..6).find(|&id| answers[id] > 0) {
                        answers[id] -= 1;
                        served += 1;
                        schedule.answered(id, now);
                    }
                }
                3 if roll(8) == 0 => {
                    if let Some(id) = (0..6).find(|&id| waiting[id] > 0) {
                        waiting[id] -= 1;
                        left += 1;
                        schedule.give_up(id);
                    }
                }
                _ if !pending.is_empty() => match pending.remove(roll(pending.len())) {
                    Step::Load(id) | Step::Wake(id) => match roll(10) {
                        0 => {
                            schedule.cramped(id);
                            schedule.ended(id, None);
                        }
                        _ => schedule.loaded(id, 10, now),
                    },
                    Step::Sleep(id) => schedule.slept(id, Some(1).filter(|_| roll(5) > 0)),
                    Step::Unload(id) => schedule.ended(id, None),
                    Step::Admit(_) | Step::Refuse(..) => unreachable!(),
                },
                _ => {}
            }
            for step in schedule.steps(now, NOTHING_KNOWN) {
                match step {
                    Step::Admit(id) => answers[id] += std::mem::take(&mut waiting[id]),
                    Step::Refuse(id, reason) => panic!("{id}: {reason}"),
                    Step::Unload(id) | Step::Sleep(id) => {
                        assert_eq!(
                            answers[id], 0,
                            "seed {seed}: a model that answers was taken"
                        );
                        pending.push(step);
                    }
                    step => pending.push(step),
                }
            }
            let running = schedule.slots.iter().filter(|slot| slot.phase.is_running());
            assert!(running.count() <= most, "seed {seed}");
            let taken: u64 = schedule.slots.iter().map(|slot| slot.takes).sum();
            assert!(
                memory.is_none_or(|memory| taken <= memory),
                "seed {seed}: {taken}"
            );
            for id in 0..6 {
                assert_eq!(schedule.slots[id].answers(), answers[id]);
                assert_eq!(schedule.slots[id].waiters(), waiting[id]);
            }
        }
        // Nothing new, so all that still wait or are answered come to their ends.
        for _ in 0..2000 {
            for step in std::mem::take(&mut pending) {
                match step {
                    Step::Load(id) | Step::Wake(id) => schedule.loaded(id, 10, now),
                    Step::Sleep(id) => schedule.slept(id, Some(1)),
                    Step::Unload(id) => schedule.ended(id, None),
                    Step::Admit(_) | Step::Refuse(..) => unreachable!(),
                }
            }
            for step in schedule.steps(now, NOTHING_KNOWN) {
                match step {
                    Step::Admit(id) => answers[id] += std::mem::take(&mut waiting[id]),
                    step => pending.push(step),
                }
            }
            for (id, answers) in answers.iter_mut().enumerate() {
                served += *answers;
                for _ in 0..std::mem::take(answers) {
                    schedule.answered(id, now);
                }
            }
        }
        assert_eq!(served + left, asked, "seed {seed}: somebody starved");
        assert_eq!(schedule.waiting(), 0);
    }
}

#[test]
fn a_model_on_several_gpus_meets_those_on_each() {
    use DeviceRequest::{Cpu, Rocm};
    let both = Place::of(&[Rocm(0), Cpu, Rocm(2)]);
    assert_eq!(both.to_string(), "rocm:0,rocm:2");
    assert_eq!(Place::of(&[Cpu, Cpu]), Place::Cpu);
    assert!(both.meets(Place::gpu(0)) && both.meets(both));
    assert!(!both.meets(Place::gpu(1)) && !both.meets(Place::Cpu));

    let (mut schedule, now) = schedule(4, None, None);
    let places = [both, Place::gpu(0), Place::gpu(1), Place::gpu(2)];
    for (slot, place) in schedule.slots.iter_mut().zip(places) {
        slot.place = place;
    }
    // What is free counts where it is needed; the one on both cards gets the place of both others.
    let free: Free<'_> = &|place| Some(if place == Place::gpu(1) { 100 } else { 0 });
    load(&mut schedule, 1, now);
    load(&mut schedule, 3, now);
    schedule.enter(0, None);
    schedule.enter(2, None);
    let steps = schedule.steps(now, free);
    assert_eq!(steps, [Step::Unload(1), Step::Load(2)]);
    schedule.ended(1, None);
    assert_eq!(schedule.steps(now, free), [Step::Unload(3)]);
}
