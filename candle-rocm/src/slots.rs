//! Places for what other modules keep with a device or a GPU, by type: so that these need not know of it.

use crate::pool::Pool;
use crate::Stream;
use std::any::Any;
use std::sync::OnceLock;

/// What is kept in a slot.
pub(crate) trait Kept: Any + Send + Sync {
    /// Returns memory to the device's allocator before the device goes; the stream is idle and no graph is left.
    fn give_back(&self, _pool: &Pool, _stream: &Stream) {}
}

/// One value of each type that was asked for.
#[derive(Default)]
pub(crate) struct Slots {
    first: Slot,
}

type Slot = OnceLock<Box<Node>>;

struct Node {
    kept: Box<dyn Kept>,
    next: Slot,
}

impl Slots {
    /// The value of a type, made by the first call.
    pub fn get<T: Kept + Default>(&self) -> &T {
        let mut slot = &self.first;
        loop {
            let node = slot.get_or_init(|| {
                Box::new(Node {
                    kept: Box::new(T::default()),
                    next: Slot::new(),
                })
            });
            let kept: &dyn Any = &*node.kept;
            if let Some(kept) = kept.downcast_ref() {
                return kept;
            }
            slot = &node.next;
        }
    }

    /// Has every value return its memory.
    pub fn give_back(&self, pool: &Pool, stream: &Stream) {
        let mut slot = &self.first;
        while let Some(node) = slot.get() {
            node.kept.give_back(pool, stream);
            slot = &node.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[derive(Default)]
    struct Small(AtomicU32);
    impl Kept for Small {}

    #[derive(Default)]
    struct Text(OnceLock<String>);
    impl Kept for Text {}

    #[test]
    fn each_type_has_one_value() {
        let slots = Slots::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    slots.get::<Small>().0.fetch_add(1, Ordering::Relaxed);
                    slots.get::<Text>().0.get_or_init(|| "text".into());
                });
            }
        });
        assert_eq!(slots.get::<Small>().0.load(Ordering::Relaxed), 4);
        assert_eq!(
            slots.get::<Text>().0.get().map(String::as_str),
            Some("text")
        );
    }
}
