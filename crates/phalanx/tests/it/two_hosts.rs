//! Trainings over two hosts: network namespaces with names and addresses of their own, a network between them that is cut, and a
//! second one. Left out, with a message, where these cannot be made, which takes root and Linux's `ip` and `unshare`.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use phalanx_checkpoint::{Checkpoint, Hashes};
use phalanx_run::{RunState, Summary};

/// Steps of milliseconds; rank 0 is delayed in each, so that there is time for events in between.
const SMALL: &str = "train tiny --set model.kind=mlp --set model.mlp_width=24 --set model.mlp_depth=1 --set model.image_size=8 \
    --set train.global_batch=12 --set train.threads=1 --set log.every=1 --set data.images=60 --set data.test_images=12 --set \
    sample.rows=1 --set sample.columns=1 --set eval.enabled=false --set log.usage_seconds=0 --set \
    train.logical_ranks=4";

/// Steps of a run, and of one that outlives the time in which the other side of a network finds out that it may not go on: four
/// seconds of silence, two at the door of rank 0, and two more in which processes of its host might turn out to have ended.
const SHORT: u64 = 100;
const LONG: u64 = 400;

const HELD_UP: &str = "--set chaos.delay=rank=0,ms=30";

/// Gives a host a name and processes of its own, which other hosts cannot see.
const APART: &str = "unshare --uts --pid --fork --kill-child --mount-proc";

/// The networks between the hosts, of which the second is not where their names lead.
const NETWORKS: [&str; 2] = ["10.232.7", "10.232.8"];

fn run(program: &str, words: &str) -> Result<Output, String> {
    let output = Command::new(program).args(words.split(' ')).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(output) } else { Err(format!("{program} {words}: {said}")) }
}

/// Two hosts, which go when this is dropped.
struct Hosts([String; 2]);

impl Hosts {
    /// None, with why, where they cannot be made.
    fn new(test: usize) -> Option<Self> {
        let id = std::process::id() % 10_000;
        let hosts = Self(["a", "b"].map(|end| format!("pht{id}-{test}{end}")));
        match hosts.make() {
            Ok(()) => Some(hosts),
            Err(problem) => {
                println!("left out, as there are no two hosts: {problem}");
                None
            }
        }
    }

    fn make(&self) -> Result<(), String> {
        for name in &self.0 {
            run("ip", &format!("netns add {name}"))?;
            run("ip", &format!("-n {name} link set lo up"))?;
        }
        let [first, second] = &self.0;
        for (at, network) in NETWORKS.iter().enumerate() {
            run("ip", &format!("link add net{at} netns {first} type veth peer name net{at} netns {second}"))?;
            for (host, name) in self.0.iter().enumerate() {
                run("ip", &format!("-n {name} addr add {network}.{}/24 dev net{at}", host + 1))?;
                run("ip", &format!("-n {name} link set net{at} up"))?;
            }
        }
        run("ip", &format!("netns exec {first} {APART} true"))?;
        Ok(())
    }

    /// The program on a host, which has a name of its own.
    fn phalanx(&self, host: usize, place: &Path, line: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[host]]).args(APART.split(' ')).args(["sh", "-c"]);
        command.args(["hostname \"$0\" && exec \"$@\"", &self.0[host], env!("CARGO_BIN_EXE_phalanx")]);
        command.args(line.split_whitespace()).current_dir(place).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Cuts the networks.
    fn cut(&self) {
        for at in 0..NETWORKS.len() {
            run("ip", &format!("-n {} link set net{at} down", self.0[0])).expect("it is ours");
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = run("ip", &format!("netns del {name}"));
        }
    }
}

fn hashes(run: &Path) -> Hashes {
    let (newest, damaged) = Checkpoint::newest(&run.join("checkpoints"));
    assert!(damaged.is_empty(), "{damaged:?}");
    newest.expect("a checkpoint").hashes().expect("in the index")
}

/// Returns the outcome of the run on one host, by one rank.
fn undisturbed(hosts: &Hosts, place: &Path, steps: u64) -> Hashes {
    let line = format!("{SMALL} --steps {steps} --out one");
    let (well, said) = end(hosts.phalanx(0, place, &line).spawn().expect("it runs"));
    assert!(well, "{said}");
    hashes(&place.join("one"))
}

/// The logs of all ranks.
fn logs_of(run: &Path) -> String {
    let log = |rank: usize| std::fs::read_to_string(run.join(format!("logs/rank-{rank}.log"))).ok();
    (0..4).filter_map(|rank| Some(format!("--- rank {rank}\n{}\n", log(rank)?))).collect()
}

fn end(child: Child) -> (bool, String) {
    let output = child.wait_with_output().expect("it ends");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// Waits until a run of `ranks` ranks has reached a step.
fn wait_for(run: &Path, ranks: usize, step: u64) {
    let begun = Instant::now();
    loop {
        let state = RunState::read(&run.join("state.json"));
        if state.is_ok_and(|state| state.world_size == ranks && state.step >= step) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no {ranks} ranks at step {step} within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn one_side_of_a_network_that_is_cut_goes_on_to_the_same_weights() {
    let Some(hosts) = Hosts::new(0) else { return };
    let place = tempfile::tempdir().expect("a folder");
    let run = place.path().join("run");
    let line = format!("{SMALL} {HELD_UP} --steps {LONG} --ranks 2 --elastic 1:4 --out run");
    let mut launcher = hosts.phalanx(0, place.path(), &line);
    // The network that others join by.
    launcher.env("PHALANX_INTERFACE", format!("{}.0/24", NETWORKS[0]));
    let launcher = launcher.spawn().expect("it runs");
    wait_for(&run, 2, 1);
    let joined = [0, 1].map(|_| hosts.phalanx(1, place.path(), "join run").spawn().expect("it runs"));
    wait_for(&run, 4, 3);
    hosts.cut();
    let (well, said) = end(launcher);
    assert!(well, "{said}\n{}", logs_of(&run));
    for rank in joined {
        // As many as the others, without the lowest.
        let (well, said) = end(rank);
        assert!(!well && said.contains("cannot reach ranks [0, 1]"), "{said}");
    }
    let summary = Summary::read(&run.join("summary.json")).expect("a summary");
    let changes: Vec<_> = summary.changes.iter().map(|change| (&change.came[..], &change.left[..])).collect();
    assert_eq!(changes.last(), Some(&(&[][..], &[2, 3][..])), "{changes:?}");
    assert_eq!(hashes(&run), undisturbed(&hosts, place.path(), LONG));
}

#[test]
fn rank_0_leaves_and_another_host_goes_on_alone() {
    let Some(hosts) = Hosts::new(1) else { return };
    let place = tempfile::tempdir().expect("a folder");
    let run = place.path().join("run");
    let line = format!("{SMALL} {HELD_UP} --steps {SHORT} --ranks 1 --elastic 1:2 --out run");
    let mut launcher = hosts.phalanx(0, place.path(), &line);
    launcher.env("PHALANX_INTERFACE", format!("{}.0/24", NETWORKS[0]));
    let launcher = launcher.spawn().expect("it runs");
    wait_for(&run, 1, 1);
    let joined = hosts.phalanx(1, place.path(), "join run").spawn().expect("it runs");
    wait_for(&run, 2, 3);
    // One that goes leaves as many as it is, who could not tell by themselves that it does not go on.
    let (well, said) = end(hosts.phalanx(0, place.path(), "leave run --rank 0").spawn().expect("it runs"));
    assert!(well, "{said}");
    for process in [launcher, joined] {
        let (well, said) = end(process);
        assert!(well, "{said}");
    }
    let state = RunState::read(&run.join("state.json")).expect("a state");
    assert_eq!((state.step, state.world_size, state.host), (SHORT, 1, hosts.0[1].clone()));
    assert_eq!(hashes(&run), undisturbed(&hosts, place.path(), SHORT));
}

#[test]
fn ranks_meet_where_names_lead_and_exchange_over_another_network() {
    let Some(hosts) = Hosts::new(2) else { return };
    let place = tempfile::tempdir().expect("a folder");
    let expected = undisturbed(&hosts, place.path(), SHORT);
    // By the first network to the second, and where rank 0 listens at all addresses.
    for (number, interface) in [format!("{}.0/24", NETWORKS[1]), "0.0.0.0".to_owned()].iter().enumerate() {
        let out = format!("run{number}");
        let of_host = |host: usize| {
            let line = format!(
                "{SMALL} --steps {SHORT} --nnodes 2 --node-rank {host} --nproc-per-node 2 --strategy hsdp --master-addr {}.1 --out {out}",
                NETWORKS[0]
            );
            let mut command = hosts.phalanx(host, place.path(), &line);
            command.env("PHALANX_INTERFACE", interface).spawn().expect("it runs")
        };
        for host in [0, 1].map(of_host) {
            let (well, said) = end(host);
            assert!(well, "{interface}: {said}");
        }
        assert_eq!(hashes(&place.path().join(out)), expected, "{interface}");
    }
}
