//! Machine code that was compiled before, kept on disk for all programs and archs.
//!
//! Most kernels are the same text for several archs, many programs keep their code objects in a folder of their own, and
//! what was compiled without checks is compiled again with them: the host's compiler is what all of this costs.

use super::compile::compiler;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// After so long an object is compiled again: kernels change, and nobody else tidies the folder.
const AGE: Duration = Duration::from_secs(14 * 24 * 3600);

/// The place of one object.
pub(super) struct Kept(Option<PathBuf>);

impl Kept {
    /// Where the object lies that `compile` makes of a source, followed by the text of the checks if it has any.
    pub fn of(compile: &Command, checks: Option<&str>, source: &str) -> Kept {
        let mut hasher = DefaultHasher::new();
        (compile.get_program(), version(), checks).hash(&mut hasher);
        for argument in compile.get_args() {
            argument.hash(&mut hasher);
        }
        for line in significant(source) {
            line.hash(&mut hasher);
        }
        let name = format!("{:016x}.o", hasher.finish());
        Kept(folder().map(|folder| folder.join(name)))
    }

    /// Whether the object was there, and is at `to` now.
    pub fn copy_to(&self, to: &Path) -> bool {
        let Some(path) = &self.0 else { return false };
        std::fs::copy(path, to).is_ok()
    }

    /// Keeps an object for the next one. Without the folder everything works too, only slower.
    pub fn keep(&self, object: &Path) {
        if let Some(path) = &self.0 {
            let _ = store(path, object);
        }
    }
}

/// `$XDG_CACHE_HOME/hip-sim` or `~/.cache/hip-sim`.
fn folder() -> Option<PathBuf> {
    let folder = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let base = folder("XDG_CACHE_HOME").or_else(|| Some(folder("HOME")?.join(".cache")));
    base.map(|base| base.join("hip-sim"))
}

/// What the compiler calls itself; nothing if it does not say.
fn version() -> &'static [u8] {
    static VERSION: OnceLock<Vec<u8>> = OnceLock::new();
    VERSION.get_or_init(|| {
        let answer = compiler().arg("--version").output();
        answer.map(|o| o.stdout).unwrap_or_default()
    })
}

/// The lines that decide over the machine code: no line markers, which differ where the prelude left something out, and
/// no matrix instruction that the source does not name. That is all in which most kernels differ between archs with
/// waves of one size.
fn significant(source: &str) -> impl Iterator<Item = &str> {
    let unused = move |line: &str| {
        instruction(line).is_some_and(|name| source.matches(name).nth(1).is_none())
    };
    source
        .lines()
        .filter(|line| !line.trim_start().is_empty() && !line.starts_with("# "))
        .filter(move |line| !unused(line))
}

/// The name of the matrix instruction that a line of the prelude defines.
fn instruction(line: &str) -> Option<&str> {
    let whole = line.contains("hip_sim_matrix_multiply(hip_sim_") && line.ends_with('}');
    let rest = line.strip_prefix("static inline hip_sim_")?;
    let (head, _) = rest.split_once('(')?;
    head.split_whitespace().nth(1).filter(|_| whole)
}

/// Writes a file that others never see half-written, and tidies now and then.
fn store(path: &Path, object: &Path) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&std::fs::read(object)?)?;
    file.persist(path)?;
    // One object in 256, by its name.
    let name = path.file_stem().and_then(|n| n.to_str()).unwrap_or("");
    if name.ends_with("00") {
        tidy(folder)?;
    }
    Ok(())
}

/// Removes what is older than [`AGE`].
fn tidy(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let written = entry.metadata()?.modified()?;
        if written.elapsed().is_ok_and(|age| age > AGE) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{instruction, significant, tidy, AGE};
    use std::time::SystemTime;

    const MFMA: &str = "static inline hip_sim_f32x4 __builtin_amdgcn_mfma_f32_16x16x16f16(hip_sim_i16x4 a) { return hip_sim_matrix_multiply(hip_sim_mfma_f32_16x16x16_f16, 3, a); }";

    #[test]
    fn an_instruction_counts_where_it_is_named() {
        assert_eq!(
            instruction(MFMA),
            Some("__builtin_amdgcn_mfma_f32_16x16x16f16")
        );
        assert_eq!(
            instruction("static inline unsigned hip_sim_lane() { return 0; }"),
            None
        );
        let without = format!("# 7 \"x.hpp\"\n\n{MFMA}\nint x;\n");
        assert_eq!(significant(&without).collect::<Vec<_>>(), ["int x;"]);
        let with =
            format!("{MFMA}\nauto y = __builtin_amdgcn_mfma_f32_16x16x16f16({{}});\nint x;\n");
        assert_eq!(significant(&with).count(), 3);
    }

    #[test]
    fn only_old_objects_go() {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (folder.path().join("old.o"), folder.path().join("new.o"));
        std::fs::write(&new, "").unwrap();
        let file = std::fs::File::create(&old).unwrap();
        file.set_modified(SystemTime::now() - 2 * AGE).unwrap();
        tidy(folder.path()).unwrap();
        assert!(new.exists() && !old.exists());
    }
}
