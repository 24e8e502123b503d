//! A model argument resolved to a file on this machine.
//!
//! `FILE` is taken as it is. `OWNER/NAME[:FILE-OR-QUANT]` is a Hugging Face repository: the cache that the Python tools
//! use comes first, then the network unless it is ruled out. From a repository with GGUF files one is taken (all parts
//! of one that is split); from others the folder of config.json, tokenizer and safetensors files.
//! [`HubOptions::resolve_pipeline`] takes image models.
//!
//! What a hub answers is trusted with nothing: a commit or an ETag names a file of the cache only if it is a name, the
//! token goes to the hub itself and to no host behind it, content has the length and the checksum that were announced.
//!
//! | Module         | Gives                                                        |
//! |----------------|--------------------------------------------------------------|
//! | `environment`  | the variables of Hugging Face's own tools                    |
//! | `client`       | requests and redirects                                       |
//! | `cache`        | a repository's folder in the cache                           |
//! | `checksum`     | what an ETag says about content                              |
//! | `repository`   | the list of files, and each file fetched                     |
//! | `select`       | which files of a repository make up a model                  |
//! | `pipeline`     | the same for image models                                    |

mod args;
mod cache;
mod checksum;
mod client;
mod environment;
mod pipeline;
mod repository;
mod select;
mod trouble;

pub use args::HubArgs;

use crate::{Error, Result};
use cache::RepoCache;
use environment::Environment;
use repository::Repository;
pub(crate) use select::split_of;
use select::{
    choose, complete_folder, files_below, folder_files, has_gguf_extension, parts_of, Choice, INDEX,
};
use std::path::{Path, PathBuf};

/// What `--model` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A file or folder on this machine.
    File(PathBuf),
    /// A repository on the Hugging Face hub.
    Hub {
        /// `owner/name`.
        repo: String,
        /// A file name, a quantisation such as `Q4_K_M`, or `safetensors`; `None` takes the only or the preferred file.
        selector: Option<String>,
    },
}

impl ModelSource {
    /// Reads a `--model` argument. An existing path wins over a repository of the same spelling.
    pub fn parse(argument: &str) -> Result<Self> {
        let path = Path::new(argument);
        if path.exists() {
            return Ok(Self::File(path.to_path_buf()));
        }
        let (repo, selector) = match argument.split_once(':') {
            Some((repo, selector)) => (repo, Some(selector)),
            None => (argument, None),
        };
        let looks_like_file =
            selector.is_none() && (has_gguf_extension(repo) || repo.ends_with(".safetensors"));
        if is_repo_id(repo) && !looks_like_file && selector != Some("") {
            return Ok(Self::Hub {
                repo: repo.to_string(),
                selector: selector.map(str::to_string),
            });
        }
        Err(Error::Usage(format!(
            "--model {argument}: there is no such file, and it is not a Hugging Face id of the form owner/name[:file-or-quant]"
        )))
    }
}

/// `owner/name` of the characters that the hub allows.
fn is_repo_id(text: &str) -> bool {
    let valid = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    matches!(text.split_once('/'), Some((owner, name)) if valid(owner) && valid(name))
}

/// How to reach the hub.
#[derive(Debug, Clone)]
pub struct HubOptions {
    /// Branch, tag or commit.
    pub revision: String,
    /// Use the cache only.
    pub offline: bool,
    /// The folder with `models--owner--name` folders in it.
    pub cache: PathBuf,
    /// The hub's address.
    pub endpoint: String,
    /// Access token for gated and private repositories.
    pub token: Option<String>,
}

impl HubOptions {
    /// The settings that Hugging Face's own tools read: `HF_HUB_CACHE`, `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`,
    /// `HF_TOKEN_PATH` (or the token stored by their login), `HF_HUB_OFFLINE`.
    pub fn from_env() -> Self {
        let environment = Environment::read(|name| std::env::var(name).ok());
        Self {
            revision: "main".to_string(),
            offline: environment.offline,
            token: environment.token,
            endpoint: environment.endpoint,
            cache: environment.cache,
        }
    }

    /// Resolves `source` to a file, downloading it if the cache does not have it.
    pub fn resolve(&self, source: &ModelSource) -> Result<PathBuf> {
        match source {
            ModelSource::File(path) => Ok(path.clone()),
            ModelSource::Hub { repo, selector } => self.resolve_repo(repo, selector.as_deref()),
        }
    }

    /// The models that the cache has whole, by the names under which they are asked for, in the order of these: each GGUF
    /// file as `OWNER/NAME:QUANT` (or `:FILE`), and each folder that has one of `folder_marks` as `OWNER/NAME`.
    pub fn cached(&self, folder_marks: &[&str]) -> Vec<(String, PathBuf)> {
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.cache).into_iter().flatten() {
            let name = entry
                .ok()
                .and_then(|entry| entry.file_name().into_string().ok());
            let repo = name
                .as_deref()
                .and_then(|name| name.strip_prefix("models--"));
            let Some(repo) = repo
                .map(|repo| repo.replacen("--", "/", 1))
                .filter(|repo| is_repo_id(repo))
            else {
                continue;
            };
            if let Some(snapshot) = self.snapshot(&repo) {
                let files = files_below(&snapshot);
                for (selector, file) in select::ggufs_of(&repo, &files) {
                    found.push((format!("{repo}:{selector}"), snapshot.join(file)));
                }
                let marked = folder_marks
                    .iter()
                    .any(|mark| snapshot.join(mark).is_file());
                if marked
                    && (complete_folder(&snapshot) || snapshot.join("model_index.json").is_file())
                {
                    found.push((repo, snapshot));
                }
            }
        }
        found.sort();
        found
    }

    fn check_revision(&self) -> Result<()> {
        if is_revision(&self.revision) {
            return Ok(());
        }
        Err(Error::Usage(format!(
            "--revision {:?} is not a branch, tag or commit",
            self.revision
        )))
    }

    fn resolve_repo(&self, repo: &str, selector: Option<&str>) -> Result<PathBuf> {
        self.check_revision()?;
        let cached = self.snapshot(repo);
        let cached_files = cached.as_deref().map(files_below).unwrap_or_default();
        // Without a selector the choice depends on everything the repository has, which only the hub knows.
        if selector.is_some() || self.offline {
            let choice = choose(repo, &cached_files, selector).ok();
            let found = choice.zip(cached.as_deref());
            if let Some(path) = found.and_then(|(c, s)| from_cache(repo, s, &cached_files, &c)) {
                return Ok(path);
            }
        }
        if self.offline {
            return Err(self.not_cached(repo, selector, &cached_files));
        }
        let repository = Repository::new(self, repo)?;
        let listing = repository.list()?;
        let choice = choose(repo, &listing.files, selector)?;
        let complete = cached.as_deref();
        if let Some(path) = complete.and_then(|s| from_cache(repo, s, &cached_files, &choice)) {
            return Ok(path);
        }
        // What is there of another commit does not belong with what is fetched now.
        let current = cached.filter(|snapshot| snapshot.ends_with(&listing.commit));
        let get = |file: &str| match &current {
            Some(snapshot) if cached_files.iter().any(|f| f == file) => Ok(snapshot.join(file)),
            _ => repository.fetch(file, Some(&listing.commit)),
        };
        let files = &listing.files;
        match choice {
            Choice::Gguf(file) => {
                let parts = parts_of(repo, &file, files)?;
                let first = get(&parts[0])?;
                for part in &parts[1..] {
                    get(part)?;
                }
                Ok(first)
            }
            Choice::Folder => self.get_folder(repo, files, get),
        }
    }

    /// The files of a model folder, the index of its shards first.
    fn get_folder(
        &self,
        repo: &str,
        files: &[String],
        get: impl Fn(&str) -> Result<PathBuf>,
    ) -> Result<PathBuf> {
        let config = get("config.json")?;
        let index = match files.iter().any(|f| f == INDEX) {
            true => Some(get(INDEX)?),
            false => None,
        };
        for file in folder_files(repo, files, index.as_deref())? {
            get(&file)?;
        }
        config
            .parent()
            .map(Path::to_path_buf)
            .ok_or_else(|| Error::Hub(format!("{repo}: the cache has no folder for it")))
    }

    fn not_cached(&self, repo: &str, selector: Option<&str>, files: &[String]) -> Error {
        let models: Vec<&str> = files
            .iter()
            .map(String::as_str)
            .filter(|f| has_gguf_extension(f) || f.ends_with(".safetensors"))
            .collect();
        let have = if models.is_empty() {
            "no model file of it".to_string()
        } else {
            format!("of it only {}", models.join(", "))
        };
        Error::Hub(format!(
            "{repo}{} is not in the cache, and the network is ruled out by --offline or HF_HUB_OFFLINE; {} holds {have}. \
             Run once without it, or give the path of a file",
            selector.map(|s| format!(":{s}")).unwrap_or_default(),
            self.cache.display(),
        ))
    }

    /// The cached snapshot folder of the revision: through its ref, or the revision is a commit itself.
    fn snapshot(&self, repo: &str) -> Option<PathBuf> {
        let cache = RepoCache::new(&self.cache, repo);
        let commit = cache.commit_of(&self.revision);
        let commit = commit.unwrap_or_else(|| self.revision.clone());
        checksum::is_name(&commit)
            .then(|| cache.snapshot(&commit))
            .filter(|path| path.is_dir())
    }
}

/// The path of a choice in a snapshot, if all of it is there.
fn from_cache(repo: &str, snapshot: &Path, files: &[String], choice: &Choice) -> Option<PathBuf> {
    match choice {
        Choice::Gguf(file) => {
            let here = files.contains(file) && parts_of(repo, file, files).is_ok();
            here.then(|| snapshot.join(file))
        }
        Choice::Folder => complete_folder(snapshot).then(|| snapshot.to_path_buf()),
    }
}

/// A branch, tag or commit that is safe as a path below `refs`.
fn is_revision(revision: &str) -> bool {
    !revision.is_empty() && is_plain_relative(revision)
}

/// A path that stays below the folder it is joined to.
fn is_plain_relative(name: &str) -> bool {
    let plain = |part: &str| !matches!(part, "" | "." | "..");
    name.split('/').all(plain) && !name.chars().any(|c| c.is_control() || c == '\\')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_arguments() {
        let hub = |repo: &str, selector: Option<&str>| ModelSource::Hub {
            repo: repo.to_string(),
            selector: selector.map(str::to_string),
        };
        assert_eq!(
            ModelSource::parse("owner/name").unwrap(),
            hub("owner/name", None)
        );
        assert_eq!(
            ModelSource::parse("owner/name-GGUF:Q4_K_M").unwrap(),
            hub("owner/name-GGUF", Some("Q4_K_M"))
        );
        assert_eq!(
            ModelSource::parse("owner/name:sub/file.gguf").unwrap(),
            hub("owner/name", Some("sub/file.gguf"))
        );
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(
            ModelSource::parse(file.path().to_str().unwrap()).unwrap(),
            ModelSource::File(file.path().to_path_buf())
        );
        for bad in [
            "",
            "name",
            "models/absent.gguf",
            "models/absent.safetensors",
            "/a/b/c",
            "../x/y",
            "a/b/c",
            "owner/name:",
            "own er/name",
        ] {
            assert!(
                matches!(ModelSource::parse(bad), Err(Error::Usage(_))),
                "{bad}"
            );
        }
    }

    #[test]
    fn models_in_the_cache() {
        let cache = tempfile::tempdir().unwrap();
        let write = |name: &str| {
            let path = cache.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "main-commit").unwrap();
        };
        for name in [
            "models--org--tiny-GGUF/refs/main",
            "models--org--tiny-GGUF/snapshots/main-commit/tiny-Q8_0.gguf",
            "models--org--tiny-GGUF/snapshots/main-commit/tiny-UD-Q8_0.gguf",
            "models--org--tiny-GGUF/snapshots/main-commit/tiny-F16-00001-of-00002.gguf",
            "models--org--tiny-GGUF/snapshots/main-commit/tiny-F32.gguf",
            "models--org--tiny-GGUF/snapshots/main-commit/mmproj-F32.gguf",
            "models--org--picture--maker/refs/main",
            "models--org--picture--maker/snapshots/main-commit/model_index.json",
            "models--nobody/refs/main",
            "datasets--org--data/refs/main",
        ] {
            write(name);
        }
        let options = HubOptions {
            revision: "main".to_string(),
            offline: true,
            cache: cache.path().to_path_buf(),
            endpoint: String::new(),
            token: None,
        };
        let names: Vec<String> = options
            .cached(&["model_index.json"])
            .into_iter()
            .map(|(name, _)| name)
            .collect();
        // Two files are of Q8_0, so that it names neither; half of a file is none.
        let expected = [
            "org/picture--maker",
            "org/tiny-GGUF:F32",
            "org/tiny-GGUF:tiny-Q8_0.gguf",
            "org/tiny-GGUF:tiny-UD-Q8_0.gguf",
        ];
        assert_eq!(names, expected);
        assert!(options
            .cached(&["config.json"])
            .iter()
            .all(|(name, _)| name.contains(':')));
    }

    #[test]
    fn names_that_leave_their_folder_are_refused() {
        for bad in [
            "../x",
            "/etc/x",
            "a/../../b",
            "",
            "a//b",
            "a/./b",
            "a/",
            "a\0b",
            "a\\b",
            "a\nb",
        ] {
            assert!(!is_plain_relative(bad), "{bad}");
        }
        assert!(is_plain_relative("sub/file.gguf"));
    }
}
