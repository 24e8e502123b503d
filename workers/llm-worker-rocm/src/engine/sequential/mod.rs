//! Architectures that the decoder does not have: models of candle-transformers, one sequence at a time, behind the same
//! border.
//!
//! | Module     | Gives                                                                        |
//! |------------|------------------------------------------------------------------------------|
//! | `model`    | what the register of architectures says of such a model, and what loading gives |
//! | `load`     | how each architecture is loaded                                              |
//! | `settings` | `config.json`, checked                                                       |
//! | `weights`  | the folder's tensors, none of them ignored                                   |
//! | `source`   | a file or folder from its checks to the device                               |
//! | `forward`  | a loaded model as the engine runs it                                         |
//!
//! Requests wait in the engine's queue; nothing is shared among them. On a GPU activations are in the dtype of the
//! file's matrices where the model's code can, else in f32.

mod forward;
pub(crate) mod load;
mod model;
mod settings;
mod source;
mod weights;

pub use forward::Sequential;
pub use model::SequentialModel;
pub use source::Source;
