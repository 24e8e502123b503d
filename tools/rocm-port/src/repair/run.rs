//! The loop: check, rewrite, ask, guard, apply, check again.

use super::answer::apply_answer;
use super::checker::{CheckError, Checker, Outcome};
use super::endpoint::{AskError, Model};
use super::guard::guard;
use super::prompt;
use super::rewrite::rewrites;
use super::state::{diff, End, State, Step, StepKind, Verdict};
use super::Stop;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// Answers in a row that never came, after which the endpoint is given up.
const MAX_SILENT: usize = 3;
/// Checks of one list of rewrites.
const MAX_REWRITES: usize = 24;
/// Checks on unseen inputs at the end.
const LAST_CHECKS: usize = 2;

/// The bounds of a run.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Answers of the model.
    pub rounds: usize,
    /// Time for everything.
    pub time: Duration,
    /// Tokens, sent and received.
    pub tokens: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            rounds: 6,
            time: Duration::from_secs(30 * 60),
            tokens: 400_000,
        }
    }
}

/// Why a run could not be carried out; how one ended is [`State::end`].
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The checks.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// What the caller does after each step.
    #[error("{0}")]
    Keep(String),
}

/// What a run works with.
pub struct Run<'a> {
    /// The checks.
    pub checker: &'a mut dyn Checker,
    /// The model; without one, only rewrites.
    pub model: Option<&'a dyn Model>,
    /// The bounds.
    pub limits: Limits,
    /// Raised by Ctrl+C.
    pub stop: &'a Stop,
    /// Called when a step begins and when it is over: saves the state and shows it.
    pub keep: &'a mut dyn FnMut(&State) -> Result<(), String>,
}

/// A run with the time at which its step began.
struct Running<'a> {
    run: Run<'a>,
    clock: Instant,
}

impl Run<'_> {
    /// Works until nothing is wrong, or a bound is met; `state` has the best text either way.
    ///
    /// # Errors
    /// If the checks cannot be carried out, or the tests are not those that the repair began with.
    pub fn repair(self, state: &mut State) -> Result<(), RunError> {
        let clock = Instant::now();
        Running { run: self, clock }.repair(state)
    }
}

impl Running<'_> {
    fn repair(mut self, state: &mut State) -> Result<(), RunError> {
        let deadline = Instant::now() + self.run.limits.time;
        let tests = self.run.checker.tests()?;
        if state.tests.is_empty() {
            state.tests = tests;
        }
        state.end = None;
        let end = match self.steps(state, deadline) {
            Ok(end) => end,
            Err(RunError::Check(CheckError::Interrupted)) => End::Interrupted,
            Err(error) => {
                forget_running(state);
                (self.run.keep)(state).map_err(RunError::Keep)?;
                return Err(error);
            }
        };
        forget_running(state);
        state.end = Some(end);
        (self.run.keep)(state).map_err(RunError::Keep)
    }

    fn steps(&mut self, state: &mut State, deadline: Instant) -> Result<End, RunError> {
        if !state.steps.iter().any(|s| s.outcome.is_some()) {
            let step = self.begin(state, StepKind::First)?;
            let outcome = self.check(state, &state.original.clone())?;
            state.outcome = outcome.clone();
            state.best_outcome = outcome.clone();
            self.over(state, step, Verdict::Checked, Some(outcome))?;
            if state.outcome.is_clean() && self.last(state)? {
                return Ok(End::Nothing);
            }
        }
        self.rewrite(state, deadline)?;
        let mut silent = 0;
        let mut left = self.run.limits.rounds;
        loop {
            if state.outcome.is_clean() && self.last(state)? {
                return Ok(End::Repaired);
            }
            let Some(model) = self.run.model else {
                return Ok(End::Rewrites);
            };
            let (sent, received) = state.tokens();
            if self.run.stop.is_raised() {
                return Ok(End::Interrupted);
            } else if left == 0 {
                return Ok(End::Rounds);
            } else if Instant::now() >= deadline {
                return Ok(End::Time);
            } else if sent + received >= self.run.limits.tokens {
                return Ok(End::Tokens);
            }
            left -= 1;
            match self.round(state, model, deadline)? {
                Asked::Answered => silent = 0,
                Asked::Silent(why) => {
                    silent += 1;
                    if silent >= MAX_SILENT {
                        return Ok(End::Endpoint(why));
                    }
                }
                Asked::Gone(end) => return Ok(end),
            }
        }
    }

    /// Tries the rewrites one by one, and keeps those after which less is wrong.
    fn rewrite(&mut self, state: &mut State, deadline: Instant) -> Result<(), RunError> {
        let mut checks = 0;
        let mut tried = Vec::new();
        loop {
            let found = rewrites(&state.current)
                .into_iter()
                .find(|r| !tried.contains(&r.text) && r.text != state.current);
            let Some(rewrite) = found else {
                return Ok(());
            };
            let over = Instant::now() >= deadline || checks >= MAX_REWRITES;
            if over || state.outcome.is_clean() || self.run.stop.is_raised() {
                return Ok(());
            }
            checks += 1;
            let step = self.begin(state, StepKind::Rewrite(rewrite.title.into()))?;
            state.steps[step].diff = diff(&state.file, &state.current, &rewrite.text);
            let outcome = self.check(state, &rewrite.text)?;
            let better =
                outcome.rank() < state.outcome.rank() && lost(&state.outcome, &outcome).is_none();
            let verdict = match better {
                true => {
                    state.current = rewrite.text.clone();
                    state.outcome = outcome.clone();
                    better_than_best(state);
                    Verdict::Better
                }
                false => Verdict::Worse(format!(
                    "{} after it, {} before",
                    outcome.rank(),
                    state.outcome.rank()
                )),
            };
            tried.push(rewrite.text);
            self.over(state, step, verdict, Some(outcome))?;
        }
    }

    fn round(
        &mut self,
        state: &mut State,
        model: &dyn Model,
        deadline: Instant,
    ) -> Result<Asked, RunError> {
        let messages = prompt::messages(state);
        let step = self.begin(state, StepKind::Round(state.rounds() + 1))?;
        state.steps[step].sent = messages.clone();
        let reply = match model.ask(&messages, self.run.stop, deadline) {
            Ok(reply) => reply,
            Err(AskError::Interrupted) => return Ok(Asked::Gone(End::Interrupted)),
            Err(error) => {
                let why = error.to_string();
                self.over(state, step, Verdict::NoAnswer(why.clone()), None)?;
                return Ok(match error {
                    AskError::Broken(_) => Asked::Silent(why),
                    _ => Asked::Gone(End::Endpoint(why)),
                });
            }
        };
        state.steps[step].reply = Some(reply.clone());
        let (verdict, outcome) = self.apply(state, step, &reply.text)?;
        self.over(state, step, verdict, outcome)?;
        Ok(Asked::Answered)
    }

    fn apply(
        &mut self,
        state: &mut State,
        step: usize,
        answer: &str,
    ) -> Result<(Verdict, Option<Outcome>), RunError> {
        let text = match apply_answer(answer, &state.file, &state.current) {
            Ok(text) => text,
            Err(why) => return Ok((Verdict::Refused(why.to_string()), None)),
        };
        let change = diff(&state.file, &state.current, &text);
        let before = state
            .steps
            .iter()
            .any(|s| s.diff == change && matches!(s.verdict, Verdict::Worse(_)));
        state.steps[step].diff = change;
        if let Err(why) = guard(&state.current, &text) {
            return Ok((Verdict::Refused(why.to_string()), None));
        }
        if before {
            return Ok((
                Verdict::Refused("the same change was taken back before".into()),
                None,
            ));
        }
        (self.run.keep)(state).map_err(RunError::Keep)?;
        let outcome = self.check(state, &text)?;
        let (was, is) = (state.outcome.rank(), outcome.rank());
        let verdict = if is > was {
            let first = first(&outcome);
            Verdict::Worse(format!("{is} after it, {was} before; the first: {first}"))
        } else if let Some(lost) = lost(&state.outcome, &outcome) {
            Verdict::Worse(format!("{lost} is not checked any more"))
        } else {
            state.current = text;
            state.outcome = outcome.clone();
            match better_than_best(state) {
                true => Verdict::Better,
                false => Verdict::Kept,
            }
        };
        Ok((verdict, Some(outcome)))
    }

    /// The checks on unseen inputs. What they find is what is wrong from then on.
    fn last(&mut self, state: &mut State) -> Result<bool, RunError> {
        let step = self.begin(state, StepKind::Last)?;
        for _ in 0..LAST_CHECKS {
            let outcome = self.check(state, &state.current.clone())?;
            if !outcome.is_clean() || lost(&state.outcome, &outcome).is_some() {
                state.outcome = outcome.clone();
                if state.best == state.current {
                    state.best_outcome = outcome.clone();
                }
                self.over(state, step, Verdict::Failed, Some(outcome))?;
                return Ok(false);
            }
        }
        state.best = state.current.clone();
        state.best_outcome = state.outcome.clone();
        self.over(state, step, Verdict::Passed, None)?;
        Ok(true)
    }

    /// Checks on new inputs, with the tests that the repair began with.
    fn check(&mut self, state: &State, text: &str) -> Result<Outcome, RunError> {
        let unchanged = |tests: String| match tests == state.tests {
            true => Ok(()),
            false => Err(CheckError::Changed("their digest is another one".into())),
        };
        unchanged(self.run.checker.tests()?)?;
        // Keys of the standard library's hash maps come from the system's random numbers.
        let seed = RandomState::new().hash_one(Instant::now());
        let outcome = self.run.checker.check(text, seed)?;
        unchanged(self.run.checker.tests()?)?;
        Ok(outcome)
    }

    fn begin(&mut self, state: &mut State, kind: StepKind) -> Result<usize, RunError> {
        forget_running(state);
        state.steps.push(Step::begin(state.steps.len() + 1, kind));
        (self.run.keep)(state).map_err(RunError::Keep)?;
        self.clock = Instant::now();
        Ok(state.steps.len() - 1)
    }

    fn over(
        &mut self,
        state: &mut State,
        step: usize,
        verdict: Verdict,
        outcome: Option<Outcome>,
    ) -> Result<(), RunError> {
        let entry = &mut state.steps[step];
        entry.seconds = self.clock.elapsed().as_secs_f64();
        entry.verdict = verdict;
        entry.outcome = outcome;
        (self.run.keep)(state).map_err(RunError::Keep)
    }
}

/// What became of a question.
enum Asked {
    Answered,
    Silent(String),
    Gone(End),
}

/// Steps that were interrupted have said nothing.
fn forget_running(state: &mut State) {
    state.steps.retain(|s| s.verdict != Verdict::Running);
}

fn better_than_best(state: &mut State) -> bool {
    let better = state.outcome.rank() < state.best_outcome.rank();
    if better {
        state.best = state.current.clone();
        state.best_outcome = state.outcome.clone();
    }
    better
}

/// A test that was carried out before and is not any more.
fn lost(before: &Outcome, after: &Outcome) -> Option<String> {
    before.checked.difference(&after.checked).next().cloned()
}

fn first(outcome: &Outcome) -> String {
    let shown = outcome.findings.first().map(|f| match f.line {
        Some(line) => format!("line {line}: {}", f.message),
        None => f.message.clone(),
    });
    shown.unwrap_or_default().chars().take(600).collect()
}
