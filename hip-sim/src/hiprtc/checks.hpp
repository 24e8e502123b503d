// The functions that -fsanitize=kernel-address calls for every load and store. The shadow has one byte per byte of device memory:
// 0 not allocated, 1 allocated, 2 written.
#define HIP_SIM_UNCHECKED __attribute__((no_sanitize("kernel-address")))
#define HIP_SIM_CALLED extern "C" __attribute__((visibility("hidden"))) HIP_SIM_UNCHECKED
#define HIP_SIM_CHECK(bytes, word)                                                                                             \
    HIP_SIM_CALLED void __asan_load##bytes##_noabort(unsigned long address) {                \
        unsigned long offset = address - hip_sim_runtime_slot->memory;                                                         \
        if (offset >= hip_sim_runtime_slot->memory_bytes || !hip_sim_runtime_slot->shadow) return;                             \
        word state;                                                                                                            \
        __builtin_memcpy(&state, hip_sim_runtime_slot->shadow + offset, sizeof(state));                                        \
        if (state != (word)0x0202020202020202ull) hip_sim_runtime_slot->fault(address, bytes, 0, &hip_sim_current.thread);     \
    }                                                                                                                          \
    HIP_SIM_CALLED void __asan_store##bytes##_noabort(unsigned long address) {               \
        hip_sim_store(address, bytes);                                                                                         \
    }
HIP_SIM_UNCHECKED static void hip_sim_store(unsigned long address, unsigned long bytes) {
    unsigned long offset = address - hip_sim_runtime_slot->memory;
    if (offset >= hip_sim_runtime_slot->memory_bytes || !hip_sim_runtime_slot->shadow) return;
    unsigned char *shadow = hip_sim_runtime_slot->shadow + offset;
    for (unsigned long i = 0; i < bytes; ++i) {
        if (!shadow[i]) return hip_sim_runtime_slot->fault(address, bytes, 1, &hip_sim_current.thread);
    }
    __builtin_memset(shadow, 2, bytes);
}
HIP_SIM_CALLED void __asan_loadN_noabort(unsigned long address, unsigned long bytes) {
    unsigned long offset = address - hip_sim_runtime_slot->memory;
    if (offset >= hip_sim_runtime_slot->memory_bytes || !hip_sim_runtime_slot->shadow) return;
    for (unsigned long i = 0; i < bytes; ++i) {
        if (hip_sim_runtime_slot->shadow[offset + i] != 2)
            return hip_sim_runtime_slot->fault(address, bytes, 0, &hip_sim_current.thread);
    }
}
HIP_SIM_CALLED void __asan_storeN_noabort(unsigned long address, unsigned long bytes) {
    hip_sim_store(address, bytes);
}
HIP_SIM_CHECK(1, unsigned char)
HIP_SIM_CHECK(2, unsigned short)
HIP_SIM_CHECK(4, unsigned)
HIP_SIM_CHECK(8, unsigned long long)
HIP_SIM_CHECK(16, unsigned __int128)
HIP_SIM_CALLED void __asan_handle_no_return() {}
