//! Follows jobs that are on a disk to their ends, and puts those in line that a former server left.

use super::jobs::Body;
use super::saved_jobs::{SavedJob, SavedJobs};
use super::App;
use crate::jobs::{Failure, Job, State};
use serde_json::{Map, Value};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc::{unbounded_channel, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use worker::http::error::DEVICE_LOST;
use worker::http::{blocking, json, ApiError};
use worker::{Error, Result};

/// A job that was begun so often and never ended is not begun again: it may be what ends the server.
const MAX_TRIES: u32 = 3;
/// How often is looked for jobs that are forgotten.
const TIDY: Duration = Duration::from_secs(30);

/// A job to follow, and how often it was begun before.
type Followed = (String, u32);

/// What keeps a server's jobs.
pub(super) struct Keeper {
    saved: Arc<SavedJobs>,
    /// Gone when no more jobs come.
    sender: Mutex<Option<UnboundedSender<Followed>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Keeper {
    /// Writes a job that the queue has taken, and follows it from now on.
    ///
    /// # Errors
    /// 500 if it cannot be written; it is not in the queue any more then.
    pub(super) async fn keep(
        &self,
        app: &App,
        id: &str,
        body: Map<String, Value>,
    ) -> std::result::Result<(), ApiError> {
        let (saved, name) = (self.saved.clone(), id.to_string());
        let written = blocking(move || saved.save(&name, body)).await;
        let written = written.and_then(|written| {
            written.map_err(|e| ApiError::internal(format!("the job cannot be written: {e}")))
        });
        if let Err(error) = written {
            app.queue().cancel(id);
            self.saved.forget(id);
            return Err(error);
        }
        self.follow(id, 0);
        Ok(())
    }

    /// Writes down that jobs wait in this order.
    ///
    /// # Errors
    /// 500 if the system gives no thread.
    pub(super) async fn reorder(&self, ids: Vec<String>) -> std::result::Result<(), ApiError> {
        let saved = self.saved.clone();
        blocking(move || saved.reorder(&ids)).await
    }

    /// Removes what became of a job.
    ///
    /// # Errors
    /// 500 if the system gives no thread.
    pub(super) async fn remove(&self, id: String) -> std::result::Result<(), ApiError> {
        let saved = self.saved.clone();
        blocking(move || saved.remove_done(&id)).await
    }

    fn follow(&self, id: &str, tries: u32) {
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sender) = &*sender {
            // The thread is there as long as the sender is.
            let _ = sender.send((id.to_string(), tries));
        }
    }

    /// Waits until what became of all jobs is written. All of them have ended.
    pub(super) fn stop(&self) {
        drop(
            self.sender
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // It has nothing to tell.
            let _ = thread.join();
        }
    }
}

impl App {
    /// Opens the folder of the jobs, puts those in line that are there, and writes new ones there from now on. Called once,
    /// by a thread that no runtime needs.
    ///
    /// # Errors
    /// Those of [`SavedJobs::open`] and [`SavedJobs::waiting`]; [`Error::Runtime`] if the system gives no thread.
    pub fn keep_jobs(&self, folder: &Path) -> Result<()> {
        let options = self.queue().options();
        let max_bytes = self.options().limits.decode.max_bytes;
        let saved = SavedJobs::open(folder, &self.queue().info().name, max_bytes)?;
        let failed = |e: std::io::Error| Error::Runtime(format!("cannot start a thread: {e}"));
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let oldest = SystemTime::now().checked_sub(options.keep);
        let oldest = oldest.unwrap_or(SystemTime::UNIX_EPOCH);
        for job in saved.finished(oldest, options.keep_count) {
            self.queue().shelve(job);
        }
        let mut followed = Vec::new();
        for job in saved.waiting()? {
            followed.extend(runtime.block_on(self.go_on(&saved, job)));
        }
        if !followed.is_empty() {
            tracing::info!("{} saved jobs go on", followed.len());
        }
        let (sender, receiver) = unbounded_channel();
        let saved = Arc::new(saved);
        let (app, theirs) = (self.clone(), saved.clone());
        let thread = std::thread::Builder::new().name("saved jobs".to_string());
        let thread = thread.spawn(move || follow_all(&runtime, &app, &theirs, receiver));
        let keeper = Keeper {
            saved,
            sender: Mutex::new(Some(sender)),
            thread: Mutex::new(Some(thread.map_err(failed)?)),
        };
        for (id, tries) in followed {
            keeper.follow(&id, tries);
        }
        // It is called once.
        let _ = self.0.keeper.set(keeper);
        Ok(())
    }

    /// Puts a saved job in line, or sets it aside; a client that asks hears why.
    async fn go_on(&self, saved: &SavedJobs, job: SavedJob) -> Option<Followed> {
        let refused = |message: String, code: &'static str| {
            saved.give_up(&job, &message);
            self.queue().shelve(Job::failed(
                &job.id,
                job.created(),
                Failure { code, message },
            ));
            None
        };
        if job.tries >= MAX_TRIES {
            let failure = Failure::internal(format!(
                "it was begun {} times, and each time the server ended; it is not begun again",
                job.tries
            ));
            return refused(failure.message, failure.code);
        }
        let body = json::from_value::<Body>(&Value::Object(job.body.clone()));
        let request = match body {
            Ok(body) => self.job_request(body).await,
            Err(error) => Err(error),
        };
        match request {
            Ok((request, _)) => {
                self.queue().resume(&job.id, job.created(), request);
                Some((job.id.clone(), job.tries))
            }
            Err(error) => {
                let failure = Failure::invalid(error.message);
                refused(failure.message, failure.code)
            }
        }
    }
}

/// Follows jobs until no more come and all have ended.
fn follow_all(
    runtime: &Runtime,
    app: &App,
    saved: &Arc<SavedJobs>,
    mut receiver: UnboundedReceiver<Followed>,
) {
    runtime.block_on(async {
        let mut all = JoinSet::new();
        let mut tidying = tokio::time::interval(TIDY);
        loop {
            tokio::select! {
                job = receiver.recv() => match job {
                    Some((id, tries)) => {
                        let (app, saved) = (app.clone(), saved.clone());
                        all.spawn(async move { follow(&app, &saved, &id, tries).await });
                    }
                    None => break,
                },
                Some(_) = all.join_next(), if !all.is_empty() => {}
                _ = tidying.tick() => saved.tidy(|id| app.queue().job(id).is_some()),
            }
        }
        while all.join_next().await.is_some() {}
    });
}

/// Follows a job to its end.
async fn follow(app: &App, saved: &SavedJobs, id: &str, tries: u32) {
    let Some(mut receiver) = app.queue().watch(id) else {
        return saved.forget(id);
    };
    let mut begun = false;
    let job = loop {
        let job = receiver.borrow_and_update().clone();
        if job.state.is_final() {
            break job;
        }
        if job.state == State::Running && !begun {
            begun = true;
            saved.begun(id, tries.saturating_add(1));
        }
        if receiver.changed().await.is_err() {
            // Forgotten: it has ended.
            break receiver.borrow().clone();
        }
    };
    let is_devices = job
        .failure
        .as_ref()
        .is_some_and(|failure| failure.code == DEVICE_LOST);
    match job.state {
        // The server ends, not the job: it goes on with the next start.
        State::Cancelled if app.queue().is_closed() => saved.interrupted(id),
        State::Failed if is_devices => {}
        State::Cancelled => saved.forget(id),
        _ => {
            if let Err(error) = saved.finish(&job) {
                tracing::warn!("what became of job {id} cannot be written: {error}");
            }
        }
    }
}
