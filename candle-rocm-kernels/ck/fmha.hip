// Composable Kernel's forward attention as one kernel with arguments of ours. None of its host code is used: the object
// is loaded and launched like any other.
//
// A compilation makes one instance, by macros:
//   CK_KERNEL   name of the kernel
//   CK_HEAD     head size, 64 or 128
//   CK_ELEMENT  fp16_t or bf16_t
//   CK_CAUSAL   1 if a row sees no key after its own, where the last row stands at the last key
//   CK_VARLEN   1 for sequences behind each other, 0 for sequences of one length
//
// Grid: heads, tiles of rows, sequences. Block: four waves. `row_starts` and `key_starts` are running sums of the
// sequences' lengths, from 0; null with sequences of one length.

#include "ck_tile/core.hpp"
#include "ck_tile/ops/epilogue.hpp"
#include "ck_tile/ops/fmha.hpp"

#include "shared/ck.h"

using device::Sizes;

namespace candle {
using namespace ck_tile;

using Element = ck_tile::CK_ELEMENT;
using Mask = SimplifiedGenericAttentionMask<CK_CAUSAL != 0>;
constexpr bool VARLEN = CK_VARLEN != 0;

// Tiles that Composable Kernel's own generator picks for these head sizes: rows, keys, depth of the first product,
// columns and depth of the second, head size.
#if defined(__gfx12__)
using Tile = sequence<64, 64, 32, CK_HEAD, 32, CK_HEAD>;
using WaveTile = sequence<16, 16, 16>;
#else
using Tile = sequence<128, CK_HEAD, 32, CK_HEAD, 32, CK_HEAD>;
using WaveTile = sequence<32, 32, 16>;
#endif
using Waves = sequence<4, 1, 1>;
using Shape = TileFmhaShape<Tile, Waves, WaveTile, Waves, WaveTile, true>;

// Lengths need not be multiples of tiles; no bias, no stored log-sum-exp, no dropout, no scales.
using Traits = TileFmhaTraits<true, true, true, true, false, BlockAttentionBiasEnum::NO_BIAS, false, false, false, false>;
using Variant = ComposedAttention<0, CK_TILE_FMHA_FWD_FAST_EXP2>;
using Problem = BlockFmhaPipelineProblem<Element, Element, Element, float, float, Element, uint8_t, float, Element, float, Element,
                                         Shape, VARLEN, Variant, Mask, false, Traits>;
#if defined(__gfx12__)
using Pipeline = BlockFmhaPipelineQRKSVS<Problem>;
#else
using Pipeline = BlockFmhaPipelineQRKSVSAsync<Problem>;
#endif
using Epilogue = Default2DEpilogue<Default2DEpilogueProblem<float, Element, true, true>>;
using Kernel = FmhaFwdKernel<Pipeline, Epilogue>;
} // namespace candle

extern "C" __global__ __launch_bounds__(candle::Kernel::kBlockSize, candle::Kernel::kBlockPerCu) void 
CK_KERNEL(const void* q, const void* k, const void* v, void* out, const int* row_starts, const int* key_starts, Sizes s) {
    candle::Kernel::Kargs kargs{};
    kargs.q_ptr = q;
    kargs.k_ptr = k;
    kargs.v_ptr = v;
    kargs.o_ptr = out;
    kargs.seqlen_q = s.rows;
    kargs.seqlen_k = s.keys;
    kargs.hdim_q = CK_HEAD;
    kargs.hdim_v = CK_HEAD;
    kargs.num_head_q = s.heads;
    kargs.nhead_ratio_qk = s.heads_per_kv_head;
    // Exponentials are of base 2.
    kargs.scale_s = s.scale * ck_tile::log2e_v<>;
    kargs.stride_q = s.q_row;
    kargs.stride_k = s.k_row;
    kargs.stride_v = s.v_row;
    kargs.stride_o = s.out_row;
    kargs.nhead_stride_q = s.q_head;
    kargs.nhead_stride_k = s.k_head;
    kargs.nhead_stride_v = s.v_head;
    kargs.nhead_stride_o = s.out_head;
#if CK_CAUSAL
    kargs.window_size_left = -1;
    kargs.window_size_right = 0;
    kargs.mask_type = ck_tile::GenericAttentionMaskEnum::MASK_FROM_BOTTOM_RIGHT;
#endif
#if CK_VARLEN
    kargs.seqstart_q_ptr = row_starts;
    kargs.seqstart_k_ptr = key_starts;
#else
    kargs.batch_stride_q = s.q_sequence;
    kargs.batch_stride_k = s.k_sequence;
    kargs.batch_stride_v = s.v_sequence;
    kargs.batch_stride_o = s.out_sequence;
#endif
    candle::Kernel{}(kargs);
}
