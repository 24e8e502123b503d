//! Jobs on a disk, so that they go on after the server was stopped or has crashed.
//!
//! A job of `/v1/jobs` is written before its client hears that it was taken, with the seed that it will have: made again,
//! its pictures are the same. Its file goes when it has ended; a job that has pictures, or failed, has a folder then, as
//! long as it is known.
//!
//! ```text
//! DIR/MODEL/00000007-ID.json    a job that waits or runs: what its client sent
//! DIR/MODEL/ID.tries            how often it was begun
//! DIR/MODEL/done/ID/            job.json, 0.png, 1.png, …
//! DIR/MODEL/aside/              files that are no jobs, and jobs that cannot be done
//! ```
//!
//! Whoever may write there may submit jobs; files are nevertheless checked as requests of clients are. `done` has jobs that
//! have ended.

mod done;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fs::{DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use worker::file;
use worker::time::unix_seconds;
use worker::{Error, Result};

/// The form of the files.
const FORMAT: u32 = 1;
/// Most jobs that are read at a start; more than fit into any queue.
const MAX_JOBS: usize = 10_000;
/// How much longer a file may be than a request: what is around it, and characters that JSON writes longer.
const LONGER: u64 = 4;
/// Longest description of a job that has ended.
const MAX_DONE: u64 = 1 << 20;

/// A folder with jobs, which one server has at a time.
pub(super) struct SavedJobs {
    folder: PathBuf,
    /// Longest request.
    max_bytes: u64,
    next: AtomicU64,
    /// Held while files that are there are renamed or removed.
    changing: Mutex<()>,
    /// Held as long as the server lives.
    _lock: File,
}

/// A job that waits or ran.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedJob {
    format: u32,
    pub(super) id: String,
    /// Seconds since 1970.
    created: f64,
    /// What the client sent, with the seed.
    pub(super) body: Map<String, Value>,
    /// How often it was begun.
    #[serde(skip)]
    pub(super) tries: u32,
    #[serde(skip)]
    path: PathBuf,
}

impl SavedJob {
    pub(super) fn created(&self) -> SystemTime {
        time(self.created)
    }
}

/// A point in time that a file names; anything else is the beginning of 1970.
fn time(seconds: f64) -> SystemTime {
    let since = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    UNIX_EPOCH.checked_add(since).unwrap_or(UNIX_EPOCH)
}

/// Whether a text is a job's id.
fn is_id(text: &str) -> bool {
    text.len() == 32
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

/// A model's name as a folder's.
fn folder_name(model: &str) -> String {
    let mut name = String::new();
    for byte in model.bytes() {
        match byte {
            b'.' if name.is_empty() => name += "%2E",
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                name.push(char::from(byte))
            }
            _ => name += &format!("%{byte:02X}"),
        }
    }
    name
}

/// Writes a file that is there even if the machine stops right after it.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    file::replace(path, bytes)?;
    File::open(path)?.sync_all()?;
    path.parent()
        .map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Removes what may be gone already.
fn remove(path: &Path) {
    let removed = match path.is_dir() {
        true => std::fs::remove_dir_all(path),
        false => std::fs::remove_file(path),
    };
    if let Err(error) = removed.or_else(|e| match e.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(e),
    }) {
        tracing::warn!("{} cannot be removed: {error}", path.display());
    }
}

impl SavedJobs {
    /// Opens the folder of a model's jobs, and makes it if need be. `max_bytes` is the longest request.
    ///
    /// # Errors
    /// [`Error::Usage`] if another server has it, [`Error::Io`] if it cannot be used.
    pub(super) fn open(folder: &Path, model: &str, max_bytes: usize) -> Result<Self> {
        let folder = folder.join(folder_name(model));
        for folder in [folder.join("done"), folder.join("aside")] {
            // Prompts and pictures are nobody else's.
            let made = DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder);
            made.map_err(Error::io(&folder))?;
        }
        let path = folder.join("lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(Error::io(&path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::Usage(format!(
                    "another server has the jobs in {}; give this one another --queue-dir",
                    folder.display()
                )))
            }
            Err(TryLockError::Error(error)) => return Err(Error::io(&path)(error)),
        }
        Ok(Self {
            folder,
            max_bytes: max_bytes as u64,
            next: AtomicU64::new(0),
            changing: Mutex::new(()),
            _lock: lock,
        })
    }

    /// The jobs that are to go on, in order. What is none is set aside.
    ///
    /// # Errors
    /// [`Error::Io`] if the folder cannot be read.
    pub(super) fn waiting(&self) -> Result<Vec<SavedJob>> {
        let entries = std::fs::read_dir(&self.folder).map_err(Error::io(&self.folder))?;
        let mut numbered: Vec<(u64, String, PathBuf)> = Vec::new();
        for path in entries.flatten().map(|entry| entry.path()) {
            let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
                continue;
            };
            if let Some((number, id)) = numbered_name(name) {
                numbered.push((number, id.to_string(), path));
            } else if name.ends_with(".json") {
                self.set_aside(&path, "its name is none of a job's");
            } else if name.ends_with(".part") {
                // Of a server that was stopped while it wrote.
                remove(&path);
            }
        }
        numbered.sort();
        let last = numbered
            .last()
            .map_or(0, |(number, ..)| number.saturating_add(1));
        self.next.store(last, Ordering::Relaxed);
        if numbered.len() > MAX_JOBS {
            tracing::warn!(
                "{} jobs are saved; the first {MAX_JOBS} go on, the others with the next start",
                numbered.len()
            );
            numbered.truncate(MAX_JOBS);
        }
        let mut jobs = Vec::new();
        for (_, id, path) in numbered {
            match self.read(&id, &path) {
                Ok(job) => jobs.push(job),
                Err(reason) => self.set_aside(&path, &reason),
            }
        }
        Ok(jobs)
    }

    fn read(&self, id: &str, path: &Path) -> std::result::Result<SavedJob, String> {
        let kind = std::fs::symlink_metadata(path).map_err(|e| e.to_string())?;
        if !kind.is_file() {
            return Err("it is not a regular file".to_string());
        }
        let most = self
            .max_bytes
            .saturating_mul(LONGER)
            .saturating_add(MAX_DONE);
        let bytes = file::read(path, most).map_err(|e| e.to_string())?;
        let job: SavedJob = serde_json::from_slice(&bytes).map_err(|e| e.to_string())?;
        if job.format != FORMAT || job.id != id {
            return Err("it is of another form, or of another job".to_string());
        }
        let tries = file::read_text(&self.tries(id), 16).unwrap_or_default();
        Ok(SavedJob {
            tries: tries.trim().parse().unwrap_or(0),
            path: path.to_path_buf(),
            ..job
        })
    }

    fn tries(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.tries"))
    }

    fn set_aside(&self, path: &Path, reason: &str) {
        let name = path.file_name().unwrap_or_default();
        let aside = self.folder.join("aside").join(name);
        let moved = std::fs::rename(path, &aside);
        let end = moved.map_or_else(
            |e| format!("it stays, as it cannot be moved: {e}"),
            |()| format!("it is in {} now", aside.display()),
        );
        tracing::warn!(
            "{} is not a job that can be done: {reason}; {end}",
            path.display()
        );
    }

    /// A job is not done any more.
    pub(super) fn give_up(&self, job: &SavedJob, reason: &str) {
        self.set_aside(&job.path, reason);
        remove(&self.tries(&job.id));
    }

    /// Writes a job that was taken.
    ///
    /// # Errors
    /// The operating system's.
    pub(super) fn save(&self, id: &str, body: Map<String, Value>) -> io::Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let job = SavedJob {
            format: FORMAT,
            id: id.to_string(),
            created: unix_seconds(SystemTime::now()),
            body,
            tries: 0,
            path: PathBuf::new(),
        };
        let path = self.folder.join(format!("{number:08}-{id}.json"));
        write(&path, &serde_json::to_vec(&job)?)
    }

    /// A job has begun, `tries` times now.
    pub(super) fn begun(&self, id: &str, tries: u32) {
        // The worst that can come of a failure is one try more.
        if let Err(error) = write(&self.tries(id), tries.to_string().as_bytes()) {
            tracing::warn!("job {id}: {error}");
        }
    }

    /// A job did not end, through no fault of its own.
    pub(super) fn interrupted(&self, id: &str) {
        remove(&self.tries(id));
    }

    /// A job has ended, or is to be forgotten.
    pub(super) fn forget(&self, id: &str) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        remove(&self.tries(id));
        for path in self.entries(&self.folder) {
            let name = path.file_name().and_then(|name| name.to_str());
            if name.and_then(numbered_name).is_some_and(|(_, of)| of == id) {
                remove(&path);
            }
        }
    }

    /// What became of a job is to be forgotten.
    pub(super) fn remove_done(&self, id: &str) {
        if is_id(id) {
            remove(&self.folder.join("done").join(id));
        }
    }

    /// Numbers the jobs that wait so that they are read in this order. Each keeps its file at every moment: a server
    /// that ends in between finds all of them.
    pub(super) fn reorder(&self, ids: &[String]) {
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found: Vec<(u64, String, PathBuf)> = Vec::new();
        for path in self.entries(&self.folder) {
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some((number, id)) = name.and_then(numbered_name) {
                if ids.iter().any(|known| known == id) {
                    found.push((number, id.to_string(), path));
                }
            }
        }
        found.sort();
        let numbers: Vec<u64> = found.iter().map(|(number, ..)| *number).collect();
        let place = |id: &str| ids.iter().position(|known| known == id);
        found.sort_by_key(|(_, id, _)| place(id));
        for (number, (old, id, path)) in numbers.into_iter().zip(found) {
            let new = self.folder.join(format!("{number:08}-{id}.json"));
            if number != old {
                if let Err(error) = std::fs::rename(&path, &new) {
                    tracing::warn!("{} stays where it was: {error}", path.display());
                }
            }
        }
    }

    fn entries(&self, folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }
}

/// Number and id of `00000007-ID.json`.
fn numbered_name(name: &str) -> Option<(u64, &str)> {
    let (number, id) = name.strip_suffix(".json")?.split_once('-')?;
    let is_number =
        !number.is_empty() && number.len() <= 18 && number.bytes().all(|b| b.is_ascii_digit());
    (is_number && is_id(id)).then_some((number.parse().ok()?, id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ID: &str = "0123456789abcdef0123456789abcdef";

    fn body(prompt: &str) -> Map<String, Value> {
        match json!({"prompt": prompt}) {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    #[test]
    fn jobs_are_read_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let ids = [ID.replace('0', "f"), ID.to_string()];
        {
            let saved = SavedJobs::open(folder.path(), "a/model", 100).unwrap();
            for id in &ids {
                saved.save(id, body(id)).unwrap();
            }
            saved.begun(&ids[1], 2);
            let error = SavedJobs::open(folder.path(), "a/model", 100)
                .err()
                .unwrap();
            assert!(error.to_string().contains("another server"), "{error}");
            SavedJobs::open(folder.path(), "other", 100).unwrap();
        }
        let saved = SavedJobs::open(folder.path(), "a/model", 100).unwrap();
        let read = saved.waiting().unwrap();
        let found: Vec<_> = read.iter().map(|job| (job.id.clone(), job.tries)).collect();
        assert_eq!(found, [(ids[0].clone(), 0), (ids[1].clone(), 2)]);
        assert_eq!(read[1].body["prompt"], ID);
        // The next one is behind them.
        saved.save(&ID.replace('1', "0"), body("x")).unwrap();
        saved.forget(&ids[0]);
        let read = saved.waiting().unwrap();
        let found: Vec<_> = read.iter().map(|job| job.body["prompt"].clone()).collect();
        assert_eq!(found, [json!(ID), json!("x")]);
    }

    #[test]
    fn another_order_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let saved = SavedJobs::open(folder.path(), "m", 100).unwrap();
        let ids = ["a", "b", "c", "d"].map(|letter| ID.replace('0', letter));
        for id in &ids {
            saved.save(id, body(id)).unwrap();
        }
        // `b` runs, and is none of those that wait.
        saved.reorder(&[ids[3].clone(), ids[0].clone(), ids[2].clone()]);
        let read = saved.waiting().unwrap();
        let found: Vec<_> = read.iter().map(|job| &job.id).collect();
        assert_eq!(found, [&ids[3], &ids[1], &ids[0], &ids[2]]);
    }

    #[test]
    fn hostile_files_are_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let saved = SavedJobs::open(folder.path(), "m", 100).unwrap();
        let inside = folder.path().join("m");
        let other = ID.replace('0', "1");
        let texts = [
            (format!("1-{ID}.json"), "{".to_string()),
            (
                format!("2-{other}.json"),
                format!(r#"{{"format":1,"id":"{ID}","created":0,"body":{{}}}}"#),
            ),
            (
                format!("3-{}.json", ID.replace('0', "2")),
                "[".repeat(1 << 20),
            ),
            ("4-../../x.json".replace('/', "_"), "{}".to_string()),
            (format!("99999999999999999999-{ID}.json"), "{}".to_string()),
        ];
        for (name, text) in &texts {
            std::fs::write(inside.join(name), text).unwrap();
        }
        let fifo = inside.join(format!("5-{}.json", ID.replace('0', "3")));
        std::os::unix::fs::symlink("/dev/zero", &fifo).unwrap();
        let long = inside.join(format!("6-{}.json", ID.replace('0', "4")));
        File::create(&long).unwrap().set_len(1 << 40).unwrap();
        assert!(saved.waiting().unwrap().is_empty());
        assert_eq!(saved.entries(&inside.join("aside")).len(), 7);
        // The same for what has ended.
        let done = inside.join("done");
        for (name, text) in [
            ("x".to_string(), "{}".to_string()),
            (ID.to_string(), "{}".to_string()),
            (
                other.clone(),
                format!(
                    r#"{{"format":1,"id":"{other}","created":1e300,"finished":-1,"total":1,"seeds":[1],"failure":null}}"#
                ),
            ),
        ] {
            std::fs::create_dir(done.join(&name)).unwrap();
            std::fs::write(done.join(&name).join("job.json"), text).unwrap();
        }
        assert!(saved.finished(UNIX_EPOCH, 8).is_empty());
        assert!(saved.entries(&done).is_empty());
    }

    #[test]
    fn names_of_models_are_names_of_folders() {
        assert_eq!(folder_name("tiny-shapes_1.5"), "tiny-shapes_1.5");
        assert_eq!(folder_name("../a b"), "%2E.%2Fa%20b");
        assert_ne!(folder_name("a/b"), folder_name("a%2Fb"));
    }
}
