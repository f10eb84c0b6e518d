//! Training on NVIDIA GPUs, over plain device slices: the GPU's twin of `phalanx-kernels`.
//!
//! It knows no tensors, no autograd and no ranks. Memory on a device is a [`Slice`]: elements of one [`ElementType`], somewhere
//! in an allocation that all slices of it keep alive. Functions take slices and give slices, and return before the device has
//! computed anything; only [`Gpu::download`] and [`Gpu::synchronize`] wait.
//!
//! # What there is
//!
//! - **[`libraries`]**: which shared libraries are installed, under which names they were looked for, and their versions. One
//!   program, built without a toolkit, starts with and without GPUs, because everything is loaded when it is first asked for.
//! - **[`compile`]**: kernels are CUDA C, embedded in this crate, which NVRTC compiles at first use for the architecture of the
//!   device; what it made is kept on disk.
//! - **[`device`]**: a device's context and its three streams: one computes, one communicates, one copies. Work on one stream
//!   runs in the order in which it was issued. Between streams there is no order but the one that [`Device::wait`] makes, an
//!   event at a hand-over.
//! - **[`memory`]**: allocations in the order of the computing stream, from a pool that gives nothing back to the system,
//!   counted by what they are for; page-locked memory of the host.
//! - **[`Gpu`]** is all of that together, and what the rest takes; [`launch`] runs a kernel by its name.
//! - **[`graph`]**: what was issued once, captured, and launched again as a whole.
//! - **[`replay`]**: code that issues the same work again and again, whose work is recorded and launched as graphs.
//! - **[`kernels`]**: a launcher for each kernel, a file for each family.
//! - **[`blas`]**, **[`dnn`]**: matrix products by cuBLASLt and convolutions by cuDNN; how is found out once for each shape.
//! - **[`nvml`]**: what a GPU does and what that costs, and how GPUs reach each other; **[`self_test`]**: whether it computes right.
//!
//! # Streams and lifetimes
//!
//! Memory is allocated and freed in the order of the computing stream. A slice remembers which other streams were given work that
//! uses it: such a stream waits for the allocation first, and the memory is not freed before the stream is done, whenever the
//! slice is dropped. What is *in* the memory is up to the caller: whoever reads on one stream what another one writes lets the
//! one wait for the other, by [`Device::wait`]; a wait that is there already is not made again.
//! cudarc's own tracking of events is off: it would wait at every access, and two events lie on each buffer.
//!
//! # Random bits
//!
//! Kernels use no atomic sums of floats, and libraries are asked for algorithms that repeat their bits, unless
//! [`Options::repeatable`] is off.
#![deny(unsafe_code)]

pub mod error;

pub mod element;
pub mod libraries;

mod driver;

pub mod compile;
pub mod device;
pub mod memory;

mod gpu;

pub mod graph;
pub mod launch;
pub mod replay;

pub mod kernels;

pub mod blas;
pub mod dnn;
pub mod nvml;
pub mod self_test;

pub use compile::Source;
pub use device::{Device, Laps, Mark, Stream};
pub use element::{Element, ElementType, Layout};
pub use error::{GpuError, Result};
pub use gpu::{Gpu, Options};
pub use graph::Graph;
pub use memory::{Kind, Slice};
pub use replay::Replay;

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
