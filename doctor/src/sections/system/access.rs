//! Who may open the driver's device files.

use crate::Check;
use serde_json::{json, Value};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Groups that distributions give the device files to.
const GROUPS: [&str; 2] = ["render", "video"];

/// Looks at the device files under `root` and at the groups of this process.
pub(super) fn look(check: &Check, root: &Path) -> Value {
    let groups = Groups::read(root);
    let mut paths = vec![root.join("dev/kfd")];
    let nodes = fs::read_dir(root.join("dev/dri"))
        .into_iter()
        .flatten()
        .flatten();
    let renders = |path: &PathBuf| {
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        name.is_some_and(|name| name.starts_with("renderD"))
    };
    paths.extend(nodes.map(|entry| entry.path()).filter(renders));
    paths.sort();
    let mut files = Vec::new();
    for path in paths.iter().filter(|path| path.exists()) {
        let opened = fs::File::options().read(true).write(true).open(path);
        let denied = opened.is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
        let metadata = fs::metadata(path).ok();
        let group = metadata
            .as_ref()
            .map(|metadata| groups.name(metadata.gid()));
        let mode = metadata
            .as_ref()
            .map(|metadata| format!("{:o}", metadata.mode() & 0o777));
        if denied {
            let group = group.as_deref().unwrap_or("render");
            check.error(
                "permission",
                format!("this user may not open {} (group {group}, mode {})", path.display(), mode.as_deref().unwrap_or("?")),
                format!("add the user to the group (usermod -aG {group} USER) and log in again; in a container give --device=/dev/kfd --device=/dev/dri --group-add {group}"),
            );
        }
        files.push(json!({
            "path": path.display().to_string(),
            "group": group,
            "mode": mode,
            "opens": !denied,
        }));
    }
    let member: Vec<&str> = GROUPS.into_iter().filter(|name| groups.has(name)).collect();
    check.note(match member.as_slice() {
        [] => "this user is in neither of the groups render and video".to_string(),
        names => format!("this user is in {}", names.join(" and ")),
    });
    json!({ "files": files, "groups": member })
}

/// Groups by name, and which of them this process is in.
struct Groups {
    names: Vec<(String, u32)>,
    own: Vec<u32>,
}

impl Groups {
    fn read(root: &Path) -> Self {
        let table = fs::read_to_string(root.join("etc/group")).unwrap_or_default();
        let names = table.lines().filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?.to_string();
            Some((name, fields.nth(1)?.parse().ok()?))
        });
        let status = fs::read_to_string(root.join("proc/self/status")).unwrap_or_default();
        let own = status
            .lines()
            .filter_map(|line| {
                line.strip_prefix("Groups:")
                    .or_else(|| line.strip_prefix("Gid:"))
            })
            .flat_map(str::split_whitespace)
            .filter_map(|id| id.parse().ok());
        Groups {
            names: names.collect(),
            own: own.collect(),
        }
    }

    fn name(&self, id: u32) -> String {
        let known = self.names.iter().find(|(_, of)| *of == id);
        known.map_or_else(|| id.to_string(), |(name, _)| name.clone())
    }

    fn has(&self, name: &str) -> bool {
        (self.names.iter()).any(|(known, id)| known == name && self.own.contains(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_name_and_number() {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("etc/group", "root:x:0:\nvideo:x:44:me\nrender:x:109:\n"),
            (
                "proc/self/status",
                "Name:\tx\nGid:\t1000\t1000\t1000\t1000\nGroups:\t44 1000\n",
            ),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let groups = Groups::read(root.path());
        assert!(groups.has("video") && !groups.has("render") && !groups.has("root"));
        assert_eq!(
            (groups.name(109), groups.name(7)),
            ("render".to_string(), "7".to_string())
        );
    }
}
