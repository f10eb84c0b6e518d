//! Two hosts on this machine that a slow link joins: network namespaces, and a token bucket at either end.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// The ends of the link.
const ADDRESSES: [&str; 2] = ["10.231.9.1", "10.231.9.2"];

/// Two namespaces. They go when this is dropped.
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
    /// Joins two new namespaces. It takes root, `ip` and `tc`.
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
            // As much as comes in ten milliseconds may go at once, and half a second's may wait.
            let burst = (megabits * 1_000_000 / 8 / 100).max(16 << 10);
            let rate = format!("rate {megabits}mbit burst {burst} latency 500ms");
            run("ip", &format!("netns exec {name} tc qdisc replace dev slow0 root tbf {rate}"))?;
        }
        Ok(())
    }

    /// A command that runs on the host of rank `rank` of two.
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
            // What was not made need not go.
            let _ = run("ip", &format!("netns del {name}"));
        }
    }
}
