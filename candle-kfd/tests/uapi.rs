//! The kernel's structures and numbers, compared with its own header by a compiler.

use candle_kfd::uapi::*;
use std::fmt::Write;
use std::mem::{offset_of, size_of};
use std::process::Command;

/// What the header must say: expressions of C++, and their values here.
#[derive(Default)]
struct Checks(Vec<(String, u64)>);

impl Checks {
    fn add(&mut self, expression: impl Into<String>, value: impl TryInto<u64>) {
        let value = value.try_into().unwrap_or_else(|_| panic!("no u64"));
        self.0.push((expression.into(), value));
    }

    fn request<R: Request>(&mut self) {
        self.add(R::NAME, R::NUMBER);
    }
}

/// Size and offsets of a structure.
macro_rules! layout {
    ($checks:ident, $type:ident, $c:literal, $($rest:tt)*) => {
        $checks.add(concat!("sizeof(struct ", $c, ")"), size_of::<$type>());
        offsets!($checks, $type, $c, $($rest)*);
    };
}

/// Offsets; a field may have another name in the header.
macro_rules! offsets {
    ($checks:ident, $type:ident, $c:literal, $($field:ident $(as $name:literal)?),*) => {
        $(
            let name = stringify!($field);
            $( let name = { let _ = name; $name }; )?
            $checks.add(format!("offsetof(struct {}, {name})", $c), offset_of!($type, $field));
        )*
    };
}

/// The same of what a request takes, and its number.
macro_rules! request {
    ($checks:ident, $type:ident, $c:literal, $($field:ident $(as $name:literal)?),*) => {
        $checks.request::<$type>();
        layout!($checks, $type, $c, $($field $(as $name)?),*);
    };
}

fn checks() -> Checks {
    let mut all = Checks::default();
    request!(
        all,
        GetVersion,
        "kfd_ioctl_get_version_args",
        major_version,
        minor_version
    );
    request!(
        all,
        GetClockCounters,
        "kfd_ioctl_get_clock_counters_args",
        gpu_clock_counter,
        cpu_clock_counter,
        system_clock_counter,
        system_clock_freq,
        gpu_id,
        pad
    );
    request!(
        all,
        GetProcessAperturesNew,
        "kfd_ioctl_get_process_apertures_new_args",
        kfd_process_device_apertures_ptr,
        num_of_nodes,
        pad
    );
    layout!(
        all,
        DeviceApertures,
        "kfd_process_device_apertures",
        lds_base,
        lds_limit,
        scratch_base,
        scratch_limit,
        gpuvm_base,
        gpuvm_limit,
        gpu_id,
        pad
    );
    request!(all, AcquireVm, "kfd_ioctl_acquire_vm_args", drm_fd, gpu_id);
    request!(
        all,
        SetScratchBackingVa,
        "kfd_ioctl_set_scratch_backing_va_args",
        va_addr,
        gpu_id,
        pad
    );
    request!(
        all,
        SetTrapHandler,
        "kfd_ioctl_set_trap_handler_args",
        tba_addr,
        tma_addr,
        gpu_id,
        pad
    );
    request!(
        all,
        SetMemoryPolicy,
        "kfd_ioctl_set_memory_policy_args",
        alternate_aperture_base,
        alternate_aperture_size,
        gpu_id,
        default_policy,
        alternate_policy
    );
    request!(
        all,
        AllocMemoryOfGpu,
        "kfd_ioctl_alloc_memory_of_gpu_args",
        va_addr,
        size,
        handle,
        mmap_offset,
        gpu_id,
        flags
    );
    request!(
        all,
        FreeMemoryOfGpu,
        "kfd_ioctl_free_memory_of_gpu_args",
        handle
    );
    request!(
        all,
        MapMemoryToGpu,
        "kfd_ioctl_map_memory_to_gpu_args",
        handle,
        device_ids_array_ptr,
        n_devices,
        n_success
    );
    request!(
        all,
        UnmapMemoryFromGpu,
        "kfd_ioctl_unmap_memory_from_gpu_args",
        handle,
        device_ids_array_ptr,
        n_devices,
        n_success
    );
    request!(
        all,
        GetAvailableMemory,
        "kfd_ioctl_get_available_memory_args",
        available,
        gpu_id,
        pad
    );
    request!(
        all,
        CreateEvent,
        "kfd_ioctl_create_event_args",
        event_page_offset,
        event_trigger_data,
        event_type,
        auto_reset,
        node_id,
        event_id,
        event_slot_index
    );
    request!(
        all,
        DestroyEvent,
        "kfd_ioctl_destroy_event_args",
        event_id,
        pad
    );
    request!(all, SetEvent, "kfd_ioctl_set_event_args", event_id, pad);
    request!(all, ResetEvent, "kfd_ioctl_reset_event_args", event_id, pad);
    request!(
        all,
        WaitEvents,
        "kfd_ioctl_wait_events_args",
        events_ptr,
        num_events,
        wait_for_all,
        timeout,
        wait_result
    );
    layout!(
        all, EventData, "kfd_event_data",
        data as "memory_exception_data", kfd_event_data_ext, event_id, pad
    );
    layout!(
        all, MemoryExceptionData, "kfd_hsa_memory_exception_data",
        not_present as "failure.NotPresent", read_only as "failure.ReadOnly",
        no_execute as "failure.NoExecute", imprecise as "failure.imprecise",
        va, gpu_id, error_type as "ErrorType"
    );
    layout!(
        all,
        HwExceptionData,
        "kfd_hsa_hw_exception_data",
        reset_type,
        reset_cause,
        memory_lost,
        gpu_id
    );
    // It grew at its end.
    offsets!(
        all,
        CreateQueue,
        "kfd_ioctl_create_queue_args",
        ring_base_address,
        write_pointer_address,
        read_pointer_address,
        doorbell_offset,
        ring_size,
        gpu_id,
        queue_type,
        queue_percentage,
        queue_priority,
        queue_id,
        eop_buffer_address,
        eop_buffer_size,
        ctx_save_restore_address,
        ctx_save_restore_size,
        ctl_stack_size
    );
    request!(
        all,
        DestroyQueue,
        "kfd_ioctl_destroy_queue_args",
        queue_id,
        pad
    );
    request!(
        all,
        UpdateQueue,
        "kfd_ioctl_update_queue_args",
        ring_base_address,
        queue_id,
        ring_size,
        queue_percentage,
        queue_priority
    );
    macro_rules! constants {
        ($prefix:literal, $module:ident, $($name:ident),*) => {
            $( all.add(concat!($prefix, stringify!($name)), $module::$name); )*
        };
    }
    constants!(
        "KFD_IOC_ALLOC_MEM_FLAGS_",
        flags,
        VRAM,
        GTT,
        USERPTR,
        DOORBELL,
        MMIO_REMAP,
        UNCACHED,
        COHERENT,
        AQL_QUEUE_MEM,
        NO_SUBSTITUTE,
        PUBLIC,
        EXECUTABLE,
        WRITABLE
    );
    constants!("KFD_IOC_EVENT_", event_type, SIGNAL, HW_EXCEPTION, MEMORY);
    constants!("KFD_IOC_WAIT_RESULT_", wait_result, COMPLETE, TIMEOUT, FAIL);
    constants!(
        "KFD_IOC_QUEUE_TYPE_",
        queue_type,
        COMPUTE,
        SDMA,
        COMPUTE_AQL,
        SDMA_XGMI
    );
    all.add("KFD_SIGNAL_EVENT_LIMIT", SIGNAL_EVENT_LIMIT);
    all.add("KFD_MAX_QUEUE_PERCENTAGE", MAX_QUEUE_PERCENTAGE);
    all.add("KFD_MAX_QUEUE_PRIORITY", MAX_QUEUE_PRIORITY);
    all.add("KFD_MIN_QUEUE_RING_SIZE", MIN_QUEUE_RING_SIZE);
    all
}

#[test]
fn the_kernels_header_says_the_same() {
    let checks = checks();
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("uapi.cpp"), folder.path().join("uapi"));
    let mut text =
        "#include <cstddef>\n#include <cstdio>\n#include <linux/kfd_ioctl.h>\nint main() {\n"
            .to_string();
    for (expression, _) in &checks.0 {
        writeln!(
            text,
            "    std::printf(\"%u\\n\", (unsigned)({expression}));"
        )
        .unwrap();
    }
    text.push_str("}\n");
    std::fs::write(&source, text).unwrap();
    // The header takes its types from one that Debian has in a package of its own.
    let drm = folder.path().join("drm");
    std::fs::create_dir(&drm).unwrap();
    std::fs::write(drm.join("drm.h"), "#include <linux/types.h>\n").unwrap();
    let compiled = Command::new("c++")
        .arg("-w")
        .arg("-idirafter")
        .arg(folder.path())
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    let said = Command::new(&program).output().unwrap();
    let said = String::from_utf8(said.stdout).unwrap();
    assert_eq!(said.lines().count(), checks.0.len());
    for (line, (expression, value)) in said.lines().zip(&checks.0) {
        assert_eq!(line, value.to_string(), "{expression}");
    }
}

/// By Linux 6.14's header, as that of Debian 12 has not got it yet.
#[test]
fn what_came_later_has_the_numbers_of_later_headers() {
    assert_eq!(RuntimeEnable::NUMBER, 0xc010_4b25);
    assert_eq!(
        [
            offset_of!(RuntimeEnable, r_debug),
            offset_of!(RuntimeEnable, mode_mask),
            offset_of!(RuntimeEnable, capabilities_mask),
        ],
        [0, 8, 12]
    );
    assert_eq!(RUNTIME_ENABLE_MODE_ENABLE, 1);
    assert_eq!(CreateQueue::NUMBER, 0xc060_4b02);
    assert_eq!(offset_of!(CreateQueue, sdma_engine_id), 88);
    assert_eq!(queue_type::SDMA_BY_ENG_ID, 4);
    // Its `pad` became `misc_process_flag`.
    assert_eq!(offset_of!(SetMemoryPolicy, misc_process_flag), 28);
}
