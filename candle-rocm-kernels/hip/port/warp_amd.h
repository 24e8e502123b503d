// A warp's lanes on AMD: lanes that are not active have no part, as the hardware has it. Included by warp.h.
#ifndef CANDLE_ROCM_PORT_WARP_AMD_H
#define CANDLE_ROCM_PORT_WARP_AMD_H

namespace cuda_port {
namespace port {

// The lane in its warp, and the first lane of its warp in the wave.
PORT_FN unsigned lane() { return port::device::lane() & 31u; }
PORT_FN unsigned first_lane() { return port::device::WAVE == 64 ? port::device::lane() & 32u : 0u; }

// What lane `source` of the warp holds.
PORT_FN unsigned pull(unsigned, unsigned v, unsigned source) { return port::device::shfl(v, first_lane() | source); }
PORT_FN unsigned long long pull(unsigned, unsigned long long v, unsigned source) { return port::device::shfl((port::device::u64)v, first_lane() | source); }
// Of the lanes of the mask, those that are here and vote so.
PORT_FN unsigned votes(unsigned mask, bool v) { return (unsigned)(port::device::ballot(v) >> first_lane()) & mask; }
PORT_FN unsigned here(unsigned) { return votes(0xffffffffu, true); }
PORT_FN void meet(unsigned) {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
PORT_FN void barrier(unsigned) { port::device::barrier(); }

}  // namespace port
}  // namespace cuda_port

#endif
