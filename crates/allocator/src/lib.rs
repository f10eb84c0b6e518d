//! The allocator of programs that train: memory that a step frees is kept for the next.
//!
//! A training step allocates its activations and gradients, and frees them. By default mimalloc returns freed memory to the system
//! after a second, and a step of a language model takes longer. The system clears each page again when it is next used, which
//! took up to a fifth of a step on CPUs. [`Allocator`] is mimalloc with a delay of a minute. The largest amount of memory in
//! use stays about the same; a program that no longer needs it returns it later.
//!
//! ```
//! #[global_allocator]
//! static ALLOCATOR: phalanx_allocator::Allocator = phalanx_allocator::Allocator;
//!
//! let activations = vec![0.5_f32; 1 << 20];
//! assert_eq!(activations.len(), 1 << 20);
//! ```
//!
//! `MIMALLOC_PURGE_DELAY` in the environment sets another delay in milliseconds, -1 for ever.
//!
//! This crate knows no tensors and no training.

#![deny(unsafe_code)]

mod mimalloc;

pub use self::mimalloc::Allocator;
