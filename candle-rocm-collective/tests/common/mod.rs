//! What tests of several ranks and several nodes share.

// Each test binary uses its own part of this module.
#![allow(dead_code)]

use candle::Result;
use candle_rocm_collective::rendezvous::{Meeting, Rendezvous};
use candle_rocm_collective::{Communicator, Error};
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A port that nobody has: below those that the system gives to connections, and other processes begin elsewhere.
pub fn free_port() -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_mul(64);
    let next = || first.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % 20_000 + 10_000;
    let ports = std::iter::repeat_with(|| next() as u16);
    let mut free = ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().unwrap()
}

/// A node of this test, on this host.
pub fn place(port: u16, node_rank: usize, nodes: usize) -> Rendezvous {
    Rendezvous {
        address: format!("127.0.0.1:{port}"),
        node_rank,
        nodes,
        timeout: Duration::from_secs(60),
        token: "of this test".to_string(),
    }
}

/// Lets nodes meet, a thread each; what they give, in their order.
pub fn nodes<T: Send, E: From<Error> + Send>(
    nodes: usize,
    run: impl Fn(Meeting) -> std::result::Result<T, E> + Sync,
) -> Vec<std::result::Result<T, E>> {
    let port = free_port();
    std::thread::scope(|scope| {
        let run = &run;
        let threads = (0..nodes).map(|node| {
            scope.spawn(move || {
                let card = format!("card {node}");
                run(place(port, node, nodes).meet_telling(card.as_bytes(), |_| ())?)
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// Runs the ranks of a group, a thread each; what they give, in their order.
pub fn ranks<T: Send>(
    group: Vec<Communicator>,
    run: impl Fn(Communicator) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    std::thread::scope(|scope| {
        let run = &run;
        let threads = group.into_iter().map(|rank| scope.spawn(move || run(rank)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}
