//! Worlds whose connections are encrypted: they work like others, and keep out who has no certificate of theirs.
#![cfg(feature = "tls")]

mod common;

use std::net::TcpListener;
use std::path::PathBuf;
use std::time::Duration;

use common::{Way, on_ranks};
use phalanx_collectives::{ReduceOp, Tls, WorldConfig, connect, connect_with_listener};

/// A rank's certificate, its key and their authority: made for tests by the commands in the documentation of [`Tls`],
/// valid for a hundred years.
fn certificates(name: &str) -> Tls {
    let file =
        |kind: &str| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/tls/{name}-{kind}.pem"));
    Tls { certificate: file("rank"), key: file("key"), authority: file("authority") }
}

#[test]
fn encrypted_worlds_work_and_keep_strangers_out() {
    let (ours, others) = (certificates("ours"), certificates("others"));
    for way in [Way::Tcp, Way::Lanes, Way::TwoHosts] {
        for world in [1, 3, 4] {
            let tls = Some(ours.clone());
            let ranks = way.world_with(world, |config| WorldConfig { tls: tls.clone(), ..config });
            on_ranks(ranks, move |comm| {
                for len in [0, 1, 1000, 1_000_003] {
                    let mut values = vec![comm.rank() as i64; len];
                    comm.all_reduce(&mut values, ReduceOp::Sum).expect("sound");
                    assert!(values.iter().all(|v| *v == (0..world as i64).sum::<i64>()));
                }
                let (next, previous) = ((comm.rank() + 1) % world, (comm.rank() + world - 1) % world);
                for len in [0, 1, 3_000_000] {
                    comm.send_to(next, 1, &vec![comm.rank() as u8; len]).expect("sound");
                    assert_eq!(comm.recv_any(1), Ok((previous, vec![previous as u8; len])));
                }
                let part = comm.split(Some(0), 0).expect("sound").expect("a colour");
                assert_eq!(part.all_gather(&[part.rank() as u8]).expect("sound").len(), world);
            });
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let place = move |rank, tls| WorldConfig {
        tls,
        connect_timeout: Duration::from_secs(20),
        ..WorldConfig::local(rank, 2, port)
    };
    let zero = place(0, Some(ours.clone()));
    let zero = std::thread::spawn(move || connect_with_listener(&zero, Some(listener)));
    // Another authority's, and none.
    for stranger in [Some(others), None] {
        let stranger = WorldConfig { connect_timeout: Duration::from_secs(8), ..place(1, stranger) };
        assert!(connect(&stranger).is_err());
    }
    let missing = Tls { key: "nothing.key".into(), ..ours.clone() };
    let text = connect(&place(1, Some(missing))).expect_err("no key").to_string();
    assert!(text.contains("nothing.key"), "{text}");
    let one = connect(&place(1, Some(ours))).expect("ours");
    let zero = zero.join().expect("no panic").expect("all came");
    let sum = one.all_reduce_async(vec![1_i32], ReduceOp::Sum);
    assert_eq!(zero.all_reduce_async(vec![2_i32], ReduceOp::Sum).wait(), Ok(vec![3]));
    assert_eq!(sum.wait(), Ok(vec![3]));
}
