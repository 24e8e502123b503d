//! How the loop goes, and how it ends.

use super::server::{Script, Server};
use super::*;
use rocm_port::repair::state::{End, StepKind, Verdict};
use std::collections::HashSet;

#[test]
fn a_right_answer_after_wrong_ones() {
    let server = Server::start(vec![
        Script::Whole(diff("    return v;", "    return 3 * v;")),
        Script::Whole(diff("    return v;", "    return 4 * v;")),
        Script::Stream(diff("    return 4 * v;", "    return v + v;")),
    ]);
    let mut judge = Judge::new();
    let state = repair(&endpoint(&server), &mut judge, 6);
    assert_eq!(state.end, Some(End::Repaired));
    assert_eq!(state.best, FILE.replace("return v;", "return v + v;"));
    let verdicts: Vec<_> = state.steps.iter().map(|s| (&s.kind, &s.verdict)).collect();
    assert!(matches!(verdicts[0], (StepKind::First, Verdict::Checked)));
    assert!(
        matches!(verdicts[1], (StepKind::Round(1), Verdict::Worse(_))),
        "{:?}",
        verdicts[1]
    );
    assert!(matches!(verdicts[2], (StepKind::Round(2), Verdict::Kept)));
    assert!(matches!(verdicts[3], (StepKind::Round(3), Verdict::Better)));
    assert!(matches!(verdicts[4], (StepKind::Last, Verdict::Passed)));
    // The model was told what is wrong, the smallest input, and what became of its answer.
    let first = server.asked(0);
    for part in [
        "0.5 instead of 1",
        "x = [0.5]",
        "return v;",
        "line 3 (`return v;`)",
    ] {
        assert!(first.contains(part), "{part}: {first}");
    }
    let second = server.asked(1);
    assert!(
        second.contains("was taken back") && second.contains("+    return 3 * v;"),
        "{second}"
    );
    assert_eq!(state.tokens(), (2010, 405));
    assert!((state.cost() - (2010.0 * 2.0 + 405.0 * 10.0) / 1e6).abs() < 1e-9);
    // Every check had inputs of its own: one before, three after answers, two at the end.
    assert_eq!(judge.seeds.len(), 6);
    assert_eq!(judge.seeds.iter().collect::<HashSet<_>>().len(), 6);
    let patch = state.patch().unwrap();
    assert!(
        patch.starts_with("--- a/twice.hip\n+++ b/twice.hip\n")
            && patch.contains("+    return v + v;")
    );
}

#[test]
fn nothing_to_repair_asks_nobody() {
    let server = Server::start(vec![Script::Close]);
    let text = FILE.replace("return v;", "return 2 * v;");
    let mut state = State::new("twice.hip", &text, None, (0.0, 0.0));
    go_on(&endpoint(&server), &mut Judge::new(), &mut state, 6).unwrap();
    assert_eq!(state.end, Some(End::Nothing));
    assert_eq!((server.count(), state.patch()), (0, None));
}

#[test]
fn always_wrong_ends_with_the_rounds_and_can_be_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let wrong = Server::start(vec![Script::Whole(diff(
        "    return v;",
        "    return 3 * v;",
    ))]);
    let state = repair(&endpoint(&wrong), &mut Judge::new(), 4);
    assert_eq!(state.end, Some(End::Rounds));
    assert_eq!(
        (wrong.count(), state.best.as_str(), state.left().len()),
        (4, FILE, 1)
    );
    // The same change again is not even checked.
    assert!(
        matches!(&state.steps[2].verdict, Verdict::Refused(why) if why.contains("same change"))
    );
    state.save(&path).unwrap();

    let mut state = State::load(&path).unwrap();
    let good = Server::start(vec![Script::Whole(right())]);
    go_on(&endpoint(&good), &mut Judge::new(), &mut state, 1).unwrap();
    assert_eq!(
        (state.end.clone(), state.rounds()),
        (Some(End::Repaired), 5)
    );
    assert!(good.asked(0).contains("was taken back"));
    assert!(state
        .steps
        .iter()
        .enumerate()
        .all(|(at, s)| s.number == at + 1));
}

#[test]
fn states_of_others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    assert!(State::load(&path).is_err());
    let mut value = serde_json::to_value(State::new("a", "b", None, (0.0, 0.0))).unwrap();
    value["version"] = 99.into();
    for text in ["", "{}", "[[[[", &value.to_string()] {
        std::fs::write(&path, text).unwrap();
        assert!(State::load(&path).is_err(), "{text}");
    }
}

#[test]
fn what_only_fits_the_shown_input_fails_on_others() {
    let server = Server::start(vec![
        Script::Whole(diff("    return v;", "    return v == 0.5f ? 1.0f : v;")),
        Script::Whole(diff(
            "    return v == 0.5f ? 1.0f : v;",
            "    return v + v;",
        )),
    ]);
    let state = repair(&endpoint(&server), &mut Judge::new(), 6);
    assert_eq!(state.end, Some(End::Repaired));
    let last = |verdict| {
        state
            .steps
            .iter()
            .any(|s| s.kind == StepKind::Last && s.verdict == verdict)
    };
    assert!(last(Verdict::Failed) && last(Verdict::Passed));
    assert!(server.asked(1).contains("inputs that nobody had seen"));
}

#[test]
fn fewer_checks_are_worse() {
    let server = Server::start(vec![Script::Whole(diff(
        "    return v;",
        "    return __fadd_rn(v, v);",
    ))]);
    let state = repair(&endpoint(&server), &mut Judge::new(), 1);
    let verdict = &state.steps[1].verdict;
    assert!(
        matches!(verdict, Verdict::Worse(why) if why.contains("twice on gfx942 is not checked")),
        "{verdict:?}"
    );
    assert_eq!(
        (state.end.clone(), state.best.as_str()),
        (Some(End::Rounds), FILE)
    );
}

#[test]
fn changed_tests_end_the_repair() {
    let server = Server::start(vec![Script::Whole(right())]);
    let mut state = State::new("twice.hip", FILE, None, (0.0, 0.0));
    go_on(&endpoint(&server), &mut Judge::new(), &mut state, 0).unwrap();
    let mut other = Judge::new();
    other.tests = "other".into();
    let refused = go_on(&endpoint(&server), &mut other, &mut state, 1);
    assert!(
        matches!(refused, Err(RunError::Check(CheckError::Changed(_)))),
        "{refused:?}"
    );
    assert_eq!(state.best, FILE);
}

#[test]
fn tokens_and_time_are_bounded() {
    let server = Server::start(vec![Script::Whole(diff(
        "    return v;",
        "    return 3 * v;",
    ))]);
    let limits = Limits {
        tokens: 1500,
        rounds: 9,
        ..Limits::default()
    };
    let mut state = State::new("twice.hip", FILE, None, (0.0, 0.0));
    bounded(
        &endpoint(&server),
        &mut Judge::new(),
        &mut state,
        limits,
        &Stop::default(),
    )
    .unwrap();
    assert_eq!((state.end.clone(), server.count()), (Some(End::Tokens), 2));
    let limits = Limits {
        time: Duration::ZERO,
        ..Limits::default()
    };
    bounded(
        &endpoint(&server),
        &mut Judge::new(),
        &mut state,
        limits,
        &Stop::default(),
    )
    .unwrap();
    assert_eq!((state.end, server.count()), (Some(End::Time), 2));
}

#[test]
fn an_interrupt_keeps_the_best_text() {
    let server = Server::start(vec![
        Script::Whole(diff("    return v;", "    return 4 * v;")),
        Script::Trickle,
    ]);
    let stop = Stop::default();
    let (raised, requests) = (stop.clone(), server.requests.clone());
    std::thread::spawn(move || {
        while requests.lock().unwrap().len() < 2 {
            std::thread::sleep(Duration::from_millis(5));
        }
        raised.raise();
    });
    let mut state = State::new("twice.hip", FILE, None, (0.0, 0.0));
    bounded(
        &endpoint(&server),
        &mut Judge::new(),
        &mut state,
        Limits::default(),
        &stop,
    )
    .unwrap();
    assert_eq!(state.end, Some(End::Interrupted));
    assert!(state.current.contains("4 * v"));
    assert!(state.steps.iter().all(|s| s.verdict != Verdict::Running));
}
