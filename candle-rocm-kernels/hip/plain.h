// What a GPU was found to do wrong is not asked of it: the host then compiles everything for it with macros, of 1, for
// which plainer forms take the place of instructions (candle-rocm/src/verify). Included by device.h.
//
//     CANDLE_ROCM_PLAIN_LANES   words between lanes go through ds_bpermute alone: word_across, other_half
//     CANDLE_ROCM_PLAIN_LDS     wave_sync orders memory as a barrier does
//     CANDLE_ROCM_PLAIN_BYTES   bytes, halves and pairs are put together by shifts
//     CANDLE_ROCM_PLAIN_DOT     products of four bytes are four products
//     CANDLE_ROCM_PLAIN_LOADS   nothing is loaded from addresses that are no multiples of its size
//     CANDLE_ROCM_NO_MATRIX     there are no matrix instructions
#ifndef CANDLE_ROCM_PLAIN_H
#define CANDLE_ROCM_PLAIN_H

#ifndef CANDLE_ROCM_PLAIN_LANES
#define CANDLE_ROCM_PLAIN_LANES 0
#endif
#ifndef CANDLE_ROCM_PLAIN_LDS
#define CANDLE_ROCM_PLAIN_LDS 0
#endif
#ifndef CANDLE_ROCM_PLAIN_BYTES
#define CANDLE_ROCM_PLAIN_BYTES 0
#endif
#ifndef CANDLE_ROCM_PLAIN_DOT
#define CANDLE_ROCM_PLAIN_DOT 0
#endif
#ifndef CANDLE_ROCM_PLAIN_LOADS
#define CANDLE_ROCM_PLAIN_LOADS 0
#endif
#ifndef CANDLE_ROCM_NO_MATRIX
#define CANDLE_ROCM_NO_MATRIX 0
#endif

#endif
