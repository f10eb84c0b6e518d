//! Where a node of SLURM is, if the system's names do not say: its controller knows an address of each (`NodeAddr`), and names of
//! nodes need not be names of hosts.

use std::net::ToSocketAddrs;
use std::process::{Command, Stdio};

/// A name or an address that leads to a node: its own name, if that resolves, or else what `scontrol` says of it; its name again
/// where nobody knows better, so that whoever looks it up says what is wrong.
pub(super) fn reach(node: &str) -> String {
    if (node, 0).to_socket_addrs().is_ok_and(|mut found| found.next().is_some()) {
        return node.to_owned();
    }
    let asked =
        Command::new("scontrol").args(["--oneliner", "show", "node", node]).stdin(Stdio::null()).output();
    let said = asked.ok().filter(|output| output.status.success());
    let address = said.and_then(|output| address_of(&String::from_utf8_lossy(&output.stdout)));
    address.unwrap_or_else(|| node.to_owned())
}

/// The address in what `scontrol show node` prints.
pub(super) fn address_of(said: &str) -> Option<String> {
    let words = said.split_whitespace().filter_map(|word| word.strip_prefix("NodeAddr="));
    words.map(str::to_owned).find(|address| !address.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_says_where_a_node_is() {
        // SLURM 22.05, shortened.
        let said = "NodeName=n2 Arch=x86_64 CoresPerSocket=1 CPUAlloc=0 CPUTot=4 CPULoad=0.39 NodeAddr=127.0.0.1 \
                    NodeHostName=host Port=17002 Version=22.05.8 OS=Linux State=IDLE ThreadsPerCore=1";
        assert_eq!(address_of(said).as_deref(), Some("127.0.0.1"));
        assert_eq!(address_of("Node n9 not found"), None);
    }

    #[test]
    fn names_that_resolve_are_taken_as_they_are() {
        assert_eq!(reach("127.0.0.1"), "127.0.0.1");
        assert_eq!(reach("localhost"), "localhost");
    }
}
