//! Opens a GPU with the kernel driver alone, takes memory of every kind, and waits for an event. No queue is made and no
//! packet sent.
//!
//! ```sh
//! cargo run -p candle-kfd --example memory            # the first GPU, unless it drives a display
//! cargo run -p candle-kfd --example memory mock       # no GPU: the driver in this process
//! ```

use candle_kfd::mock::Mock;
use candle_kfd::{Displays, Event, Kfd, Kind, Result, Wake};
use std::time::Duration;

fn main() -> Result<()> {
    let kfd = match std::env::args().nth(1).as_deref() {
        Some("mock") => Kfd::with(Mock::new(&["gfx1100", "gfx942"]))?,
        _ => Kfd::open()?,
    };
    println!("interface {}.{}", kfd.version().0, kfd.version().1);
    let gpus = (0..kfd.nodes().len())
        .map(|index| kfd.gpu(index, Displays::Refuse))
        .collect::<Result<Vec<_>>>()?;
    for gpu in &gpus {
        let node = gpu.node();
        println!(
            "{}: {} with {} compute units and {} MiB, {} of them seen by the host",
            node.pci_id,
            node.arch,
            node.cu_count(),
            node.memory_bytes >> 20,
            node.visible_bytes() >> 20
        );
        println!("  {} MiB are free", gpu.free_bytes()? >> 20);
        for kind in [
            Kind::Vram,
            Kind::VramVisible,
            Kind::VramCoherent,
            Kind::Executable,
            Kind::Gtt,
            Kind::Uncached,
            Kind::Queue,
        ] {
            let memory = match gpu.allocate(3 << 20, kind) {
                Ok(memory) => memory,
                Err(error) => {
                    println!("  {error}");
                    continue;
                }
            };
            memory.map_to(&gpus)?;
            let host = match memory.host() {
                Some(host) => {
                    host.fill(0, host.len(), 0xa5)?;
                    let mut last = [0];
                    host.read(host.len() - 1, &mut last)?;
                    assert_eq!(last, [0xa5]);
                    "written and read by the host"
                }
                None => "not for the host",
            };
            println!("  {kind} at {:#x}, {host}", memory.address());
        }
        let mut own = vec![0u8; 10_000];
        // SAFETY: the vector lives longer, and no GPU is told to write to it.
        let seen = unsafe { gpu.register(own.as_mut_ptr(), own.len()) }?;
        println!(
            "  the caller's memory at {:p} is seen at {:#x}",
            own.as_ptr(),
            seen.address()
        );
        let event = Event::new(gpu)?;
        event.set()?;
        let first = kfd.wait(&[&event], Wake::Any, Duration::from_secs(1))?;
        let second = kfd.wait(&[&event], Wake::Any, Duration::from_millis(10))?;
        println!("  event {}: {first:?}, then {second:?}", event.id());
        gpu.check_faults()?;
    }
    drop(gpus);
    println!("{} releases failed", kfd.failed_releases());
    Ok(())
}
