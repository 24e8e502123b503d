// Collectives over memory that several GPUs reach: a kernel on each, which wait for each other.
//
// Each rank has an area of its own that all others read and write. A block works with the blocks of the same number on
// the other ranks and with no others: it has flags, a count of calls and a part of the staging memory of its own, so
// nothing is asked of the order in which blocks run but that they begin in the order of their numbers.
//
// A collective: the block copies its piece of the input to its staging memory, tells all others by a flag in *their*
// areas (so that waiting reads memory nearby), waits for theirs, and reads what they have. Sums are made in the order of
// ranks on every rank, in f32 for halves and rounded once, so all get the same bits.
//
// Why nobody overwrites what another still reads. Let c be the number of a block's calls so far, which all ranks count
// alike as they make the same calls. Call c uses the half c % 2 of the block's staging memory; its flag is 2 c + 1, and
// 2 c + 2 where it meets twice. A half that is written in call c + 2 was last read by others in their call c. This rank
// enters call c + 2 after its call c + 1 has seen everyone's flag 2 (c + 1) + 1, which a rank sets in its call c + 1, and
// that begins when its call c has ended: kernels of a rank run one after another. So all have read. Flags only grow, so
// one that was set again meanwhile still says what was waited for; 64 bits do not wrap. The count lies in the rank's own
// area and is advanced by the kernel, so the same launch may be repeated by a graph.
//
// In the second meeting of `two_shot` the sum lies where the rank's own share of its input was: the others read the other
// shares only before it.
//
// Messages between two ranks have places, flags and counts of their own, by pair and by block, in the same way: the
// sender writes into one of two places in the receiver's area when what was there two messages ago has been taken, which
// the receiver says in the sender's area.
//
// A block that waits for longer than the limit says for whom, and ends the group: every block that waits looks now and
// then at a word in the host's memory. What kernels leave behind then is worthless, and the host says so.
//
// The one-shot and two-shot forms are those of vLLM's and TensorRT-LLM's custom all-reduce
// (https://github.com/vllm-project/vllm/blob/main/csrc/custom_all_reduce.cuh).
#include "system.h"
#include "shared/collective.h"

namespace device {

// Spins between two looks at the clock and at the host's memory.
constexpr u32 SPINS = 512;

template <typename T> struct alignas(16) Line {
    static constexpr u32 N = 16 / sizeof(T);
    T v[N];
};

DEVICE_FN u64* word(const Peers& peers, u32 of, u32 at, u32 index) { return (u64*)(peers.areas[of] + at) + index; }

// The block's part of a rank's staging memory in a call.
DEVICE_FN u32x4* staging(const Peers& peers, u32 of, u64 call) {
    const u64 part = (call & 1u) * MEETING_BLOCKS + block_x();
    return (u32x4*)(peers.areas[of] + STAGING_AT + part * PIECE_BYTES);
}

// Where the block's part of a message to `of` lies.
DEVICE_FN u32x4* mailbox(const Peers& peers, u32 of, u32 from, u64 message) {
    const u64 part = ((u64)from * 2u + (message & 1u)) * MESSAGE_BLOCKS + block_x();
    return (u32x4*)(peers.areas[of] + MAILBOX_AT + part * MESSAGE_PIECE_BYTES);
}

// Whether a flag that rank `from` sets reaches `value` before the group ends or the time is up.
DEVICE_FN bool await(const Peers& peers, const u64* flag, u64 value, u32 from) {
    u64* const control = (u64*)peers.control;
    u64 since = 0;
    for (u32 spins = 1; load_system(flag) < value; ++spins) {
        if (spins % SPINS == 0) {
            if (load_system(control + ABORT_WORD) != 0) return false;
            const u64 now = steady_clock();
            if (since == 0) since = now;
            if (now - since > load_system(control + LIMIT_WORD)) {
                store_system(control + LATE_WORDS + peers.rank, from + 1u);
                release_system();
                store_system(control + ABORT_WORD, peers.rank + 1u);
                return false;
            }
        }
        pause();
    }
    return true;
}

// The blocks of this number on all ranks wait for each other, and each sees what the others wrote before. False on all
// threads if somebody does not come.
DEVICE_FN bool meet(const Peers& peers, u64 value) {
    __shared__ u32 alone;
    const u32 other = thread_x();
    if (other == 0) alone = 0;
    barrier();
    if (other < WAVE) {
        const u32 index = block_x() * MAX_RANKS;
        if (other < peers.size) {
            release_system();
            store_system(word(peers, other, FLAGS_AT, index + peers.rank), value);
        }
        // Everyone is told before anyone is waited for.
        wave_sync();
        if (other < peers.size) {
            if (!await(peers, word(peers, peers.rank, FLAGS_AT, index + other), value, other)) alone = 1;
            acquire_system();
        }
    }
    barrier();
    return alone == 0;
}

DEVICE_FN u64 calls(const Peers& peers) { return *word(peers, peers.rank, CALLS_AT, block_x()); }
// All threads have read the count before they met.
DEVICE_FN void count_call(const Peers& peers, u64 call) {
    if (thread_x() == 0) *word(peers, peers.rank, CALLS_AT, block_x()) = call + 1u;
}

// Line i of `count` elements from anywhere; zeros behind the last one.
template <typename T> DEVICE_FN u32x4 read_line(const T* from, u64 count, u64 i) {
    constexpr u32 N = Line<T>::N;
    if ((u64)from % 16 == 0 && (i + 1) * N <= count) return ((const u32x4*)from)[i];
    Line<T> line;
    for (u32 j = 0; j < N; ++j) line.v[j] = i * N + j < count ? from[i * N + j] : T{};
    return bit_cast<u32x4>(line);
}
template <typename T> DEVICE_FN void write_line(T* to, u64 count, u64 i, u32x4 bits) {
    constexpr u32 N = Line<T>::N;
    if ((u64)to % 16 == 0 && (i + 1) * N <= count) {
        ((u32x4*)to)[i] = bits;
        return;
    }
    const Line<T> line = bit_cast<Line<T>>(bits);
    for (u32 j = 0; j < N; ++j) {
        if (i * N + j < count) to[i * N + j] = line.v[j];
    }
}

// Lines that hold so many elements.
template <typename T> DEVICE_FN u64 lines(u64 count) { return (count + Line<T>::N - 1) / Line<T>::N; }
// The block's elements of n, a piece for each block.
DEVICE_FN u64 own_count(u64 n, u64 piece) {
    const u64 first = (u64)block_x() * piece;
    return first + piece < n ? piece : n - first;
}

template <typename T> DEVICE_FN void stage(u32x4* to, const T* from, u64 count) {
    for (u64 i = thread_x(); i < lines<T>(count); i += block_dim()) to[i] = read_line(from, count, i);
}

// Integers add up in the unsigned type, where overflow wraps.
struct Add {
    template <typename C> static DEVICE_FN C of(C a, C b) {
        if constexpr (is_float<C>::value) {
            return a + b;
        } else {
            return (C)((u64)a + (u64)b);
        }
    }
};
struct Larger {
    template <typename C> static DEVICE_FN C of(C a, C b) { return a < b ? b : a; }
};
struct Smaller {
    template <typename C> static DEVICE_FN C of(C a, C b) { return a > b ? b : a; }
};

// Line i of the block's staging memory of all ranks, as one.
template <typename Op, typename T> DEVICE_FN u32x4 combined(const Peers& peers, u64 call, u64 i) {
    using C = compute_t<T>;
    constexpr u32 N = Line<T>::N;
    u32x4 bits[MAX_RANKS];
    // All are on their way before the first is needed.
#pragma unroll
    for (u32 r = 0; r < MAX_RANKS; ++r) {
        if (r < peers.size) bits[r] = staging(peers, r, call)[i];
    }
    C acc[N];
    const Line<T> first = bit_cast<Line<T>>(bits[0]);
#pragma unroll
    for (u32 j = 0; j < N; ++j) acc[j] = load(first.v[j]);
#pragma unroll
    for (u32 r = 1; r < MAX_RANKS; ++r) {
        if (r < peers.size) {
            const Line<T> line = bit_cast<Line<T>>(bits[r]);
#pragma unroll
            for (u32 j = 0; j < N; ++j) acc[j] = Op::of(acc[j], (C)load(line.v[j]));
        }
    }
    Line<T> out;
#pragma unroll
    for (u32 j = 0; j < N; ++j) out.v[j] = store<T>(acc[j]);
    return bit_cast<u32x4>(out);
}

// Every rank reads everything.
template <typename Op, typename T> DEVICE_FN void one_shot(const Peers& peers, u64 n, u64 piece, const T* x, T* out) {
    const u64 call = calls(peers), first = block_x() * piece, count = own_count(n, piece);
    stage(staging(peers, peers.rank, call), x + first, count);
    if (!meet(peers, 2 * call + 1)) return;
    for (u64 i = thread_x(); i < lines<T>(count); i += block_dim()) {
        write_line(out + first, count, i, combined<Op, T>(peers, call, i));
    }
    count_call(peers, call);
}

// Every rank adds up its share of each block's piece, and reads the others' sums.
template <typename Op, typename T> DEVICE_FN void two_shot(const Peers& peers, u64 n, u64 piece, const T* x, T* out) {
    const u64 call = calls(peers), first = block_x() * piece, count = own_count(n, piece);
    u32x4* const own = staging(peers, peers.rank, call);
    stage(own, x + first, count);
    if (!meet(peers, 2 * call + 1)) return;
    const u32 all = (u32)lines<T>(count), share = (all + peers.size - 1) / peers.size;
    const u32 begin = share * peers.rank, end = begin + share < all ? begin + share : all;
    for (u32 i = begin + thread_x(); i < end; i += block_dim()) {
        const u32x4 sum = combined<Op, T>(peers, call, i);
        own[i] = sum;
        write_line(out + first, count, i, sum);
    }
    if (!meet(peers, 2 * call + 2)) return;
    for (u32 i = thread_x(); i < all; i += block_dim()) {
        const u32 of = i / share;
        if (of != peers.rank) write_line(out + first, count, i, staging(peers, of, call)[i]);
    }
    count_call(peers, call);
}

// x has n elements for each rank, `stride` apart; out gets those for this one. A piece is of these n.
template <typename Op, typename T>
DEVICE_FN void reduce_scatter(const Peers& peers, u64 n, u64 piece, u64 stride, const T* x, T* out) {
    const u64 call = calls(peers), first = block_x() * piece, count = own_count(n, piece);
    const u64 step = lines<T>(piece);
    for (u32 of = 0; of < peers.size; ++of) stage(staging(peers, peers.rank, call) + of * step, x + of * stride + first, count);
    if (!meet(peers, 2 * call + 1)) return;
    for (u64 i = thread_x(); i < lines<T>(count); i += block_dim()) {
        write_line(out + first, count, i, combined<Op, T>(peers, call, peers.rank * step + i));
    }
    count_call(peers, call);
}

// out gets n elements of each rank, `stride` apart.
template <typename T> DEVICE_FN void all_gather(const Peers& peers, u64 n, u64 piece, u64 stride, const T* x, T* out) {
    const u64 call = calls(peers), first = block_x() * piece, count = own_count(n, piece);
    stage(staging(peers, peers.rank, call), x + first, count);
    if (!meet(peers, 2 * call + 1)) return;
    for (u32 of = 0; of < peers.size; ++of) {
        T* const to = out + of * stride + first;
        for (u64 i = thread_x(); i < lines<T>(count); i += block_dim()) write_line(to, count, i, staging(peers, of, call)[i]);
    }
    count_call(peers, call);
}

// x is the root's.
template <typename T> DEVICE_FN void broadcast(const Peers& peers, u64 n, u64 piece, u32 root, const T* x, T* out) {
    const u64 call = calls(peers), first = block_x() * piece, count = own_count(n, piece);
    if (peers.rank == root) stage(staging(peers, root, call), x + first, count);
    if (!meet(peers, 2 * call + 1)) return;
    for (u64 i = thread_x(); i < lines<T>(count); i += block_dim()) write_line(out + first, count, i, staging(peers, root, call)[i]);
    count_call(peers, call);
}

// The wait of one thread for one flag, for the whole block.
DEVICE_FN bool await_by_one(const Peers& peers, const u64* flag, u64 value, u32 from) {
    __shared__ u32 alone;
    if (thread_x() == 0) {
        alone = await(peers, flag, value, from) ? 0 : 1;
        acquire_system();
    }
    barrier();
    return alone == 0;
}
// Behind what the whole block has read and written.
DEVICE_FN void tell(u64* flag, u64 value) {
    barrier();
    if (thread_x() == 0) {
        release_system();
        store_system(flag, value);
    }
}

}  // namespace device

#define REDUCTION(op, Op, name, T)                                                                                               \
    extern "C" __global__ MAX_BLOCK(256) void all_reduce_one_shot_##op##_##name(Peers peers, u64 n, u64 piece, const T* x, T* out) { \
        one_shot<Op, T>(peers, n, piece, x, out);                                                                                \
    }                                                                                                                            \
    extern "C" __global__ MAX_BLOCK(256) void all_reduce_two_shot_##op##_##name(Peers peers, u64 n, u64 piece, const T* x, T* out) { \
        two_shot<Op, T>(peers, n, piece, x, out);                                                                                \
    }                                                                                                                            \
    extern "C" __global__ MAX_BLOCK(256) void reduce_scatter_##op##_##name(Peers peers, u64 n, u64 piece, u64 stride, const T* x, T* out) { \
        reduce_scatter<Op, T>(peers, n, piece, stride, x, out);                                                                          \
    }
#define REDUCTIONS(name, T)           \
    REDUCTION(sum, Add, name, T)      \
    REDUCTION(max, Larger, name, T)   \
    REDUCTION(min, Smaller, name, T)

// By the size of elements.
#define MOVES(bytes, T)                                                                                                          \
    extern "C" __global__ MAX_BLOCK(256) void all_gather_##bytes(Peers peers, u64 n, u64 piece, u64 stride, const T* x, T* out) { \
        all_gather<T>(peers, n, piece, stride, x, out);                                                                                  \
    }                                                                                                                            \
    extern "C" __global__ MAX_BLOCK(256) void broadcast_##bytes(Peers peers, u64 n, u64 piece, u32 root, const T* x, T* out) {   \
        broadcast<T>(peers, n, piece, root, x, out);                                                                             \
    }

// A message of n bytes, a fixed number of them for each block, so that blocks of one number follow each other.
#define MESSAGES                                                                                                                 \
    extern "C" __global__ MAX_BLOCK(256) void send_message(Peers peers, u64 n, u32 to, const u8* x) {                            \
        const u32 mine = to * MESSAGE_BLOCKS + block_x(), theirs = peers.rank * MESSAGE_BLOCKS + block_x();                      \
        const u64 message = *word(peers, peers.rank, SENT_AT, mine), first = (u64)block_x() * MESSAGE_PIECE_BYTES;               \
        const u64 taken = message < 2 ? 0 : message - 1;                                                                         \
        if (!await_by_one(peers, word(peers, peers.rank, FREED_AT, mine), taken, to)) return;                                    \
        stage(mailbox(peers, to, peers.rank, message), x + first, own_count(n, MESSAGE_PIECE_BYTES));                            \
        tell(word(peers, to, COME_AT, theirs), message + 1);                                                                     \
        if (thread_x() == 0) *word(peers, peers.rank, SENT_AT, mine) = message + 1;                                              \
    }                                                                                                                            \
    extern "C" __global__ MAX_BLOCK(256) void receive_message(Peers peers, u64 n, u32 from, u8* out) {                           \
        const u32 mine = from * MESSAGE_BLOCKS + block_x(), theirs = peers.rank * MESSAGE_BLOCKS + block_x();                    \
        const u64 message = *word(peers, peers.rank, TAKEN_AT, mine), first = (u64)block_x() * MESSAGE_PIECE_BYTES;              \
        const u64 count = own_count(n, MESSAGE_PIECE_BYTES);                                                                     \
        if (!await_by_one(peers, word(peers, peers.rank, COME_AT, mine), message + 1, from)) return;                             \
        const u32x4* const mail = mailbox(peers, peers.rank, from, message);                                                     \
        for (u64 i = thread_x(); i < lines<u8>(count); i += block_dim()) write_line(out + first, count, i, mail[i]);             \
        tell(word(peers, from, FREED_AT, theirs), message + 1);                                                                  \
        if (thread_x() == 0) *word(peers, peers.rank, TAKEN_AT, mine) = message + 1;                                             \
    }                                                                                                                            \
    extern "C" __global__ MAX_BLOCK(256) void meet_all(Peers peers) {                                                            \
        const u64 call = calls(peers);                                                                                           \
        if (meet(peers, 2 * call + 1)) count_call(peers, call);                                                                  \
    }

PART(f32) REDUCTIONS(f32, float)
PART(f16) REDUCTIONS(f16, f16)
PART(bf16) REDUCTIONS(bf16, bf16)
PART(f64) REDUCTIONS(f64, double)
PART(u32) REDUCTIONS(u32, u32)
PART(i32) REDUCTIONS(i32, i32)
PART(i64) REDUCTIONS(i64, i64)
PART(moves) MOVES(1, u8)
PART(moves) MOVES(2, u16)
PART(moves) MOVES(4, u32)
PART(moves) MOVES(8, u64)
PART(moves) MESSAGES
