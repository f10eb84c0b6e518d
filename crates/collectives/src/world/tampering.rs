//! Tests with a proxy between two ranks that changes bytes.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use std::sync::Arc;

use super::threads;
use crate::control::RankState;
use crate::dtype::ReduceOp;
use crate::error::CommError;
use crate::rendezvous::{DataConnections, RankTable};
use crate::security::{Credentials, Encryption, Secret};
use crate::transport::tcp::Tcp;
use crate::transport::{Link, Links};
use crate::waiting::WaitLimits;

/// Bytes that the caller sends in a handshake with a secret.
pub(super) const HANDSHAKE: usize = 48 + 48 + 16;

/// Returns the address of a proxy to `to` for one connection. It flips a bit of byte number `at` of those that the caller sends.
pub(super) fn proxy(to: SocketAddr, at: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let (mut caller, _) = listener.accept().expect("a caller");
        let mut callee = TcpStream::connect(to).expect("it listens");
        let (mut back, mut forth) = (callee.try_clone().expect("open"), caller.try_clone().expect("open"));
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut back, &mut forth);
            let _ = forth.shutdown(Shutdown::Both);
        });
        let (mut passed, mut bytes) = (0, [0; 4096]);
        while let Ok(count @ 1..) = caller.read(&mut bytes) {
            if (passed..passed + count).contains(&at) {
                bytes[at - passed] ^= 1;
            }
            passed += count;
            if callee.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        let _ = callee.shutdown(Shutdown::Both);
    });
    address
}

/// Returns a world of two ranks over one connection. With `at`, that byte of rank 1 changes on its way.
fn two(encryption: Encryption, at: Option<usize>) -> Vec<crate::Communicator> {
    let credentials = Credentials { secret: Some(Secret::new(&[5; 16]).expect("long")), encryption };
    let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let mut data: Vec<_> = listeners.iter().map(|listener| listener.local_addr().expect("bound")).collect();
    let direct = RankTable { data: data.clone(), processes: Vec::new(), token: 3 };
    if let Some(at) = at {
        data[0] = proxy(data[0], at);
    }
    let tables = [direct.clone(), RankTable { data, ..direct }];
    let watched = [0, 1].map(|_| RankState::default());
    let ends = std::thread::scope(|scope| {
        let connecting = [0, 1].map(|rank| {
            let (credentials, listener, failure) = (&credentials, &listeners[rank], &watched[rank].failure);
            let table = Arc::new(tables[rank].clone());
            scope.spawn(move || {
                let timeout = Duration::from_secs(20);
                let connections = DataConnections { rank, table, lanes: 1, credentials, timeout };
                let wires = connections.connect(listener, failure).expect("the other comes");
                let limits = WaitLimits { failure: failure.clone(), timeout };
                let link = |lanes: Vec<_>| (!lanes.is_empty()).then(|| Tcp::new(lanes, limits.clone()));
                let link = |lanes| link(lanes).map(|tcp| Box::new(tcp.expect("a link")) as Box<dyn Link>);
                (Links(wires.into_iter().map(link).collect()), None)
            })
        });
        connecting.map(|rank| rank.join().expect("no panic"))
    });
    threads::over(ends.into(), watched.into(), None).expect("threads")
}

/// Returns the sum on both ranks.
fn sums(world: Vec<crate::Communicator>) -> Vec<Result<Vec<f32>, CommError>> {
    let sum = |comm: crate::Communicator| {
        move || {
            let mut values = vec![comm.rank() as f32 + 1.0; 50_000];
            comm.all_reduce(&mut values, ReduceOp::Sum).map(|()| values)
        }
    };
    let running: Vec<_> = world.into_iter().map(|comm| std::thread::spawn(sum(comm))).collect();
    running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
}

#[test]
fn an_altered_byte_is_a_named_error_where_connections_are_encrypted_and_a_wrong_sum_where_not() {
    let right = Ok(vec![3.0; 50_000]);
    assert_eq!(sums(two(Encryption::All, None)), [right.clone(), right.clone()]);
    // Far into the numbers, so that headers are whole.
    let at = HANDSHAKE + 70_001;
    let results = sums(two(Encryption::All, Some(at)));
    let [Err(CommError::Altered { rank: 1, operation, .. }), Err(other)] = results.as_slice() else {
        panic!("{results:?}");
    };
    assert!(operation.starts_with("all-reduce"), "{operation}");
    // The other rank learns the reason, unless it first sees that the connection has ended.
    let knows_why = matches!(other, CommError::Aborted { rank: 0, reason } if reason.contains("altered"));
    assert!(knows_why || matches!(other, CommError::PeerLost { rank: 0, .. }), "{other}");
    // Without encryption the change goes unnoticed.
    let results = sums(two(Encryption::Control, Some(at)));
    assert!(results.iter().all(Result::is_ok) && results[0] != right, "the change cannot be noticed");
}

#[test]
fn an_altered_handshake_is_refused_by_both() {
    let credentials =
        Credentials { secret: Some(Secret::new(&[5; 16]).expect("long")), encryption: Encryption::Control };
    for at in [8, 17, 47, 60, HANDSHAKE - 1] {
        let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let mut data: Vec<_> =
            listeners.iter().map(|listener| listener.local_addr().expect("bound")).collect();
        let direct = RankTable { data: data.clone(), processes: Vec::new(), token: 3 };
        data[0] = proxy(data[0], at);
        let tables = [direct.clone(), RankTable { data, ..direct }];
        let start = Instant::now();
        std::thread::scope(|scope| {
            let connecting = [0, 1].map(|rank| {
                let (credentials, listener) = (&credentials, &listeners[rank]);
                let table = Arc::new(tables[rank].clone());
                scope.spawn(move || {
                    let timeout = Duration::from_millis(700);
                    let connections = DataConnections { rank, table, lanes: 1, credentials, timeout };
                    connections.connect(listener, &crate::failure::Failure::default()).map(drop)
                })
            });
            let [zero, one] = connecting.map(|rank| rank.join().expect("no panic"));
            assert!(zero.is_err(), "byte {at}: the caller was accepted");
            // The last message is the caller's own, and has no answer.
            assert!(one.is_err() || at == HANDSHAKE - 1, "byte {at} was not noticed");
        });
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}
