//! Worlds with a secret: encrypted connections work like plain ones, and ranks that do not know the secret, or replay others, are
//! refused.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::{Topology, on_ranks};
use phalanx_collectives::{
    CommError, Communicator, Credentials, Encryption, ReduceOp, Secret, WorldConfig, connect,
    connect_with_listener,
};

fn secret(text: &str) -> Option<Secret> {
    Some(Secret::new(text.as_bytes()).expect("long enough"))
}

#[test]
fn encrypted_worlds_work_as_others() {
    for (topology, encryption) in [
        (Topology::Tcp, Encryption::None),
        (Topology::Tcp, Encryption::Control),
        (Topology::Tcp, Encryption::All),
        (Topology::Lanes, Encryption::All),
        (Topology::TwoHosts, Encryption::All),
    ] {
        let world = 3;
        let credentials = Credentials { secret: secret("known to all of them"), encryption };
        let change = |config| WorldConfig { credentials: credentials.clone(), ..config };
        on_ranks(topology.world_with(world, change), move |comm| {
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

fn place(rank: usize, port: u16, secret: Option<Secret>) -> WorldConfig {
    let mut config = WorldConfig::local(rank, 2, port);
    config.credentials.secret = secret;
    config.timeouts.connect = Duration::from_secs(20);
    config.transport.shared_memory = false;
    config
}

#[test]
fn idle_strangers_at_the_rendezvous_keep_no_rank_away() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let port = address.port();
    let waiting = rank_0(place(0, port, secret("known to all of them")), listener);
    // More than the backlog of the port holds, so that rank 0 must take them in.
    let strangers: Vec<_> = (0..300).filter_map(|_| TcpStream::connect(address).ok()).collect();
    assert!(strangers.len() > 200);
    let other = connect(&place(1, port, secret("known to all of them"))).expect("rank 0 listens");
    let first = waiting.join().expect("no panic");
    let sum = std::thread::spawn(move || other.all_reduce(&mut [1_i64], ReduceOp::Sum));
    assert_eq!(first.all_reduce(&mut [2_i64], ReduceOp::Sum), Ok(()));
    assert_eq!(sum.join().expect("no panic"), Ok(()));
    drop(strangers);
}

fn rank_0(config: WorldConfig, listener: TcpListener) -> std::thread::JoinHandle<Communicator> {
    std::thread::spawn(move || connect_with_listener(&config, Some(listener)).expect("all come"))
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

#[test]
fn encryption_is_the_same_on_all_ranks_and_needs_a_secret() {
    let ours = || secret("the secret of this world");
    let mut all = place(1, 1, None);
    all.credentials.encryption = Encryption::All;
    let text = connect(&all).expect_err("no secret").to_string();
    assert!(text.contains("needs a secret"), "{text}");
    let (listener, address) = listen();
    let with = |rank, encryption| {
        let mut config = place(rank, address.port(), ours());
        config.credentials.encryption = encryption;
        config
    };
    let zero = rank_0(with(0, Encryption::All), listener);
    let text = connect(&with(1, Encryption::None)).expect_err("it does not encrypt").to_string();
    assert!(text.contains("comm.encryption"), "{text}");
    // Both encrypt the rendezvous, and only one the data.
    let one = connect(&with(1, Encryption::All)).expect("as rank 0");
    drop((one, zero.join().expect("no panic")));
}

/// A proxy between a rank and rank 0, which records the rank's bytes and can change them.
struct RecordingProxy {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
    alters: Arc<AtomicBool>,
}

impl RecordingProxy {
    fn new(to: SocketAddr) -> Self {
        let (listener, address) = listen();
        let (heard, alters) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::<AtomicBool>::default());
        let (ears, alter) = (heard.clone(), alters.clone());
        std::thread::spawn(move || {
            while let Ok((mut caller, _)) = listener.accept() {
                let mut callee = TcpStream::connect(to).expect("it listens");
                let (mut back, mut forth) =
                    (callee.try_clone().expect("open"), caller.try_clone().expect("open"));
                std::thread::spawn(move || std::io::copy(&mut back, &mut forth));
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = caller.read(&mut bytes) {
                    if alter.load(Ordering::SeqCst) {
                        bytes[count - 1] ^= 1;
                    }
                    ears.lock().expect("no panic").extend_from_slice(&bytes[..count]);
                    if callee.write_all(&bytes[..count]).is_err() {
                        break;
                    }
                }
            }
        });
        Self { address, heard, alters }
    }
}

#[test]
fn what_was_heard_at_a_meeting_is_of_no_use_at_the_next() {
    let ours = || secret("the secret of this world");
    let (listener, address) = listen();
    let between = RecordingProxy::new(address);
    let zero = rank_0(place(0, address.port(), ours()), listener);
    let one = connect(&place(1, between.address.port(), ours())).expect("the secret is right");
    drop((zero.join().expect("no panic"), one));
    let heard = between.heard.lock().expect("no panic").clone();
    assert!(heard.len() > 200, "a handshake and a registration");
    assert!(!heard.windows(8).any(|part| part == b"Register"), "it is encrypted");
    // The same world meets again, and a stranger replays rank 1.
    let (listener, address) = listen();
    let zero = rank_0(place(0, address.port(), ours()), listener);
    let mut stranger = TcpStream::connect(address).expect("it listens");
    stranger.write_all(&heard).expect("it reads");
    stranger.set_read_timeout(Some(Duration::from_secs(8))).expect("a timeout");
    let mut answer = Vec::new();
    let start = Instant::now();
    // The end of the stream or a reset, after at most the answer to the first message, which can be replayed.
    let _ = stranger.read_to_end(&mut answer);
    assert!(answer.len() <= 49 && start.elapsed() < Duration::from_secs(7), "{answer:?}");
    let one = connect(&place(1, address.port(), ours())).expect("the place is free");
    drop((zero.join().expect("no panic"), one));
}

#[test]
fn what_is_altered_on_the_control_plane_is_named() {
    let ours = || secret("the secret of this world");
    let (listener, address) = listen();
    let between = RecordingProxy::new(address);
    let zero = rank_0(place(0, address.port(), ours()), listener);
    let one = connect(&place(1, between.address.port(), ours())).expect("the secret is right");
    let zero = zero.join().expect("no panic");
    one.control().expect("processes").post("news", b"of rank 1").expect("sound");
    assert_eq!(zero.check(), Ok(()));
    between.alters.store(true, Ordering::SeqCst);
    let until = Instant::now() + Duration::from_secs(10);
    let error = loop {
        match zero.check() {
            Err(error) => break error,
            Ok(()) => assert!(Instant::now() < until, "the change was not noticed"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let CommError::Aborted { rank: 0, reason } = &error else { panic!("{error}") };
    assert!(reason.contains("rank 1") && reason.contains("altered"), "{reason}");
    assert!(one.all_reduce(&mut [1_i32], ReduceOp::Sum).is_err());
}
