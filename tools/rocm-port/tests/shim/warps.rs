//! Warps of 32 lanes, also as halves of a wave of 64: shuffles of all widths, votes, matches, reductions, barriers.

use crate::units::{check, unit};
use rocm_port::check::{Case, DType, Fill};

const TEXT: &str = r#"
#define FULL 0xffffffffu
// Of a block of any size: lanes of the last warp that do not exist are in no mask.
__device__ unsigned whole(unsigned n) {
    const unsigned first = threadIdx.x & ~31u;
    return n - first >= 32u ? FULL : (1u << (n - first)) - 1u;
}
__global__ void shuffles(const int* x, int* idx, int* up, int* down, int* bfly, int width, int by, int n) {
    const unsigned i = threadIdx.x;
    const unsigned mask = whole(n);
    idx[i] = __shfl_sync(mask, x[i], by, width);
    up[i] = __shfl_up_sync(mask, x[i], by, width);
    down[i] = __shfl_down_sync(mask, x[i], by, width);
    bfly[i] = __shfl_xor_sync(mask, x[i], by, width);
}
__global__ void types(const int* x, double* d, long long* l, float* f, unsigned short* h, unsigned* h2, int n) {
    const unsigned i = threadIdx.x;
    d[i] = __shfl_xor_sync(FULL, (double)x[i] * 0.5, 1);
    l[i] = __shfl_xor_sync(FULL, (long long)x[i] * 0x100000001ll, 2);
    f[i] = __shfl_xor_sync(FULL, (float)x[i], 4);
    h[i] = __half_as_ushort(__shfl_xor_sync(FULL, __ushort_as_half((unsigned short)x[i]), 8));
    __half2 pair = __halves2half2(__ushort_as_half((unsigned short)x[i]), __ushort_as_half((unsigned short)(x[i] + 1)));
    pair = __shfl_xor_sync(FULL, pair, 16);
    h2[i] = __half_as_ushort(__low2half(pair)) | (unsigned)__half_as_ushort(__high2half(pair)) << 16;
}
// Lanes of a mask alone, in branches: the others do something else, or nothing.
__global__ void partial(const int* x, int* y, int n) {
    const unsigned i = threadIdx.x, lane = i % warpSize;
    int v = x[i];
    if (lane < 8) {
        for (int s = 4; s > 0; s /= 2) v += __shfl_down_sync(0xffu, v, s, 8);
    } else if (lane < 24) {
        v = __shfl_sync(0x00ffff00u, v, 8 + (int)(lane % 3));
    }
    y[i] = v;
}
// One warp of the block works while the others wait at the barrier.
__global__ void one_warp(const int* x, int* y, int n) {
    __shared__ int total[2];
    const unsigned warp = threadIdx.x / warpSize;
    if (warp == 1) {
        int v = 0;
        for (int i = threadIdx.x % warpSize; i < n; i += warpSize) v += x[i];
        for (int s = 16; s > 0; s /= 2) v += __shfl_xor_sync(FULL, v, s);
        if (threadIdx.x % warpSize == 0) total[0] = v;
    }
    __syncthreads();
    if (warp == 0) {
        const unsigned big = __ballot_sync(FULL, x[threadIdx.x] > 0);
        if (threadIdx.x == 0) total[1] = (int)big;
        __syncwarp();
    }
    __syncthreads();
    y[threadIdx.x] = total[0] + total[1];
}
__global__ void votes(const int* x, unsigned* ballot, int* any, int* all, int* uni, int limit, int n) {
    const unsigned i = threadIdx.x, mask = whole(n);
    ballot[i] = __ballot_sync(mask, x[i] < limit);
    any[i] = __any_sync(mask, x[i] < limit);
    all[i] = __all_sync(mask, x[i] < limit);
    uni[i] = __uni_sync(mask, x[i] < limit);
}
__global__ void matches(const int* x, unsigned* any, unsigned* all, int* same, int n) {
    const unsigned i = threadIdx.x, mask = whole(n);
    any[i] = __match_any_sync(mask, (x[i] % 5));
    int p;
    all[i] = __match_all_sync(mask, x[i & ~31u] < 0 ? 7ll : (long long)x[i], &p);
    same[i] = p;
}
__global__ void reductions(const int* x, int* y, int n) {
    const unsigned i = threadIdx.x, mask = whole(n);
    y[8 * i] = __reduce_add_sync(mask, x[i]);
    y[8 * i + 1] = __reduce_min_sync(mask, x[i]);
    y[8 * i + 2] = __reduce_max_sync(mask, x[i]);
    y[8 * i + 3] = (int)__reduce_min_sync(mask, (unsigned)x[i]);
    y[8 * i + 4] = (int)__reduce_max_sync(mask, (unsigned)x[i]);
    y[8 * i + 5] = (int)__reduce_and_sync(mask, (unsigned)x[i]);
    y[8 * i + 6] = (int)__reduce_or_sync(mask, (unsigned)x[i]);
    y[8 * i + 7] = (int)__reduce_xor_sync(mask, (unsigned)x[i]);
}
// Who is here: lanes that left a branch, or the kernel, are not.
__global__ void active(const int* x, unsigned* y, int n) {
    const unsigned i = threadIdx.x;
    y[i] = 0;
    if (x[i] < 0) return;
    if (x[i] % 2) {
        y[i] = __activemask();
    } else {
        y[i] = __ballot(x[i] % 4 == 0);
    }
}
__global__ void counted(const int* x, int* count, int* all, int* any, int limit, int n) {
    const unsigned i = threadIdx.y * blockDim.x + threadIdx.x;
    count[i] = __syncthreads_count(x[i] < limit);
    all[i] = __syncthreads_and(x[i] < limit);
    any[i] = __syncthreads_or(x[i] < limit);
}
// Warps are cut from the block's threads in order, x first.
__global__ void in_two_dimensions(const int* x, unsigned* y, int n) {
    const unsigned i = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    y[i] = __shfl_sync(FULL, threadIdx.x | threadIdx.y << 8 | threadIdx.z << 16, 5) + gridDim.y * 0x1000000u + x[i];
}
"#;

fn case(kernel: &str, sizes: &[i64]) -> Case {
    Case::new(format!("rocm_{kernel}"))
        .size("n", sizes.iter().copied())
        .block("n")
        .input("x", DType::I32, "n", Fill::ints(-1000, 1000))
}

/// The lanes of the warp of thread `i` in a block of `n`: first thread, and how many there are.
fn warp(i: usize, n: usize) -> (usize, usize) {
    let first = i / 32 * 32;
    (first, (n - first).min(32))
}

/// What PTX says of shfl.sync: the lane that is read, or the own one.
fn source(kind: usize, lane: usize, by: usize, width: usize) -> usize {
    let segment = lane / width * width;
    let last = segment + width - 1;
    match kind {
        0 => segment + by % width,
        1 => lane
            .checked_sub(by)
            .filter(|s| *s >= segment)
            .unwrap_or(lane),
        2 => Some(lane + by).filter(|s| *s <= last).unwrap_or(lane),
        _ => Some(lane ^ by).filter(|s| *s <= last).unwrap_or(lane),
    }
}

fn shuffles() -> Case {
    case("shuffles", &[32, 64, 96, 256])
        .output("idx", DType::I32, "n")
        .output("up", DType::I32, "n")
        .output("down", DType::I32, "n")
        .output("bfly", DType::I32, "n")
        .size("width", [1, 2, 4, 8, 16, 32])
        .size("by", [0, 1, 3, 5, 16, 31])
        .value("width", DType::I32, "width")
        .value("by", DType::I32, "by")
        .value("n", DType::I32, "n")
        .reference(|io| {
            let (x, width, by) = (io.integers("x"), io.size("width"), io.size("by"));
            for (kind, name) in ["idx", "up", "down", "bfly"].into_iter().enumerate() {
                let read = |i: usize| x[i / 32 * 32 + source(kind, i % 32, by, width)];
                io.set_integers(name, (0..x.len()).map(read));
            }
        })
}

fn types() -> Case {
    case("types", &[64])
        .output("d", DType::F64, "n")
        .output("l", DType::I64, "n")
        .output("f", DType::F32, "n")
        .output("h", DType::U16, "n")
        .output("h2", DType::U32, "n")
        .value("n", DType::I32, "n")
        .reference(|io| {
            let x = io.integers("x");
            let all = || 0..x.len();
            io.set("d", all().map(|i| x[i ^ 1] as f64 * 0.5));
            io.set_integers("l", all().map(|i| x[i ^ 2] * 0x1_0000_0001));
            io.set("f", all().map(|i| x[i ^ 4] as f64));
            io.set_integers("h", all().map(|i| x[i ^ 8] as u16));
            let pair = |i: usize| x[i ^ 16] as u16 as u32 | ((x[i ^ 16] + 1) as u16 as u32) << 16;
            io.set_integers("h2", all().map(pair));
        })
}

fn partial() -> Case {
    case("partial", &[32, 64, 128])
        .output("y", DType::I32, "n")
        .value("n", DType::I32, "n")
        .reference(|io| {
            let x = io.integers("x");
            let lane = |i: usize| match i % 32 {
                // Down within eight lanes: the last ones add themselves.
                0..8 => {
                    let mut v: Vec<i64> = x[i / 32 * 32..][..8].to_vec();
                    for s in [4, 2, 1] {
                        let before = v.clone();
                        (0..8).for_each(|l| v[l] += before[if l + s < 8 { l + s } else { l }]);
                    }
                    v[i % 32]
                }
                8..24 => x[i / 32 * 32 + 8 + i % 32 % 3],
                _ => x[i],
            };
            let y: Vec<i64> = (0..x.len()).map(lane).collect();
            io.set_integers("y", y);
        })
}

fn one_warp() -> Case {
    case("one_warp", &[64, 128, 160])
        .output("y", DType::I32, "n")
        .value("n", DType::I32, "n")
        .reference(|io| {
            let x = io.integers("x");
            let ballot = (0..32).fold(0u32, |mask, i| mask | u32::from(x[i] > 0) << i);
            let sum = x.iter().sum::<i64>() as i32;
            io.set_integers("y", x.iter().map(|_| sum.wrapping_add(ballot as i32)));
        })
}

fn votes() -> Case {
    case("votes", &[31, 32, 50, 64, 65, 97])
        .output("ballot", DType::U32, "n")
        .output("any", DType::I32, "n")
        .output("all", DType::I32, "n")
        .output("uni", DType::I32, "n")
        .size("limit", [-2000, -900, 0, 2000])
        .value("limit", DType::I32, "limit")
        .value("n", DType::I32, "n")
        .reference(|io| {
            let (x, limit) = (io.integers("x"), io.scalar("limit") as i64);
            let n = x.len();
            let ballot = |i: usize| {
                let (first, lanes) = warp(i, n);
                (0..lanes).fold(0u32, |mask, l| mask | u32::from(x[first + l] < limit) << l)
            };
            let count = |i: usize| (ballot(i).count_ones() as usize, warp(i, n).1);
            io.set_integers("ballot", (0..n).map(ballot));
            io.set_integers("any", (0..n).map(|i| i32::from(count(i).0 > 0)));
            io.set_integers("all", (0..n).map(|i| i32::from(count(i).0 == count(i).1)));
            let uni = |(yes, lanes)| i32::from(yes == 0 || yes == lanes);
            io.set_integers("uni", (0..n).map(|i| uni(count(i))));
        })
}

fn matches() -> Case {
    case("matches", &[32, 64, 77])
        .output("any", DType::U32, "n")
        .output("all", DType::U32, "n")
        .output("same", DType::I32, "n")
        .value("n", DType::I32, "n")
        .reference(|io| {
            let x = io.integers("x");
            let n = x.len();
            let lanes = |i: usize, f: &dyn Fn(usize) -> bool| {
                let (first, lanes) = warp(i, n);
                (0..lanes).fold(0u32, |mask, l| mask | u32::from(f(first + l)) << l)
            };
            let all = |i: usize| lanes(i, &|_| true);
            let agree = |i: usize| {
                let (first, lanes) = warp(i, n);
                x[first] < 0 || (first..first + lanes).all(|j| x[j] == x[first])
            };
            let any: Vec<u32> = (0..n)
                .map(|i| lanes(i, &|j| x[j] % 5 == x[i] % 5))
                .collect();
            io.set_integers("any", any);
            io.set_integers("all", (0..n).map(|i| if agree(i) { all(i) } else { 0 }));
            io.set_integers("same", (0..n).map(|i| i32::from(agree(i))));
        })
}

fn reductions() -> Case {
    case("reductions", &[32, 64, 70])
        .output("y", DType::I32, "8 * n")
        .value("n", DType::I32, "n")
        .reference(|io| {
            let x = io.integers("x");
            let mut y = Vec::new();
            for i in 0..x.len() {
                let (first, lanes) = warp(i, x.len());
                let signed: Vec<i32> = x[first..][..lanes].iter().map(|v| *v as i32).collect();
                let bits = || signed.iter().map(|v| *v as u32);
                y.extend([
                    signed.iter().sum::<i32>(),
                    *signed.iter().min().unwrap(),
                    *signed.iter().max().unwrap(),
                    bits().min().unwrap() as i32,
                    bits().max().unwrap() as i32,
                    bits().fold(!0, |a, b| a & b) as i32,
                    bits().fold(0, |a, b| a | b) as i32,
                    bits().fold(0, |a, b| a ^ b) as i32,
                ]);
            }
            io.set_integers("y", y);
        })
}

fn active() -> Case {
    case("active", &[32, 64, 96])
        .output("y", DType::U32, "n")
        .value("n", DType::I32, "n")
        .reference(|io| {
            let x = io.integers("x");
            let n = x.len();
            let lanes = |i: usize, f: &dyn Fn(i64) -> bool| {
                let (first, lanes) = warp(i, n);
                (0..lanes).fold(0u32, |mask, l| mask | u32::from(f(x[first + l])) << l)
            };
            let seen = |i: usize| match x[i] {
                v if v < 0 => 0,
                v if v % 2 == 1 => lanes(i, &|v| v >= 0 && v % 2 == 1),
                _ => lanes(i, &|v| v >= 0 && v % 4 == 0),
            };
            let y: Vec<u32> = (0..n).map(seen).collect();
            io.set_integers("y", y);
        })
}

fn counted() -> Case {
    case("counted", &[32, 96, 192])
        .block(rocm_port::check::dims("n / 4", 4, 1))
        .output("count", DType::I32, "n")
        .output("all", DType::I32, "n")
        .output("any", DType::I32, "n")
        .size("limit", [-2000, 0, 2000])
        .value("limit", DType::I32, "limit")
        .value("n", DType::I32, "n")
        .reference(|io| {
            let (x, limit) = (io.integers("x"), io.scalar("limit") as i64);
            let count = x.iter().filter(|v| **v < limit).count();
            let each = |v: usize| x.iter().map(move |_| v as i32);
            io.set_integers("count", each(count));
            io.set_integers("all", each(usize::from(count == x.len())));
            io.set_integers("any", each(usize::from(count > 0)));
        })
}

fn in_two_dimensions() -> Case {
    case("in_two_dimensions", &[96])
        .block(rocm_port::check::dims(3, 8, 4))
        .output("y", DType::U32, "n")
        .value("n", DType::I32, "n")
        .reference(|io| {
            let x = io.integers("x");
            let place = |i: usize| ((i % 3) | ((i / 3 % 8) << 8) | (i / 24) << 16) as i64;
            let y = |i: usize| (place(i / 32 * 32 + 5) + 0x100_0000 + x[i]) as u32;
            io.set_integers("y", (0..x.len()).map(y));
        })
}

#[test]
fn lanes_work_together_in_warps_of_32() {
    let kernels = [
        ("shuffles", 8),
        ("types", 7),
        ("partial", 3),
        ("one_warp", 3),
        ("votes", 7),
        ("matches", 5),
        ("reductions", 3),
        ("active", 3),
        ("counted", 6),
        ("in_two_dimensions", 3),
    ];
    let cases = [
        shuffles(),
        types(),
        partial(),
        one_warp(),
        votes(),
        matches(),
        reductions(),
        active(),
        counted(),
        in_two_dimensions(),
    ];
    check(&unit(TEXT, &kernels), &["gfx1100", "gfx942"], 2, cases);
}
