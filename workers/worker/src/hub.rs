//! A model argument resolved to a file on this machine.
//!
//! `FILE` is taken as it is. `OWNER/NAME[:FILE-OR-QUANT]` is a Hugging Face repository: the cache that
//! the Python tools use comes first, then the network unless it is ruled out.

use crate::progress::DownloadProgress;
use crate::{Error, Result};
use hf_hub::api::sync::{ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use std::path::{Component, Path, PathBuf};

/// Quantisations taken, in this order, when a repository has several files and none was named.
const PREFERRED_QUANTS: [&str; 3] = ["Q4_K_M", "Q4_0", "Q8_0"];

/// What `--model` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    /// A file or folder on this machine.
    File(PathBuf),
    /// A repository on the Hugging Face hub.
    Hub {
        /// `owner/name`.
        repo: String,
        /// A file name, or a quantisation such as `Q4_K_M`; `None` takes the only or the preferred file.
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
        let looks_like_file = selector.is_none() && has_gguf_extension(repo);
        if is_repo_id(repo) && !looks_like_file && selector != Some("") {
            return Ok(Self::Hub {
                repo: repo.to_string(),
                selector: selector.map(str::to_string),
            });
        }
        Err(Error::Usage(format!(
            "--model {argument}: there is no such file, and it is no Hugging Face id of the form owner/name[:file-or-quant]"
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

fn has_gguf_extension(name: &str) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
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
    /// The settings that Hugging Face's own tools read: `HF_HUB_CACHE`, `HF_HOME`, `HF_ENDPOINT`, `HF_TOKEN`
    /// (or the token stored by their login), `HF_HUB_OFFLINE`.
    pub fn from_env() -> Self {
        let set = |name| std::env::var(name).ok().filter(|v| !v.is_empty());
        let cache = match set("HF_HUB_CACHE") {
            Some(path) => Cache::new(path.into()),
            None => Cache::from_env(),
        };
        let offline = set("HF_HUB_OFFLINE")
            .is_some_and(|v| ["1", "on", "yes", "true"].contains(&v.to_lowercase().as_str()));
        Self {
            revision: "main".to_string(),
            offline,
            token: set("HF_TOKEN").or_else(|| Cache::from_env().token()),
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_string()),
            cache: cache.path().clone(),
        }
    }

    /// Resolves `source` to a file, downloading it if the cache does not have it.
    pub fn resolve(&self, source: &ModelSource) -> Result<PathBuf> {
        match source {
            ModelSource::File(path) => Ok(path.clone()),
            ModelSource::Hub { repo, selector } => self.resolve_repo(repo, selector.as_deref()),
        }
    }

    fn resolve_repo(&self, repo: &str, selector: Option<&str>) -> Result<PathBuf> {
        if !is_revision(&self.revision) {
            return Err(Error::Usage(format!(
                "--revision {:?} is no branch, tag or commit",
                self.revision
            )));
        }
        let cached = self.snapshot(repo);
        let cached_files = cached.as_deref().map(gguf_files).unwrap_or_default();
        // Without a selector the choice depends on everything the repository has, which only the hub knows.
        if selector.is_some() || self.offline {
            if let (Some(snapshot), Ok(file)) = (&cached, choose(repo, &cached_files, selector)) {
                return Ok(snapshot.join(file));
            }
        }
        if self.offline {
            let have = if cached_files.is_empty() {
                "no GGUF file of it".to_string()
            } else {
                format!("of it only {}", cached_files.join(", "))
            };
            return Err(Error::Hub(format!(
                "{repo}{} is not in the cache, and the network is ruled out by --offline or HF_HUB_OFFLINE; {} holds {have}. \
                 Run once without it, or give the path of a file",
                selector.map(|s| format!(":{s}")).unwrap_or_default(),
                self.cache.display(),
            )));
        }
        let api = self.api(repo)?;
        let info = api.info().map_err(|e| self.explain(repo, e))?;
        let files: Vec<String> = info
            .siblings
            .into_iter()
            .map(|s| s.rfilename)
            .filter(|name| has_gguf_extension(name) && is_plain_relative(name))
            .collect();
        let file = choose(repo, &files, selector)?;
        if let Some(snapshot) = cached.filter(|_| cached_files.contains(&file)) {
            return Ok(snapshot.join(file));
        }
        api.download_with_progress(&file, DownloadProgress::new())
            .map_err(|e| self.explain(repo, e))
    }

    fn repo(&self, repo: &str) -> Repo {
        Repo::with_revision(repo.to_string(), RepoType::Model, self.revision.clone())
    }

    fn api(&self, repo: &str) -> Result<ApiRepo> {
        let api = ApiBuilder::from_cache(Cache::new(self.cache.clone()))
            .with_endpoint(self.endpoint.clone())
            .with_token(self.token.clone())
            .with_user_agent("candle-rocm", env!("CARGO_PKG_VERSION"))
            .with_retries(3)
            .build()
            .map_err(|e| self.explain(repo, e))?;
        Ok(api.repo(self.repo(repo)))
    }

    /// The cached snapshot folder of the revision: through its ref, or the revision is a commit itself.
    fn snapshot(&self, repo: &str) -> Option<PathBuf> {
        let folder = self.cache.join(self.repo(repo).folder_name());
        let commit = std::fs::read_to_string(folder.join("refs").join(&self.revision))
            .map(|text| text.trim().to_string())
            .unwrap_or_else(|_| self.revision.clone());
        let is_name = matches!(
            Path::new(&commit).components().collect::<Vec<_>>()[..],
            [Component::Normal(_)]
        );
        Some(folder.join("snapshots").join(commit)).filter(|path| is_name && path.is_dir())
    }

    fn explain(&self, repo: &str, error: ApiError) -> Error {
        let endpoint = &self.endpoint;
        let cause = match &error {
            ApiError::TooManyRetries(inner) => inner,
            other => other,
        };
        Error::Hub(match cause {
            ApiError::RequestError(e) => match **e {
                ureq::Error::StatusCode(404) => format!(
                    "{endpoint} has no repository {repo} with revision {}; check the spelling (a private one needs HF_TOKEN)",
                    self.revision
                ),
                ureq::Error::StatusCode(401 | 403) => format!(
                    "{endpoint} refuses access to {repo}: it does not exist, is private or gated; accept its terms on the web page and set HF_TOKEN"
                ),
                ureq::Error::StatusCode(status) => {
                    format!("{endpoint} answered {status} for {repo}; try again later")
                }
                ref other => format!(
                    "cannot reach {endpoint} ({other}); check the network or HF_ENDPOINT, use --offline for a cached model, or give the path of a file"
                ),
            },
            ApiError::LockAcquisition(path) => format!(
                "another process is downloading {repo} ({} is locked); wait for it to finish",
                path.display()
            ),
            other => format!("download of {repo} failed: {other}"),
        })
    }
}

/// A branch, tag or commit that is safe as a path below `refs`.
fn is_revision(revision: &str) -> bool {
    !revision.is_empty() && is_plain_relative(revision)
}

/// A path that stays below the folder it is joined to.
fn is_plain_relative(name: &str) -> bool {
    !name.is_empty()
        && Path::new(name)
            .components()
            .all(|c| matches!(c, Component::Normal(_)))
}

/// The GGUF files of a snapshot and its subfolders, relative to it.
fn gguf_files(snapshot: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![snapshot.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            // Files are links into the blob folder; only real folders are walked, so there are no cycles.
            if entry.file_type().is_ok_and(|t| t.is_dir()) {
                folders.push(path);
            } else if let Some(name) = path.strip_prefix(snapshot).ok().and_then(Path::to_str) {
                if has_gguf_extension(name) && path.exists() {
                    found.push(name.to_string());
                }
            }
        }
    }
    found.sort();
    found
}

/// Picks the file that a selector means.
fn choose(repo: &str, files: &[String], selector: Option<&str>) -> Result<String> {
    let listing = || {
        if files.is_empty() {
            "it has no GGUF file".to_string()
        } else {
            format!("it has {}", files.join(", "))
        }
    };
    let none = |what: &str| Error::Hub(format!("{repo} has no GGUF file {what}; {}", listing()));
    let chosen = match selector {
        Some(name) if has_gguf_extension(name) => files
            .iter()
            .find(|f| *f == name)
            .ok_or_else(|| none(name))?,
        Some(quant) => {
            let matching: Vec<_> = files.iter().filter(|f| is_quant_of(f, quant)).collect();
            match matching[..] {
                [] => return Err(none(&format!("of quantisation {quant}"))),
                [one] => one,
                _ => {
                    return Err(Error::Hub(format!(
                    "{repo} has several files of quantisation {quant}: {}; name one as {repo}:FILE",
                    matching
                        .iter()
                        .map(|f| f.as_str())
                        .collect::<Vec<_>>()
                        .join(", ")
                )))
                }
            }
        }
        None => match files {
            [one] => one,
            _ => PREFERRED_QUANTS
                .iter()
                .find_map(|quant| files.iter().find(|f| is_quant_of(f, quant)))
                .ok_or_else(|| {
                    Error::Hub(format!(
                        "{repo}: which file? {}; name one as {repo}:FILE",
                        listing()
                    ))
                })?,
        },
    };
    if is_part_of_split(chosen) {
        return Err(Error::Hub(format!(
            "{repo}: {chosen} is one part of a split model, which is not supported; choose a single file"
        )));
    }
    Ok(chosen.clone())
}

/// Whether the quantisation stands in the file name as a word of its own, in either case: `Q4_K` is not `Q4_K_M`.
fn is_quant_of(file: &str, quant: &str) -> bool {
    let name = file.rsplit('/').next().unwrap_or(file).to_lowercase();
    let quant = quant.to_lowercase();
    let is_word = |c: Option<char>| !c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    !quant.is_empty()
        && name.match_indices(&quant).any(|(start, matched)| {
            is_word(name[..start].chars().next_back())
                && is_word(name[start + matched.len()..].chars().next())
        })
}

/// `…-00001-of-00003.gguf`.
fn is_part_of_split(file: &str) -> bool {
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    let number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    match stem.rsplit_once("-of-") {
        Some((head, count)) => {
            number(count) && head.rsplit_once('-').is_some_and(|(_, part)| number(part))
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|s| s.to_string()).collect()
    }

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
    fn quantisation_matches_whole_words_only() {
        assert!(is_quant_of("Model-Q4_K_M.gguf", "q4_k_m"));
        assert!(is_quant_of("dir/Model.Q8_0.gguf", "Q8_0"));
        assert!(!is_quant_of("Model-Q4_K_M.gguf", "Q4_K"));
        assert!(!is_quant_of("Model-IQ4_XS.gguf", "Q4_XS"));
        assert!(!is_quant_of("Q4_0/Model-Q8_0.gguf", "Q4_0"));
    }

    #[test]
    fn choice_of_a_file() {
        let files = names(&["m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-Q8_0.gguf"]);
        assert_eq!(choose("o/n", &files, None).unwrap(), "m-Q4_K_M.gguf");
        assert_eq!(choose("o/n", &files, Some("Q2_K")).unwrap(), "m-Q2_K.gguf");
        assert_eq!(
            choose("o/n", &files, Some("m-Q8_0.gguf")).unwrap(),
            "m-Q8_0.gguf"
        );
        assert_eq!(choose("o/n", &files[..1], None).unwrap(), "m-Q2_K.gguf");
        let error = choose("o/n", &files, Some("Q3_K")).unwrap_err().to_string();
        assert!(
            error.contains("Q3_K") && error.contains("m-Q2_K.gguf"),
            "{error}"
        );
        let ambiguous = names(&["a-Q2_K.gguf", "b-Q2_K.gguf"]);
        assert!(choose("o/n", &ambiguous, Some("Q2_K")).is_err());
        assert!(choose("o/n", &ambiguous, None).is_err());
        let split = names(&["m-Q4_K_M-00001-of-00002.gguf"]);
        assert!(choose("o/n", &split, None)
            .unwrap_err()
            .to_string()
            .contains("split"));
    }

    #[test]
    fn names_that_leave_their_folder_are_refused() {
        for bad in ["../x", "/etc/x", "a/../../b", ""] {
            assert!(!is_plain_relative(bad), "{bad}");
        }
        assert!(is_plain_relative("sub/file.gguf"));
    }
}
