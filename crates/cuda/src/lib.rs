//! GPU training kernels over plain device slices: the counterpart of `phalanx-kernels` for NVIDIA GPUs.
//!
//! The crate has no tensors, no autograd and no ranks. A [`Slice`] is a range of elements of one [`ElementType`] in
//! device memory. Clones and views share the allocation. Functions take slices and return slices. They return before
//! the device has finished; only [`Gpu::download`] and [`Gpu::synchronize`] wait.
//!
//! # Modules
//!
//! - **[`libraries`]**: the installed shared libraries, the file names that were tried, and versions. A program is built without
//!   a toolkit and starts with and without GPUs: each library is loaded at first use.
//! - **[`compile`]**: compilation of CUDA C by NVRTC at first use, for the architecture of the device, with a cache on disk. The
//!   sources are embedded in this crate.
//! - **[`device`]**: a context with three streams, for compute, communication and copies. Work on one stream runs in the order of
//!   issue. [`Device::wait`] orders work between streams, by an event.
//! - **[`memory`]**: stream-ordered allocations from a pool, counted by purpose, and page-locked host memory.
//! - **[`Gpu`]**: a device with its memory and kernels, which all other modules take. [`launch`] runs a kernel by name.
//! - **[`graph`]**: CUDA graphs of captured work.
//! - **[`graph_replay`]**: graphs of code that issues the same work again and again, such as training steps.
//! - **[`kernels`]**: launchers, one file for each kernel family.
//! - **[`blas`]**, **[`dnn`]**: matrix products by cuBLASLt and convolutions by cuDNN, with one plan for each shape.
//! - **[`nvml`]**: utilisation, memory, power, energy and links; **[`self_test`]**: a check of a GPU's results and speed.
//!
//! # Streams and lifetimes
//!
//! Memory is allocated and freed in the order of the compute stream. A slice records the other streams that use it. Such a stream
//! waits for the allocation first, and the memory is not freed before the stream is done, even if the slice is dropped earlier.
//! The *contents* are the caller's responsibility: a stream that reads must wait for the stream that writes, by [`Device::wait`].
//! A wait that is already in place is not issued again. cudarc's event tracking is off: it would keep two events for each buffer
//! and wait at every access.
//!
//! # Determinism
//!
//! Kernels use no atomic sums of floats, and libraries are limited to deterministic algorithms, unless [`Options::repeatable`] is
//! false.
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
pub mod graph_replay;
pub mod launch;

pub mod kernels;

pub mod blas;
pub mod dnn;
pub mod nvml;
pub mod self_test;

pub use compile::Source;
pub use device::{Device, Event, Stream, Timer};
pub use element::{Element, ElementType, TensorLayout};
pub use error::{GpuError, Result};
pub use gpu::{Gpu, Options};
pub use graph::Graph;
pub use graph_replay::GraphReplay;
pub use memory::{Kind, Slice};

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
