//! What can fail, and what to do about it.

use crate::driver::Errno;
use crate::fault::Fault;
use crate::generation::PAGE;
use crate::memory::Kind;
use crate::uapi::{AcquireVm, Request};
use std::time::Duration;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can fail.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The driver refused a request.
    #[error("{ioctl} failed: {errno}{}", request_hint(ioctl, *errno))]
    Ioctl {
        /// The request's name in the kernel's header.
        ioctl: &'static str,
        /// Why.
        errno: Errno,
    },
    /// The system has no such driver.
    #[error("AMD's compute driver is Linux' own, and this is {system}: run this program on Linux, or use HIP's runtime")]
    System {
        /// What it is.
        system: &'static str,
    },
    /// The host's pages are larger than those of the GPUs.
    #[error("the kernel has pages of {bytes} bytes, and without ROCm's libraries only {PAGE} work: use a kernel with such pages, or HIP's runtime")]
    Pages {
        /// How large they are.
        bytes: usize,
    },
    /// The process is a copy of the one that opened the driver.
    #[error("this process was forked from one that had opened the driver, and the GPU is that one's: open the driver after the fork, or start another program")]
    Forked,
    /// The driver has GPUs that nothing describes.
    #[error("the driver has {gpus} GPUs for this process, and /sys/class/kfd describes none: start the container with the host's /sys (docker has it by default, read-only)")]
    Undescribed {
        /// How many.
        gpus: u32,
    },
    /// A copy engine that the GPU does not have.
    #[error("GPU {gpu} has no copy engine {engine}: {}", engines_text(*engines))]
    NoEngine {
        /// PCI address of the GPU.
        gpu: String,
        /// Which was asked for, from 0; that for xGMI, if none was named.
        engine: String,
        /// How many it has.
        engines: u32,
    },
    /// A device file cannot be opened.
    #[error("{path} cannot be opened: {errno}{}", open_hint(*errno))]
    Open {
        /// The device file.
        path: String,
        /// Why.
        errno: Errno,
    },
    /// A ring that no engine takes.
    #[error("a ring of {bytes} bytes cannot be: it must be a power of two from 4096 to 2^30")]
    SdmaRing {
        /// Its size.
        bytes: usize,
    },
    /// A copy onto itself.
    #[error("the {bytes} bytes that are copied overlap with where they go to; copy by way of another memory")]
    Overlap {
        /// How many.
        bytes: u64,
    },
    /// An engine does not get on.
    #[error("the copy engine of GPU {gpu} did nothing for {seconds} s ({what}); it hangs, waits for a value that nobody writes, or has more to do than that")]
    SdmaTimeout {
        /// Address of the GPU.
        gpu: String,
        /// What was waited for.
        what: &'static str,
        /// How long.
        seconds: String,
    },
    /// A queue that was given up.
    #[error("the copy queue of GPU {gpu} was given up: an earlier batch failed, or the engine has read what nobody wrote; make a new one")]
    SdmaClosed {
        /// Address of the GPU.
        gpu: String,
    },
    /// No table here knows the GPU, so that it is left alone.
    #[error("{arch} is not supported without ROCm's libraries: a wrong packet could hang it; use HIP's runtime for it")]
    UnknownArch {
        /// The processor's name.
        arch: String,
    },
    /// The kernel's description of a GPU makes no sense.
    #[error("the kernel's description of the GPU cannot be right: {problem}; use HIP's runtime for it, and report what rocm-doctor writes")]
    Topology {
        /// What is wrong.
        problem: String,
    },
    /// Something was not done in time.
    #[error("{what} did not come within {after:?}; dmesg tells whether the GPU hung or was reset")]
    Timeout {
        /// What was waited for.
        what: &'static str,
        /// For how long.
        after: Duration,
    },
    /// A queue makes no progress.
    #[error("GPU {gpu}: a queue makes no progress for {after:?}; {taken} of its {written} packets were taken{}; give it more time if it has much to do, else end the process and see dmesg", running(kernel.as_deref()))]
    Stalled {
        /// PCI address of the GPU.
        gpu: String,
        /// Packets that the GPU has taken.
        taken: u64,
        /// Packets that were put onto the queue.
        written: u64,
        /// The kernel that it is at.
        kernel: Option<String>,
        /// How long that was looked at.
        after: Duration,
    },
    /// A queue stopped at a packet; nothing more is run from it.
    #[error("GPU {gpu}: a queue stopped after {packet} packets: {reason}{}; it takes nothing more, make a new one", running(kernel.as_deref()))]
    Queue {
        /// PCI address of the GPU.
        gpu: String,
        /// Packets that the GPU had taken.
        packet: u64,
        /// The kernel that it was at.
        kernel: Option<String>,
        /// What firmware and driver say.
        reason: String,
    },
    /// A queue of another size than there are.
    #[error("a queue of {packets} packets: it takes a power of two from {fewest} to {most}")]
    QueueSize {
        /// What was asked for.
        packets: u32,
        /// The smallest.
        fewest: u32,
        /// The largest.
        most: u32,
    },
    /// A kernel cannot be started like this.
    #[error("{kernel} cannot be launched: {problem}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// Why not.
        problem: String,
    },
    /// A kernel needs more memory of its lanes' own than the hardware can give.
    #[error("a kernel with {lane_bytes} bytes of scratch for each thread: {most} are possible; use fewer or smaller local arrays")]
    Scratch {
        /// What it needs.
        lane_bytes: u32,
        /// What there can be.
        most: u32,
    },
    /// A code object cannot be loaded.
    #[error("the code object cannot be loaded: {problem}")]
    CodeObject {
        /// Why not.
        problem: String,
    },
    /// A code object is for another GPU.
    #[error(
        "the code object is for {object}, the GPU is {gpu}: compile it with --offload-arch={gpu}"
    )]
    Target {
        /// What it is for.
        object: String,
        /// What the GPU is.
        gpu: String,
    },
    /// A program has no such kernel.
    #[error("there is no kernel {name}; there are: {}", there.join(", "))]
    NoKernel {
        /// Which was asked for.
        name: String,
        /// Which there are.
        there: Vec<String>,
    },
    /// The driver's interface is one that this crate does not talk to.
    #[error("the kernel's compute driver has interface {}.{}, and {}.{} or a later 1.x is needed: update the kernel or amdgpu-dkms", version.0, version.1, oldest.0, oldest.1)]
    Version {
        /// What it has.
        version: (u32, u32),
        /// What is needed.
        oldest: (u32, u32),
    },
    /// The driver's interface is too old for this.
    #[error("the kernel's compute driver cannot tell {what}: it has interface {}.{}, and {}.{} can", version.0, version.1, since.0, since.1)]
    TooOld {
        /// What it cannot tell.
        what: &'static str,
        /// Since when it could.
        since: (u32, u32),
        /// What it has.
        version: (u32, u32),
    },
    /// There is no such GPU.
    #[error("there is no GPU {index}: the kernel's compute driver offers {count} to this process{}", if *count == 0 { " (rocm-doctor says why)" } else { "" })]
    NoGpu {
        /// Which was asked for, from 0.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// The GPU drives a display, which a hang would take down.
    #[error("GPU {gpu} drives a display ({}), and a hang would take the desktop with it: choose another GPU, or allow it explicitly after saving your work", outputs.join(", "))]
    Display {
        /// Its PCI address.
        gpu: String,
        /// Connectors with a screen, and consoles.
        outputs: Vec<String>,
    },
    /// Something went wrong on the GPU, and the kernel has ended this process's work on it.
    #[error("GPU {gpu} is lost for this process: {fault}; start it again, and see dmesg")]
    Lost {
        /// Its PCI address.
        gpu: String,
        /// What went wrong.
        fault: Box<Fault>,
    },
    /// Memory is short.
    #[error("GPU {gpu}: {bytes} bytes of {kind} cannot be had ({errno}){}", free_text(*free))]
    OutOfMemory {
        /// PCI address of the GPU.
        gpu: String,
        /// What kind of memory.
        kind: Kind,
        /// How much was wanted.
        bytes: u64,
        /// How much device memory is free, if that was wanted and the driver tells.
        free: Option<u64>,
        /// The driver's reason.
        errno: Errno,
    },
    /// The host reaches only a small window of the GPU's memory.
    #[error("the host does not see the memory of GPU {gpu}: enable resizable BAR (Above 4G Decoding) in the machine's firmware, or use host memory")]
    NotVisible {
        /// Its PCI address.
        gpu: String,
    },
    /// GPUs do not see memory of another.
    #[error("only {mapped} of {wanted} GPUs can see the memory{}: peers must reach each other over xGMI or PCIe (rocm-doctor shows which do)", errno_text(*errno))]
    Peers {
        /// How many were wanted.
        wanted: usize,
        /// How many would have seen it; none of them does now.
        mapped: usize,
        /// The driver's reason, if it gave one.
        errno: Option<Errno>,
    },
    /// There are no addresses for so much memory.
    #[error("no addresses for {bytes} bytes that host and GPUs can share: {errno}")]
    Reserve {
        /// How much was wanted.
        bytes: usize,
        /// Why.
        errno: Errno,
    },
    /// Memory or doorbells of the GPU cannot be mapped for the host.
    #[error("{bytes} bytes of {what} cannot be mapped: {errno}")]
    Map {
        /// What.
        what: &'static str,
        /// How much.
        bytes: usize,
        /// Why.
        errno: Errno,
    },
    /// An access beyond memory.
    #[error("{bytes} bytes at offset {offset} are not within memory of {memory} bytes")]
    Range {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        bytes: u64,
        /// Size of the memory.
        memory: u64,
    },
    /// An address that is not a multiple of what it has to be.
    #[error("address {address:#x} is no multiple of {alignment}")]
    Alignment {
        /// The address.
        address: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
    /// An offset that the driver gave for a doorbell and that is none.
    #[error("the driver's offset {offset:#x} is not that of a doorbell")]
    Doorbell {
        /// The offset.
        offset: u64,
    },
    /// Things of two drivers were put together.
    #[error("memory, events and GPUs of different drivers do not work together")]
    Foreign,
}

/// Which copy engines there are.
fn engines_text(engines: u32) -> String {
    match engines {
        0 => "it has none of this kind".to_string(),
        1 => "it has engine 0 alone".to_string(),
        count => format!("its engines are 0 to {}", count - 1),
    }
}

/// How much is free; begins with a separator.
fn free_text(free: Option<u64>) -> String {
    free.map_or_else(String::new, |free| format!("; {free} bytes are free"))
}

/// The driver's reason, if there is one; begins with a separator.
fn errno_text(errno: Option<Errno>) -> String {
    errno.map_or_else(String::new, |errno| format!(" ({errno})"))
}

/// Names the kernel that a queue is at, if it is one; begins with a separator.
fn running(kernel: Option<&str>) -> String {
    kernel.map_or_else(String::new, |name| format!("; the kernel is {name}"))
}

/// What a user can do about a request that was refused; begins with a separator.
fn request_hint(ioctl: &str, errno: Errno) -> &'static str {
    match errno.0 {
        libc::EBUSY if ioctl == AcquireVm::NAME => {
            "; this process has opened the GPU before, as ROCm's libraries do: use one of them, or another process"
        }
        libc::EPERM | libc::EACCES => {
            "; this process may not use the GPU: see the cgroup's devices (docker --device) and a debugger that may hold it"
        }
        libc::EIO | libc::ENODEV => "; the GPU is gone or was reset: see dmesg | grep amdgpu",
        libc::EAGAIN => "; the GPU is being reset, or memory is being moved: try again, and see dmesg | grep amdgpu",
        libc::ENOTTY => "; the kernel does not know the request: update the kernel or amdgpu-dkms",
        _ => "",
    }
}

/// What a user can do about a file that cannot be opened; begins with a separator.
fn open_hint(errno: Errno) -> &'static str {
    match errno.0 {
        libc::EACCES | libc::EPERM => {
            "; add the user to the groups render and video (usermod -aG render,video USER) and log in again"
        }
        libc::ENOENT | libc::ENXIO => {
            "; load the kernel's amdgpu driver with compute support, or start the container with --device=/dev/kfd --device=/dev/dri"
        }
        _ => "",
    }
}
