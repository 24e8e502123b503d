//! Several models behind one server, each in a process of its own. This program is both: called with `serve` it is a
//! worker whose models only echo, otherwise it runs the tests, each of which calls it again.

mod echo;
#[path = "../common/fleet.rs"]
mod fleet;
mod life;
mod room;
mod stress;

use fleet::Server;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

/// A folder with models.
pub struct Models(tempfile::TempDir);

impl Models {
    /// With models of these names.
    pub fn new(names: &[&str]) -> Self {
        let models = Self(tempfile::tempdir().unwrap());
        names.iter().for_each(|name| models.add(name, ""));
        models
    }

    /// Adds one, or changes it: lines `load-ms=N`, `fail=REASON`, `cramped=FILE` (it has no room while there is that
    /// file).
    pub fn add(&self, name: &str, lines: &str) {
        std::fs::write(self.path(&format!("{name}.echo")), lines).unwrap();
    }

    /// Of a file in it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        self.0.path()
    }
}

/// The server over a folder of models.
pub fn start(models: &Models, arguments: &[&str]) -> Server {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["serve", "--port", "0", "--models"])
        .arg(models.folder())
        .args(arguments);
    Server::spawn(command)
}

/// A test and its name.
type Test = (&'static str, fn());

macro_rules! tests {
    ($($module:ident::$name:ident),+ $(,)?) => {
        [$((concat!(stringify!($module), "::", stringify!($name)), $module::$name as fn())),+]
    };
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some("serve") {
        return worker::cli::main::<echo::Program>();
    }
    let tests: &[Test] = &tests![
        room::models_are_loaded_when_they_are_asked_for,
        room::the_one_unused_longest_makes_room_and_pinned_ones_stay,
        room::a_model_that_answers_is_waited_for,
        room::requests_wait_while_a_model_loads,
        room::waits_have_an_end_and_queues_a_length,
        room::idle_models_sleep_or_go,
        room::memory_is_made_by_sleep_first,
        room::a_load_without_room_makes_another_go,
        room::loading_and_unloading_by_hand,
        room::lists_are_read_anew,
        life::a_model_that_cannot_be_loaded_harms_no_other,
        life::a_crash_in_the_middle_of_an_answer_is_told_and_the_next_request_starts_it_anew,
        life::a_model_that_crashes_too_often_rests,
        life::nothing_outlives_the_server,
        life::a_stop_lets_answers_end_visibly,
        life::requests_and_answers_pass_as_they_are,
        stress::one_place_for_all,
        stress::nothing_is_lost_but_what_crashes,
    ];
    let filters: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let chosen = tests
        .iter()
        .filter(|(name, _)| filters.is_empty() || filters.iter().any(|part| name.contains(part)));
    let mut failed = 0;
    for (name, test) in chosen {
        let begun = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(test));
        let word = if ended.is_ok() { "ok" } else { "FAILED" };
        println!(
            "test {name} ... {word} ({:.1} s)",
            begun.elapsed().as_secs_f32()
        );
        failed += usize::from(ended.is_err());
    }
    println!("test result: {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}
