//! The program under the launchers that people use, where they are installed, and told to end while it looks for its ranks.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::place::free_port;
use crate::harness::processes::{PATIENCE, ended, kill, ranks_of, signal, wait_until};
use crate::harness::results::{json, lines, log};
use crate::harness::{PROGRAM, Place, Running, side_by_side, stderr};

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
    fn start(&self, folder: &Path, out: Option<&str>) -> Child {
        let mut command = Command::new(self.name);
        command.args(self.arguments).arg(PROGRAM);
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

#[test]
fn launchers_on_this_host_train_two_ranks() {
    let place = Place::new();
    for (number, launcher) in LAUNCHERS.iter().enumerate() {
        if !launcher.is_there() {
            println!("skipped: there is no {} {}", launcher.name, launcher.version.unwrap_or_default());
            continue;
        }
        // Two jobs at a time, but of torchrun with a port of its own, which one agent takes.
        let jobs = if launcher.arguments.contains(&"--master_port") { 1 } else { 2 };
        let folder = place.path(&number.to_string());
        std::fs::create_dir(&folder).expect("a folder");
        // The second one's ranks agree on a folder among themselves.
        let outs = [Some("runs/told"), None];
        let running: Vec<_> = outs[..jobs].iter().map(|out| launcher.start(&folder, *out)).collect();
        let what = format!("{} {:?}", launcher.name, launcher.arguments);
        for child in running {
            let output = ended(child, PATIENCE);
            assert!(output.status.success(), "{what}: {}", stderr(&output));
        }
        let runs: Vec<_> =
            std::fs::read_dir(folder.join("runs")).expect("runs").filter_map(Result::ok).collect();
        assert_eq!(runs.len(), jobs, "{what}: {runs:?}");
        for run in runs {
            let summary = json(&run.path().join("summary.json"));
            assert_eq!((&summary["status"], &summary["step"]), (&"finished".into(), &2.into()), "{summary}");
            assert!(run.path().join("logs/rank-1.log").exists(), "{what}: there were two ranks");
        }
        println!("{} {:?}: ok", launcher.name, launcher.arguments);
    }
}

/// A rank of two, as a launcher without agents starts it.
#[cfg(unix)]
fn rank_of_two(place: &Place, rank: usize, port: u16, line: &str) -> Command {
    let mut command = place.command(line);
    command.envs([("RANK", rank.to_string()), ("WORLD_SIZE", "2".to_owned())]);
    command.envs([("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", port.to_string())]);
    command
}

/// A rank of two whose other never comes is told to end.
#[cfg(unix)]
#[test]
fn a_rank_that_looks_for_the_others_ends_when_it_is_told_to() {
    let place = Place::new();
    side_by_side(
        [
            (0, "TERM", 143, "told to end while ranks [1] of 2 were missing"),
            (1, "TERM", 143, "told to end while it looked for rank 0"),
            (0, "INT", 130, "told to end while ranks [1] of 2 were missing"),
        ],
        |(rank, name, code, words)| {
            let out = format!("run-{rank}-{name}");
            let command = rank_of_two(&place, rank, free_port(), &format!("train tiny --out {out}"));
            let running = Running::spawn(place.path(&out), command);
            // The log is opened after the program listens for signals, and before it looks for the others.
            let log = place.path(&out).join(format!("logs/rank-{rank}.log"));
            wait_until("log", String::new, || log.exists());
            std::thread::sleep(Duration::from_millis(300));
            let told = Instant::now();
            running.signal(&format!("-{name}"));
            let end = running.end();
            let took = told.elapsed();
            assert_eq!(end.code, Some(code), "{end:?}");
            assert!(end.stderr.contains(words) && end.stderr.contains("nothing was trained"), "{end:?}");
            assert!(took < Duration::from_secs(3), "after {took:?}: {end:?}");
            assert!(!log.with_file_name(format!("rank-{rank}.error.json")).exists(), "it is no failure");
        },
    );
}

/// Missing ranks are named after seconds, in the log and on the terminal, not when the time is up.
#[cfg(unix)]
#[test]
fn missing_ranks_are_named_while_one_waits() {
    let place = Place::new();
    let cases = [(0, "waits for rank 1 of 2 at 127.0.0.1:"), (1, "waits for rank 0 at 127.0.0.1:")];
    side_by_side(cases, |(rank, words)| {
        let out = format!("run-{rank}");
        let mut command = rank_of_two(&place, rank, free_port(), &format!("train tiny --out {out}"));
        command.env("LOCAL_RANK", "0");
        let run = place.path(&out);
        let running = Running::spawn(run.clone(), command);
        let log_file = run.join(format!("logs/rank-{rank}.log"));
        let logged = || std::fs::read_to_string(&log_file).is_ok_and(|log| log.contains(words));
        wait_until("name", String::new, logged);
        running.signal("-TERM");
        let end = running.end();
        assert!(end.stderr.contains(&format!("rank {rank} {words}")), "{end:?}");
    });
}

/// Ranks that other hosts can reach need a secret under every launcher, and are refused before anything is written.
#[cfg(unix)]
#[test]
fn worlds_on_a_network_need_a_secret() {
    let place = Place::new();
    let launchers: [&[(&str, &str)]; 4] = [
        &[("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")],
        &[
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
        ],
        &[
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_PROCID", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NODEID", "0"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_STEP_NODELIST", "n[1-2]"),
            ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
        ],
        // Ranks of one host that a user has put on a network.
        &[
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("LOCAL_RANK", "0"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("PHALANX_INTERFACE", "0.0.0.0"),
        ],
    ];
    for launcher in launchers {
        let mut command = place.command("train tiny --out refused");
        command.envs(launcher.iter().copied()).envs([("MASTER_ADDR", "192.0.2.1"), ("MASTER_PORT", "29876")]);
        let output = command.output().expect("phalanx starts");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{launcher:?}: {said}");
        assert!(said.contains("PHALANX_SECRET_FILE=") && said.contains("comm.secret=none"), "{said}");
        assert!(!place.path("refused").exists(), "what is refused changes nothing");
    }
    let said =
        place.fail_with(2, "train tiny --nnodes 2 --node-rank 0 --master-addr 192.0.2.1 --out refused");
    assert!(
        said.contains("--nnodes 2: other hosts can connect") && !place.path("refused").exists(),
        "{said}"
    );
    let kubernetes = "submit tiny --kubernetes --dry-run --image x --volume-claim c --nodes 2 --out run";
    let said = place.fail_with(2, kubernetes);
    assert!(said.contains("--secret NAME"), "{said}");
    assert!(place.succeed(&format!("{kubernetes} --secret s")).contains("secretName: \"s\""));
    place.succeed(&format!("{kubernetes} --set comm.secret=none"));
    // On a trusted network, or with a secret, the same ranks train.
    let secret = place.secret(0o600);
    side_by_side([true, false], |trusts| {
        let (out, port) = (format!("run-{trusts}"), free_port());
        let line = format!(
            "train tiny --steps 2 --out {out}{}",
            if trusts { " --set comm.secret=none" } else { "" }
        );
        let rank = |rank: usize| {
            let mut command = rank_of_two(&place, rank, port, &line);
            command.env("PHALANX_INTERFACE", "0.0.0.0");
            if !trusts {
                command.env("PHALANX_SECRET_FILE", &secret);
            }
            command
        };
        let mut running = Running::spawn(place.path(&out), rank(0));
        running.add(rank(1));
        let ends = running.end_all();
        assert!(ends.iter().all(|end| end.code == Some(0)), "{ends:?}");
    });
}

/// Pods and requeued jobs are made again by the exit code of their ranks: all of them must have the same.
#[cfg(unix)]
#[test]
fn ranks_that_are_interrupted_say_so_by_their_code() {
    let place = Place::new();
    let port = free_port();
    let start = |line: &str| {
        let line = format!("{line} --interrupted-code 75 --out run");
        let mut running = Running::spawn(place.path("run"), rank_of_two(&place, 0, port, &line));
        running.add(rank_of_two(&place, 1, port, &line));
        running
    };
    let codes = |running: Running| running.end_all().iter().map(|end| end.code).collect::<Vec<_>>();
    let mut ranks = start("train tiny --set log.every=1 --steps 1000000");
    let run = ranks.run.clone();
    ranks.wait_for_step(2);
    signal("-TERM", ranks.process(1).id());
    assert_eq!(codes(ranks), [Some(75), Some(75)]);
    // What comes to its end is no interruption.
    let line = format!("train --resume --steps {}", lines(&run).len() + 2);
    assert_eq!(codes(start(&line)), [Some(0), Some(0)]);
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
    let place = Place::new();
    let start = || {
        let mut command = Command::new(launcher.name);
        command.args(launcher.arguments.iter().filter(|argument| **argument != "--no-python"));
        command.args(["--max-restarts", "1", "--no-python", PROGRAM]);
        command.args(["train", "tiny", "--out", "run"]);
        for set in ["train.steps=150", "checkpoint.every=5", "log.every=1", "chaos.delay=rank=0,ms=20"] {
            command.args(["--set", set]);
        }
        command.current_dir(place.folder()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.spawn().expect("the launcher starts")
    };
    let run = place.path("run");
    let launched = start();
    wait_until("step 12", String::new, || lines(&run).len() >= 12);
    kill(ranks_of(&launched)[1]);
    let output = ended(launched, PATIENCE);
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    let summary = json(&run.join("summary.json"));
    assert_eq!(
        (&summary["status"], &summary["step"], lines(&run).len()),
        (&"finished".into(), &150.into(), 150)
    );
    let log = log(&run, 0);
    assert!(log.contains("resumes after step"), "{log}");
    let output = ended(start(), PATIENCE);
    let said = stderr(&output);
    assert!(!output.status.success() && said.contains("already holds a run"), "{said}");
}
