//! Arrays, and the back ends that compute with them: CPUs, NVIDIA GPUs, and outlines without numbers.
//!
//! An [`Array`] is memory with a shape: a tensor of candle on the CPU, or the array of another back end. Its arithmetic is the
//! functions of an [`ArrayBackend`], in families: products, convolutions, attention, norms, losses, updates of optimizers.
//! The tape of `phalanx-tensor` records them; this crate differentiates nothing, but has the backward function of each.
//!
//! - **[`backend`]**: the families of operations, each a trait, and their implementations. The CPU's back end is a [`Context`], the
//!   threads and scratch memory of `phalanx-kernels`. With the feature `cuda` there is one of `phalanx-cuda`. [`OutlineArray`]s have
//!   shapes and types alone, and count operations and bytes ([`OutlineUsage`]).
//! - **[`ComputeDevice`]**: the device whose arrays a model has.
//! - **[`Precision`]**: the types of products and of activations.
//! - **[`Key`]**: random numbers as a function of seed, purpose, step and position.
//! - **[`host`]**: the memory of tensors on the CPU, as slices.
//!
//! Only functions named for it copy between the host and a device. Elements of 16 bits are added in f32, and rounded once.
//!
//! # Example
//!
//! A function of an array and its gradient, without a tape:
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use phalanx_array::backend::{Elementwise as _, UnaryOp};
//! use phalanx_array::{Array, Context};
//!
//! # fn main() -> Result<(), phalanx_array::ArrayError> {
//! let context = Context::new(1);
//! let x = Array::from(Tensor::new(&[-1.0_f32, 0.0, 2.0], &Device::Cpu)?);
//! let backend = x.backend(&context);
//! let y = backend.unary(UnaryOp::Tanh, &x)?;
//! let dy = Array::from(Tensor::ones(3, DType::F32, &Device::Cpu)?);
//! let dx = backend.unary_backward(UnaryOp::Tanh, &x, &y, &dy)?;
//! assert_eq!(dx.host("the gradient")?.to_vec1::<f32>()?[1], 1.0);
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod error;
mod precision;
mod rng;
mod storage;

pub mod host;

pub mod backend;

pub use backend::{Array, ArrayBackend, ComputeDevice, DeviceArray, OutlineArray, OutlineUsage};
pub use error::{ArrayError, Result};
pub use phalanx_kernels::{Context, Level};
pub use precision::Precision;
pub use rng::Key;
pub use storage::{cast, wide};

/// Tests of the README's examples.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
