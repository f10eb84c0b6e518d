//! NCCL's network on this host: InfiniBand and RoCE adapters, interfaces for sockets, and the settings that choose.
//!
//! NCCL reports its own choice with `NCCL_DEBUG=INFO`. This is what it finds by the rules of its documentation ("Environment
//! Variables") and sources (`ncclFindInterfaces`).

use std::fmt;
use std::fs;
use std::path::Path;

/// A port of an InfiniBand adapter, or of Ethernet with RDMA verbs (RoCE).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// The adapter's name, with the port's number: "mlx5_0:1".
    pub name: String,
    /// "InfiniBand" or "Ethernet".
    pub layer: String,
    /// The rate in the system's format: "400 Gb/sec (4X NDR)".
    pub rate: String,
    /// True if it is up.
    pub active: bool,
}

/// NCCL's network on this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Network {
    /// Ports of adapters, by name; unused if `NCCL_IB_DISABLE` is 1.
    pub ports: Vec<Port>,
    /// Interfaces for sockets if no port is used, by name.
    pub interfaces: Vec<String>,
    /// NCCL's variables that are set, by name, with their values.
    pub settings: Vec<(String, String)>,
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let disabled = self.setting("NCCL_IB_DISABLE") == Some("1");
        let active: Vec<_> = self.ports.iter().filter(|port| port.active).collect();
        match (active.as_slice(), disabled) {
            ([], _) => match self.ports.len() {
                0 => write!(f, "no InfiniBand or RoCE")?,
                _ => write!(f, "InfiniBand or RoCE, of which no port is up")?,
            },
            (ports, true) => write!(f, "InfiniBand and RoCE are not used ({} up)", ports.len())?,
            (ports, false) => {
                for (at, port) in ports.iter().enumerate() {
                    let comma = if at == 0 { "" } else { ", " };
                    write!(f, "{comma}{} ({}, {})", port.name, port.layer, port.rate)?;
                }
            }
        }
        match self.interfaces.as_slice() {
            [] => write!(f, "; no interface for sockets")?,
            interfaces => write!(f, "; sockets by {}", interfaces.join(", "))?,
        }
        self.settings.iter().try_for_each(|(name, value)| write!(f, "; {name}={value}"))
    }
}

impl Network {
    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// Returns NCCL's network on this host.
pub fn network() -> Network {
    let mut settings: Vec<_> = std::env::vars().filter(|(name, _)| name.starts_with("NCCL_")).collect();
    settings.sort();
    let mut names: Vec<String> = if_addrs::get_if_addrs()
        .unwrap_or_default()
        .into_iter()
        .filter(|found| !found.is_link_local())
        .map(|found| found.name)
        .collect();
    names.sort();
    names.dedup();
    let ports = ports(Path::new("/sys/class/infiniband"));
    let mut network = Network { ports, interfaces: Vec::new(), settings };
    network.interfaces = chosen(names, network.setting("NCCL_SOCKET_IFNAME"));
    network
}

/// Returns the interfaces that NCCL uses: those that a setting names, or else those of the first kind that exists.
fn chosen(names: Vec<String>, setting: Option<&str>) -> Vec<String> {
    if let Some(setting) = setting.filter(|setting| !setting.is_empty()) {
        let (excludes, rest) = setting.strip_prefix('^').map_or((false, setting), |rest| (true, rest));
        let (exactly, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        let named = |name: &str| {
            rest.split(',').any(|part| if exactly { name == part } else { name.starts_with(part) })
        };
        return names.into_iter().filter(|name| named(name) != excludes).collect();
    }
    let of = |prefix: &str| -> Vec<String> {
        names.iter().filter(|name| name.starts_with(prefix)).cloned().collect()
    };
    const LAST: [&str; 3] = ["docker", "lo", "virbr"];
    let others =
        names.iter().filter(|name| !LAST.iter().any(|last| name.starts_with(last))).cloned().collect();
    let kinds = [of("ib"), others, of("docker"), of("lo"), of("virbr")];
    kinds.into_iter().find(|kind| !kind.is_empty()).unwrap_or_default()
}

/// Returns the ports in a folder of the system: `mlx5_0/ports/1/rate`.
fn ports(folder: &Path) -> Vec<Port> {
    let names = |folder: &Path| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    };
    let mut found = Vec::new();
    for adapter in names(folder) {
        let ports = folder.join(&adapter).join("ports");
        for port in names(&ports) {
            let read = |file: &str| fs::read_to_string(ports.join(&port).join(file)).unwrap_or_default();
            found.push(Port {
                name: format!("{adapter}:{port}"),
                layer: read("link_layer").trim().to_owned(),
                rate: read("rate").trim().to_owned(),
                // "4: ACTIVE"
                active: read("state").contains("ACTIVE"),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn interfaces_are_chosen_by_nccls_rules() {
        let here = || names(&["docker0", "eth0", "eth1", "lo"]);
        assert_eq!(chosen(here(), None), ["eth0", "eth1"]);
        assert_eq!(chosen(names(&["eth0", "ib0", "lo"]), None), ["ib0"]);
        assert_eq!(chosen(names(&["docker0", "lo"]), None), ["docker0"]);
        assert_eq!(chosen(here(), Some("eth1,lo")), ["eth1", "lo"]);
        assert_eq!(chosen(here(), Some("^docker,lo")), ["eth0", "eth1"]);
        assert_eq!(chosen(here(), Some("=eth")), Vec::<String>::new());
        assert_eq!(chosen(here(), Some("")), ["eth0", "eth1"]);
    }

    #[test]
    fn ports_are_read_as_the_system_tells_them() {
        let folder = std::env::temp_dir().join(format!("phalanx-ports-{}", std::process::id()));
        for (port, state) in [("mlx5_0/ports/1", "4: ACTIVE\n"), ("mlx5_1/ports/1", "1: DOWN\n")] {
            let port = folder.join(port);
            fs::create_dir_all(&port).expect("a folder");
            for (file, text) in
                [("state", state), ("rate", "400 Gb/sec (4X NDR)\n"), ("link_layer", "InfiniBand\n")]
            {
                fs::write(port.join(file), text).expect("a file");
            }
        }
        let ports = ports(&folder);
        fs::remove_dir_all(&folder).expect("the folder");
        assert_eq!(ports.iter().map(|port| port.active).collect::<Vec<_>>(), [true, false]);
        let mut network = Network { ports, interfaces: names(&["eth0"]), settings: Vec::new() };
        assert_eq!(network.to_string(), "mlx5_0:1 (InfiniBand, 400 Gb/sec (4X NDR)); sockets by eth0");
        network.settings.push(("NCCL_IB_DISABLE".to_owned(), "1".to_owned()));
        let text = "InfiniBand and RoCE are not used (1 up); sockets by eth0; NCCL_IB_DISABLE=1";
        assert_eq!(network.to_string(), text);
        assert_eq!(Network::default().to_string(), "no InfiniBand or RoCE; no interface for sockets");
    }
}
