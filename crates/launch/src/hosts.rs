//! Which hosts ranks are started on, and how many on each: `a:4,b:4`, or a host file as `mpirun` has.

use std::path::Path;

/// The most ranks of a host.
const MOST_RANKS: usize = 1 << 16;

/// Hosts in the order of their ranks, with how many ranks each has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts(Vec<(String, usize)>);

/// Why hosts cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostsError {
    /// The file cannot be read.
    #[error("--hosts {file}: cannot read the host file: {source}")]
    File {
        /// The file.
        file: String,
        /// Why not.
        source: std::io::Error,
    },
    /// An entry is no host.
    #[error(
        "--hosts: `{entry}` is no host with a number of ranks, such as node1:4, node1 slots=4, or [fe80::1]:4"
    )]
    Entry {
        /// The entry.
        entry: String,
    },
    /// A host is named twice.
    #[error("--hosts names {host} twice; give it once, with all of its ranks")]
    Twice {
        /// The host.
        host: String,
    },
    /// There is no host.
    #[error("--hosts names no host")]
    None,
}

impl Hosts {
    /// Reads `a:4,b:4`, or, if there is a file of that name, its lines: `a:4`, `a slots=4`, or `a` for one rank; what follows `#` is a
    /// comment.
    ///
    /// # Errors
    /// [`HostsError`].
    pub fn read(text: &str) -> Result<Self, HostsError> {
        match Path::new(text).is_file() {
            true => {
                let lines = std::fs::read_to_string(text)
                    .map_err(|source| HostsError::File { file: text.to_owned(), source })?;
                Self::parse(lines.lines().map(|line| line.split('#').next().unwrap_or_default()))
            }
            false => Self::parse(text.split(',')),
        }
    }

    fn parse<'a>(entries: impl Iterator<Item = &'a str>) -> Result<Self, HostsError> {
        let mut hosts: Vec<(String, usize)> = Vec::new();
        for entry in entries.map(str::trim).filter(|entry| !entry.is_empty()) {
            let wrong = || HostsError::Entry { entry: entry.to_owned() };
            let (host, ranks) = host_of(entry).ok_or_else(wrong)?;
            // An option to ssh would be no host.
            let is_name = !host.is_empty() && !host.starts_with('-') && !host.contains(char::is_whitespace);
            if !is_name || !(1..=MOST_RANKS).contains(&ranks) {
                return Err(wrong());
            }
            if hosts.iter().any(|(known, _)| *known == host) {
                return Err(HostsError::Twice { host });
            }
            hosts.push((host, ranks));
        }
        if hosts.is_empty() { Err(HostsError::None) } else { Ok(Self(hosts)) }
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.0.iter().map(|(_, ranks)| ranks).sum()
    }

    /// The hosts: as ssh knows each, its first rank, and how many it has.
    pub fn places(&self) -> impl Iterator<Item = (&str, usize, usize)> {
        self.0.iter().scan(0, |next, (host, ranks)| {
            let first = *next;
            *next += ranks;
            Some((host.as_str(), first, *ranks))
        })
    }

    /// Where ranks find rank 0, unless they are told otherwise: the first host, without the user's name that ssh may want.
    pub fn master(&self) -> &str {
        let first = self.0.first().map_or("", |(host, _)| host);
        first.rsplit_once('@').map_or(first, |(_, host)| host)
    }
}

/// The host of an entry, as ssh knows it, and its ranks.
fn host_of(entry: &str) -> Option<(String, usize)> {
    let mut words = entry.split_whitespace();
    let (first, rest) = (words.next()?, words.collect::<Vec<_>>());
    match rest.as_slice() {
        [slots] => Some((bare(first), slots.strip_prefix("slots=")?.parse().ok()?)),
        [] => match first.rsplit_once(':') {
            // An address of IPv6 stands in brackets if a number of ranks follows.
            Some((host, ranks)) if !host.contains(':') || host.ends_with(']') => {
                Some((bare(host), ranks.parse().ok()?))
            }
            _ => Some((bare(first), 1)),
        },
        _ => None,
    }
}

/// A host without the brackets around an address of IPv6, which ssh takes for a part of a name; a user may stand before it.
fn bare(host: &str) -> String {
    let (user, host) =
        host.rsplit_once('@').map_or(("", host), |(user, name)| (&host[..user.len() + 1], name));
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    format!("{user}{bare}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_host_files_are_read_or_refused() {
        let hosts = Hosts::read("me@a:4, b:2,c").expect("three hosts");
        assert_eq!(hosts.places().collect::<Vec<_>>(), [("me@a", 0, 4), ("b", 4, 2), ("c", 6, 1)]);
        assert_eq!((hosts.ranks(), hosts.master()), (7, "a"));
        let six = Hosts::read("[fe80::1]:3,fe80::2").expect("two hosts");
        assert_eq!(six.places().collect::<Vec<_>>(), [("fe80::1", 0, 3), ("fe80::2", 3, 1)]);
        let six = Hosts::read("me@[fd00::1]:4,[me@x]:2").expect("two hosts");
        assert_eq!(six.places().collect::<Vec<_>>(), [("me@fd00::1", 0, 4), ("[me@x]", 4, 2)]);
        assert_eq!(six.master(), "fd00::1");
        let place = tempfile::tempdir().expect("a folder");
        let file = place.path().join("hosts");
        std::fs::write(&file, "# two nodes\nnode1 slots=4\n\nnode2:2  # the old one\n").expect("writes");
        let read = Hosts::read(&file.display().to_string()).expect("two hosts");
        assert_eq!(read.places().collect::<Vec<_>>(), [("node1", 0, 4), ("node2", 4, 2)]);
        for (text, problem) in [
            ("", "names no host"),
            ("a:x", "no host"),
            ("a:0", "no host"),
            ("a:65537,b:1", "no host"),
            ("-oProxyCommand=x:1", "no host"),
            ("a b c", "no host"),
            ("a:1,a:2", "twice"),
        ] {
            let error = Hosts::read(text).expect_err("it is none").to_string();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
