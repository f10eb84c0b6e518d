//! Operations by NCCL on buffers of GPUs and of the host.
//!
//! The GPUs are the software GPU's, and NCCL is its stand-in: streams are queues with drawn delays, and what has not waited for
//! whom it must ends the process. With `PHALANX_TEST_GPU=1` all run on the machine's own GPUs and NCCL, as far as there are some.
#![cfg(feature = "nccl")]

#[path = "../common/mod.rs"]
mod common;
#[path = "../../../cuda/tests/software/mod.rs"]
mod software;

mod conformance;
mod failures;
mod gpus;
mod order;
mod processes;
