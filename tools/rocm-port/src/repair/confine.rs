//! Bounds for programs that compile and run what a model wrote.
//!
//! A program is started through this one (`rocm-port confined`), which takes the bounds upon itself and then becomes
//! it: so everything that the program starts has them, too. On Linux: CPU time, memory, size of files, and by Landlock
//! (kernel 5.13, for TCP 6.7) writing outside of given folders and the network. Elsewhere, and on older kernels, what
//! is not there is not bounded.

use std::path::PathBuf;
use std::process::Command;

/// The hidden command's name.
pub const COMMAND: &str = "confined";

/// What a program may use.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Bounds {
    /// Seconds of CPU time for each process
    #[arg(long, default_value_t = 600)]
    pub cpu_seconds: u64,
    /// Bytes of address space for each process
    #[arg(long, default_value_t = 64 << 30)]
    pub memory: u64,
    /// Bytes that a file may have
    #[arg(long, default_value_t = 1 << 30)]
    pub file_size: u64,
    /// Folders in which files may be written; everything else is read only
    #[arg(long)]
    pub write: Vec<PathBuf>,
}

impl Bounds {
    /// A command for a program of this machine, behind `confiner` (this program).
    pub fn command(&self, confiner: &std::path::Path, program: &std::path::Path) -> Command {
        let mut command = Command::new(confiner);
        command
            .args([COMMAND, "--cpu-seconds", &self.cpu_seconds.to_string()])
            .args(["--memory", &self.memory.to_string()])
            .args(["--file-size", &self.file_size.to_string()]);
        for folder in &self.write {
            command.arg("--write").arg(folder);
        }
        command.arg("--").arg(program);
        command
    }

    /// Takes the bounds upon this process, for good. Answers what this system does not have.
    pub fn enter(&self) -> Vec<String> {
        let mut missing = Vec::new();
        #[cfg(unix)]
        self.limit(&mut missing);
        #[cfg(target_os = "linux")]
        self.landlock(&mut missing);
        #[cfg(not(target_os = "linux"))]
        missing.push("files and network are not confined on this system".into());
        missing
    }

    #[cfg(unix)]
    fn limit(&self, missing: &mut Vec<String>) {
        use rustix::process::{getrlimit, setrlimit, Resource, Rlimit};
        for (resource, name, most) in [
            (Resource::Cpu, "CPU time", self.cpu_seconds),
            (Resource::As, "memory", self.memory),
            (Resource::Fsize, "size of files", self.file_size),
            (Resource::Core, "core dumps", 0),
        ] {
            let most = getrlimit(resource)
                .maximum
                .map_or(most, |now| now.min(most));
            let limit = Rlimit {
                current: Some(most),
                maximum: Some(most),
            };
            if let Err(error) = setrlimit(resource, limit) {
                missing.push(format!("{name} is not limited: {error}"));
            }
        }
    }

    #[cfg(target_os = "linux")]
    fn landlock(&self, missing: &mut Vec<String>) {
        use landlock::{
            path_beneath_rules, Access, AccessFs, AccessNet, Ruleset, RulesetAttr,
            RulesetCreatedAttr, RulesetStatus, ABI,
        };
        let abi = ABI::V4;
        let writing = AccessFs::from_write(abi);
        let devices = ["/dev/null", "/dev/tty", "/dev/shm"].map(PathBuf::from);
        let folders = self
            .write
            .iter()
            .cloned()
            .chain(devices)
            .filter(|p| p.exists());
        let status = Ruleset::default()
            .handle_access(writing)
            .and_then(|rules| rules.handle_access(AccessNet::from_all(abi)))
            .and_then(|rules| rules.create())
            .and_then(|rules| rules.add_rules(path_beneath_rules(folders, writing)))
            .and_then(|rules| rules.restrict_self());
        match status.map(|s| s.ruleset) {
            Ok(RulesetStatus::FullyEnforced) => {}
            Ok(RulesetStatus::PartiallyEnforced) => {
                missing.push("the kernel's Landlock is older: the network may be open".into());
            }
            Ok(RulesetStatus::NotEnforced) => {
                missing.push("the kernel has no Landlock: files and network are open".into())
            }
            Err(error) => missing.push(format!("files and network are not confined: {error}")),
        }
    }
}
