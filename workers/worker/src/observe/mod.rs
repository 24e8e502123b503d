//! What logs and traces tell of requests.
//!
//! | Module      | Gives                                                                          |
//! |-------------|--------------------------------------------------------------------------------|
//! | [`headers`] | a request's name and its place in a trace, from its headers                     |
//! | [`request`] | the request that is worked on, wherever that is: its log span, figures, trace   |
//! | [`part`]    | a part of a request's time, for its trace                                       |
//! | [`export`]  | traces on their way to a collector (OTLP), by option                            |
//! | `layer`     | names every request, and tells its end                                          |
//!
//! Handlers and what they call find the request by [`RequestScope::current`]; work on other threads takes it along.
//! Nothing of this holds a request up: spans wait in a bounded queue and are dropped where it is full.

pub mod export;
pub mod headers;
pub(crate) mod layer;
pub mod part;
pub mod request;

pub use export::{TraceArgs, Traces};
pub use part::Part;
pub use request::{spawn, Figures, RequestScope};
