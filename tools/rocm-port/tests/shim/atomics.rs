//! Atomic functions: what many threads leave behind, and what each of them saw.

use crate::units::{check, unit};
use rocm_port::check::{Case, DType, Fill, Tolerance};

const TEXT: &str = r#"
__global__ void integers(int* i, unsigned* u, unsigned long long* l, unsigned* seen) {
    const unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
    // What was there before is a number that no other thread got.
    seen[atomicAdd(&u[0], 1u)] = 1u;
    atomicSub(&i[0], (int)t);
    atomicMin(&i[1], 5 - (int)t);
    atomicMax(&i[2], (int)t - 5);
    atomicMin(&u[1], 1000u - t);
    atomicMax(&u[2], 7u * t);
    atomicAnd(&u[3], ~(1u << (t & 15)));
    atomicOr(&u[4], 1u << (t & 31));
    atomicXor(&u[5], t * 2654435761u);
    atomicInc(&u[6], 9u);
    atomicDec(&u[7], 9u);
    atomicAdd(&l[0], 0x100000001ull * t);
    atomicMax(&l[1], (unsigned long long)t << 33);
    atomicMin((long long*)&l[2], -(long long)t);
    atomicAdd_block(&u[8], 1u);
    atomicAdd_system(&u[9], t);
    // A lock around what is no atomic.
    while (atomicCAS(&u[10], 0u, 1u) != 0u) {
    }
    __threadfence();
    *(volatile unsigned*)&u[11] = *(volatile unsigned*)&u[11] + t;
    __threadfence();
    atomicExch(&u[10], 0u);
}
__global__ void floats(float* f, double* d, __half* h, __half2* h2, __nv_bfloat16* b, unsigned short* s, unsigned* shared_sum) {
    __shared__ float total;
    __shared__ unsigned least;
    const unsigned t = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0) total = 0.0f, least = ~0u;
    __syncthreads();
    atomicAdd(&total, (float)t);
    atomicMin(&least, t);
    atomicAdd(&f[0], 0.5f);
    atomicAdd(&d[0], 0.25);
    // Both halves of a word, by different threads.
    atomicAdd(&h[t & 1], __float2half(1.0f));
    atomicAdd(h2, __floats2half2_rn(1.0f, 2.0f));
    atomicAdd(&b[t & 1], __float2bfloat16(1.0f));
    unsigned short old = s[1], assumed;
    do {
        assumed = old;
        old = atomicCAS(&s[1], assumed, (unsigned short)(assumed + 3));
    } while (old != assumed);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&shared_sum[0], (unsigned)total + least);
}
"#;

#[test]
fn atomics_of_all_types() {
    let n = 128u32;
    let zeros = |name: &'static str, dtype, length: usize| (name, dtype, length);
    let mut integers = Case::new("rocm_integers").grid(2).block(64);
    for (name, dtype, length) in [
        zeros("i", DType::I32, 3),
        zeros("u", DType::U32, 12),
        zeros("l", DType::U64, 3),
        zeros("seen", DType::U32, 128),
    ] {
        let fill = match name {
            "u" => Fill::values([0, 1000, 0, 0xffff_ffff, 0, 0, 0, 0, 0, 0, 0, 0i64]),
            _ => Fill::Zeros,
        };
        integers = integers.inout(name, dtype, length, fill);
    }
    let integers = integers.reference(move |io| {
        let all = || 0..n;
        let sum: u32 = all().sum();
        io.set_integers("i", [-(sum as i32), 5 - 127, 127 - 5]);
        let xor = all().fold(0, |x, t| x ^ t.wrapping_mul(2_654_435_761));
        // Up to 9 and around; down from 0 goes to 9.
        let (up, down) = (n % 10, (10 - n % 10) % 10);
        let u = [
            n,
            1000 - 127,
            7 * 127,
            0xffff_0000,
            !0,
            xor,
            up,
            down,
            n,
            sum,
            0,
            sum,
        ];
        io.set_integers("u", u);
        let least = (-127i64) as u64;
        io.set_integers("l", [0x1_0000_0001 * u64::from(sum), 127 << 33, least]);
        io.set_integers("seen", all().map(|_| 1));
    });
    let mut floats = Case::new("rocm_floats").grid(2).block(64);
    for (name, dtype, length) in [
        zeros("f", DType::F32, 1),
        zeros("d", DType::F64, 1),
        zeros("h", DType::F16, 2),
        zeros("h2", DType::F16, 2),
        zeros("b", DType::Bf16, 2),
        zeros("s", DType::U16, 2),
        zeros("sum", DType::U32, 1),
    ] {
        floats = floats.inout(name, dtype, length, Fill::Zeros);
        floats = floats.tolerance(name, Tolerance::EXACT);
    }
    let floats = floats.reference(move |io| {
        io.set("f", [64.0]);
        io.set("d", [32.0]);
        io.set("h", [64.0, 64.0]);
        io.set("h2", [128.0, 256.0]);
        io.set("b", [64.0, 64.0]);
        io.set_integers("s", [0, 3 * 128]);
        io.set_integers("sum", [(0..n).sum::<u32>() + 64]);
    });
    let unit = unit(TEXT, &[("integers", 4), ("floats", 7)]);
    check(&unit, &["gfx942", "gfx1201"], 2, [integers, floats]);
}
