//! The program under the launchers that people use, where they are installed, and told to end while it looks for its ranks.

use crate::victims;

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The time limit of a launcher: many times what it needs.
const PATIENCE: Duration = Duration::from_secs(240);

/// A way to start two ranks of a program on this host.
struct Launcher {
    name: &'static str,
    /// A part of a line of `--version`, where two programs have one name.
    version: Option<&'static str>,
    arguments: &'static [&'static str],
}

const LAUNCHERS: &[Launcher] = &[
    Launcher { name: "torchrun", version: None, arguments: &["--no-python", "--nproc_per_node", "2"] },
    // Its default port, which its agent holds as well.
    Launcher {
        name: "torchrun",
        version: None,
        arguments: &["--master_port", "29817", "--no-python", "--nproc_per_node", "2"],
    },
    // As root, and with more ranks than cores, it wants to be told that this is meant.
    Launcher {
        name: "mpirun",
        version: Some("Open MPI"),
        arguments: &["--allow-run-as-root", "--oversubscribe", "-n", "2"],
    },
    Launcher { name: "mpiexec.hydra", version: None, arguments: &["-n", "2"] },
    // Hydra is asked for rank 0's addresses where it says that not all ranks are on this host.
    Launcher { name: "mpiexec.hydra", version: None, arguments: &["-n", "2", "env", "MPI_LOCALNRANKS=1"] },
];

impl Launcher {
    /// Returns true if it is installed and the right one.
    fn is_there(&self) -> bool {
        let Ok(said) = Command::new(self.name).arg("--version").output() else { return false };
        self.version.is_none_or(|words| String::from_utf8_lossy(&said.stdout).contains(words))
    }

    /// Starts a training into `out`, or into a folder that the program chooses.
    fn start(&self, folder: &Path, out: Option<&str>) -> std::process::Child {
        let mut command = Command::new(self.name);
        command.args(self.arguments).arg(env!("CARGO_BIN_EXE_phalanx"));
        command.args(["train", "tiny", "--steps", "2"]).current_dir(folder);
        command.args(out.map(|out| ["--out", out]).into_iter().flatten());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the launcher starts")
    }
}

/// Waits for a process that must end; what it has said on its way.
fn ended(mut child: std::process::Child, patience: Duration) -> Output {
    let mut errors = child.stderr.take().expect("piped");
    let reader = std::thread::spawn(move || {
        let mut said = Vec::new();
        // What was read before an error is told all the same.
        let _ = errors.read_to_end(&mut said);
        said
    });
    let since = Instant::now();
    let status = loop {
        match child.try_wait().expect("a child of this process") {
            Some(status) => break status,
            None if since.elapsed() > patience => {
                child.kill().expect("a child of this process");
                break child.wait().expect("a child of this process");
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    Output { status, stdout: Vec::new(), stderr: reader.join().expect("no panic") }
}

#[test]
fn launchers_on_this_host_train_two_ranks() {
    let folder = tempfile::tempdir().expect("a folder");
    for (number, launcher) in LAUNCHERS.iter().enumerate() {
        if !launcher.is_there() {
            println!("skipped: there is no {} {}", launcher.name, launcher.version.unwrap_or_default());
            continue;
        }
        // Two jobs at a time, but of torchrun with a port of its own, which one agent takes.
        let jobs = if launcher.arguments.contains(&"--master_port") { 1 } else { 2 };
        let place = folder.path().join(number.to_string());
        std::fs::create_dir(&place).expect("a folder");
        // The second one's ranks agree on a folder among themselves.
        let outs = [Some("runs/told"), None];
        let running: Vec<_> = outs[..jobs].iter().map(|out| launcher.start(&place, *out)).collect();
        let what = format!("{} {:?}", launcher.name, launcher.arguments);
        for child in running {
            let output = ended(child, PATIENCE);
            assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
        }
        let runs: Vec<_> =
            std::fs::read_dir(place.join("runs")).expect("runs").filter_map(Result::ok).collect();
        assert_eq!(runs.len(), jobs, "{what}: {runs:?}");
        for run in runs {
            let summary = std::fs::read(run.path().join("summary.json")).expect("a summary");
            let summary: serde_json::Value = serde_json::from_slice(&summary).expect("JSON");
            assert_eq!((&summary["status"], &summary["step"]), (&"finished".into(), &2.into()), "{summary}");
            assert!(run.path().join("logs/rank-1.log").exists(), "{what}: there were two ranks");
        }
        println!("{} {:?}: ok", launcher.name, launcher.arguments);
    }
}

/// A rank of two whose other never comes is told to end.
#[cfg(unix)]
#[test]
fn a_rank_that_looks_for_the_others_ends_when_it_is_told_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("free").local_addr().expect("bound").port();
    for (rank, signal, code, words) in [
        (0, "TERM", 143, "told to end while ranks [1] of 2 were missing"),
        (1, "TERM", 143, "told to end while it looked for rank 0"),
        (0, "INT", 130, "told to end while ranks [1] of 2 were missing"),
    ] {
        let out = format!("run-{rank}-{signal}");
        let child = Command::new(env!("CARGO_BIN_EXE_phalanx"))
            .args(["train", "tiny", "--out", &out])
            .current_dir(folder.path())
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", "2".to_owned())])
            .envs([("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", port.to_string())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("phalanx starts");
        // The log is opened after the program listens for signals, and before it looks for the others.
        let log = folder.path().join(&out).join("logs").join(format!("rank-{rank}.log"));
        let since = Instant::now();
        while !log.exists() {
            assert!(since.elapsed() < Duration::from_secs(60), "no log");
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(300));
        let told = Instant::now();
        let kill = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
        assert!(kill.expect("kill runs").success());
        let output = ended(child, Duration::from_secs(20));
        let took = told.elapsed();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(words) && said.contains("nothing was trained"), "{said}");
        assert!(took < Duration::from_secs(3), "after {took:?}: {said}");
        assert!(!log.with_file_name(format!("rank-{rank}.error.json")).exists(), "it is no failure");
    }
}

/// Pods and requeued jobs are made again by the exit code of their ranks: all of them must have the same.
#[cfg(unix)]
#[test]
fn ranks_that_are_interrupted_say_so_by_their_code() {
    let folder = tempfile::tempdir().expect("a folder");
    let port = std::net::TcpListener::bind("127.0.0.1:0").expect("free").local_addr().expect("bound").port();
    let start = |rank: usize, line: &str| {
        Command::new(env!("CARGO_BIN_EXE_phalanx"))
            .args(line.split(' '))
            .args(["--interrupted-code", "75", "--out", "run"])
            .current_dir(folder.path())
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", "2".to_owned())])
            .envs([("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", port.to_string())])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("phalanx starts")
    };
    let ranks: Vec<_> = (0..2).map(|rank| start(rank, "train tiny --steps 1000000")).collect();
    let (metrics, since) = (folder.path().join("run/metrics.jsonl"), Instant::now());
    while std::fs::read_to_string(&metrics).map_or(0, |text| text.lines().count()) < 2 {
        assert!(since.elapsed() < PATIENCE, "no step");
        std::thread::sleep(Duration::from_millis(10));
    }
    let kill = Command::new("kill").args(["-TERM", &ranks[1].id().to_string()]).status();
    assert!(kill.expect("kill runs").success());
    for rank in ranks {
        let output = ended(rank, PATIENCE);
        assert_eq!(output.status.code(), Some(75), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let step = std::fs::read_to_string(&metrics).expect("lines").lines().count();
    // What comes to its end is no interruption.
    let line = format!("train --resume --steps {}", step + 2);
    let ranks: Vec<_> = (0..2).map(|rank| start(rank, &line)).collect();
    for rank in ranks {
        let output = ended(rank, PATIENCE);
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The agent ends all ranks when one dies, and starts the same command again; a launch of its own is refused the folder.
#[cfg(target_os = "linux")]
#[test]
fn ranks_that_torchrun_starts_again_go_on_with_their_run() {
    let launcher = &LAUNCHERS[0];
    if !launcher.is_there() {
        println!("{} is not installed: nothing to try", launcher.name);
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let start = || {
        let mut command = Command::new(launcher.name);
        command.args(launcher.arguments.iter().filter(|argument| **argument != "--no-python"));
        command.args(["--max-restarts", "1", "--no-python", env!("CARGO_BIN_EXE_phalanx")]);
        command.args(["train", "tiny", "--out", "run"]);
        for set in ["train.steps=150", "checkpoint.every=5", "log.every=1", "chaos.delay=rank=0,ms=20"] {
            command.args(["--set", set]);
        }
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("the launcher starts")
    };
    let metrics = folder.path().join("run/metrics.jsonl");
    let lines = || std::fs::read_to_string(&metrics).map_or(0, |text| text.lines().count());
    let (launched, since) = (start(), Instant::now());
    while lines() < 12 {
        assert!(since.elapsed() < PATIENCE, "no step");
        std::thread::sleep(Duration::from_millis(5));
    }
    victims::kill(victims::ranks_of(&launched)[1]);
    let output = ended(launched, PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let summary = std::fs::read(folder.path().join("run/summary.json")).expect("a summary");
    let summary: serde_json::Value = serde_json::from_slice(&summary).expect("JSON");
    assert_eq!((&summary["status"], &summary["step"], lines()), (&"finished".into(), &150.into(), 150));
    let log = std::fs::read_to_string(folder.path().join("run/logs/rank-0.log")).expect("a log");
    assert!(log.contains("resumes after step"), "{log}");
    let output = ended(start(), PATIENCE);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("already holds a run"), "{said}");
}
