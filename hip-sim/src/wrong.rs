//! Injected wrong results: what a GPU, a compiler or a library gets wrong without saying so.
//!
//! Which faults are on is looked at when work runs, device code included: an object compiled without a fault has it as
//! soon as it is asked for, so compiled code may be kept and shared whatever is injected.

use crate::config::parse_bytes;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard};

/// Fast exchanges between lanes read the lane beside the right one. Bits that device code reads are in `prelude.hpp`
/// too.
pub(crate) const FLIPPED_LANE: u32 = 1;
/// Nothing orders shared memory inside a wave.
pub(crate) const STALE_LDS: u32 = 1 << 1;
/// Matrix instructions leave their result as those of another arch do.
pub(crate) const MATRIX_LAYOUT: u32 = 1 << 2;
/// Replays of a graph leave out its last kernel.
pub(crate) const GRAPH: u32 = 1 << 3;
/// The first matrix product ends the process.
const BLAS_ABORT: u32 = 1 << 4;
/// Some fault of the list is on.
const LISTED: u32 = 1 << 5;
/// Some link between devices gives wrong data.
const LINK: u32 = 1 << 6;
/// Products of hipBLASLt have a wrong element.
pub(crate) const HIPBLASLT: u32 = 1 << 7;
/// The first product of hipBLASLt ends the process.
const HIPBLASLT_EXIT: u32 = 1 << 8;

/// Where a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    HostToDevice,
    DeviceToHost,
    WithinDevice,
    BetweenDevices,
}

/// Copies of at most so many bytes are always right.
const RIGHT_COPY_BYTES: usize = 1 << 20;

/// A fault with a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Fault {
    /// Launches of kernels whose name fits leave out their last block.
    Kernel(String),
    /// Launches of such kernels take so many milliseconds longer.
    KernelSlow(String, u64),
    /// Products of this type, and of these transpositions if any, have a wrong element.
    Blas(&'static str, Option<(bool, bool)>),
    /// Products of hipBLASLt take so many milliseconds longer.
    HipblasltSlow(u64),
    /// Convolutions of this type have a wrong element.
    Miopen(&'static str),
    /// Long copies have a wrong word.
    Copy(Direction),
    /// The word at this byte of each device's memory has a bit that is always set.
    Vram(u64),
    /// What comes over the link between two devices, or any two, is wrong.
    Link(Option<(usize, usize)>),
}

/// The faults that are on.
#[derive(Debug, Default)]
pub(crate) struct Wrong {
    flags: AtomicU32,
    /// Launches still to go until the one that ends the process; 0 if none does.
    abort_at: AtomicU64,
    list: RwLock<Vec<Fault>>,
    /// Tells the list from others; 0 without faults.
    fingerprint: AtomicU32,
}

impl Wrong {
    /// Turns on the faults of a comma list, as `HIP_SIM_WRONG` has it, and all others off; an item that cannot be
    /// understood is the error, and changes nothing.
    pub fn set(&self, text: &str) -> Result<(), String> {
        let (mut flags, mut abort_at, mut list) = (0, 0, Vec::new());
        for item in text.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            let (kind, value) = item.split_once(':').unwrap_or((item, ""));
            let unknown =
                || format!("HIP_SIM_WRONG: {item:?} is not a fault; hip-sim/README.md lists them");
            match (kind, value) {
                ("flipped-lane", "") => flags |= FLIPPED_LANE,
                ("stale-lds", "") => flags |= STALE_LDS,
                ("matrix-layout", "") => flags |= MATRIX_LAYOUT,
                ("graph", "") => flags |= GRAPH,
                ("blas-abort", "") => flags |= BLAS_ABORT,
                ("hipblaslt", "") => flags |= HIPBLASLT,
                ("hipblaslt-exit", "") => flags |= HIPBLASLT_EXIT,
                ("abort", n) => abort_at = n.parse().ok().filter(|n| *n > 0).ok_or_else(unknown)?,
                _ => list.push(parse(kind, value).ok_or_else(unknown)?),
            }
        }
        if !list.is_empty() {
            flags |= LISTED;
        }
        if list.iter().any(|fault| matches!(fault, Fault::Link(_))) {
            flags |= LINK;
        }
        *self.list.write().unwrap_or_else(|e| e.into_inner()) = list;
        let hash = text.bytes().fold(17u32, |hash, byte| {
            hash.wrapping_mul(31).wrapping_add(byte.into())
        });
        let fingerprint = if text.trim().is_empty() {
            0
        } else {
            1 + hash % 9973
        };
        self.fingerprint.store(fingerprint, Ordering::Relaxed);
        self.abort_at.store(abort_at, Ordering::SeqCst);
        self.flags.store(flags, Ordering::SeqCst);
        Ok(())
    }

    /// Whether a fault without a parameter is on.
    pub fn is_on(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    /// Tells devices with these faults from others: what a program remembers of the one does not hold for the other.
    pub fn fingerprint(&self) -> u32 {
        self.fingerprint.load(Ordering::Relaxed)
    }

    /// Where device code reads the flags.
    pub fn flags_address(&self) -> usize {
        self.flags.as_ptr() as usize
    }

    fn list(&self) -> RwLockReadGuard<'_, Vec<Fault>> {
        self.list.read().unwrap_or_else(|e| e.into_inner())
    }

    fn any(&self, fits: impl Fn(&Fault) -> bool) -> bool {
        self.is_on(LISTED) && self.list().iter().any(fits)
    }

    fn find<T>(&self, of: impl Fn(&Fault) -> Option<T>) -> Option<T> {
        self.is_on(LISTED)
            .then(|| self.list().iter().find_map(of))?
    }

    /// Whether launches of this kernel leave out their last block.
    pub fn leaves_out_a_block(&self, kernel: &str) -> bool {
        self.any(|f| matches!(f, Fault::Kernel(glob) if fits(glob, kernel)))
    }

    /// Whether such products have a wrong element.
    pub fn spoils_product(&self, dtype: &str, transposed: (bool, bool)) -> bool {
        self.any(|f| {
            matches!(f, Fault::Blas(d, ops) if *d == dtype && ops.is_none_or(|o| o == transposed))
        })
    }

    /// Whether such convolutions have a wrong element.
    pub fn spoils_convolution(&self, dtype: &str) -> bool {
        self.any(|f| matches!(f, Fault::Miopen(d) if *d == dtype))
    }

    /// Whether such a copy has a wrong word.
    pub fn spoils_copy(&self, direction: Direction, bytes: usize) -> bool {
        bytes > RIGHT_COPY_BYTES && self.any(|f| *f == Fault::Copy(direction))
    }

    /// Whether some link gives wrong data.
    pub fn has_links(&self) -> bool {
        self.is_on(LINK)
    }

    /// Whether the link between two devices gives wrong data.
    pub fn spoils_link(&self, a: usize, b: usize) -> bool {
        let fits = |pair: &(usize, usize)| *pair == (a.min(b), a.max(b));
        self.is_on(LINK)
            && self.any(|f| matches!(f, Fault::Link(pair) if pair.as_ref().is_none_or(fits)))
    }

    /// Byte offsets of memory words with a bit that is always set.
    pub fn stuck_words(&self) -> Vec<u64> {
        if !self.is_on(LISTED) {
            return Vec::new();
        }
        let offset = |f: &Fault| match f {
            Fault::Vram(offset) => Some(*offset),
            _ => None,
        };
        self.list().iter().filter_map(offset).collect()
    }

    /// Counts a launch, and ends the process at the one that was asked for, as ROCr does when a kernel touches memory
    /// that it has no right to.
    pub fn launch(&self) {
        let counted = (self.abort_at).fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        });
        if counted == Ok(1) {
            eprintln!("Memory access fault by GPU node-1 (injected by hip-sim). Reason: Unknown.");
            std::process::abort();
        }
    }

    /// Ends the process at a matrix product, if that was asked for, as a rocBLAS does that has no files for the GPU.
    pub fn product(&self, arch: &str) {
        if self.is_on(BLAS_ABORT) {
            eprintln!(
                "rocBLAS error: Cannot read TensileLibrary.dat: No such file or directory for GPU arch : {arch} \
                 (injected by hip-sim)"
            );
            std::process::abort();
        }
    }

    /// Milliseconds that products of hipBLASLt take longer.
    pub fn hipblaslt_delay(&self) -> Option<u64> {
        self.find(|fault| match fault {
            Fault::HipblasltSlow(delay) => Some(*delay),
            _ => None,
        })
    }

    /// Milliseconds that launches of this kernel take longer.
    pub fn kernel_delay(&self, kernel: &str) -> Option<u64> {
        self.find(|fault| match fault {
            Fault::KernelSlow(glob, delay) if fits(glob, kernel) => Some(*delay),
            _ => None,
        })
    }

    /// Ends the process at a product of hipBLASLt, if that was asked for, as one does that has lost a file of kernels.
    pub fn hipblaslt(&self) {
        if self.is_on(HIPBLASLT_EXIT) {
            eprintln!("hipBLASLt: no kernels for this product (injected by hip-sim)");
            std::process::exit(1);
        }
    }
}

fn parse(kind: &str, value: &str) -> Option<Fault> {
    const DTYPES: [&str; 4] = ["f16", "bf16", "f32", "f64"];
    let dtype = |name: &str| DTYPES.into_iter().find(|d| *d == name);
    Some(match kind {
        "kernel" if !value.is_empty() => Fault::Kernel(value.to_string()),
        "blas" => match value.split_once(':') {
            None => Fault::Blas(dtype(value)?, None),
            Some((name, ops)) => {
                let ops = match ops {
                    "nn" => (false, false),
                    "nt" => (false, true),
                    "tn" => (true, false),
                    "tt" => (true, true),
                    _ => return None,
                };
                Fault::Blas(dtype(name)?, Some(ops))
            }
        },
        "kernel-slow" => {
            let (glob, delay) = value.split_once(':').filter(|(glob, _)| !glob.is_empty())?;
            Fault::KernelSlow(glob.to_string(), delay.parse().ok()?)
        }
        "hipblaslt-slow" => Fault::HipblasltSlow(value.parse().ok()?),
        "miopen" => Fault::Miopen(dtype(value).filter(|d| *d != "f64")?),
        "copy" => Fault::Copy(match value {
            "h2d" => Direction::HostToDevice,
            "d2h" => Direction::DeviceToHost,
            "d2d" => Direction::WithinDevice,
            "peer" => Direction::BetweenDevices,
            _ => return None,
        }),
        "vram" => Fault::Vram(parse_bytes(value)?),
        "link" if value.is_empty() => Fault::Link(None),
        "link" => {
            let (a, b) = value.split_once('-')?;
            let (a, b): (usize, usize) = (a.parse().ok()?, b.parse().ok()?);
            Fault::Link(Some((a.min(b), a.max(b))))
        }
        _ => return None,
    })
}

/// Whether a name fits a pattern, in which `*` stands for any text.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => name.strip_prefix(start).is_some_and(|name| {
            (0..=name.len()).any(|at| name.is_char_boundary(at) && fits(rest, &name[at..]))
        }),
    }
}

/// A value that no tolerance takes for the right one.
pub(crate) fn spoiled(value: f64) -> f64 {
    value + 1.0 + value.abs()
}

#[cfg(test)]
mod tests {
    use super::{fits, Direction, Wrong, FLIPPED_LANE, GRAPH, STALE_LDS};

    #[test]
    fn items_turn_faults_on_and_the_next_list_turns_them_off() {
        let wrong = Wrong::default();
        wrong
            .set("flipped-lane, blas:f16:tn,kernel:sum_*, copy:d2h,vram:4K,miopen:bf16")
            .unwrap();
        assert!(wrong.is_on(FLIPPED_LANE) && !wrong.is_on(STALE_LDS));
        assert!(wrong.spoils_product("f16", (true, false)));
        assert!(!wrong.spoils_product("f16", (false, false)));
        assert!(!wrong.spoils_product("f32", (true, false)));
        assert!(wrong.leaves_out_a_block("sum_f32") && !wrong.leaves_out_a_block("max_f32"));
        assert!(wrong.spoils_copy(Direction::DeviceToHost, 2 << 20));
        assert!(!wrong.spoils_copy(Direction::DeviceToHost, 1 << 20));
        assert!(!wrong.spoils_copy(Direction::HostToDevice, 2 << 20));
        assert!(wrong.spoils_convolution("bf16") && !wrong.spoils_convolution("f32"));
        assert_eq!(wrong.stuck_words(), [4096]);
        wrong.set("graph,blas:f32").unwrap();
        assert!(wrong.is_on(GRAPH) && !wrong.is_on(FLIPPED_LANE));
        assert!(wrong.spoils_product("f32", (true, true)) && wrong.stuck_words().is_empty());
        wrong.set("kernel-slow:sum_*:30").unwrap();
        assert_eq!(wrong.kernel_delay("sum_f32"), Some(30));
        assert_eq!(wrong.kernel_delay("max_f32"), None);
        wrong.set("hipblaslt,hipblaslt-slow:20").unwrap();
        assert!(wrong.is_on(super::HIPBLASLT) && wrong.hipblaslt_delay() == Some(20));
        wrong.set("link:2-1").unwrap();
        assert!(wrong.spoils_link(1, 2) && wrong.spoils_link(2, 1) && !wrong.spoils_link(0, 1));
        wrong.set("link").unwrap();
        assert!(wrong.spoils_link(0, 1) && wrong.has_links());
        wrong.set("").unwrap();
        assert!(!wrong.has_links() && !wrong.spoils_link(0, 1));
        assert!(!wrong.is_on(GRAPH) && !wrong.spoils_product("f32", (true, true)));
    }

    #[test]
    fn what_is_no_fault_is_refused_by_name() {
        let wrong = Wrong::default();
        wrong.set("graph").unwrap();
        for bad in [
            "lane",
            "graph:1",
            "blas",
            "blas:i8",
            "blas:f32:ab",
            "hipblaslt:f16",
            "hipblaslt-slow",
            "kernel:",
            "kernel-slow:20",
            "kernel-slow:sum:x",
            "miopen:f64",
            "copy:up",
            "vram:x",
            "abort",
            "abort:0",
            "link:1",
        ] {
            assert!(wrong.set(bad).unwrap_err().contains(bad), "{bad}");
        }
        assert!(wrong.is_on(GRAPH), "a list that is refused changes nothing");
    }

    #[test]
    fn patterns_have_stars() {
        assert!(fits("*", "") && fits("a*c", "abbc") && fits("*b*", "abc") && fits("abc", "abc"));
        assert!(!fits("a*c", "abcd") && !fits("abc", "abcd") && !fits("*x*", "abc"));
    }
}
