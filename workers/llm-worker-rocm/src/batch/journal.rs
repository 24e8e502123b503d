//! An output that grows by whole lines, and what an earlier run has left in it.

use super::figures::Figures;
use super::line::IdHash;
use super::outcome::{About, Entry, Outcome, Written, LINE_START};
use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead, BufReader, ErrorKind, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Receiver;
use worker::{Error, Result};

/// How much of an output a loss of power may take.
const SYNC_INTERVAL: Duration = Duration::from_secs(5);

/// What has its line in an output already.
#[derive(Debug, Default)]
pub struct Known {
    /// Requests, each with whether the input's line was met in this run.
    pub requests: HashMap<IdHash, bool>,
    /// Lines that were no requests.
    pub lines: HashSet<u64>,
}

impl Known {
    /// How many there are.
    pub fn count(&self) -> u64 {
        (self.requests.len() + self.lines.len()) as u64
    }

    fn add(&mut self, about: About) -> bool {
        match about {
            About::Request(hash) => self.requests.insert(hash, false).is_none(),
            About::Line(number) => self.lines.insert(number),
        }
    }
}

/// An output in a file, for this process only.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines.
    length: u64,
    synced: Instant,
}

impl Journal {
    /// Opens a file, which is made if it is not there.
    ///
    /// # Errors
    /// [`Error::Usage`] if another process writes it; [`Error::Io`].
    pub fn open(path: &Path) -> Result<Self> {
        let file = open_locked(path)?;
        let length = file.metadata().map_err(Error::io(path))?.len();
        Ok(Self {
            path: path.to_path_buf(),
            file,
            length,
            synced: Instant::now(),
        })
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Takes what the file tells into `known` and `figures`, and cuts a last line off that is not whole.
    ///
    /// Entries for which `keep` is false are taken out; nobody sees half of that.
    ///
    /// # Errors
    /// [`Error::Usage`] for a file of other content; [`Error::Io`].
    pub fn read(
        &mut self,
        known: &mut Known,
        figures: &Figures,
        keep: impl Fn(&Entry) -> bool,
    ) -> Result<()> {
        let path = self.path.clone();
        let io_error = Error::io(&path);
        self.file.seek(SeekFrom::Start(0)).map_err(&io_error)?;
        let mut reader = BufReader::with_capacity(1 << 20, &self.file);
        let (mut line, mut number, mut whole) = (Vec::new(), 0u64, 0u64);
        let mut has_others = false;
        loop {
            line.clear();
            let length = reader.read_until(b'\n', &mut line).map_err(&io_error)? as u64;
            if length == 0 {
                break;
            }
            number += 1;
            let is_whole = line.ends_with(b"\n");
            let entry = match Entry::read(&line) {
                Ok(entry) if is_whole => entry,
                Ok(_) => break,
                Err(_) if !is_whole && is_begun(&line) => break,
                // A loss of power may leave zeros.
                Err(_) if line.contains(&0) && reader.fill_buf().map_err(&io_error)?.is_empty() => {
                    break
                }
                Err(reason) => {
                    return Err(Error::Usage(format!(
                        "{}: line {number} is no result of a batch: {reason}; name another file",
                        path.display()
                    )))
                }
            };
            whole += length;
            match keep(&entry) && known.add(entry.about) {
                true => figures.found(&entry),
                false => has_others = true,
            }
        }
        drop(reader);
        if whole < self.length {
            self.file.set_len(whole).map_err(&io_error)?;
            self.length = whole;
        }
        match has_others {
            true => self.rewrite(keep),
            false => self.seek_to_end(),
        }
    }

    /// Writes the file anew without what `keep` does not want, and without what comes twice.
    fn rewrite(&mut self, keep: impl Fn(&Entry) -> bool) -> Result<()> {
        let own = self.path.clone();
        let io_error = Error::io(&own);
        let mut name = self.path.file_name().unwrap_or_default().to_os_string();
        name.push(".new");
        let path = self.path.with_file_name(name);
        // What an earlier try has left.
        let _ = std::fs::remove_file(&path);
        let file = open_locked(&path)?;
        self.file.seek(SeekFrom::Start(0)).map_err(&io_error)?;
        let mut writer = io::BufWriter::with_capacity(1 << 20, &file);
        let mut reader = BufReader::with_capacity(1 << 20, &self.file);
        let (mut line, mut known) = (Vec::new(), Known::default());
        let mut length = 0;
        while reader.read_until(b'\n', &mut line).map_err(&io_error)? > 0 {
            let entry = Entry::read(&line).ok();
            if entry.is_some_and(|entry| keep(&entry) && known.add(entry.about)) {
                writer.write_all(&line).map_err(Error::io(&path))?;
                length += line.len() as u64;
            }
            line.clear();
        }
        writer.flush().map_err(Error::io(&path))?;
        drop((writer, reader));
        file.sync_all().map_err(Error::io(&path))?;
        std::fs::rename(&path, &self.path).map_err(Error::io(&path))?;
        (self.file, self.length) = (file, length);
        self.seek_to_end()
    }

    fn seek_to_end(&mut self) -> Result<()> {
        let end = self.file.seek(SeekFrom::Start(self.length));
        end.map(drop).map_err(Error::io(&self.path))
    }

    /// Appends a line, all of it or nothing.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn append(&mut self, line: &[u8]) -> Result<()> {
        let written = self.file.write_all(line);
        if let Err(error) = written {
            // A part of a line is cut off by the next run, too, where this fails.
            let _ = self.file.set_len(self.length);
            return Err(Error::io(&self.path)(error));
        }
        self.length += line.len() as u64;
        if self.synced.elapsed() >= SYNC_INTERVAL {
            self.sync()?;
        }
        Ok(())
    }

    /// Has the system put on the disk what it was given.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&mut self) -> Result<()> {
        self.synced = Instant::now();
        match self.file.sync_data() {
            // Pipes and the like have nothing to put there.
            Err(e) if e.kind() == ErrorKind::InvalidInput => Ok(()),
            synced => synced.map_err(Error::io(&self.path)),
        }
    }
}

/// Whether a line begins as those of outputs do, as far as it goes.
fn is_begun(line: &[u8]) -> bool {
    line.starts_with(LINE_START) || LINE_START.starts_with(line)
}

fn open_locked(path: &Path) -> Result<File> {
    // Before it is opened: a FIFO would be waited for.
    if std::fs::metadata(path).is_ok_and(|about| !about.is_file()) {
        return Err(Error::Usage(format!(
            "{} is not a regular file; - writes to standard output",
            path.display()
        )));
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        // Results hold what was asked and answered.
        .mode(0o600)
        .open(path)
        .map_err(Error::io(path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Error::Usage(format!(
            "{} is written by another process; wait for its end, or name another file",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(Error::io(path)(error)),
    }
}

/// Where outcomes are written.
#[derive(Debug)]
pub enum Sink {
    /// Standard output.
    Standard,
    /// A file.
    File(Journal),
    /// A file for successes, and one for everything else.
    Apart(Journal, Journal),
}

impl Sink {
    /// Appends a line.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Runtime`] if nobody reads standard output any more.
    pub fn write(&mut self, written: &Written) -> Result<()> {
        match self {
            Self::Standard => {
                let mut out = io::stdout().lock();
                let done = out.write_all(&written.line).and_then(|()| out.flush());
                done.map_err(|e| Error::Runtime(format!("standard output: {e}")))
            }
            Self::File(journal) => journal.append(&written.line),
            Self::Apart(successes, _) if written.is_success => successes.append(&written.line),
            Self::Apart(_, others) => others.append(&written.line),
        }
    }

    /// Has the system put on the disk what it was given.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&mut self) -> Result<()> {
        match self {
            Self::Standard => Ok(()),
            Self::File(journal) => journal.sync(),
            Self::Apart(successes, others) => successes.sync().and_then(|()| others.sync()),
        }
    }
}

/// Writes outcomes on a thread of its own, until nobody sends any more.
///
/// # Errors
/// [`Error::Runtime`] if there is no thread.
pub fn spawn(
    mut sink: Sink,
    mut outcomes: Receiver<Outcome>,
    figures: Arc<Figures>,
) -> Result<JoinHandle<Result<()>>> {
    let thread = thread::Builder::new().name("batch output".to_string());
    thread
        .spawn(move || {
            while let Some(outcome) = outcomes.blocking_recv() {
                let written = outcome.written();
                sink.write(&written)?;
                figures.wrote(&written);
            }
            sink.sync()
        })
        .map_err(|e| Error::Runtime(format!("cannot start a thread: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::line::hash_of;

    fn entry(id: &str, status: u16) -> String {
        format!("{{\"custom_id\":\"{id}\",\"response\":{{\"status_code\":{status},\"body\":{{}}}},\"error\":null}}\n")
    }

    fn fault(line: u64) -> String {
        format!("{{\"custom_id\":null,\"response\":null,\"error\":{{\"code\":\"x\",\"line\":{line}}}}}\n")
    }

    fn read(path: &Path, keep: impl Fn(&Entry) -> bool) -> Result<(Journal, Known, Figures)> {
        let (mut known, figures) = (Known::default(), Figures::default());
        let mut journal = Journal::open(path)?;
        journal.read(&mut known, &figures, keep)?;
        Ok((journal, known, figures))
    }

    #[test]
    fn a_torn_line_is_cut_off_and_the_next_one_stands_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let whole = entry("a", 200) + &fault(3);
        for torn in [
            "",
            "{\"id\":\"ba",
            "{\"id\":\"batch_req_1\",\"custom_id\":\"b\"",
            "\0\0\0\0",
            "\0\0\n",
            "{\"custom_id\":\"b\",\"response\":{\"status_code\":200},\"error\":null}",
        ] {
            std::fs::write(&path, format!("{whole}{torn}")).unwrap();
            let (mut journal, known, figures) = read(&path, |_| true).unwrap();
            assert_eq!(known.count(), 2, "{torn:?}");
            assert!(known.requests.contains_key(&hash_of("a")) && known.lines.contains(&3));
            assert_eq!((figures.skipped(), figures.earlier_failed()), (2, 1));
            journal.append(entry("c", 200).as_bytes()).unwrap();
            drop(journal);
            let now = std::fs::read_to_string(&path).unwrap();
            assert_eq!(now, whole.clone() + &entry("c", 200), "{torn:?}");
        }
    }

    #[test]
    fn other_files_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("letter.txt");
        for text in [
            "Dear reader,\nthis is no output.\n",
            "Dear reader\n",
            "Dear",
        ] {
            std::fs::write(&path, text).unwrap();
            let error = read(&path, |_| true).unwrap_err();
            assert!(error.to_string().contains("line 1"), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        assert!(Journal::open(folder.path()).is_err());
        assert!(Journal::open(Path::new("/dev/null")).is_err());
        let _first = Journal::open(&path).unwrap();
        let error = Journal::open(&path).unwrap_err();
        assert!(error.to_string().contains("another process"), "{error}");
    }

    #[test]
    fn what_is_not_wanted_goes_and_so_does_what_comes_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let lines = [
            entry("a", 200),
            entry("b", 500),
            fault(2),
            entry("a", 200),
            entry("c", 200),
        ];
        std::fs::write(&path, lines.concat()).unwrap();
        let (mut journal, known, _) = read(&path, |entry| entry.is_success).unwrap();
        assert_eq!(known.count(), 2);
        journal.append(entry("b", 200).as_bytes()).unwrap();
        // The new file is locked as the old one was.
        assert!(Journal::open(&path).is_err());
        let now = std::fs::read_to_string(&path).unwrap();
        assert_eq!(now, entry("a", 200) + &entry("c", 200) + &entry("b", 200));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
