//! The engine over MPI, under its launcher. Started directly, this program starts itself under `mpirun` with several numbers of
//! ranks; without `mpirun` it reports that and passes.

#[path = "it/common/mod.rs"]
mod common;
#[path = "mpi/failures.rs"]
mod failures;
#[path = "mpi/scenarios.rs"]
mod scenarios;

use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The first argument of a rank. The second is the scenario, the third the expected number of ranks.
const RANK: &str = "--as-rank-of";
/// The longest duration of a run, many times the usual one.
const PATIENCE: Duration = Duration::from_secs(300);

/// One start of the launcher.
struct Run {
    scenario: &'static str,
    ranks: usize,
    variables: &'static [(&'static str, &'static str)],
    /// A variable of the last rank alone.
    of_last: Option<&'static str>,
    /// `None` if all ranks must end well; otherwise the run must fail with this text.
    fails: Option<&'static str>,
}

const fn well(scenario: &'static str, ranks: usize) -> Run {
    Run { scenario, ranks, variables: &[], of_last: None, fails: None }
}

const CHECK: (&str, &str) = ("PHALANX_MPI_CHECK", "1");
const RUNS: &[Run] = &[
    well("conformance", 1),
    well("conformance", 2),
    well("conformance", 3),
    well("conformance", 4),
    Run { variables: &[("PHALANX_MPI_PIECE", "1000")], ..well("conformance", 3) },
    Run { variables: &[("PHALANX_MPI_PIECE", "2")], ..well("pieces", 3) },
    Run { variables: &[CHECK], ..well("conformance", 3) },
    Run { variables: &[CHECK], ..well("disagreement", 3) },
    Run {
        variables: &[CHECK],
        fails: Some("rank 0 called send/receive of 100000 elements i32"),
        ..well("message", 2)
    },
    Run { variables: &[CHECK], fails: Some("of 50000 elements i64 as operation 0"), ..well("messages", 2) },
    Run { fails: Some("a piece of 400000 bytes in place of one of 400008"), ..well("messages", 2) },
    Run { fails: Some("MPI_Recv: "), ..well("too-long", 2) },
    Run { fails: Some("a piece of 12 bytes in place of one of 16"), ..well("too-short", 2) },
    Run { fails: Some("about to abort"), ..well("abort", 3) },
    Run { fails: Some("about to panic"), ..well("panic", 3) },
    Run { variables: &[("PHALANX_MPI_CHECK", "perhaps")], ..well("malformed", 2) },
    Run { of_last: Some("PHALANX_MPI_PIECE=1000"), ..well("unequal", 3) },
    well("large", 2),
    well("serialized", 2),
    well("single", 2),
];

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let launched = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"]
        .iter()
        .any(|variable| std::env::var_os(variable).is_some());
    if arguments.next().as_deref() == Some(RANK) {
        let scenario = arguments.next().unwrap_or_default();
        scenarios::run(&scenario, arguments.next().and_then(|ranks| ranks.parse().ok()));
        return ExitCode::SUCCESS;
    }
    if launched {
        scenarios::run("conformance", None);
        return ExitCode::SUCCESS;
    }
    let Ok(version) = Command::new("mpirun").arg("--version").output() else {
        println!("skipped: there is no mpirun");
        return ExitCode::SUCCESS;
    };
    let open_mpi = String::from_utf8_lossy(&version.stdout).contains("Open MPI");
    // Other launchers have other options for a variable of one rank.
    let runs: Vec<_> = RUNS.iter().filter(|run| open_mpi || run.of_last.is_none()).collect();
    let failed = runs.iter().filter(|run| !succeeds(run, open_mpi)).count();
    println!("{} of {} runs under mpirun went as they should", runs.len() - failed, runs.len());
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn succeeds(run: &Run, open_mpi: bool) -> bool {
    let start = Instant::now();
    let (ended, said) = launch(run, open_mpi);
    let problem = match (ended, run.fails) {
        (None, _) => Some(format!("did not end in {PATIENCE:?}")),
        (Some(false), None) => Some("failed".to_owned()),
        (Some(true), Some(_)) => Some("did not fail".to_owned()),
        (Some(false), Some(text)) if !said.contains(text) => Some(format!("did not say `{text}`")),
        _ => None,
    };
    let took = start.elapsed().as_secs_f64();
    let what = format!("{} of {} ranks {:?}", run.scenario, run.ranks, run.variables);
    match &problem {
        None => println!("{what}: ok, {took:.1} s"),
        Some(problem) => println!("{what}: {problem}\n{said}"),
    }
    problem.is_none()
}

/// Returns whether the launcher ended well, if it ended, and its output.
fn launch(run: &Run, open_mpi: bool) -> (Option<bool>, String) {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new("mpirun");
    if open_mpi {
        // It refuses root, and more ranks than cores, without these variables.
        command.args(["--allow-run-as-root", "--oversubscribe"]);
    }
    let mut some = |ranks: usize, options: &[&str]| {
        command.args(["-n", &ranks.to_string()]).args(options).arg(&program);
        command.args([RANK, run.scenario, &run.ranks.to_string()]);
        if ranks < run.ranks && options.is_empty() {
            command.arg(":");
        }
    };
    match run.of_last {
        None => some(run.ranks, &[]),
        Some(variable) => {
            some(run.ranks - 1, &[]);
            some(1, &["-x", variable]);
        }
    }
    command.envs(run.variables.iter().copied()).stdin(Stdio::null());
    let mut launcher = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("mpirun starts");
    let said = [read(launcher.stdout.take()), read(launcher.stderr.take())];
    let start = Instant::now();
    let ended = loop {
        match launcher.try_wait().expect("a child of this process") {
            Some(status) => break Some(status.success()),
            None if start.elapsed() > PATIENCE => {
                launcher.kill().expect("a child of this process");
                launcher.wait().expect("a child of this process");
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    (ended, said.map(|reader| reader.join().expect("no panic")).concat())
}

fn read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // Output read before an error is shown all the same.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
