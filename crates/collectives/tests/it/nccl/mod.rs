//! Operations over NCCL on GPU and host buffers.
//!
//! The GPUs are the software GPU's, and NCCL is its stand-in: streams are queues with random delays, and a missing wait ends the
//! process. With `PHALANX_TEST_GPU=1` all tests run on the machine's own GPUs and NCCL, as far as there are enough.

#[path = "../../../../cuda/tests/software/mod.rs"]
mod software;

mod conformance;
mod failures;
mod gpus;
mod order;
mod processes;
mod stand_in;
