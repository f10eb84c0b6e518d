//! The energy of the CPUs and the memory of a host, by the CPUs' counters (RAPL, Linux's `powercap`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The variable that names another folder with the counters than Linux's.
pub const FOLDER_VARIABLE: &str = "PHALANX_POWERCAP";

/// Where Linux has the counters.
const FOLDER: &str = "/sys/class/powercap";

/// The reason why the energy of the CPUs cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum PowercapError {
    /// The system offers no counters, as most virtual machines do.
    #[error("there is no counter of a CPU package in {}", .0.display())]
    None(PathBuf),
    /// A counter cannot be read; root may.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The counter's file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A counter is no number.
    #[error("{} holds `{text}`, which is no count of microjoules", path.display())]
    Malformed {
        /// The counter's file.
        path: PathBuf,
        /// The contents.
        text: String,
    },
}

/// One counter, which begins again at 0 when it comes to its end.
#[derive(Debug)]
struct Counter {
    file: PathBuf,
    /// Microjoules after which it begins again.
    range: u64,
    last: u64,
}

impl Counter {
    fn open(folder: &Path) -> Result<Self, PowercapError> {
        let (file, range) = (folder.join("energy_uj"), number(&folder.join("max_energy_range_uj"))?);
        let last = number(&file)?;
        Ok(Self { file, range, last })
    }

    /// Microjoules since the last call, if it has not begun again more than once.
    fn step(&mut self) -> Result<u64, PowercapError> {
        let now = number(&self.file)?;
        let since = match now.checked_sub(self.last) {
            Some(since) => since,
            None => self.range.saturating_sub(self.last) + now,
        };
        self.last = now;
        Ok(since)
    }
}

fn number(path: &Path) -> Result<u64, PowercapError> {
    let text =
        fs::read_to_string(path).map_err(|source| PowercapError::Io { path: path.to_owned(), source })?;
    let text = text.trim();
    text.parse().map_err(|_| PowercapError::Malformed { path: path.to_owned(), text: text.to_owned() })
}

/// The counters of all CPU packages of this host, and of their memory where that is counted apart.
///
/// A package counts its cores and its uncore parts (`package-0`); memory of servers is counted apart (`dram`). Counters
/// of parts of a package, and of the whole board (`psys`), would count the same energy twice and are left out.
#[derive(Debug)]
pub struct Powercap {
    counters: Vec<Counter>,
    microjoules: u64,
}

impl Powercap {
    /// Opens the counters of this host, from now on; in the folder that [`FOLDER_VARIABLE`] names, if it is set.
    ///
    /// # Errors
    /// [`PowercapError`], which says why there is nothing to measure by.
    pub fn of_host() -> Result<Self, PowercapError> {
        let folder = std::env::var_os(FOLDER_VARIABLE).map_or_else(|| PathBuf::from(FOLDER), PathBuf::from);
        Self::open(&folder)
    }

    /// Opens the counters in a folder, from now on.
    ///
    /// # Errors
    /// [`PowercapError`].
    pub fn open(folder: &Path) -> Result<Self, PowercapError> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut zones: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        zones.sort();
        let counts = |zone: &PathBuf| {
            let file = zone.file_name().unwrap_or_default().to_string_lossy();
            let Some(place) = file.strip_prefix("intel-rapl:") else { return false };
            let name = fs::read_to_string(zone.join("name")).unwrap_or_default();
            match place.contains(':') {
                false => name.starts_with("package"),
                true => name.trim() == "dram",
            }
        };
        zones.retain(counts);
        if zones.is_empty() {
            return Err(PowercapError::None(folder.to_owned()));
        }
        let counters = zones.iter().map(|zone| Counter::open(zone)).collect::<Result<_, _>>()?;
        Ok(Self { counters, microjoules: 0 })
    }

    /// Joules since the counters were opened. A counter begins again after minutes at most of full power, so this must be
    /// called every minute.
    ///
    /// # Errors
    /// [`PowercapError`], if a counter can no longer be read.
    pub fn joules(&mut self) -> Result<f64, PowercapError> {
        for counter in &mut self.counters {
            self.microjoules = self.microjoules.saturating_add(counter.step()?);
        }
        Ok(self.microjoules as f64 * 1e-6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(folder: &Path, zone: &str, name: &str, energy: u64, range: u64) {
        let zone = folder.join(zone);
        fs::create_dir_all(&zone).expect("a folder");
        fs::write(zone.join("name"), format!("{name}\n")).expect("writes");
        fs::write(zone.join("energy_uj"), format!("{energy}\n")).expect("writes");
        fs::write(zone.join("max_energy_range_uj"), format!("{range}\n")).expect("writes");
    }

    #[test]
    fn packages_and_their_memory_count_once_and_counters_begin_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let place = folder.path();
        let begin = |package: u64, memory: u64| {
            zone(place, "intel-rapl:0", "package-0", package, 262_143_328_850);
            zone(place, "intel-rapl:0:0", "core", 9_999_999_999, 262_143_328_850);
            zone(place, "intel-rapl:0:1", "dram", memory, 65_712_999_613);
            zone(place, "intel-rapl:1", "psys", 1, 262_143_328_850);
            zone(place, "intel-rapl-mmio:0", "package-0", package, 262_143_328_850);
        };
        begin(262_143_000_000, 5_000_000);
        let mut counters = Powercap::open(place).expect("counters");
        assert!((counters.joules().expect("reads") - 0.0).abs() < 1e-9);
        begin(262_143_328_000, 6_500_000);
        assert!((counters.joules().expect("reads") - (0.328 + 1.5)).abs() < 1e-9);
        // The package's counter has passed its end: 850 microjoules up to it, and 2 J after it.
        begin(2_000_000, 6_500_000);
        assert!((counters.joules().expect("reads") - (1.828 + 0.00085 + 2.0)).abs() < 1e-9);
    }

    #[test]
    fn what_is_not_there_or_not_readable_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = Powercap::open(folder.path()).expect_err("nothing is there").to_string();
        assert!(error.starts_with("there is no counter of a CPU package in"), "{error}");
        zone(folder.path(), "intel-rapl:0", "package-0", 1, 10);
        fs::write(folder.path().join("intel-rapl:0/energy_uj"), "much").expect("writes");
        let error = Powercap::open(folder.path()).expect_err("no number").to_string();
        assert!(error.ends_with("holds `much`, which is no count of microjoules"), "{error}");
        fs::remove_file(folder.path().join("intel-rapl:0/energy_uj")).expect("removes");
        let error = Powercap::open(folder.path()).expect_err("no file").to_string();
        assert!(error.starts_with("cannot read"), "{error}");
    }
}
