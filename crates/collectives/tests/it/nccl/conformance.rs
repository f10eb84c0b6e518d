//! Every operation against a serial reference, on every type, in place and with separate parts, of equal and unequal lengths.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use phalanx_collectives::nccl::cudarc::driver::{CudaContext, DeviceRepr};
use phalanx_collectives::nccl::{self};
use phalanx_collectives::{Algorithm, Coalesced, CommError, Communicator, Element, FlatBuffer, ReduceOp};

use super::gpus::{OnGpu, on_gpus, real};
use super::software;
use crate::common::Topology;
use crate::common::checks::check_all;

/// The connections of ranks on the host: through shared memory, and as if on two hosts.
const TOPOLOGIES: [Topology; 2] = [Topology::Threads, Topology::TwoHosts];
const OPERATIONS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product, ReduceOp::Mean];

fn chunk(len: usize, world: usize, rank: usize) -> Range<usize> {
    rank * len / world..(rank + 1) * len / world
}

/// Every operation on buffers of one type and of odd lengths.
pub(crate) fn check_device<T: Element + DeviceRepr>(
    comm: &Communicator,
    context: &Arc<CudaContext>,
    make: fn(u8) -> T,
    float: bool,
) {
    let (rank, world) = (comm.rank(), comm.world_size());
    let compute = context.new_stream().expect("a sound GPU");
    for len in [1, 2, 7, 1000, 20_003] {
        // Small whole numbers, exact in every type, so that the order of additions does not matter.
        let fill =
            |rank: usize| -> Vec<T> { (0..len).map(|i| make(((i * 7 + rank * 3) % 5) as u8)).collect() };
        let all: Vec<Vec<T>> = (0..world).map(fill).collect();
        let (own, root, mine) = (&all[rank], len % world, chunk(len, world, rank));
        let here = |values: &[T]| OnGpu::new(&compute, values);
        let nothing = |len: usize| OnGpu::new(&compute, &vec![make(9); len]);
        for op in OPERATIONS {
            if op == ReduceOp::Mean && !float {
                let error = comm.all_reduce(&mut here(own), op).expect_err("no mean of integers");
                assert!(matches!(error, CommError::Unsupported { .. }), "{error}");
                continue;
            }
            let sum: Vec<T> = (0..len)
                .map(|i| {
                    let total = all[1..].iter().fold(all[0][i], |acc, other| T::combine(op, acc, other[i]));
                    if op == ReduceOp::Mean { total.divide(world) } else { total }
                })
                .collect();
            let what = format!("{op:?} of {len} {:?} on rank {rank} of {world}", T::DTYPE);
            let exact = op != ReduceOp::Mean || world.is_power_of_two();
            let equal = |got: Vec<T>, expected: &[T], name: &str| {
                // NCCL's mean multiplies by 1/n, which is exact for powers of two only.
                let wrong = got.iter().zip(expected).position(|(got, expected)| got != expected);
                assert!(
                    !exact || wrong.is_none() && got.len() == expected.len(),
                    "{name} {what}: {wrong:?} is the first wrong element"
                );
            };
            let mut buffer = here(own);
            comm.all_reduce(&mut buffer, op).expect("sound");
            equal(buffer.values(), &sum, "all-reduce");
            let buffer = comm.all_reduce_async(here(own), op).wait().expect("sound");
            equal(buffer.values(), &sum, "asynchronous all-reduce");
            let mut buffer = here(own);
            comm.reduce_scatter_in_place(&mut buffer, op).expect("sound");
            equal(buffer.values()[mine.clone()].to_vec(), &sum[mine.clone()], "reduce-scatter in place");
            let (whole, part) = (here(own), nothing(mine.len()));
            let (_, part) = comm.reduce_scatter_into_async(whole, part, op).wait().expect("sound");
            equal(part.values(), &sum[mine.clone()], "reduce-scatter");
            let mut buffer = here(own);
            comm.reduce(&mut buffer, op, root).expect("sound");
            equal(buffer.values(), if rank == root { &sum } else { own }, "reduce");
        }
        let gathered: Vec<T> =
            (0..world).flat_map(|rank| all[rank][chunk(len, world, rank)].to_vec()).collect();
        let mut buffer = here(own);
        comm.all_gather_in_place(&mut buffer).expect("sound");
        assert!(buffer.values() == gathered, "all-gather of {len} in place");
        let parts = (nothing(len), here(&own[mine.clone()]));
        let (whole, part) = comm.all_gather_into_async(parts.0, parts.1).wait().expect("sound");
        assert!(whole.values() == gathered && part.values() == own[mine.clone()], "all-gather of {len}");
        // Rank r has r elements more than the one before; the last has the rest.
        let lengths: Vec<usize> = (0..world).map(|rank| rank.min(len / world)).collect();
        let rest = len - lengths.iter().sum::<usize>();
        let lengths: Vec<usize> =
            lengths.iter().enumerate().map(|(r, n)| if r + 1 == world { n + rest } else { *n }).collect();
        let mut expected = Vec::new();
        for (rank, length) in lengths.iter().enumerate() {
            expected.extend_from_slice(&all[rank][expected.len()..expected.len() + length]);
        }
        let (mut buffer, mut on_host) = (here(own), own.clone());
        comm.all_gatherv_in_place(&mut buffer, &lengths).expect("sound");
        comm.all_gatherv_in_place(&mut on_host, &lengths).expect("sound");
        assert!(buffer.values() == expected && on_host == expected, "all-gather of parts of {lengths:?}");
        // Of unequal lengths, some of them 0, and of equal ones; received parts have a gap between them.
        let (most, gap) = (len / world, 3);
        let unequal: fn(usize, usize, usize) -> usize = |from, to, most| (from * 2 + to * 3) % 5 * most / 4;
        for length in [unequal, |_, _, most| most] {
            let start = |from: usize, to: usize| (0..to).map(|to| length(from, to, most)).sum::<usize>();
            let sent = |from: usize, to: usize| start(from, to)..start(from, to + 1);
            let place = |from: usize| (most + gap) * from..(most + gap) * from + length(from, rank, most);
            let (out, inn): (Vec<_>, Vec<_>) =
                (0..world).map(|other| (sent(rank, other), place(other))).unzip();
            let untouched = vec![make(9); (most + gap) * world];
            let mut expected = untouched.clone();
            for (from, inn) in inn.iter().enumerate() {
                expected[inn.clone()].copy_from_slice(&all[from][sent(from, rank)]);
            }
            let (mut whole, mut buffer) = (here(own), here(&untouched));
            comm.all_to_allv_into((&mut whole, &out), (&mut buffer, &inn)).expect("sound");
            assert!(buffer.values() == expected, "all-to-all of {out:?} to {inn:?}");
            let from = (here(own), out.clone());
            let later = comm.all_to_allv_into_async(from, (here(&untouched), inn.clone()));
            assert!(later.wait().expect("sound").1.values() == expected, "all-to-all of {out:?}, later");
            let (mut whole, mut on_host) = (own.clone(), untouched.clone());
            comm.all_to_allv_into((&mut whole, &out), (&mut on_host, &inn)).expect("sound");
            let from = (own.clone(), out.clone());
            let later = comm.all_to_allv_into_async(from, (untouched, inn.clone()));
            assert!(later.wait().expect("sound").1 == expected, "all-to-all of {out:?} on the host, later");
            assert!(on_host == expected && whole == *own, "all-to-all of {out:?} to {inn:?} on the host");
        }
        let boxed: Box<dyn FlatBuffer> = Box::new(here(own));
        drop(comm.broadcast_async(boxed, root).wait().expect("sound"));
        let mut buffer = here(own);
        comm.broadcast(&mut buffer, root).expect("sound");
        assert!(buffer.values() == all[root], "broadcast of {len}");
    }
}

/// Every operation on every type.
pub(crate) fn check_all_types(comm: &Communicator, context: &Arc<CudaContext>) {
    check_device::<f32>(comm, context, f32::from, true);
    check_device::<bf16>(comm, context, |v| bf16::from_f32(v.into()), true);
    check_device::<f64>(comm, context, f64::from, true);
    check_device::<f16>(comm, context, |v| f16::from_f32(v.into()), true);
    check_device::<i32>(comm, context, i32::from, false);
    check_device::<i64>(comm, context, i64::from, false);
    check_device::<u8>(comm, context, |v| v, false);
    comm.check().expect("a sound world");
}

#[test]
fn buffers_on_gpus_conform() {
    on_gpus(&TOPOLOGIES, &[1, 2, 3, 4], |world, context| {
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        check_all_types(&comm, &context);
        let stats = comm.stats();
        assert!(stats.bytes_sent > 100_000 || world.world_size() == 1, "{stats:?}");
    });
}

#[test]
fn sums_have_the_same_bits_on_every_rank() {
    on_gpus(&[Topology::Threads], &[3, 4], |world, context| {
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        let compute = context.new_stream().expect("a sound GPU");
        // Numbers whose sums differ in every order.
        let drawn = |rank: usize| -> Vec<f32> {
            (0..5003).map(|i| ((i * 7919 + rank * 104_729) % 10_007) as f32 * 1.1e-3 - 3.3).collect()
        };
        let mut bits = Vec::new();
        for _ in 0..3 {
            let mut buffer = OnGpu::new(&compute, &drawn(comm.rank()));
            comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("sound");
            bits.push(buffer.values());
        }
        assert!(bits[0] == bits[1] && bits[1] == bits[2], "not the same in every run");
        let all = world.all_gather(&bits[0]).expect("sound");
        assert!(all.chunks(5003).all(|theirs| theirs == bits[0]), "not the same on every rank");
        if !real() {
            // The stand-in adds in the order of ranks, as this crate's own engine does.
            let serial: Vec<f32> = (1..comm.world_size())
                .map(drawn)
                .fold(drawn(0), |sum, next| sum.iter().zip(&next).map(|(a, b)| a + b).collect());
            assert!(bits[0] == serial, "not in the order of ranks");
        }
    });
}

#[test]
fn memory_of_cudarc_is_a_buffer_and_its_tracking_of_events_may_be_on() {
    on_gpus(&[Topology::Threads], &[2], |world, _| {
        let context = CudaContext::new(world.rank()).expect("a GPU");
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        let compute = context.new_stream().expect("a sound GPU");
        let mut buffer = compute.clone_htod(&[1.5_f32, 2.0]).expect("memory");
        comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("sound");
        assert_eq!(compute.clone_dtoh(&buffer).expect("sound"), [3.0, 4.0]);
        let other = context.new_stream().expect("a sound GPU");
        other.memset_zeros(&mut buffer).expect("sound");
        let buffer = comm.all_reduce_async(buffer, ReduceOp::Max).wait().expect("sound");
        assert_eq!(compute.clone_dtoh(&buffer).expect("sound"), [0.0, 0.0]);
    });
}

#[test]
fn buffers_of_the_host_conform() {
    on_gpus(&TOPOLOGIES, &[1, 2, 4], |world, context| {
        let comm = nccl::communicator(&world, context).expect("all ranks come");
        assert_eq!((comm.rank(), comm.world_size()), (world.rank(), world.world_size()));
        check_all(&comm, false);
        let mut buffer = comm.alloc::<f32>(5).expect("sound");
        assert!(!buffer.is_shared());
        comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("sound");
        // Invalid calls are errors that leave the world intact.
        let error = comm.using(Algorithm::Ring).all_reduce(&mut [1.0_f32], ReduceOp::Sum);
        assert!(matches!(error, Err(CommError::Argument { .. })), "{error:?}");
        assert!(matches!(comm.costs(), Err(CommError::Argument { .. })));
        let mut theirs = world.alloc::<f32>(8).expect("sound");
        if theirs.is_shared() {
            let error = comm.all_reduce(&mut theirs, ReduceOp::Sum);
            assert!(matches!(error, Err(CommError::Argument { .. })), "{error:?}");
        }
        comm.barrier("end").expect("sound");
    });
}

#[test]
fn parts_of_a_world_have_links_of_their_own() {
    on_gpus(&TOPOLOGIES, &[2, 4], |world, context| {
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        let (rank, size) = (comm.rank(), comm.world_size());
        let (colour, key) = ((rank % 2) as u32, -(rank as i64));
        let part = comm.split(Some(colour), key).expect("sound").expect("a colour");
        let across = comm.split(Some((rank / 2) as u32), 0).expect("sound").expect("a colour");
        assert!(comm.split((rank == 0).then_some(0), 0).expect("sound").is_some() == (rank == 0));
        let members: Vec<i64> =
            (0..size).rev().filter(|rank| rank % 2 == colour as usize).map(|rank| rank as i64).collect();
        assert_eq!(part.all_gather(&[rank as i64]), Ok(members.clone()));
        let compute = context.new_stream().expect("a sound GPU");
        // Both at once, as groups of a mesh work, and on one buffer one after the other.
        let first = part.all_reduce_async(OnGpu::new(&compute, &[rank as f32; 1000]), ReduceOp::Sum);
        let second = across.all_reduce_async(OnGpu::new(&compute, &[1.0_f32; 500]), ReduceOp::Sum);
        let mut buffer = first.wait().expect("sound");
        across.all_reduce(&mut buffer, ReduceOp::Sum).expect("sound");
        let total = (0..size).sum::<usize>() as f32;
        assert_eq!(buffer.values(), vec![total; 1000]);
        assert_eq!(second.wait().expect("sound").values(), vec![2.0; 500]);
        check_device::<f32>(&part, &context, f32::from, true);
    });
}

#[test]
fn arguments_are_checked() {
    on_gpus(&[Topology::Threads], &[1, 2], |world, context| {
        let compute = context.new_stream().expect("a sound GPU");
        let comm = nccl::communicator(&world, context.clone()).expect("all ranks come");
        let refused = |result: Result<(), CommError>, expected: &str| {
            let error = result.expect_err(expected);
            let text = error.to_string();
            assert!(matches!(error, CommError::Argument { .. }) && text.contains(expected), "{text}");
        };
        let here = |len: usize| OnGpu::new(&compute, &vec![1.0_f32; len]);
        let own = chunk(7, comm.world_size(), comm.rank()).len();
        let count = comm.world_size();
        refused(comm.broadcast(&mut here(7), count), "does not exist");
        refused(comm.all_gather_into(&mut here(7), &mut here(own + 1)), "part of 7");
        refused(comm.all_gather_into(&mut here(7), &mut vec![0.0_f32; own]), "the other on the host");
        refused(comm.all_gatherv_in_place(&mut here(7), &vec![1; count]), "in a buffer of 7");
        refused(comm.all_gatherv_in_place(&mut here(7), &vec![1; count + 1]), "parts for");
        let (few, all) = (vec![0..1; count], vec![0..8; count]);
        refused(
            comm.all_to_allv_into((&mut here(7), &few), (&mut here(7), &all)),
            "at 0..8 of a buffer of 7",
        );
        refused(comm.all_to_allv_into((&mut here(7), &few[1..]), (&mut here(7), &few)), "parts for");
        refused(
            comm.all_to_allv_into((&mut here(7), &few), (&mut vec![1.0_f32; 7], &few)),
            "the other on the host",
        );
        refused(comm.all_to_allv_into((&mut here(7), &few), (&mut vec![1.0_f64; 7], &few)), "cannot come as");
        let mut two = few.clone();
        two[comm.rank()] = 0..2;
        refused(comm.all_to_allv_into((&mut here(7), &two), (&mut here(7), &few)), "for itself and takes 1");
        refused(comm.using(Algorithm::Tree).all_reduce(&mut here(7), ReduceOp::Sum), "none by tree");
        refused(Coalesced::new(vec![here(3)]).map(drop), "memory of GPU");
        if nccl::device_count() > 1 {
            let other = super::gpus::open((comm.rank() + 1) % 2);
            let elsewhere = other.new_stream().expect("a sound GPU");
            refused(comm.all_reduce(&mut OnGpu::new(&elsewhere, &[1.0_f32]), ReduceOp::Sum), "of GPU");
        }
        // Engines of other libraries have no GPU buffers, and name the one that has.
        refused(world.all_reduce(&mut here(7), ReduceOp::Sum), "nccl::communicator");
        refused(
            world.all_reduce_async(here(7), ReduceOp::Sum).wait().map(drop),
            "this communicator works by me",
        );
        // The world is intact.
        comm.all_reduce(&mut here(7), ReduceOp::Sum).expect("sound");
    });
}

#[test]
fn a_rank_without_nccl_says_which_names_were_tried() {
    if software::is_inside() || nccl::version().is_ok() {
        return println!("skipped: there is NCCL");
    }
    let text = nccl::version().expect_err("no NCCL").to_string();
    assert!(text.contains("libnccl.so.2") && text.contains("libnccl.so ("), "{text}");
}
