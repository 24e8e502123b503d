// What device code uses of the C++ library, and the C macros that come with it. Included by cuda.h.
//
// As cuda_port::std, which the text finds before the compiler's own, and as cuda::std.
#ifndef CANDLE_ROCM_PORT_STANDARD_H
#define CANDLE_ROCM_PORT_STANDARD_H

#undef INFINITY
#undef NAN
#undef HUGE_VAL
#undef HUGE_VALF
#undef NULL
#undef offsetof
#undef assert
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VAL __builtin_inf()
#define HUGE_VALF __builtin_inff()
#define NULL 0
#define offsetof(type, member) __builtin_offsetof(type, member)
// A failure ends the kernel, as on CUDA, but says nothing.
#ifdef NDEBUG
#define assert(...) ((void)0)
#else
#define assert(...) ((__VA_ARGS__) ? (void)0 : cuda_port::__trap())
#endif

namespace cuda_port {

// As <cstdint> has them where CUDA runs.
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef int8_t int_least8_t;
typedef uint8_t uint_least8_t;
typedef int16_t int_least16_t;
typedef uint16_t uint_least16_t;
typedef int32_t int_least32_t;
typedef uint32_t uint_least32_t;
typedef int64_t int_least64_t;
typedef uint64_t uint_least64_t;
typedef int8_t int_fast8_t;
typedef uint8_t uint_fast8_t;
typedef long int_fast16_t;
typedef unsigned long uint_fast16_t;
typedef long int_fast32_t;
typedef unsigned long uint_fast32_t;
typedef long int_fast64_t;
typedef unsigned long uint_fast64_t;
typedef long intptr_t;
typedef unsigned long uintptr_t;
typedef long intmax_t;
typedef unsigned long uintmax_t;
typedef unsigned long size_t;
typedef long ptrdiff_t;
typedef decltype(nullptr) nullptr_t;
static_assert(sizeof(long) == 8, "on LP64 only");
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

// Ends the kernel with an error.
__forceinline__ __device__ void __trap() { __builtin_trap(); }

namespace std {

using cuda_port::int8_t;
using cuda_port::uint8_t;
using cuda_port::int16_t;
using cuda_port::uint16_t;
using cuda_port::int32_t;
using cuda_port::uint32_t;
using cuda_port::int64_t;
using cuda_port::uint64_t;
using cuda_port::intptr_t;
using cuda_port::uintptr_t;
using cuda_port::size_t;
using cuda_port::ptrdiff_t;
using cuda_port::nullptr_t;

template <typename T, T V> struct integral_constant {
    static constexpr T value = V;
    using value_type = T;
    using type = integral_constant;
    constexpr __device__ operator T() const { return V; }
    constexpr __device__ T operator()() const { return V; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <bool B, typename T = void> struct enable_if {};
template <typename T> struct enable_if<true, T> { using type = T; };
template <bool B, typename T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, typename T, typename F> struct conditional { using type = T; };
template <typename T, typename F> struct conditional<false, T, F> { using type = F; };
template <bool B, typename T, typename F> using conditional_t = typename conditional<B, T, F>::type;
template <typename... T> using void_t = void;
template <typename T> struct type_identity { using type = T; };
template <typename T> using type_identity_t = typename type_identity<T>::type;

template <typename T> struct remove_const { using type = T; };
template <typename T> struct remove_const<const T> { using type = T; };
template <typename T> struct remove_volatile { using type = T; };
template <typename T> struct remove_volatile<volatile T> { using type = T; };
template <typename T> struct remove_cv : remove_const<typename remove_volatile<T>::type> {};
template <typename T> struct remove_reference { using type = T; };
template <typename T> struct remove_reference<T&> { using type = T; };
template <typename T> struct remove_reference<T&&> { using type = T; };
template <typename T> struct remove_cvref : remove_cv<typename remove_reference<T>::type> {};
template <typename T> struct remove_pointer { using type = T; };
template <typename T> struct remove_pointer<T*> { using type = T; };
template <typename T> struct remove_pointer<T* const> { using type = T; };
template <typename T> struct remove_extent { using type = T; };
template <typename T> struct remove_extent<T[]> { using type = T; };
template <typename T, size_t N> struct remove_extent<T[N]> { using type = T; };
template <typename T> struct add_const { using type = const T; };
template <typename T> struct add_pointer { using type = typename remove_reference<T>::type*; };
template <typename T> struct add_lvalue_reference { using type = T&; };
template <> struct add_lvalue_reference<void> { using type = void; };
template <typename T> struct add_rvalue_reference { using type = T&&; };
template <> struct add_rvalue_reference<void> { using type = void; };
template <typename T> using remove_const_t = typename remove_const<T>::type;
template <typename T> using remove_volatile_t = typename remove_volatile<T>::type;
template <typename T> using remove_cv_t = typename remove_cv<T>::type;
template <typename T> using remove_reference_t = typename remove_reference<T>::type;
template <typename T> using remove_cvref_t = typename remove_cvref<T>::type;
template <typename T> using remove_pointer_t = typename remove_pointer<T>::type;
template <typename T> using remove_extent_t = typename remove_extent<T>::type;
template <typename T> using add_const_t = typename add_const<T>::type;
template <typename T> using add_pointer_t = typename add_pointer<T>::type;
template <typename T> typename add_rvalue_reference<T>::type declval() noexcept;

template <typename A, typename B> struct is_same : false_type {};
template <typename A> struct is_same<A, A> : true_type {};
template <typename T> struct is_const : false_type {};
template <typename T> struct is_const<const T> : true_type {};
template <typename T> struct is_pointer : bool_constant<!is_same<T, remove_pointer_t<T>>::value> {};
template <typename T> struct is_reference : bool_constant<!is_same<T, remove_reference_t<T>>::value> {};
template <typename T> struct is_array : bool_constant<!is_same<T, remove_extent_t<T>>::value> {};
template <typename T> struct is_void : is_same<remove_cv_t<T>, void> {};
template <typename T, typename... List> struct port_is_any : bool_constant<(is_same<remove_cv_t<T>, List>::value || ...)> {};
template <typename T> struct is_floating_point : port_is_any<T, float, double, long double> {};
template <typename T>
struct is_integral : port_is_any<T, bool, char, signed char, unsigned char, wchar_t, char16_t, char32_t, short, unsigned short, int, unsigned, long,
                                 unsigned long, long long, unsigned long long> {};
template <typename T> struct is_arithmetic : bool_constant<is_integral<T>::value || is_floating_point<T>::value> {};
template <typename T, bool = is_arithmetic<T>::value> struct is_signed : false_type {};
template <typename T> struct is_signed<T, true> : bool_constant<(T(-1) < T(0))> {};
template <typename T, bool = is_arithmetic<T>::value> struct is_unsigned : false_type {};
template <typename T> struct is_unsigned<T, true> : bool_constant<(T(0) < T(-1))> {};
template <typename T> struct is_enum : bool_constant<__is_enum(T)> {};
template <typename T> struct is_class : bool_constant<__is_class(T)> {};
template <typename T> struct is_empty : bool_constant<__is_empty(T)> {};
template <typename T> struct is_trivially_copyable : bool_constant<__is_trivially_copyable(T)> {};
template <typename B, typename D> struct is_base_of : bool_constant<__is_base_of(B, D)> {};
template <typename From, typename To, typename = void> struct is_convertible : false_type {};
template <typename From, typename To>
struct is_convertible<From, To, void_t<decltype((*(void (*)(To))nullptr)(declval<From>()))>> : true_type {};
template <typename A, typename B> inline constexpr bool is_same_v = is_same<A, B>::value;
template <typename T> inline constexpr bool is_const_v = is_const<T>::value;
template <typename T> inline constexpr bool is_pointer_v = is_pointer<T>::value;
template <typename T> inline constexpr bool is_reference_v = is_reference<T>::value;
template <typename T> inline constexpr bool is_array_v = is_array<T>::value;
template <typename T> inline constexpr bool is_void_v = is_void<T>::value;
template <typename T> inline constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <typename T> inline constexpr bool is_integral_v = is_integral<T>::value;
template <typename T> inline constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <typename T> inline constexpr bool is_signed_v = is_signed<T>::value;
template <typename T> inline constexpr bool is_unsigned_v = is_unsigned<T>::value;
template <typename T> inline constexpr bool is_enum_v = is_enum<T>::value;
template <typename T> inline constexpr bool is_class_v = is_class<T>::value;
template <typename T> inline constexpr bool is_trivially_copyable_v = is_trivially_copyable<T>::value;
template <typename B, typename D> inline constexpr bool is_base_of_v = is_base_of<B, D>::value;
template <typename F, typename T> inline constexpr bool is_convertible_v = is_convertible<F, T>::value;
template <typename... B> struct conjunction : bool_constant<(B::value && ...)> {};
template <typename... B> struct disjunction : bool_constant<(B::value || ...)> {};
template <typename B> struct negation : bool_constant<!B::value> {};
template <typename... B> inline constexpr bool conjunction_v = conjunction<B...>::value;
template <typename... B> inline constexpr bool disjunction_v = disjunction<B...>::value;
template <typename B> inline constexpr bool negation_v = negation<B>::value;
template <typename T> struct underlying_type { using type = __underlying_type(T); };
template <typename T> using underlying_type_t = typename underlying_type<T>::type;
template <typename T> struct decay { using type = remove_cvref_t<T>; };
template <typename T, size_t N> struct decay<T (&)[N]> { using type = T*; };
template <typename T> using decay_t = typename decay<T>::type;
template <typename... T> struct common_type;
template <typename T> struct common_type<T> : decay<T> {};
template <typename A, typename B> struct common_type<A, B> { using type = decay_t<decltype(true ? declval<A>() : declval<B>())>; };
template <typename A, typename B, typename... Rest> struct common_type<A, B, Rest...> : common_type<typename common_type<A, B>::type, Rest...> {};
template <typename... T> using common_type_t = typename common_type<T...>::type;
template <typename T> struct make_unsigned { using type = T; };
template <typename T> struct make_signed { using type = T; };
#define PORT_SIGNS(s, u)                                            \
    template <> struct make_unsigned<s> { using type = u; };        \
    template <> struct make_signed<u> { using type = s; };
PORT_SIGNS(signed char, unsigned char)
PORT_SIGNS(short, unsigned short)
PORT_SIGNS(int, unsigned)
PORT_SIGNS(long, unsigned long)
PORT_SIGNS(long long, unsigned long long)
#undef PORT_SIGNS
template <> struct make_unsigned<char> { using type = unsigned char; };
template <> struct make_signed<char> { using type = signed char; };
template <typename T> using make_unsigned_t = typename make_unsigned<T>::type;
template <typename T> using make_signed_t = typename make_signed<T>::type;

template <typename T> constexpr PORT_FN T&& forward(remove_reference_t<T>& v) noexcept { return static_cast<T&&>(v); }
template <typename T> constexpr PORT_FN T&& forward(remove_reference_t<T>&& v) noexcept { return static_cast<T&&>(v); }
template <typename T> constexpr PORT_FN remove_reference_t<T>&& move(T&& v) noexcept { return static_cast<remove_reference_t<T>&&>(v); }
template <typename T> constexpr PORT_FN void swap(T& a, T& b) {
    T kept = move(a);
    a = move(b);
    b = move(kept);
}
template <typename T, typename U = T> constexpr PORT_FN T exchange(T& at, U&& v) {
    T old = move(at);
    at = forward<U>(v);
    return old;
}
template <typename T> constexpr PORT_FN const T& min(const T& a, const T& b) { return b < a ? b : a; }
template <typename T> constexpr PORT_FN const T& max(const T& a, const T& b) { return a < b ? b : a; }
template <typename T, typename Less> constexpr PORT_FN const T& min(const T& a, const T& b, Less less) { return less(b, a) ? b : a; }
template <typename T, typename Less> constexpr PORT_FN const T& max(const T& a, const T& b, Less less) { return less(a, b) ? b : a; }
template <typename T> constexpr PORT_FN const T& clamp(const T& v, const T& low, const T& high) { return v < low ? low : high < v ? high : v; }
template <typename T> constexpr PORT_FN T* addressof(T& v) { return __builtin_addressof(v); }

template <typename A, typename B> struct pair {
    A first;
    B second;
    pair() = default;
    constexpr __device__ pair(const A& a, const B& b) : first(a), second(b) {}
};
template <typename A, typename B> constexpr PORT_FN pair<decay_t<A>, decay_t<B>> make_pair(A&& a, B&& b) {
    return pair<decay_t<A>, decay_t<B>>(forward<A>(a), forward<B>(b));
}

template <typename T, size_t N> struct array {
    T port_elements[N ? N : 1];
    using value_type = T;
    constexpr __device__ T& operator[](size_t i) { return port_elements[i]; }
    constexpr __device__ const T& operator[](size_t i) const { return port_elements[i]; }
    constexpr __device__ T* data() { return port_elements; }
    constexpr __device__ const T* data() const { return port_elements; }
    constexpr __device__ T* begin() { return port_elements; }
    constexpr __device__ const T* begin() const { return port_elements; }
    constexpr __device__ T* end() { return port_elements + N; }
    constexpr __device__ const T* end() const { return port_elements + N; }
    static constexpr __device__ size_t size() { return N; }
};

template <typename T, T... I> struct integer_sequence {
    static constexpr __device__ size_t size() { return sizeof...(I); }
};
template <size_t... I> using index_sequence = integer_sequence<size_t, I...>;
template <typename T, size_t N, size_t... I> struct port_count : port_count<T, N - 1, N - 1, I...> {};
template <typename T, size_t... I> struct port_count<T, 0, I...> { using type = integer_sequence<T, (T)I...>; };
template <typename T, T N> using make_integer_sequence = typename port_count<T, (size_t)N>::type;
template <size_t N> using make_index_sequence = make_integer_sequence<size_t, N>;

}  // namespace std

namespace cuda {
namespace std {
using namespace cuda_port::std;
}
}  // namespace cuda
}  // namespace cuda_port

#include "limits.h"

#endif
