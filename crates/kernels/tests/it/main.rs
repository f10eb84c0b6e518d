//! Tests of the kernels through the public interface, as one program.

mod attention;
mod bf16;
mod codec;
mod columns;
mod convolution;
mod elementwise;
mod guard_pages;
mod harness;
mod parts;
mod permute;
