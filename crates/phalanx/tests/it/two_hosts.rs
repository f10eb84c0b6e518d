//! Trainings over two hosts: network namespaces with names and addresses of their own, a network between them that is cut, and a
//! second one. Left out, with a message, where these cannot be made, which takes root and Linux's `ip` and `unshare`.

use std::process::{Command, Output, Stdio};

use phalanx_checkpoint::Hashes;
use phalanx_run::RunState;

use crate::harness::results::{hashes, logs, summary};
use crate::harness::{MLP, PROGRAM, Place, Running, both, delayed};

/// The training. Its steps take milliseconds.
fn small() -> String {
    format!("train tiny {MLP} --set eval.enabled=false --set log.usage_seconds=0 --set train.logical_ranks=4")
}

/// Steps of a run, and of one that outlives the time in which the other side of a network finds out that it may not go on: four
/// seconds of silence, two at the door of rank 0, and two more in which processes of its host might turn out to have ended.
const SHORT: u64 = 100;
const LONG: u64 = 400;

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
    fn phalanx(&self, host: usize, place: &Place, line: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[host]]).args(APART.split(' ')).args(["sh", "-c"]);
        command.args(["hostname \"$0\" && exec \"$@\"", &self.0[host], PROGRAM]);
        command.args(line.split_whitespace()).current_dir(place.folder()).stdin(Stdio::null());
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

/// Returns the outcome of the run on one host, by one rank.
fn undisturbed(hosts: &Hosts, place: &Place, steps: u64) -> Hashes {
    let line = format!("{} --steps {steps} --out one", small());
    Running::spawn(place.path("one"), hosts.phalanx(0, place, &line)).succeed();
    hashes(&place.path("one"))
}

/// Starts a training on the first host, whose ranks others join by the first network.
fn start(hosts: &Hosts, place: &Place, line: &str) -> Running {
    // Rank 0 is delayed in each step, so that there is time for events in between.
    let mut launcher = hosts.phalanx(0, place, &format!("{} {} {line} --out run", small(), delayed(1, 30)));
    launcher.env("PHALANX_INTERFACE", format!("{}.0/24", NETWORKS[0]));
    Running::spawn(place.path("run"), launcher)
}

/// Waits until as many ranks have reached a step.
fn wait_for(running: &mut Running, ranks: usize, step: u64) {
    let there =
        |run: &Running| run.state().is_some_and(|state| state.world_size == ranks && state.step >= step);
    running.wait_for(&format!("{ranks} ranks at step {step}"), there);
}

#[test]
fn one_side_of_a_network_that_is_cut_goes_on_to_the_same_weights() {
    let Some(hosts) = Hosts::new(0) else { return };
    let place = Place::new();
    let mut running = start(&hosts, &place, &format!("--steps {LONG} --ranks 2 --elastic 1:4"));
    let run = running.run.clone();
    wait_for(&mut running, 2, 1);
    (0..2).for_each(|_| running.add(hosts.phalanx(1, &place, "join run")));
    wait_for(&mut running, 4, 3);
    hosts.cut();
    let ended = running.end_all();
    assert_eq!(ended[0].code, Some(0), "{}\n{}", ended[0].stderr, logs(&run));
    for end in &ended[1..] {
        // As many as the others, without the lowest.
        assert!(end.code != Some(0) && end.stderr.contains("cannot reach ranks [0, 1]"), "{end:?}");
    }
    let summary = summary(&run);
    let changes: Vec<_> = summary.changes.iter().map(|change| (&change.came[..], &change.left[..])).collect();
    assert_eq!(changes.last(), Some(&(&[][..], &[2, 3][..])), "{changes:?}");
    assert_eq!(hashes(&run), undisturbed(&hosts, &place, LONG));
}

#[test]
fn rank_0_leaves_and_another_host_goes_on_alone() {
    let Some(hosts) = Hosts::new(1) else { return };
    let place = Place::new();
    let mut running = start(&hosts, &place, &format!("--steps {SHORT} --ranks 1 --elastic 1:2"));
    let run = running.run.clone();
    wait_for(&mut running, 1, 1);
    running.add(hosts.phalanx(1, &place, "join run"));
    wait_for(&mut running, 2, 3);
    // One that goes leaves as many as it is, who could not tell by themselves that it does not go on.
    let left = hosts.phalanx(0, &place, "leave run --rank 0").output().expect("it runs");
    assert!(left.status.success(), "{}", both(&left));
    let ended = running.end_all();
    assert!(ended.iter().all(|end| end.code == Some(0)), "{ended:?}");
    let state = RunState::read(&run.join("state.json")).expect("a state");
    assert_eq!((state.step, state.world_size, state.host), (SHORT, 1, hosts.0[1].clone()));
    assert_eq!(hashes(&run), undisturbed(&hosts, &place, SHORT));
}

#[test]
fn ranks_meet_where_names_lead_and_exchange_over_another_network() {
    let Some(hosts) = Hosts::new(2) else { return };
    let place = Place::new();
    let expected = undisturbed(&hosts, &place, SHORT);
    let secret = place.secret(0o600);
    // By the first network to the second, and where rank 0 listens at all addresses.
    for (number, interface) in [format!("{}.0/24", NETWORKS[1]), "0.0.0.0".to_owned()].iter().enumerate() {
        let out = format!("run{number}");
        let of_host = |host: usize| {
            let line = format!(
                "{} --steps {SHORT} --nnodes 2 --node-rank {host} --nproc-per-node 2 --strategy hsdp --master-addr {}.1 --out {out}",
                small(),
                NETWORKS[0]
            );
            // Once with a secret, once on a network that is trusted.
            let trusts = number == 1;
            let line = if trusts { format!("{line} --set comm.secret=none") } else { line };
            let mut command = hosts.phalanx(host, &place, &line);
            command.env("PHALANX_INTERFACE", interface);
            if !trusts {
                command.env("PHALANX_SECRET_FILE", &secret);
            }
            command
        };
        let mut running = Running::spawn(place.path(&out), of_host(0));
        running.add(of_host(1));
        let ended = running.end_all();
        assert!(ended.iter().all(|end| end.code == Some(0)), "{interface}: {ended:?}");
        assert_eq!(hashes(&place.path(&out)), expected, "{interface}");
    }
}
