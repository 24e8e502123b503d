//! The batches, each for those with its key only.

use super::record::{Kind, Record, Status};
use super::work;
use crate::batch::figures::Figures;
use crate::batch::run::Course;
use crate::server::app::App;
use crate::server::files::{entries, MAX_RECORD_BYTES};
use serde_json::json;
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{watch, Semaphore};
use worker::file;
use worker::http::{ApiError, Caller};

/// Most batches that are not at their end.
const MOST_OPEN: usize = 256;
/// Most batches that are known.
const MOST: usize = 10_000;

/// The batches.
pub(in crate::server) struct Batches {
    all: Mutex<BTreeMap<String, Arc<Entry>>>,
    /// One of them is answered at a time, in the order in which they came.
    pub(super) turn: Semaphore,
}

impl Default for Batches {
    fn default() -> Self {
        Self {
            all: Mutex::default(),
            turn: Semaphore::new(1),
        }
    }
}

/// A batch.
pub(super) struct Entry {
    record: Mutex<Record>,
    /// How far its requests are, while they are answered.
    figures: Mutex<Option<Arc<Figures>>>,
    /// Whether they are.
    pub course: watch::Sender<Course>,
}

impl Entry {
    fn new(record: Record) -> Arc<Self> {
        Arc::new(Self {
            record: Mutex::new(record),
            figures: Mutex::default(),
            course: watch::channel(Course::On).0,
        })
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn figures(&self) -> MutexGuard<'_, Option<Arc<Figures>>> {
        self.figures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The moment's state.
    pub fn now(&self) -> Record {
        let mut record = self.record().clone();
        if let Some(figures) = &*self.figures() {
            count(&mut record, figures);
        }
        record
    }

    /// Counts from now on, until [`Self::change`] ends it.
    pub fn begin(&self, figures: Arc<Figures>) {
        *self.figures() = Some(figures);
    }

    /// Takes what was counted into the record.
    pub fn end(&self) {
        if let Some(figures) = self.figures().take() {
            count(&mut self.record(), &figures);
        }
    }

    /// Changes the record, and writes it down.
    ///
    /// # Errors
    /// 500 if it cannot be written.
    pub fn change(&self, app: &App, change: impl FnOnce(&mut Record)) -> Result<Record, ApiError> {
        let mut record = self.record();
        change(&mut record);
        let text = json!(*record).to_string();
        let path = path_of(app, &record.id)?;
        file::replace(&path, text.as_bytes())
            .map_err(|e| ApiError::internal(format!("the batch cannot be written down: {e}")))?;
        Ok(record.clone())
    }
}

fn count(record: &mut Record, figures: &Figures) {
    record.completed = figures.answered() + figures.earlier_answered();
    record.failed = figures.failed() + figures.earlier_failed();
    (record.prompt_tokens, record.completion_tokens) = figures.all_tokens();
}

fn path_of(app: &App, id: &str) -> Result<PathBuf, ApiError> {
    Ok(app.files().folder()?.join(format!("{id}.json")))
}

impl Batches {
    fn all_entries(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Entry>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A caller's batches, in the order in which they were made.
    pub fn all(&self, kind: Kind, caller: Caller) -> Vec<Record> {
        let entries = self.all_entries();
        let records = entries.values().map(|entry| entry.now());
        let own = records.filter(|record| record.kind == kind && record.owner == caller.0);
        let mut own: Vec<Record> = own.collect();
        own.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        own
    }

    fn entry(&self, kind: Kind, caller: Caller, id: &str) -> Result<Arc<Entry>, ApiError> {
        let entries = self.all_entries();
        let is_own = |record: &Record| record.kind == kind && record.owner == caller.0;
        let found = entries.get(id).filter(|entry| is_own(&entry.record()));
        found
            .cloned()
            .ok_or_else(|| ApiError::not_found(format!("there is no batch {id:?}")))
    }

    /// A caller's batch.
    ///
    /// # Errors
    /// 404 if there is none.
    pub fn find(&self, kind: Kind, caller: Caller, id: &str) -> Result<Record, ApiError> {
        Ok(self.entry(kind, caller, id)?.now())
    }

    /// The id of a batch that still needs a file.
    pub fn that_reads(&self, file: &str) -> Option<String> {
        let entries = self.all_entries();
        let mut open = entries.values().map(|entry| entry.record().clone());
        let found = open.find(|record| !record.status.is_end() && record.input_file_id == file);
        found.map(|record| record.id)
    }

    /// Begins a batch. Needs the runtime of the server.
    ///
    /// # Errors
    /// 429 if there are too many; 500 if it cannot be written down.
    pub fn start(&self, app: &Arc<App>, record: Record) -> Result<Record, ApiError> {
        let entry = Entry::new(record);
        {
            let mut entries = self.all_entries();
            let open = entries
                .values()
                .filter(|entry| !entry.record().status.is_end());
            if open.count() >= MOST_OPEN || entries.len() >= MOST {
                let reason =
                    format!("there are {MOST_OPEN} batches to be answered, or {MOST} in all");
                let status = axum::http::StatusCode::TOO_MANY_REQUESTS;
                return Err(ApiError::new(status, "TOO_MANY_BATCHES", reason));
            }
            let id = entry.record().id.clone();
            entries.insert(id, entry.clone());
        }
        let record = match entry.change(app, |_| {}) {
            Ok(record) => record,
            Err(error) => {
                let id = entry.record().id.clone();
                self.all_entries().remove(&id);
                return Err(error);
            }
        };
        tokio::spawn(work::attend(app.clone(), entry));
        Ok(record)
    }

    /// Cancels a batch: what has begun is finished.
    ///
    /// # Errors
    /// 404 if there is none; 400 if it has ended; 500.
    pub fn cancel(
        &self,
        app: &App,
        kind: Kind,
        caller: Caller,
        id: &str,
    ) -> Result<Record, ApiError> {
        let entry = self.entry(kind, caller, id)?;
        let now = entry.now();
        if now.status.is_end() || now.status == Status::Finalizing {
            return Err(ApiError::invalid(format!("batch {id} has ended already")));
        }
        entry.change(app, |record| record.set(Status::Cancelling))?;
        entry.course.send_replace(Course::Finish);
        Ok(entry.now())
    }

    /// Forgets a batch that has ended.
    ///
    /// # Errors
    /// 404 if there is none; 400 if it has not ended.
    pub fn forget(
        &self,
        app: &App,
        kind: Kind,
        caller: Caller,
        id: &str,
    ) -> Result<Record, ApiError> {
        let entry = self.entry(kind, caller, id)?;
        let record = entry.now();
        if !record.status.is_end() {
            return Err(ApiError::invalid(format!(
                "batch {id} has not ended: cancel it first"
            )));
        }
        self.all_entries().remove(id);
        // A record that stays is known again after a restart, and nothing worse.
        let _ = std::fs::remove_file(path_of(app, id)?);
        Ok(record)
    }

    /// Takes up what an earlier server has left in a folder that is kept. Needs the runtime of the server.
    pub fn resume(&self, app: &Arc<App>) {
        if !app.files().is_kept() {
            return;
        }
        let Ok(folder) = app.files().folder() else {
            return;
        };
        let mut open = Vec::new();
        let mut used = HashSet::new();
        for path in entries(folder) {
            let stem = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let is_batch = stem.starts_with("batch_") || stem.starts_with("msgbatch_");
            if !is_batch || path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let read = file::read(&path, MAX_RECORD_BYTES).ok();
            let record = read.and_then(|text| serde_json::from_slice::<Record>(&text).ok());
            let Some(record) = record.filter(|record| record.id == stem) else {
                tracing::warn!("{}: it is no batch, and is left alone", path.display());
                continue;
            };
            for id in [&record.input_file_id, &record.output_id, &record.error_id] {
                used.insert(id.clone());
            }
            let entry = Entry::new(record.clone());
            if record.status == Status::Cancelling {
                entry.course.send_replace(Course::Finish);
            }
            self.all_entries().insert(stem, entry.clone());
            if !record.status.is_end() {
                open.push((record.created_at, entry));
            }
        }
        app.files().tidy(&used);
        open.sort_by_key(|(created_at, _)| *created_at);
        if !open.is_empty() {
            tracing::info!("{} batches of an earlier server go on", open.len());
        }
        for (_, entry) in open {
            tokio::spawn(work::attend(app.clone(), entry));
        }
    }
}
