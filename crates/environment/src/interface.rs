//! Choice of the network interface that a rank listens on.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use if_addrs::IfAddr;

/// Returns the address that `text` stands for: an interface's name, an address, a network such as `10.1.0.0/16`, or `auto`.
///
/// # Errors
/// A description of the problem.
pub(super) fn parse(text: &str, master: &str, port: u16) -> Result<IpAddr, String> {
    if text == "auto" {
        return Ok(route_to(master, port));
    }
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let all = if_addrs::get_if_addrs().map_err(|error| format!("cannot list the interfaces: {error}"))?;
    if let Some((network, bits)) = text.split_once('/') {
        let network = network.parse::<IpAddr>().map_err(|error| format!("`{text}`: {error}"))?;
        let longest = if network.is_ipv6() { 128 } else { 32 };
        let bits = bits.parse().ok().filter(|bits| *bits <= longest);
        let bits = bits.ok_or_else(|| format!("`{text}`: a network has 0 to {longest} bits"))?;
        let found = all
            .iter()
            .filter(|own| is_routed(own))
            .map(if_addrs::Interface::ip)
            .find(|own| is_in(*own, network, bits));
        return found.ok_or_else(|| {
            let own: Vec<_> = all.iter().map(|found| found.ip().to_string()).collect();
            format!("no interface here is in the network {text}; there are {}", own.join(", "))
        });
    }
    // The master's family, if the interface has an address of both.
    let wants_v6 = resolve(master, port).is_some_and(|address| address.is_ipv6());
    let of_it = |v6: bool| {
        all.iter().find(|found| found.name == text && found.ip().is_ipv6() == v6 && is_routed(found))
    };
    if let Some(found) = of_it(wants_v6).or_else(|| of_it(!wants_v6)) {
        return Ok(found.ip());
    }
    let mut names: Vec<_> = all.iter().map(|found| found.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    Err(format!("`{text}` is no address, and no interface here; there are {}", names.join(", ")))
}

/// True if an address is complete without an interface's name. Link-local addresses of IPv6 are not.
fn is_routed(own: &if_addrs::Interface) -> bool {
    !(own.ip().is_ipv6() && own.is_link_local())
}

/// True if the first `bits` of two addresses are equal.
fn is_in(own: IpAddr, network: IpAddr, bits: u32) -> bool {
    match (own, network) {
        (IpAddr::V4(own), IpAddr::V4(network)) => {
            (own.to_bits() ^ network.to_bits()).checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(own), IpAddr::V6(network)) => {
            (own.to_bits() ^ network.to_bits()).checked_shr(128 - bits).unwrap_or(0) == 0
        }
        _ => false,
    }
}

/// Returns the unspecified address of the master's family; that of IPv4 if the master has both.
pub(super) fn unspecified_like(master: &str, port: u16) -> IpAddr {
    let mut found = (master, port).to_socket_addrs().into_iter().flatten().peekable();
    match found.peek().is_some() && found.all(|address| address.is_ipv6()) {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// Returns the address by which processes of this host reach a listener; loopback if it listens at all addresses.
fn local_address(listening: IpAddr) -> IpAddr {
    match listening {
        IpAddr::V4(any) if any.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(any) if any.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        one => one,
    }
}

/// Returns an address by which ranks reach a listener. For one that listens at all addresses of a family this is an address that
/// other hosts can use, if there is one.
pub fn reachable_address(listening: IpAddr) -> IpAddr {
    let outside = if listening.is_unspecified() { outside_address(listening) } else { listening };
    local_address(if outside.is_ipv6() == listening.is_ipv6() { outside } else { listening })
}

/// Returns an address by which other hosts reach a listener at all addresses of a family.
pub fn outside_address(any: IpAddr) -> IpAddr {
    let own = own_addresses();
    own.iter().find(|own| own.is_ipv6() == any.is_ipv6()).or(own.first()).copied().unwrap_or(any)
}

/// True if a name, or an address outside of loopback, is one of this host.
pub(super) fn is_this_host(master: &str, port: u16) -> bool {
    let is_literal = master == "localhost" || master.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let Some(found) = resolve(master, port).filter(|_| !is_literal) else { return false };
    // Many systems map their own name to a loopback address.
    found.ip().is_loopback() || own_addresses().contains(&found.ip())
}

fn resolve(master: &str, port: u16) -> Option<SocketAddr> {
    (master, port).to_socket_addrs().ok()?.next()
}

/// Returns the address from which this host reaches the master. This is loopback if the master is on this host, so that other
/// hosts cannot connect unless the world needs them. Without a route it is the unspecified address of the family.
pub(super) fn route_to(master: &str, port: u16) -> IpAddr {
    let Some(target) = resolve(master, port) else { return IpAddr::V4(Ipv4Addr::UNSPECIFIED) };
    let literal = master == "localhost" || master.parse::<IpAddr>().is_ok();
    if target.ip().is_loopback() && !literal {
        // Many systems map their own name to a loopback address, which other hosts cannot reach.
        return IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    }
    let any: IpAddr =
        if target.is_ipv6() { Ipv6Addr::UNSPECIFIED.into() } else { Ipv4Addr::UNSPECIFIED.into() };
    // Connecting a datagram socket sends nothing: the system only chooses a route.
    let route = UdpSocket::bind(SocketAddr::new(any, 0)).and_then(|socket| {
        socket.connect(target)?;
        socket.local_addr()
    });
    route.map_or(any, |own| own.ip())
}

/// Returns the address where rank 0 accepts registrations, if it listens for data at `bound` and the other ranks look for it at
/// `master`. `is_name` tells that they know it by a name.
///
/// `PHALANX_INTERFACE` chooses the network for data alone. If `master` is in another network, rank 0 accepts registrations there.
pub fn registration_address(bound: IpAddr, master: IpAddr, is_name: bool) -> IpAddr {
    let any = || match bound {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    if bound.is_unspecified() || bound == master || bound.is_ipv6() != master.is_ipv6() {
        bound
    } else if master.is_loopback() {
        // Many systems map their own name to a loopback address; other hosts resolve it to another one.
        if is_name { any() } else { master }
    } else if own_addresses().contains(&master) {
        master
    } else {
        bound
    }
}

/// Returns the addresses by which other hosts may reach this one: those of its interfaces, loopback only if there is no other.
pub(super) fn own_addresses() -> Vec<IpAddr> {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    let outside: Vec<_> = all
        .iter()
        .filter(|found| !found.is_loopback() && !found.is_link_local())
        .map(if_addrs::Interface::ip)
        .collect();
    if outside.is_empty() { all.iter().map(if_addrs::Interface::ip).collect() } else { outside }
}

/// Returns the one of a host's addresses that shares a network with this host, or else the first.
pub(super) fn nearest(addresses: &[IpAddr]) -> Option<IpAddr> {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    let is_near = |address: &&IpAddr| all.iter().any(|found| shares_network(&found.addr, **address));
    addresses.iter().find(is_near).or(addresses.first()).copied()
}

/// True if an address is in the network of an interface.
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
        assert!(route_to("127.0.0.1", 80).is_loopback());
        assert!(parse("auto", "localhost", 80).expect("there is a way").is_loopback());
        assert_eq!(parse("::1", "::1", 80), Ok(IpAddr::V6(Ipv6Addr::LOCALHOST)));
    }

    #[test]
    fn listeners_at_all_addresses_are_known_by_one_of_that_family() {
        for any in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            let at = reachable_address(any);
            assert!(!at.is_unspecified() && at.is_ipv6() == any.is_ipv6(), "{at}");
            let has_outside =
                own_addresses().iter().any(|own| !own.is_loopback() && own.is_ipv6() == any.is_ipv6());
            assert_eq!(at.is_loopback(), !has_outside, "{at}");
        }
        let one = IpAddr::V4(Ipv4Addr::new(10, 1, 2, 3));
        assert_eq!(reachable_address(one), one);
    }

    #[test]
    fn rank_0_accepts_registrations_where_ranks_look_for_it() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let any = ip("0.0.0.0");
        for (bound, master, is_name, meeting_place) in [
            ("0.0.0.0", "10.0.0.1", true, "0.0.0.0"),
            ("127.0.0.1", "127.0.0.1", false, "127.0.0.1"),
            ("10.1.0.7", "127.0.1.1", true, "0.0.0.0"),
            ("127.0.0.9", "127.0.0.1", false, "127.0.0.1"),
            ("10.1.0.7", "203.0.113.9", true, "10.1.0.7"),
            ("fd00::7", "10.0.0.1", true, "fd00::7"),
        ] {
            assert_eq!(
                registration_address(ip(bound), ip(master), is_name),
                ip(meeting_place),
                "{bound} {master}"
            );
        }
        // An address of this host other than the one where it listens.
        if let Some(own) = own_addresses().into_iter().find(|own| own.is_ipv4() && !own.is_loopback()) {
            assert_eq!(registration_address(ip("10.77.77.77"), own, true), own);
            assert_eq!(registration_address(any, own, true), any);
        }
    }

    #[test]
    fn interfaces_have_names() {
        let loopback =
            if_addrs::get_if_addrs().expect("a list").into_iter().find(if_addrs::Interface::is_loopback);
        if let Some(loopback) = loopback {
            assert!(parse(&loopback.name, "127.0.0.1", 80).expect("it is there").is_loopback());
        }
        let error = parse("ib7", "127.0.0.1", 80).expect_err("no such interface");
        assert!(error.contains("ib7"), "{error}");
    }

    #[test]
    fn networks_stand_for_an_interface() {
        for (own, network, bits, is) in [
            ("10.1.2.3", "10.1.0.0", 16, true),
            ("10.2.2.3", "10.1.0.0", 16, false),
            ("10.1.2.3", "10.1.2.3", 32, true),
            ("10.1.2.3", "10.1.2.2", 32, false),
            ("10.1.2.3", "203.0.113.0", 0, true),
            ("fd00::2", "fd00::", 64, true),
            ("fd00:1::2", "fd00::", 32, false),
            ("fd00::2", "::", 0, true),
            ("10.1.2.3", "::", 0, false),
        ] {
            let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
            assert_eq!(is_in(ip(own), ip(network), bits), is, "{own} {network}/{bits}");
        }
        assert!(parse("127.0.0.0/8", "127.0.0.1", 80).expect("loopback").is_loopback());
        for (text, words) in [
            ("203.0.113.0/24", "no interface here is in the network"),
            ("203.0.113.0/33", "0 to 32 bits"),
            ("fd00::/129", "0 to 128 bits"),
            ("eth0/8", "invalid IP address"),
        ] {
            let error = parse(text, "127.0.0.1", 80).expect_err(text);
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn listeners_at_all_addresses_are_reached_at_one() {
        assert!(unspecified_like("fd00::2", 80).is_ipv6() && unspecified_like("203.0.113.2", 80).is_ipv4());
        assert!(unspecified_like("nonexistent.invalid", 80).is_ipv4());
        for any in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            assert!(local_address(any).is_loopback() && !outside_address(any).is_unspecified());
            assert_eq!(local_address(any).is_ipv4(), any.is_ipv4());
        }
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
        assert!(!own_addresses().is_empty());
    }
}
