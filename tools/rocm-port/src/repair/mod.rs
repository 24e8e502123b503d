//! A bounded loop with a language model, whose answers may touch the kernel only.
