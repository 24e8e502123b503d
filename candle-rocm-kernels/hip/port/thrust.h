// thrust, the device side: functors, pairs, tuples, iterators, and algorithms of one thread (thrust::seq). What thrust does from
// the host is not here: docs/rocm-port/libraries.md says what takes its place.
#ifndef CANDLE_ROCM_PORT_THRUST_H
#define CANDLE_ROCM_PORT_THRUST_H

#include "cub_thread.h"

namespace cuda_port {
namespace thrust {

using port::library::bit_and;
using port::library::bit_or;
using port::library::bit_xor;
using port::library::divides;
using port::library::equal_to;
using port::library::greater;
using port::library::greater_equal;
using port::library::identity;
using port::library::less;
using port::library::less_equal;
using port::library::logical_and;
using port::library::logical_or;
using port::library::maximum;
using port::library::minimum;
using port::library::minus;
using port::library::multiplies;
using port::library::negate;
using port::library::not_equal_to;
using port::library::plus;

template <typename A, typename B> struct pair {
    using first_type = A;
    using second_type = B;
    A first;
    B second;
};
template <typename A, typename B> PORT_FN pair<A, B> make_pair(A a, B b) { return pair<A, B>{a, b}; }
template <typename A, typename B> PORT_FN bool operator==(const pair<A, B>& x, const pair<A, B>& y) { return x.first == y.first && x.second == y.second; }
template <typename A, typename B> PORT_FN bool operator!=(const pair<A, B>& x, const pair<A, B>& y) { return !(x == y); }
template <typename A, typename B> PORT_FN bool operator<(const pair<A, B>& x, const pair<A, B>& y) {
    return x.first < y.first || (!(y.first < x.first) && x.second < y.second);
}

template <typename... T> struct tuple {};
template <typename First, typename... Rest> struct tuple<First, Rest...> {
    First first;
    tuple<Rest...> rest;
    tuple() = default;
    PORT_FN tuple(const First& f, const Rest&... r) : first(f), rest(r...) {}
};
template <typename... T> PORT_FN tuple<T...> make_tuple(T... values) { return tuple<T...>(values...); }
template <int I, typename... T> PORT_FN auto& get(tuple<T...>& of) {
    if constexpr (I == 0) {
        return of.first;
    } else {
        return get<I - 1>(of.rest);
    }
}
template <int I, typename... T> PORT_FN const auto& get(const tuple<T...>& of) {
    if constexpr (I == 0) {
        return of.first;
    } else {
        return get<I - 1>(of.rest);
    }
}
template <typename T> struct tuple_size;
template <typename... T> struct tuple_size<tuple<T...>> { static constexpr int value = sizeof...(T); };
PORT_FN bool operator==(const tuple<>&, const tuple<>&) { return true; }
PORT_FN bool operator<(const tuple<>&, const tuple<>&) { return false; }
template <typename F, typename... R> PORT_FN bool operator==(const tuple<F, R...>& a, const tuple<F, R...>& b) { return a.first == b.first && a.rest == b.rest; }
template <typename F, typename... R> PORT_FN bool operator<(const tuple<F, R...>& a, const tuple<F, R...>& b) {
    return a.first < b.first || (!(b.first < a.first) && a.rest < b.rest);
}
template <typename... T> PORT_FN bool operator!=(const tuple<T...>& a, const tuple<T...>& b) { return !(a == b); }

template <typename T> PORT_FN void swap(T& a, T& b) {
    const T old = a;
    a = b;
    b = old;
}

// ---------------------------------------------------------------- pointers and iterators

// A pointer to device memory is a pointer.
template <typename T> using device_ptr = T*;
template <typename T> PORT_FN T* device_pointer_cast(T* p) { return p; }
template <typename T> PORT_FN T* raw_pointer_cast(T* p) { return p; }

template <typename T> using counting_iterator = cub::CountingInputIterator<T>;
template <typename T> using constant_iterator = cub::ConstantInputIterator<T>;
template <typename F, typename Iterator> using transform_iterator =
    cub::TransformInputIterator<typename port::library::Plain<decltype((*(F*)nullptr)((*(Iterator*)nullptr)[0]))>::type, F, Iterator>;
template <typename T> PORT_FN counting_iterator<T> make_counting_iterator(T first) { return counting_iterator<T>(first); }
template <typename T> PORT_FN constant_iterator<T> make_constant_iterator(T value) { return constant_iterator<T>(value); }
template <typename Iterator, typename F> PORT_FN transform_iterator<F, Iterator> make_transform_iterator(Iterator from, F f) {
    return transform_iterator<F, Iterator>(from, f);
}

// ---------------------------------------------------------------- algorithms of one thread

namespace detail {
struct sequential {};
}  // namespace detail
constexpr detail::sequential seq{};

template <typename I, typename T, typename Op> PORT_FN T reduce(detail::sequential, I first, I last, T initial, Op op) {
    for (; first != last; ++first) initial = op(initial, *first);
    return initial;
}
template <typename I, typename T> PORT_FN T reduce(detail::sequential s, I first, I last, T initial) { return reduce(s, first, last, initial, plus<T>()); }
template <typename I, typename O, typename Op> PORT_FN O inclusive_scan(detail::sequential, I first, I last, O to, Op op) {
    if (first == last) return to;
    typename port::library::Plain<decltype(*to)>::type total = *first;
    for (*to = total, ++to, ++first; first != last; ++first, ++to) *to = total = op(total, *first);
    return to;
}
template <typename I, typename O> PORT_FN O inclusive_scan(detail::sequential s, I first, I last, O to) { return inclusive_scan(s, first, last, to, plus<>()); }
template <typename I, typename O, typename T, typename Op> PORT_FN O exclusive_scan(detail::sequential, I first, I last, O to, T initial, Op op) {
    for (; first != last; ++first, ++to) {
        const T next = op(initial, *first);
        *to = initial;
        initial = next;
    }
    return to;
}
template <typename I, typename O, typename T> PORT_FN O exclusive_scan(detail::sequential s, I first, I last, O to, T initial) {
    return exclusive_scan(s, first, last, to, initial, plus<>());
}
template <typename I, typename F> PORT_FN I for_each(detail::sequential, I first, I last, F f) {
    for (; first != last; ++first) f(*first);
    return first;
}
template <typename I, typename O, typename F> PORT_FN O transform(detail::sequential, I first, I last, O to, F f) {
    for (; first != last; ++first, ++to) *to = f(*first);
    return to;
}
template <typename I, typename O> PORT_FN O copy(detail::sequential, I first, I last, O to) {
    for (; first != last; ++first, ++to) *to = *first;
    return to;
}
template <typename I, typename T> PORT_FN void fill(detail::sequential, I first, I last, const T& value) {
    for (; first != last; ++first) *first = value;
}
// The first of the largest, and of the smallest.
template <typename I, typename Less> PORT_FN I max_element(detail::sequential, I first, I last, Less less_than) {
    I best = first;
    for (; first != last; ++first) {
        if (less_than(*best, *first)) best = first;
    }
    return best;
}
template <typename I> PORT_FN I max_element(detail::sequential s, I first, I last) { return max_element(s, first, last, less<>()); }
template <typename I, typename Less> PORT_FN I min_element(detail::sequential, I first, I last, Less less_than) {
    I best = first;
    for (; first != last; ++first) {
        if (less_than(*first, *best)) best = first;
    }
    return best;
}
template <typename I> PORT_FN I min_element(detail::sequential s, I first, I last) { return min_element(s, first, last, less<>()); }

// The first place whose element is not before the value, and the first whose element is behind it.
template <typename I, typename T, typename Less> PORT_FN I lower_bound(detail::sequential, I first, I last, const T& value, Less less_than) {
    for (long long count = last - first; count > 0;) {
        const long long half = count / 2;
        if (less_than(first[half], value)) {
            first = first + (half + 1);
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return first;
}
template <typename I, typename T> PORT_FN I lower_bound(detail::sequential s, I first, I last, const T& value) { return lower_bound(s, first, last, value, less<>()); }
template <typename I, typename T, typename Less> PORT_FN I upper_bound(detail::sequential s, I first, I last, const T& value, Less less_than) {
    return lower_bound(s, first, last, value, [&](const auto& element, const T& v) { return !less_than(v, element); });
}
template <typename I, typename T> PORT_FN I upper_bound(detail::sequential s, I first, I last, const T& value) { return upper_bound(s, first, last, value, less<>()); }
template <typename I, typename T> PORT_FN bool binary_search(detail::sequential s, I first, I last, const T& value) {
    const I at = lower_bound(s, first, last, value);
    return at != last && !(value < *at);
}

// By insertion: stable, and for the few elements that one thread sorts.
template <typename I, typename Less> PORT_FN void stable_sort(detail::sequential, I first, I last, Less less_than) {
    const long long count = last - first;
    for (long long i = 1; i < count; ++i) {
        for (long long j = i; j > 0 && less_than(first[j], first[j - 1]); --j) swap(first[j], first[j - 1]);
    }
}
template <typename I> PORT_FN void stable_sort(detail::sequential s, I first, I last) { stable_sort(s, first, last, less<>()); }
template <typename I, typename Less> PORT_FN void sort(detail::sequential s, I first, I last, Less less_than) { stable_sort(s, first, last, less_than); }
template <typename I> PORT_FN void sort(detail::sequential s, I first, I last) { stable_sort(s, first, last, less<>()); }

}  // namespace thrust
}  // namespace cuda_port

#endif
