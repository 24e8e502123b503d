// CUDA's dialect on top of device.h: what nvcc gives device code without an include, and what it includes everywhere
// (cuda_fp16.h, cuda_bf16.h, cuda_fp8.h, <cstdint>, <cmath>, <type_traits>). docs/rocm-port/shim.md says what differs.
//
//     #include "port/cuda.h"
//     PORT_BEGIN
//     … CUDA text, byte for byte …
//     extern "C" PORT_KERNEL(256) void rocm_scale_f32(port::argument<0, &scale<float>> a0) { scale<float>(a0); }
//     PORT_END
//
// Three compilers read this: clang for AMD without any header, hiprtc, which has declared HIP's names before, and the C++
// compiler of the simulator. All that CUDA has at global scope is therefore declared in namespace cuda_port, and so is the
// text between PORT_BEGIN and PORT_END: what is found there hides hiprtc's names, and overloads of the text join those of
// the shim, as in CUDA. PORT_CUDA_ARCH, defined before the include, is what __CUDA_ARCH__ shall be (800 without).
#ifndef CANDLE_ROCM_PORT_CUDA_H
#define CANDLE_ROCM_PORT_CUDA_H

// In a namespace of the shim's own, so that its names, and what its using-directive brings, are none of the text's.
namespace cuda_port {
namespace port {
namespace base {
#include "device.h"
namespace found = device;
}  // namespace base
namespace device = base::found;
}  // namespace port
}  // namespace cuda_port

#include "dialect.h"
#include "standard.h"
#include "vectors.h"
#include "bits.h"
#include "functions.h"
#include "rounding.h"
#include "warp.h"
#include "atomic.h"
#include "float16.h"
#include "float8.h"
#include "memory.h"

#endif
