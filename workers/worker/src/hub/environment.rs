//! The variables that Hugging Face's own tools read, with the meaning that
//! [they give them](https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables).

use crate::file;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Values that switch something on.
const TRUE: [&str; 4] = ["1", "on", "yes", "true"];
/// Longest token file that is read.
const MAX_TOKEN_BYTES: u64 = 64 << 10;
/// The public hub.
const ENDPOINT: &str = "https://huggingface.co";
/// How long a hub may be silent, unless `HF_HUB_DOWNLOAD_TIMEOUT` says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What the environment says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Environment {
    /// The folder with `models--owner--name` folders in it.
    pub cache: PathBuf,
    /// The hub's address.
    pub endpoint: String,
    /// The access token, from the environment or stored by a login.
    pub token: Option<String>,
    /// Use the cache only.
    pub offline: bool,
}

impl Environment {
    /// Reads variables through `variable`.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let is_on =
            |name: &str| set(name).is_some_and(|v| TRUE.contains(&v.to_lowercase().as_str()));
        let path = |name: &str| set(name).map(|text| PathBuf::from(expand(&text, &variable)));
        let home = path("HF_HOME").unwrap_or_else(|| {
            let base =
                path("XDG_CACHE_HOME").unwrap_or_else(|| expand("~/.cache", &variable).into());
            base.join("huggingface")
        });
        let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
        let token_file = path("HF_TOKEN_PATH").unwrap_or_else(|| home.join("token"));
        let token = match is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            true => None,
            false => set("HF_TOKEN")
                .or_else(|| set("HUGGING_FACE_HUB_TOKEN"))
                .and_then(|text| clean(&text))
                .or_else(|| stored_token(&token_file)),
        };
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| ENDPOINT.to_string());
        Self {
            cache: cache.unwrap_or_else(|| home.join("hub")),
            endpoint: endpoint.trim_end_matches('/').to_string(),
            token,
            offline: is_on("HF_HUB_OFFLINE") || is_on("TRANSFORMERS_OFFLINE"),
        }
    }
}

/// How long the hub may be silent.
pub(super) fn timeout(variable: impl Fn(&str) -> Option<String>) -> Duration {
    let seconds = variable("HF_HUB_DOWNLOAD_TIMEOUT").and_then(|text| text.parse().ok());
    seconds
        .filter(|seconds| *seconds > 0)
        .map_or(TIMEOUT, Duration::from_secs)
}

/// Stored by `hf auth login`.
fn stored_token(path: &Path) -> Option<String> {
    clean(&file::read_text(path, MAX_TOKEN_BYTES).ok()?)
}

/// A token without line breaks and blanks around it.
fn clean(token: &str) -> Option<String> {
    let token: String = token
        .chars()
        .filter(|c| !matches!(c, '\r' | '\n'))
        .collect();
    Some(token.trim().to_string()).filter(|token| !token.is_empty())
}

/// A path with `~`, `$NAME` and `${NAME}` replaced, as Python's `expanduser` and `expandvars` do; what is not set stays.
fn expand(text: &str, variable: &impl Fn(&str) -> Option<String>) -> String {
    let text = match (text.strip_prefix('~'), variable("HOME")) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => home + rest,
        _ => text.to_string(),
    };
    let mut expanded = String::new();
    let mut rest = text.as_str();
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let braced = after
            .strip_prefix('{')
            .and_then(|inner| inner.split_once('}'));
        let (name, behind) = braced.unwrap_or_else(|| {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            after.split_at(end.unwrap_or(after.len()))
        });
        match variable(name).filter(|_| !name.is_empty()) {
            Some(value) => expanded.push_str(&value),
            None => expanded.push_str(&rest[before.len()..rest.len() - behind.len()]),
        }
        rest = behind;
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Environment {
        Environment::read(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn the_cache_is_where_pythons_is() {
        let cache = |variables: &[(&str, &str)]| read(variables).cache;
        let home = ("HOME", "/home/u");
        assert_eq!(cache(&[home]), Path::new("/home/u/.cache/huggingface/hub"));
        assert_eq!(
            cache(&[home, ("XDG_CACHE_HOME", "/x")]),
            Path::new("/x/huggingface/hub")
        );
        assert_eq!(
            cache(&[home, ("XDG_CACHE_HOME", "/x"), ("HF_HOME", "~/hf")]),
            Path::new("/home/u/hf/hub")
        );
        assert_eq!(
            cache(&[
                home,
                ("HF_HOME", "/hf"),
                ("HF_HUB_CACHE", "$HOME/${PART}/$ABSENT"),
                ("PART", "p")
            ]),
            Path::new("/home/u/p/$ABSENT")
        );
        assert_eq!(
            cache(&[
                home,
                ("HUGGINGFACE_HUB_CACHE", "/old"),
                ("HF_HUB_CACHE", "")
            ]),
            Path::new("/old")
        );
    }

    #[test]
    fn tokens_come_from_the_environment_then_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "stored\n").unwrap();
        let file = ("HF_TOKEN_PATH", path.to_str().unwrap());
        let home = ("HF_HOME", folder.path().to_str().unwrap());
        let token = |variables: &[(&str, &str)]| read(variables).token;
        assert_eq!(token(&[file]).as_deref(), Some("stored"));
        assert_eq!(token(&[home]).as_deref(), Some("stored"));
        assert_eq!(
            token(&[file, ("HF_TOKEN", " set\r\n")]).as_deref(),
            Some("set")
        );
        assert_eq!(
            token(&[("HUGGING_FACE_HUB_TOKEN", "old")]).as_deref(),
            Some("old")
        );
        assert_eq!(token(&[file, ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
    }

    #[test]
    fn the_rest() {
        let plain = read(&[]);
        assert_eq!(plain.endpoint, ENDPOINT);
        assert!(!plain.offline);
        let set = read(&[
            ("HF_ENDPOINT", "https://mirror.example/hf/"),
            ("HF_HUB_OFFLINE", "Yes"),
        ]);
        assert_eq!(set.endpoint, "https://mirror.example/hf");
        assert!(set.offline);
        assert_eq!(timeout(|_| Some("30".to_string())), Duration::from_secs(30));
        assert_eq!(timeout(|_| Some("0".to_string())), TIMEOUT);
        assert!(read(&[("TRANSFORMERS_OFFLINE", "1")]).offline);
    }
}
