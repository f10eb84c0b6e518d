//! Cores on Linux: of the host, of a thread, and near a device.

use std::path::Path;
use std::{fs, io};

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

/// Returns the cores that this thread may run on, grouped by package and by physical core.
pub(super) fn allowed() -> Vec<usize> {
    let Ok(set) = sched_getaffinity(None) else { return Vec::new() };
    let mut cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
    cores.sort_by_key(|core| (topology(*core, "physical_package_id"), topology(*core, "core_id"), *core));
    cores
}

fn topology(core: usize, name: &str) -> usize {
    let file = format!("/sys/devices/system/cpu/cpu{core}/topology/{name}");
    fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Returns the number of cores of the host.
pub(super) fn cores() -> usize {
    match listed(Path::new("/sys/devices/system/cpu/online")).len() {
        0 => allowed().len(),
        cores => cores,
    }
}

/// Returns the cores of the NUMA node of a PCI device, by its address (`0000:c1:00.0`); none if they are not known.
pub(super) fn near(address: &str) -> Vec<usize> {
    listed(&Path::new("/sys/bus/pci/devices").join(address).join("local_cpulist"))
}

/// Reads the numbers of a file of ranges, such as `0-3,8`; none if it cannot be read.
pub(crate) fn listed(file: &Path) -> Vec<usize> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        // The system has no core with a higher number.
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?.min(CpuSet::MAX_CPU - 1))
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

/// Binds all threads of this process to cores, or only this thread if ranks are threads. New threads inherit it.
pub(super) fn bind(cores: &[usize], are_threads: bool) -> io::Result<()> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    if are_threads {
        return Ok(sched_setaffinity(None, &set)?);
    }
    for thread in fs::read_dir("/proc/self/task")?.flatten() {
        let number = thread.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some(thread) = number.and_then(Pid::from_raw) {
            match sched_setaffinity(Some(thread), &set) {
                // The thread has ended.
                Err(rustix::io::Errno::SRCH) | Ok(()) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_cores_are_read_as_the_kernel_writes_them() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        for (text, cores) in [
            ("0-3,8,10-11\n", vec![0, 1, 2, 3, 8, 10, 11]),
            ("5\n", vec![5]),
            ("\n", Vec::new()),
            ("what", Vec::new()),
        ] {
            fs::write(file.path(), text).expect("writes");
            assert_eq!(listed(file.path()), cores, "{text:?}");
        }
        assert_eq!(near("ffff:ff:1f.7"), Vec::<usize>::new());
        assert!(cores() >= allowed().len());
    }
}
