// The device side of thrust: each thread works on a row of 12 numbers of its own.
#include "port/thrust.h"
PORT_BEGIN

struct Twice { __device__ int operator()(int x) const { return 2 * x; } };

extern "C" PORT_KERNEL(256) void rows(const int* in, int* out) {
    constexpr int N = 12;
    const int* const row = in + threadIdx.x * N;
    int* to = out + threadIdx.x * 80;
    int sorted[N];
    thrust::device_ptr<const int> first(row);
    thrust::copy(thrust::seq, first, first + N, sorted);
    *to++ = thrust::reduce(thrust::seq, row, row + N, 5);
    *to++ = thrust::reduce(thrust::seq, row, row + N, row[0], thrust::maximum<int>());
    to = thrust::inclusive_scan(thrust::seq, row, row + N, to);
    to = thrust::inclusive_scan(thrust::seq, row, row + N, to, thrust::minimum<int>());
    to = thrust::exclusive_scan(thrust::seq, row, row + N, to, 100);
    to = thrust::transform(thrust::seq, row, row + N, to, Twice());
    thrust::stable_sort(thrust::seq, sorted, sorted + N, [](int a, int b) { return a % 10 < b % 10; });
    to = thrust::copy(thrust::seq, sorted, sorted + N, to);
    thrust::sort(thrust::seq, sorted, sorted + N);
    *to++ = (int)(thrust::max_element(thrust::seq, row, row + N) - row);
    *to++ = (int)(thrust::min_element(thrust::seq, row, row + N) - row);
    *to++ = (int)(thrust::lower_bound(thrust::seq, sorted, sorted + N, row[3]) - sorted);
    *to++ = (int)(thrust::upper_bound(thrust::seq, sorted, sorted + N, row[3]) - sorted);
    *to++ = thrust::binary_search(thrust::seq, sorted, sorted + N, 50) + 10 * thrust::binary_search(thrust::seq, sorted, sorted + N, row[7]);
    int sum = 0;
    thrust::for_each(thrust::seq, row, row + N, [&](int x) { sum += x * x; });
    *to++ = sum;
    thrust::fill(thrust::seq, to, to + 3, 9);
    to += 3;
    const auto counted = thrust::make_transform_iterator(thrust::make_counting_iterator((int)threadIdx.x), Twice());
    *to++ = counted[4] + thrust::make_constant_iterator(1000)[7];
    auto a = thrust::make_pair(row[0], row[1]), b = thrust::make_pair(row[0], row[2]);
    *to++ = (a < b) + 10 * (a == b) + 100 * (a != b);
    thrust::swap(a, b);
    *to++ = a.second * 1000 + b.second;
    auto x = thrust::make_tuple(row[0], (float)row[1], row[2]);
    const thrust::tuple<int, float, int> y(row[0], (float)row[2], row[1]);
    thrust::get<2>(x) += 1;
    *to++ = thrust::get<0>(y) * 10000 + (int)thrust::get<1>(y) * 100 + thrust::get<2>(x);
    *to++ = (x < y) + 10 * (x == y) + 100 * (x != y) + 1000 * thrust::tuple_size<thrust::tuple<int, float, int>>::value;
    *to++ = thrust::plus<>()(1, 2) + thrust::multiplies<int>()(3, 4) - thrust::negate<int>()(5);
    *to++ = cuda::std::plus<>()(1, 2) + cuda::maximum<>()(3, 4) + cuda::minimum<int>()(5, 6);
    *to++ = thrust::logical_and<>()(row[0] > 50, true) + 10 * thrust::not_equal_to<int>()(row[0], row[1]);
    *to++ = thrust::identity<int>()(row[5]);
}

PORT_END
