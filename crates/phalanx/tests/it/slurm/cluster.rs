//! A SLURM of two nodes on this machine: its controller and two daemons, from the system's packages, in a folder of its own.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Seconds that SLURM gives ranks between the request to end and the end.
pub(crate) const KILL_WAIT: u64 = 6;

/// The time limit for events that should come soon; requeued jobs start after seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// Set where the tests are to fail, and not to be left out, without SLURM.
const WANTED: &str = "PHALANX_TEST_SLURM";

/// Returns the user who runs the tests, and so the daemons.
fn user() -> String {
    let said = Command::new("id").arg("-un").output().expect("id runs");
    String::from_utf8_lossy(&said.stdout).trim().to_owned()
}

/// The cluster, which ends with this.
pub(crate) struct Cluster {
    place: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl Cluster {
    /// Starts it; `None`, with a message, where SLURM is not installed and was not asked for by name.
    pub(crate) fn start() -> Option<Self> {
        let there = |program: &str| {
            let paths = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&paths).chain(["/usr/sbin".into()]).any(|path| path.join(program).is_file())
        };
        if let Some(missing) =
            ["slurmctld", "slurmd", "srun", "sbatch"].into_iter().find(|program| !there(program))
        {
            let problem = format!("{missing} is not installed (Debian: slurmctld slurmd slurm-client)");
            assert!(std::env::var_os(WANTED).is_none(), "{problem}");
            eprintln!("skipped: {problem}");
            return None;
        }
        let place = tempfile::tempdir().expect("a folder");
        let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a name").trim().to_owned();
        let ports: Vec<u16> = {
            let open: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
            open.iter().map(|listener| listener.local_addr().expect("bound").port()).collect()
        };
        let (folder, user) = (place.path().display(), user());
        for part in ["state", "n1", "n2"] {
            fs::create_dir(place.path().join(part)).expect("a folder");
        }
        let text = format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\nSlurmUser={user}\nSlurmdUser={user}\n\
             AuthType=auth/none\nCredType=cred/none\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\n\
             SwitchType=switch/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
             JobAcctGatherType=jobacct_gather/none\nSlurmdParameters=config_overrides\nReturnToService=2\nKillWait={KILL_WAIT}\n\
             StateSaveLocation={folder}/state\nSlurmdSpoolDir={folder}/%n\nSlurmdPidFile={folder}/%n.pid\n\
             SlurmctldPidFile={folder}/ctld.pid\nNodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs=4\n\
             NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs=4\n\
             PartitionName=p Nodes=n1,n2 Default=YES State=UP MaxTime=INFINITE\n",
            ports[0], ports[1], ports[2]
        );
        fs::write(place.path().join("slurm.conf"), text).expect("writes");
        let mut cluster = Self { place, daemons: Vec::new() };
        for (log, words) in [
            ("ctld", vec!["slurmctld", "-D"]),
            ("1", vec!["slurmd", "-D", "-N", "n1"]),
            ("2", vec!["slurmd", "-D", "-N", "n2"]),
        ] {
            let file = fs::File::create(cluster.path(&format!("{log}.log"))).expect("creates");
            let mut command = cluster.command(words[0]);
            command.args(&words[1..]).stdin(Stdio::null()).stderr(file).stdout(Stdio::null());
            cluster.daemons.push(command.spawn().expect("a daemon"));
        }
        cluster.wait("both nodes to be idle", || cluster.are_idle());
        Some(cluster)
    }

    /// Returns true if both nodes wait for jobs.
    pub(crate) fn are_idle(&self) -> bool {
        self.ask("sinfo", &["--noheader", "--format=%D %t"]).is_some_and(|said| said.trim() == "2 idle")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// A program that finds the cluster, in its folder.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("SLURM_CONF", self.path("slurm.conf")).env("PATH", format!("{path}:/usr/sbin"));
        command.env("CANDLE_NUM_THREADS", "1").current_dir(self.place.path());
        command
    }

    /// Returns the output of a program of SLURM, if it succeeds.
    pub(crate) fn ask(&self, program: &str, arguments: &[&str]) -> Option<String> {
        let output = self.command(program).args(arguments).output().expect("starts");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    pub(crate) fn phalanx(&self, line: &str) -> Output {
        let mut command = self.command(env!("CARGO_BIN_EXE_phalanx"));
        command.args(line.split(' ').filter(|word| !word.is_empty())).output().expect("phalanx starts")
    }

    /// Returns the output of a command that must succeed.
    pub(crate) fn succeed(&self, line: &str) -> String {
        let output = self.phalanx(line);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{line}: {out}\n{err}");
        out.into_owned()
    }

    /// Waits until something holds.
    pub(crate) fn wait(&self, what: &str, holds: impl Fn() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < PATIENCE, "waited too long for {what}; {}", self.state());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The queue, the nodes, and what jobs have said, for a failure's message.
    fn state(&self) -> String {
        let mut said = self.ask("squeue", &[]).unwrap_or_default();
        said.push_str(&self.ask("sinfo", &["-N"]).unwrap_or_default());
        for entry in fs::read_dir(self.place.path()).expect("reads").flatten() {
            for log in fs::read_dir(entry.path().join("logs")).into_iter().flatten().flatten() {
                let text = fs::read_to_string(log.path()).unwrap_or_default();
                let tail: Vec<&str> = text.lines().rev().take(5).collect();
                said.push_str(&format!("\n{}: {tail:?}", log.path().display()));
            }
        }
        said
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let _ = self.ask("scancel", &[&format!("--user={}", user()), "--signal=KILL", "--full"]);
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// A word of a run's summary.
pub(crate) fn summary(run: &Path, key: &str) -> serde_json::Value {
    let text = fs::read_to_string(run.join("summary.json")).unwrap_or_else(|_| "{}".to_owned());
    serde_json::from_str::<serde_json::Value>(&text)
        .map_or(serde_json::Value::Null, |summary| summary[key].clone())
}
