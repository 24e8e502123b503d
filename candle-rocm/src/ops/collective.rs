//! Collectives of several GPUs of this process by kernels that reach each other's memory.
//!
//! Each rank of a group has a [`Device`] of its own; all make the same calls in the same order, with tensors of the same
//! size and dtype. A call only enqueues a kernel, which waits on its GPU for those of the other ranks: it can be recorded
//! into a graph, and host threads that drive several ranks must not wait for one before the others' calls are made.
//! Reductions are made in the order of ranks, of halves in f32 with one rounding, so all ranks get the same bits.
//!
//! What goes wrong is found when the work is done, not when it is enqueued: [`Rank::failure`] tells.

use crate::kernels::{kernels, Ptr};
use crate::peer::{HostWords, PeerAccess, PeerBuffer};
use crate::{Buffer, DType, Device, Error, Family, LaunchConfig, Result, View};
use candle_rocm_kernels::shared::collective as shared;
use candle_rocm_kernels::shared::collective::Peers;
use std::sync::atomic::Ordering;
use std::sync::Arc;
use std::time::Duration;

/// Dtypes that are reduced.
pub const DTYPES: [DType; 7] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::U32,
    DType::I32,
    DType::I64,
];
const SIZES: [u32; 4] = [1, 2, 4, 8];
const OPERATIONS: [&str; 3] = ["sum", "max", "min"];

kernels! {
    /// Every rank reads everything.
    one_shot = "all_reduce_one_shot_{op}_{dtype}" [op: &'static str = OPERATIONS, dtype: DType = DTYPES]
        in Family::Collective, part dtype
        => (peers: Peers, n: u64, piece: u64, x: Ptr, out: Ptr);

    /// Every rank reduces a share, and reads those of others.
    two_shot = "all_reduce_two_shot_{op}_{dtype}" [op: &'static str = OPERATIONS, dtype: DType = DTYPES]
        in Family::Collective, part dtype
        => (peers: Peers, n: u64, piece: u64, x: Ptr, out: Ptr);

    /// `n` of each rank's share, which are `stride` apart.
    scatter = "reduce_scatter_{op}_{dtype}" [op: &'static str = OPERATIONS, dtype: DType = DTYPES]
        in Family::Collective, part dtype
        => (peers: Peers, n: u64, piece: u64, stride: u64, x: Ptr, out: Ptr);

    /// `n` of each rank, `stride` apart.
    gather = "all_gather_{bytes}" [bytes: u32 = SIZES] in Family::Collective, part "moves"
        => (peers: Peers, n: u64, piece: u64, stride: u64, x: Ptr, out: Ptr);

    /// From one rank.
    from_root = "broadcast_{bytes}" [bytes: u32 = SIZES] in Family::Collective, part "moves"
        => (peers: Peers, n: u64, piece: u64, root: u32, x: Ptr, out: Ptr);

    /// `n` bytes.
    send_message = "send_message" in Family::Collective, part "moves" => (peers: Peers, n: u64, to: u32, x: Ptr);
    /// `n` bytes.
    receive_message = "receive_message" in Family::Collective, part "moves" => (peers: Peers, n: u64, from: u32, out: Ptr);
    /// Nothing but the meeting.
    meet_all = "meet_all" in Family::Collective, part "moves" => (peers: Peers);
}

/// How elements of several ranks become one. Of floats, an element that is no number may be kept or lost by an extremum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum; integers wrap.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

impl Reduction {
    /// Every reduction.
    pub const ALL: [Self; 3] = [Self::Sum, Self::Max, Self::Min];

    const fn as_str(self) -> &'static str {
        OPERATIONS[self as usize]
    }
}

/// How an all-reduce is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shots {
    /// Every rank reads everything: one meeting.
    One,
    /// Every rank reduces a share, and reads those of the others: two meetings, and less to read for more than two.
    Two,
}

impl Shots {
    /// What is the faster for so many ranks and bytes. The limits are those of vLLM's custom all-reduce
    /// (<https://github.com/vllm-project/vllm/blob/main/csrc/custom_all_reduce.cuh>): two ranks read as much either way.
    pub fn choose(ranks: usize, bytes: usize) -> Self {
        let most = match ranks {
            0..=2 => usize::MAX,
            3..=4 => 512 << 10,
            _ => 256 << 10,
        };
        match bytes < most {
            true => Shots::One,
            false => Shots::Two,
        }
    }
}

/// Ranks of a group at most.
pub const MAX_RANKS: usize = shared::MAX_RANKS as usize;
/// What a thread moves at once.
const LINE_BYTES: usize = 16;
/// Bytes that a block moves at most in one launch.
const PIECE_BYTES: usize = shared::PIECE_BYTES as usize;
const MESSAGE_BYTES: usize = (shared::MESSAGE_BLOCKS * shared::MESSAGE_PIECE_BYTES) as usize;
/// Ticks of `steady_clock` in device code.
const TICKS_PER_SECOND: f64 = 1e8;
/// In the abort word, which holds a rank counted from 1 otherwise: the host has ended the group.
const BY_HOST: u64 = u64::MAX;

/// Why a group is of no use any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A rank did not come within the limit.
    Late {
        /// The rank that waited.
        waiting: usize,
        /// The rank that it waited for.
        missing: usize,
    },
    /// [`Rank::abort`] was called.
    Aborted,
}

/// A pair of GPUs of which one does not reach the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreachable {
    /// Rank of the GPU that would read and write.
    pub from: usize,
    /// Rank of the GPU whose memory that is.
    pub to: usize,
    /// Whether the other direction works.
    pub one_way: bool,
}

/// Pairs of which one does not reach the other, each direction by itself; none if all do.
///
/// # Errors
/// HIP's.
pub fn unreachable_pairs(devices: &[Device]) -> Result<Vec<Unreachable>> {
    let mut pairs = Vec::new();
    for (from, device) in devices.iter().enumerate() {
        for (to, other) in devices.iter().enumerate().filter(|&(to, _)| to != from) {
            if device.can_access_peer(other)? != PeerAccess::Possible {
                let one_way = other.can_access_peer(device)? == PeerAccess::Possible;
                pairs.push(Unreachable { from, to, one_way });
            }
        }
    }
    Ok(pairs)
}

/// A rank of a group. Its calls come from one thread at a time.
#[derive(Debug)]
pub struct Rank {
    device: Device,
    peers: Peers,
    memory: Arc<Memory>,
}

/// What all ranks share. The last rank that goes frees it, when every rank has waited for its device.
#[derive(Debug)]
struct Memory {
    control: HostWords,
    #[allow(dead_code)] // is freed with the group
    areas: Vec<PeerBuffer>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.device.gpu().defer(self.device.stream().wait_idle());
    }
}

/// A group with a rank for each device, whose kernels wait for each other for so long.
///
/// # Errors
/// [`Error::InvalidArgument`] for fewer than 2 or more than [`MAX_RANKS`] devices and if one does not reach another;
/// HIP's.
pub fn group(devices: &[Device], limit: Duration) -> Result<Vec<Rank>> {
    let op = "collective::group";
    let size = devices.len();
    let refused = |reason| Err(Error::InvalidArgument { op, reason });
    if !(2..=MAX_RANKS).contains(&size) {
        return refused(format!(
            "{size} devices, where a group has 2 to {MAX_RANKS}"
        ));
    }
    if let Some(Unreachable { from, to, .. }) = unreachable_pairs(devices)?.first() {
        return refused(format!(
            "GPU {} does not reach the memory of GPU {}",
            devices[*from].ordinal(),
            devices[*to].ordinal()
        ));
    }
    for device in devices {
        for other in devices {
            device.enable_peer_access(other)?;
        }
    }
    let bytes = shared::MAILBOX_AT as usize + size * 2 * MESSAGE_BYTES;
    let areas = devices.iter().map(|device| device.alloc_for_peers(bytes));
    let areas = areas.collect::<Result<Vec<_>>>()?;
    let mut addresses = [0; MAX_RANKS];
    for (address, area) in addresses.iter_mut().zip(&areas) {
        *address = area.address();
    }
    let control = devices[0].alloc_host_words(shared::LATE_WORDS as usize + size)?;
    let peers = Peers {
        areas: addresses,
        control: control.address(),
        rank: 0,
        size: size as u32,
    };
    let memory = Arc::new(Memory { control, areas });
    let ranks: Vec<Rank> = devices
        .iter()
        .enumerate()
        .map(|(rank, device)| Rank {
            device: device.clone(),
            peers: Peers {
                rank: rank as u32,
                ..peers
            },
            memory: memory.clone(),
        })
        .collect();
    ranks[0].set_limit(limit);
    Ok(ranks)
}

impl Rank {
    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.peers.rank as usize
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.peers.size as usize
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How long kernels of the group wait for each other from now on, those of recorded graphs, too.
    pub fn set_limit(&self, limit: Duration) {
        let ticks = (limit.as_secs_f64() * TICKS_PER_SECOND) as u64;
        self.word(shared::LIMIT_WORD).store(ticks, Ordering::SeqCst);
    }

    /// Ends the group: kernels that wait stop waiting, those that come later do not wait for long. May be called from any
    /// thread, at any time.
    pub fn abort(&self) {
        self.set_abort(BY_HOST);
    }

    /// What has ended the group, as far as the devices are. Results that were enqueued before are good only if there is
    /// nothing after a wait for them.
    pub fn failure(&self) -> Option<Failure> {
        match self.word(shared::ABORT_WORD).load(Ordering::SeqCst) {
            0 => None,
            BY_HOST => Some(Failure::Aborted),
            rank => {
                let waiting = rank as u32 - 1;
                let missing = self
                    .word(shared::LATE_WORDS + waiting)
                    .load(Ordering::SeqCst);
                Some(Failure::Late {
                    waiting: waiting as usize,
                    missing: missing.saturating_sub(1) as usize,
                })
            }
        }
    }

    fn word(&self, index: u32) -> &std::sync::atomic::AtomicU64 {
        &self.memory.control.words()[index as usize]
    }

    /// The first reason stays.
    fn set_abort(&self, value: u64) {
        let word = self.word(shared::ABORT_WORD);
        let _ = word.compare_exchange(0, value, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// All ranks' tensors as one of the same size.
    ///
    /// # Errors
    /// [`Error::UnsupportedDType`] for dtypes that are not among [`DTYPES`], [`Error::InvalidView`],
    /// [`Error::InvalidArgument`] for a view that is not contiguous; HIP's.
    pub fn all_reduce(&self, x: &View, by: Reduction, shots: Shots) -> Result<Buffer> {
        let moved = Moved::reduced("all_reduce", x, PIECE_BYTES)?;
        let out = self.device.alloc(moved.n * moved.bytes)?;
        let (peers, device, by) = (self.peers, &self.device, by.as_str());
        for chunk in moved.chunks() {
            let (n, piece, config) = (chunk.n, chunk.piece, chunk.config);
            let (x, to) = (
                moved.source(chunk.first),
                Ptr::at(&out, chunk.first * moved.bytes),
            );
            // SAFETY: view and result have `n` elements behind the first; areas have a part for each block.
            unsafe {
                match shots {
                    Shots::One => {
                        let kernel = one_shot::of(by, moved.x.dtype)?;
                        kernel.launch(device, config, peers, n, piece, x, to)?;
                    }
                    Shots::Two => {
                        let kernel = two_shot::of(by, moved.x.dtype)?;
                        kernel.launch(device, config, peers, n, piece, x, to)?;
                    }
                }
            }
        }
        Ok(out)
    }

    /// Of all ranks' tensors as one, whose elements are a multiple of the number of ranks, this rank's part.
    ///
    /// # Errors
    /// Those of [`Rank::all_reduce`], and [`Error::InvalidArgument`] for another number of elements.
    pub fn reduce_scatter(&self, x: &View, by: Reduction) -> Result<Buffer> {
        let op = "reduce_scatter";
        // A block's part of the memory has room for its piece of each rank's share, in whole lines.
        let room = PIECE_BYTES / self.size() / LINE_BYTES * LINE_BYTES;
        let mut moved = Moved::reduced(op, x, room)?;
        if !moved.n.is_multiple_of(self.size()) {
            return Err(Error::InvalidArgument {
                op,
                reason: format!(
                    "{} elements do not divide among {} ranks",
                    moved.n,
                    self.size()
                ),
            });
        }
        moved.n /= self.size();
        let out = self.device.alloc(moved.n * moved.bytes)?;
        let kernel = scatter::of(by.as_str(), x.dtype)?;
        let stride = moved.n as u64;
        for chunk in moved.chunks() {
            let (n, piece, config) = (chunk.n, chunk.piece, chunk.config);
            let (x, to) = (
                moved.source(chunk.first),
                Ptr::at(&out, chunk.first * moved.bytes),
            );
            // SAFETY: the view has `n` elements behind the first for each rank, `stride` apart, the result for this one;
            // areas have a part for each block.
            unsafe { kernel.launch(&self.device, config, self.peers, n, piece, stride, x, to)? };
        }
        Ok(out)
    }

    /// The tensors of all ranks behind each other.
    ///
    /// # Errors
    /// [`Error::InvalidView`], [`Error::InvalidArgument`] for a view that is not contiguous; HIP's.
    pub fn all_gather(&self, x: &View) -> Result<Buffer> {
        let moved = Moved::new("all_gather", x, PIECE_BYTES)?;
        let out = self.device.alloc(self.size() * moved.n * moved.bytes)?;
        let kernel = gather::of(moved.bytes as u32)?;
        let stride = moved.n as u64;
        for chunk in moved.chunks() {
            let (n, piece, config) = (chunk.n, chunk.piece, chunk.config);
            let (x, to) = (
                moved.source(chunk.first),
                Ptr::at(&out, chunk.first * moved.bytes),
            );
            // SAFETY: the view has `n` elements behind the first, the result for each rank, `stride` apart; areas have a
            // part for each block.
            unsafe { kernel.launch(&self.device, config, self.peers, n, piece, stride, x, to)? };
        }
        Ok(out)
    }

    /// The tensor of the rank `root`; those of the others only say how large it is.
    ///
    /// # Errors
    /// Those of [`Rank::all_gather`], and [`Error::InvalidArgument`] if there is no such rank.
    pub fn broadcast(&self, x: &View, root: usize) -> Result<Buffer> {
        let op = "broadcast";
        self.check_rank(op, root)?;
        let moved = Moved::new(op, x, PIECE_BYTES)?;
        let out = self.device.alloc(moved.n * moved.bytes)?;
        let kernel = from_root::of(moved.bytes as u32)?;
        let root = root as u32;
        for chunk in moved.chunks() {
            let (n, piece, config) = (chunk.n, chunk.piece, chunk.config);
            let (x, to) = (
                moved.source(chunk.first),
                Ptr::at(&out, chunk.first * moved.bytes),
            );
            // SAFETY: view and result have `n` elements behind the first; areas have a part for each block.
            unsafe { kernel.launch(&self.device, config, self.peers, n, piece, root, x, to)? };
        }
        Ok(out)
    }

    /// Hands a tensor to another rank, which [receives](Rank::receive) it. The kernel ends when all but the last
    /// 2 MiB are taken: ranks that hand each other more than that must not both send first.
    ///
    /// # Errors
    /// Those of [`Rank::all_gather`], and [`Error::InvalidArgument`] if there is no such other rank.
    pub fn send(&self, x: &View, to: usize) -> Result<()> {
        let op = "send";
        self.check_other(op, to)?;
        let moved = Moved::new(op, x, PIECE_BYTES)?;
        let start = x.offset * moved.bytes;
        for (first, n, config) in messages(moved.n * moved.bytes) {
            let from = Ptr::at(x.buffer, start + first);
            // SAFETY: the view has `n` bytes behind the first; the mailbox has a part for each block.
            unsafe {
                send_message::of()?.launch(&self.device, config, self.peers, n, to as u32, from)?
            };
        }
        Ok(())
    }

    /// So many bytes that another rank [sends](Rank::send).
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is no such other rank; HIP's.
    pub fn receive(&self, bytes: usize, from: usize) -> Result<Buffer> {
        self.check_other("receive", from)?;
        let out = self.device.alloc(bytes)?;
        for (first, n, config) in messages(bytes) {
            let to = Ptr::at(&out, first);
            // SAFETY: the result has `n` bytes behind the first; the mailbox has a part for each block.
            unsafe {
                receive_message::of()?.launch(
                    &self.device,
                    config,
                    self.peers,
                    n,
                    from as u32,
                    to,
                )?
            };
        }
        Ok(out)
    }

    /// Work that is enqueued later begins when all ranks have done what was enqueued before.
    ///
    /// # Errors
    /// HIP's.
    pub fn barrier(&self) -> Result<()> {
        let config = LaunchConfig {
            grid: 1,
            block: shared::MEETING_BLOCK,
            shared_bytes: 0,
        };
        // SAFETY: areas have the words of a block.
        unsafe { meet_all::of()?.launch(&self.device, config, self.peers) }
    }

    fn check_rank(&self, op: &'static str, rank: usize) -> Result<()> {
        match rank < self.size() {
            true => Ok(()),
            false => Err(Error::InvalidArgument {
                op,
                reason: format!("there is no rank {rank} among {}", self.size()),
            }),
        }
    }

    fn check_other(&self, op: &'static str, rank: usize) -> Result<()> {
        self.check_rank(op, rank)?;
        match rank == self.rank() {
            false => Ok(()),
            true => Err(Error::InvalidArgument {
                op,
                reason: format!("rank {rank} is this rank"),
            }),
        }
    }
}

/// What is moved: elements of a view, or of each rank's share of it.
struct Moved<'a> {
    x: View<'a>,
    /// Number of elements.
    n: usize,
    /// Bytes of an element.
    bytes: usize,
    /// Bytes that a block moves at most in one launch, whole lines.
    room: usize,
}

/// What one launch moves.
struct Chunk {
    /// First element.
    first: usize,
    n: u64,
    /// Elements of each block, whole lines.
    piece: u64,
    config: LaunchConfig,
}

impl<'a> Moved<'a> {
    fn new(op: &'static str, x: &View<'a>, room: usize) -> Result<Self> {
        x.check(op)?;
        if !x.is_contiguous() {
            return Err(Error::InvalidArgument {
                op,
                reason: "the view is not contiguous; copy it first".to_string(),
            });
        }
        Ok(Moved {
            x: *x,
            n: x.elem_count(),
            bytes: x.dtype.size_in_bytes(),
            room,
        })
    }

    fn reduced(op: &'static str, x: &View<'a>, room: usize) -> Result<Self> {
        match DTYPES.contains(&x.dtype) {
            true => Self::new(op, x, room),
            false => Err(Error::UnsupportedDType { op, dtype: x.dtype }),
        }
    }

    fn source(&self, first: usize) -> Ptr<'a> {
        Ptr::at(self.x.buffer, (self.x.offset + first) * self.bytes)
    }

    fn chunks(&self) -> impl Iterator<Item = Chunk> + use<> {
        chunks(self.n, self.bytes, self.room)
    }
}

/// The launches that move `n` elements, each of so many bytes, of which blocks have room for `room` at once. The same on
/// every rank, whatever its GPU is: blocks of a number meet.
fn chunks(n: usize, bytes: usize, room: usize) -> impl Iterator<Item = Chunk> {
    let line = LINE_BYTES / bytes;
    let most = shared::MEETING_BLOCKS as usize * room / bytes;
    (0..n).step_by(most).map(move |first| {
        let n = (n - first).min(most);
        let lines = n.div_ceil(line);
        let blocks = lines.div_ceil(shared::MEETING_BLOCK as usize);
        let piece = lines.div_ceil(blocks.min(shared::MEETING_BLOCKS as usize));
        Chunk {
            first,
            n: n as u64,
            piece: (piece * line) as u64,
            config: LaunchConfig {
                grid: lines.div_ceil(piece) as u32,
                block: shared::MEETING_BLOCK,
                shared_bytes: 0,
            },
        }
    })
}

/// The messages of so many bytes: first byte, bytes, launch.
fn messages(bytes: usize) -> impl Iterator<Item = (usize, u64, LaunchConfig)> {
    (0..bytes).step_by(MESSAGE_BYTES).map(move |first| {
        let n = (bytes - first).min(MESSAGE_BYTES);
        let config = LaunchConfig {
            grid: n.div_ceil(shared::MESSAGE_PIECE_BYTES as usize) as u32,
            block: shared::MEETING_BLOCK,
            shared_bytes: 0,
        };
        (first, n as u64, config)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_an_area_lie_behind_each_other() {
        let word = size_of::<u64>() as u32;
        let flags = shared::MEETING_BLOCKS * shared::MAX_RANKS * word;
        let messages = shared::MESSAGE_BLOCKS * shared::MAX_RANKS * word;
        let parts = [
            (shared::CALLS_AT, shared::MEETING_BLOCKS * word),
            (shared::FLAGS_AT, flags),
            (shared::SENT_AT, messages),
            (shared::TAKEN_AT, messages),
            (shared::COME_AT, messages),
            (shared::FREED_AT, messages),
            (
                shared::STAGING_AT,
                2 * shared::MEETING_BLOCKS * shared::PIECE_BYTES,
            ),
            (shared::MAILBOX_AT, 0),
        ];
        for pair in parts.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        assert_eq!(shared::STAGING_AT as usize % LINE_BYTES, 0);
        assert_eq!(shared::MAILBOX_AT as usize % LINE_BYTES, 0);
    }

    #[test]
    fn pieces_hold_all_elements_and_fit() {
        for ranks in 1..=MAX_RANKS {
            let room = PIECE_BYTES / ranks / LINE_BYTES * LINE_BYTES;
            for bytes in [1, 2, 4, 8] {
                for n in [0, 1, 7, 4096, 65_537, 3_000_001] {
                    let mut next = 0;
                    for chunk in chunks(n, bytes, room) {
                        let (n, piece, grid) = (chunk.n, chunk.piece, u64::from(chunk.config.grid));
                        assert_eq!(chunk.first, next);
                        assert!(
                            piece as usize * bytes <= room,
                            "{piece} of {bytes} in {room}"
                        );
                        assert_eq!(piece as usize * bytes % LINE_BYTES, 0);
                        // No block is without elements, none is missing.
                        assert!(
                            piece * (grid - 1) < n && n <= piece * grid,
                            "{n} in {grid} x {piece}"
                        );
                        assert!(grid <= u64::from(shared::MEETING_BLOCKS));
                        next += n as usize;
                    }
                    assert_eq!(next, n);
                }
            }
        }
    }
}
