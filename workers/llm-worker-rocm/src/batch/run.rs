//! As many requests at once as may be, tried again where that helps.

use super::ask::{Ask, Trouble};
use super::feed::Window;
use super::line::Item;
use super::outcome::{Outcome, Reply};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use worker::http::ApiError;

/// How often a limit that has no room is asked again.
const LIMIT_PAUSE: Duration = Duration::from_millis(50);
/// Wait before the second try; each further one waits twice as long, …
const FIRST_WAIT: Duration = Duration::from_secs(1);
/// … up to this long, unless the answer says how long.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Longest wait that an answer can ask for.
const LONGEST_ASKED_WAIT: Duration = Duration::from_secs(600);

/// Whether a run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Course {
    /// It does.
    On,
    /// Nothing new begins; what runs is waited for.
    Finish,
    /// What runs is given up, too.
    Drop,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// All requests have an outcome.
    Complete,
    /// It was told to end before.
    Stopped,
    /// Nobody takes outcomes any more.
    Unwritable,
    /// There are no answers any more.
    Trouble(Trouble),
}

/// How many requests there may be at once, given how many there are.
pub type Limit = Box<dyn Fn(usize) -> usize + Send + Sync>;

/// A run.
pub struct Run {
    /// Who answers.
    pub asker: Arc<dyn Ask>,
    /// How many requests there may be at once.
    pub limit: Limit,
    /// How often a request is tried again after 429, 503, or where there is no answer.
    pub retries: u32,
}

impl Run {
    /// Asks what comes through `windows`, and sends what became of it; requests that were given up have no outcome.
    pub async fn run(
        self,
        mut windows: mpsc::Receiver<Window>,
        outcomes: mpsc::Sender<Outcome>,
        mut course: watch::Receiver<Course>,
    ) -> End {
        let mut tasks: JoinSet<Result<Option<Outcome>, Trouble>> = JoinSet::new();
        let mut window = Vec::new().into_iter();
        let mut has_ended = false;
        loop {
            let now = *course.borrow_and_update();
            if now == Course::Drop {
                return End::Stopped;
            }
            let goes_on = now == Course::On;
            let mut has_room = tasks.len() < (self.limit)(tasks.len());
            while goes_on && has_room {
                let Some(item) = window.next() else { break };
                let (asker, course) = (self.asker.clone(), course.clone());
                tasks.spawn(attempt(asker, item, self.retries, course));
                has_room = tasks.len() < (self.limit)(tasks.len());
            }
            let is_out = window.len() == 0;
            if tasks.is_empty() && (!goes_on || is_out && has_ended) {
                return match goes_on {
                    true => End::Complete,
                    false => End::Stopped,
                };
            }
            tokio::select! {
                biased;
                // Gone with whoever could stop the run, which then goes on.
                Ok(()) = course.changed() => {}
                Some(joined) = tasks.join_next(), if !tasks.is_empty() => {
                    match joined {
                        Ok(Ok(Some(outcome))) => {
                            if outcomes.send(outcome).await.is_err() {
                                return End::Unwritable;
                            }
                        }
                        Ok(Ok(None)) => {}
                        Ok(Err(trouble)) => return End::Trouble(trouble),
                        Err(error) => tracing::error!("a request was lost: {error}"),
                    }
                }
                next = windows.recv(), if goes_on && is_out && !has_ended => match next {
                    Some(next) => {
                        for fault in next.faults {
                            if outcomes.send(Outcome::Faulty(fault)).await.is_err() {
                                return End::Unwritable;
                            }
                        }
                        window = next.items.into_iter();
                    }
                    None => has_ended = true,
                },
                () = outcomes.closed() => return End::Unwritable,
                () = tokio::time::sleep(LIMIT_PAUSE), if goes_on && !has_room => {}
            }
        }
    }
}

/// Asks a request until it has an answer that stands; nothing if the run ends before.
async fn attempt(
    asker: Arc<dyn Ask>,
    item: Item,
    retries: u32,
    mut course: watch::Receiver<Course>,
) -> Result<Option<Outcome>, Trouble> {
    let item = Arc::new(item);
    let mut wait = FIRST_WAIT;
    let mut left = retries;
    loop {
        // In a task of its own: a panic is an answer to one request.
        let (of_task, again) = (asker.clone(), item.clone());
        let mut task = JoinSet::new();
        task.spawn(async move { of_task.ask(&again).await });
        let asked = match task.join_next().await {
            Some(Ok(asked)) => asked,
            Some(Err(error)) => Ok(of_panic(error)),
            None => Ok(of_panic_text("no answer")),
        };
        let asked_wait = match asked {
            Ok(reply) if left > 0 && matches!(reply.status, 429 | 503) => reply.retry_after,
            Ok(reply) => return Ok(Some(Outcome::Answered(item, reply))),
            Err(Trouble::Unreachable(reason)) if left > 0 => {
                tracing::debug!("line {}: {reason}", item.number);
                None
            }
            Err(trouble) => return Err(trouble),
        };
        left -= 1;
        let pause = asked_wait.map_or(wait, |asked| asked.min(LONGEST_ASKED_WAIT));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            Ok(_) = course.wait_for(|course| *course != Course::On) => return Ok(None),
        }
        wait = (2 * wait).min(LONGEST_WAIT);
    }
}

fn of_panic(error: JoinError) -> Reply {
    match error.try_into_panic() {
        Ok(panic) => of_panic_text(&worker::http::blocking::panic_text(&*panic)),
        Err(error) => of_panic_text(&error.to_string()),
    }
}

fn of_panic_text(text: &str) -> Reply {
    let error = ApiError::internal(format!("internal error: {text}"));
    Reply {
        status: error.status.as_u16(),
        request_id: None,
        retry_after: None,
        body: error.to_json().to_string().into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::ask::Asking;
    use crate::batch::line::Fault;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::Mutex;

    /// Answers after a moment, each request by its number.
    #[derive(Default)]
    struct Counting {
        now: AtomicUsize,
        most: AtomicUsize,
        asked: Mutex<Vec<u64>>,
    }

    impl Ask for Counting {
        fn ask<'a>(&'a self, item: &'a Item) -> Asking<'a> {
            Box::pin(async move {
                let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
                self.most.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(2)).await;
                self.now.fetch_sub(1, Ordering::SeqCst);
                let earlier = {
                    let mut asked = self.asked.lock().unwrap();
                    let earlier = asked.iter().filter(|&&n| n == item.number).count();
                    asked.push(item.number);
                    earlier
                };
                let (status, wait) = match item.number {
                    3 if earlier < 2 => (429, Some(Duration::from_millis(1))),
                    4 => (503, Some(Duration::ZERO)),
                    5 => panic!("on purpose"),
                    66 => return Err(Trouble::Lost("gone".to_string())),
                    _ => (200, None),
                };
                Ok(Reply {
                    status,
                    request_id: None,
                    retry_after: wait,
                    body: b"{}".to_vec(),
                })
            })
        }
    }

    fn item(number: u64) -> Item {
        let line = format!(
            r#"{{"custom_id":"{number}","method":"POST","url":"/v1/completions","body":{{}}}}"#
        );
        Item::read(number, line.into_bytes(), None).unwrap()
    }

    /// Runs requests; gives the end, and the statuses by number.
    async fn run(asker: Arc<Counting>, numbers: &[u64], course: Course) -> (End, Vec<(u64, u16)>) {
        let (windows, to_ask) = mpsc::channel(4);
        for part in numbers.chunks(3) {
            let window = Window {
                items: part.iter().copied().map(item).collect(),
                faults: vec![Fault::new(part[0], "x", "y")],
            };
            windows.send(window).await.unwrap();
        }
        drop(windows);
        let (outcomes, mut written) = mpsc::channel(100);
        let (_stop, stopped) = watch::channel(course);
        let run = Run {
            asker,
            limit: Box::new(|_| 4),
            retries: 2,
        };
        let end = run.run(to_ask, outcomes, stopped).await;
        let mut all = Vec::new();
        while let Some(outcome) = written.recv().await {
            match outcome {
                Outcome::Answered(item, reply) => all.push((item.number, reply.status)),
                Outcome::Faulty(fault) => assert_eq!(fault.code, "x"),
                other => panic!("{other:?}"),
            }
        }
        all.sort();
        (end, all)
    }

    #[tokio::test]
    async fn all_are_asked_and_some_again() {
        let asker = Arc::new(Counting::default());
        let (end, all) = run(asker.clone(), &[1, 2, 3, 4, 5, 6, 7, 8, 9], Course::On).await;
        assert_eq!(end, End::Complete);
        let expected = [
            (1, 200),
            (2, 200),
            (3, 200),
            (4, 503),
            (5, 500),
            (6, 200),
            (7, 200),
            (8, 200),
            (9, 200),
        ];
        assert_eq!(all, expected);
        assert_eq!(asker.most.load(Ordering::SeqCst), 4);
        let asked = asker.asked.lock().unwrap();
        assert_eq!(asked.iter().filter(|&&n| n == 4).count(), 3);
    }

    #[tokio::test]
    async fn a_lost_device_and_a_stop_end_a_run() {
        let (end, _) = run(Arc::default(), &[1, 66, 2, 6, 7, 8], Course::On).await;
        assert_eq!(end, End::Trouble(Trouble::Lost("gone".to_string())));
        let (end, all) = run(Arc::default(), &[1, 2], Course::Finish).await;
        assert_eq!((end, all.len()), (End::Stopped, 0));
    }
}
