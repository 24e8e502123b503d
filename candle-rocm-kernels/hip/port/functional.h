// Operators as objects: those of cub, of cuda (CCCL 3), of thrust and of cooperative groups are the same ones.
#ifndef CANDLE_ROCM_PORT_FUNCTIONAL_H
#define CANDLE_ROCM_PORT_FUNCTIONAL_H

#include "library.h"

namespace cuda_port {
namespace port {
namespace library {

// An operator whose type is said, `plus<float>`, or not, `plus<>`.
#define PORT_BINARY(name, expression)                                                                    \
    template <typename T = void> struct name {                                                           \
        PORT_FN constexpr T operator()(const T& a, const T& b) const { return expression; }            \
    };                                                                                                   \
    template <> struct name<void> {                                                                      \
        template <typename A, typename B> PORT_FN constexpr auto operator()(const A& a, const B& b) const { \
            return expression;                                                                           \
        }                                                                                                \
    };
#define PORT_PREDICATE(name, expression)                                                                 \
    template <typename T = void> struct name {                                                           \
        PORT_FN constexpr bool operator()(const T& a, const T& b) const { return expression; }         \
    };                                                                                                   \
    template <> struct name<void> {                                                                      \
        template <typename A, typename B> PORT_FN constexpr bool operator()(const A& a, const B& b) const { \
            return expression;                                                                           \
        }                                                                                                \
    };
PORT_BINARY(plus, a + b)
PORT_BINARY(minus, a - b)
PORT_BINARY(multiplies, a * b)
PORT_BINARY(divides, a / b)
PORT_BINARY(bit_and, a & b)
PORT_BINARY(bit_or, a | b)
PORT_BINARY(bit_xor, a ^ b)
// Of two that are alike the first one stays.
PORT_BINARY(maximum, a < b ? b : a)
PORT_BINARY(minimum, b < a ? b : a)
PORT_PREDICATE(equal_to, a == b)
PORT_PREDICATE(not_equal_to, a != b)
PORT_PREDICATE(less, a < b)
PORT_PREDICATE(greater, b < a)
PORT_PREDICATE(less_equal, !(b < a))
PORT_PREDICATE(greater_equal, !(a < b))
PORT_PREDICATE(logical_and, a && b)
PORT_PREDICATE(logical_or, a || b)
#undef PORT_BINARY
#undef PORT_PREDICATE

template <typename T = void> struct negate {
    PORT_FN constexpr T operator()(const T& a) const { return -a; }
};
template <typename T = void> struct identity {
    PORT_FN constexpr const T& operator()(const T& a) const { return a; }
};
template <> struct identity<void> {
    template <typename T> PORT_FN constexpr const T& operator()(const T& a) const { return a; }
};

}  // namespace library
}  // namespace port
}  // namespace cuda_port

namespace cuda_port {
namespace cuda {
using port::library::maximum;
using port::library::minimum;
namespace std {
using port::library::bit_and;
using port::library::bit_or;
using port::library::bit_xor;
using port::library::divides;
using port::library::equal_to;
using port::library::greater;
using port::library::identity;
using port::library::less;
using port::library::logical_and;
using port::library::logical_or;
using port::library::minus;
using port::library::multiplies;
using port::library::not_equal_to;
using port::library::plus;
}  // namespace std
}  // namespace cuda
}  // namespace cuda_port

#endif
