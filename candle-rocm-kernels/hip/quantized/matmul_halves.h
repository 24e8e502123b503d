// Quantized matrix times up to 32 columns of 8-bit activations by matrix instructions on binary16: weights are unpacked
// with their scales applied, so that nothing is scaled per group of elements.
//
// Formats of blocks of 256. Elements of a block and 256 activations of a column are divided by a power of two each,
// which makes them numbers of binary16 whatever their scales are; it multiplies the block's sums. A weight is rounded
// once more than in f32, by a 2^11th part.
//
// A block of threads computes one or two groups of 32 rows, in steps of some blocks of elements. The packed rows are
// copied to LDS as they lie, in 16 bytes, ahead of their use where copies run ahead; the columns lie there as
// instructions take them. Of a step, a wave has 32 rows times half of the elements of a block: it unpacks them to
// registers as it multiplies. The groups may be of two matrices, gate and up of a feed-forward.
#ifndef CANDLE_ROCM_MATMUL_HALVES_H
#define CANDLE_ROCM_MATMUL_HALVES_H

#include "halves.h"
#include "matrix.h"
#include "output.h"
#include "q8_1.h"
#include "formats.h"

#if MATRIX
namespace device {

// How lanes hold the elements of a block, which is four chunks of two pieces of 8 runs of 4 elements: those of an
// instruction are RUNS runs of each of a set of chunks, and a lane has one of these chunks.
struct Chunks {
    static constexpr u32 IN_SET = matrix::PARTS, SETS = 4 / IN_SET, RUNS = matrix::K<f16> / 4 / IN_SET;
    // Instructions for a set, and for a piece of all.
    static constexpr u32 STEPS = 8 / RUNS, PLANES = SETS * STEPS;

    static DEVICE_FN u32 own(u32 set) { return set * IN_SET + matrix::part(); }
    // Which instruction has a run, and where among its elements.
    static DEVICE_FN u32 plane(u32 chunk, u32 run) { return chunk / IN_SET * STEPS + run / RUNS; }
    static DEVICE_FN u32 place(u32 chunk, u32 run) { return (chunk % IN_SET * RUNS + run % RUNS) * 4; }
};

// What multiplies the bits of integers, see multiply_add_halves: of the first four runs of a piece and of the others.
struct alignas(16) Halves {
    u32 by[2], plus[2];
};

// A piece of a row: words with packed elements, and their scales.
template <typename Format> struct Piece {
    u32 words[Format::WORDS];
    Halves scale;
};

namespace halves {

// How small a weight's numbers are made: unpacked as subnormal ones, their multipliers are still in the range.
constexpr float SHRINK = 0x1p-15f, SUBNORMAL = 0x1p24f;
// By what an activation's are, what its multiplier is so many times of.
constexpr float GROW = 0x1p14f;
// Of sums, what both leave.
constexpr float UNIT = SUBNORMAL / GROW / SHRINK;
// The smallest of Above.
constexpr float LEAST_POWER = 0x1p-126f;

// 16 bytes of LDS at a multiple of 4 bytes, or 2 behind it.
DEVICE_FN void words_at(const u8* at, bool is_between, u32* words) {
    const u32* const from = (const u32*)(is_between ? at - 2 : at);
    u32 word = from[0];
    for (u32 i = 0; i < 4; ++i) {
        const u32 next = i < 3 || is_between ? from[i + 1] : 0;
        words[i] = is_between ? word >> 16 | next << 16 : word;
        word = next;
    }
}
DEVICE_FN void words_at(const u8* at, u32* words) {
    const u32x4 all = *(const u32x4*)at;
    for (u32 i = 0; i < 4; ++i) words[i] = all[i];
}

// q4k and q5k: the piece is 16 bytes of nibbles, 16 elements of each of two runs of 32.
struct Nibbles {
    static constexpr bool ALIGNED = true, SHARES = true;
    // The sixteenth of the block with an element, by chunk, half and piece.
    static DEVICE_FN u32 chunk(u32 sixteenth) { return sixteenth / 4; }
    static DEVICE_FN u32 half(u32 sixteenth) { return sixteenth / 2 % 2; }
    static DEVICE_FN u32 piece(u32 sixteenth) { return sixteenth % 2; }

    static DEVICE_FN float largest(const u8* block) {
        const u32 both = *(const u32*)block;
        return __builtin_fmaxf(__builtin_fabsf(load(f16{(u16)both})), __builtin_fabsf(load(f16{(u16)(both >> 16)})));
    }
    // Multipliers of the chunk's two runs, as in quants.h.
    static DEVICE_FN Halves scales(const u8* block, u32 chunk, u32, float inverse) {
        const u32x4 head = *(const u32x4*)block;
        const u32 shift = chunk % 2 * 16;
        const u32 first = head[1] >> shift, second = head[2] >> shift, third = head[3] >> shift;
        const bool front = chunk < 2;
        const u32 scales = front ? first & 0x3f3fu : (third & 0x0f0fu) | (first >> 2 & 0x3030u);
        const u32 mins = front ? second & 0x3f3fu : (third >> 4 & 0x0f0fu) | (second >> 2 & 0x3030u);
        const float d = load(f16{(u16)head[0]}), min = load(f16{(u16)(head[0] >> 16)});
        const float by = d * inverse * (SHRINK * SUBNORMAL), plus = -min * inverse * SHRINK;
        // The second run's nibbles lie four bits higher.
        return {{both_halves(by * (float)(scales & 0xffu)), both_halves(by * 0x1p-4f * (float)(scales >> 8 & 0xffu))},
                {both_halves(plus * (float)(mins & 0xffu)), both_halves(plus * (float)(mins >> 8 & 0xffu))}};
    }
};

struct q4k : Nibbles, formats::q4k {
    static constexpr u32 WORDS = 4;
    static DEVICE_FN void read(const u8* block, u32 chunk, u32 piece, bool, u32 (&words)[WORDS]) {
        words_at(block + 16 + chunk * 32 + piece * 16, words);
    }
    // The elements 0 and 2, or 1 and 3, of a run.
    static DEVICE_FN u32 pair(const Piece<q4k>& from, u32, u32 run, u32 odd) {
        return multiply_add_halves(from.words[run % 4] >> (8 * odd) & (run < 4 ? 0x000f000fu : 0x00f000f0u), from.scale.by[run / 4], from.scale.plus[run / 4]);
    }
};

struct q5k : Nibbles, formats::q5k {
    static constexpr u32 WORDS = 8;
    static DEVICE_FN void read(const u8* block, u32 chunk, u32 piece, bool, u32 (&words)[WORDS]) {
        words_at(block + 48 + chunk * 32 + piece * 16, words);
        words_at(block + 16 + piece * 16, words + 4);
        // The fifth bits of the chunk's two runs are the lowest of each byte.
        for (u32 i = 4; i < 8; ++i) words[i] >>= 2 * chunk;
    }
    static DEVICE_FN u32 pair(const Piece<q5k>& from, u32, u32 run, u32 odd) {
        const u32 low = from.words[run % 4] >> (8 * odd), fifth = from.words[4 + run % 4] >> (8 * odd);
        const u32 bits = run < 4 ? (low & 0x000f000fu) | (fifth << 4 & 0x00100010u) : (low & 0x00f000f0u) | (fifth << 7 & 0x01000100u);
        return multiply_add_halves(bits, from.scale.by[run / 4], from.scale.plus[run / 4]);
    }
};

// The piece is 16 bytes of low nibbles, 16 elements of each of two runs of 32 that are 64 apart, and 16 bytes with
// their high bits.
struct q6k : formats::q6k {
    static constexpr bool ALIGNED = false, SHARES = false;
    static constexpr u32 WORDS = 8;
    static DEVICE_FN u32 chunk(u32 sixteenth) { return sixteenth / 8 * 2 + sixteenth % 2; }
    static DEVICE_FN u32 half(u32 sixteenth) { return sixteenth / 4 % 2; }
    static DEVICE_FN u32 piece(u32 sixteenth) { return sixteenth / 2 % 2; }

    // Scales are of 8 bits, not 6.
    static DEVICE_FN float largest(const u8* block) { return 4 * __builtin_fabsf(load(f16{*(const u16*)(block + 208)})); }
    static DEVICE_FN void read(const u8* block, u32 chunk, u32 piece, bool is_between, u32 (&words)[WORDS]) {
        const u32 half = chunk / 2, place = chunk % 2 * 16;
        words_at(block + half * 64 + piece * 32 + place, is_between, words);
        words_at(block + 128 + half * 32 + place, is_between, words + 4);
    }
    static DEVICE_FN Halves scales(const u8* block, u32 chunk, u32 piece, float inverse) {
        const float by = load(f16{*(const u16*)(block + 208)}) * inverse * (SHRINK * SUBNORMAL);
        Halves scale;
        for (u32 h = 0; h < 2; ++h) {
            const float d = by * (float)(i8)block[192 + chunk / 2 * 8 + h * 4 + piece * 2 + chunk % 2];
            // q - 32 times the number as it is rounded.
            scale.by[h] = both_halves(h == 0 ? d : d * 0x1p-4f);
            scale.plus[h] = multiply_add_halves(scale.by[h], both_halves(h == 0 ? -32.0f / SUBNORMAL : -512.0f / SUBNORMAL), 0);
        }
        return scale;
    }
    static DEVICE_FN u32 pair(const Piece<q6k>& from, u32 piece, u32 run, u32 odd) {
        const u32 low = from.words[run % 4] >> (8 * odd), all = from.words[4 + run % 4];
        // Those of the first run at bit 4, of the second at bit 8.
        const u32 high = odd ? all >> (4 + 2 * piece) : all << (4 - 2 * piece);
        const u32 bits = run < 4 ? (low & 0x000f000fu) | (high & 0x00300030u) : (low & 0x00f000f0u) | (high & 0x03000300u);
        return multiply_add_halves(bits, from.scale.by[run / 4], from.scale.plus[run / 4]);
    }
};

}  // namespace halves

// Of a step of tiles of 32 rows.
constexpr u32 LOW_BLOCKS = target::COPIES_AHEAD ? MMA_LOW_BLOCKS : 2;

// What a block of threads computes of, and has in LDS. GROUPS are those of 32 rows, BLOCKS those of elements that a step
// takes; each group, block and piece has a wave.
template <typename Format, u32 MOST, u32 GROUPS_, u32 BLOCKS_> struct HalvesStep {
    static constexpr u32 GROUPS = GROUPS_, BLOCKS = BLOCKS_, WAVES = GROUPS * BLOCKS * 2, THREADS = WAVES * WAVE;
    // Where a lane holds two columns, it may leave one.
    static constexpr u32 ROWS = GROUPS * 32, COLUMNS = MOST < matrix::TILE && matrix::COLUMNS == 1 ? matrix::TILE : MOST;
    static constexpr u32 TILES = (COLUMNS + matrix::TILE - 1) / matrix::TILE, PLACES = target::COPIES_AHEAD ? 2 : 1;
    // 16 bytes each of a row: where blocks are no multiples of them, one more than they fill.
    static constexpr u32 PACKS = (BLOCKS * Format::BYTES + (Format::ALIGNED ? 0 : 27)) / 16;
    // Rows are an odd number of them apart, so that lanes meet different banks.
    static constexpr u32 PITCH = PACKS | 1;
    // Of an instruction's columns, and what keeps those that are stored at a time in different banks.
    static constexpr u32 K = matrix::K<f16>, PAD = matrix::Fragment<f16>::ALIGNMENT / 2, PLANE = COLUMNS * K + PAD;
    // Whether scales are unpacked once for all waves: there is room in LDS.
    static constexpr bool SHARED = target::COPIES_AHEAD && Format::SHARES;

    u32x4 rows[PLACES][ROWS][PITCH];
    u16 columns[BLOCKS][2 * Chunks::PLANES][PLANE];
    // What the numbers are parts of, by turns, and by what those before became smaller.
    float power[2][BLOCKS][COLUMNS], shrink[BLOCKS][COLUMNS];
    // The same of rows that share it.
    static constexpr u32 SHARERS = SHARED ? ROWS : 1;
    float row_power[2][BLOCKS][SHARERS], row_shrink[BLOCKS][SHARERS];
    Halves scales[BLOCKS][SHARERS][4];
    // Where copies run ahead, the quants of the next step.
    u32x4 quants[target::COPIES_AHEAD ? COLUMNS * BLOCKS * 16 : 1];
};
template <typename Step> union HalvesPlace {
    Step step;
    // Of the waves that share rows.
    float results[Step::BLOCKS * 2][Step::COLUMNS * Step::ROWS];
};

// What a thread carries to LDS: 16 bytes each of a row, and the sixteenths of blocks of columns.
template <typename Format, typename Step> struct HalvesCarried {
    static constexpr u32 THREADS = Step::THREADS;
    // Threads that share a row, and those of them that share the scales of a block.
    static constexpr u32 SHARERS = THREADS / Step::ROWS, PACKS = (Step::PACKS + SHARERS - 1) / SHARERS, UNPACKERS = SHARERS / Step::BLOCKS;
    // What the block's threads take of columns and blocks at once.
    static constexpr u32 AT_ONCE = THREADS / 16, COLUMNS = AT_ONCE < Step::COLUMNS ? AT_ONCE : Step::COLUMNS;
    static constexpr u32 BLOCKS = AT_ONCE / COLUMNS < Step::BLOCKS ? AT_ONCE / COLUMNS : Step::BLOCKS;
    static constexpr u32 TIMES = Step::COLUMNS / COLUMNS, SHARE = TIMES * Step::BLOCKS / BLOCKS, USED = COLUMNS * BLOCKS * 16;

    u32x4 packs[target::COPIES_AHEAD ? 1 : PACKS];
    u32x4 quants[target::COPIES_AHEAD ? 1 : SHARE];
    float d[SHARE];

    // Where the 16 bytes of a row that a step begins in lie, and how far behind that it begins.
    static DEVICE_FN u32 start(u32 step) { return step * Step::BLOCKS * Format::BYTES / 16 * 16; }
    static DEVICE_FN u32 behind(u32 step) { return Format::ALIGNED ? 0 : step * Step::BLOCKS * Format::BYTES % 16; }

    // What the thread takes. Made anew in each step: kept, it would be most of the registers.
    struct Task {
        u32 thread = anew(thread_x());
        DEVICE_FN u32 row() const { return thread / SHARERS; }
        DEVICE_FN u32 pack(u32 i) const { return thread % SHARERS + i * SHARERS; }
        DEVICE_FN u32 sixteenth() const { return thread % 16; }
        DEVICE_FN u32 column(u32 i) const { return thread / 16 % COLUMNS + i % TIMES * COLUMNS; }
        DEVICE_FN u32 block(u32 i) const { return thread / 16 / COLUMNS + i / TIMES * BLOCKS; }
        // Of columns.
        DEVICE_FN bool exists() const { return USED == THREADS || thread < USED; }
    };

    // What the thread finds in its first step.
    static DEVICE_FN void begin(Step& to) {
        const Task task;
        for (u32 i = 0; i < SHARE; ++i) {
            if (task.exists()) to.power[1][task.block(i)][task.column(i)] = halves::LEAST_POWER;
        }
        if constexpr (Step::SHARED) to.row_power[1][task.thread % SHARERS / UNPACKERS][task.row()] = halves::LEAST_POWER;
    }

    // A row that does not exist, and columns beyond the last, are zeros.
    DEVICE_FN void load(const Matvec& m, u32 first_row, const Activations& x, u32 step, Step& to) {
        const Task task;
        // The second group may be of another matrix.
        const bool is_up = Step::GROUPS == 2 && m.up && task.row() >= 32;
        const u32 row = first_row + task.row() - (is_up ? 32 : 0);
        const bool has_row = row < m.rows;
        const u8* const weights = (is_up ? m.up : m.weights) + (has_row ? (u64)row * m.row_bytes : 0);
        for (u32 i = 0; i < PACKS; ++i) {
            if (Step::PACKS % SHARERS != 0 && task.pack(i) >= Step::PACKS) break;
            const u32 at = start(step) + task.pack(i) * 16;
            const bool exists = has_row && at < m.row_bytes;
            const u32x4* const from = (const u32x4*)(weights + (exists ? at : 0));
            if constexpr (target::COPIES_AHEAD) {
                target::copy_ahead(&to.rows[step % Step::PLACES][task.row()][task.pack(i)], from, exists);
            } else {
                packs[i] = exists ? *from : u32x4{};
            }
        }
        for (u32 i = 0; i < SHARE; ++i) {
            if (!task.exists()) break;
            const u32 k = (step * Step::BLOCKS + task.block(i)) * Format::ELEMENTS + task.sixteenth() * 16;
            const bool exists = task.column(i) < x.columns && k < x.stride;
            const u64 at = exists ? (u64)task.column(i) * x.stride + k : 0;
            d[i] = exists ? x.scales[at / 32].d : 0;
            const u32x4* const from = (const u32x4*)x.quants + at / 16;
            if constexpr (target::COPIES_AHEAD) {
                target::copy_ahead(&to.quants[i * THREADS + task.thread], from, exists);
            } else {
                quants[i] = exists ? *from : u32x4{};
            }
        }
    }

    DEVICE_FN void store(Step& to, u32 step) {
        const Task task;
        if constexpr (target::COPIES_AHEAD) {
            target::copies_arrive();
        } else {
            for (u32 i = 0; i < PACKS; ++i) {
                if (Step::PACKS % SHARERS != 0 && task.pack(i) >= Step::PACKS) break;
                to.rows[0][task.row()][task.pack(i)] = packs[i];
            }
        }
        if constexpr (Step::SHARED) unpack_scales(task, to, step);
        for (u32 i = 0; i < SHARE; ++i) {
            // Whole waves do, or none.
            if (!task.exists()) break;
            store_columns(task, i, to, step);
        }
    }

    // By threads of one wave, which have copied the row.
    static DEVICE_FN void unpack_scales(const Task& task, Step& to, u32 step) {
        wave_sync();
        const u32 row = task.row(), block = task.thread % SHARERS / UNPACKERS;
        const u8* const at = (const u8*)to.rows[step % Step::PLACES][row] + block * Format::BYTES;
        const float before = to.row_power[(step + 1) % 2][block][row];
        const Above above = Above(Format::largest(at)).at_least(before);
        const u32 own = task.thread % UNPACKERS;
        if (own == 0) to.row_power[step % 2][block][row] = above.power, to.row_shrink[block][row] = before * above.inverse;
        for (u32 i = 0; i < 4 / UNPACKERS; ++i) {
            const u32 chunk = own * (4 / UNPACKERS) + i;
            to.scales[block][row][chunk] = Format::scales(at, chunk, 0, above.inverse);
        }
    }

    DEVICE_FN void store_columns(const Task& task, u32 i, Step& to, u32 step) const {
        u32 largest = bit_cast<u32>(d[i]) & 0x7fffffffu;
        for (u32 mask = 2; mask < 16; mask *= 2) {
            const u32 other = shfl_xor(largest, mask);
            largest = other > largest ? other : largest;
        }
        const u32 column = task.column(i), block = task.block(i);
        const float before = to.power[(step + 1) % 2][block][column];
        const Above above = Above(bit_cast<float>(largest)).at_least(before);
        if (task.sixteenth() == 0) to.power[step % 2][block][column] = above.power, to.shrink[block][column] = before * above.inverse;
        // Quants are bytes plus 128, as the bits of a binary16.
        const u32 by = both_halves(d[i] * above.inverse * halves::GROW), plus = multiply_add_halves(by, both_halves(-0x1p-17f), 0);
        u32x4 all;
        if constexpr (target::COPIES_AHEAD) {
            all = to.quants[i * THREADS + task.thread];
        } else {
            all = quants[i];
        }
        const u32 chunk = Format::chunk(task.sixteenth());
        u16(*const planes)[Step::PLANE] = to.columns[block] + Format::piece(task.sixteenth()) * Chunks::PLANES;
        for (u32 w = 0; w < 4; ++w) {
            const u32 run = Format::half(task.sixteenth()) * 4 + w, q = all[w] ^ 0x80808080u;
            u32* const pairs = (u32*)(planes[Chunks::plane(chunk, run)] + column * Step::K + Chunks::place(chunk, run));
            for (u32 odd = 0; odd < 2; ++odd) pairs[odd] = multiply_add_halves(q >> (8 * odd) & 0x00ff00ffu, by, plus);
        }
    }
};

// A wave's results: two tiles of 16 rows times the columns, in units of the largest powers so far.
template <typename Format, typename Step> struct HalvesSums {
    using Fragment = matrix::Fragment<f16>;
    using Sums = matrix::Accumulator<float>;
    static constexpr u32 HELD = matrix::COLUMNS, PER_LANE = Sums::VALUES, TILES = Step::TILES;

    const u32 group, block, piece;
    Sums v[2][TILES];
    float power[2][HELD];

    DEVICE_FN HalvesSums(u32 wave) : group(wave % Step::GROUPS), block(wave / Step::GROUPS / 2), piece(wave / Step::GROUPS % 2) {
        for (u32 r = 0; r < 2; ++r) {
            for (u32 t = 0; t < TILES; ++t) v[r][t] = Sums::zero();
            for (u32 h = 0; h < HELD; ++h) power[r][h] = halves::LEAST_POWER;
        }
    }

    // Whether the tile's i-th value is of a column that there is.
    static DEVICE_FN bool is_column(u32 t, u32 i) { return Step::COLUMNS >= matrix::TILE || i % Sums::ROWS < Sums::ROWS / 2; }
    DEVICE_FN u32 row(u32 r, u32 h) const { return group * 32 + r * matrix::TILE + matrix::held(h); }
    DEVICE_FN const u8* packed(const Step& step, u32 place, u32 behind, u32 r, u32 h) const {
        return (const u8*)step.rows[place][row(r, h)] + behind + block * Format::BYTES;
    }

    // What lies so many bytes `behind` the start of the rows.
    DEVICE_FN void add(const Step& step, u32 place, u32 behind) {
        CONTRACT
        float shrink[2][HELD];
        for (u32 r = 0; r < 2; ++r) {
            for (u32 h = 0; h < HELD; ++h) {
                if constexpr (Step::SHARED) {
                    shrink[r][h] = step.row_shrink[block][row(r, h)];
                } else {
                    const float before = power[r][h];
                    power[r][h] = Above(Format::largest(packed(step, place, behind, r, h))).at_least(before).power;
                    shrink[r][h] = before * Above::inverse_of(power[r][h]);
                }
            }
        }
        for (u32 t = 0; t < TILES; ++t) {
            for (u32 i = 0; i < PER_LANE; ++i) {
                if (!is_column(t, i)) continue;
                const float by = step.shrink[block][t * matrix::TILE + Sums::row(i)];
                for (u32 r = 0; r < 2; ++r) v[r][t].values[i] *= shrink[r][i / Sums::ROWS] * by;
            }
        }
#pragma unroll 1
        for (u32 set = 0; set < Chunks::SETS; ++set) multiply(step, place, behind, set);
    }

    // A set of chunks.
    DEVICE_FN void multiply(const Step& step, u32 place, u32 behind, u32 set) {
        Piece<Format> pieces[2][HELD];
        for (u32 r = 0; r < 2; ++r) {
            for (u32 h = 0; h < HELD; ++h) {
                const u8* const at = packed(step, place, behind, r, h);
                Format::read(at, Chunks::own(set), piece, block * Format::BYTES % 4 != 0, pieces[r][h].words);
                if constexpr (Step::SHARED) {
                    pieces[r][h].scale = step.scales[block][row(r, h)][Chunks::own(set)];
                } else {
                    pieces[r][h].scale = Format::scales(at, Chunks::own(set), piece, Above::inverse_of(power[r][h]));
                }
            }
        }
        for (u32 s = 0; s < Chunks::STEPS; ++s) {
            const f16* const plane = (const f16*)step.columns[block][piece * Chunks::PLANES + set * Chunks::STEPS + s];
            Fragment columns[TILES];
            for (u32 t = 0; t < TILES; ++t) {
                if constexpr (Step::COLUMNS < matrix::TILE) {
                    columns[t].bits[0] = Fragment::load_lane(plane + matrix::held(0) * Step::K + Fragment::k(0));
                } else {
                    columns[t] = Fragment::load(plane + t * matrix::TILE * Step::K, Step::K);
                }
            }
            for (u32 r = 0; r < 2; ++r) {
                Fragment weights;
                for (u32 h = 0; h < HELD; ++h) {
                    struct {
                        u32 w[2 * Chunks::RUNS];
                    } words;
                    for (u32 i = 0; i < 2 * Chunks::RUNS; ++i) words.w[i] = Format::pair(pieces[r][h], piece, s * Chunks::RUNS + i / 2, i % 2);
                    weights.bits[h] = bit_cast<typename Fragment::Bits>(words);
                }
                for (u32 t = 0; t < TILES; ++t) {
#if MATRIX_MMA
                    if constexpr (Step::COLUMNS < matrix::TILE) {
                        matrix::multiply_rows<f16>(columns[t].bits[0], weights, &v[r][t].values[0], &v[r][t].values[Sums::ROWS]);
                        continue;
                    }
#endif
                    matrix::multiply<f16>(columns[t], weights, v[r][t]);
                }
            }
        }
    }

    // Back to units of 1, behind the step `last`.
    DEVICE_FN void finish(const Step& step, u32 last) {
        for (u32 r = 0; r < 2; ++r) {
            for (u32 h = 0; h < HELD; ++h) {
                if constexpr (Step::SHARED) power[r][h] = step.row_power[last % 2][block][row(r, h)];
            }
        }
        for (u32 t = 0; t < TILES; ++t) {
            for (u32 i = 0; i < PER_LANE; ++i) {
                if (!is_column(t, i)) continue;
                const float by = step.power[last % 2][block][t * matrix::TILE + Sums::row(i)] * halves::UNIT;
                for (u32 r = 0; r < 2; ++r) v[r][t].values[i] = v[r][t].values[i] * power[r][i / Sums::ROWS] * by;
            }
        }
    }

    // Writes the lane's values to where those of its block and piece are.
    DEVICE_FN void write(float (*results)[Step::COLUMNS * Step::ROWS]) const {
        for (u32 r = 0; r < 2; ++r) {
            for (u32 t = 0; t < TILES; ++t) {
                for (u32 i = 0; i < PER_LANE; ++i) {
                    if (!is_column(t, i)) continue;
                    const u32 column = t * matrix::TILE + Sums::row(i);
                    results[block * 2 + piece][column * Step::ROWS + row(r, i / Sums::ROWS)] = v[r][t].values[i];
                }
            }
        }
    }
};

template <typename Format, u32 COLUMNS, u32 GROUPS, u32 BLOCKS> DEVICE_FN void matmul_halves(const Matvec& m, const Activations& x, const Output& output) {
    using Step = HalvesStep<Format, COLUMNS, GROUPS, BLOCKS>;
    using Carried = HalvesCarried<Format, Step>;
#if MATRIX_MMA
    extern __shared__ u32x4 dynamic_lds[];
    constexpr u32 TALL = COLUMNS == 8 ? TALL_BYTES_8 : COLUMNS == 16 ? TALL_BYTES_16 : TALL_BYTES_32;
    constexpr u32 LOW = COLUMNS == 8 ? LOW_BYTES_8 : COLUMNS == 16 ? LOW_BYTES_16 : LOW_BYTES_32;
    static_assert(sizeof(HalvesPlace<Step>) <= (GROUPS == 2 ? TALL : LOW), "the host knows");
    HalvesPlace<Step>& place = *(HalvesPlace<Step>*)dynamic_lds;
#else
    __shared__ HalvesPlace<Step> place;
#endif
    const bool is_gated = GROUPS == 2 && m.up;
    const u32 rows = is_gated ? 32 : Step::ROWS;
    const u32 blocks = x.stride / Format::ELEMENTS, steps = (blocks + BLOCKS - 1) / BLOCKS, tiles = (m.rows + rows - 1) / rows;
    for (u64 tile = block_x(); tile < tiles; tile += grid_dim()) {
        const u32 first_row = (u32)tile * rows;
        HalvesSums<Format, Step> sums(thread_x() / WAVE);
        Carried carried;
        carried.begin(place.step);
        carried.load(m, first_row, x, 0, place.step);
#pragma unroll 1
        for (u32 step = 0; step < steps; ++step) {
            carried.store(place.step, step);
            barrier();
            if (step + 1 < steps) carried.load(m, first_row, x, step + 1, place.step);
            sums.add(place.step, step % Step::PLACES, Carried::behind(step));
            barrier();
        }
        sums.finish(place.step, steps - 1);
        barrier();
        sums.write(place.results);
        barrier();
        for (u32 i = thread_x(); i < Step::COLUMNS * rows; i += Step::THREADS) {
            const u32 in_tile = i % rows, row = first_row + in_tile, column = i / rows;
            if (row >= m.rows || column >= x.columns) continue;
            const auto sum = [&](u32 at) {
                float sum = place.results[0][column * Step::ROWS + at];
                for (u32 s = 1; s < BLOCKS * 2; ++s) sum += place.results[s][column * Step::ROWS + at];
                return sum;
            };
            const u64 at = (u64)column * m.rows + row;
            if (is_gated) {
                finish_gated(output, at, sum(in_tile), sum(in_tile + 32));
            } else {
                finish(output, at, row, sum(in_tile));
            }
        }
        barrier();
    }
}

}  // namespace device

// Matrices with many rows in tiles of 64, others in tiles of 32 and half of the steps, where LDS has the room. On nvptx,
// 128 registers.
#define MATMUL_HALVES_OF(FORMAT, COLUMNS, NAME, GROUPS, BLOCKS)                                                                         \
    extern "C" __global__ MAX_BLOCK_OF(GROUPS * BLOCKS * 2 * WAVE, 2) void matmul_halves_##NAME##_##COLUMNS##_##FORMAT(                 \
        Matvec m, Activations x, Output output) {                                                                                       \
        matmul_halves<halves::FORMAT, COLUMNS, GROUPS, BLOCKS>(m, x, output);                                                           \
    }
#define MATMUL_HALVES(FORMAT)                          \
    MATMUL_HALVES_OF(FORMAT, 8, tall, 2, 2)            \
    MATMUL_HALVES_OF(FORMAT, 16, tall, 2, 2)           \
    MATMUL_HALVES_OF(FORMAT, 32, tall, 2, 2)           \
    MATMUL_HALVES_OF(FORMAT, 8, low, 1, LOW_BLOCKS)    \
    MATMUL_HALVES_OF(FORMAT, 16, low, 1, LOW_BLOCKS)   \
    MATMUL_HALVES_OF(FORMAT, 32, low, 1, LOW_BLOCKS)
#else
#define MATMUL_HALVES(FORMAT)
#endif

#endif
