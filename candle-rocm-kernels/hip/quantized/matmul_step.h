// What a block of a quantized product (matmul.h) has in LDS at a time, and how it comes there.
#ifndef CANDLE_ROCM_MATMUL_STEP_H
#define CANDLE_ROCM_MATMUL_STEP_H

#include "output.h"
#include "q8_1.h"
#include "quants.h"

namespace device {

// Halves, of 16 elements, of a row of LDS; one is padding, so that neighbouring rows start in different banks.
constexpr u32 HALVES_PER_STEP = K_STEP / 16, PITCH = HALVES_PER_STEP + 1;

// Wide tiles, or narrow ones for few columns: more blocks share the reading of the matrix. Where copies run ahead
// (nvptx) wide ones are wider still, as unpacking rows is a larger part of the work there.
template <bool WIDE> struct Tiling {
    static constexpr u32 WIDEST_COLUMNS = target::COPIES_AHEAD ? MMA_WIDE_COLUMNS : WIDE_COLUMNS;
    static constexpr u32 WIDEST_WAVES = target::COPIES_AHEAD ? MMA_WIDE_WAVES : WIDE_WAVES;
    static constexpr u32 ROWS = WIDE ? WIDE_ROWS : NARROW_ROWS, COLUMNS = WIDE ? WIDEST_COLUMNS : NARROW_COLUMNS;
    static constexpr u32 WAVES = WIDE ? WIDEST_WAVES : NARROW_WAVES, THREADS = WAVES * WAVE;
    // What a block may have of LDS on nvptx, whatever the format: q2k's steps are the largest.
    static constexpr u32 SHARED_BYTES = WIDE ? MMA_WIDE_BYTES : MMA_NARROW_BYTES;
    // Whether waves that have no columns leave the products to the others.
    static constexpr bool IDLE = COLUMNS > 64;
    // At once on a multiprocessor of nvptx: as many as leave 128 registers.
    static constexpr u32 BLOCKS = 512 / THREADS;
};

// The step's unpacked weights and activations. The scales of neighbouring rows and columns are neighbours.
template <typename Format, bool WIDE> struct Step {
    using T = Tiling<WIDE>;
    static constexpr u32 GROUPS = K_STEP / Format::GROUP;
    u32x4 weights[T::ROWS][PITCH];
    u32x4 columns[T::COLUMNS][PITCH];
    float scale[GROUPS][T::ROWS];
    float offset[Format::HAS_MIN ? GROUPS : 1][T::ROWS];
    float d[K_STEP / 32][T::COLUMNS];
    // d times the sum of the group's quants, what an offset is multiplied with
    float sum[Format::HAS_MIN ? GROUPS : 1][T::COLUMNS];
    // Each column's row of the activations; where copies run ahead, also words that nobody reads.
    u32 source[T::COLUMNS + (target::COPIES_AHEAD ? WAVE : 0)];
};

// Steps take turns with the places; results come when the last step is done.
constexpr u32 PLACES = target::COPIES_AHEAD ? 2 : 1;
template <typename Format, bool WIDE> union Place {
    Step<Format, WIDE> steps[PLACES];
    float results[Tiling<WIDE>::COLUMNS * Tiling<WIDE>::ROWS];
};

// What a thread's share of a step is, and where it goes in LDS.
template <typename Format, bool WIDE> struct Share {
    using T = Tiling<WIDE>;
    using Shared = Step<Format, WIDE>;
    static constexpr u32 UNITS_PER_STEP = K_STEP / quants::UNIT<Format>;
    static constexpr u32 UNITS = T::ROWS * UNITS_PER_STEP, HALVES = T::COLUMNS * HALVES_PER_STEP, SCALES = T::COLUMNS * (K_STEP / 32);
    static constexpr u32 share(u32 count) { return (count + T::THREADS - 1) / T::THREADS; }

    static DEVICE_FN void read(const Matmul& m, const u8* weights, u32 first_row, u32 step, u32 task, quants::Unit<Format::HALVES>& unit) {
        const u32 row = first_row + task / UNITS_PER_STEP, index = step * UNITS_PER_STEP + task % UNITS_PER_STEP;
        if (row < m.rows && index < m.units) {
            Format::read(weights + row * m.row_bytes + (u64)(index / quants::UNITS_PER_BLOCK<Format>) * Format::BYTES,
                         index % quants::UNITS_PER_BLOCK<Format>, unit);
        } else {
            unit = {};
        }
    }

    // Puts the scale of 32 activations of a column into LDS.
    static DEVICE_FN void put(u32 column, u32 block, ActivationScale by, Shared& shared) {
        shared.d[block][column] = by.d;
        if (Format::HAS_MIN && Format::GROUP == 32) shared.sum[block][column] = by.d * (float)(by.sum[0] + by.sum[1]);
        if (Format::HAS_MIN && Format::GROUP == 16) {
            for (u32 h = 0; h < 2; ++h) shared.sum[block * 2 + h][column] = by.d * (float)by.sum[h];
        }
    }
};

// What one thread carries from global memory to LDS in a step, by way of registers.
template <typename Format, bool WIDE, bool AHEAD = target::COPIES_AHEAD> struct Carried {
    using Share = device::Share<Format, WIDE>;
    using T = typename Share::T;
    using Shared = typename Share::Shared;
    static constexpr u32 UNITS_PER_STEP = Share::UNITS_PER_STEP, UNITS = Share::UNITS, HALVES = Share::HALVES, SCALES = Share::SCALES;
    static constexpr u32 share(u32 count) { return Share::share(count); }

    quants::Unit<Format::HALVES> unit[share(UNITS)];
    u32x4 half[share(HALVES)];
    ActivationScale scale[share(SCALES)];

    // `source` has each column's row of the activations.
    DEVICE_FN void load(const Matmul& m, const u8* weights, u32 first_row, const Activations& x, const u32* source, Shared&, u32 step) {
        for (u32 i = 0; i < share(UNITS); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (UNITS % T::THREADS != 0 && task >= UNITS) break;
            Share::read(m, weights, first_row, step, task, unit[i]);
        }
        for (u32 i = 0; i < share(HALVES); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (HALVES % T::THREADS != 0 && task >= HALVES) break;
            const u32 column = task / HALVES_PER_STEP, part = task % HALVES_PER_STEP;
            half[i] = quants_at(x, source[column], step * K_STEP + part * 16);
        }
        for (u32 i = 0; i < share(SCALES); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (SCALES % T::THREADS != 0 && task >= SCALES) break;
            const u32 column = source[task % T::COLUMNS], k = step * K_STEP + task / T::COLUMNS * 32;
            scale[i] = scale_at(x, column, k);
        }
    }

    DEVICE_FN void store(const Matmul&, const u8*, u32, u32, Shared& shared) const {
        for (u32 i = 0; i < share(UNITS); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (UNITS % T::THREADS != 0 && task >= UNITS) break;
            const u32 row = task / UNITS_PER_STEP, index = task % UNITS_PER_STEP;
            const quants::Unit<Format::HALVES>& of = unit[i];
            for (u32 h = 0; h < Format::HALVES; ++h) {
                const u32 at = index / quants::UNITS_PER_BLOCK<Format> * Format::ELEMENTS + Format::place(index % quants::UNITS_PER_BLOCK<Format>, h);
                shared.weights[row][at / 16] = bytes_less<Format::ZERO>(of.q[h]);
                if (at % Format::GROUP == 0) {
                    shared.scale[at / Format::GROUP][row] = of.scale[h];
                    if (Format::HAS_MIN) shared.offset[at / Format::GROUP][row] = of.offset[h];
                }
            }
        }
        for (u32 i = 0; i < share(HALVES); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (HALVES % T::THREADS != 0 && task >= HALVES) break;
            shared.columns[task / HALVES_PER_STEP][task % HALVES_PER_STEP] = half[i];
        }
        for (u32 i = 0; i < share(SCALES); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (SCALES % T::THREADS != 0 && task >= SCALES) break;
            Share::put(task % T::COLUMNS, task / T::COLUMNS, bit_cast<ActivationScale>(scale[i]), shared);
        }
    }
};

// The same where LDS is filled without registers: columns come a step ahead. nvrtc takes apart what it loads at once,
// and so waits for it: rows stay in memory, but come into the nearest cache a step ahead, by a word of each sector of
// 32 bytes; scales stay as they come.
template <typename Format, bool WIDE> struct Carried<Format, WIDE, true> {
    using Share = device::Share<Format, WIDE>;
    using T = typename Share::T;
    using Shared = typename Share::Shared;
    static constexpr u32 UNITS_PER_STEP = Share::UNITS_PER_STEP, UNITS = Share::UNITS, HALVES = Share::HALVES, SCALES = Share::SCALES;
    static constexpr u32 share(u32 count) { return Share::share(count); }
    static constexpr u32 SPAN = (K_STEP + Format::ELEMENTS - 1) / Format::ELEMENTS * Format::BYTES, SECTORS = (SPAN + 62) / 32, WORDS = T::ROWS * SECTORS;

    u32 word[share(WORDS)];
    u64 scale[share(SCALES)];

    // `source` has each column's row of the activations, `next` is where the step's columns go.
    DEVICE_FN void load(const Matmul& m, const u8* weights, u32 first_row, const Activations& x, const u32* source, Shared& next, u32 step) {
        for (u32 i = 0; i < share(WORDS); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            const u32 row = first_row + task / SECTORS;
            const u64 start = (u64)weights + row * m.row_bytes, end = start + m.row_bytes;
            const u64 first = (start + (u64)step * K_STEP / Format::ELEMENTS * Format::BYTES) & ~3ull;
            const u64 at = task % SECTORS == 0 ? first : (first & ~31ull) + task % SECTORS * 32;
            word[i] = 0;
            if (task < WORDS && row < m.rows && at < end) word[i] = target::load_word((const u32*)at);
        }
        for (u32 i = 0; i < share(HALVES); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (HALVES % T::THREADS != 0 && task >= HALVES) break;
            const u32 column = task / HALVES_PER_STEP, part = task % HALVES_PER_STEP;
            const u64 from = ((u64)source[column] * x.stride + step * K_STEP) / 16 + part;
            target::copy_ahead(&next.columns[column][part], (const u32x4*)x.quants + from, true);
        }
        for (u32 i = 0; i < share(SCALES); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (SCALES % T::THREADS != 0 && task >= SCALES) break;
            const u32 column = source[task % T::COLUMNS], k = step * K_STEP + task / T::COLUMNS * 32;
            scale[i] = *(const u64*)(x.scales + ((u64)column * x.stride + k) / 32);
        }
    }

    DEVICE_FN void store(const Matmul& m, const u8* weights, u32 first_row, u32 step, Shared& shared) const {
        // A load whose word nobody wants would not be made.
        u32 words = 0;
        for (u32 i = 0; i < share(WORDS); ++i) words ^= word[i];
        shared.source[T::COLUMNS + thread_x() % WAVE] = words;
        for (u32 i = 0; i < share(UNITS); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (UNITS % T::THREADS != 0 && task >= UNITS) break;
            const u32 row = task / UNITS_PER_STEP, index = task % UNITS_PER_STEP;
            quants::Unit<Format::HALVES> of;
            Share::read(m, weights, first_row, step, task, of);
            for (u32 h = 0; h < Format::HALVES; ++h) {
                const u32 at = index / quants::UNITS_PER_BLOCK<Format> * Format::ELEMENTS + Format::place(index % quants::UNITS_PER_BLOCK<Format>, h);
                shared.weights[row][at / 16] = bytes_less<Format::ZERO>(of.q[h]);
                if (at % Format::GROUP == 0) {
                    shared.scale[at / Format::GROUP][row] = of.scale[h];
                    if (Format::HAS_MIN) shared.offset[at / Format::GROUP][row] = of.offset[h];
                }
            }
        }
        for (u32 i = 0; i < share(SCALES); ++i) {
            const u32 task = thread_x() + i * T::THREADS;
            if (SCALES % T::THREADS != 0 && task >= SCALES) break;
            Share::put(task % T::COLUMNS, task / T::COLUMNS, bit_cast<ActivationScale>(scale[i]), shared);
        }
        target::copies_arrive();
    }
};

}  // namespace device

#endif
