// Atomic functions of global and shared memory, and fences. Included by cuda.h.
//
// Relaxed, as CUDA's are: of the device, with `_block` of the block, with `_system` of all devices. Types that no
// instruction takes go through a loop of comparisons. Each gives what was there before.
#ifndef CANDLE_ROCM_PORT_ATOMIC_H
#define CANDLE_ROCM_PORT_ATOMIC_H

namespace cuda_port {
namespace port {

enum scope { BLOCK, DEVICE, SYSTEM };

// The simulator takes threads that see the same again and again for ones that wait: it lets others run.
template <typename T> PORT_FN T waited(const void* at, T seen) {
#if defined(__HIP_SIM__)
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &seen, sizeof(T));
    hip_sim_polled(at, bits);
#endif
    return seen;
}

// An operation of a scope, which the builtins want as a constant.
#define PORT_SCOPED(call)                                        \
    if constexpr (S == BLOCK) {                                  \
        return call(__HIP_MEMORY_SCOPE_WORKGROUP);               \
    } else if constexpr (S == DEVICE) {                          \
        return call(__HIP_MEMORY_SCOPE_AGENT);                   \
    } else {                                                     \
        return call(__HIP_MEMORY_SCOPE_SYSTEM);                  \
    }
template <scope S, typename W> PORT_FN W word_load(W* p) {
#define PORT_CALL(where) __hip_atomic_load(p, __ATOMIC_RELAXED, where)
    PORT_SCOPED(PORT_CALL)
#undef PORT_CALL
}
template <scope S, typename W> PORT_FN void word_store(W* p, W v) {
#define PORT_CALL(where) __hip_atomic_store(p, v, __ATOMIC_RELAXED, where)
    PORT_SCOPED(PORT_CALL)
#undef PORT_CALL
}
template <scope S, typename W> PORT_FN W word_cas(W* p, W compare, W v) {
#define PORT_CALL(where) (__hip_atomic_compare_exchange_strong(p, &compare, v, __ATOMIC_RELAXED, __ATOMIC_RELAXED, where), compare)
    PORT_SCOPED(PORT_CALL)
#undef PORT_CALL
}
#define PORT_FETCH(name)                                          \
    template <scope S, typename W> PORT_FN W word_##name(W* p, W v) {        \
        PORT_SCOPED(PORT_CALL_##name)                                        \
    }
#define PORT_CALL_add(where) __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, where)
#define PORT_CALL_min(where) __hip_atomic_fetch_min(p, v, __ATOMIC_RELAXED, where)
#define PORT_CALL_max(where) __hip_atomic_fetch_max(p, v, __ATOMIC_RELAXED, where)
#define PORT_CALL_and(where) __hip_atomic_fetch_and(p, v, __ATOMIC_RELAXED, where)
#define PORT_CALL_or(where) __hip_atomic_fetch_or(p, v, __ATOMIC_RELAXED, where)
#define PORT_CALL_xor(where) __hip_atomic_fetch_xor(p, v, __ATOMIC_RELAXED, where)
#define PORT_CALL_exch(where) __hip_atomic_exchange(p, v, __ATOMIC_RELAXED, where)
PORT_FETCH(add)
PORT_FETCH(min)
PORT_FETCH(max)
PORT_FETCH(and)
PORT_FETCH(or)
PORT_FETCH(xor)
PORT_FETCH(exch)
#undef PORT_FETCH
#undef PORT_CALL_add
#undef PORT_CALL_min
#undef PORT_CALL_max
#undef PORT_CALL_and
#undef PORT_CALL_or
#undef PORT_CALL_xor
#undef PORT_CALL_exch
#undef PORT_SCOPED

template <unsigned BYTES> struct word_of;
template <> struct word_of<1> { using type = unsigned char; };
template <> struct word_of<4> { using type = unsigned; };
template <> struct word_of<8> { using type = unsigned long long; };

// Replaces what is at p by f of it. What has two bytes is a part of an aligned word.
template <scope S, typename T, typename F> PORT_FN T update(T* p, F f) {
    if constexpr (sizeof(T) == 2) {
        const unsigned long long address = (unsigned long long)p;
        const unsigned shift = (unsigned)(address & 2u) * 8u;
#if defined(__HIP_SIM__)
        // Of the host alone, so that the simulator does not take the neighbour for accessed.
        unsigned short* const word = (unsigned short*)p;
        unsigned short seen = __atomic_load_n(word, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(word, &seen, __builtin_bit_cast(unsigned short, f(__builtin_bit_cast(T, seen))), true, __ATOMIC_RELAXED,
                                            __ATOMIC_RELAXED)) {
        }
        (void)shift;
        return __builtin_bit_cast(T, seen);
#else
        unsigned* const word = (unsigned*)(address & ~3ull);
        for (unsigned seen = word_load<S>(word);;) {
            const T old = __builtin_bit_cast(T, (unsigned short)(seen >> shift));
            const unsigned next = (seen & ~(0xffffu << shift)) | (unsigned)__builtin_bit_cast(unsigned short, f(old)) << shift;
            const unsigned before = word_cas<S>(word, seen, next);
            if (before == seen) return old;
            seen = before;
        }
#endif
    } else {
        using W = typename word_of<sizeof(T)>::type;
        for (W seen = word_load<S>((W*)p);;) {
            const T old = __builtin_bit_cast(T, seen);
            const W before = word_cas<S>((W*)p, seen, __builtin_bit_cast(W, f(old)));
            if (before == seen) return old;
            seen = before;
        }
    }
}

}  // namespace port

#define PORT_ATOMIC(suffix, S)                                                                                                      \
    PORT_INTEGER_ATOMICS(suffix, S, int)                                                                                            \
    PORT_INTEGER_ATOMICS(suffix, S, unsigned)                                                                                       \
    PORT_INTEGER_ATOMICS(suffix, S, long)                                                                                           \
    PORT_INTEGER_ATOMICS(suffix, S, unsigned long)                                                                                  \
    PORT_INTEGER_ATOMICS(suffix, S, long long)                                                                                      \
    PORT_INTEGER_ATOMICS(suffix, S, unsigned long long)                                                                             \
    PORT_FN float atomicAdd##suffix(float* p, float v) { return port::word_add<port::S>(p, v); }                                     \
    PORT_FN double atomicAdd##suffix(double* p, double v) { return port::word_add<port::S>(p, v); }                                  \
    PORT_FN float atomicExch##suffix(float* p, float v) {                                                                           \
        return __uint_as_float(port::waited(p, port::word_exch<port::S>((unsigned*)p, __float_as_uint(v))));                         \
    }                                                                                                                               \
    PORT_FN double atomicExch##suffix(double* p, double v) {                                                                        \
        return __longlong_as_double(port::waited(p, port::word_exch<port::S>((long long*)p, __double_as_longlong(v))));              \
    }                                                                                                                               \
    PORT_FN unsigned short atomicCAS##suffix(unsigned short* p, unsigned short compare, unsigned short v) {                         \
        return port::waited(p, port::update<port::S>(p, [=](unsigned short old) { return old == compare ? v : old; }));              \
    }                                                                                                                               \
    PORT_FN unsigned atomicInc##suffix(unsigned* p, unsigned limit) {                                                               \
        return port::waited(p, port::update<port::S>(p, [=](unsigned old) { return old >= limit ? 0u : old + 1u; }));                \
    }                                                                                                                               \
    PORT_FN unsigned atomicDec##suffix(unsigned* p, unsigned limit) {                                                               \
        return port::waited(p, port::update<port::S>(p, [=](unsigned old) { return old == 0u || old > limit ? limit : old - 1u; })); \
    }
#define PORT_INTEGER_ATOMICS(suffix, S, T)                                                                                          \
    PORT_FN T atomicAdd##suffix(T* p, T v) { return port::waited(p, port::word_add<port::S>(p, v)); }                                \
    PORT_FN T atomicSub##suffix(T* p, T v) { return port::waited(p, port::word_add<port::S>(p, (T)(0 - (std::make_unsigned_t<T>)v))); } \
    PORT_FN T atomicMin##suffix(T* p, T v) { return port::waited(p, port::word_min<port::S>(p, v)); }                                \
    PORT_FN T atomicMax##suffix(T* p, T v) { return port::waited(p, port::word_max<port::S>(p, v)); }                                \
    PORT_FN T atomicAnd##suffix(T* p, T v) { return port::waited(p, port::word_and<port::S>(p, v)); }                                \
    PORT_FN T atomicOr##suffix(T* p, T v) { return port::waited(p, port::word_or<port::S>(p, v)); }                                  \
    PORT_FN T atomicXor##suffix(T* p, T v) { return port::waited(p, port::word_xor<port::S>(p, v)); }                                \
    PORT_FN T atomicExch##suffix(T* p, T v) { return port::waited(p, port::word_exch<port::S>(p, v)); }                              \
    PORT_FN T atomicCAS##suffix(T* p, T compare, T v) { return port::waited(p, port::word_cas<port::S>(p, compare, v)); }
PORT_ATOMIC(, DEVICE)
PORT_ATOMIC(_block, BLOCK)
PORT_ATOMIC(_system, SYSTEM)
#undef PORT_INTEGER_ATOMICS
#undef PORT_ATOMIC

PORT_FN void __threadfence_block() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"); }
PORT_FN void __threadfence() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent"); }
PORT_FN void __threadfence_system() { __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, ""); }

}  // namespace cuda_port

#endif
