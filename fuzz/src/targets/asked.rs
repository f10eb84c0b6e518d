//! Files in a run's folder that the run and launchers read: requests, tickets of joining ranks, jobs, states, failures, and the
//! metrics that a resumed run continues.

use std::path::Path;

use phalanx_fuzz_harness::files::{self, folder};
use phalanx_launch::cluster::{JobRecord, Torchrun};
use phalanx_run::FailureReport;
use phalanx_run::{
    Invitation, JoinCandidates, JoinTicket, Line, MetricsWriter, Request, RunState, read_metrics,
};
use phalanx_trainer::engine::refusal;

use super::Target;

/// Returns the files of these names below a folder, as an input.
pub(super) fn read_back(folder: &Path, names: &[&str]) -> Vec<u8> {
    let files: Vec<(&str, Vec<u8>)> = names
        .iter()
        .map(|name| {
            let contents = std::fs::read(folder.join(name));
            (*name, contents.unwrap_or_else(|error| panic!("{name} was written: {error}")))
        })
        .collect();
    files::join(files.iter().map(|(name, contents)| (*name, contents.as_slice())))
}

/// A named launch by torchrun.
fn launch() -> Option<Torchrun> {
    Torchrun::of(&|name| (name == "TORCHELASTIC_RUN_ID").then(|| "a".to_owned()))
}

/// The files of the seed.
const FILES: [&str; 15] = [
    "requests/0",
    "requests/1",
    "requests/2",
    "requests/3",
    "requests/4",
    "joins/2/waits",
    "joins/3/waits",
    "joins/3/invitation.json",
    "job.json",
    "join-8.json",
    "state.json",
    "logs/rank-1.error.json",
    "logs/torchrun",
    "config.toml",
    "metrics.jsonl",
];

/// Writes the folder of a run of two ranks with requests and a joining rank. Returns `None` if a file cannot be written.
fn write_run(run: &Path) -> Option<()> {
    std::fs::create_dir_all(run.join("logs")).ok()?;
    std::fs::create_dir_all(run.join("requests")).ok()?;
    let asked = [Request::Pause, Request::Resume, Request::Save, Request::Leave(1), Request::Stop];
    for (number, request) in asked.into_iter().enumerate() {
        // The run's own names begin with the time.
        let posted = request.post(&run.join("requests")).ok()?;
        std::fs::rename(posted, run.join(format!("requests/{number}"))).ok()?;
    }
    let joins = run.join("joins");
    JoinTicket::claim(&joins, 2).ok()?.poll().ok()?;
    JoinTicket::claim(&joins, 3).ok()?.poll().ok()?;
    let invitation = Invitation {
        rank: 2,
        world_size: 3,
        local_world_size: 1,
        address: "10.0.0.1".to_owned(),
        port: 29500,
        job: "a".to_owned(),
    };
    JoinTicket::invite(&joins, 3, &invitation).ok()?;
    let job = |id: u64| JobRecord {
        scheduler: "slurm".to_owned(),
        id,
        array: false,
        submitted: "20261124-120000".to_owned(),
    };
    job(7).write(run).ok()?;
    job(8).write_joining(run).ok()?;
    let members = [(0, "a".to_owned()), (1, "b".to_owned())].into_iter().collect();
    RunState { step: 3, total: 9, host: "a".to_owned(), process: 1, members, ..RunState::default() }
        .write(&run.join("state.json"))
        .ok()?;
    let failure = FailureReport { time_ms: 1_795_434_339_249, ..FailureReport::now(1, "no image", false) };
    failure.write(&run.join("logs")).ok()?;
    launch()?.begin(run).ok()?;
    std::fs::write(run.join("config.toml"), "").ok()?;
    let mut metrics = MetricsWriter::open(&run.join("metrics.jsonl"), 0).ok()?;
    for step in [1, 5, 10, 15] {
        metrics.write(&Line::new(step).with("loss", 1.0 / step as f64).with("lr", f64::NAN)).ok()?;
    }
    Some(())
}

/// Returns the folder of a run as an input.
fn requests() -> Vec<Vec<u8>> {
    let place = folder();
    assert!(write_run(place.path()).is_some(), "a run's folder is written");
    vec![read_back(place.path(), &FILES)]
}

/// Reads all files. Checks that values survive writing and reading.
fn read_requests(bytes: &[u8]) {
    let place = folder();
    let run = place.path();
    files::write(bytes, run);
    let copy = run.join("a copy");
    if std::fs::create_dir_all(&copy).is_err() {
        return;
    }
    hear(run, &copy);
    meet(run);
    if let Ok(job) = JobRecord::read(run)
        && job.write(&copy).is_ok()
    {
        assert_eq!(JobRecord::read(&copy).ok(), Some(job));
    }
    let _ = JobRecord::joining(run);
    if let Ok(state) = RunState::read(&run.join("state.json")) {
        let _ = state.is_alive();
        if state.write(&copy.join("state.json")).is_ok() {
            assert_eq!(RunState::read(&copy.join("state.json")).ok(), Some(state));
        }
    }
    for rank in 0..3 {
        let _ = FailureReport::read(&run.join("logs"), rank).map(|report| report.is_own_fault());
    }
    if let Some(launch) = launch() {
        let _ = launch.has_begun(run);
        if launch.begin(run).is_ok() {
            assert_eq!(launch.has_begun(run), run.join("config.toml").is_file());
        }
    }
    go_on(&run.join("metrics.jsonl"));
}

/// Reads each request once, and writes it again.
fn hear(run: &Path, copy: &Path) {
    let folder = run.join("requests");
    let heard = Request::take(&folder);
    let again = Request::take(&folder);
    assert!(again.is_empty(), "{again:?} was heard twice");
    for request in heard.into_iter().flatten().take(20) {
        let _ = (request.name(), refusal(request, "diloco"), refusal(request, "dp"));
        if request.post(copy).is_ok() {
            assert_eq!(Request::take(copy), [Ok(request)]);
        }
    }
}

/// Reads the waiting ranks. A rank without recent updates is ignored, and an invitation counts once.
fn meet(run: &Path) {
    let joins = run.join("joins");
    let mut waiting = JoinCandidates::at(&joins);
    for _ in 0..2 {
        let fresh = waiting.poll().unwrap_or_default();
        assert!(fresh.is_empty(), "{fresh:?} wait, who have said nothing");
    }
    let mut ticket = JoinTicket::of(&joins, 3);
    if let Ok(Some(invitation)) = ticket.poll() {
        let again = ticket.poll();
        assert!(!matches!(again, Ok(Some(_))), "{invitation:?} was heard twice");
    }
    if let Ok(ticket) = JoinTicket::claim(&joins, 0) {
        ticket.stop_waiting();
    }
    let _ = waiting.poll();
}

/// Continues the metrics after step 10. Later lines are removed, the others unchanged.
fn go_on(path: &Path) {
    let Ok(metrics) = MetricsWriter::open(path, 10) else { return };
    let last = metrics.last().map(Line::step);
    drop(metrics);
    let lines = read_metrics(path).unwrap_or_else(|error| panic!("what was written: {error}"));
    assert!(lines.iter().all(|line| line.step() <= 10) && lines.last().map(Line::step) == last);
    let before = std::fs::read(path).unwrap_or_default();
    if let Ok(mut metrics) = MetricsWriter::open(path, 10) {
        assert!(std::fs::read(path).unwrap_or_default() == before, "metrics have changed by being read");
        if metrics.write(&Line::new(11).with("loss", 0.5)).is_ok() {
            let steps = read_metrics(path).map(|lines| lines.len());
            assert_eq!(steps.ok(), Some(lines.len() + 1));
        }
    }
}

pub(super) const REQUESTS: Target = Target {
    name: "requests",
    about: "what lies in a run's folder for the run to hear",
    seeds: requests,
    words: &["leave ", "18446744073709551615", "pause", "\n", "null", "\"step\":", "1e308"],
    change: files::change,
    read: read_requests,
    cases: 150,
    memory: 48 << 20,
};
