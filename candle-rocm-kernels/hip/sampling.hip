// The choice of next tokens from rows of logits. A block has a row and reads it a few times for each filter; nothing is
// sorted: a filter is a threshold, found by halving the range of what a float can be.
//
// The draw adds a number of the Gumbel distribution to each score, a function of seed, position and token alone, and
// takes the largest sum.
#include "device.h"
#include "shared/sampling.h"

// No Gumbel number is larger, or smaller.
constexpr float MOST_GUMBEL = 17.5f;
constexpr float LEAST_GUMBEL = -3.f;

struct Most {
    template <typename T> static DEVICE_FN T apply(T a, T b) { return a > b ? a : b; }
    template <typename T> static DEVICE_FN T identity() { return T(0); }
};

// A function, because not every compiler has it as a constant.
DEVICE_FN float lowest() { return -__builtin_inff(); }

extern "C" __global__ void sampling_edit(float* logits, const Edit* edits, u32 count, u32 vocab) {
    for (u64 i = global_index(); i < count; i += global_size()) {
        const Edit edit = edits[i];
        float* at = logits + (u64)edit.row * vocab + edit.token;
        const float logit = *at + edit.bias;
        *at = (logit > 0.f ? logit / edit.penalty : logit * edit.penalty) - edit.subtract;
    }
}

// Row rows[i] keeps the tokens whose bit is set in masks[i].
extern "C" __global__ void sampling_mask(float* logits, const u32* rows, const u32* masks, u32 count, u32 vocab) {
    const u32 words = (vocab + 31) / 32;
    for (u64 i = global_index(); i < (u64)count * vocab; i += global_size()) {
        const u32 row = (u32)(i / vocab);
        const u32 token = (u32)(i % vocab);
        if (!(masks[(u64)row * words + token / 32] >> token % 32 & 1)) logits[(u64)rows[row] * vocab + token] = lowest();
    }
}

// Whole numbers in the order of floats; minus zero counts as zero.
DEVICE_FN u32 ordered(float x) {
    const u32 bits = bit_cast<u32>(x + 0.f);
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}
DEVICE_FN float unordered(u32 key) { return bit_cast<float>(key >> 31 ? key & 0x7fffffffu : ~key); }

// A value and its token: the larger value first, of equal ones the lower token. NaN comes before all numbers.
constexpr u32 NAN_KEY = 0xffffffffu;
DEVICE_FN u64 rank(float value, u32 token) { return (u64)(is_nan(value) ? NAN_KEY : ordered(value)) << 32 | (u32)~token; }

struct Filter {
    float score;    // at least
    float ceiling;  // at most
    u32 token;      // up to, where the score is `tie`
    float tie;
    float mean;
    float distance;  // from the mean at most

    DEVICE_FN bool keeps(float s, u32 t) const {
        return s >= score && s <= ceiling && !(s == tie && t > token) && (s > mean ? s - mean : mean - s) <= distance;
    }
};

DEVICE_FN float gumbel(u32 seed_low, u32 seed_high, u32 position, u32 token) {
    u32 c0 = token, c1 = position, c2 = 0, c3 = 0;
    for (u32 round = 0; round < 10; ++round) {
        const u64 a = (u64)c0 * 0xd2511f53u;
        const u64 b = (u64)c2 * 0xcd9e8d57u;
        c0 = (u32)(b >> 32) ^ c1 ^ seed_low;
        c1 = (u32)b;
        c2 = (u32)(a >> 32) ^ c3 ^ seed_high;
        c3 = (u32)a;
        seed_low += 0x9e3779b9u;
        seed_high += 0xbb67ae85u;
    }
    const float uniform = ((float)(c0 >> 8) + 0.5f) * 0x1p-24f;
    return -math::log(-math::log(uniform));
}

// One row, and what a block asks of it. Every thread gets every answer.
struct Row {
    const float* logits;
    u32 vocab;
    float max;
    float temperature;

    DEVICE_FN float score(float logit) const { return (logit - max) / temperature; }

    // f(logit, token) for each of the thread's tokens, in ascending order. A block has a row for itself, so that its
    // loads have to hide each other's latency.
    template <typename F> DEVICE_FN void each(F f) const {
        constexpr u32 AT_ONCE = 8;
        u32 token = thread_x();
        for (; token + (AT_ONCE - 1) * block_dim() < vocab; token += AT_ONCE * block_dim()) {
            float some[AT_ONCE];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) some[i] = logits[token + i * block_dim()];
#pragma unroll
            for (u32 i = 0; i < AT_ONCE; ++i) f(some[i], token + i * block_dim());
        }
        for (; token < vocab; token += block_dim()) f(logits[token], token);
    }
    template <typename F> DEVICE_FN u32 count(F f) const {
        __shared__ u32 scratch[MAX_WAVES];
        u32 n = 0;
        each([&](float logit, u32 token) { n += f(score(logit), token) ? 1 : 0; });
        return block_reduce<Sum>(n, scratch);
    }
    template <typename F> DEVICE_FN float sum(F f) const {
        __shared__ float scratch[MAX_WAVES];
        float total = 0.f;
        each([&](float logit, u32 token) { total += f(score(logit), token); });
        return block_reduce<Sum>(total, scratch);
    }
    // The first by rank of what f gives, where that is not minus infinity; 0 if nowhere.
    template <typename F> DEVICE_FN u64 best(F f) const {
        __shared__ u64 scratch[MAX_WAVES];
        u64 best = 0;
        each([&](float logit, u32 token) {
            const float value = f(logit, token);
            if (value > lowest() || is_nan(value)) best = Most::apply(best, rank(value, token));
        });
        return block_reduce<Most>(best, scratch);
    }
};

// The largest whole number from 0 to `most` for which f holds, which holds for 0 and, once it does not, for none above.
template <typename F> DEVICE_FN u32 last_where(u32 most, F f) {
    u32 low = 0, high = most;
    while (low < high) {
        const u32 middle = low + (high - low) / 2 + 1;
        if (f(middle)) low = middle;
        else high = middle - 1;
    }
    return low;
}

// No temperature is lower: below, the most likely token is all that is left.
constexpr float LEAST_TEMPERATURE = 1e-3f;

// The least score that is near enough to the largest in standard deviations, and a temperature by how sure the model is.
DEVICE_FN void prepare(Row& row, Filter& filter, const Choice& choice) {
    const float temperature = row.temperature;
    row.temperature = 1.f;
    const auto each_kept = [&](auto f) {
        return row.sum([&](float s, u32) { return s > lowest() && s >= filter.score ? f(s) : 0.f; });
    };
    if (choice.top_n_sigma > 0.f) {
        const float count = each_kept([](float) { return 1.f; });
        const float mean = each_kept([](float s) { return s; }) / count;
        const float square = each_kept([&](float s) { return (s - mean) * (s - mean); });
        filter.score = -choice.top_n_sigma * math::sqrt(square / count);
    }
    row.temperature = temperature;
    if (choice.dynamic_range > 0.f) {
        row.temperature = 1.f;
        const float count = each_kept([](float) { return 1.f; });
        const float total = each_kept([](float s) { return math::exp(s); });
        const float mean = each_kept([](float s) { const float w = math::exp(s); return w > 0.f ? w * s : 0.f; }) / total;
        const float entropy = math::log(total) - mean;
        const float share = count > 1.f ? Most::apply(entropy, 0.f) / math::log(count) : 0.f;
        const float least = Most::apply(temperature - choice.dynamic_range, 0.f);
        // To the power of 0 all are 1.
        const float power = choice.dynamic_exponent == 0.f ? 1.f : share > 0.f ? math::exp(choice.dynamic_exponent * math::log(share)) : 0.f;
        row.temperature = Most::apply(least + (temperature + choice.dynamic_range - least) * (power < 1.f ? power : 1.f), LEAST_TEMPERATURE);
    }
    filter.score /= row.temperature;
}

DEVICE_FN u32 draw(Row& row, const Choice& choice) {
    Filter filter{lowest(), -lowest(), 0xffffffffu, lowest(), 0.f, -lowest()};
    if (choice.top_n_sigma > 0.f || choice.dynamic_range > 0.f) prepare(row, filter, choice);
    const auto weight = [&](float s, u32 t) { return s > lowest() && filter.keeps(s, t) ? math::exp(s) : 0.f; };
    // Those that are left out by their deviation are among the least.
    if (choice.top_k && choice.top_k < row.vocab) {
        // Scores are not above 0.
        const u32 key = last_where(ordered(0.f), [&](u32 key) {
            return row.count([&](float s, u32) { return ordered(s) >= key; }) >= choice.top_k;
        });
        const float least = unordered(key);
        const u32 above = row.count([&](float s, u32) { return s > least; });
        // Of those with the least score, as many as are missing, the lowest tokens.
        const u32 missing = choice.top_k - above;
        const u32 ties = row.count([&](float s, u32) { return s == least; });
        const u32 token = ties == missing ? row.vocab - 1 : last_where(row.vocab - 1, [&](u32 last) {
            return row.count([&](float s, u32 t) { return s == least && t < last; }) < missing;
        });
        filter.score = Most::apply(filter.score, least);
        filter.tie = least;
        filter.token = token;
    }
    if (choice.typical_p < 1.f) {
        const float total = row.sum(weight);
        filter.mean = row.sum([&](float s, u32 t) { const float w = weight(s, t); return w > 0.f ? w * s : 0.f; }) / total;
        const auto within = [&](float distance) {
            return row.sum([&](float s, u32 t) {
                const float w = weight(s, t);
                return (s > filter.mean ? s - filter.mean : filter.mean - s) <= distance ? w : 0.f;
            });
        };
        // The smallest distance that has the share: the one after the last that has not.
        const u32 infinity = bit_cast<u32>(__builtin_inff());
        const u32 last = last_where(infinity, [&](u32 key) { return within(bit_cast<float>(key - 1)) < choice.typical_p * total; });
        filter.distance = bit_cast<float>(last);
    }
    if (choice.top_p < 1.f) {
        const float total = row.sum(weight);
        const u32 key = last_where(ordered(0.f), [&](u32 key) {
            return row.sum([&](float s, u32 t) { return ordered(s) >= key ? weight(s, t) : 0.f; }) >= choice.top_p * total;
        });
        filter.score = Most::apply(filter.score, unordered(key));
    }
    const auto kept = [&](float logit, u32 token) {
        const float s = row.score(logit);
        return filter.keeps(s, token) ? s : lowest();
    };
    const u64 first = row.best(kept);
    float most = unordered((u32)(first >> 32));
    filter.score = Most::apply(filter.score, most + choice.log_min_p);
    if (choice.xtc_threshold < 1.f) {
        const float wanted = choice.xtc_threshold * row.sum(weight);
        const u64 last = row.best([&](float logit, u32 token) {
            const float s = kept(logit, token);
            return s > lowest() && math::exp(s) >= wanted ? -s : lowest();
        });
        if (last) most = filter.ceiling = -unordered((u32)(last >> 32));
    }
    const float hopeless = most + LEAST_GUMBEL - MOST_GUMBEL;
    const u64 chosen = row.best([&](float logit, u32 token) {
        const float s = kept(logit, token);
        return s >= hopeless && s > lowest() ? s + gumbel(choice.seed[0], choice.seed[1], choice.position, token) : lowest();
    });
    return ~(u32)chosen;
}

extern "C" __global__ void sampling_choose(const float* logits, const Choice* choices, u32* tokens, u32 rows, u32 vocab) {
    for (u32 index = block_x(); index < rows; index += grid_dim()) {
        const Choice choice = choices[index];
        Row row{logits + (u64)index * vocab, vocab, 0.f, 1.f};
        const u64 first = row.best([](float logit, u32) { return logit; });
        u32 token = ~(u32)first;
        if ((u32)(first >> 32) == NAN_KEY) {
            token = NOT_A_NUMBER;
        } else if (!first) {
            token = NOTHING_LEFT;
        } else if (choice.temperature > 0.f) {
            row.max = unordered((u32)(first >> 32));
            row.temperature = choice.temperature;
            token = draw(row, choice);
        }
        if (thread_x() == 0) tokens[index] = token;
        barrier();
    }
}

// For row rows[i]: the logarithm of the probability of its chosen token, then those of the `top` most likely, most
// likely first, and these tokens.
extern "C" __global__ void sampling_report(const float* logits, const u32* rows, const u32* chosen, u32* tokens, float* values, u32 count, u32 top, u32 vocab) {
    for (u32 index = block_x(); index < count; index += grid_dim()) {
        Row row{logits + (u64)rows[index] * vocab, vocab, 0.f, 1.f};
        u64 last = row.best([](float logit, u32) { return logit; });
        row.max = unordered((u32)(last >> 32));
        const float normaliser = row.max + math::log(row.sum([&](float s, u32) { return math::exp(s); }));
        float* out = values + (u64)index * (top + 1);
        const u32 token = chosen[rows[index]];
        if (thread_x() == 0) out[0] = token < vocab ? row.logits[token] - normaliser : 0.f;
        for (u32 place = 0; place < top; ++place) {
            if (thread_x() == 0) {
                out[place + 1] = unordered((u32)(last >> 32)) - normaliser;
                tokens[(u64)index * top + place] = ~(u32)last;
            }
            const u64 before = last;
            last = row.best([&](float logit, u32 token) { return rank(logit, token) < before ? logit : lowest(); });
        }
        barrier();
    }
}
