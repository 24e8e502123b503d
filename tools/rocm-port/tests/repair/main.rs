//! `repair` against an endpoint that a test writes: right, wrong, cheating, endless and broken answers.

mod answers;
mod cheating;
mod command;
mod end_to_end;
mod loops;
mod page;
mod server;

use rocm_port::repair::checker::{CheckError, Checker, Class, Finding, Outcome};
use rocm_port::repair::endpoint::{Endpoint, Model};
use rocm_port::repair::run::{Limits, Run, RunError};
use rocm_port::repair::state::State;
use rocm_port::repair::Stop;
use server::Server;
use std::time::Duration;

/// A kernel that should double its input, and does not.
pub const FILE: &str = "#include \"port/cuda.h\"\n\
    __device__ float change(float v) {\n    return v;\n}\n\
    extern \"C\" __global__ void twice(float *y, const float *x, int n) {\n    \
    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) y[i] = change(x[i]);\n}\n";

/// The diff of an answer.
pub(crate) fn diff(removed: &str, added: &str) -> String {
    let lines = |sign: char, text: &str| -> String {
        let lines = text.lines().map(|line| format!("{sign}{line}\n"));
        lines.collect()
    };
    let changes = lines('-', removed) + &lines('+', added);
    format!("```diff\n--- a/twice.hip\n+++ b/twice.hip\n@@ -1,1 +1,1 @@\n{changes}```\n")
}

pub(crate) fn right() -> String {
    diff("    return v;", "    return v + v;")
}

/// What a text of [`FILE`] computes, as the checks would see it.
pub(crate) struct Judge {
    /// Seeds of the checks so far.
    pub seeds: Vec<u64>,
    /// The digest of the tests.
    pub tests: String,
}

impl Judge {
    pub(crate) fn new() -> Self {
        Self {
            seeds: Vec::new(),
            tests: "tests".into(),
        }
    }
}

pub(crate) fn finding(class: Class, message: &str) -> Finding {
    Finding {
        class,
        id: "reference".into(),
        kernel: Some("twice".into()),
        line: Some(3),
        message: message.into(),
        detail: "x = [0.5]".into(),
    }
}

impl Checker for Judge {
    fn check(&mut self, text: &str, seed: u64) -> Result<Outcome, CheckError> {
        self.seeds.push(seed);
        let mut checked = vec!["twice on gfx1100", "twice on gfx942"];
        let findings = if text.contains("__fadd_rn(v") {
            // Stands for an answer after which a kernel is not run any more.
            checked.pop();
            Vec::new()
        } else if text.contains("undeclared") {
            vec![finding(Class::Compile, "error: <undeclared> & \"more\"")]
        } else if text.contains("v == 0.5f ? 1.0f : v") {
            // Right for the input that the model was shown, as long as that is drawn.
            match self.seeds.len() {
                1 | 2 => Vec::new(),
                _ => vec![finding(Class::Wrong, "0.25 instead of 0.5")],
            }
        } else if text.contains("return v + v;") || text.contains("2 * v") {
            Vec::new()
        } else if text.contains("return 3 * v;") {
            vec![
                finding(Class::Wrong, "1.5 instead of 1"),
                finding(Class::Unsafe, "out of bounds"),
            ]
        } else if text.contains("return 4 * v;") {
            vec![finding(Class::Wrong, "2 instead of 1")]
        } else {
            vec![finding(Class::Wrong, "0.5 instead of 1")]
        };
        let checked = checked.into_iter().map(str::to_string).collect();
        Ok(Outcome::new(findings, checked))
    }

    fn tests(&mut self) -> Result<String, CheckError> {
        Ok(self.tests.clone())
    }
}

pub(crate) fn endpoint(server: &Server) -> Endpoint {
    Endpoint {
        url: server.url(),
        model: "scripted".into(),
        key: None,
        max_tokens: 1000,
        temperature: 0.2,
        stream: true,
        timeout: Duration::from_secs(20),
        backoff: Duration::from_millis(1),
    }
}

/// Runs a repair of [`FILE`].
pub(crate) fn repair(endpoint: &Endpoint, judge: &mut Judge, rounds: usize) -> State {
    let mut state = State::new("twice.hip", FILE, Some(endpoint.name()), (2.0, 10.0));
    go_on(endpoint, judge, &mut state, rounds).unwrap();
    state
}

pub(crate) fn go_on(
    endpoint: &Endpoint,
    judge: &mut Judge,
    state: &mut State,
    rounds: usize,
) -> Result<(), RunError> {
    let limits = Limits {
        rounds,
        ..Limits::default()
    };
    bounded(endpoint, judge, state, limits, &Stop::default())
}

pub(crate) fn bounded(
    endpoint: &Endpoint,
    judge: &mut Judge,
    state: &mut State,
    limits: Limits,
    stop: &Stop,
) -> Result<(), RunError> {
    Run {
        checker: judge,
        model: Some(endpoint),
        limits,
        stop,
        keep: &mut |_| Ok(()),
    }
    .repair(state)
}
