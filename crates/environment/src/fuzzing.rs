//! Readers of what launchers say, for the fuzzer of this workspace. Each accepts any bytes, must not panic, and asserts its
//! invariants.

use crate::pmi::parse_answers;
use crate::scontrol::parse_node_address;
use crate::{Queries, RankInfo};

/// Reads variables of launchers, one `NAME=value` per line, and the answers of launcher queries.
pub fn launchers(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let get = |name: &str| {
        text.lines()
            .find_map(|line| line.split_once('=').filter(|found| found.0 == name))
            .map(|found| found.1.to_owned())
    };
    let pmi = |rank, _| parse_answers(get("PMI").unwrap_or_default().replace('|', "\n").as_bytes(), rank);
    let node = |node: &str| parse_node_address(&text).unwrap_or_else(|| node.to_owned());
    let _ = RankInfo::read(&get, &Queries { pmi: &pmi, node_address: &node });
}

/// Parses answers of a launcher's PMI server.
pub fn pmi(bytes: &[u8]) {
    for rank in [0, 3] {
        if let Ok(told) = parse_answers(bytes, rank) {
            assert!(told.job.starts_with("mpiexec "));
        }
    }
}

#[cfg(test)]
mod tests {
    use phalanx_fuzz_harness::{Reader, check};

    #[test]
    fn readers_hold_their_limits() {
        type NamedReader = (&'static str, fn(&[u8]));
        let readers: [NamedReader; 2] = [("launchers", super::launchers), ("pmi", super::pmi)];
        for (name, read) in readers {
            check(Reader { name, read, memory: 48 << 20 }, Vec::new(), 200, |_, _| false);
        }
    }
}
