//! The same calls of HIP on the simulator and over the driver's mock: statuses and results are the same, but for what is
//! listed with its reason.

mod common;

use hip_abi::error::hipError_t;
use hip_on_kfd_runtime::functions;
use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_uint, c_void, CString};
use std::fmt::Debug;
use std::ptr::null_mut;

/// Declares the table of HIP's functions, and fills it from two libraries.
macro_rules! table {
    (
        hip { $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) -> $answer:ty;)* }
        hiprtc { $($rest:tt)* }
    ) => {
        #[allow(non_snake_case)]
        struct Hip {
            $($name: unsafe extern "C" fn($($type),*) -> $answer,)*
        }
        const SIM: Hip = Hip { $($name: hip_sim::hip::$name,)* };
        const KFD: Hip = Hip { $($name: hip_on_kfd_runtime::hip::$name,)* };
    };
}
functions!(table);

const DEVICE: c_int = 1;
const HOST: c_int = 2;
const WITHIN: c_int = 3;
const NON_BLOCKING: c_uint = 1;
const UNTIMED: c_uint = 2;
const RELAXED: c_int = 2;

/// One of the two libraries, with what its calls answered.
struct Side<'a> {
    hip: &'a Hip,
    /// An object with the kernels of code-object's fixture.
    object: &'a [u8],
    case: RefCell<&'static str>,
    said: RefCell<Vec<(String, String)>>,
}

impl Side<'_> {
    fn case(&self, case: &'static str) {
        *self.case.borrow_mut() = case;
    }

    /// Notes an answer.
    fn note(&self, what: &str, answer: impl Debug) {
        let what = format!("{}: {what}", self.case.borrow());
        self.said.borrow_mut().push((what, format!("{answer:?}")));
    }

    /// Notes a status by its name.
    fn says(&self, what: &str, status: hipError_t) -> hipError_t {
        self.note(what, common::name(status));
        status
    }

    /// What a call makes, which both can.
    fn made(&self, make: impl FnOnce(*mut *mut c_void) -> hipError_t) -> *mut c_void {
        common::made(make)
    }

    fn malloc(&self, bytes: usize) -> *mut c_void {
        // SAFETY: the result is written.
        self.made(|out| unsafe { (self.hip.hipMalloc)(out, bytes) })
    }

    fn stream(&self, flags: c_uint) -> *mut c_void {
        // SAFETY: the result is written.
        self.made(|out| unsafe { (self.hip.hipStreamCreateWithFlags)(out, flags) })
    }

    fn event(&self, flags: c_uint) -> *mut c_void {
        // SAFETY: the result is written.
        self.made(|out| unsafe { (self.hip.hipEventCreateWithFlags)(out, flags) })
    }

    /// What is in memory of a device.
    fn words(&self, from: *mut c_void, count: usize, stream: *mut c_void) -> Vec<u32> {
        let mut bytes = vec![0u8; 4 * count];
        let to = bytes.as_mut_ptr().cast();
        // SAFETY: callers have allocated as many words.
        unsafe {
            common::ok((self.hip.hipMemcpyAsync)(
                to,
                from,
                bytes.len(),
                HOST,
                stream,
            ));
            common::ok((self.hip.hipStreamSynchronize)(stream));
        }
        common::words(&bytes)
    }

    fn function(&self, module: *mut c_void, name: &str) -> *mut c_void {
        let name = CString::new(name).unwrap();
        // SAFETY: the result is written, the name a C string.
        self.made(|out| unsafe { (self.hip.hipModuleGetFunction)(out, module, name.as_ptr()) })
    }

    fn module(&self) -> *mut c_void {
        // SAFETY: the object is whole.
        self.made(|out| unsafe { (self.hip.hipModuleLoadData)(out, self.object.as_ptr().cast()) })
    }

    /// Launches `numbers[..threads] += by`.
    fn add(
        &self,
        function: *mut c_void,
        mut numbers: *mut c_void,
        threads: u32,
        mut by: u32,
        stream: *mut c_void,
    ) -> hipError_t {
        let mut params: [*mut c_void; 2] = [(&raw mut numbers).cast(), (&raw mut by).cast()];
        self.launch(
            function,
            [1, 1, 1],
            [threads, 1, 1],
            0,
            stream,
            params.as_mut_ptr(),
        )
    }

    fn launch(
        &self,
        function: *mut c_void,
        [x, y, z]: [u32; 3],
        [width, height, depth]: [u32; 3],
        lds: u32,
        stream: *mut c_void,
        params: *mut *mut c_void,
    ) -> hipError_t {
        // SAFETY: callers pass what the kernel takes, or what is refused.
        unsafe {
            (self.hip.hipModuleLaunchKernel)(
                function,
                x,
                y,
                z,
                width,
                height,
                depth,
                lds,
                stream,
                params,
                null_mut(),
            )
        }
    }
}

/// An address that is nobody's handle.
const NOBODY: *mut c_void = 0x5000 as *mut c_void;

fn devices(side: &Side<'_>) {
    let Side { hip, .. } = side;
    side.case("devices");
    let mut number = -1;
    // SAFETY: results are written, or null is refused.
    unsafe {
        side.says("init", (hip.hipInit)(0));
        side.says("init with flags", (hip.hipInit)(1));
        side.says("last error", (hip.hipGetLastError)());
        side.says("last error again", (hip.hipGetLastError)());
        side.says("count", (hip.hipGetDeviceCount)(&mut number));
        side.note("how many", number);
        side.says("count nowhere", (hip.hipGetDeviceCount)(null_mut()));
        for device in [-1, 2, 1] {
            side.says("set", (hip.hipSetDevice)(device));
            side.says("get", (hip.hipGetDevice)(&mut number));
            side.note("which", number);
        }
        side.says("set back", (hip.hipSetDevice)(0));
        side.says("get nowhere", (hip.hipGetDevice)(null_mut()));
        side.says("version nowhere", (hip.hipRuntimeGetVersion)(null_mut()));
        side.says("driver nowhere", (hip.hipDriverGetVersion)(null_mut()));
        let mut image = [0u8; 1472];
        let properties = image.as_mut_ptr().cast();
        side.says(
            "properties",
            (hip.hipGetDevicePropertiesR0600)(properties, 1),
        );
        side.says("of none", (hip.hipGetDevicePropertiesR0600)(properties, 2));
        side.says("nowhere", (hip.hipGetDevicePropertiesR0600)(null_mut(), 0));
        side.says("synchronize", (hip.hipDeviceSynchronize)());
        for (device, peer) in [(0, 1), (1, 0), (0, 0), (0, 2), (-1, 0)] {
            side.says(
                "can",
                (hip.hipDeviceCanAccessPeer)(&mut number, device, peer),
            );
            side.note("reaches", number);
        }
        side.says(
            "can nowhere",
            (hip.hipDeviceCanAccessPeer)(null_mut(), 0, 1),
        );
        for (peer, flags) in [(0, 0), (2, 0), (-1, 0), (1, 1), (1, 0), (1, 0)] {
            let what = format!("enable {peer} {flags}");
            side.says(&what, (hip.hipDeviceEnablePeerAccess)(peer, flags));
        }
    }
}

fn memory(side: &Side<'_>) {
    let Side { hip, .. } = side;
    side.case("memory");
    let (mut free, mut total) = (0, 0);
    let mut out = null_mut();
    // SAFETY: results are written, or what is passed is refused.
    unsafe {
        side.says("malloc nowhere", (hip.hipMalloc)(null_mut(), 16));
        side.says("malloc nothing", (hip.hipMalloc)(&mut out, 0));
        side.note("is null", out.is_null());
        side.says("malloc nothing nowhere", (hip.hipMalloc)(null_mut(), 0));
        side.says("malloc too much", (hip.hipMalloc)(&mut out, 1 << 50));
        side.says("info", (hip.hipMemGetInfo)(&mut free, &mut total));
        side.note("there is some", free > 0 && free <= total);
        side.says("info nowhere", (hip.hipMemGetInfo)(null_mut(), &mut total));
        side.says("free nothing", (hip.hipFree)(null_mut()));
        side.says("free nobody's", (hip.hipFree)(NOBODY));
        side.says("host free nothing", (hip.hipHostFree)(null_mut()));
        side.says("host free nobody's", (hip.hipHostFree)(NOBODY));
        for flags in 0..=5 {
            let mut memory = null_mut();
            let status = (hip.hipExtMallocWithFlags)(&mut memory, 64, flags);
            side.says(&format!("flags {flags}"), status);
            if status == 0 {
                common::ok((hip.hipFree)(memory));
            }
        }
        // Portable, mapped, write-combined, of a NUMA node, coherent, not coherent, both, unknown ones.
        for flags in [
            0,
            1,
            2,
            4,
            7,
            0x2000_0000,
            0x4000_0000,
            0x8000_0000,
            0xc000_0000,
            8,
            16,
        ] {
            let mut memory = null_mut();
            let status = (hip.hipHostMalloc)(&mut memory, 64, flags);
            side.says(&format!("host flags {flags:#x}"), status);
            if status == 0 {
                common::ok((hip.hipHostFree)(memory));
            }
        }
        side.says("host nowhere", (hip.hipHostMalloc)(null_mut(), 16, 0));
        side.says("host nothing", (hip.hipHostMalloc)(&mut out, 0, 0));
        side.note("host is null", out.is_null());
        let device = side.malloc(4096);
        let pinned = side.made(|out| (hip.hipHostMalloc)(out, 4096, 0));
        side.says("host free of a device's", (hip.hipHostFree)(device));
        side.says("free of the host's", (hip.hipFree)(pinned));
        side.says("free within", (hip.hipFree)(device.byte_add(64)));
        side.says("free", (hip.hipFree)(device));
        side.says("free again", (hip.hipFree)(device));
        side.says("host free", (hip.hipHostFree)(pinned));
        side.says("host free again", (hip.hipHostFree)(pinned));
    }
}

fn copies(side: &Side<'_>) {
    let Side { hip, .. } = side;
    side.case("copies");
    let stream = side.stream(NON_BLOCKING);
    let (device, other) = (side.malloc(4096), side.malloc(4096));
    let mut words: Vec<u32> = (0..1024).collect();
    let host: *mut c_void = words.as_mut_ptr().cast();
    // SAFETY: within bounds, or refused; the vector outlives the copies, which are waited for.
    unsafe {
        let pinned = side.made(|out| (hip.hipHostMalloc)(out, 4096, 0));
        let copy = |to, from: *mut c_void, bytes, kind, what: &str| {
            side.says(what, (hip.hipMemcpyAsync)(to, from, bytes, kind, stream));
        };
        copy(device, host, 4096, DEVICE, "up");
        copy(other, device, 4096, WITHIN, "within");
        copy(pinned, other, 4096, HOST, "down to pinned");
        common::ok((hip.hipStreamSynchronize)(stream));
        side.note(
            "arrived",
            std::slice::from_raw_parts(pinned.cast::<u32>(), 1024),
        );
        // Every direction between every two kinds of memory.
        for kind in [-1, 0, 1, 2, 3, 4, 5] {
            for (to, to_name) in [(device, "device"), (pinned, "pinned"), (host, "host")] {
                for (from, from_name) in [(other, "device"), (pinned, "pinned"), (host, "host")] {
                    if to != from {
                        let what = format!("direction {kind}, {from_name} to {to_name}");
                        copy(to, from, 64, kind, &what);
                    }
                }
            }
        }
        common::ok((hip.hipStreamSynchronize)(stream));
        copy(device, host, 0, DEVICE, "nothing");
        copy(null_mut(), null_mut(), 0, DEVICE, "nothing from nowhere");
        copy(NOBODY, host, 0, DEVICE, "nothing to nobody's");
        copy(null_mut(), device, 16, HOST, "to nowhere");
        copy(device, null_mut(), 16, DEVICE, "from nowhere");
        copy(device.byte_add(4090), host, 16, DEVICE, "past the end");
        copy(host, device.byte_add(4090), 16, HOST, "from past the end");
        let status = (hip.hipMemcpyAsync)(device, host, 16, DEVICE, NOBODY);
        side.says("on no stream", status);
        let status = (hip.hipMemcpyAsync)(device, host, 16, 9, NOBODY);
        side.says("on no stream in no direction", status);
        let fill = |to, bytes, what: &str| {
            side.says(what, (hip.hipMemsetAsync)(to, 0x1ff, bytes, stream));
        };
        fill(device, 4096, "fill");
        fill(pinned, 64, "fill pinned");
        fill(host, 64, "fill the host's");
        fill(null_mut(), 64, "fill nothing");
        fill(device.byte_add(1), 4096, "fill past the end");
        fill(NOBODY, 0, "fill no bytes");
        side.note("filled", side.words(device, 1024, stream));
        let peer = |to_device, from_device, what: &str| {
            let status =
                (hip.hipMemcpyPeerAsync)(device, to_device, other, from_device, 64, stream);
            side.says(what, status);
        };
        peer(0, 0, "peer of itself");
        peer(1, 0, "peer that has it not");
        peer(0, 1, "from a peer that has it not");
        peer(0, 2, "no peer");
        common::ok((hip.hipStreamSynchronize)(stream));
        for memory in [device, other] {
            common::ok((hip.hipFree)(memory));
        }
        common::ok((hip.hipHostFree)(pinned));
        common::ok((hip.hipStreamDestroy)(stream));
    }
}

fn streams_and_events(side: &Side<'_>) {
    let Side { hip, .. } = side;
    side.case("streams");
    let mut milliseconds = -1.0;
    // SAFETY: results are written, or what is passed is refused.
    unsafe {
        let mut out = null_mut();
        side.says("nowhere", (hip.hipStreamCreateWithFlags)(null_mut(), 0));
        side.says("unknown flags", (hip.hipStreamCreateWithFlags)(&mut out, 2));
        for (stream, what) in [(null_mut(), "default"), (NOBODY, "nobody's")] {
            side.says(&format!("query {what}"), (hip.hipStreamQuery)(stream));
            side.says(&format!("wait {what}"), (hip.hipStreamSynchronize)(stream));
            side.says(&format!("destroy {what}"), (hip.hipStreamDestroy)(stream));
        }
        // `hipStreamLegacy` and `hipStreamPerThread`.
        for named in [1, 2] {
            let status = (hip.hipStreamSynchronize)(named as *mut c_void);
            side.says(&format!("wait stream {named}"), status);
        }
        let stream = side.stream(NON_BLOCKING);
        let event = side.event(0);
        side.says("query an event", (hip.hipStreamQuery)(event));
        side.says("query", (hip.hipStreamQuery)(stream));

        side.case("events");
        side.says("nowhere", (hip.hipEventCreateWithFlags)(null_mut(), 0));
        // Blocking, untimed, between processes, with and without time, fences of three kinds, and two of them.
        for flags in [
            1,
            2,
            3,
            4,
            6,
            8,
            0x2000_0000,
            0x4000_0000,
            0x8000_0000,
            0xc000_0000,
            0x6000_0000,
        ] {
            let mut made = null_mut();
            let status = (hip.hipEventCreateWithFlags)(&mut made, flags);
            side.says(&format!("flags {flags:#x}"), status);
        }
        let (other, untimed) = (side.event(0), side.event(UNTIMED));
        side.says("query new", (hip.hipEventQuery)(event));
        side.says("wait new", (hip.hipEventSynchronize)(event));
        let elapsed = |ms, from, to, what: &str| {
            side.says(what, (hip.hipEventElapsedTime)(ms, from, to));
        };
        elapsed(&mut milliseconds, event, other, "time between new ones");
        side.says("record", (hip.hipEventRecord)(event, stream));
        elapsed(&mut milliseconds, event, other, "time to a new one");
        side.says("record other", (hip.hipEventRecord)(other, stream));
        side.says("wait", (hip.hipEventSynchronize)(other));
        side.says("query done", (hip.hipEventQuery)(event));
        elapsed(&mut milliseconds, event, other, "time");
        side.note("is forward", milliseconds >= 0.0);
        elapsed(&mut milliseconds, other, event, "time back");
        side.note("is backward", milliseconds <= 0.0);
        elapsed(&mut milliseconds, event, event, "time of one");
        side.note("is nothing", milliseconds == 0.0);
        elapsed(null_mut(), event, other, "time nowhere");
        side.says("record untimed", (hip.hipEventRecord)(untimed, stream));
        common::ok((hip.hipEventSynchronize)(untimed));
        elapsed(&mut milliseconds, event, untimed, "time of an untimed one");
        elapsed(&mut milliseconds, event, NOBODY, "time of nobody's");
        side.says("record nobody's", (hip.hipEventRecord)(NOBODY, stream));
        side.says("record on nobody's", (hip.hipEventRecord)(event, NOBODY));
        side.says("record on default", (hip.hipEventRecord)(event, null_mut()));
        side.says("query nobody's", (hip.hipEventQuery)(NOBODY));
        side.says("query nothing", (hip.hipEventQuery)(null_mut()));
        let wait = |on, event, flags, what: &str| {
            side.says(what, (hip.hipStreamWaitEvent)(on, event, flags));
        };
        wait(stream, event, 0, "stream waits");
        wait(stream, event, 1, "with flags");
        wait(stream, NOBODY, 0, "for nobody's");
        wait(NOBODY, event, 0, "nobody's waits");
        wait(null_mut(), event, 0, "default waits");
        wait(stream, side.event(0), 0, "for a new one");
        side.says("destroy", (hip.hipEventDestroy)(event));
        side.says("destroy again", (hip.hipEventDestroy)(event));
        side.says("query destroyed", (hip.hipEventQuery)(event));
        side.says("destroy stream", (hip.hipStreamDestroy)(stream));
        side.says("destroy stream again", (hip.hipStreamDestroy)(stream));
        side.says("query is no error", (hip.hipGetLastError)());
    }
}

fn modules(side: &Side<'_>) {
    let Side { hip, .. } = side;
    side.case("modules");
    let stream = side.stream(NON_BLOCKING);
    let numbers = side.malloc(1024);
    let mut out = null_mut();
    // SAFETY: results are written, what is passed is whole, or refused before more of it is read.
    unsafe {
        let load = |bytes: &[u8], what: &str| {
            let mut module = null_mut();
            side.says(
                what,
                (hip.hipModuleLoadData)(&mut module, bytes.as_ptr().cast()),
            );
        };
        load(b"no code object at all", "load text");
        load(&[0; 64], "load zeros");
        let nowhere = (hip.hipModuleLoadData)(null_mut(), side.object.as_ptr().cast());
        side.says("load nowhere", nowhere);
        side.says(
            "load nothing",
            (hip.hipModuleLoadData)(&mut out, std::ptr::null()),
        );
        let module = side.module();
        let get = |module, name: *const c_char, what: &str| {
            let mut function = null_mut();
            side.says(
                what,
                (hip.hipModuleGetFunction)(&mut function, module, name),
            );
        };
        get(module, c"absent".as_ptr(), "no such kernel");
        get(module, std::ptr::null(), "no name");
        get(module, c"".as_ptr(), "an empty name");
        get(module, c"\xff".as_ptr(), "a name that is no text");
        get(NOBODY, c"nothing".as_ptr(), "of nobody's");
        let status = (hip.hipModuleGetFunction)(null_mut(), module, c"nothing".as_ptr());
        side.says("nowhere", status);
        let (add, nothing) = (
            side.function(module, "scramble"),
            side.function(module, "nothing"),
        );
        common::ok((hip.hipMemsetAsync)(numbers, 0, 1024, stream));
        side.says("launch", side.add(add, numbers, 64, 5, stream));
        side.says(
            "launch on default",
            side.add(add, numbers, 32, 1, null_mut()),
        );
        common::ok((hip.hipStreamSynchronize)(null_mut()));
        side.note("added", side.words(numbers, 65, stream));
        let launch = |function, blocks, block, lds, stream, what: &str| {
            side.says(
                what,
                side.launch(function, blocks, block, lds, stream, null_mut()),
            );
        };
        let (one, wave) = ([1; 3], [64, 1, 1]);
        launch(nothing, one, wave, 0, stream, "without arguments");
        launch(add, one, wave, 0, stream, "arguments are missing");
        launch(nothing, [0, 1, 1], wave, 0, stream, "no blocks");
        launch(nothing, [1, 1, 0], wave, 0, stream, "no blocks in depth");
        launch(nothing, one, [0, 1, 1], 0, stream, "no threads");
        launch(
            nothing,
            one,
            [65, 1, 1],
            0,
            stream,
            "more threads than its bounds",
        );
        launch(
            nothing,
            one,
            [1025, 1, 1],
            0,
            stream,
            "more threads than a block has",
        );
        launch(
            nothing,
            one,
            [1024, 1024, 1024],
            0,
            stream,
            "far more threads",
        );
        launch(nothing, one, wave, 1 << 20, stream, "too much LDS");
        launch(nothing, one, wave, u32::MAX, stream, "far too much LDS");
        launch(NOBODY, one, wave, 0, stream, "nobody's kernel");
        launch(nothing, one, wave, 0, NOBODY, "on nobody's stream");
        let mut params: [*mut c_void; 2] = [null_mut(); 2];
        let status = side.launch(add, one, wave, 0, stream, params.as_mut_ptr());
        side.says("arguments that are nowhere", status);
        common::ok((hip.hipSetDevice)(1));
        launch(
            nothing,
            one,
            wave,
            0,
            null_mut(),
            "on another device's stream",
        );
        common::ok((hip.hipSetDevice)(0));
        common::ok((hip.hipStreamSynchronize)(stream));
        side.says("unload", (hip.hipModuleUnload)(module));
        side.says("unload again", (hip.hipModuleUnload)(module));
        launch(nothing, one, wave, 0, stream, "of an unloaded module");
        get(module, c"nothing".as_ptr(), "of an unloaded one");
        side.says("free", (hip.hipFree)(numbers));
        common::ok((hip.hipStreamDestroy)(stream));
    }
}

fn graphs(side: &Side<'_>) {
    let Side { hip, .. } = side;
    side.case("captures");
    let (stream, other) = (side.stream(NON_BLOCKING), side.stream(NON_BLOCKING));
    let blocking = side.stream(0);
    let module = side.module();
    let (add, nothing) = (
        side.function(module, "scramble"),
        side.function(module, "nothing"),
    );
    let (numbers, copied) = (side.malloc(256), side.malloc(256));
    let mut graph = null_mut();
    // SAFETY: results are written, memory outlives the graphs, or what is passed is refused.
    unsafe {
        let begin = |stream, mode, what: &str| {
            side.says(what, (hip.hipStreamBeginCapture)(stream, mode));
        };
        let end = |stream, what: &str| {
            let mut graph = NOBODY;
            let status = (hip.hipStreamEndCapture)(stream, &mut graph);
            side.says(what, status);
            side.note("a graph is made", !graph.is_null() && graph != NOBODY);
            graph
        };
        begin(null_mut(), RELAXED, "of the default stream");
        begin(NOBODY, RELAXED, "of nobody's");
        begin(stream, 3, "in no mode");
        begin(stream, -1, "in no mode either");
        end(stream, "end what was not begun");
        end(null_mut(), "end of the default stream");
        end(NOBODY, "end of nobody's");

        begin(stream, RELAXED, "begin");
        begin(stream, RELAXED, "begin again");
        side.says("fill", (hip.hipMemsetAsync)(numbers, 0, 256, stream));
        side.says("add", side.add(add, numbers, 64, 5, stream));
        let copy = |to, from, bytes, kind, what: &str| {
            side.says(what, (hip.hipMemcpyAsync)(to, from, bytes, kind, stream));
        };
        copy(copied, numbers, 256, WITHIN, "copy");
        // What is refused is refused at once, and is no part of the graph.
        copy(copied, numbers, 257, WITHIN, "copy past the end");
        copy(null_mut(), numbers, 16, HOST, "copy to nowhere");
        copy(copied, numbers, 16, DEVICE, "copy in a wrong direction");
        copy(copied, numbers, 16, 9, "copy in no direction");
        let status = (hip.hipMemsetAsync)(numbers, 0, 257, stream);
        side.says("fill past the end", status);
        for (block, lds, what) in [
            (65, 0, "too many threads"),
            (0, 0, "none"),
            (64, 1 << 20, "LDS"),
        ] {
            let status = side.launch(nothing, [1; 3], [block, 1, 1], lds, stream, null_mut());
            side.says(&format!("launch with {what}"), status);
        }
        let (fork, join) = (side.event(UNTIMED), side.event(UNTIMED));
        side.says("fork", (hip.hipEventRecord)(fork, stream));
        side.says("join in", (hip.hipStreamWaitEvent)(other, fork, 0));
        side.says("add beside", side.add(add, numbers, 32, 1, other));
        side.says("record", (hip.hipEventRecord)(join, other));
        side.says("join", (hip.hipStreamWaitEvent)(stream, join, 0));
        side.says("query in a capture", (hip.hipEventQuery)(fork));
        side.says("wait in a capture", (hip.hipEventSynchronize)(fork));
        end(other, "end of a stream that joined");
        side.says("end nowhere", (hip.hipStreamEndCapture)(stream, null_mut()));
        // Memory may come and go meanwhile.
        let meanwhile = side.malloc(64);
        side.says("free meanwhile", (hip.hipFree)(meanwhile));
        let made = end(stream, "end");
        side.says("query afterwards", (hip.hipEventQuery)(fork));

        side.case("graphs");
        let instantiate = |out, graph, what: &str| {
            let status = (hip.hipGraphInstantiate)(out, graph, null_mut(), null_mut(), 0);
            side.says(what, status);
        };
        let mut exec = null_mut();
        instantiate(&mut exec, NOBODY, "of nobody's");
        instantiate(null_mut(), made, "nowhere");
        instantiate(&mut exec, made, "instantiate");
        side.says("destroy", (hip.hipGraphDestroy)(made));
        side.says("destroy again", (hip.hipGraphDestroy)(made));
        side.says("launch", (hip.hipGraphLaunch)(exec, stream));
        side.says("launch again", (hip.hipGraphLaunch)(exec, stream));
        common::ok((hip.hipStreamSynchronize)(stream));
        side.says("launch on default", (hip.hipGraphLaunch)(exec, null_mut()));
        common::ok((hip.hipStreamSynchronize)(null_mut()));
        side.note("numbers", side.words(numbers, 64, stream));
        side.note("copied", side.words(copied, 64, stream));
        side.says("launch nobody's", (hip.hipGraphLaunch)(NOBODY, stream));
        side.says("launch on nobody's", (hip.hipGraphLaunch)(exec, NOBODY));
        begin(stream, RELAXED, "record a graph");
        side.says("in a graph", (hip.hipGraphLaunch)(exec, stream));
        let outer = end(stream, "end of it");
        side.says("destroy exec", (hip.hipGraphExecDestroy)(exec));
        side.says("destroy exec again", (hip.hipGraphExecDestroy)(exec));
        side.says("launch destroyed", (hip.hipGraphLaunch)(exec, stream));
        common::ok((hip.hipGraphDestroy)(outer));

        side.case("spoiled captures");
        for (what, call) in [
            (
                "stream",
                hip.hipStreamSynchronize as unsafe extern "C" fn(_) -> _,
            ),
            ("query", hip.hipStreamQuery),
        ] {
            begin(stream, RELAXED, what);
            side.says(&format!("{what} waits"), call(stream));
            side.says(
                &format!("{what} adds"),
                side.add(add, numbers, 64, 1, stream),
            );
            end(stream, &format!("{what} ends"));
        }
        begin(stream, RELAXED, "device");
        side.says("device waits", (hip.hipDeviceSynchronize)());
        end(stream, "device ends");
        begin(stream, RELAXED, "other streams");
        side.says("another waits", (hip.hipStreamSynchronize)(other));
        side.says("default waits", (hip.hipStreamSynchronize)(null_mut()));
        end(stream, "they spoil nothing");
        begin(blocking, RELAXED, "a blocking stream");
        side.says(
            "default fills",
            (hip.hipMemsetAsync)(numbers, 0, 4, null_mut()),
        );
        side.says("default waits", (hip.hipStreamSynchronize)(null_mut()));
        end(blocking, "it ends");
        // Two captures do not become one.
        begin(stream, RELAXED, "one");
        begin(other, RELAXED, "two");
        common::ok((hip.hipEventRecord)(fork, stream));
        side.says("merge", (hip.hipStreamWaitEvent)(other, fork, 0));
        end(stream, "one ends");
        end(other, "two ends");
        begin(other, RELAXED, "to be destroyed");
        side.says("destroy a captured stream", (hip.hipStreamDestroy)(other));
        side.says(
            "of what is gone",
            (hip.hipStreamEndCapture)(other, &mut graph),
        );
        common::ok((hip.hipDeviceSynchronize)());
        for memory in [numbers, copied] {
            common::ok((hip.hipFree)(memory));
        }
        for stream in [stream, blocking] {
            common::ok((hip.hipStreamDestroy)(stream));
        }
        common::ok((hip.hipModuleUnload)(module));
    }
}

/// The source of the fixture's kernels that are launched here.
const SOURCE: &str = r#"
extern "C" __global__ void __launch_bounds__(64) nothing() {}
extern "C" __global__ void scramble(unsigned* numbers, unsigned by) { numbers[threadIdx.x] += by; }
"#;

/// What is otherwise, what the simulator says and what hip-on-kfd does, and why that is right.
const OTHERWISE: &[(&str, &str, &str, &str)] = &[
    (
        "memory: flags 4",
        "hipSuccess",
        "hipErrorNotSupported",
        "the driver is not asked for contiguous memory, and hip-on-kfd says so",
    ),
    (
        "copies: peer that has it not",
        "hipErrorInvalidValue",
        "hipSuccess",
        "addresses say where memory is; the simulator finds programs that are wrong about it",
    ),
    (
        "copies: from a peer that has it not",
        "hipErrorInvalidValue",
        "hipSuccess",
        "likewise",
    ),
    (
        "copies: no peer",
        "hipErrorInvalidValue",
        "hipErrorInvalidDevice",
        "HIP names the device first; the simulator looks at memory alone",
    ),
    (
        "events: flags 0x4",
        "hipSuccess",
        "hipErrorInvalidValue",
        "by HIP, an event of several processes has no time; the simulator takes it all the same",
    ),
    (
        "events: flags 0x6",
        "hipSuccess",
        "hipErrorNotSupported",
        "there are no events of several processes, and hip-on-kfd says so",
    ),
    (
        "events: flags 0x20000000",
        "hipErrorInvalidValue",
        "hipSuccess",
        "hipEventDisableSystemFence, which the simulator does not know",
    ),
    (
        "captures: end of the default stream",
        "hipErrorInvalidHandle",
        "hipErrorIllegalState",
        "no capture is under way in it, as in any other stream",
    ),
];

/// What a library says to all calls.
fn answers(hip: &Hip, object: &[u8]) -> Vec<(String, String)> {
    let side = Side {
        hip,
        object,
        case: RefCell::new(""),
        said: RefCell::default(),
    };
    for calls in [devices, memory, copies, streams_and_events, modules, graphs] {
        calls(&side);
    }
    side.said.into_inner()
}

#[test]
fn both_answer_alike() {
    std::env::set_var("HIP_SIM_ARCH", "gfx1100,gfx1100");
    std::env::set_var("HIP_SIM_MEMORY", "64M");
    common::mock();
    let object = compiled();
    let sim = answers(&SIM, &object);
    let kfd = answers(&KFD, common::OBJECT);
    assert_eq!(sim.len(), kfd.len());
    let mut wrong = Vec::new();
    let mut listed = 0;
    for ((call, sim), (other, kfd)) in sim.iter().zip(&kfd) {
        assert_eq!(call, other);
        let known = OTHERWISE.iter().find(|(known, ..)| known == call);
        match known {
            Some((_, of_sim, of_kfd, _)) => {
                listed += 1;
                let is = (sim.trim_matches('"'), kfd.trim_matches('"'));
                if is != (*of_sim, *of_kfd) {
                    wrong.push(format!(
                        "{call}: {sim} and {kfd}, which is not what is listed"
                    ));
                }
            }
            None if sim != kfd => wrong.push(format!("{call}: {sim}, hip-on-kfd: {kfd}")),
            None => {}
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(listed, OTHERWISE.len(), "a listed call is not made");
    assert!(sim.len() > 250, "{}", sim.len());
}

/// The simulator's own object of the kernels.
fn compiled() -> Vec<u8> {
    use hip_sim::hiprtc::*;
    let source = CString::new(SOURCE).unwrap();
    let mut program = null_mut();
    let name = c"kernels.hip".as_ptr();
    let options = [c"--offload-arch=gfx1100".as_ptr()];
    // SAFETY: strings end with a zero, results are written, and the code has as many bytes as is said.
    unsafe {
        let made = hiprtcCreateProgram(
            &mut program,
            source.as_ptr(),
            name,
            0,
            null_mut(),
            null_mut(),
        );
        assert_eq!(made, 0);
        assert_eq!(hiprtcCompileProgram(program, 1, options.as_ptr()), 0);
        let mut bytes = 0;
        assert_eq!(hiprtcGetCodeSize(program, &mut bytes), 0);
        let mut code = vec![0u8; bytes];
        assert_eq!(hiprtcGetCode(program, code.as_mut_ptr().cast()), 0);
        hiprtcDestroyProgram(&mut program);
        code
    }
}
