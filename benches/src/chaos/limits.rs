//! Limits of another process's resources.

use anyhow::Result;

/// Lets this process open as many connections as the system allows. Without it there are fewer strangers.
pub(crate) fn raise_descriptors() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// Lets a process open at most `more` further files and connections. A process that has ended is not an error.
#[cfg(target_os = "linux")]
pub(crate) fn limit_descriptors(process: u32, more: u64) -> Result<()> {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().count() as u64;
    limit(process, rustix::process::Resource::Nofile, open + more)
}

/// Lets a process write no file beyond a size in bytes. A process that has ended is not an error.
#[cfg(target_os = "linux")]
pub(crate) fn limit_files(process: u32, bytes: u64) -> Result<()> {
    limit(process, rustix::process::Resource::Fsize, bytes)
}

#[cfg(target_os = "linux")]
fn limit(process: u32, resource: rustix::process::Resource, most: u64) -> Result<()> {
    use anyhow::Context as _;
    use rustix::io::Errno;
    use rustix::process::{Pid, Rlimit, prlimit};

    let Some(id) = i32::try_from(process).ok().and_then(Pid::from_raw) else { return Ok(()) };
    // The upper limit too, as only a privileged process may raise it again.
    let limit = Rlimit { current: Some(most), maximum: Some(most) };
    match prlimit(Some(id), resource, limit) {
        Ok(_) | Err(Errno::SRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("cannot limit process {process}")),
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn limit_descriptors(_: u32, _: u64) -> Result<()> {
    anyhow::bail!("descriptors of other processes are limited on Linux alone")
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn limit_files(_: u32, _: u64) -> Result<()> {
    anyhow::bail!("files of other processes are limited on Linux alone")
}
