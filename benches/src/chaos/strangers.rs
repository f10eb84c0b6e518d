//! Strangers that connect to the ports of a training, and stay.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Result;

/// The state of a listening socket in the system's list.
const LISTENING: &str = "0A";

/// The time that one connection may take. The queue of a stopped process is full at some point.
const PATIENCE: Duration = Duration::from_millis(50);

/// Open connections of strangers.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    connections: Vec<TcpStream>,
}

impl Strangers {
    /// Opens `count` connections to each port on which one of `processes` listens, and sends bytes without meaning on every second one.
    /// Returns false if none listens.
    pub(crate) fn connect(&mut self, processes: &[u32], count: usize) -> Result<bool> {
        let ports = ports_of(processes);
        for port in &ports {
            for number in 0..count {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
                // A port that refuses has been closed; one that does not answer has a full queue.
                let Ok(mut connection) = TcpStream::connect_timeout(&address, PATIENCE) else { break };
                if number % 2 == 1 {
                    let _ = connection.write_all(format!("GET /{number} HTTP/1.1\r\n\r\n").as_bytes());
                }
                self.connections.push(connection);
            }
        }
        Ok(!ports.is_empty())
    }
}

/// Returns the ports on which processes listen, from the system's list.
fn ports_of(processes: &[u32]) -> BTreeSet<u16> {
    let sockets: BTreeSet<String> = processes.iter().flat_map(|process| sockets_of(*process)).collect();
    let lists =
        ["/proc/net/tcp", "/proc/net/tcp6"].into_iter().filter_map(|path| fs::read_to_string(path).ok());
    let mut ports = BTreeSet::new();
    for list in lists {
        // proc_net_tcp(5): number, local address, remote address, state, …, and the socket's number in column 9.
        for line in list.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let [_, local, _, state, _, _, _, _, _, socket, ..] = fields.as_slice() else { continue };
            let port = local.rsplit_once(':').and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
            ports.extend(port.filter(|_| *state == LISTENING && sockets.contains(*socket)));
        }
    }
    ports
}

/// Returns the numbers of a process's sockets.
fn sockets_of(process: u32) -> Vec<String> {
    let entries = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().filter_map(Result::ok);
    let links = entries.filter_map(|entry| Some(fs::read_link(entry.path()).ok()?.to_str()?.to_owned()));
    links.filter_map(|link| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())).collect()
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn strangers_find_the_ports_on_which_a_process_listens() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("binds");
        let port = listener.local_addr().expect("bound").port();
        assert!(ports_of(&[std::process::id()]).contains(&port));
        let mut strangers = Strangers::default();
        assert!(strangers.connect(&[std::process::id()], 2).expect("connects"));
        assert!(listener.accept().is_ok() && listener.accept().is_ok());
        assert!(ports_of(&[]).is_empty());
    }
}
