//! Which of a host's network interfaces a rank listens on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use if_addrs::IfAddr;

/// The address that an interface's name, an address, or `auto` stands for; or what is wrong with it, in words.
pub(super) fn named(text: &str, master: &str, port: u16) -> Result<IpAddr, String> {
    if text == "auto" {
        return Ok(towards(master, port));
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let all = if_addrs::get_if_addrs().map_err(|error| format!("cannot list the interfaces: {error}"))?;
    // The master's family, if the interface has an address of both.
    let wants_v6 = resolve(master, port).is_some_and(|address| address.is_ipv6());
    let of_it = |v6: bool| all.iter().find(|found| found.name == text && found.ip().is_ipv6() == v6);
    if let Some(found) = of_it(wants_v6).or_else(|| of_it(!wants_v6)) {
        return Ok(found.ip());
    }
    let mut names: Vec<_> = all.iter().map(|found| found.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    Err(format!("`{text}` is no address, and no interface here; there are {}", names.join(", ")))
}

fn resolve(master: &str, port: u16) -> Option<SocketAddr> {
    (master, port).to_socket_addrs().ok()?.next()
}

/// The address from which this host reaches the master: loopback if the master is there, so that nothing beyond this host
/// is let in unless the world goes beyond it. If there is no way to it yet, all addresses of the family.
pub(super) fn towards(master: &str, port: u16) -> IpAddr {
    let Some(target) = resolve(master, port) else { return IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    let literal = master == "localhost" || master.parse::<IpAddr>().is_ok();
    if target.ip().is_loopback() && !literal {
        // Many systems list their own name under a loopback address, where other hosts cannot come.
        return IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    }
    let any: IpAddr =
        if target.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    // Connecting a datagram socket sends nothing; the system only chooses a route.
    let route = UdpSocket::bind(SocketAddr::new(any, 0)).and_then(|socket| {
        socket.connect(target)?;
        socket.local_addr()
    });
    route.map_or(any, |own| own.ip())
}

/// The addresses under which other hosts may know this one: those of its interfaces, loopback only if there is no other.
pub(super) fn own() -> Vec<IpAddr> {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    let beyond: Vec<_> = all
        .iter()
        .filter(|found| !found.is_loopback() && !found.is_link_local())
        .map(if_addrs::Interface::ip)
        .collect();
    if beyond.is_empty() { all.iter().map(if_addrs::Interface::ip).collect() } else { beyond }
}

/// The one of a host's addresses that is in a network of this host's too, or else the first.
pub(super) fn nearest(addresses: &[IpAddr]) -> Option<IpAddr> {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    let is_near = |address: &&IpAddr| all.iter().any(|found| shares_network(&found.addr, **address));
    addresses.iter().find(is_near).or(addresses.first()).copied()
}

/// Whether an address is in the network of an interface.
fn shares_network(own: &IfAddr, other: IpAddr) -> bool {
    match (own, other) {
        (IfAddr::V4(own), IpAddr::V4(other)) => {
            own.ip.to_bits() & own.netmask.to_bits() == other.to_bits() & own.netmask.to_bits()
        }
        (IfAddr::V6(own), IpAddr::V6(other)) => {
            own.ip.to_bits() & own.netmask.to_bits() == other.to_bits() & own.netmask.to_bits()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_reached_from_loopback() {
        assert!(towards("127.0.0.1", 80).is_loopback());
        assert!(named("auto", "localhost", 80).expect("there is a way").is_loopback());
        assert_eq!(named("::1", "::1", 80), Ok(IpAddr::V6(Ipv6Addr::LOCALHOST)));
    }

    #[test]
    fn interfaces_have_names() {
        let loopback =
            if_addrs::get_if_addrs().expect("a list").into_iter().find(if_addrs::Interface::is_loopback);
        if let Some(loopback) = loopback {
            assert!(named(&loopback.name, "127.0.0.1", 80).expect("it is there").is_loopback());
        }
        let error = named("ib7", "127.0.0.1", 80).expect_err("no such interface");
        assert!(error.contains("ib7"), "{error}");
    }

    #[test]
    fn an_address_of_a_shared_network_is_nearest() {
        let own =
            |ip, netmask| IfAddr::V4(if_addrs::Ifv4Addr { ip, netmask, prefixlen: 24, broadcast: None });
        let own = own(Ipv4Addr::new(10, 1, 2, 3), Ipv4Addr::new(255, 255, 255, 0));
        assert!(shares_network(&own, [10, 1, 2, 77].into()));
        assert!(!shares_network(&own, [10, 1, 3, 77].into()));
        assert!(!shares_network(&own, Ipv6Addr::LOCALHOST.into()));
        let far = [IpAddr::from([203, 0, 113, 9]), Ipv4Addr::LOCALHOST.into()];
        assert_eq!(nearest(&far), Some(far[1]), "loopback is a network of every host");
        assert_eq!(nearest(&far[..1]), Some(far[0]));
        assert_eq!(nearest(&[]), None);
        assert!(!super::own().is_empty());
    }
}
