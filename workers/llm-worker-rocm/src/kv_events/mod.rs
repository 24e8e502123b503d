//! What the cache knows, for routers that send a prompt to where its beginning is: vLLM's events over ZeroMQ.
//!
//! A message on the publishing socket has three frames: the topic, a number that counts messages from 0 (8 bytes,
//! big-endian), and MessagePack ([`wire`]). A subscriber that has missed numbers asks the replay socket (ROUTER) for
//! those from a number on, and gets them as pairs of number and MessagePack, with the number -1 at the end.
//! <https://docs.vllm.ai/en/latest/examples/online_serving/kv_events_subscriber/>
//!
//! The engine never waits: messages go through a queue of limited length, and those that find it full are dropped,
//! their numbers missing for good. Subscribers that are slow miss messages, too, and see it by the numbers.
//!
//! The sockets are our own ([`zmtp`]): of ZeroMQ's libraries the one in C is to be installed, and those in Rust put no
//! limit on what a stranger sends.

mod publisher;
mod replay;
pub mod wire;
mod zmtp;

pub use publisher::Publisher;

/// How events are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEventOptions {
    /// Where subscribers connect to: `tcp://HOST:PORT`.
    pub endpoint: String,
    /// Where they ask for what they have missed.
    pub replay: Option<String>,
    /// The first frame of messages.
    pub topic: String,
    /// Messages that are kept for those.
    pub kept: usize,
}

/// An endpoint to bind: `tcp://HOST:PORT`, where `*` stands for all addresses.
///
/// # Errors
/// What is wrong with it.
pub fn endpoint(text: &str) -> Result<String, String> {
    let form = || format!("{text:?} is not tcp://HOST:PORT, with * for all addresses");
    let address = text.strip_prefix("tcp://").ok_or_else(form)?;
    let (host, port) = address.rsplit_once(':').ok_or_else(form)?;
    let port: u16 = port.parse().map_err(|_| form())?;
    match host {
        "" => Err(form()),
        "*" => Ok(format!("tcp://0.0.0.0:{port}")),
        host => Ok(format!("tcp://{host}:{port}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        assert_eq!(endpoint("tcp://*:5557").unwrap(), "tcp://0.0.0.0:5557");
        assert_eq!(endpoint("tcp://[::1]:5557").unwrap(), "tcp://[::1]:5557");
        for bad in [
            "5557",
            "tcp://*",
            "tcp://:5557",
            "ipc:///tmp/x",
            "tcp://*:x",
            "tcp://*:70000",
        ] {
            assert!(endpoint(bad).is_err(), "{bad}");
        }
    }
}
