//! `phalanx doctor --hosts` between processes that take themselves for hosts.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::harness::place::{free_port, text};
use crate::harness::{PROGRAM, Place, stderr};

/// Returns the output of each of several ranks, each on a host of its own with its own path of `data`.
fn doctor(data: &[&Path]) -> Vec<Output> {
    // If another process takes it before rank 0 listens, the ranks' error says so.
    let port = free_port();
    let children: Vec<_> = (0..data.len())
        .map(|rank| {
            let mut program = Command::new(PROGRAM);
            for (name, value) in [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", data.len().to_string()),
                ("LOCAL_RANK", "0".to_owned()),
                ("LOCAL_WORLD_SIZE", "1".to_owned()),
                ("MASTER_ADDR", "127.0.0.1".to_owned()),
                ("MASTER_PORT", port.to_string()),
                ("PHALANX_HOST", format!("host{rank}")),
            ] {
                program.env(name, value);
            }
            // The speed of messages depends on this machine and its load.
            program.args(["doctor", "--hosts", "--slow", "1e9", "--data"]).arg(data[rank]);
            program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            program.spawn().expect("it starts")
        })
        .collect();
    children.into_iter().map(|child| child.wait_with_output().expect("it ends")).collect()
}

#[test]
fn hosts_are_looked_at_in_pairs() {
    let place = Place::new();
    place.write("train.bin", [7; 100]);
    let said = doctor(&[place.folder(); 3]);
    for (rank, output) in said.iter().enumerate() {
        assert!(output.status.success(), "rank {rank}: {}", stderr(output));
        assert_eq!(output.stdout.is_empty(), rank > 0, "only rank 0 speaks");
    }
    let shown = text(&said[0].stdout);
    for words in [
        "3 hosts, 3 ranks",
        "host0 and host1",
        "host0 and host2",
        "host1 and host2",
        "Gbit/s",
        "1 files",
        "nothing is wrong",
    ] {
        assert!(shown.contains(words), "{words}\n{shown}");
    }
}

#[test]
fn what_differs_is_named_and_is_a_failure() {
    let (one, other) = (Place::new(), Place::new());
    one.write("train.bin", [7; 100]);
    other.write("train.bin", [7; 99]);
    let said = doctor(&[one.folder(), one.folder(), other.folder()]);
    let shown = text(&said[0].stdout);
    assert!(shown.contains("the data differs") && shown.contains("on ranks [2]"), "{shown}");
    assert!(said.iter().all(|output| output.status.code() == Some(1)), "{shown}");
    assert!(stderr(&said[0]).contains("1 thing is wrong"), "{}", stderr(&said[0]));

    let said = doctor(&[one.folder(), Path::new("/no/such/data")]);
    let shown = text(&said[0].stdout);
    assert!(shown.contains("cannot be read from host1 (/no/such/data"), "{shown}");
}

#[test]
fn without_a_launcher_it_says_how_to_start_it() {
    let mut program = Command::new(PROGRAM);
    for name in ["RANK", "WORLD_SIZE", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"] {
        program.env_remove(name);
    }
    let output = program.args(["doctor", "--hosts"]).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("srun"), "{}", stderr(&output));
}
