// The kernel of vector_add.rs.

extern "C" __attribute__((global)) void add(float *sum, const float *a, const float *b, unsigned count) {
    unsigned at = __builtin_amdgcn_workgroup_id_x() * 256 + __builtin_amdgcn_workitem_id_x();
    if (at < count) sum[at] = a[at] + b[at];
}
