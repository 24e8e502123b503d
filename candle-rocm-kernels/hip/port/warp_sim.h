// A warp's lanes on the simulator, exactly as CUDA names them in masks. Included by warp.h.
//
// The simulator's exchange is one of all living lanes of a wave. Lanes that want different things, as when one half of a
// wave shuffles and the other waits at a barrier, therefore meet in rounds of two exchanges: in the first each shows what
// it waits for and with whom; in the second those whose partners all wait for the same do it, and the others try again.
#ifndef CANDLE_ROCM_PORT_WARP_SIM_H
#define CANDLE_ROCM_PORT_WARP_SIM_H

namespace cuda_port {
namespace port {

PORT_FN unsigned lane() { return hip_sim_lane() & 31u; }
PORT_FN unsigned first_lane() { return hip_sim_lane() & 32u; }

// What a lane waits for. (All ones are lanes that have exited.)
enum wish : unsigned { PULL = 1, VOTE, MEET, HERE, BARRIER };

// The values of the warp, by lane, and which lanes are in it together.
struct round {
    const unsigned long long* values;
    unsigned group;
};

// Which lanes of the wave can go on in this round, given what each shows.
inline unsigned long long able(const unsigned long long* shown, unsigned long long living, unsigned long long mine) {
    bool same = true;
    for (unsigned i = 0; i < HIP_SIM_WAVE; ++i) same = same && (!(living >> i & 1u) || shown[i] == mine);
    if (same) return living;
    unsigned long long satisfied = 0;
    for (unsigned i = 0; i < HIP_SIM_WAVE; ++i) {
        const unsigned what = (unsigned)(shown[i] >> 32);
        if (!(living >> i & 1u) || what == BARRIER || what == HERE) continue;
        const unsigned base = i & 32u;
        const unsigned with = (unsigned)(living >> base) & ((unsigned)shown[i] | 1u << (i & 31u));
        bool agree = true;
        for (unsigned j = 0; j < 32u && agree; ++j) agree = !(with >> j & 1u) || shown[base + j] == shown[i];
        if (agree) satisfied |= 1ull << i;
    }
    // HERE is for whoever comes to that line: it ends when nobody else in the warp can go on.
    const unsigned long long left = satisfied;
    for (unsigned i = 0; i < HIP_SIM_WAVE; ++i) {
        const bool others = (unsigned)(left >> (i & 32u)) != 0;
        if ((living >> i & 1u) && (unsigned)(shown[i] >> 32) == HERE && !others) satisfied |= 1ull << i;
    }
    return satisfied;
}

// Waits until the living lanes of `mask` are here with the same wish, and exchanges values with them. BARRIER is for the
// whole wave.
template <int> inline round among(wish what, unsigned mask, unsigned long long value, unsigned line) {
    const unsigned long long mine = (unsigned long long)what << 32 | mask;
    const unsigned own = hip_sim_lane();
    for (;;) {
        const unsigned long long* const shown = hip_sim_wave_exchange(mine);
        const unsigned long long living = hip_sim_wave_mask();
        const unsigned long long satisfied = able(shown, living, mine);
        unsigned group = 0;
        bool barriers = false;
        for (unsigned i = 0; i < HIP_SIM_WAVE; ++i) {
            if (!(living >> i & 1u)) continue;
            barriers = barriers || (unsigned)(shown[i] >> 32) == BARRIER;
            if (shown[i] == mine && (i & 32u) == (own & 32u)) group |= 1u << (i & 31u);
        }
        if (satisfied == 0) {
            // Nobody will go on: the simulator then says which lines wait, or, without a barrier among them, that lanes do
            // (in "lines" that are their numbers).
            if (what == BARRIER || !barriers) hip_sim_syncthreads(what == BARRIER ? line : own);
            continue;
        }
        const unsigned long long* const values = hip_sim_wave_exchange(value);
        if (satisfied >> own & 1u) return {values + (own & 32u), group};
    }
}

PORT_FN unsigned pull(unsigned mask, unsigned v, unsigned source) { return (unsigned)among<0>(PULL, mask, v, 0).values[source]; }
PORT_FN unsigned long long pull(unsigned mask, unsigned long long v, unsigned source) { return among<0>(PULL, mask, v, 0).values[source]; }
PORT_FN unsigned votes(unsigned mask, bool v) {
    const round seen = among<0>(VOTE, mask, v, 0);
    unsigned yes = 0;
    for (unsigned i = 0; i < 32u; ++i) yes |= (seen.group >> i & (unsigned)seen.values[i] & 1u) << i;
    return yes & mask;
}
PORT_FN unsigned here(unsigned line) { return among<0>(HERE, line, 0, 0).group; }
PORT_FN void meet(unsigned mask) { among<0>(MEET, mask, 0, 0); }
PORT_FN void barrier(unsigned line) {
    among<0>(BARRIER, 0, 0, line);
    hip_sim_syncthreads(line);
}

}  // namespace port
}  // namespace cuda_port

#endif
