//! A training, its report, its live page and its events for TensorBoard, all by the built program.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::harness::processes::signal;
use crate::harness::results::json;
use crate::harness::{Place, stderr};

/// The payloads of the records of all files of events in a run's folder, a file after the other.
fn events(run: &Path) -> Vec<Vec<Vec<u8>>> {
    let entries = fs::read_dir(run).expect("lists").flatten().map(|entry| entry.path());
    let mut files: Vec<_> =
        entries.filter(|path| path.display().to_string().contains("events.out.tfevents.")).collect();
    files.sort();
    let payloads = |bytes: Vec<u8>| {
        let (mut rest, mut found) = (bytes.as_slice(), Vec::new());
        while let Some((length, _)) = rest.split_first_chunk::<8>() {
            let length = u64::from_le_bytes(*length) as usize;
            found.push(rest[12..12 + length].to_vec());
            rest = &rest[12 + length + 4..];
        }
        found
    };
    files.into_iter().map(|file| payloads(fs::read(file).expect("reads"))).collect()
}

/// Checks the record of both starts of the run, and its copy for MLflow.
fn check_starts_and_copies(place: &Place) {
    let starts = json(&place.path("run/run.json"))["starts"].as_array().expect("starts").clone();
    let last = |start: &serde_json::Value| start["command"].as_array().expect("words").last().cloned();
    assert_eq!(starts.iter().map(last).collect::<Vec<_>>(), [Some("4".into()), Some("run".into())]);
    for _ in 0..2 {
        let said = place.succeed("track run --to mlflow=ml --experiment tests");
        assert!(said.contains("run: 6 lines sent, finished"), "{said}");
    }
    let experiment = fs::read_dir(place.path("ml")).expect("lists").flatten().next().expect("one").path();
    let runs = fs::read_dir(&experiment).expect("lists").flatten().map(|entry| entry.path());
    let copies: Vec<_> = runs.filter(|path| path.is_dir()).collect();
    assert_eq!(copies.len(), 1, "the second call replaces the first");
    let losses = fs::read_to_string(copies[0].join("metrics/loss")).expect("reads");
    let steps: Vec<_> = losses.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    assert_eq!(steps, ["1", "2", "3", "4", "5", "6"]);
}

fn holds(payload: &[u8], words: &str) -> bool {
    payload.windows(words.len()).any(|part| part == words.as_bytes())
}

#[test]
fn a_training_is_reported_and_its_events_go_on_when_it_is_resumed() {
    let place = Place::new();
    let common =
        "train tiny --ranks 2 --set log.every=1 --set sample.every=2 --set log.tensorboard=true --out run";
    place.succeed(&format!("{common} --steps 4"));
    let run = place.path("run");
    let before = events(&run);
    assert_eq!(before.len(), 1);
    let count = |words: &str| before[0].iter().filter(|payload| holds(payload, words)).count();
    // The configuration has the word among its keys.
    let pictures =
        before[0].iter().filter(|payload| holds(payload, "samples") && holds(payload, "PNG")).count();
    assert_eq!((count("training/loss"), pictures, count("configuration")), (4, 2, 1));
    place.succeed("train --resume --steps 6 --out run");
    let after = events(&run);
    assert_eq!((after.len(), &after[0]), (2, &before[0]), "what was written stays");
    assert_eq!(after[1].iter().filter(|payload| holds(payload, "training/loss")).count(), 2);

    assert!(
        after[1].iter().any(|payload| holds(payload, "session_start_info") && holds(payload, "optim.lr"))
    );
    assert!(after[1].iter().any(|payload| holds(payload, "session_end_info")));

    check_starts_and_copies(&place);

    let said = place.succeed("report run");
    assert!(said.contains("report.html"), "{said}");
    let page = fs::read_to_string(run.join("report.html")).expect("a page");
    for words in [
        "finished",
        "Balance of ranks",
        "Samples after step 6",
        "learning rate",
        "train.seed",
        "6 of",
        "--steps 4",
    ] {
        assert!(page.contains(words), "{words}");
    }
    let pictures: u64 = fs::read_dir(run.join("samples"))
        .expect("lists")
        .flatten()
        .map(|entry| entry.metadata().expect("a file").len())
        .sum();
    assert!((page.len() as u64) < (2 << 20) + 2 * pictures);
    assert!(!page.contains("src=\"http") && !page.contains("href=\"http"));
    place.succeed("report run --pictures 1 --out one.html");
    assert_eq!(fs::read_to_string(place.path("one.html")).expect("a page").matches("<img ").count(), 1);
    let output = place.output("report gone");
    assert!(output.status.code() == Some(1) && stderr(&output).contains("there is no folder gone"));
    let output = place.output("report run/samples");
    assert!(
        output.status.code() == Some(1) && stderr(&output).contains("holds no run"),
        "{}",
        stderr(&output)
    );
}

#[test]
#[cfg(unix)]
fn the_live_page_ends_at_once_and_says_when_its_port_is_taken() {
    let place = Place::new();
    place.write("runs/a/config.toml", "[train]\nranks = 1\n");
    let mut server = place.command("serve --port 0").stdout(Stdio::piped()).spawn().expect("starts");
    let mut said = String::new();
    BufReader::new(server.stdout.take().expect("a pipe")).read_line(&mut said).expect("reads");
    let address = said
        .split("http://")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .expect("an address")
        .to_owned();
    let port = address.rsplit(':').next().expect("a port");
    let output = place.output(&format!("serve --port {port}"));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains(&format!("port {port} is taken")), "{}", stderr(&output));
    // A follower reads the run while it ends.
    let mut stream = TcpStream::connect(&address).expect("connects");
    stream.write_all(format!("GET /events/a HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes()).expect("asks");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 200");
    let begun = Instant::now();
    signal("-INT", server.id());
    assert_eq!(server.wait().expect("ends").code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let output = place.output("serve gone");
    assert!(
        output.status.code() == Some(2) && stderr(&output).contains("cannot open gone"),
        "{}",
        stderr(&output)
    );
}
