//! Operations on a GPU begin after earlier work of the computing stream and end before its later work, without the host waiting.
//! The software GPU finds programs that break this.

use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_collectives::nccl::cudarc::driver::CudaContext;
use phalanx_collectives::nccl::{self};
use phalanx_collectives::{Communicator, ReduceOp};

use super::gpus::{OnGpu, on_gpus_with, open, real};
use super::software;
use crate::common::{Topology, on_ranks};

const SLOW: (&str, &str) = ("SOFTWARE_GPU_DELAY", "5000");

#[test]
fn computing_goes_on_before_and_after() {
    on_gpus_with(&[SLOW], &[Topology::Threads], &[1, 2, 4], |world, context| {
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
            // A handle that is dropped leaves memory that is freed in order.
            drop(comm.all_reduce_async(sum, ReduceOp::Sum));
        }
    });
}

#[test]
fn the_host_does_not_wait_for_the_gpu() {
    on_gpus_with(&[], &[Topology::Threads], &[2], |world, context| {
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        let compute = context.new_stream().expect("a sound GPU");
        let (mut one, two) = (OnGpu::new(&compute, &[1.0_f32; 64]), OnGpu::new(&compute, &[2.0_f32; 64]));
        let operations = |one: &mut OnGpu<f32>, two: OnGpu<f32>| {
            comm.all_reduce(one, ReduceOp::Sum).expect("issued");
            let handle = comm.all_reduce_async(two, ReduceOp::Sum);
            let was_done = handle.is_done();
            (handle.wait().expect("issued"), was_done)
        };
        let two = if world.rank() == 0 {
            let (two, was_done) = operations(&mut one, two);
            assert!(!was_done, "the other rank has not come");
            // The other rank comes now, not before.
            world.barrier("issued").expect("sound");
            two
        } else {
            world.barrier("issued").expect("sound");
            operations(&mut one, two).0
        };
        assert_eq!((one.values(), two.values()), (vec![2.0; 64], vec![4.0; 64]));
    });
}

#[test]
fn a_handle_is_done_when_the_gpu_is() {
    on_gpus_with(&[], &[Topology::Threads], &[2], |world, context| {
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

/// Runs a wrong program of two ranks, the second of which is late, so that nothing succeeds by chance.
fn wrong(expected: &str, f: impl Fn(&Communicator, &Arc<CudaContext>) + Clone + Send + 'static) {
    if real() {
        return println!("skipped: a GPU finds nothing");
    }
    software::refused_with(&[("SOFTWARE_GPU_COUNT", "2")], expected, || {
        on_ranks(Topology::Threads.world(2), move |world| {
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
        // Claims that another stream has computed it.
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
