//! Processes: the few calls to the operating system that the standard library lacks.

use std::io::{Error, Result};
use std::path::Path;
use std::process::{Child, Command};

/// This program once more. A file that was replaced or removed since the start is no hindrance.
pub fn this_program() -> Command {
    match std::env::current_exe() {
        Ok(path) if path.exists() => Command::new(path),
        _ => Command::new("/proc/self/exe"),
    }
}

/// Has the system end this process by SIGKILL when the thread that started it ends, or the process of that thread.
///
/// # Errors
/// The system's.
pub fn die_with_parent() -> Result<()> {
    #[cfg(target_os = "linux")]
    // SAFETY: takes numbers only.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(Error::last_os_error());
    }
    Ok(())
}

/// Has this process and those that it starts leave no core files when they crash.
///
/// # Errors
/// The system's.
pub fn leave_no_core_files() -> Result<()> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: both calls read or write the struct that they are handed.
    let done = unsafe {
        libc::getrlimit(libc::RLIMIT_CORE, &mut limit) == 0 && {
            limit.rlim_cur = 0;
            libc::setrlimit(libc::RLIMIT_CORE, &limit) == 0
        }
    };
    match done {
        true => Ok(()),
        false => Err(Error::last_os_error()),
    }
}

/// Has the system end this process after so many seconds of computing, and refuse it more than so many bytes of address
/// space.
///
/// # Errors
/// The system's.
pub fn limit_time_and_memory(seconds: u64, bytes: u64) -> Result<()> {
    for (resource, most) in [(libc::RLIMIT_CPU, seconds), (libc::RLIMIT_AS, bytes)] {
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: reads the struct that it is handed.
        if unsafe { libc::setrlimit(resource, &limit) } != 0 {
            return Err(Error::last_os_error());
        }
    }
    Ok(())
}

/// How many files this process may have open, sockets included; `None` if the system does not say or there is no limit.
pub fn open_file_limit() -> Option<usize> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: writes the struct that it is handed.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } == 0;
    let limited = done && limit.rlim_cur != libc::RLIM_INFINITY;
    limited.then(|| usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX))
}

/// This machine's name.
pub fn host_name() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    Some(name.trim().to_string()).filter(|name| !name.is_empty())
}

/// Gives memory that was freed back to the system, which the allocator would keep for itself. Takes milliseconds.
pub fn give_memory_back() {
    // SAFETY: takes a number only, and may be called at any time by any thread.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Asks a process that was not waited for yet to end, by SIGTERM.
///
/// # Errors
/// The system's.
pub fn terminate(child: &Child) -> Result<()> {
    let id = libc::pid_t::try_from(child.id()).map_err(Error::other)?;
    // SAFETY: takes numbers only; until it was waited for, the id is the child's.
    match unsafe { libc::kill(id, libc::SIGTERM) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Bytes of memory that programs can still take: what the system says, and what is left of this process's control
/// group; `None` where neither is known.
pub fn available_memory() -> Option<u64> {
    let of_system = std::fs::read_to_string("/proc/meminfo").ok();
    let of_system = of_system.as_deref().and_then(meminfo_available);
    [of_system, left_of_group(Path::new("/sys/fs/cgroup"))]
        .into_iter()
        .flatten()
        .min()
}

fn meminfo_available(text: &str) -> Option<u64> {
    let line = text.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// What is left of the limit of a container, which sees its own control group as the root of all.
fn left_of_group(folder: &Path) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let text = std::fs::read_to_string(folder.join(name)).ok()?;
        text.trim().parse().ok()
    };
    // The limit is the word `max` where there is none.
    Some(number("memory.max")?.saturating_sub(number("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory() {
        let text = "MemTotal:       16000 kB\nMemFree: 1 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(meminfo_available(text), Some(2 << 20));
        assert_eq!(meminfo_available("MemTotal: 1 kB\n"), None);
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text);
        assert_eq!(left_of_group(folder.path()), None);
        write("memory.current", "4096\n").unwrap();
        write("memory.max", "max\n").unwrap();
        assert_eq!(left_of_group(folder.path()), None);
        write("memory.max", "5000\n").unwrap();
        assert_eq!(left_of_group(folder.path()), Some(904));
        write("memory.max", "4000\n").unwrap();
        assert_eq!(left_of_group(folder.path()), Some(0));
    }
}
