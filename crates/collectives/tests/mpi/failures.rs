//! Scenarios with failures.

use std::time::Duration;

use phalanx_collectives::{CommError, EnvironmentError, ReduceOp, connect_mpi};

use super::scenarios::join;
use crate::common::checks::check_all;

/// With `PHALANX_MPI_CHECK` all ranks get the error, and can leave in good order.
pub(crate) fn disagreement() {
    let comm = join();
    let error = match comm.rank() {
        0 => comm.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum),
        1 => comm.all_reduce(&mut [1.0_f64; 8], ReduceOp::Sum),
        _ => comm.broadcast(&mut [1.0_f32; 9], 1),
    };
    let text = error.expect_err("they disagree").to_string();
    assert!(text.contains("of 8 elements f32") || text.contains("of 8 elements f64"), "{text}");
    let later = comm.barrier("later").expect_err("the world is broken");
    assert!(matches!(&later, CommError::Aborted { rank, .. } if *rank == comm.rank()), "{later}");
}

/// With `PHALANX_MPI_CHECK` the receiver gets the error.
pub(crate) fn message() {
    let comm = join();
    if comm.rank() == 0 {
        comm.send(&vec![1_i32; 100_000], 1).expect("it goes on its way");
    } else {
        let error = comm.recv(&mut [0.0_f32; 3], 0).expect_err("they disagree");
        assert!(matches!(&error, CommError::Mismatch { rank: 0, .. }), "{error}");
        println!("{error}");
    }
}

/// Each rank expects another message than it gets, with or without `PHALANX_MPI_CHECK`.
pub(crate) fn messages() {
    let comm = join();
    let (own, other) = (vec![1_i64; 50_000], 1 - comm.rank());
    let error = comm.send_recv(&own, other, &mut vec![0_i64; 50_001], other).expect_err("they disagree");
    println!("rank {}: {error}", comm.rank());
    assert!(matches!(&error, CommError::Mismatch { rank, .. } if *rank == other), "{error}");
}

pub(crate) fn unequal_lengths(sent: usize, wanted: usize) {
    let comm = join();
    if comm.rank() == 0 {
        comm.send(&vec![1_i32; sent], 1).expect("it goes on its way");
    } else {
        println!("{}", comm.recv(&mut vec![0_i32; wanted], 0).expect_err("they disagree"));
    }
}

pub(crate) fn abort() {
    let comm = join();
    if comm.rank() == 1 {
        std::thread::sleep(Duration::from_millis(200));
        println!("about to abort");
        comm.abort("the loss is NaN at step 7");
    }
    let _ = comm.all_reduce(&mut [0.0_f32; 100], ReduceOp::Sum);
    println!("an abort should have ended this rank");
}

pub(crate) fn panic() {
    let comm = join();
    if comm.rank() == 1 {
        std::thread::sleep(Duration::from_millis(200));
        println!("about to panic");
        panic!("for the test");
    }
    comm.all_reduce(&mut [0.0_f32; 100], ReduceOp::Sum).expect("never");
}

pub(crate) fn malformed() {
    let error = connect_mpi().expect_err("malformed");
    assert!(
        matches!(error, CommError::Environment(EnvironmentError { variable: "PHALANX_MPI_CHECK", .. })),
        "{error}"
    );
}

/// All ranks get the error of a variable that differs.
pub(crate) fn unequal() {
    let error = connect_mpi().expect_err("the last rank has another");
    assert!(
        matches!(error, CommError::Environment(EnvironmentError { variable: "PHALANX_MPI_PIECE", .. })),
        "{error}"
    );
}

/// MPI that the program initialised with less than it could offer: one communicator and no parts.
pub(crate) fn serialized() {
    let begun = mpi::initialize_with_threading(mpi::Threading::Serialized).expect("MPI begins");
    assert_eq!(begun.1, mpi::Threading::Serialized);
    let comm = join();
    check_all(&comm, false);
    assert!(matches!(comm.split(Some(0), 0), Err(CommError::Mpi { .. })));
    assert!(matches!(connect_mpi(), Err(CommError::Mpi { .. })));
    drop(comm);
    assert!(!mpi::is_finalized(), "the side that initialised MPI finalises it");
    join().barrier("again").expect("sound");
}

pub(crate) fn single() {
    let _begun = mpi::initialize().expect("MPI begins");
    let error = connect_mpi().expect_err("that is too little");
    assert!(error.to_string().contains("Single"), "{error}");
}
