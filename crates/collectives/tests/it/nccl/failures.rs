//! Ranks that disagree, give up, hang or leave: the others get an error that names them, and no stream waits for ever.

use std::time::Duration;

use phalanx_collectives::nccl::{self};
use phalanx_collectives::{CommError, Communicator, ReduceOp};

use super::gpus::{OnGpu, on_gpus, on_gpus_with, open, real};
use super::software;
use crate::common::{Topology, on_ranks};

const TOPOLOGIES: [Topology; 2] = [Topology::Threads, Topology::TwoHosts];

/// Returns the error of a world that breaks soon.
fn broken(comm: &Communicator) -> CommError {
    for _ in 0..2000 {
        if let Err(error) = comm.check() {
            return error;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the world did not break");
}

/// Asserts that an error names the lengths 8 and 9. The ranks compare them; NCCL may notice first.
#[track_caller]
fn assert_tells_both_lengths(text: &str) {
    let tells = |of: &str| [8, 9].iter().all(|length| text.contains(&format!("of {length} {of}")));
    assert!(tells("elements") || tells("float32"), "{text}");
}

#[test]
fn ranks_that_disagree_get_an_error_naming_both() {
    on_gpus(&TOPOLOGIES, &[2], |world, context| {
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        let error = comm.all_reduce(&mut vec![1.0_f32; 8 + comm.rank()], ReduceOp::Sum);
        let text = error.expect_err("lengths differ").to_string();
        assert_tells_both_lengths(&text);
    });
}

#[test]
fn ranks_that_disagree_about_memory_of_gpus_get_an_error_naming_both() {
    on_gpus(&TOPOLOGIES, &[2], |world, context| {
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        let compute = context.new_stream().expect("a sound GPU");
        let buffer = OnGpu::new(&compute, &vec![1.0_f32; 8 + comm.rank()]);
        // The host goes on, and gets the error later.
        drop(comm.all_reduce_async(buffer, ReduceOp::Sum));
        let text = broken(&comm).to_string();
        assert_tells_both_lengths(&text);
        let next = comm.all_reduce(&mut OnGpu::new(&compute, &[1.0_f32]), ReduceOp::Sum);
        assert_eq!(next.map_err(|error| error.to_string()), Err(text));
        // Work that waited on the GPU was aborted.
        compute.synchronize().expect("a sound GPU");
    });
}

#[test]
fn ranks_that_disagree_about_parts_get_an_error_naming_both() {
    on_gpus(&[Topology::Threads], &[2], |world, context| {
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        let compute = context.new_stream().expect("a sound GPU");
        let lengths = if comm.rank() == 0 { [3, 5] } else { [4, 4] };
        let _ = comm.all_gatherv_in_place(&mut OnGpu::new(&compute, &[1.0_f32; 8]), &lengths);
        let text = broken(&comm).to_string();
        // The ranks compare their parts; NCCL may notice first, and then names both lengths of a part.
        let of_nccl = text.contains("of 3 float32") && text.contains("of 4 float32");
        assert!(of_nccl || text.contains("[0..3, 3..8]") || text.contains("[0..4, 4..8]"), "{text}");
    });
}

#[test]
fn ranks_that_disagree_about_an_exchange_get_an_error_naming_both() {
    on_gpus(&[Topology::Threads], &[2], |world, context| {
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        let compute = context.new_stream().expect("a sound GPU");
        let here = || OnGpu::new(&compute, &[1.0_f32; 8]);
        // Rank 1 sends four, and rank 0 takes three.
        let (out, inn) =
            if comm.rank() == 0 { ([0..1, 1..3], [0..1, 1..4]) } else { ([0..4, 4..5], [0..2, 4..5]) };
        let _ = comm.all_to_allv_into((&mut here(), &out), (&mut here(), &inn));
        let text = broken(&comm).to_string();
        // The ranks compare what they want; NCCL may notice first.
        let names_both = ["4 elements for rank 0", "3 of it", "rank 0 receives ncclSend of 3 float32"];
        assert!(names_both.iter().any(|words| text.contains(words)), "{text}");
    });
}

#[test]
fn what_waits_for_a_rank_that_gives_up_is_given_up() {
    on_gpus(&TOPOLOGIES, &[1, 2, 4], |world, context| {
        let compute = context.new_stream().expect("a sound GPU");
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        let last = world.world_size() - 1;
        let buffer = OnGpu::new(&compute, &[1.0_f32; 1000]);
        if world.rank() == last {
            std::thread::sleep(Duration::from_millis(200));
            world.abort("the loss is NaN");
        } else {
            // On these ranks it is on the GPU when the failure comes, and the computing stream waits for it.
            let under_way = comm.all_reduce_async(buffer, ReduceOp::Sum).wait();
            compute.synchronize().expect("the stream does not wait for ever");
            drop(under_way);
        }
        let expected = CommError::Aborted { rank: last, reason: "the loss is NaN".to_owned() };
        assert_eq!(broken(&comm), expected);
        let next = comm.all_reduce(&mut OnGpu::new(&compute, &[1.0_f32]), ReduceOp::Sum);
        assert_eq!(next, Err(expected));
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_when_time_is_up() {
    let body = || {
        let worlds = Topology::Tcp.world_with(2, |mut config| {
            config.timeouts.operation = Duration::from_secs(2);
            config
        });
        on_ranks(worlds, |world| {
            if world.rank() >= nccl::device_count() {
                return;
            }
            let context = open(world.rank());
            let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
            let compute = context.new_stream().expect("a sound GPU");
            if world.rank() == 0 {
                let issued = comm.all_reduce_async(OnGpu::new(&compute, &[1.0_f32; 10]), ReduceOp::Sum);
                let computes_on = issued.wait();
                let text = broken(&comm).to_string();
                assert!(text.contains("rank 1 hung: rank 0 waited 2 s for it"), "{text}");
                compute.synchronize().expect("the stream does not wait for ever");
                drop(computes_on);
            } else {
                // Alive, and hanging.
                let text = broken(&comm).to_string();
                assert!(text.contains("rank 0 gave up"), "{text}");
            }
        });
    };
    if real() {
        return if nccl::device_count() > 1 { body() } else { println!("skipped: no two GPUs") };
    }
    software::run_with(&[("SOFTWARE_GPU_COUNT", "2")], body);
}

#[test]
fn a_gpu_that_hangs_is_noticed_without_a_wait() {
    if real() {
        return println!("skipped: GPUs cannot be made to hang");
    }
    // Pieces of work that take up to three seconds.
    software::run_with(&[("SOFTWARE_GPU_DELAY", "3000000")], || {
        let worlds = Topology::Tcp.world_with(1, |mut config| {
            config.timeouts.operation = Duration::from_millis(500);
            config
        });
        on_ranks(worlds, |world| {
            let context = open(0);
            let comm = nccl::communicator(&world, context.clone()).expect("alone");
            let compute = context.new_stream().expect("a sound GPU");
            let mut buffer = OnGpu::new(&compute, &[1.0_f32; 10]);
            for _ in 0..40 {
                compute.memset_zeros(&mut buffer.memory).expect("zeros");
            }
            let issued = comm.all_reduce_async(buffer, ReduceOp::Sum).wait();
            let text = broken(&comm).to_string();
            assert!(text.contains("all-reduce by NCCL: was not done after 0.5 s"), "{text}");
            drop(issued);
            compute.synchronize().expect("a sound GPU");
        });
    });
}

#[test]
fn a_communicator_that_is_shut_down_says_so() {
    on_gpus_with(&[], &[Topology::Threads], &[2], |world, context| {
        let compute = context.new_stream().expect("a sound GPU");
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        comm.all_reduce(&mut OnGpu::new(&compute, &[1.0_f32]), ReduceOp::Sum).expect("sound");
        comm.shutdown();
        let late = comm.all_reduce(&mut OnGpu::new(&compute, &[1.0_f32]), ReduceOp::Sum);
        assert_eq!(late, Err(CommError::Closed));
    });
}
