// Gradient of softmax along the last dimension, out of its result y: y (grad - sum(grad y)), with sums in f32 (for f64
// in f64).
#include "rows.h"

template <typename Team, typename T> DEVICE_FN void softmax_backward(const T* result, const T* grad, T* dst, u64 rows, u32 columns) {
    using C = compute_t<T>;
    Team team;
    for (u64 r = Team::index(); r < rows; r += Team::count()) {
        const T* const y = result + r * columns;
        const T* const g = grad + r * columns;
        C sum = C(0);
        for (u32 i = Team::rank(); i < columns; i += Team::size()) sum += load(y[i]) * load(g[i]);
        sum = team.template join<Sum>(sum);
        for (u32 i = Team::rank(); i < columns; i += Team::size()) {
            dst[r * columns + i] = store<T>(load(y[i]) * (load(g[i]) - sum));
        }
    }
}

#define SOFTMAX(name, Team, T)                                                                                                \
    extern "C" __global__ void softmax_backward_##name(const T* result, const T* grad, T* dst, u64 rows, u32 columns) {        \
        softmax_backward<Team>(result, grad, dst, rows, columns);                                                             \
    }
#define SOFTMAXES(dtype, T)              \
    SOFTMAX(dtype, BlockTeam, T)         \
    SOFTMAX(wave_##dtype, WaveTeam, T)
SOFTMAXES(f16, f16)
SOFTMAXES(bf16, bf16)
SOFTMAXES(f32, float)
SOFTMAXES(f64, double)
