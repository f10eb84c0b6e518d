//! Operations on a GPU begin after what computes before and end before what computes next, without the host waiting; programs
//! that break this are found by the software GPU.

use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_collectives::nccl::cudarc::driver::CudaContext;
use phalanx_collectives::nccl::{self};
use phalanx_collectives::{Communicator, ReduceOp};

use crate::common::{Way, on_ranks};
use crate::gpus::{OnGpu, on_gpus_with, open, real};
use crate::software;

const SLOW: (&str, &str) = ("SOFTWARE_GPU_DELAY", "5000");

#[test]
fn computing_goes_on_before_and_after() {
    on_gpus_with(&[SLOW], &[Way::Threads], &[1, 2, 4], |world, context| {
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        let compute = context.new_stream().expect("a sound GPU");
        let ranks = world.world_size() as f32;
        let ones = OnGpu::new(&compute, &[1.0_f32; 64]);
        let mut buffers: Vec<_> = (0..4).map(|_| OnGpu::new(&compute, &[7.0_f32; 64])).collect();
        for _ in 0..5 {
            let mut under_way = Vec::new();
            for mut buffer in buffers {
                // Computed right before, and overwritten right after the wait.
                compute.memcpy_dtod(&ones.memory, &mut buffer.memory).expect("a copy");
                under_way.push(comm.all_reduce_async(buffer, ReduceOp::Sum));
            }
            buffers = under_way.into_iter().map(|handle| handle.wait().expect("sound")).collect();
            let mut sum = OnGpu::new(&compute, &[0.0_f32; 64]);
            for buffer in &mut buffers {
                compute.memcpy_dtod(&buffer.memory, &mut sum.memory).expect("a copy");
                compute.memset_zeros(&mut buffer.memory).expect("zeros");
            }
            comm.reduce(&mut sum, ReduceOp::Max, 0).expect("sound");
            assert_eq!(sum.values(), [ranks; 64]);
            // A handle that nobody waits for leaves memory that is freed in order.
            drop(comm.all_reduce_async(sum, ReduceOp::Sum));
        }
    });
}

#[test]
fn the_host_does_not_wait_for_the_gpu() {
    on_gpus_with(&[], &[Way::Threads], &[2], |world, context| {
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        let compute = context.new_stream().expect("a sound GPU");
        let buffer = OnGpu::new(&compute, &[1.0_f32; 64]);
        compute.synchronize().expect("sound");
        world.barrier("both are here").expect("sound");
        if world.rank() == 1 {
            // The other waits for nobody: neither for this rank to come, nor for the GPU, which waits for it.
            let theirs: u8 = world.all_gatherv(&[0_u8]).expect("sound")[0][0];
            assert_eq!(theirs, 1);
            let sum = comm.all_reduce_async(buffer, ReduceOp::Sum).wait().expect("sound");
            assert_eq!(sum.values(), [2.0; 64]);
            return;
        }
        let handle = comm.all_reduce_async(buffer, ReduceOp::Sum);
        assert!(!handle.is_done());
        let sum = handle.wait().expect("sound");
        let again = comm_twice(&comm, OnGpu::new(&compute, &[0.0_f32; 8]));
        world.all_gatherv(&[1_u8]).expect("sound");
        assert_eq!(sum.values(), [2.0; 64]);
        assert!(again < Duration::from_secs(5), "{again:?}");
    });
}

/// How long it takes to see that memory is not the host's.
fn comm_twice(comm: &Communicator, mut buffer: OnGpu<f32>) -> Duration {
    let start = Instant::now();
    assert!(phalanx_collectives::FlatBuffer::with_slice_mut(&mut buffer, &mut |_| ()).is_err());
    comm.check().expect("sound");
    start.elapsed()
}

#[test]
fn a_handle_is_done_when_the_gpu_is() {
    on_gpus_with(&[], &[Way::Threads], &[2], |world, context| {
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        let compute = context.new_stream().expect("a sound GPU");
        let handle = comm.all_reduce_async(OnGpu::new(&compute, &[1.0_f32; 64]), ReduceOp::Sum);
        let start = Instant::now();
        while !handle.is_done() {
            assert!(start.elapsed() < Duration::from_secs(20), "it never is");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(handle.wait().expect("sound").values(), [2.0; 64]);
    });
}

/// Runs a wrong program of two ranks, of which the second is late, so that nothing is done by chance.
fn wrong(expected: &str, f: impl Fn(&Communicator, &Arc<CudaContext>) + Clone + Send + 'static) {
    if real() {
        return println!("skipped: a GPU finds nothing");
    }
    software::refused_with(&[("SOFTWARE_GPU_COUNT", "2")], expected, || {
        on_ranks(Way::Threads.world(2), move |world| {
            let context = open(world.rank());
            let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
            if world.rank() == 1 {
                std::thread::sleep(Duration::from_secs(5));
            }
            f(&comm, &context);
        });
    });
}

#[test]
fn an_operation_that_does_not_wait_for_what_computes_is_found() {
    wrong("missing wait: ncclAllReduce", |comm, context| {
        let (one, other) = (context.new_stream().expect("sound"), context.new_stream().expect("sound"));
        let mut buffer = OnGpu::new(&one, &[1.0_f32; 64]);
        one.synchronize().expect("sound");
        one.memset_zeros(&mut buffer.memory).expect("zeros");
        // Says that another stream has computed it.
        buffer.compute = other;
        let _ = comm.all_reduce(&mut buffer, ReduceOp::Sum);
    });
}

#[test]
fn computing_that_does_not_wait_for_an_operation_is_found() {
    wrong("which ncclAllReduce wrote", |comm, context| {
        let (one, other) = (context.new_stream().expect("sound"), context.new_stream().expect("sound"));
        let mut buffer = OnGpu::new(&one, &[1.0_f32; 64]);
        one.synchronize().expect("sound");
        buffer.compute = other;
        let mut buffer = comm.all_reduce_async(buffer, ReduceOp::Sum).wait().expect("issued");
        // The other stream waits; this one does not.
        one.memset_zeros(&mut buffer.memory).expect("zeros");
    });
}
