//! Kernels on the software GPU, through their launchers, against the CPU's kernels in f64 or plain loops, over drawn shapes.
//!
//! Each test runs several times, with threads and blocks in other orders: what depends on an order is a race. With
//! `PHALANX_TEST_GPU=1` all run on the first GPU of the machine instead.

#[path = "../software/mod.rs"]
mod software;

mod drawn;

mod attending;
mod batch_norms;
mod codecs;
mod elements;
mod entries;
mod exact;
mod last;
mod low_rank;
mod maps;
mod rows;
mod streams;
mod units;
