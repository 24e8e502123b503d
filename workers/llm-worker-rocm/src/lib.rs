//! LLM inference on AMD GPUs, from the command line.
