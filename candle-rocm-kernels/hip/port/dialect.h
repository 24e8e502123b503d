// The words of the dialect, where a thread is, and what a kernel's entry is made of. Included by cuda.h.
#ifndef CANDLE_ROCM_PORT_DIALECT_H
#define CANDLE_ROCM_PORT_DIALECT_H

// Macros of device.h that a text might have as names of its own. PORT_FN begins the functions of the shim.
#define PORT_FN DEVICE_FN
#undef PART
#undef ROLLED
#undef CONTRACT
#undef BATCHING_BLOCK
#undef MAX_BLOCK
#undef MAX_BLOCK_OF

// The text is CUDA's, not HIP's: it is not to take branches that are written for hipcc.
#undef __HIP__
#undef __HIPCC__
#undef __HIP_PLATFORM_AMD__
#undef __HIP_PLATFORM_HCC__
#undef USE_ROCM

#undef __CUDA_ARCH__
#undef __CUDACC__
#undef __NVCC__
#undef __CUDACC_VER_MAJOR__
#undef __CUDACC_VER_MINOR__
#undef __CUDACC_VER_BUILD__
#undef CUDA_VERSION
#undef CUDART_VERSION
#ifdef PORT_CUDA_ARCH
#define __CUDA_ARCH__ PORT_CUDA_ARCH
#else
#define __CUDA_ARCH__ 800
#endif
#define __CUDACC__ 1
#define __NVCC__ 1
#define __CUDACC_VER_MAJOR__ 12
#define __CUDACC_VER_MINOR__ 4
#define __CUDACC_VER_BUILD__ 0
#define CUDA_VERSION 12040
#define CUDART_VERSION 12040
#define __CUDA_FP16_TYPES_EXIST__ 1
#define __CUDA_BF16_TYPES_EXIST__ 1
#define __CUDA_FP8_TYPES_EXIST__ 1

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __managed__
#undef __forceinline__
#undef __noinline__
#undef __inline__
#undef __launch_bounds__
#undef __maxnreg__
#undef __cluster_dims__
#undef __grid_constant__
#undef __align__
#undef __builtin_align__
#undef __restrict__
#undef __host_defined__
// A kernel of the text is a function that its entry calls, in whose registers it then lives: the entry says what the
// largest block is.
#if defined(__HIP_SIM__)
// As nvcc, which lets a text read memory as whatever it likes. (Clang wants an option: -fno-strict-aliasing.)
#pragma GCC optimize("no-strict-aliasing")
// g++ does not take alignas between other words of a declaration, where CUDA has it beside __shared__.
#define alignas(...) __attribute__((aligned(__VA_ARGS__)))
#define __device__
#define __shared__ __hip_sim_shared__
#define __constant__
#define __global__ inline
#define PORT_KERNEL(max_block) __hip_sim_global__ __hip_sim_launch_bounds__(max_block)
#else
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __global__ __attribute__((device, always_inline)) inline
#define PORT_KERNEL(max_block) __attribute__((global, amdgpu_flat_work_group_size(1, max_block)))
#endif
// There is no host side in a unit.
#define __host__
#define __managed__ __device__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __inline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __attribute__((aligned(n)))

// What stands before and after the text. (Behind it, so that the simulator finds the entries at global scope.)
#define PORT_BEGIN                \
    namespace cuda_port {}        \
    using namespace cuda_port;    \
    namespace cuda_port {
#define PORT_END }

namespace cuda_port {
namespace port {

// The type of parameter I of a kernel, given as an address: as an entry takes it, without `const`.
template <typename T> struct unqualified { using type = T; };
template <typename T> struct unqualified<const T> { using type = T; };
template <unsigned I, typename F> struct parameter;
template <typename R, typename First, typename... Rest> struct parameter<0, R (*)(First, Rest...)> { using type = typename unqualified<First>::type; };
template <unsigned I, typename R, typename First, typename... Rest>
struct parameter<I, R (*)(First, Rest...)> : parameter<I - 1, R (*)(Rest...)> {};
template <unsigned I, auto F> using argument = typename parameter<I, decltype(F)>::type;

struct index { unsigned x, y, z; };
#if defined(__HIP_SIM__)
PORT_FN index index_of(hip_sim_index i) { return {i.x, i.y, i.z}; }
PORT_FN index thread_index() { return index_of(hip_sim_current.thread.index); }
PORT_FN index block_index() { return index_of(hip_sim_current.block_idx); }
PORT_FN index block_size() { return index_of(hip_sim_current.block_dim); }
PORT_FN index grid_size() { return index_of(hip_sim_current.grid_dim); }
#else
PORT_FN index thread_index() { return {__builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z()}; }
PORT_FN index block_index() { return {__builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z()}; }
PORT_FN index block_size() { return {__builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(), __builtin_amdgcn_workgroup_size_z()}; }
// Launches are of whole blocks.
PORT_FN index grid_size() {
    return {__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(),
            __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z()};
}
#endif
// The thread's number in its block, by which warps are cut.
PORT_FN unsigned linear_thread() {
    const index t = thread_index(), n = block_size();
    return (t.z * n.y + t.y) * n.x + t.x;
}

}  // namespace port
}  // namespace cuda_port

// Macros also where HIP has objects: they hide those, and the simulator has macros, too.
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#undef warpSize
#define threadIdx (cuda_port::port::as_uint3(cuda_port::port::thread_index()))
#define blockIdx (cuda_port::port::as_uint3(cuda_port::port::block_index()))
#define blockDim (cuda_port::port::as_dim3(cuda_port::port::block_size()))
#define gridDim (cuda_port::port::as_dim3(cuda_port::port::grid_size()))

#endif
