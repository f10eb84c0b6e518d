//! What launchers, schedulers and the system say to a training, in words and in files.

use std::path::Path;
use std::time::Duration;

use phalanx_launch::Order;
use phalanx_launch::cluster::{Job, Pods, Torchrun, pod_name, seconds_of, survival, tasks_of_array};
use phalanx_trainer::fuzzing;
use phalanx_trainer::usage::Powercap;

use super::Target;
use super::files::{self, folder};

/// The longest name of a job's pod may have an index behind it.
const LONGEST_NAME: usize = 60;

/// What is said, a file for each that says it.
fn jobs() -> Vec<Vec<u8>> {
    let order = r#"{"version":"0.1.0","host":"a","directory":"/home/u","folder":"/runs/a","witness":"/runs/a/.hosts-1","arguments":["train"],"environment":{"A":"b"},"ranks":[4,4],"world_size":8,"master":"10.0.0.1","secret":"00","survives":true}"#;
    let variables = "SLURM_JOB_END_TIME=1792500000\nTORCHELASTIC_RUN_ID=a\nTORCHELASTIC_MAX_RESTARTS=3\nSLURM_STEP_ID=0\nSLURM_PROCID=1\nSLURM_KILL_BAD_EXIT=1\n";
    let stat = "7 (a) b (c) R 1 2 3 4 5 6 100 0 3 0 250 150 0 0 20 0 4 0 9 123456 77 18446744073709551615";
    vec![files::join([
        ("left", b"1-02:03:04\n2:03\nUNLIMITED\n".as_slice()),
        ("queue", b"7_1|PENDING|(Resources)|0:00|1:00:00\n8|RUNNING|gpu[1-2]|1-00:00:01|UNLIMITED\n"),
        ("array", b"0-3,7\n1-9:2%4\n"),
        ("time", b"30\n1:30\n1-0:30\n2:00:00\n"),
        ("name", b"CIFAR_10 ddp\n7\n"),
        ("order", order.as_bytes()),
        ("variables", variables.as_bytes()),
        ("cores", b"0-3,8,10-11\n"),
        ("process/stat", stat.as_bytes()),
        ("process/io", b"rchar: 1\nwchar: 2\nread_bytes: 4096\nwrite_bytes: 8192\n"),
        ("powercap/intel-rapl:0/name", b"package-0\n"),
        ("powercap/intel-rapl:0/energy_uj", b"1000\n"),
        ("powercap/intel-rapl:0/max_energy_range_uj", b"262143328850\n"),
        ("powercap/intel-rapl:0:0/name", b"dram\n"),
        ("powercap/intel-rapl:0:0/energy_uj", b"500\n"),
        ("powercap/intel-rapl:0:0/max_energy_range_uj", b"65712999613\n"),
        ("later", b"900\n"),
    ])]
}

/// Reads all of it.
fn read_jobs(bytes: &[u8]) {
    let place = folder();
    files::write(bytes, place.path());
    let text = |name: &str| {
        let bytes = std::fs::read(place.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    for line in text("left").lines() {
        let _ = phalanx_launch::cluster::left(line);
    }
    for line in text("queue").lines() {
        if let Ok(queued) = phalanx_launch::cluster::queued(line.trim()) {
            let _ = phalanx_launch::cluster::left(&queued.left);
        }
    }
    for line in text("array").lines() {
        if let Ok(tasks) = tasks_of_array(line) {
            assert!(tasks.is_sorted_by(|one, next| one < next), "a task is there twice");
        }
    }
    for line in text("time").lines() {
        if let Ok(seconds) = seconds_of(line) {
            assert!(seconds > 0 && Duration::from_secs(seconds).as_secs() == seconds);
        }
    }
    for line in text("name").lines() {
        submit(line, &text("variables"));
    }
    if let Ok(order) = serde_json::from_str::<Order>(&text("order")) {
        let again =
            serde_json::to_string(&order).ok().and_then(|text| serde_json::from_str::<Order>(&text).ok());
        assert!(again.is_some_and(|again| again.ranks == order.ranks && again.secret == order.secret));
    }
    start(&text("variables"));
    #[cfg(target_os = "linux")]
    drop(fuzzing::cores(&place.path().join("cores")));
    let used = fuzzing::usage_of(&place.path().join("process"));
    let _ = (used.since(&used), used.since(&fuzzing::usage_of(Path::new("/nowhere"))));
    count(&place.path().join("powercap"), &text("later"));
}

/// Writes what a job of this name is submitted by.
fn submit(name: &str, config: &str) {
    let pod = pod_name(name);
    assert!(
        pod.len() <= LONGEST_NAME && pod.starts_with(|letter: char| letter.is_ascii_lowercase()),
        "{pod}"
    );
    assert!(
        pod.chars().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-')
    );
    let pods =
        Pods { name: pod, pods: 2, image: name.to_owned(), config: config.to_owned(), ..Pods::default() };
    let _ = pods.manifest();
    let job = Job { name: name.to_owned(), nodes: 2, ranks_per_node: 4, requeue: true, ..Job::default() };
    let _ = job.script(Path::new("/opt/phalanx"), Path::new(name));
}

/// Asks what a rank asks of the variables of its launcher, one `NAME=value` a line.
fn start(variables: &str) {
    let get = |name: &str| {
        let all = variables.lines().filter_map(|line| line.split_once('='));
        all.filter(|(known, _)| *known == name).map(|(_, value)| value.to_owned()).next()
    };
    let _ = (phalanx_launch::cluster::end(&get), survival(&get));
    let _ = Torchrun::of(&get).map(|launch| launch.restarts());
}

/// Counts energy between two looks, of which all counters say the same at the second.
fn count(folder: &Path, later: &str) {
    let Ok(mut counters) = Powercap::open(folder) else { return };
    for zone in ["intel-rapl:0", "intel-rapl:0:0"] {
        let _ = std::fs::write(folder.join(zone).join("energy_uj"), later);
    }
    if let Ok(joules) = counters.joules() {
        assert!(joules >= 0.0, "{joules} were taken");
    }
}

pub(super) const JOBS: Target = Target {
    name: "jobs",
    about: "words of launchers and schedulers, and numbers of the system",
    seeds: jobs,
    words: &["18446744073709551615", "-", ":", "|", ",", "%", "=", "\n", "NaN"],
    change: files::change,
    read: read_jobs,
    cases: 200,
    memory: 48 << 20,
};
