// The kernels of kernels.rs: each needs something of the runtime.

typedef unsigned u32;
#define KERNEL extern "C" __attribute__((global))
#define DEVICE __attribute__((device))

// Scratch: an array that is indexed by a variable. Threads are counted by the hidden size of blocks.
KERNEL void scratch(u32 *out, u32 at) {
    volatile u32 local[64];
    u32 thread = __builtin_amdgcn_workgroup_id_x() * __builtin_amdgcn_workgroup_size_x() +
                 __builtin_amdgcn_workitem_id_x();
    for (u32 i = 0; i < 64; i++) local[i] = thread * 100 + i;
    out[thread] = local[at & 63];
}

// LDS whose size the launch says; a sum for each block of the second dimension.
KERNEL void lds(u32 *out) {
    extern __attribute__((shared)) u32 tile[];
    u32 thread = __builtin_amdgcn_workitem_id_x(), block = __builtin_amdgcn_workgroup_id_y();
    tile[thread] = thread + block;
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    if (thread != 0) return;
    u32 sum = 0;
    for (u32 i = 0; i < __builtin_amdgcn_workgroup_size_x(); i++) sum += tile[i];
    out[block] = sum;
}

// Order: a value that depends on how often it ran.
KERNEL void next(u32 *value) { *value = *value * 3 + 1; }

// Relocations: a variable that has the address of another.
DEVICE u32 table[4] = {5, 6, 7, 8};
DEVICE u32 *pointer = &table[2];
KERNEL void follow(u32 *out) { *out = *pointer; }
