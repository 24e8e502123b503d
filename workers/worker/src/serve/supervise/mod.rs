//! A process that serves, and one that holds its port.
//!
//! ROCm's runtime ends a process by SIGABRT when a GPU faults or hangs. So that such an end is a matter of seconds, a
//! server on a GPU is two processes: the parent opens the port and never touches the GPU, the child inherits the open
//! port as its standard input and serves. While there is no child that listens, the parent answers with 503.
//!
//! | Module         | Gives                                                              |
//! |----------------|--------------------------------------------------------------------|
//! | [`options`]    | whether to do so, and how often a child is started anew            |
//! | [`supervisor`] | the child's side: its port, what it knows of the parent            |
//! | [`parent`]     | the parent's side: start, watch, start anew, end                   |
//! | [`stand_in`]   | the answers while no child listens                                 |
//! | [`crashes`]    | how many were there, when the next try is due, when it is enough   |

pub(super) mod crashes;
pub(super) mod options;
pub(super) mod parent;
pub(super) mod stand_in;
pub(super) mod supervisor;
