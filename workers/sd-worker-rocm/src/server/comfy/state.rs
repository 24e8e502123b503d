//! What is known of the graphs that were sent: those that wait, those that are done, and their pictures.

use super::files::Uploads;
use super::socket::Events;
use crate::jobs::{Job, JobQueue};
use crate::server::App;
use image::RgbImage;
use serde_json::{json, Map, Value};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Most bytes of all graphs, and of pictures made larger; the oldest that are done are forgotten first.
const MOST_BYTES: usize = 512 << 20;
/// Most graphs.
const MOST_RECORDS: usize = 256;

/// What ComfyUI's routes remember.
#[derive(Default)]
pub(in crate::server) struct Comfy {
    records: Mutex<Vec<Record>>,
    uploads: Uploads,
    pub(super) events: Events,
    /// Of graphs, and of pictures' files.
    numbers: AtomicU64,
    files: AtomicU64,
}

/// A graph that was sent.
#[derive(Clone)]
pub(super) struct Record {
    pub(super) id: String,
    pub(super) number: u64,
    pub(super) graph: Arc<Value>,
    /// Of the graph, of what the client sent besides, and of pictures made larger.
    pub(super) bytes: usize,
    pub(super) extra: Value,
    /// The nodes for whose pictures it is there.
    pub(super) outputs: Vec<String>,
    pub(super) job: String,
    pub(super) files: Vec<File>,
    /// Once it has ended.
    pub(super) done: Option<Done>,
}

/// How it ended.
#[derive(Clone)]
pub(super) struct Done {
    pub(super) succeeded: bool,
    /// What was told on the way: `[kind, data]`.
    pub(super) messages: Vec<Value>,
}

/// A picture's file.
#[derive(Clone)]
pub(super) struct File {
    pub(super) node: String,
    pub(super) name: String,
    pub(super) folder: String,
    /// `output` or `temp`.
    pub(super) kind: &'static str,
    /// Which one of the job.
    pub(super) picture: usize,
    /// The picture, where it is not the job's own.
    pub(super) larger: Option<Arc<RgbImage>>,
}

impl File {
    /// As clients are told of it.
    pub(super) fn told(&self) -> Value {
        json!({"filename": self.name, "subfolder": self.folder, "type": self.kind})
    }
}

impl Record {
    /// As a row of the queue and the head of history.
    pub(super) fn row(&self) -> Value {
        json!([self.number, self.id, *self.graph, self.extra, self.outputs])
    }

    /// As history tells of it.
    pub(super) fn history(&self) -> Value {
        let done = self.done.as_ref();
        let status = match done.is_some_and(|done| done.succeeded) {
            true => "success",
            false => "error",
        };
        json!({
            "prompt": self.row(),
            "outputs": self.pictures(),
            "status": {
                "status_str": status,
                "completed": done.is_some_and(|done| done.succeeded),
                "messages": done.map(|done| &done.messages),
            },
            "meta": {},
        })
    }

    /// The files by the nodes that gave them.
    fn pictures(&self) -> Value {
        let mut nodes = Map::new();
        for file in &self.files {
            let node = nodes
                .entry(&file.node)
                .or_insert_with(|| json!({"images": []}));
            if let Some(images) = node["images"].as_array_mut() {
                images.push(file.told());
            }
        }
        Value::Object(nodes)
    }
}

/// Forgets the oldest graphs that are done, where there are too many.
fn forget_old(records: &mut Vec<Record>) {
    let bytes = |records: &[Record]| records.iter().map(|known| known.bytes).sum::<usize>();
    while records.len() > MOST_RECORDS || bytes(records) > MOST_BYTES {
        let Some(oldest) = records.iter().position(|known| known.done.is_some()) else {
            break;
        };
        records.remove(oldest);
    }
}

impl Comfy {
    fn lock(&self) -> MutexGuard<'_, Vec<Record>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pictures that were sent here.
    pub(super) fn uploads(&self) -> &Uploads {
        &self.uploads
    }

    /// A number for the next graph.
    pub(super) fn next(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// A number for the next picture's file.
    pub(super) fn next_file(&self) -> u64 {
        1 + self.files.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds a graph, if none has its id; those that are done are forgotten where there are too many, and with their jobs.
    pub(super) fn add(&self, record: Record, queue: &JobQueue) -> bool {
        let mut records = self.lock();
        if records.iter().any(|known| known.id == record.id) {
            return false;
        }
        records.retain(|known| known.done.is_none() || queue.job(&known.job).is_some());
        records.push(record);
        forget_old(&mut records);
        true
    }

    /// Changes what is known of a graph.
    pub(super) fn change(&self, id: &str, change: impl FnOnce(&mut Record)) {
        let mut records = self.lock();
        if let Some(record) = records.iter_mut().find(|known| known.id == id) {
            change(record);
        }
        forget_old(&mut records);
    }

    /// Forgets a graph.
    pub(super) fn forget(&self, id: &str) {
        self.lock().retain(|known| known.id != id);
    }

    /// Forgets all graphs that are done.
    pub(super) fn clear(&self) {
        self.lock().retain(|known| known.done.is_none());
    }

    /// All graphs, in their order.
    pub(super) fn all(&self) -> Vec<Record> {
        self.lock().clone()
    }

    /// A graph.
    pub(super) fn get(&self, id: &str) -> Option<Record> {
        let records = self.lock();
        records.iter().find(|known| known.id == id).cloned()
    }

    /// A picture's file and the job that made it.
    pub(super) fn file(&self, name: &str, folder: &str, kind: &str) -> Option<(File, String)> {
        let records = self.lock();
        let mut files = records
            .iter()
            .flat_map(|known| known.files.iter().map(move |file| (file, known)));
        let found =
            files.find(|(file, _)| file.name == name && file.folder == folder && file.kind == kind);
        found.map(|(file, known)| (file.clone(), known.job.clone()))
    }

    /// How many graphs wait or are worked on.
    pub(super) fn remaining(&self) -> usize {
        self.lock()
            .iter()
            .filter(|known| known.done.is_none())
            .count()
    }
}

impl App {
    /// The graphs that are not done, with their jobs.
    pub(super) fn open_graphs(&self) -> Vec<(Record, Option<Job>)> {
        let open = self
            .comfy()
            .all()
            .into_iter()
            .filter(|record| record.done.is_none());
        open.map(|record| {
            let job = self.queue().job(&record.job);
            (record, job)
        })
        .collect()
    }
}
