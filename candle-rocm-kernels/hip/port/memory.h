// Loads and stores with hints, kinds of memory, clocks, and what ends or tells something. Included by cuda.h.
#ifndef CANDLE_ROCM_PORT_MEMORY_H
#define CANDLE_ROCM_PORT_MEMORY_H

namespace cuda_port {

// Hints about caches that CUDA's have and these do not.
#define PORT_LOAD(name) \
    template <typename T> PORT_FN T name(const T* p) { return *p; }
#define PORT_STORE(name) \
    template <typename T> PORT_FN void name(T* p, std::type_identity_t<T> v) { *p = v; }
PORT_LOAD(__ldg)
PORT_LOAD(__ldca)
PORT_LOAD(__ldcs)
PORT_LOAD(__ldlu)
PORT_STORE(__stwb)
PORT_STORE(__stcs)
#undef PORT_LOAD
#undef PORT_STORE
// Past the first cache: what others wrote is seen, and what is written can be seen.
#define PORT_LOAD(name) \
    template <typename T> PORT_FN T name(const T* p) { return port::load_past<port::DEVICE>(p); }
#define PORT_STORE(name) \
    template <typename T> PORT_FN void name(T* p, std::type_identity_t<T> v) { port::store_past<port::DEVICE, T>(p, v); }
namespace port {
template <typename T> constexpr unsigned word_bytes() { return alignof(T) >= 8 && sizeof(T) % 8 == 0 ? 8 : alignof(T) >= 4 && sizeof(T) % 4 == 0 ? 4 : 1; }
template <typename T, unsigned BYTES> struct words_of {
    typename word_of<BYTES>::type w[sizeof(T) / BYTES];
};
template <scope S, typename T> PORT_FN T load_past(const T* p) {
    constexpr unsigned BYTES = word_bytes<T>();
    words_of<T, BYTES> words;
    for (unsigned i = 0; i < sizeof(T) / BYTES; ++i) {
        const auto at = (typename word_of<BYTES>::type*)p + i;
        // Only words have builtins.
        if constexpr (BYTES == 1) {
            words.w[i] = *(const volatile unsigned char*)at;
        } else {
            words.w[i] = word_load<S>(at);
        }
    }
    return __builtin_bit_cast(T, words);
}
template <scope S, typename T> PORT_FN void store_past(T* p, T v) {
    constexpr unsigned BYTES = word_bytes<T>();
    const auto words = __builtin_bit_cast(words_of<T, BYTES>, v);
    for (unsigned i = 0; i < sizeof(T) / BYTES; ++i) {
        const auto at = (typename word_of<BYTES>::type*)p + i;
        if constexpr (BYTES == 1) {
            *(volatile unsigned char*)at = words.w[i];
        } else {
            word_store<S>(at, words.w[i]);
        }
    }
}
}  // namespace port
PORT_LOAD(__ldcg)
PORT_LOAD(__ldcv)
PORT_STORE(__stcg)
PORT_STORE(__stwt)
#undef PORT_LOAD
#undef PORT_STORE

// An address of shared memory as the 32 bits that PTX takes, and back: port/ptx.h has what takes them.
#if defined(__HIP_SIM__)
namespace port {
// The dynamic part and the static variables lie apart on the host: each has a place of its own in the 32 bits.
constexpr unsigned STATIC_SHARED = 0x40000000u;
inline char* static_shared() {
    static thread_local char anchor;
    return &anchor;
}
}  // namespace port
PORT_FN size_t __cvta_generic_to_shared(const void* p) {
    const unsigned long offset = (unsigned long)p - (unsigned long)hip_sim_dynamic_shared();
    return offset < (1ul << 24) ? offset : (unsigned)(port::STATIC_SHARED + (unsigned)((const char*)p - port::static_shared()));
}
PORT_FN void* __cvta_shared_to_generic(size_t at) {
    const unsigned offset = (unsigned)at;
    return offset < (1u << 24) ? (char*)hip_sim_dynamic_shared() + offset : port::static_shared() + (long)(int)(offset - port::STATIC_SHARED);
}
#else
PORT_FN size_t __cvta_generic_to_shared(const void* p) {
    return (size_t)(unsigned)(unsigned long long)(__attribute__((address_space(3))) const char*)(const char*)p;
}
PORT_FN void* __cvta_shared_to_generic(size_t at) { return (void*)(char*)(__attribute__((address_space(3))) char*)(unsigned)at; }
#endif
PORT_FN size_t __cvta_generic_to_global(const void* p) { return (size_t)p; }
PORT_FN void* __cvta_global_to_generic(size_t p) { return (void*)p; }
#if defined(__HIP_SIM__)
PORT_FN unsigned __isShared(const void* p) {
    const unsigned long offset = (unsigned long)p - hip_sim_runtime_slot->memory;
    return offset >= hip_sim_runtime_slot->memory_bytes;
}
PORT_FN unsigned __isGlobal(const void* p) { return !__isShared(p); }
PORT_FN unsigned __isLocal(const void*) { return 0; }
#else
PORT_FN unsigned __isShared(const void* p) { return __builtin_amdgcn_is_shared((__attribute__((address_space(0))) const void*)p); }
PORT_FN unsigned __isLocal(const void* p) { return __builtin_amdgcn_is_private((__attribute__((address_space(0))) const void*)p); }
PORT_FN unsigned __isGlobal(const void* p) { return !__isShared(p) && !__isLocal(p); }
#endif
PORT_FN unsigned __isConstant(const void*) { return 0; }

// Clocks count, at rates of the GPU's own.
PORT_FN long long clock64() { return (long long)__builtin_readcyclecounter(); }
PORT_FN long clock() { return (long)__builtin_readcyclecounter(); }
namespace port {
// Of the clock of 100 MHz.
PORT_FN unsigned long long nanoseconds() {
#if !defined(__HIP_SIM__) && (defined(__GFX11__) || defined(__GFX12__))
    return (unsigned long long)__builtin_amdgcn_s_sendmsg_rtnl(0x83) * 10ull;
#else
    return (unsigned long long)__builtin_amdgcn_s_memrealtime() * 10ull;
#endif
}
}  // namespace port
PORT_FN void __nanosleep(unsigned) { __builtin_amdgcn_s_sleep(1); }

// Accepted; says nothing, as a GPU would have to ask the host to.
template <typename... A> PORT_FN int printf(const char*, A...) { return 0; }
PORT_FN void __brkpt() {}
PORT_FN void __prof_trigger(int) {}

PORT_FN void* memcpy(void* to, const void* from, size_t n) {
    for (size_t i = 0; i < n; ++i) ((char*)to)[i] = ((const char*)from)[i];
    return to;
}
PORT_FN void* memset(void* to, int v, size_t n) {
    for (size_t i = 0; i < n; ++i) ((char*)to)[i] = (char)v;
    return to;
}
namespace std {
using cuda_port::memcpy;
using cuda_port::memset;
}  // namespace std

}  // namespace cuda_port

#undef __builtin_assume
#undef __nv_assume
#if defined(__HIP_SIM__)
#define __builtin_assume(truth) ((void)0)
#endif
#define __assume(truth) __builtin_assume(truth)
#define __nv_assume(truth) __builtin_assume(truth)

#endif
