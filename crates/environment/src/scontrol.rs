//! Addresses of SLURM nodes. Names of nodes need not be names of hosts; the controller knows an address of each (`NodeAddr`).

use std::net::ToSocketAddrs;
use std::process::{Command, Stdio};

/// Returns a name or address of a node: its own name if that resolves, or else the address that `scontrol` reports. Without
/// either it returns the name, so that the later lookup fails with the system's message.
pub(super) fn node_address(node: &str) -> String {
    if (node, 0).to_socket_addrs().is_ok_and(|mut found| found.next().is_some()) {
        return node.to_owned();
    }
    let asked =
        Command::new("scontrol").args(["--oneliner", "show", "node", node]).stdin(Stdio::null()).output();
    let reported = asked.ok().filter(|output| output.status.success());
    let address = reported.and_then(|output| parse_node_address(&String::from_utf8_lossy(&output.stdout)));
    address.unwrap_or_else(|| node.to_owned())
}

/// Parses the address in the output of `scontrol show node`.
pub(crate) fn parse_node_address(output: &str) -> Option<String> {
    let words = output.split_whitespace().filter_map(|word| word.strip_prefix("NodeAddr="));
    words.map(str::to_owned).find(|address| !address.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_knows_the_address_of_a_node() {
        // SLURM 22.05, shortened.
        let output = "NodeName=n2 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUTot=4 CPULoad=0.39 NodeAddr=127.0.0.1 \
                    NodeHostName=host Port=17002 Version=22.05.8 OS=Linux State=IDLE ThreadsPerCore=1";
        assert_eq!(parse_node_address(output).as_deref(), Some("127.0.0.1"));
        assert_eq!(parse_node_address("Node n9 not found"), None);
    }

    #[test]
    fn names_that_resolve_are_kept() {
        assert_eq!(node_address("127.0.0.1"), "127.0.0.1");
        assert_eq!(node_address("localhost"), "localhost");
    }
}
