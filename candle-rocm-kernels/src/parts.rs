//! Parts of families: what a compiler on the user's machine makes of a family at once.
//!
//! A family that takes a compiler seconds has a part for each dtype, or for each quantized format. Its device file says
//! which lines are of which part: those that begin with `PART(name)`, a macro without text. All other lines are in
//! every part. Which part a kernel is in is declared where it is launched. Objects that are built in hold whole
//! families.

use crate::family::Family;
use std::collections::BTreeSet;

impl Family {
    /// The parts that a compiler on the user's machine makes the family in; none if it makes all of it at once.
    pub fn parts(self) -> BTreeSet<&'static str> {
        self.source().lines().filter_map(part_of).collect()
    }

    /// [`Family::source`] without the lines of other parts; a part that has no line of its own has what is in all of
    /// them.
    pub fn part(self, part: &str) -> String {
        let mut source = String::with_capacity(self.source().len());
        for line in self.source().lines() {
            if part_of(line).is_none_or(|of| of == part) {
                source.push_str(line);
            }
            // What is left out leaves the numbers of lines as they are.
            source.push('\n');
        }
        source
    }
}

/// The part that a line is of.
fn part_of(line: &str) -> Option<&str> {
    let (part, _) = line.strip_prefix("PART(")?.split_once(')')?;
    Some(part)
}
