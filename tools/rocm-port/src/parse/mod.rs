//! From CUDA text to the model: preprocessed by a C++ compiler, parsed by tree-sitter.
