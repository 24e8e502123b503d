//! What the present thread is verifying.

use super::plain::Plain;
use std::cell::RefCell;

thread_local! {
    static OPEN: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

struct Entry {
    ordinal: usize,
    subject: String,
    plain: Plain,
    launched: bool,
}

/// Something that is on trial on a GPU, in a form, until this is dropped: the thread may use it meanwhile.
pub(super) struct Trial(());

impl Trial {
    pub fn open(ordinal: usize, subject: &str, plain: Plain) -> Self {
        let entry = Entry {
            ordinal,
            subject: subject.to_string(),
            plain,
            launched: false,
        };
        OPEN.with_borrow_mut(|open| open.push(entry));
        Trial(())
    }

    /// Ends it; whether the subject was launched.
    pub fn end(self) -> bool {
        OPEN.with_borrow(|open| open.last().is_some_and(|entry| entry.launched))
    }
}

impl Drop for Trial {
    fn drop(&mut self) {
        OPEN.with_borrow_mut(|open| open.pop());
    }
}

/// The form in which something is on trial; `launched` says whether it is now launched, not only asked for.
pub(super) fn form_of(ordinal: usize, subject: &str, launched: bool) -> Option<Plain> {
    OPEN.with_borrow_mut(|open| {
        let mut entries = open.iter_mut().rev();
        let entry = entries.find(|e| e.ordinal == ordinal && e.subject == subject)?;
        entry.launched |= launched;
        Some(entry.plain)
    })
}

/// Whether anything is on trial on a GPU.
pub(super) fn is_open(ordinal: usize) -> bool {
    OPEN.with_borrow(|open| open.iter().any(|entry| entry.ordinal == ordinal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_trial_is_so_for_its_thread_until_the_end() {
        let outer = Trial::open(0, "softmax", Plain::NONE);
        let inner = Trial::open(0, "copy", Plain::from_bits(1));
        assert_eq!(form_of(0, "softmax", false), Some(Plain::NONE));
        assert_eq!(form_of(0, "copy", true), Some(Plain::from_bits(1)));
        assert_eq!(form_of(1, "copy", true), None);
        assert!(inner.end());
        assert_eq!(form_of(0, "copy", false), None);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(!is_open(0)));
        });
        assert!(is_open(0));
        assert!(!outer.end());
        assert!(!is_open(0));
    }
}
