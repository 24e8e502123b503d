// cub, the part of a thread: operators, pairs, iterators, limits, reductions and scans over a thread's own items.
// Included by cub.h.
#ifndef CANDLE_ROCM_PORT_CUB_THREAD_H
#define CANDLE_ROCM_PORT_CUB_THREAD_H

#include "functional.h"

namespace cuda_port {
namespace cub {

using port::library::WARP;

struct NullType {};

using Sum = port::library::plus<>;
using Difference = port::library::minus<>;
using Division = port::library::divides<>;
using Max = port::library::maximum<>;
using Min = port::library::minimum<>;
using Equality = port::library::equal_to<>;
using Inequality = port::library::not_equal_to<>;
template <typename Operator> struct InequalityWrapper {
    Operator op;
    PORT_FN explicit InequalityWrapper(Operator o) : op(o) {}
    template <typename A, typename B> PORT_FN bool operator()(const A& a, const B& b) { return !op(a, b); }
};
template <typename Operator> struct SwizzleScanOp {
    Operator op;
    PORT_FN explicit SwizzleScanOp(Operator o) : op(o) {}
    template <typename T> PORT_FN T operator()(const T& a, const T& b) { return op(b, a); }
};
template <typename To> struct CastOp {
    template <typename From> PORT_FN To operator()(const From& a) const { return (To)a; }
};

template <typename K, typename V> struct KeyValuePair {
    using Key = K;
    using Value = V;
    K key;
    V value;
    KeyValuePair() = default;
    PORT_FN KeyValuePair(const K& k, const V& v) : key(k), value(v) {}
    PORT_FN bool operator!=(const KeyValuePair& other) const { return value != other.value || key != other.key; }
    PORT_FN bool operator==(const KeyValuePair& other) const { return !(*this != other); }
};
// The larger value, and of equal ones that of the smaller key.
struct ArgMax {
    template <typename K, typename V> PORT_FN KeyValuePair<K, V> operator()(const KeyValuePair<K, V>& a, const KeyValuePair<K, V>& b) const {
        return a.value < b.value || (a.value == b.value && b.key < a.key) ? b : a;
    }
};
struct ArgMin {
    template <typename K, typename V> PORT_FN KeyValuePair<K, V> operator()(const KeyValuePair<K, V>& a, const KeyValuePair<K, V>& b) const {
        return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a;
    }
};
// Of pairs of a segment and a value: values add up as long as the segment stays the same.
template <typename Operator = Sum> struct ReduceByKeyOp {
    Operator op;
    ReduceByKeyOp() = default;
    PORT_FN explicit ReduceByKeyOp(Operator o) : op(o) {}
    template <typename Pair> PORT_FN Pair operator()(const Pair& a, const Pair& b) {
        Pair result = b;
        if (a.key == b.key) result.value = op(a.value, b.value);
        return result;
    }
};
// Of pairs of a count of heads and a value: the value begins anew with each head.
template <typename Operator> struct ReduceBySegmentOp {
    Operator op;
    ReduceBySegmentOp() = default;
    PORT_FN explicit ReduceBySegmentOp(Operator o) : op(o) {}
    template <typename Pair> PORT_FN Pair operator()(const Pair& a, const Pair& b) {
        Pair result = b;
        result.key = a.key + b.key;
        if (!b.key) result.value = op(a.value, b.value);
        return result;
    }
};

// ---------------------------------------------------------------- iterators

template <typename T, typename Offset = long long> struct CountingInputIterator {
    using value_type = T;
    T first;
    PORT_FN CountingInputIterator(const T& v) : first(v) {}
    PORT_FN T operator*() const { return first; }
    PORT_FN T operator[](Offset i) const { return first + (T)i; }
    PORT_FN CountingInputIterator operator+(Offset i) const { return CountingInputIterator(first + (T)i); }
    PORT_FN CountingInputIterator& operator++() { return ++first, *this; }
};
template <typename T, typename Offset = long long> struct ConstantInputIterator {
    using value_type = T;
    T value;
    PORT_FN ConstantInputIterator(T v, Offset = 0) : value(v) {}
    PORT_FN T operator*() const { return value; }
    PORT_FN T operator[](Offset) const { return value; }
    PORT_FN ConstantInputIterator operator+(Offset) const { return *this; }
    PORT_FN ConstantInputIterator& operator++() { return *this; }
};
template <typename T, typename Conversion, typename Iterator, typename Offset = long long> struct TransformInputIterator {
    using value_type = T;
    Iterator from;
    Conversion convert;
    PORT_FN TransformInputIterator(Iterator it, Conversion c) : from(it), convert(c) {}
    PORT_FN T operator*() const { return convert(from[0]); }
    PORT_FN T operator[](Offset i) const { return convert(from[i]); }
    PORT_FN TransformInputIterator operator+(Offset i) const { return TransformInputIterator(from + i, convert); }
    PORT_FN TransformInputIterator& operator++() { return from = from + 1, *this; }
};

// ---------------------------------------------------------------- limits

enum Category { NOT_A_NUMBER, SIGNED_INTEGER, UNSIGNED_INTEGER, FLOATING_POINT };

// Keys as unsigned numbers of the same order: what radix sort looks at. Of floats, -0 and 0 are the same.
template <typename T> struct Traits {
    static constexpr bool IS_SIGNED = T(-1) < T(0);
    static constexpr Category CATEGORY = IS_SIGNED ? SIGNED_INTEGER : UNSIGNED_INTEGER;
    static constexpr int BITS = 8 * (int)sizeof(T);
    using UnsignedBits = typename port::library::Choose<(sizeof(T) <= 4), unsigned, unsigned long long>::type;
    static constexpr UnsignedBits SIGN = (UnsignedBits)1 << (BITS - 1);
    static constexpr UnsignedBits ALL = SIGN | (SIGN - 1);
    static PORT_FN UnsignedBits ordered(T key) { return ((UnsignedBits)key & ALL) ^ (IS_SIGNED ? SIGN : 0); }
    static PORT_FN constexpr T Lowest() { return IS_SIGNED ? (T)SIGN : (T)0; }
    static PORT_FN constexpr T Max() { return IS_SIGNED ? (T)(SIGN - 1) : (T)ALL; }
};
template <typename T, typename U, typename Bits> struct FloatTraits {
    static constexpr Category CATEGORY = FLOATING_POINT;
    static constexpr int BITS = 8 * (int)sizeof(T);
    using UnsignedBits = U;
    static constexpr U SIGN = (U)1 << (BITS - 1);
    static constexpr U ALL = SIGN | (SIGN - 1);
    static PORT_FN U ordered(const T& key) {
        Bits bits;
        __builtin_memcpy(&bits, &key, sizeof(T));
        if (bits == (Bits)SIGN) bits = 0;
        return bits & SIGN ? ~(U)bits & ALL : (U)bits | SIGN;
    }
    static PORT_FN T of_bits(Bits bits) {
        T value;
        __builtin_memcpy(&value, &bits, sizeof(T));
        return value;
    }
};
template <> struct Traits<float> : FloatTraits<float, unsigned, unsigned> {
    static PORT_FN float Lowest() { return of_bits(0xff7fffffu); }
    static PORT_FN float Max() { return of_bits(0x7f7fffffu); }
};
template <> struct Traits<double> : FloatTraits<double, unsigned long long, unsigned long long> {
    static PORT_FN double Lowest() { return of_bits(0xffefffffffffffffull); }
    static PORT_FN double Max() { return of_bits(0x7fefffffffffffffull); }
};
template <> struct Traits<__half> : FloatTraits<__half, unsigned, unsigned short> {
    static PORT_FN __half Lowest() { return of_bits(0xfbff); }
    static PORT_FN __half Max() { return of_bits(0x7bff); }
};
template <> struct Traits<__nv_bfloat16> : FloatTraits<__nv_bfloat16, unsigned, unsigned short> {
    static PORT_FN __nv_bfloat16 Lowest() { return of_bits(0xff7f); }
    static PORT_FN __nv_bfloat16 Max() { return of_bits(0x7f7f); }
};
template <typename T> struct NumericTraits : Traits<T> {};
template <typename T> using FpLimits = Traits<T>;

// ---------------------------------------------------------------- a thread's own items

template <int LENGTH, typename T, typename Op> PORT_FN T ThreadReduce(const T* input, Op op, T prefix) {
    for (int i = 0; i < LENGTH; ++i) prefix = op(prefix, input[i]);
    return prefix;
}
template <int LENGTH, typename T, typename Op> PORT_FN T ThreadReduce(const T* input, Op op) {
    T total = input[0];
    for (int i = 1; i < LENGTH; ++i) total = op(total, input[i]);
    return total;
}
template <int LENGTH, typename T, typename Op> PORT_FN T ThreadReduce(const T (&input)[LENGTH], Op op) { return ThreadReduce<LENGTH>(&input[0], op); }
template <int LENGTH, typename T, typename Op> PORT_FN T ThreadReduce(const T (&input)[LENGTH], Op op, T prefix) {
    return ThreadReduce<LENGTH>(&input[0], op, prefix);
}

// Each gives the total. Without `apply`, nothing comes before the first item, and an exclusive scan leaves its place alone.
template <int LENGTH, typename T, typename Op> PORT_FN T ThreadScanInclusive(const T* input, T* output, Op op, T prefix, bool apply = true) {
    T total = apply ? (T)op(prefix, input[0]) : input[0];
    output[0] = total;
    for (int i = 1; i < LENGTH; ++i) output[i] = total = op(total, input[i]);
    return total;
}
template <int LENGTH, typename T, typename Op> PORT_FN T ThreadScanExclusive(const T* input, T* output, Op op, T prefix, bool apply = true) {
    T total = apply ? (T)op(prefix, input[0]) : input[0];
    if (apply) output[0] = prefix;
    for (int i = 1; i < LENGTH; ++i) {
        const T next = op(total, input[i]);
        output[i] = total;
        total = next;
    }
    return total;
}

}  // namespace cub
}  // namespace cuda_port

#endif
