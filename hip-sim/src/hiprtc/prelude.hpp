// What device code sees in hip-sim, before its own text. The structs mirror exec/abi.rs.
#define __HIP_SIM__ 1
#define __HIP__ 1
#define __HIPCC__ 1
#define __HIP_DEVICE_COMPILE__ 1
#define __HIP_PLATFORM_AMD__ 1
#define __host__
#define __device__
#define __global__ __hip_sim_global__
#define __shared__ __hip_sim_shared__
#define __constant__
#define __launch_bounds__(...) __hip_sim_launch_bounds__(__VA_ARGS__)
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(n) __attribute__((aligned(n)))

struct hip_sim_index { unsigned x, y, z; };
struct hip_sim_thread { hip_sim_index index; unsigned linear; };
struct hip_sim_block {
    const hip_sim_thread *threads;
    unsigned next, end;
    hip_sim_index block_idx, block_dim, grid_dim;
    void *shared;
};
// The matrix instructions in the order of exec/matrix.rs, and what a lane brings to one.
enum hip_sim_instruction : unsigned {
    hip_sim_mfma_f32_16x16x16_f16, hip_sim_mfma_f32_16x16x16_bf16, hip_sim_mfma_i32_16x16x16_i8, hip_sim_mfma_i32_16x16x32_i8,
    hip_sim_mfma_f32_16x16x32_f16, hip_sim_mfma_f32_16x16x32_bf16, hip_sim_mfma_i32_16x16x64_i8,
    hip_sim_wmma11_f32_16x16x16_f16, hip_sim_wmma11_f32_16x16x16_bf16, hip_sim_wmma11_i32_16x16x16_iu8,
    hip_sim_wmma12_f32_16x16x16_f16, hip_sim_wmma12_f32_16x16x16_bf16, hip_sim_wmma12_i32_16x16x16_iu8,
    hip_sim_m16n8k16_f32_f16, hip_sim_m16n8k16_f32_bf16, hip_sim_m16n8k32_s32_s8,
    hip_sim_mfma_f32_16x16x32_fp8, hip_sim_mfma_f32_16x16x32_fnuz, hip_sim_mfma_f32_32x32x16_fp8, hip_sim_mfma_f32_32x32x16_fnuz,
    hip_sim_wmma12_f32_16x16x16_fp8, hip_sim_m16n8k32_f32_e4m3, hip_sim_mfma_scale_f32_16x16x128_f8f6f4,
};
struct hip_sim_matrix {
    hip_sim_instruction instruction;
    unsigned signs;
    const void *a, *b, *c;
    void *d;
};
struct hip_sim_runtime {
    void (*barrier)(unsigned line);
    unsigned long long *(*exchange)(unsigned linear, unsigned long long value);
    unsigned long long (*mask)(unsigned linear);
    void (*matrix)(unsigned linear, const struct hip_sim_matrix *operands);
    void (*fault)(unsigned long address, unsigned long bytes, unsigned write, const hip_sim_thread *thread);
    unsigned long memory, memory_bytes;
    unsigned char *shadow;
    const unsigned *wrong;
    void (*sleep)();
    unsigned long long (*clock)();
    void (*link)(unsigned long address, void *value, unsigned long bytes);
};

__attribute__((visibility("hidden"))) const hip_sim_runtime *hip_sim_runtime_slot;

// A block runs wholly on one OS thread, so everything that belongs to a block or to the running thread of it is thread-local.
struct hip_sim_self {
    hip_sim_thread thread;
    hip_sim_index block_idx, block_dim, grid_dim;
    void *shared;
    // What was last loaded with a scope, and how often in a row; how often a clock was read.
    const volatile void *polled;
    unsigned long long seen;
    unsigned polls, ticks;
};
static thread_local hip_sim_self hip_sim_current;

#define threadIdx (hip_sim_current.thread.index)
#define blockIdx (hip_sim_current.block_idx)
#define blockDim (hip_sim_current.block_dim)
#define gridDim (hip_sim_current.grid_dim)
#define warpSize HIP_SIM_WAVE

static inline void *hip_sim_dynamic_shared() { return hip_sim_current.shared; }
static inline unsigned hip_sim_lane() { return hip_sim_current.thread.linear % HIP_SIM_WAVE; }

// Other threads of the block run while this one waits: it finds its own coordinates again on its stack.
static inline void hip_sim_syncthreads(unsigned line) {
    const hip_sim_thread self = hip_sim_current.thread;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    hip_sim_runtime_slot->barrier(line);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    hip_sim_current.thread = self;
}
#define __syncthreads() hip_sim_syncthreads(__LINE__)

static inline unsigned long long *hip_sim_wave_exchange(unsigned long long value) {
    const hip_sim_thread self = hip_sim_current.thread;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    unsigned long long *values = hip_sim_runtime_slot->exchange(self.linear, value);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    hip_sim_current.thread = self;
    return values;
}
// Injected wrong results, which are not to change while a kernel runs; the bits are those of wrong.rs. What an exchange
// by permutation inside the vector unit (not through the LDS crossbar) has to add to the lane that it reads, by xor, and
// whether shared memory is left unordered inside a wave.
static inline unsigned hip_sim_faults() { return __atomic_load_n(hip_sim_runtime_slot->wrong, __ATOMIC_RELAXED); }
static inline unsigned hip_sim_flipped_lane() { return hip_sim_faults() & 1u; }
static inline bool hip_sim_stale_lds() { return hip_sim_faults() & 2u; }

// Waiting for other blocks and devices. A thread that sleeps lets the others of its block go on; one that loads the same
// value again and again, or reads a clock again and again, is taken for one that waits.
static inline void hip_sim_sleep() {
    const hip_sim_thread self = hip_sim_current.thread;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    hip_sim_runtime_slot->sleep();
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    hip_sim_current.thread = self;
}
static __attribute__((noinline)) void hip_sim_polled(const volatile void *at, unsigned long long value) {
    const bool again = hip_sim_current.polled == at && hip_sim_current.seen == value;
    hip_sim_current.polled = at;
    hip_sim_current.seen = value;
    hip_sim_current.polls = again ? hip_sim_current.polls + 1 : 0;
    if (hip_sim_current.polls % 16 == 15) hip_sim_sleep();
}
static __attribute__((noinline)) unsigned long long hip_sim_nanoseconds() {
    if (++hip_sim_current.ticks % 16 == 0) hip_sim_sleep();
    return hip_sim_runtime_slot->clock();
}
static inline void __builtin_amdgcn_s_sleep(int) { hip_sim_sleep(); }
// The shader clock runs at the 2 GHz, the constant one at the 100 MHz, that the device's attributes tell.
static inline unsigned long long __builtin_readcyclecounter() { return hip_sim_nanoseconds() * 2; }
static inline unsigned long long __builtin_amdgcn_s_memtime() { return hip_sim_nanoseconds() * 2; }
static inline unsigned long long __builtin_amdgcn_s_memrealtime() { return hip_sim_nanoseconds() / 10; }
static inline unsigned long long __builtin_readsteadycounter() { return hip_sim_nanoseconds() / 10; }

// Atomics with a scope, as clang has them, on the host's, which are of the widest scope.
#define __HIP_MEMORY_SCOPE_SINGLETHREAD 1
#define __HIP_MEMORY_SCOPE_WAVEFRONT 2
#define __HIP_MEMORY_SCOPE_WORKGROUP 3
#define __HIP_MEMORY_SCOPE_AGENT 4
#define __HIP_MEMORY_SCOPE_SYSTEM 5
template <class T> struct hip_sim_plain { typedef T type; };
template <class T> struct hip_sim_plain<const T> { typedef T type; };
template <class T> struct hip_sim_plain<volatile T> { typedef T type; };
template <class T> struct hip_sim_plain<const volatile T> { typedef T type; };
#define HIP_SIM_PLAIN typename hip_sim_plain<T>::type
template <class T> static inline HIP_SIM_PLAIN __hip_atomic_load(T *p, int, int) {
    HIP_SIM_PLAIN value;
    __atomic_load((HIP_SIM_PLAIN *)p, &value, __ATOMIC_SEQ_CST);
    unsigned long long bits = 0;
    __builtin_memcpy(&bits, &value, sizeof(value) < sizeof(bits) ? sizeof(value) : sizeof(bits));
    hip_sim_polled(p, bits);
    return value;
}
template <class T> static inline void __hip_atomic_store(T *p, HIP_SIM_PLAIN value, int, int) {
    __atomic_store((HIP_SIM_PLAIN *)p, &value, __ATOMIC_SEQ_CST);
}
template <class T> static inline HIP_SIM_PLAIN __hip_atomic_exchange(T *p, HIP_SIM_PLAIN value, int, int) {
    HIP_SIM_PLAIN old;
    __atomic_exchange((HIP_SIM_PLAIN *)p, &value, &old, __ATOMIC_SEQ_CST);
    return old;
}
template <class T>
static inline bool __hip_atomic_compare_exchange_strong(T *p, HIP_SIM_PLAIN *expected, HIP_SIM_PLAIN value, int, int, int) {
    return __atomic_compare_exchange((HIP_SIM_PLAIN *)p, expected, &value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}
template <class T>
static inline bool __hip_atomic_compare_exchange_weak(T *p, HIP_SIM_PLAIN *expected, HIP_SIM_PLAIN value, int, int, int) {
    return __hip_atomic_compare_exchange_strong(p, expected, value, 0, 0, 0);
}
// Floats, which have no builtin, take part in the operations that clang gives them.
#define HIP_SIM_FETCH(name, next)                                                                                  \
    template <class T> static inline HIP_SIM_PLAIN __hip_atomic_fetch_##name(T *p, HIP_SIM_PLAIN value, int, int) { \
        HIP_SIM_PLAIN *at = (HIP_SIM_PLAIN *)p, old;                                                               \
        __atomic_load(at, &old, __ATOMIC_RELAXED);                                                                 \
        for (;;) {                                                                                                 \
            HIP_SIM_PLAIN desired = (HIP_SIM_PLAIN)(next);                                                         \
            if (__atomic_compare_exchange(at, &old, &desired, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return old; \
        }                                                                                                          \
    }
HIP_SIM_FETCH(add, old + value)
HIP_SIM_FETCH(sub, old - value)
HIP_SIM_FETCH(min, value < old ? value : old)
HIP_SIM_FETCH(max, old < value ? value : old)
HIP_SIM_FETCH(and, old & value)
HIP_SIM_FETCH(or, old | value)
HIP_SIM_FETCH(xor, old ^ value)
// An order and a scope, as text.
#define __builtin_amdgcn_fence(...) __atomic_thread_fence(__ATOMIC_SEQ_CST)
template <class T> static inline HIP_SIM_PLAIN __builtin_nontemporal_load(T *p) {
    HIP_SIM_PLAIN value = *p;
    if (hip_sim_faults() & 64u) hip_sim_runtime_slot->link((unsigned long)p, &value, sizeof(value));
    return value;
}
template <class V, class T> static inline void __builtin_nontemporal_store(V value, T *p) { *p = value; }

static inline unsigned long long hip_sim_wave_mask() { return hip_sim_runtime_slot->mask(hip_sim_current.thread.linear); }

// Matrix instructions, as clang's builtins for the arch, one on a line: objects.rs passes over those that a source does
// not name. There is no _Float16 or __bf16 here: both are shorts.
template <class A, class B, class C>
static inline C hip_sim_matrix_multiply(hip_sim_instruction instruction, unsigned signs, const A &a, const B &b, const C &c) {
    C d;
    const hip_sim_matrix operands = {instruction, signs, &a, &b, &c, &d};
    const hip_sim_thread self = hip_sim_current.thread;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    hip_sim_runtime_slot->matrix(self.linear, &operands);
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
    hip_sim_current.thread = self;
    return d;
}
typedef float hip_sim_f32x4 __attribute__((vector_size(16)));
typedef float hip_sim_f32x8 __attribute__((vector_size(32)));
typedef float hip_sim_f32x16 __attribute__((vector_size(64)));
typedef int hip_sim_i32x2 __attribute__((vector_size(8)));
typedef int hip_sim_i32x4 __attribute__((vector_size(16)));
typedef int hip_sim_i32x8 __attribute__((vector_size(32)));
typedef short hip_sim_i16x4 __attribute__((vector_size(8)));
typedef short hip_sim_i16x8 __attribute__((vector_size(16)));
typedef short hip_sim_i16x16 __attribute__((vector_size(32)));
// The last three operands of MFMA permute blocks, which instructions of one block do not have.
#define HIP_SIM_MFMA(builtin, instruction, A, C)                                                                   \
    static inline C builtin(A a, A b, C c, int, int, int) {                                                        \
        return hip_sim_matrix_multiply(hip_sim_mfma_##instruction, 3, a, b, c);                                    \
    }
// A lane brings its scales behind its elements. Formats, and which byte of a lane's word is the scale, are immediates.
template <class A> struct hip_sim_scaled {
    A elements;
    int scale;
};
#define HIP_SIM_MFMA_SCALED(builtin, instruction, A, C)                                                            \
    static inline C builtin(A a, A b, C c, int format_a, int format_b, int byte_a, int scale_a, int byte_b, int scale_b) { \
        const hip_sim_scaled<A> x = {a, scale_a}, y = {b, scale_b};                                                \
        const unsigned formats = (unsigned)(format_a | format_b << 4 | byte_a << 8 | byte_b << 12);                \
        return hip_sim_matrix_multiply(hip_sim_mfma_##instruction, formats, x, y, c);                              \
    }
#define HIP_SIM_WMMA(builtin, instruction, A, C)                                                                   \
    static inline C builtin(A a, A b, C c) { return hip_sim_matrix_multiply(hip_sim_##instruction, 0, a, b, c); }
// Sums that leave 32 bits wrap around; none of our products can reach that, so saturation (the last operand) is left out.
#define HIP_SIM_WMMA_IU8(builtin, instruction, A, C)                                                               \
    static inline C builtin(bool sign_a, A a, bool sign_b, A b, C c, bool) {                                       \
        return hip_sim_matrix_multiply(hip_sim_##instruction, (unsigned)sign_a | (unsigned)sign_b << 1, a, b, c);  \
    }
#define HIP_SIM_MMA(name, instruction, signs, C)                                                                   \
    static inline C name(hip_sim_i32x4 a, hip_sim_i32x2 b, C c) {                                                  \
        return hip_sim_matrix_multiply(hip_sim_##instruction, signs, a, b, c);                                     \
    }
#if defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__) || defined(__gfx9_4_generic__)
HIP_SIM_MFMA(__builtin_amdgcn_mfma_f32_16x16x16f16, f32_16x16x16_f16, hip_sim_i16x4, hip_sim_f32x4)
HIP_SIM_MFMA(__builtin_amdgcn_mfma_f32_16x16x16bf16_1k, f32_16x16x16_bf16, hip_sim_i16x4, hip_sim_f32x4)
#if defined(__gfx90a__)
HIP_SIM_MFMA(__builtin_amdgcn_mfma_i32_16x16x16i8, i32_16x16x16_i8, int, hip_sim_i32x4)
#else
HIP_SIM_MFMA(__builtin_amdgcn_mfma_i32_16x16x32_i8, i32_16x16x32_i8, long, hip_sim_i32x4)
#endif
// 8-bit floats: gfx942 reads them with another bias.
#if defined(__gfx942__)
HIP_SIM_MFMA(__builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8, f32_16x16x32_fnuz, long, hip_sim_f32x4)
HIP_SIM_MFMA(__builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8, f32_32x32x16_fnuz, long, hip_sim_f32x16)
#elif defined(__gfx950__)
HIP_SIM_MFMA(__builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8, f32_16x16x32_fp8, long, hip_sim_f32x4)
HIP_SIM_MFMA(__builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8, f32_32x32x16_fp8, long, hip_sim_f32x16)
#endif
#if defined(__gfx950__)
HIP_SIM_MFMA_SCALED(__builtin_amdgcn_mfma_scale_f32_16x16x128_f8f6f4, scale_f32_16x16x128_f8f6f4, hip_sim_i32x8, hip_sim_f32x4)
HIP_SIM_MFMA(__builtin_amdgcn_mfma_f32_16x16x32_f16, f32_16x16x32_f16, hip_sim_i16x8, hip_sim_f32x4)
HIP_SIM_MFMA(__builtin_amdgcn_mfma_f32_16x16x32_bf16, f32_16x16x32_bf16, hip_sim_i16x8, hip_sim_f32x4)
HIP_SIM_MFMA(__builtin_amdgcn_mfma_i32_16x16x64_i8, i32_16x16x64_i8, hip_sim_i32x4, hip_sim_i32x4)
#endif
#elif defined(__GFX11__)
HIP_SIM_WMMA(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32, wmma11_f32_16x16x16_f16, hip_sim_i16x16, hip_sim_f32x8)
HIP_SIM_WMMA(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32, wmma11_f32_16x16x16_bf16, hip_sim_i16x16, hip_sim_f32x8)
HIP_SIM_WMMA_IU8(__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32, wmma11_i32_16x16x16_iu8, hip_sim_i32x4, hip_sim_i32x8)
#elif defined(__GFX12__)
HIP_SIM_WMMA(__builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12, wmma12_f32_16x16x16_f16, hip_sim_i16x8, hip_sim_f32x8)
HIP_SIM_WMMA(__builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12, wmma12_f32_16x16x16_bf16, hip_sim_i16x8, hip_sim_f32x8)
HIP_SIM_WMMA_IU8(__builtin_amdgcn_wmma_i32_16x16x16_iu8_w32_gfx12, wmma12_i32_16x16x16_iu8, hip_sim_i32x2, hip_sim_i32x8)
HIP_SIM_WMMA(__builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12, wmma12_f32_16x16x16_fp8, hip_sim_i32x2, hip_sim_f32x8)
#elif defined(__CUDA_ARCH__)
// nvptx's mma.sync, for which clang has no builtins of one operand each.
HIP_SIM_MMA(hip_sim_mma_f16, m16n8k16_f32_f16, 0, hip_sim_f32x4)
HIP_SIM_MMA(hip_sim_mma_bf16, m16n8k16_f32_bf16, 0, hip_sim_f32x4)
HIP_SIM_MMA(hip_sim_mma_e4m3, m16n8k32_f32_e4m3, 0, hip_sim_f32x4)
HIP_SIM_MMA(hip_sim_mma_s8, m16n8k32_s32_s8, 3, hip_sim_i32x4)
#endif

// The first access of a thread to an object's thread-local variables goes through _dl_tlsdesc_dynamic, which spoils
// vector registers before glibc 2.40: here, where none holds an argument. Without `noipa` a caller knows which registers
// this function leaves alone, and keeps values in them.
static __attribute__((noipa)) void hip_sim_enter(hip_sim_block *block) {
    hip_sim_current.block_idx = block->block_idx;
    hip_sim_current.block_dim = block->block_dim;
    hip_sim_current.grid_dim = block->grid_dim;
    hip_sim_current.shared = block->shared;
}

// The entry of a kernel: takes its arguments from addresses and runs the threads that the block has to start.
template <unsigned long... I> struct hip_sim_sequence {};
template <unsigned long N, unsigned long... I> struct hip_sim_count : hip_sim_count<N - 1, N - 1, I...> {};
template <unsigned long... I> struct hip_sim_count<0, I...> { typedef hip_sim_sequence<I...> type; };
template <auto Kernel> struct hip_sim_entry;
template <class... A, void (*Kernel)(A...)> struct hip_sim_entry<Kernel> {
    static constexpr unsigned count = sizeof...(A);
    static constexpr unsigned sizes[] = {sizeof(A)..., 0};
    static constexpr unsigned aligns[] = {alignof(A)..., 0};
    template <unsigned long... I> static void threads(hip_sim_block *block, void *const *args, hip_sim_sequence<I...>) {
        while (block->next < block->end) {
            hip_sim_current.thread = block->threads[block->next++];
            Kernel(*(A *)args[I]...);
        }
    }
    static void run(hip_sim_block *block, void *const *args) {
        hip_sim_enter(block);
        threads(block, args, typename hip_sim_count<sizeof...(A)>::type());
    }
};
struct hip_sim_kernel {
    const char *name;
    void (*entry)(hip_sim_block *, void *const *);
    unsigned args, max_threads;
    const unsigned *sizes, *aligns;
};
struct hip_sim_module_info {
    char magic[8];
    unsigned abi, wave, checked, kernels;
    const char *arch;
    const hip_sim_kernel *table;
    const char *source, *source_end;
    const hip_sim_runtime **runtime;
};
