//! Batches: files whose lines are requests, answered with as little ado as possible, in the form of OpenAI's batches.
//!
//! | Module     | Gives                                                                                   |
//! |------------|-----------------------------------------------------------------------------------------|
//! | [`line`]   | a line of the input as a request, or what is wrong with it                              |
//! | [`input`]  | a file's lines one after the other, however long the file                               |
//! | [`feed`]   | the lines that are still to be answered, in an order in which equal beginnings meet     |
//! | [`ask`]    | who answers: this program's own routes, or a server                                     |
//! | [`run`]    | as many requests at once as may be, tried again where that helps                        |
//! | [`outcome`] | what became of a line, as a line of the output                                         |
//! | [`journal`] | an output that grows by whole lines, and what an earlier run has left in it            |
//! | [`figures`] | how far a run is                                                                       |
//!
//! The command `batch` and the server's `/v1/batches` are made of these.

pub mod ask;
pub mod feed;
pub mod figures;
pub mod input;
pub mod journal;
pub mod line;
pub mod outcome;
pub mod run;
