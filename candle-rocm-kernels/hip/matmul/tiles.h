// Square tiles of results, as waves share them, and how results leave them. A lane holds a row of the first operand and
// a column of the second, or two of each.
#ifndef CANDLE_ROCM_MATMUL_TILES_H
#define CANDLE_ROCM_MATMUL_TILES_H

#include "matrix.h"
#include "shared/float8.h"

#if MATRIX
namespace device {

template <u32 EDGE> struct Tiling {
    using Lane = matrix::Accumulator<float>;
    // Two waves lie one below the other, the others beside them.
    static constexpr u32 WAVES_DOWN = 2, WAVES_ACROSS = FLOAT8_THREADS / WAVE / WAVES_DOWN;
    static constexpr u32 DOWN = EDGE / WAVES_DOWN / matrix::TILE, ACROSS = EDGE / WAVES_ACROSS / matrix::TILE;
    using Sums = Lane[DOWN][ACROSS];
    // Results at a time: 16 rows of each wave.
    static constexpr u32 RESULT_ROWS = WAVES_DOWN * matrix::TILE, RESULT_PITCH = EDGE + 4;
    using Results = float[RESULT_ROWS * RESULT_PITCH];

    static DEVICE_FN u32 wave_down() { return thread_x() / WAVE % WAVES_DOWN; }
    static DEVICE_FN u32 row(u32 d) { return (wave_down() * DOWN + d) * matrix::TILE; }
    static DEVICE_FN u32 column(u32 c) { return (thread_x() / WAVE / WAVES_DOWN * ACROSS + c) * matrix::TILE; }

    static DEVICE_FN void clear(Sums& sums) {
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d)
#pragma unroll
            for (u32 c = 0; c < ACROSS; ++c) sums[d][c] = Lane::zero();
    }
    // Calls f(row, column, sum), by way of LDS: neighbours in a row are those of neighbouring threads, and there is one
    // copy of what f does.
    template <typename F> static DEVICE_FN void each(const Sums& sums, float* results, F f) {
#pragma unroll
        for (u32 d = 0; d < DOWN; ++d) {
            barrier();
#pragma unroll
            for (u32 c = 0; c < ACROSS; ++c)
#pragma unroll
                for (u32 i = 0; i < Lane::VALUES; ++i)
                    results[(wave_down() * matrix::TILE + Lane::row(i)) * RESULT_PITCH + column(c) + Lane::column(i)] = sums[d][c].values[i];
            barrier();
            ROLLED
            for (u32 t = thread_x(); t < RESULT_ROWS * EDGE; t += FLOAT8_THREADS) {
                const u32 line = t / EDGE, place = t % EDGE;
                f((line / matrix::TILE * DOWN + d) * matrix::TILE + line % matrix::TILE, place, results[line * RESULT_PITCH + place]);
            }
        }
        barrier();
    }
};

}  // namespace device
#endif

#endif
