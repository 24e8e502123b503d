// Operands of PTX's instructions, and those that touch memory. Included by ptx.h.
#ifndef CANDLE_ROCM_PORT_PTX_MEMORY_H
#define CANDLE_ROCM_PORT_PTX_MEMORY_H

namespace cuda_port {
namespace ptx {

template <unsigned BYTES> struct bits;
template <> struct bits<1> { using type = unsigned char; };
template <> struct bits<2> { using type = unsigned short; };
template <> struct bits<4> { using type = unsigned; };
template <> struct bits<8> { using type = unsigned long long; };

// A register's bits as T; of another size, the number that it holds.
template <typename T, typename S> PORT_FN T as(S v) {
    if constexpr (sizeof(S) == sizeof(T)) {
        return __builtin_bit_cast(T, v);
    } else if constexpr (std::is_integral_v<T>) {
        return (T)v;
    } else {
        return __builtin_bit_cast(T, (typename bits<sizeof(T)>::type)v);
    }
}
// Into a register: the bits, with zeros above them if it has more.
template <typename D, typename T> PORT_FN void put(D& d, T v) {
    if constexpr (sizeof(D) == sizeof(T)) {
        d = __builtin_bit_cast(D, v);
    } else {
        const typename bits<sizeof(T)>::type raw = __builtin_bit_cast(typename bits<sizeof(T)>::type, v);
        d = __builtin_bit_cast(D, (typename bits<sizeof(D)>::type)raw);
    }
}
// Into a register that may be wider: with the number's sign.
template <typename D, typename T> PORT_FN void put_number(D& d, T v) {
    if constexpr (sizeof(D) == sizeof(T)) {
        put(d, v);
    } else if constexpr (std::is_signed_v<T>) {
        using S = std::make_signed_t<typename bits<sizeof(D)>::type>;
        put(d, (S)v);
    } else {
        put(d, (typename bits<sizeof(D)>::type)v);
    }
}

PORT_FN unsigned high_product(unsigned a, unsigned b) { return __umulhi(a, b); }
PORT_FN int high_product(int a, int b) { return __mulhi(a, b); }
PORT_FN unsigned long long high_product(unsigned long long a, unsigned long long b) { return __umul64hi(a, b); }
PORT_FN long long high_product(long long a, long long b) { return __mul64hi(a, b); }

// Of halves, and of their pairs.
template <port::scope S, typename T> PORT_FN T sum_atomically(T* p, T v) {
    if constexpr (std::is_arithmetic_v<T>) {
        return port::waited(p, port::word_add<S>(p, v));
    } else {
        return port::update<S>(p, [=](T old) { return old + v; });
    }
}
template <typename T, typename F> PORT_FN T each(T v, F f) {
    if constexpr (sizeof(T) == 2) {
        return f(v);
    } else {
        return T(f(v.x), f(v.y));
    }
}
PORT_FN __half half_least(__half a, __half b) { return __hmin(a, b); }
PORT_FN __half half_most(__half a, __half b) { return __hmax(a, b); }
PORT_FN __half half_fused(__half a, __half b, __half c) { return __hfma(a, b, c); }
PORT_FN __nv_bfloat16 half_least(__nv_bfloat16 a, __nv_bfloat16 b) { return __hmin(a, b); }
PORT_FN __nv_bfloat16 half_most(__nv_bfloat16 a, __nv_bfloat16 b) { return __hmax(a, b); }
PORT_FN __nv_bfloat16 half_fused(__nv_bfloat16 a, __nv_bfloat16 b, __nv_bfloat16 c) { return __hfma(a, b, c); }
template <typename T> PORT_FN T half_least(T a, T b) { return T(__hmin(a.x, b.x), __hmin(a.y, b.y)); }
template <typename T> PORT_FN T half_most(T a, T b) { return T(__hmax(a.x, b.x), __hmax(a.y, b.y)); }
template <typename T> PORT_FN T half_fused(T a, T b, T c) { return T(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }

// Addresses: pointers, and numbers that PTX takes for one; those of shared memory have 32 bits.
template <typename A> PORT_FN char* generic(A at) {
    if constexpr (std::is_pointer_v<A>) {
        return (char*)at;
    } else {
        return (char*)(unsigned long long)at;
    }
}
template <typename A> PORT_FN char* shared(A at) {
    if constexpr (std::is_pointer_v<A>) {
        return (char*)at;
    } else {
        return (char*)__cvta_shared_to_generic((size_t)(unsigned)at);
    }
}
template <typename A> PORT_FN auto offset(A at, long long bytes) {
    if constexpr (std::is_pointer_v<A>) {
        return (char*)at + bytes;
    } else {
        return (A)(at + (A)bytes);
    }
}

// One to four values of T that lie beside each other, as one access.
template <typename T, unsigned N> struct __attribute__((aligned(sizeof(T) * N))) values { T v[N]; };

// How an instruction is ordered with others of its thread, as seen in its scope.
enum order { RELAXED, ACQUIRE, RELEASE, BOTH };
template <port::scope S> PORT_FN void fence() {
    if constexpr (S == port::BLOCK) {
        __threadfence_block();
    } else if constexpr (S == port::DEVICE) {
        __threadfence();
    } else {
        __threadfence_system();
    }
}
namespace detail {
template <typename T, typename... D> PORT_FN void read(const char* at, D&... d) {
    const values<T, sizeof...(D)> loaded = *(const values<T, sizeof...(D)>*)at;
    unsigned i = 0;
    (put_number(d, loaded.v[i++]), ...);
}
template <typename T, typename... V> PORT_FN void write(char* at, V... v) {
    *(values<T, sizeof...(V)>*)at = values<T, sizeof...(V)>{{as<T>(v)...}};
}
// Each value by itself, and none kept: volatile, relaxed, and what acquires or releases.
template <typename T, port::scope S, order O, typename... D> PORT_FN void read_past(const char* at, D&... d) {
    unsigned i = 0;
    (put_number(d, port::load_past<S>((const T*)at + i++)), ...);
    if constexpr (O != RELAXED) fence<S>();
}
template <typename T, port::scope S, order O, typename... V> PORT_FN void write_past(char* at, V... v) {
    if constexpr (O != RELAXED) fence<S>();
    unsigned i = 0;
    (port::store_past<S>((T*)at + i++, as<T>(v)), ...);
}
}  // namespace detail

#define PORT_LOADS(name, space)                                                                                             \
    template <typename T, typename A, typename P> PORT_FN void ld_##name(A& a, P at) { detail::read<T>(space(at), a); }       \
    template <typename T, typename A, typename B, typename P> PORT_FN void ld_##name(A& a, B& b, P at) {                      \
        detail::read<T>(space(at), a, b);                                                                                   \
    }                                                                                                                       \
    template <typename T, typename A, typename B, typename C, typename D, typename P>                                       \
    PORT_FN void ld_##name(A& a, B& b, C& c, D& d, P at) {                                                                  \
        detail::read<T>(space(at), a, b, c, d);                                                                             \
    }                                                                                                                       \
    template <typename T, port::scope S, order O, typename A, typename P> PORT_FN void ld_past_##name(A& a, P at) {           \
        detail::read_past<T, S, O>(space(at), a);                                                                           \
    }                                                                                                                       \
    template <typename T, port::scope S, order O, typename A, typename B, typename P>                                       \
    PORT_FN void ld_past_##name(A& a, B& b, P at) {                                                                         \
        detail::read_past<T, S, O>(space(at), a, b);                                                                        \
    }                                                                                                                       \
    template <typename T, port::scope S, order O, typename A, typename B, typename C, typename D, typename P>               \
    PORT_FN void ld_past_##name(A& a, B& b, C& c, D& d, P at) {                                                             \
        detail::read_past<T, S, O>(space(at), a, b, c, d);                                                                  \
    }                                                                                                                       \
    template <typename T, typename P, typename... V> PORT_FN void st_##name(P at, V... v) { detail::write<T>(space(at), v...); } \
    template <typename T, port::scope S, order O, typename P, typename... V> PORT_FN void st_past_##name(P at, V... v) {      \
        detail::write_past<T, S, O>(space(at), v...);                                                                       \
    }
PORT_LOADS(generic, generic)
PORT_LOADS(shared, shared)
#undef PORT_LOADS

// atom and red: an address, a value, and of atom a destination for what was there before.
#define PORT_ATOM(name, call)                                                                                               \
    template <typename T, bool SHARED, port::scope S, order O, typename P, typename V> PORT_FN T atomically_##name(P at, V value) { \
        T* const p = (T*)(SHARED ? shared(at) : generic(at));                                                               \
        const T v = as<T>(value);                                                                                           \
        if constexpr (O == RELEASE || O == BOTH) fence<S>();                                                                \
        const T old = call;                                                                                                 \
        if constexpr (O == ACQUIRE || O == BOTH) fence<S>();                                                                \
        return old;                                                                                                         \
    }                                                                                                                       \
    template <typename T, bool SHARED, port::scope S, order O, typename P, typename V> PORT_FN void red_##name(P at, V v) {   \
        (void)atomically_##name<T, SHARED, S, O>(at, v);                                                                    \
    }                                                                                                                       \
    template <typename T, bool SHARED, port::scope S, order O, typename D, typename P, typename V>                          \
    PORT_FN void atom_##name(D& d, P at, V v) {                                                                             \
        put(d, atomically_##name<T, SHARED, S, O>(at, v));                                                                  \
    }
PORT_ATOM(add, sum_atomically<S>(p, v))
PORT_ATOM(min, port::word_min<S>(p, v))
PORT_ATOM(max, port::word_max<S>(p, v))
PORT_ATOM(and, port::word_and<S>(p, v))
PORT_ATOM(or, port::word_or<S>(p, v))
PORT_ATOM(xor, port::word_xor<S>(p, v))
PORT_ATOM(exch, port::waited(p, port::word_exch<S>(p, v)))
PORT_ATOM(inc, port::update<S>(p, [=](T old) { return old >= v ? T(0) : T(old + 1); }))
PORT_ATOM(dec, port::update<S>(p, [=](T old) { return old == T(0) || old > v ? v : T(old - 1); }))
#undef PORT_ATOM
template <typename T, bool SHARED, port::scope S, order O, typename D, typename P, typename A, typename B>
PORT_FN void atom_cas(D& d, P at, A compare, B v) {
    T* const p = (T*)(SHARED ? shared(at) : generic(at));
    if constexpr (O == RELEASE || O == BOTH) fence<S>();
    put(d, port::waited(p, port::word_cas<S>(p, as<T>(compare), as<T>(v))));
    if constexpr (O == ACQUIRE || O == BOTH) fence<S>();
}

// Copies that are done when they return: there is nothing to wait for. What a source of less bytes lacks is zero.
template <typename D, typename S, typename N, typename M> PORT_FN void cp_async(D to, S from, N bytes, M there) {
    char* const d = shared(to);
    const char* const s = generic(from);
    if (bytes == 16 && there == 16) {
        *(values<unsigned long long, 2>*)d = *(const values<unsigned long long, 2>*)s;
    } else {
        for (unsigned i = 0; i < (unsigned)bytes; i += 4) {
            unsigned word = 0;
            // Any number of them is allowed.
            if (i + 4 <= (unsigned)there) {
                word = *(const unsigned*)(s + i);
            } else {
                for (unsigned j = i; j < (unsigned)there; ++j) word |= (unsigned)(unsigned char)s[j] << (8u * (j - i));
            }
            *(unsigned*)(d + i) = word;
        }
    }
}

template <typename D, typename S, typename N> PORT_FN void cp_async(D to, S from, N bytes) { cp_async(to, from, bytes, bytes); }

// Between addresses of spaces.
template <typename D, typename A> PORT_FN void cvta_to_shared(D& d, A at) { put(d, (unsigned long long)__cvta_generic_to_shared(generic(at))); }
template <typename D, typename A> PORT_FN void cvta_shared(D& d, A at) { put(d, (unsigned long long)shared(at)); }

}  // namespace ptx
}  // namespace cuda_port

#endif
