// Rows of a quantized table as floats. Each thread reads and writes 8 consecutive elements.
#include "index_error.h"
#include "iq.h"

struct alignas(32) Eight {
    float element[blocks::GROUP];
};

// y[i] = table[ids[i]], of `groups` times 8 elements each. An id beyond the table gives zeros and is reported, but for
// the largest number, which names no row.
template <typename Format>
DEVICE_FN void embedding(u32 rows, u32 groups, u64 count, u32 op, const u8* table, const u32* ids, IndexError* error, Eight* y) {
    constexpr u32 GROUPS_PER_BLOCK = Format::ELEMENTS / blocks::GROUP;
    const u64 row_bytes = (u64)(groups / GROUPS_PER_BLOCK) * Format::BYTES;
    for (u64 i = global_index(); i < count; i += global_size()) {
        const u64 place = i / groups;
        const u32 group = (u32)(i - place * groups), id = ids[place];
        Eight values = {};
        if (id < rows) {
            Format::read(table + id * row_bytes + (u64)(group / GROUPS_PER_BLOCK) * Format::BYTES, group % GROUPS_PER_BLOCK, values.element);
        } else if (id != 0xffffffffu) {
            report_index(error, op, rows, id);
        }
        y[i] = values;
    }
}

#define EMBEDDING(FORMAT)                                                                                                              \
    extern "C" __global__ MAX_BLOCK(256) void embedding_##FORMAT(u32 rows, u32 groups, u64 count, u32 op, const u8* table,             \
                                                                 const u32* ids, IndexError* error, Eight* y) {                        \
        embedding<blocks::FORMAT>(rows, groups, count, op, table, ids, error, y);                                                      \
    }

EMBEDDING(q4_0)
EMBEDDING(q4_1)
EMBEDDING(q5_0)
EMBEDDING(q5_1)
EMBEDDING(q8_0)
EMBEDDING(q8_1)
EMBEDDING(q2k)
EMBEDDING(q3k)
EMBEDDING(q4k)
EMBEDDING(q5k)
EMBEDDING(q6k)
EMBEDDING(q8k)
EMBEDDING(iq1_s)
EMBEDDING(iq1_m)
EMBEDDING(iq2_xxs)
EMBEDDING(iq2_xs)
EMBEDDING(iq2_s)
EMBEDDING(iq3_xxs)
EMBEDDING(iq3_s)
EMBEDDING(iq4_nl)
EMBEDDING(iq4_xs)
EMBEDDING(tq1_0)
EMBEDDING(tq2_0)
EMBEDDING(mxfp4)
EMBEDDING(nvfp4)
EMBEDDING(f8_e4m3)
