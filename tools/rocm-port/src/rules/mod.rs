//! What keeps a kernel from running as it is, by rule.
