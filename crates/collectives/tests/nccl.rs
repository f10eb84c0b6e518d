//! Operations by NCCL, between as many ranks as there are GPUs, each a thread with a GPU of its own. Without a GPU
//! nothing is tested, and the output says so.
#![cfg(feature = "nccl")]

mod common;

use std::sync::Arc;

use common::checks::check_all;
use common::{Way, on_ranks};
use half::{bf16, f16};
use phalanx_collectives::nccl::cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use phalanx_collectives::nccl::{self, DeviceCommunicator, DeviceElement};
use phalanx_collectives::{Algorithm, CommError, Communicator, ReduceOp};

/// How the ranks reach each other on the host: through shared memory, and as if on two hosts.
const WAYS: [Way; 2] = [Way::Threads, Way::TwoHosts];

/// Runs `f` on every rank of worlds of some sizes, as far as there are GPUs.
fn on_gpus(
    ways: &[Way],
    sizes: &[usize],
    f: impl Fn(Communicator, Arc<CudaContext>) + Clone + Send + 'static,
) {
    let count = nccl::device_count();
    if count == 0 {
        println!("skipped: no GPU");
        return;
    }
    for size in sizes {
        if *size > count {
            println!("skipped: {size} ranks on {count} GPU(s)");
            continue;
        }
        for way in ways {
            let f = f.clone();
            on_ranks(way.world(*size), move |world| {
                let context = CudaContext::new(world.rank()).expect("a GPU for each rank");
                f(world, context);
            });
        }
    }
}

/// A buffer on the GPU with room for one more element, since there are none without any.
fn upload<T: DeviceElement>(stream: &Arc<CudaStream>, values: &[T]) -> CudaSlice<T> {
    let mut padded = values.to_vec();
    padded.push(T::zeroed());
    stream.clone_htod(&padded).expect("memory on the GPU")
}

/// The first elements of a buffer on the GPU.
fn download<T: DeviceElement>(stream: &Arc<CudaStream>, buffer: &CudaSlice<T>, len: usize) -> Vec<T> {
    let mut all = stream.clone_dtoh(buffer).expect("a sound GPU");
    stream.synchronize().expect("a sound GPU");
    all.truncate(len);
    all
}

fn chunk(len: usize, world: usize, rank: usize) -> std::ops::Range<usize> {
    rank * len / world..(rank + 1) * len / world
}

/// Every operation on buffers of one type and of odd lengths against a serial reference.
fn check_device<T: DeviceElement>(
    comm: &DeviceCommunicator,
    compute: &Arc<CudaStream>,
    make: fn(u8) -> T,
    float: bool,
) {
    let (rank, world) = (comm.rank(), comm.world_size());
    let (next, previous) = ((rank + 1) % world, (rank + world - 1) % world);
    for len in [1, 2, 7, 1000, 100_003] {
        // Small whole numbers, exact in every type, so that the order of additions does not matter.
        let fill =
            |rank: usize| -> Vec<T> { (0..len).map(|i| make(((i * 7 + rank * 3) % 5) as u8)).collect() };
        let all: Vec<Vec<T>> = (0..world).map(fill).collect();
        let (own, root) = (all[rank].clone(), len % world);
        let from = upload(compute, &own);
        let parts = |lengths: &dyn Fn(usize) -> std::ops::Range<usize>| -> Vec<T> {
            (0..world).flat_map(|rank| all[rank][lengths(rank)].to_vec()).collect()
        };
        for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product, ReduceOp::Mean] {
            let mut buffer = upload(compute, &own);
            if op == ReduceOp::Mean && !float {
                let error = comm.all_reduce(&mut buffer, op, compute).expect_err("no mean of integers");
                assert!(matches!(error, CommError::Unsupported { .. }), "{error}");
                continue;
            }
            let expected: Vec<T> = (0..len)
                .map(|i| {
                    let total = all[1..].iter().fold(all[0][i], |acc, other| T::combine(op, acc, other[i]));
                    if op == ReduceOp::Mean { total.divide(world) } else { total }
                })
                .collect();
            let mut view = buffer.slice_mut(0..len);
            let done = comm.all_reduce(&mut view, op, compute).expect("sound");
            done.wait(compute).expect("sound");
            assert!(download(compute, &buffer, len) == expected, "all-reduce {op:?} of {len} {:?}", T::DTYPE);
            let mine = chunk(len, world, rank);
            let mut to = upload(compute, &own);
            let mut part = to.slice_mut(0..mine.len());
            let done = comm.reduce_scatter(&from.slice(0..len), &mut part, op, compute).expect("sound");
            done.synchronize().expect("sound");
            assert_eq!(done.is_done(), Ok(true));
            assert!(download(compute, &to, mine.len()) == expected[mine], "reduce-scatter {op:?} of {len}");
            let mut buffer = upload(compute, &own);
            let done = comm.reduce(&mut buffer.slice_mut(0..len), op, root, compute).expect("sound");
            done.wait(compute).expect("sound");
            let expected = if rank == root { expected } else { own.clone() };
            assert!(download(compute, &buffer, len) == expected, "reduce {op:?} of {len}");
        }
        // Chunks, which are not equal if the length does not divide.
        let mine = chunk(len, world, rank);
        let mut to = upload(compute, &own);
        let done = comm.all_gather(&from.slice(mine.clone()), &mut to.slice_mut(0..len), compute);
        done.expect("sound").wait(compute).expect("sound");
        let expected = parts(&|rank| chunk(len, world, rank));
        assert!(download(compute, &to, len) == expected, "all-gather of {len}");
        let mut buffer = upload(compute, &own);
        let done = comm.broadcast(&mut buffer.slice_mut(0..len), root, compute).expect("sound");
        done.wait(compute).expect("sound");
        assert!(download(compute, &buffer, len) == all[root], "broadcast of {len}");
        let expected = parts(&|_| mine.clone());
        let mut to = upload(compute, &expected);
        let done = comm.all_to_all(&from.slice(0..len), &mut to.slice_mut(0..expected.len()), compute);
        done.expect("sound").wait(compute).expect("sound");
        assert!(download(compute, &to, expected.len()) == expected, "all-to-all of {len}");
        let together = all.concat();
        let mut to = upload(compute, &vec![T::zeroed(); together.len()]);
        let room = (rank == root).then(|| to.slice_mut(0..together.len()));
        let done = comm.gather(&from.slice(0..len), room, root, compute).expect("sound");
        done.wait(compute).expect("sound");
        if rank == root {
            assert!(download(compute, &to, together.len()) == together, "gather of {len}");
        }
        let source = upload(compute, &together);
        let mut to = upload(compute, &vec![T::zeroed(); len]);
        let parts = (rank == root).then(|| source.slice(0..together.len()));
        let done = comm.scatter(parts, &mut to.slice_mut(0..len), root, compute).expect("sound");
        done.wait(compute).expect("sound");
        assert!(download(compute, &to, len) == own, "scatter of {len}");
        let mut to = upload(compute, &own);
        let done = comm.send_recv(&from, next, &mut to, previous, compute).expect("sound");
        done.wait(compute).expect("sound");
        assert!(download(compute, &to, len) == all[previous], "send and receive of {len}");
        if world > 1 && rank < 2 {
            let mut buffer = upload(compute, &own);
            let done = if rank == 0 {
                comm.send(&from, 1, compute).expect("sound")
            } else {
                comm.recv(&mut buffer, 0, compute).expect("sound")
            };
            done.wait(compute).expect("sound");
            assert!(download(compute, &buffer, len) == all[0], "send of {len}");
        }
    }
}

fn check_all_types(world: &Communicator, context: Arc<CudaContext>) {
    let compute = context.new_stream().expect("a sound GPU");
    let comm = DeviceCommunicator::new(world, context).expect("all ranks come");
    check_device::<f32>(&comm, &compute, f32::from, true);
    check_device::<f64>(&comm, &compute, f64::from, true);
    check_device::<f16>(&comm, &compute, |v| f16::from_f32(v.into()), true);
    check_device::<bf16>(&comm, &compute, |v| bf16::from_f32(v.into()), true);
    check_device::<i32>(&comm, &compute, i32::from, false);
    check_device::<i64>(&comm, &compute, i64::from, false);
    check_device::<u8>(&comm, &compute, |v| v, false);
    comm.barrier(&compute).expect("sound").synchronize().expect("sound");
}

#[test]
fn buffers_on_gpus_conform() {
    // The mean is exact for powers of two.
    on_gpus(&WAYS, &[1, 2, 4, 8], |world, context| check_all_types(&world, context));
}

#[test]
fn streams_wait_for_each_other_also_where_cudarc_tracks_nothing() {
    on_gpus(&[Way::Threads], &[1, 2, 4], |world, context| {
        // SAFETY: the checks make their stream wait for each operation, or do so themselves, before they use or free its
        // buffers, all of which are that stream's.
        unsafe { context.disable_event_tracking() };
        check_all_types(&world, context);
    });
}

#[test]
fn a_communicator_by_nccl_conforms() {
    on_gpus(&WAYS, &[1, 2, 4, 8], |world, context| {
        let comm = nccl::communicator(&world, context).expect("all ranks come");
        assert_eq!((comm.rank(), comm.world_size()), (world.rank(), world.world_size()));
        check_all(&comm, false);
        let mut buffer = comm.alloc::<f32>(5).expect("sound");
        assert!(!buffer.is_shared());
        comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("sound");
        // What makes no sense here is an error that says so, and harms nothing.
        let error = comm.using(Algorithm::Ring).all_reduce(&mut [1.0_f32], ReduceOp::Sum);
        assert!(matches!(error, Err(CommError::Argument { .. })), "{error:?}");
        assert!(matches!(comm.costs(), Err(CommError::Argument { .. })));
        let mut theirs = world.alloc::<f32>(8).expect("sound");
        if theirs.is_shared() {
            let error = comm.all_reduce(&mut theirs, ReduceOp::Sum);
            assert!(matches!(error, Err(CommError::Argument { .. })), "{error:?}");
        }
        let (colour, key) = ((comm.rank() % 2) as u32, -(comm.rank() as i64));
        let part = comm.split(Some(colour), key).expect("sound").expect("a colour");
        let members: Vec<i64> = (0..comm.world_size())
            .rev()
            .filter(|rank| rank % 2 == colour as usize)
            .map(|rank| rank as i64)
            .collect();
        assert_eq!(part.all_gather(&[comm.rank() as i64]), Ok(members));
        comm.barrier("end").expect("sound");
    });
}

#[test]
fn ranks_that_disagree_get_an_error_naming_both() {
    on_gpus(&WAYS, &[2], |world, context| {
        let comm = nccl::communicator(&world, context).expect("all ranks come");
        let error = comm.all_reduce(&mut vec![1.0_f32; 8 + comm.rank()], ReduceOp::Sum);
        let text = error.expect_err("lengths differ").to_string();
        assert!(text.contains("of 8 elements") && text.contains("of 9 elements"), "{text}");
    });
}

#[test]
fn what_waits_for_a_rank_that_gives_up_is_given_up() {
    on_gpus(&WAYS, &[1, 2, 4], |world, context| {
        let compute = context.new_stream().expect("a sound GPU");
        let comm = DeviceCommunicator::new(&world, context).expect("all ranks come");
        let last = world.world_size() - 1;
        let mut buffer = upload(&compute, &[1.0_f32; 1000]);
        if world.rank() == last {
            std::thread::sleep(std::time::Duration::from_millis(200));
            world.abort("the loss is NaN");
        }
        // On the ranks that do not give up, this is on the GPU when the news comes.
        let result =
            comm.all_reduce(&mut buffer, ReduceOp::Sum, &compute).and_then(|done| done.synchronize());
        let expected = CommError::Aborted { rank: last, reason: "the loss is NaN".to_owned() };
        assert_eq!(result, Err(expected));
    });
}

#[test]
fn arguments_are_checked() {
    on_gpus(&[Way::Threads], &[1, 2], |world, context| {
        let compute = context.new_stream().expect("a sound GPU");
        let comm = DeviceCommunicator::new(&world, context).expect("all ranks come");
        let (own, count) = (comm.rank(), comm.world_size());
        let (mut buffer, mut other) = (upload(&compute, &[1_i32; 7]), upload(&compute, &[0_i32; 99]));
        assert!(matches!(comm.broadcast(&mut buffer, count, &compute), Err(CommError::Argument { .. })));
        assert!(matches!(comm.send(&buffer, own, &compute), Err(CommError::Argument { .. })));
        assert!(matches!(comm.recv(&mut buffer, own, &compute), Err(CommError::Argument { .. })));
        assert!(matches!(comm.all_gather(&buffer, &mut other, &compute), Err(CommError::Argument { .. })));
        assert!(matches!(comm.all_to_all(&buffer, &mut other, &compute), Err(CommError::Argument { .. })));
        if own == 0 {
            assert!(matches!(comm.gather(&buffer, None, 0, &compute), Err(CommError::Argument { .. })));
            assert!(matches!(comm.scatter(None, &mut buffer, 0, &compute), Err(CommError::Argument { .. })));
        }
        let mean = comm.all_reduce(&mut buffer, ReduceOp::Mean, &compute);
        assert!(matches!(mean, Err(CommError::Unsupported { .. })), "{mean:?}");
        // None of this harmed anything.
        comm.barrier(&compute).expect("sound").synchronize().expect("sound");
    });
}
