//! Where the ranks of one host meet.

use std::io;
use std::net::TcpListener;
use std::ops::Range;

/// Below the ports of jobs, and below those that systems give to outgoing connections: such a connection might take the
/// port before rank 0 listens on it.
const PORTS: Range<u16> = 10_240..20_000;

/// The number of ports tried.
const DRAWN: usize = 16;

/// Returns a free port of the loopback interface, which the system gives to no outgoing connection.
///
/// # Errors
/// If the system has no random numbers or no free port.
pub fn free_port() -> io::Result<u16> {
    for _ in 0..DRAWN {
        let mut drawn = [0; 8];
        getrandom::fill(&mut drawn).map_err(|error| io::Error::other(error.to_string()))?;
        let among = u64::from(PORTS.end - PORTS.start);
        let port = PORTS.start + (u64::from_le_bytes(drawn) % among) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    TcpListener::bind(("127.0.0.1", 0))?.local_addr().map(|address| address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_free_and_none_of_those_that_connections_are_given() {
        let held: Vec<_> = (0..20)
            .map(|_| {
                let port = free_port().expect("there are thousands");
                assert!(PORTS.contains(&port), "{port}");
                TcpListener::bind(("127.0.0.1", port)).expect("the port is free")
            })
            .collect();
        let mut ports: Vec<_> = held.iter().map(|one| one.local_addr().expect("bound").port()).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 20);
    }
}
