// cuRAND's device functions.
#include "port/curand.h"
PORT_BEGIN

static_assert(sizeof(curandStatePhilox4_32_10_t) == 64 && sizeof(curandState_t) == 48, "as host code allocates them");

// The generator itself: a counter and a key for each thread.
extern "C" PORT_KERNEL(64) void philox_blocks(const unsigned* in, unsigned* out) {
    const unsigned* at = in + threadIdx.x * 6;
    const uint4 r = curand_Philox4x32_10(make_uint4(at[0], at[1], at[2], at[3]), make_uint2(at[4], at[5]));
    out[threadIdx.x * 4] = r.x, out[threadIdx.x * 4 + 1] = r.y, out[threadIdx.x * 4 + 2] = r.z, out[threadIdx.x * 4 + 3] = r.w;
}

// Each thread: seed, subsequence, offset and how far it then skips; 11 words, four of them at once.
template <typename State> __device__ void start(const unsigned long long* in, State* state) {
    const unsigned long long* at = in + threadIdx.x * 4;
    curand_init(at[0], at[1], at[2], state);
    if (at[3] != 0) skipahead(at[3], state);
}
extern "C" PORT_KERNEL(64) void philox_words(const unsigned long long* in, unsigned* out) {
    curandStatePhilox4_32_10_t state;
    start(in, &state);
    out += threadIdx.x * 11;
    for (int i = 0; i < 6; ++i) out[i] = curand(&state);
    const uint4 four = curand4(&state);
    out[6] = four.x, out[7] = four.y, out[8] = four.z, out[9] = four.w;
    out[10] = curand(&state);
}
extern "C" PORT_KERNEL(64) void xorwow_words(const unsigned long long* in, unsigned* out) {
    curandState_t state;
    start(in, &state);
    for (int i = 0; i < 11; ++i) out[threadIdx.x * 11 + i] = curand(&state);
}

// What distributions make of the same words: 14 numbers of a thread.
template <typename State> __device__ int numbers(State* state, double* out) {
    int n = 0;
    out[n++] = curand_uniform(state);
    out[n++] = curand_uniform(state);
    out[n++] = curand_uniform_double(state);
    out[n++] = curand_uniform_double(state);
    for (int i = 0; i < 3; ++i) out[n++] = curand_normal(state);
    const float2 pair = curand_normal2(state);
    out[n++] = pair.x, out[n++] = pair.y;
    out[n++] = curand_normal(state);
    out[n++] = curand_normal_double(state), out[n++] = curand_normal_double(state);
    out[n++] = curand_log_normal(state, 0.5f, 0.25f), out[n++] = curand_log_normal(state, 0.5f, 0.25f);
    return n;
}
extern "C" PORT_KERNEL(64) void philox_numbers(const unsigned long long* in, double* out) {
    curandStatePhilox4_32_10_t state;
    start(in, &state);
    out += threadIdx.x * 28;
    int n = numbers(&state, out);
    const float4 u = curand_uniform4(&state);
    out[n++] = u.x, out[n++] = u.y, out[n++] = u.z, out[n++] = u.w;
    const double2 d = curand_uniform2_double(&state);
    out[n++] = d.x, out[n++] = d.y;
    const float4 g = curand_normal4(&state);
    out[n++] = g.x, out[n++] = g.y, out[n++] = g.z, out[n++] = g.w;
    const float4 l = curand_log_normal4(&state, -1.0f, 2.0f);
    out[n++] = l.x, out[n++] = l.y, out[n++] = l.z, out[n++] = l.w;
}
extern "C" PORT_KERNEL(64) void xorwow_numbers(const unsigned long long* in, double* out) {
    curandState_t state;
    start(in, &state);
    numbers(&state, out + threadIdx.x * 14);
}

// 256 numbers of a thread for each of the means.
extern "C" PORT_KERNEL(64) void poisson(const double* means, unsigned* out) {
    curandStatePhilox4_32_10_t state;
    curand_init(5, threadIdx.x, 0, &state);
    for (int m = 0; m < 4; ++m) {
        for (int i = 0; i < 256; ++i) out[(m * 64 + threadIdx.x) * 256 + i] = curand_poisson(&state, means[m]);
    }
}

PORT_END
