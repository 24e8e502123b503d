//! A model repository: its list of files, and each file fetched into the cache.

use super::cache::{Part, RepoCache};
use super::checksum;
use super::client::{wait, Answer, Client, MAX_RETRIES};
use super::environment::timeout;
use super::trouble::Trouble;
use super::{is_plain_relative, HubOptions};
use crate::progress::byte_bar;
use crate::Error;
use indicatif::ProgressBar;
use std::io::Read;
use std::path::PathBuf;
use ureq::http::StatusCode;
use url::Url;

/// Progress that makes earlier failures of a download not count any more.
const PROGRESS_BYTES: u64 = 1 << 20;
/// Largest file whose length the hub does not tell.
const MAX_UNTOLD_BYTES: u64 = 64 << 20;
const BUFFER_BYTES: usize = 256 << 10;

/// A repository at a revision.
pub(super) struct Repository<'a> {
    options: &'a HubOptions,
    repo: &'a str,
    client: Client,
    cache: RepoCache,
}

/// The answer of the hub's API about a revision.
#[derive(serde::Deserialize)]
struct Info {
    sha: String,
    #[serde(default)]
    siblings: Vec<Sibling>,
}

#[derive(serde::Deserialize)]
struct Sibling {
    rfilename: String,
}

/// What a repository has.
pub(super) struct Listing {
    /// The commit.
    pub commit: String,
    /// Names of files that stay in their folder.
    pub files: Vec<String>,
}

/// Content that the hub offers for a file.
struct Version {
    etag: String,
    commit: String,
    size: Option<u64>,
}

impl<'a> Repository<'a> {
    /// A repository on the hub that the options name.
    pub fn new(options: &'a HubOptions, repo: &'a str) -> Result<Self, Error> {
        let client = Client::new(
            &options.endpoint,
            options.token.as_deref(),
            timeout(|name| std::env::var(name).ok()),
        );
        Ok(Self {
            client: client.map_err(|trouble| explain(options, repo, None, trouble))?,
            cache: RepoCache::new(&options.cache, repo),
            options,
            repo,
        })
    }

    /// Asks for the commit and its files.
    pub fn list(&self) -> Result<Listing, Error> {
        let ask = || {
            let (owner, name) = self.repo.split_once('/').unwrap_or(("", self.repo));
            let url = self.client.url([
                "api",
                "models",
                owner,
                name,
                "revision",
                &self.options.revision,
            ])?;
            let info: Info = self.client.json(&url)?;
            let commit = checked(Some(info.sha), "commit")?;
            let names = info.siblings.into_iter().map(|sibling| sibling.rfilename);
            Ok(Listing {
                commit,
                files: names.filter(|name| is_plain_relative(name)).collect(),
            })
        };
        ask().map_err(|trouble| explain(self.options, self.repo, None, trouble))
    }

    /// Fetches a file unless the cache has its content, with a progress bar on a terminal. Where a commit is given, the
    /// file has to be of it.
    pub fn fetch(&self, file: &str, commit: Option<&str>) -> Result<PathBuf, Error> {
        self.try_fetch(file, commit)
            .map_err(|trouble| explain(self.options, self.repo, Some(file), trouble))
    }

    fn try_fetch(&self, file: &str, commit: Option<&str>) -> Result<PathBuf, Trouble> {
        let (owner, name) = self.repo.split_once('/').unwrap_or(("", self.repo));
        let parts = [owner, name, "resolve", &self.options.revision];
        let url = self.client.url(parts.into_iter().chain(file.split('/')))?;
        let answer = self.client.get_patiently(&url)?;
        let version = Version::of(&answer)?;
        if commit.is_some_and(|commit| commit != version.commit) {
            return Err(Trouble::Refused(
                "has another commit now than when its files were listed; try again".to_string(),
            ));
        }
        if !self.cache.holds(&version.etag, version.size) {
            let (_lock, waited) = self.cache.lock(&version.etag)?;
            if !self.cache.holds(&version.etag, version.size) {
                let first = Some(answer).filter(|_| !waited);
                self.complete(&url, file, &version, first)?;
            }
        }
        self.cache
            .point(&self.options.revision, &version.commit, file, &version.etag)
    }

    /// Fetches what is missing of content and checks all of it. `first` is an answer with the content from its start.
    fn complete(
        &self,
        url: &Url,
        file: &str,
        version: &Version,
        mut first: Option<Answer>,
    ) -> Result<(), Trouble> {
        let mut part = self.cache.part(&version.etag)?;
        let bar = byte_bar(file, version.size.unwrap_or(0));
        // Bytes of an earlier download may be of another file: then all are fetched once more.
        let mut resumed = part.length() > 0;
        let mut failures = 0;
        loop {
            let before = part.length();
            match self.attempt(url, version, &mut part, first.take(), &bar) {
                Ok(()) => {}
                Err(trouble) if trouble.is_transient() => {
                    let progress = part.length() >= before.saturating_add(PROGRESS_BYTES);
                    failures = if progress { 1 } else { failures + 1 };
                    if failures > MAX_RETRIES {
                        return Err(trouble);
                    }
                    wait(failures, &trouble);
                    continue;
                }
                Err(trouble) => return Err(trouble),
            }
            let length = part.length();
            let path = part.path().to_path_buf();
            let is_right = checksum::matches(&version.etag, &mut part.content()?, length);
            match is_right.map_err(Trouble::io(&path))? {
                None | Some(true) => break,
                Some(false) if resumed => {
                    resumed = false;
                    part.clear()?;
                }
                Some(false) => {
                    part.discard()?;
                    return Err(Trouble::Refused(format!(
                        "sends content that does not have the checksum {}; it was discarded, try again",
                        version.etag
                    )));
                }
            }
        }
        bar.finish_and_clear();
        part.keep()
    }

    /// Fetches from where the part ends. The part grows even where this fails.
    fn attempt(
        &self,
        url: &Url,
        version: &Version,
        part: &mut Part,
        first: Option<Answer>,
        bar: &ProgressBar,
    ) -> Result<(), Trouble> {
        let size = version.size.unwrap_or(MAX_UNTOLD_BYTES);
        if part.length() > size || (version.size.is_none() && part.length() > 0) {
            part.clear()?;
        }
        if Some(part.length()) == version.size && part.length() > 0 {
            return Ok(());
        }
        let answer = match first.filter(|_| part.length() == 0) {
            Some(answer) => answer,
            None => {
                let start = Some(part.length()).filter(|start| *start > 0);
                let answer = self.client.get(url, start)?;
                if answer.status == StatusCode::RANGE_NOT_SATISFIABLE {
                    part.clear()?;
                    return Err(Trouble::Broken(
                        "refuses to go on where a download broke off".to_string(),
                    ));
                }
                let answer = answer.successful()?;
                version.check(&answer)?;
                answer
            }
        };
        if answer.status == StatusCode::PARTIAL_CONTENT {
            let (start, _) = answer.range().ok_or_else(|| {
                Trouble::Refused("answers with a part of a file without saying which".to_string())
            })?;
            if start != part.length() {
                part.clear()?;
                return Err(Trouble::Broken(
                    "answers with another part of a file than was asked for".to_string(),
                ));
            }
        } else {
            part.clear()?;
        }
        bar.set_position(part.length());
        let mut content = answer.body.into_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = match content.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Trouble::Broken(format!("breaks off ({error})"))),
            };
            if part.length() + read as u64 > size {
                part.clear()?;
                return Err(Trouble::Refused(format!(
                    "sends more than the {size} bytes that the file has"
                )));
            }
            part.append(&buffer[..read])?;
            bar.set_position(part.length());
        }
        match version.size {
            Some(size) if part.length() < size => Err(Trouble::Broken(format!(
                "sends {} of the {size} bytes that the file has",
                part.length()
            ))),
            _ => Ok(()),
        }
    }
}

impl Version {
    /// What an answer with all of a file says about it.
    fn of(answer: &Answer) -> Result<Self, Trouble> {
        if answer.is_encoded() {
            return Err(Trouble::Refused(
                "compresses a file that was asked for as it is".to_string(),
            ));
        }
        let told = match answer.status {
            StatusCode::PARTIAL_CONTENT => answer.range().and_then(|(_, size)| size),
            _ => answer.length(),
        };
        if let (Some(said), Some(told)) = (answer.said.size, told) {
            if said != told {
                return Err(Trouble::Refused(format!(
                    "says that the file has {said} bytes, and then {told}"
                )));
            }
        }
        Ok(Self {
            etag: checked(answer.said.etag.clone(), "ETag")?,
            commit: checked(answer.said.commit.clone(), "X-Repo-Commit")?,
            size: answer.said.size.or(told),
        })
    }

    /// Whether a later answer is about the same content.
    fn check(&self, answer: &Answer) -> Result<(), Trouble> {
        let size = match answer.status {
            StatusCode::PARTIAL_CONTENT => answer.range().and_then(|(_, size)| size),
            _ => answer.length(),
        };
        let same = answer
            .said
            .etag
            .as_ref()
            .is_none_or(|etag| *etag == self.etag)
            && size.is_none_or(|size| self.size.is_none_or(|own| own == size));
        match same && !answer.is_encoded() {
            true => Ok(()),
            false => Err(Trouble::Refused(
                "has changed the file meanwhile; try again".to_string(),
            )),
        }
    }
}

/// A commit or ETag that can be a name in the cache.
fn checked(value: Option<String>, header: &str) -> Result<String, Trouble> {
    match value {
        None => Err(Trouble::Refused(format!(
            "answers without {header}, as other servers than hubs do"
        ))),
        Some(value) if checksum::is_name(&value) => Ok(value),
        Some(value) => Err(Trouble::Refused(format!(
            "answers with a {header} that is none and could name a file elsewhere: {value:?}"
        ))),
    }
}

/// What to tell the user.
fn explain(options: &HubOptions, repo: &str, file: Option<&str>, trouble: Trouble) -> Error {
    let endpoint = &options.endpoint;
    let what = file.map_or(repo.to_string(), |file| format!("{file} of {repo}"));
    Error::Hub(match trouble {
        Trouble::Status {
            status: 404, code, ..
        } => match (code.as_deref(), file) {
            (Some("EntryNotFound"), Some(file)) => {
                format!("{repo} has no file {file} at revision {}", options.revision)
            }
            _ => format!(
                "{endpoint} has no repository {repo} with revision {}{}; check the spelling (a private one needs HF_TOKEN)",
                options.revision,
                file.map(|file| format!(" and file {file}")).unwrap_or_default()
            ),
        },
        Trouble::Status {
            status: 401 | 403, ..
        } => format!(
            "{endpoint} refuses access to {repo}: it does not exist, is private or gated; accept its terms on the web page and set HF_TOKEN"
        ),
        Trouble::Status { status, .. } => format!("{endpoint} answered {status} for {what}; try again later"),
        Trouble::Unreachable { reason, .. } => format!(
            "cannot reach {endpoint} ({reason}); check the network or HF_ENDPOINT, use --offline for a cached model, or give the path of a file"
        ),
        Trouble::Broken(reason) => format!(
            "download of {what} failed: {endpoint} {reason}; what has come is kept, try again"
        ),
        Trouble::Refused(reason) => format!("download of {what} failed: {endpoint} {reason}"),
        Trouble::Io { path, source } => {
            format!("download of {what} failed: {}: {source}", path.display())
        }
    })
}
