//! Integration tests of the tensor crate, as one program.

#[cfg(feature = "candle-nn")]
mod adapters;
mod arithmetic;
mod candle;
mod cases;
#[path = "../checking/mod.rs"]
mod checking;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod device_training;
mod gradients;
mod io;
mod loss;
mod nets;
mod offload;
mod optimizers;
mod outlines;
mod precision;
#[cfg(feature = "cuda")]
#[path = "../../../cuda/tests/software/mod.rs"]
mod software;
mod tape;
mod torch_files;
