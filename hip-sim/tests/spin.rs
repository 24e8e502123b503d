//! Kernels of several devices that wait for each other, and blocks that wait for blocks.

mod common;

use common::*;
use hip_sim::hip::*;
use std::process::{Command, Output};
use std::ptr::null_mut;
use std::sync::{Barrier, MutexGuard};

const DEVICES: usize = 4;

/// Four devices with waves of 64 and of 32, whose threads start in a shuffled order.
fn setup() -> MutexGuard<'static, ()> {
    let turn = common::turn();
    std::env::set_var("HIP_SIM_ARCH", "gfx942,gfx1100,gfx1201,gfx90a");
    std::env::set_var("HIP_SIM_MEMORY", "64M");
    std::env::set_var("HIP_SIM_SEED", "5");
    take_reports();
    turn
}

/// Every block adds a part of four arrays, once the same block of every rank has said that its part is there, and says
/// when it has read them.
const ALL_REDUCE: &str = r#"
    struct Peers { const float* data[4]; unsigned* flags[4]; };
    __device__ void meet(const Peers& p, int rank, unsigned turn) {
        if (threadIdx.x < 4) {
            unsigned* theirs = p.flags[threadIdx.x] + blockIdx.x * 4 + rank;
            __hip_atomic_store(theirs, turn, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
            const unsigned* own = p.flags[rank] + blockIdx.x * 4 + threadIdx.x;
            while (__hip_atomic_load(own, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM) < turn) {
                __builtin_amdgcn_s_sleep(1);
            }
        }
        __syncthreads();
    }
    extern "C" __global__ void all_reduce(Peers p, float* out, int n, int rank, int turn) {
        meet(p, rank, 2 * turn + 1);
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
            float sum = 0;
            for (int r = 0; r < 4; ++r) sum += __builtin_nontemporal_load(p.data[r] + i);
            out[i] = sum;
        }
        __threadfence_system();
        meet(p, rank, 2 * turn + 2);
    }"#;

#[test]
fn ranks_that_read_each_other_meet_in_their_kernels() {
    let _turn = setup();
    const N: usize = 1000;
    const TURNS: i32 = 5;
    let on = |rank: usize| ok(hipSetDevice(rank as i32));
    let data: Vec<Buffer> = (0..DEVICES)
        .map(|rank| {
            on(rank);
            (0..DEVICES).for_each(|peer| {
                if peer != rank {
                    ok(hipDeviceEnablePeerAccess(peer as i32, 0));
                }
            });
            Buffer::from_slice(&vec![(rank + 1) as f32; N])
        })
        .collect();
    let flags: Vec<Buffer> = (0..DEVICES)
        .map(|rank| {
            on(rank);
            Buffer::from_slice(&[0u32; 3 * 4])
        })
        .collect();
    let addresses = data.iter().chain(&flags).map(|b| b.ptr as usize);
    let peers: Vec<u8> = addresses.flat_map(usize::to_ne_bytes).collect();
    std::thread::scope(|scope| {
        for rank in 0..DEVICES {
            let peers = &peers;
            scope.spawn(move || {
                ok(hipSetDevice(rank as i32));
                let (module, out) = (Module::new(ALL_REDUCE), Buffer::new(4 * N));
                for turn in 0..TURNS {
                    let mut args = [
                        Arg::Bytes(peers.clone()),
                        out.arg(),
                        Arg::I32(N as i32),
                        Arg::I32(rank as i32),
                        Arg::I32(turn),
                    ];
                    module.launch("all_reduce", 3, 256, 0, &mut args);
                    assert_eq!(out.to_vec::<f32>(), vec![10f32; N], "rank {rank}");
                }
            });
        }
    });
    assert_eq!(take_reports(), Vec::<String>::new());
    guards_intact();
}

#[test]
fn a_device_goes_on_while_kernels_of_another_hold_all_helpers() {
    let _turn = setup();
    const SOURCE: &str = r#"
        extern "C" __global__ void wait(const int* flag) {
            while (!__hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM)) {}
        }
        extern "C" __global__ void count(int* n) { atomicAdd(n, 1); }
        extern "C" __global__ void set(int* flag) { __atomic_store_n(flag, 1, __ATOMIC_RELEASE); }"#;
    ok(hipSetDevice(0));
    // Pinned memory is every device's.
    let mut flag = null_mut();
    ok(unsafe { hipHostMalloc(&mut flag, 4, 0) });
    let (flag, both) = (flag as usize, Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ok(hipSetDevice(0));
            let module = Module::new(SOURCE);
            both.wait();
            module.launch("wait", 64, 256, 0, &mut [Arg::Pointer(flag as _)]);
        });
        ok(hipSetDevice(1));
        let (module, n) = (Module::new(SOURCE), Buffer::from_slice(&[0i32]));
        both.wait();
        for _ in 0..20 {
            module.launch("count", 64, 256, 0, &mut [n.arg()]);
        }
        assert_eq!(n.to_vec::<i32>(), [20 * 64 * 256]);
        module.launch("set", 1, 1, 0, &mut [Arg::Pointer(flag as _)]);
    });
    ok(unsafe { hipHostFree(flag as _) });
}

#[test]
fn blocks_that_are_resident_at_once_may_wait_for_each_other() {
    let _turn = setup();
    ok(hipSetDevice(0));
    let module = Module::new(
        r#"
        extern "C" __global__ void grid_barrier(unsigned* arrived, int* before, int* sum) {
            __shared__ int own;
            if (threadIdx.x == 0) {
                own = before[blockIdx.x] = blockIdx.x + 1;
                __hip_atomic_fetch_add(arrived, 1u, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_AGENT);
                while (__hip_atomic_load(arrived, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_AGENT) < gridDim.x) {
                    __builtin_amdgcn_s_sleep(2);
                }
            }
            __syncthreads();
            int s = 0;
            for (int b = 0; b < gridDim.x; ++b) s += before[b];
            if (threadIdx.x == 5) sum[blockIdx.x] = s * (own == blockIdx.x + 1);
        }"#,
    );
    // 32 blocks of 64 threads, 8 of 256.
    for (grid, block) in [(32, 64), (8, 256)] {
        let (arrived, before) = (Buffer::from_slice(&[0u32]), Buffer::new(4 * grid));
        let sum = Buffer::new(4 * grid);
        let mut args = [arrived.arg(), before.arg(), sum.arg()];
        module.launch("grid_barrier", grid as u32, block, 0, &mut args);
        let expected = (grid * (grid + 1) / 2) as i32;
        assert_eq!(sum.to_vec::<i32>(), vec![expected; grid]);
    }
}

#[test]
fn lanes_that_sleep_take_part_in_what_their_wave_does_next() {
    let _turn = setup();
    ok(hipSetDevice(1));
    let module = Module::new(
        r#"
        extern "C" __global__ void chain(int* flags, int* out) {
            // Every lane waits for the next one, the last for nobody.
            while (threadIdx.x < 31 && !__hip_atomic_load(flags + threadIdx.x + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP)) {
                __builtin_amdgcn_s_sleep(1);
            }
            __hip_atomic_store(flags + threadIdx.x, 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);
            out[threadIdx.x] = __shfl((int)threadIdx.x, 31 - threadIdx.x);
        }"#,
    );
    let (flags, out) = (Buffer::from_slice(&[0i32; 32]), Buffer::new(4 * 32));
    module.launch("chain", 1, 32, 0, &mut [flags.arg(), out.arg()]);
    assert_eq!(out.to_vec::<i32>(), (0..32).rev().collect::<Vec<i32>>());
}

#[test]
fn clocks_advance() {
    let _turn = setup();
    ok(hipSetDevice(0));
    let module = Module::new(
        r#"
        extern "C" __global__ void clocks(long long* ticks) {
            const long long start = clock64(), wall = wall_clock64();
            while (wall_clock64() - wall < 10000) {}  // 100 us of 100 MHz
            ticks[0] = clock64() - start;
            ticks[1] = __builtin_readcyclecounter() > 0 && __builtin_amdgcn_s_memtime() > 0;
        }"#,
    );
    let ticks = Buffer::new(16);
    module.launch("clocks", 1, 1, 0, &mut [ticks.arg()]);
    let ticks = ticks.to_vec::<i64>();
    assert!(ticks[0] >= 199_000 && ticks[1] == 1, "{ticks:?}");
}

#[test]
fn atomics_of_every_scope_compute() {
    let _turn = setup();
    ok(hipSetDevice(0));
    let module = Module::new(
        r#"
        #define SYSTEM __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM
        extern "C" __global__ void atomics(int* i, float* f) {
            __hip_atomic_fetch_add(i, 3, SYSTEM);
            __hip_atomic_fetch_max(i + 1, (int)threadIdx.x, SYSTEM);
            __hip_atomic_fetch_or(i + 2, 1 << threadIdx.x % 8, SYSTEM);
            __hip_atomic_fetch_add(f, 0.5f, SYSTEM);
            atomicAdd_system(f + 1, 2.0f);
            if (threadIdx.x == 0) {
                int expected = 7;
                const bool swapped = __hip_atomic_compare_exchange_strong(
                    i + 3, &expected, 9, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
                i[4] = __hip_atomic_exchange(i + 3, swapped ? 11 : 0, SYSTEM);
            }
            __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");
            __builtin_nontemporal_store(5.0f, f + 2);
        }"#,
    );
    let i = Buffer::from_slice(&[0i32, 0, 0, 7, 0]);
    let f = Buffer::from_slice(&[0f32; 3]);
    module.launch("atomics", 1, 100, 0, &mut [i.arg(), f.arg()]);
    assert_eq!(i.to_vec::<i32>(), [300, 99, 255, 11, 9]);
    assert_eq!(f.to_vec::<f32>(), [50.0, 200.0, 5.0]);
}

/// Runs one of the helpers below in a process of its own with a limit of a fifth of a second.
fn run_limited(helper: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", helper, "--include-ignored", "--nocapture"])
        .env("HIP_SIM_SPIN_LIMIT", "0.2")
        .output()
        .unwrap()
}

const FOREVER: &str = r#"
    extern "C" __global__ void sleeps(const int* flag) {
        while (!*(const volatile int*)flag) __builtin_amdgcn_s_sleep(8);
    }
    extern "C" __global__ void spins(const int* flag) {
        while (!*(const volatile int*)flag) {}
    }"#;

#[test]
fn a_kernel_that_sleeps_forever_is_a_finding() {
    let output = run_limited("sleeps_forever");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        log.contains("hip-sim: kernel sleeps: block (0,0,0) can never end")
            && log.contains("HIP_SIM_SPIN_LIMIT"),
        "{log}"
    );
    assert!(output.status.success(), "{log}");
}

#[test]
#[ignore = "helper process of the test above"]
fn sleeps_forever() {
    if std::env::var_os("HIP_SIM_SPIN_LIMIT").is_none() {
        return;
    }
    let (module, flag) = (Module::new(FOREVER), Buffer::from_slice(&[0i32]));
    let status = module.try_launch("sleeps", 1, 64, 0, &mut [flag.arg()]);
    assert_eq!((status, hipDeviceSynchronize()), (719, 0));
}

#[test]
fn a_kernel_that_never_comes_back_ends_the_process_with_its_name() {
    let output = run_limited("spins_forever");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(
        log.contains("hip-sim: kernel spins: no block has ended for 200ms"),
        "{log}"
    );
    assert!(!output.status.success());
}

#[test]
#[ignore = "helper process of the test above"]
fn spins_forever() {
    if std::env::var_os("HIP_SIM_SPIN_LIMIT").is_some() {
        let (module, flag) = (Module::new(FOREVER), Buffer::from_slice(&[0i32]));
        module.try_launch("spins", 1, 1, 0, &mut [flag.arg()]);
    }
}
