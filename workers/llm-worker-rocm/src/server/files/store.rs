//! The files in a folder, each for those with its key only.
//!
//! A file is `file-ID.data` with its content and `file-ID.json` with what is known of it, which is written last. Ids are
//! made here; nothing that a client sends is ever part of a path.

use serde::{Deserialize, Serialize};
use serde_json::{json, Value};
use std::collections::{BTreeMap, HashSet};
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use worker::http::{ApiError, Caller};
use worker::{file, Error, Result};

/// Most files.
const MOST_FILES: usize = 10_000;
/// What folders are called that end with their server.
const PRIVATE: &str = "llm-worker-files-";
/// Longest description of a file or a batch.
pub(in crate::server) const MAX_RECORD_BYTES: u64 = 1 << 20;

/// What may be kept, and where.
#[derive(Debug, Clone)]
pub struct FileOptions {
    /// A folder that outlives the server; without, one that ends with it.
    pub folder: Option<PathBuf>,
    /// Longest file in bytes.
    pub max_file_bytes: u64,
    /// Most bytes of all files; results of batches are written nevertheless.
    pub max_bytes: u64,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            folder: None,
            max_file_bytes: 512 << 20,
            max_bytes: 8 << 30,
        }
    }
}

/// What is known of a file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(in crate::server) struct Meta {
    /// Its name here.
    pub id: String,
    /// Whose it is.
    pub owner: u64,
    /// Its name there; only ever told.
    pub filename: String,
    /// What it is for.
    pub purpose: String,
    /// Its length.
    pub bytes: u64,
    /// When it came.
    pub created_at: i64,
    /// When it goes by itself.
    pub expires_at: Option<i64>,
}

impl Meta {
    /// In OpenAI's form.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
        })
    }
}

/// A new id.
pub(in crate::server) fn new_id(kind: &str) -> String {
    format!("{kind}{}", worker::ids::uuid().simple())
}

/// The files.
#[derive(Default)]
pub struct Store {
    options: FileOptions,
    opened: OnceLock<Opened>,
    opening: Mutex<()>,
}

struct Opened {
    folder: PathBuf,
    is_private: bool,
    files: Mutex<BTreeMap<String, Meta>>,
    bytes: AtomicU64,
    /// Kept locked: no two servers have one folder.
    _lock: File,
}

impl Store {
    /// Files as `options` say; a folder that they name is opened at once.
    ///
    /// # Errors
    /// [`Error::Usage`] if another server has it; [`Error::Io`].
    pub fn new(options: FileOptions) -> Result<Self> {
        let mut store = Self::default();
        store.options = options;
        if store.options.folder.is_some() {
            store.opened()?;
        }
        Ok(store)
    }

    /// Whether files outlive the server.
    pub(in crate::server) fn is_kept(&self) -> bool {
        self.options.folder.is_some()
    }

    fn opened(&self) -> Result<&Opened> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let _one = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let opened = Opened::new(self.options.folder.as_deref())?;
        Ok(self.opened.get_or_init(|| opened))
    }

    fn here(&self) -> std::result::Result<&Opened, ApiError> {
        self.opened()
            .map_err(|e| ApiError::internal(format!("there is no folder for files: {e}")))
    }

    /// The folder.
    ///
    /// # Errors
    /// 500 if there is none.
    pub(in crate::server) fn folder(&self) -> std::result::Result<&Path, ApiError> {
        Ok(&self.here()?.folder)
    }

    /// Where a file's content is.
    ///
    /// # Errors
    /// 500 if there is no folder.
    pub(in crate::server) fn path(&self, id: &str) -> std::result::Result<PathBuf, ApiError> {
        Ok(self.folder()?.join(format!("{id}.data")))
    }

    /// The files of a caller, in the order in which they came.
    ///
    /// # Errors
    /// 500 if there is no folder.
    pub(in crate::server) fn all(
        &self,
        caller: Caller,
    ) -> std::result::Result<Vec<Meta>, ApiError> {
        let here = self.here()?;
        here.remove_expired();
        let files = here.files();
        let own = files.values().filter(|file| file.owner == caller.0);
        let mut own: Vec<Meta> = own.cloned().collect();
        own.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        Ok(own)
    }

    /// A caller's file.
    ///
    /// # Errors
    /// 404 if there is none.
    pub(in crate::server) fn find(
        &self,
        caller: Caller,
        id: &str,
    ) -> std::result::Result<Meta, ApiError> {
        let here = self.here()?;
        here.remove_expired();
        let files = here.files();
        let found = files.get(id).filter(|file| file.owner == caller.0);
        found
            .cloned()
            .ok_or_else(|| ApiError::not_found(format!("there is no file {id:?}")))
    }

    /// Forgets a file.
    ///
    /// # Errors
    /// 500 if there is no folder.
    pub(in crate::server) fn remove(&self, id: &str) -> std::result::Result<(), ApiError> {
        self.here()?.remove(id);
        Ok(())
    }

    /// Room for another file.
    ///
    /// # Errors
    /// 400 if there are too many; 500.
    pub(in crate::server) fn begin(&self) -> std::result::Result<Upload<'_>, ApiError> {
        let here = self.here()?;
        here.remove_expired();
        if here.files().len() >= MOST_FILES {
            return Err(ApiError::invalid(format!(
                "there are {MOST_FILES} files already; delete some"
            )));
        }
        let id = new_id("file-");
        let path = here.folder.join(format!("{id}.part"));
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(|e| ApiError::internal(format!("the file cannot be written: {e}")))?;
        Ok(Upload {
            store: self,
            here,
            id,
            path,
            file: Some(file),
            bytes: 0,
            is_complete: false,
        })
    }

    /// Makes a file known whose content is there already.
    ///
    /// # Errors
    /// 500 if that cannot be written.
    pub(in crate::server) fn register(&self, meta: Meta) -> std::result::Result<Meta, ApiError> {
        let here = self.here()?;
        let text = json!(meta).to_string();
        file::replace(
            &here.folder.join(format!("{}.json", meta.id)),
            text.as_bytes(),
        )
        .map_err(|e| ApiError::internal(format!("the file cannot be written: {e}")))?;
        let known = here.files().insert(meta.id.clone(), meta.clone());
        if known.is_none() {
            here.bytes.fetch_add(meta.bytes, Ordering::Relaxed);
        }
        Ok(meta)
    }

    /// Removes contents that nothing knows, but for those in `used`: what a crash has left.
    pub(in crate::server) fn tidy(&self, used: &HashSet<String>) {
        let Ok(here) = self.here() else { return };
        let files = here.files();
        for path in entries(&here.folder) {
            let name = path.file_stem().unwrap_or_default().to_string_lossy();
            let is_content = path.extension().is_some_and(|e| e == "data" || e == "part");
            let is_own = name.starts_with("file-") && is_content;
            if is_own && !files.contains_key(&*name) && !used.contains(&*name) {
                // Once more at the next start, if need be.
                let _ = std::fs::remove_file(&path);
            }
        }
    }

    /// Removes a folder that ends with the server.
    pub(in crate::server) fn end(&self) {
        if let Some(here) = self.opened.get().filter(|here| here.is_private) {
            // It is in the system's folder for what may go.
            let _ = std::fs::remove_dir_all(&here.folder);
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.end();
    }
}

/// Removes folders of servers that were killed: nobody has locked them.
fn remove_left(all: &Path) {
    for path in entries(all) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Folders of other users cannot be opened.
        let lock = name
            .starts_with(PRIVATE)
            .then(|| File::open(path.join("lock")));
        if let Some(Ok(lock)) = lock {
            if lock.try_lock().is_ok() {
                // In the system's folder for what may go.
                let _ = std::fs::remove_dir_all(&path);
            }
        }
    }
}

/// The paths in a folder.
pub(in crate::server) fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|e| e.ok().map(|e| e.path())).collect()
}

impl Opened {
    fn new(folder: Option<&Path>) -> Result<Self> {
        let path = match folder {
            Some(folder) => folder.to_path_buf(),
            None => {
                let all = std::env::temp_dir();
                remove_left(&all);
                all.join(format!("{PRIVATE}{}", worker::ids::uuid().simple()))
            }
        };
        let mut builder = DirBuilder::new();
        builder.mode(0o700).recursive(folder.is_some());
        builder.create(&path).map_err(Error::io(&path))?;
        let lock_path = path.join("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(Error::io(&lock_path))?;
        lock.try_lock().map_err(|_| {
            Error::Usage(format!(
                "--files {}: another server has this folder; give each its own",
                path.display()
            ))
        })?;
        let mut files = BTreeMap::new();
        for json in entries(&path) {
            if json.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let read = file::read(&json, MAX_RECORD_BYTES).ok();
            let meta = read.and_then(|text| serde_json::from_slice::<Meta>(&text).ok());
            let stem = json
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let Some(mut meta) = meta.filter(|meta| meta.id == stem && stem.starts_with("file-"))
            else {
                continue;
            };
            let Ok(about) = std::fs::metadata(path.join(format!("{stem}.data"))) else {
                continue;
            };
            meta.bytes = about.len();
            files.insert(stem, meta);
        }
        let bytes = files.values().map(|file| file.bytes).sum();
        Ok(Self {
            folder: path,
            is_private: folder.is_none(),
            files: Mutex::new(files),
            bytes: AtomicU64::new(bytes),
            _lock: lock,
        })
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Meta>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, id: &str) {
        let removed = self.files().remove(id);
        if let Some(meta) = removed {
            self.bytes.fetch_sub(meta.bytes, Ordering::Relaxed);
            // In this order: content that nothing knows goes at the next start.
            for extension in ["json", "data"] {
                let _ = std::fs::remove_file(self.folder.join(format!("{id}.{extension}")));
            }
        }
    }

    fn remove_expired(&self) {
        let now = worker::time::unix();
        let is_over = |file: &&Meta| file.expires_at.is_some_and(|at| at <= now);
        let over: Vec<String> = self
            .files()
            .values()
            .filter(is_over)
            .map(|f| f.id.clone())
            .collect();
        over.iter().for_each(|id| self.remove(id));
    }
}

/// A file that comes in. Dropping it gives it up.
pub(in crate::server) struct Upload<'a> {
    store: &'a Store,
    here: &'a Opened,
    id: String,
    path: PathBuf,
    file: Option<File>,
    bytes: u64,
    is_complete: bool,
}

impl Upload<'_> {
    /// Takes a part, written by [`WritePart::write`] on a thread that may wait.
    ///
    /// # Errors
    /// 413 if the file or all files become too long.
    pub fn take(&mut self, bytes: Vec<u8>) -> std::result::Result<WritePart, ApiError> {
        let options = &self.store.options;
        let length = bytes.len() as u64;
        self.bytes += length;
        let all = self.here.bytes.fetch_add(length, Ordering::Relaxed) + length;
        if self.bytes > options.max_file_bytes {
            return Err(too_large(format!(
                "the file has more than {} bytes (--max-file-bytes)",
                options.max_file_bytes
            )));
        }
        if all > options.max_bytes {
            return Err(too_large(format!(
                "all files together have more than {} bytes (--max-files-bytes); delete some",
                options.max_bytes
            )));
        }
        let file = self.file.take();
        let file = file.ok_or_else(|| ApiError::internal("the file is written already"))?;
        Ok(WritePart { file, bytes })
    }

    /// Takes the file back after a part was written.
    pub fn wrote(&mut self, file: File) {
        self.file = Some(file);
    }

    /// Bytes that came.
    pub fn length(&self) -> u64 {
        self.bytes
    }

    /// The id of the content.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Has the content stand under its id, known to nobody yet.
    ///
    /// # Errors
    /// 500 if it cannot be written.
    pub fn complete(&mut self) -> std::result::Result<(), ApiError> {
        let path = self.here.folder.join(format!("{}.data", self.id));
        let synced = self.file.take().map_or(Ok(()), |file| file.sync_all());
        synced
            .and_then(|()| std::fs::rename(&self.path, path))
            .map_err(|e| ApiError::internal(format!("the file cannot be written: {e}")))?;
        self.is_complete = true;
        Ok(())
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        // Counted anew once it is registered.
        self.here.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
        if !self.is_complete {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn too_large(message: String) -> ApiError {
    let status = axum::http::StatusCode::PAYLOAD_TOO_LARGE;
    ApiError::new(status, "FILE_TOO_LARGE", message)
}

/// A part of a file on its way.
pub(in crate::server) struct WritePart {
    file: File,
    bytes: Vec<u8>,
}

impl WritePart {
    /// Writes it; gives the file back. Blocks.
    ///
    /// # Errors
    /// 500 if it cannot be written.
    pub fn write(mut self) -> std::result::Result<File, ApiError> {
        std::io::Write::write_all(&mut self.file, &self.bytes)
            .map_err(|e| ApiError::internal(format!("the file cannot be written: {e}")))?;
        Ok(self.file)
    }
}
