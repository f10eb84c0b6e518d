//! Kernels on the software GPU, through their launchers, against the CPU kernels in f64 or plain loops, over random shapes.
//!
//! Each test runs with several orders of threads and blocks: a result that depends on the order is a race. With
//! `PHALANX_TEST_GPU=1` the tests run on the machine's first GPU.

mod inputs;

mod attention;
mod batch_norm;
mod channels_last;
mod codec_chunks;
mod codec_entries;
mod codec_low_rank;
mod elements;
mod exact_squares;
mod maps;
mod random;
mod rows;
mod updates;
