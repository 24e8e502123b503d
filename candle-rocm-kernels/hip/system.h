// Words that other devices and the host write while a kernel runs, for each of the targets of device.h. Apart from it, so
// that other families' texts, and what caches have of them, do not depend on this.
#ifndef CANDLE_ROCM_SYSTEM_H
#define CANDLE_ROCM_SYSTEM_H

#include "device.h"

namespace device {

// Each load and store is whole. What was written before release_system by the thread, or before a barrier in front of it
// by others of its block, is there for whoever sees a word that is stored behind it, loads that, and then calls
// acquire_system.
DEVICE_FN u64 load_system(const u64* p);
DEVICE_FN void store_system(u64* p, u64 v);
DEVICE_FN void release_system();
DEVICE_FN void acquire_system();
// A clock that no power state changes, about 10 ns a tick; and a little time between two looks at a word.
DEVICE_FN u64 steady_clock();
DEVICE_FN void pause();

#if defined(__CUDACC__)

// Acquires by itself, which takes no longer and saves a fence.
DEVICE_FN u64 load_system(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.b64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
DEVICE_FN void store_system(u64* p, u64 v) { asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
DEVICE_FN void release_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
DEVICE_FN void acquire_system() {}
DEVICE_FN u64 steady_clock() {
    u64 nanoseconds;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(nanoseconds));
    return nanoseconds / 10;
}
DEVICE_FN void pause() {}

#else

// The simulator knows by these that a thread waits.
DEVICE_FN u64 load_system(const u64* p) { return __hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM); }
DEVICE_FN void store_system(u64* p, u64 v) { __hip_atomic_store(p, v, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM); }
DEVICE_FN void release_system() { __builtin_amdgcn_fence(__ATOMIC_RELEASE, ""); }
DEVICE_FN void acquire_system() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, ""); }
DEVICE_FN void pause() { __builtin_amdgcn_s_sleep(1); }
// 100 MHz on all but a few integrated GPUs.
DEVICE_FN u64 steady_clock() {
#if !defined(__HIP_SIM__) && (defined(__GFX11__) || defined(__GFX12__))
    // MSG_RTN_GET_REALTIME
    return __builtin_amdgcn_s_sendmsg_rtnl(0x83);
#else
    return __builtin_amdgcn_s_memrealtime();
#endif
}

#endif

}  // namespace device

#endif
