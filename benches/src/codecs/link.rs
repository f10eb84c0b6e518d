//! Two hosts on this machine with a slow link: network namespaces, with a token bucket at either end.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// The ends of the link.
const ADDRESSES: [&str; 2] = ["10.231.9.1", "10.231.9.2"];

/// Two network namespaces. They are removed on drop.
#[derive(Debug)]
pub(super) struct Link {
    names: [String; 2],
}

fn run(program: &str, words: &str) -> Result<()> {
    let output = Command::new(program)
        .args(words.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    ensure!(output.status.success(), "`{program} {words}`: {said}");
    Ok(())
}

impl Link {
    /// Connects two new namespaces. Needs root, `ip` and `tc`.
    pub(super) fn new() -> Result<Self> {
        let id = std::process::id() % 100_000;
        let link = Self { names: ["a", "b"].map(|end| format!("phxc{id}{end}")) };
        let [first, second] = &link.names;
        for name in &link.names {
            run("ip", &format!("netns add {name}"))?;
            run("ip", &format!("-n {name} link set lo up"))?;
        }
        run("ip", &format!("link add slow0 netns {first} type veth peer name slow0 netns {second}"))?;
        for (name, address) in link.names.iter().zip(ADDRESSES) {
            run("ip", &format!("-n {name} addr add {address}/24 dev slow0"))?;
            run("ip", &format!("-n {name} link set slow0 up"))?;
        }
        Ok(link)
    }

    /// Limits each direction to a number of megabits a second.
    pub(super) fn limit(&self, megabits: u64) -> Result<()> {
        for name in &self.names {
            // Bursts of 10 ms are sent at once; the queue holds half a second.
            let burst = (megabits * 1_000_000 / 8 / 100).max(16 << 10);
            let rate = format!("rate {megabits}mbit burst {burst} latency 500ms");
            run("ip", &format!("netns exec {name} tc qdisc replace dev slow0 root tbf {rate}"))?;
        }
        Ok(())
    }

    /// Returns a command that runs on the host of `rank`, 0 or 1.
    pub(super) fn command(&self, rank: usize) -> Result<Command> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[rank]]).arg(std::env::current_exe()?);
        command
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", "2".to_owned())])
            .envs([("MASTER_ADDR", ADDRESSES[0]), ("MASTER_PORT", "29517"), ("PHALANX_INTERFACE", "slow0")])
            .env("PHALANX_HOST", format!("host {rank}"));
        Ok(command)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for name in &self.names {
            // An error means that the namespace was never created.
            let _ = run("ip", &format!("netns del {name}"));
        }
    }
}
