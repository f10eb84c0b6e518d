//! The system's account of this process: CPU time, memory, disks, page faults.

use std::path::Path;

use serde::{Deserialize, Serialize};

use phalanx_run::resident_memory;

/// The resources that this process has used since it began, and its memory. Unknown values are missing; all are without
/// `/proc`, which Linux has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessUsage {
    /// CPU seconds of its threads, system time included.
    pub cpu_seconds: Option<f64>,
    /// Bytes of memory that it holds now.
    pub resident_bytes: Option<u64>,
    /// Page faults that the system answered without a disk.
    pub minor_faults: Option<u64>,
    /// Page faults that waited for a disk.
    pub major_faults: Option<u64>,
    /// Bytes that came from a disk for it; those that lay in memory already are not among them.
    pub disk_read_bytes: Option<u64>,
    /// Bytes that are on their way to a disk for it.
    pub disk_written_bytes: Option<u64>,
}

impl ProcessUsage {
    /// Reads the account of this process, now.
    pub fn now() -> Self {
        let (cpu_seconds, resident_bytes) = (cpu_seconds(), resident_memory());
        Self { cpu_seconds, resident_bytes, ..Self::of(Path::new("/proc/self")) }
    }

    /// Returns the use since an earlier reading; the memory is that of now.
    pub fn since(&self, before: &Self) -> Self {
        let count = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Self {
            cpu_seconds: self.cpu_seconds.zip(before.cpu_seconds).map(|(now, before)| now - before),
            resident_bytes: self.resident_bytes,
            minor_faults: count(self.minor_faults, before.minor_faults),
            major_faults: count(self.major_faults, before.major_faults),
            disk_read_bytes: count(self.disk_read_bytes, before.disk_read_bytes),
            disk_written_bytes: count(self.disk_written_bytes, before.disk_written_bytes),
        }
    }

    /// Page faults and bytes of disks of the process whose folder in `/proc` this is.
    pub(crate) fn of(folder: &Path) -> Self {
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        let (stat, io) = (read("stat"), read("io"));
        // The second field is the program's name, in brackets that it may itself contain.
        let fields: Vec<&str> =
            stat.rsplit_once(')').map_or_else(Vec::new, |(_, rest)| rest.split_whitespace().collect());
        // Numbered as in proc(5); the third field is the first here.
        let field = |number: usize| fields.get(number - 3)?.parse().ok();
        let line = |name: &str| io.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok();
        Self {
            minor_faults: field(10),
            major_faults: field(12),
            disk_read_bytes: line("read_bytes:"),
            disk_written_bytes: line("write_bytes:"),
            ..Self::default()
        }
    }
}

/// Reads the CPU seconds of this process.
#[cfg(unix)]
fn cpu_seconds() -> Option<f64> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}

#[cfg(not(unix))]
fn cpu_seconds() -> Option<f64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn what_this_process_uses_is_told_and_grows() {
        let before = ProcessUsage::now();
        // Computing, memory that is written to, and a file that reaches the disk.
        let mut pages = vec![0_u8; 64 << 20];
        let start = std::time::Instant::now();
        let mut sum = 0_u64;
        while start.elapsed() < std::time::Duration::from_millis(60) {
            pages.iter_mut().step_by(4096).for_each(|byte| *byte = byte.wrapping_add(1));
            sum += pages.iter().step_by(512).map(|byte| u64::from(*byte)).sum::<u64>();
        }
        assert!(sum > 0);
        let after = ProcessUsage::now();
        let grown = |of: fn(&ProcessUsage) -> Option<u64>| {
            let (before, after) = (of(&before).expect("a part"), of(&after).expect("a part"));
            after.checked_sub(before).expect("counts do not fall")
        };
        assert!(after.cpu_seconds.expect("a part") >= before.cpu_seconds.expect("a part") + 0.02);
        assert!(grown(|usage| usage.minor_faults) >= 1000, "each page faults once");
        assert!(after.resident_bytes.expect("a part") > 64 << 20);
        assert!(after.major_faults.is_some());
    }

    #[test]
    fn fields_are_found_behind_any_name_of_a_program() {
        let folder = tempfile::tempdir().expect("a folder");
        let stat =
            "7 (a) b (c) R 1 2 3 4 5 6 100 0 3 0 250 150 0 0 20 0 4 0 9 123456 77 18446744073709551615";
        std::fs::write(folder.path().join("stat"), stat).expect("writes");
        std::fs::write(folder.path().join("io"), "rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\n")
            .expect("writes");
        let usage = ProcessUsage::of(folder.path());
        assert_eq!((usage.minor_faults, usage.major_faults), (Some(100), Some(3)));
        assert_eq!((usage.disk_read_bytes, usage.disk_written_bytes), (Some(4096), Some(8192)));
        assert_eq!(ProcessUsage::of(Path::new("/nowhere")), ProcessUsage::default());
    }
}
