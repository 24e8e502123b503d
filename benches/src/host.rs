//! What the host pays: launches, operations, memory, graphs, compilation.

use crate::measure::{Bench, Work};
use candle_rocm::ops::{self, binary, fill, norm};
use candle_rocm::{Args, Capture, DType, DeclaredKernel, Error, LaunchConfig, Result, Scalar};
use std::ffi::c_void;
use std::time::Instant;

/// Calls enqueued at once: fewer than any queue holds, so that the host never waits.
const CALLS: usize = 512;
const REPEATS: usize = 41;
/// Launches of a captured chain, about those of a small model's step.
const CHAIN: usize = 200;

pub fn run(bench: &Bench) -> Result<()> {
    let device = bench.device;
    let x = bench.random(DType::F32, &[1024])?;
    let weight = bench.random(DType::F32, &[1024])?;

    let kernel = device.kernel(&declared("fill_f32")?)?;
    println!("# launching {}", kernel.name());
    let out = device.alloc(4096)?;
    let hip = &candle_rocm::sys::hip::Hip::get()?.functions;
    let (mut count, mut address, mut value) = (1024u64, out.as_ptr(), 1.0f32);
    let mut params = [
        (&raw mut count).cast::<c_void>(),
        (&raw mut address).cast(),
        (&raw mut value).cast(),
    ];
    enqueue(bench, "launch, the runtime alone", || {
        let stream = device.stream().as_raw();
        let params = params.as_mut_ptr();
        // SAFETY: the kernel takes a count, an address with room for as many values, and a value; all live during the
        // call.
        let status = unsafe {
            (hip.hipModuleLaunchKernel)(
                kernel.as_raw(),
                1,
                1,
                1,
                256,
                1,
                1,
                0,
                stream,
                params,
                std::ptr::null_mut(),
            )
        };
        assert_eq!(status, 0, "hipModuleLaunchKernel");
        Ok(())
    })?;
    enqueue(bench, "launch, kernel in hand", || {
        let args = Args::new().u64(1024).ptr(&out, 0).f32(1.0);
        // SAFETY: these are the kernel's arguments, `fill_f32(n, out, value)`, and there is room for as many values.
        unsafe { kernel.launch(LaunchConfig::for_elements(1024), &args) }
    })?;
    let mut view = x.view();
    view.buffer = &out;
    enqueue(bench, "operation: fill, a declared kernel", || {
        fill::fill(device, &view, Scalar::F32(1.0))
    })?;
    enqueue(bench, "operation: add", || {
        binary::binary(device, binary::BinaryOp::Add, &x.view(), &weight.view()).map(drop)
    })?;
    enqueue(bench, "operation: rms_norm", || {
        norm::rms_norm(device, &x.view(), &weight.view(), 1e-5).map(drop)
    })?;

    for bytes in [4096, 1 << 20] {
        drop(device.alloc(bytes)?);
        enqueue(bench, &format!("allocate and free {bytes} bytes"), || {
            device.alloc(bytes).map(drop)
        })?;
    }
    let mut live: Vec<_> = (0..CALLS)
        .map(|i| device.alloc(512 * (i % 64 + 1)))
        .collect::<Result<_>>()?;
    let mut next = 0;
    enqueue(bench, "free and allocate one of 512 live buffers", || {
        next = (next + 7) % CALLS;
        live.swap_remove(next);
        live.push(device.alloc(512 * (next % 64 + 1))?);
        Ok(())
    })?;

    let chain = || -> Result<()> {
        let mut current = norm::rms_norm(device, &x.view(), &weight.view(), 1e-5)?;
        for _ in 1..CHAIN {
            let mut view = x.view();
            view.buffer = &current;
            current = binary::binary(device, binary::BinaryOp::Add, &view, &weight.view())?;
        }
        Ok(())
    };
    chain()?;
    once(bench, "chain of 200 operations, enqueued", chain)?;
    let capture = Capture::begin(device)?;
    chain()?;
    let graph = capture.end()?;
    once(bench, "chain of 200 operations, one graph", || {
        // SAFETY: what the chain reads is alive.
        unsafe { graph.launch() }
    })
}

/// The declared kernel of a name.
fn declared(name: &str) -> Result<DeclaredKernel> {
    let mut kernels = ops::kernels().into_iter();
    kernels
        .find(|kernel| kernel.name == name)
        .ok_or_else(|| Error::InvalidLaunch {
            kernel: name.to_string(),
            reason: "no kernel of this name is declared".to_string(),
        })
}

/// Host time per call while the device works behind.
fn enqueue(bench: &Bench, name: &str, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    let mut times = Vec::new();
    for _ in 0..REPEATS {
        bench.device.synchronize()?;
        let start = Instant::now();
        for _ in 0..CALLS {
            call()?;
        }
        times.push(start.elapsed().as_secs_f64() / CALLS as f64);
    }
    times.sort_by(f64::total_cmp);
    bench.print(&name, &"host", times[REPEATS / 2], Work::Calls);
    Ok(())
}

/// Host time to enqueue, and time until the device is done.
fn once(bench: &Bench, name: &str, call: impl Fn() -> Result<()>) -> Result<()> {
    let (mut host, mut whole) = (Vec::new(), Vec::new());
    for _ in 0..REPEATS {
        bench.device.synchronize()?;
        let start = Instant::now();
        call()?;
        host.push(start.elapsed().as_secs_f64());
        bench.device.synchronize()?;
        whole.push(start.elapsed().as_secs_f64());
    }
    for (size, mut times) in [("host", host), ("until done", whole)] {
        times.sort_by(f64::total_cmp);
        bench.print(&name, &size, times[REPEATS / 2], Work::Calls);
    }
    Ok(())
}

/// One kernel of some families: what the first use costs, from the compiler or from the cache on disk, whichever is
/// there.
pub fn compile(bench: &Bench) -> Result<()> {
    for kernel in [
        "fill_f32",
        "add_f32",
        "exp_f32",
        "rms_norm_f32",
        "matvec_q4k_1",
        "attention_tiled_2",
    ] {
        let kernel = declared(kernel)?;
        let start = Instant::now();
        let found = bench.device.kernel(&kernel);
        bench.print(
            &format!("load {:?}", kernel.family),
            &"first use",
            start.elapsed().as_secs_f64(),
            Work::Calls,
        );
        if let Err(error) = found {
            println!("# {error}");
        }
    }
    Ok(())
}
