//! `HIP_SIM_SEED`: the order of threads changes, results of correct kernels do not.

mod common;

use common::*;
use hip_sim::hip::*;

#[test]
fn a_seed_shuffles_threads_but_not_results() {
    std::env::set_var("HIP_SIM_SEED", "7");
    ok(hipInit(0));
    let module = Module::new(
        r#"
        extern "C" __global__ void order(int* ticket, int* turns) { turns[threadIdx.x] = atomicAdd(ticket, 1); }
        extern "C" __global__ void scan(int* x) {
            __shared__ int s[256];
            int t = threadIdx.x;
            s[t] = x[t];
            __syncthreads();
            for (int d = 1; d < 256; d *= 2) {
                int v = t >= d ? s[t - d] : 0;
                __syncthreads();
                s[t] += v;
                __syncthreads();
            }
            x[t] = s[t];
        }
        extern "C" __global__ void racy(int* x) { x[0] = threadIdx.x; }"#,
    );
    let (ticket, turns) = (Buffer::from_slice(&[0i32]), Buffer::new(4 * 256));
    module.launch("order", 1, 256, 0, &mut [ticket.arg(), turns.arg()]);
    let turns = turns.to_vec::<i32>();
    assert_ne!(turns, (0..256).collect::<Vec<i32>>());
    let mut sorted = turns.clone();
    sorted.sort();
    assert_eq!(sorted, (0..256).collect::<Vec<i32>>());
    let x = Buffer::from_slice(&[1i32; 256]);
    module.launch("scan", 1, 256, 0, &mut [x.arg()]);
    assert_eq!(x.to_vec::<i32>(), (1..=256).collect::<Vec<i32>>());
    // What depends on the order shows: the last thread is not the last to write.
    let x = Buffer::from_slice(&[0i32]);
    module.launch("racy", 1, 256, 0, &mut [x.arg()]);
    assert_ne!(x.to_vec::<i32>(), [255]);
}
