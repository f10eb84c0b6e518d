//! The folder of a run: refusals that change nothing, one writer at a time, no start from step 1 by accident, and a last step that is saved
//! before what may fail.

use std::fs;
use std::path::Path;

use crate::harness::results::{json, losses, saved, step, summary};
use crate::harness::{MLP, Place, Running, both, delayed, side_by_side};

fn train(options: &str) -> String {
    format!("train tiny {MLP} {options}")
}

/// The contents of all files of a run, except for its logs.
fn record(run: &Path) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let mut folders = vec![run.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).expect("lists").flatten() {
            match entry.path().is_dir() {
                true if entry.file_name() == "logs" => {}
                true => folders.push(entry.path()),
                false => {
                    all.push((entry.path().display().to_string(), fs::read(entry.path()).expect("reads")));
                }
            }
        }
    }
    all.sort();
    all
}

#[test]
fn a_refused_resumption_changes_nothing() {
    side_by_side([1, 2], |ranks| {
        let place = Place::new();
        place.succeed(&train(&format!("--ranks {ranks} --steps 2 --out run")));
        let before = record(&place.path("run"));
        for refused in [
            "--set model.mlp_width=32",
            "--set data.images=0",
            "--data folder=nowhere",
            "--set train.strategy=none --ranks 3",
            "--set no.key=1",
        ] {
            let said = place.fail(&format!("train --resume --out run --steps 4 {refused}"));
            assert!(!said.is_empty(), "{refused}");
            assert!(record(&place.path("run")) == before, "{refused} changes the run:\n{said}");
        }
        let said = place.succeed_with_errors("train --resume --out run --steps 4");
        assert!(said.contains("changed: train.stop_step = 4 (was 2): "), "{said}");
        assert_eq!(step(&place.path("run")), 4);
        // What was accepted is kept.
        let config = fs::read_to_string(place.path("run/config.toml")).expect("reads");
        assert!(config.contains("stop_step = 4"), "{config}");
        assert!(!place.path("run/config.proposed.toml").exists());
    });
}

#[test]
#[cfg(target_os = "linux")]
fn a_run_has_one_writer() {
    side_by_side([1, 2], |ranks| {
        let place = Place::new();
        let line = train(&format!("--ranks {ranks} {} --steps 100000 --out run", delayed(ranks, 20)));
        let mut running = Running::start(&place, &line);
        running.wait_for_step(2);
        let process = running.launcher().id();
        for again in ["train --resume --out run", "train --restart --out run"] {
            let said = place.fail(again);
            let holder = format!("is being trained by process {process} on ");
            assert!(said.contains(&holder) && said.contains(" since 20"), "{said}");
        }
        let said = place.fail(&line);
        assert!(said.contains("already holds a run"), "{said}");
        let reached = running.step();
        running.wait_for_step(reached + 2);
        // A killed process leaves no lock behind, and its ranks end before the run is resumed.
        running.launcher().kill().expect("its own process");
        running.fail();
        let last = step(&place.path("run"));
        place.succeed(&format!("train --restart --out run --steps 2 {}", delayed(ranks, 0)));
        assert_eq!(losses(&place.path("run")).len(), 2);
        let aside = fs::read_dir(place.path("run")).expect("lists").flatten();
        let aside = aside.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("before-"));
        let aside = aside.expect("the record so far is kept");
        assert!(step(&aside) >= last && aside.join("config.toml").is_file());
    });
}

#[test]
fn of_two_new_runs_with_one_folder_one_trains() {
    let place = Place::new();
    let lines = [3, 5].map(|width| {
        let set = format!("--set model.mlp_width={width} --ranks 1 --steps 3 --out run");
        train(&set)
    });
    let started: Vec<_> = lines
        .iter()
        .map(|line| {
            let mut command = place.command(line);
            command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            command.spawn().expect("the program starts")
        })
        .collect();
    let ended: Vec<_> = started.into_iter().map(|child| child.wait_with_output().expect("ends")).collect();
    let succeeded: Vec<usize> = (0..2).filter(|at| ended[*at].status.success()).collect();
    assert_eq!(succeeded.len(), 1, "{}\n{}", both(&ended[0]), both(&ended[1]));
    let width = [3, 5][succeeded[0]];
    let config = fs::read_to_string(place.path("run/config.toml")).expect("reads");
    assert!(config.contains(&format!("mlp_width = {width}")), "{config}");
    assert_eq!(step(&place.path("run")), 3);
}

#[test]
fn a_run_that_lost_its_checkpoints_does_not_start_again_by_itself() {
    let place = Place::new();
    place.succeed(&train("--ranks 2 --steps 4 --set checkpoint.every=2 --out run"));
    let run = place.path("run");
    let flip = |path: std::path::PathBuf| {
        let mut bytes = fs::read(&path).expect("reads");
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).expect("writes");
    };
    flip(run.join("checkpoints/step-00000004/checkpoint.json"));
    let said = place.succeed_with_errors("train --resume --out run --steps 5");
    assert!(said.contains("step-00000004") && said.contains("an older checkpoint is used"), "{said}");
    assert!(said.contains("resumed after step 2"), "{said}");
    // All damaged, and all gone.
    let newest = run.join("checkpoints/step-00000005");
    for step in saved(&run) {
        flip(run.join(format!("checkpoints/step-{step:08}/checkpoint.json")));
    }
    let before = record(&run);
    let said = place.fail("train --resume --out run --steps 8");
    assert!(said.contains("no checkpoint can be resumed from") && said.contains("--restart"), "{said}");
    assert!(said.contains("step-00000005") && newest.exists(), "{said}");
    assert!(record(&run) == before, "{said}");
    fs::remove_dir_all(run.join("checkpoints")).expect("removes");
    let said = place.fail("train --resume --out run --steps 8");
    assert!(said.contains("the checkpoint of step 5 was saved, and checkpoints/ holds none"), "{said}");
    let said = place.succeed_with_errors("train --restart --out run --steps 3");
    assert!(said.contains("starts again at step 1") && said.contains("before-"), "{said}");
    assert_eq!(step(&run), 3);
    // One that was stopped before it saved starts again, and says so.
    place.succeed(&train("--ranks 1 --steps 3 --set checkpoint.enabled=false --out unsaved"));
    fs::remove_file(place.path("unsaved/summary.json")).expect("removes");
    let said = place.succeed_with_errors("train --resume --out unsaved");
    assert!(said.contains("stopped before its first checkpoint"), "{said}");
}

/// Writes a folder of two classes with `count` pictures each for both splits.
fn pictures(place: &Place, count: u8) {
    for split in ["train", "test"] {
        for (class, shade) in [("dark", 20), ("light", 220)] {
            let folder = place.path(&format!("images/{split}/{class}"));
            fs::create_dir_all(&folder).expect("creates");
            for at in 0..count {
                let picture = image::RgbImage::from_pixel(8, 8, image::Rgb([shade, shade + at, shade]));
                picture.save(folder.join(format!("{at}.png"))).expect("saves");
            }
        }
    }
}

#[test]
fn the_last_step_is_saved_before_it_is_evaluated() {
    side_by_side([1, 2], |ranks| {
        let place = Place::new();
        pictures(&place, 6);
        let damaged = place.path("images/test/light/3.png");
        let whole = fs::read(&damaged).expect("reads");
        fs::write(&damaged, b"").expect("writes");
        let line = "--data folder=images --set eval.every=0 --set train.global_batch=4 --steps 3 --out run";
        let said = place.fail(&train(&format!("--ranks {ranks} {line}")));
        let run = place.path("run");
        assert!(said.contains("3.png"), "{said}");
        assert_eq!((saved(&run), step(&run)), (vec![3], 3), "{said}");
        assert!(!run.join("summary.json").exists());
        fs::write(&damaged, whole).expect("writes");
        let said = place.succeed("train --resume --out run");
        let lines = fs::read_to_string(run.join("metrics.jsonl")).expect("reads");
        assert_eq!(losses(&run).len(), 3, "no step is taken again:\n{lines}");
        assert!(lines.lines().last().is_some_and(|line| line.contains("\"test_")), "{lines}\n{said}");
        let ended = summary(&run);
        assert_eq!((ended.status.as_str(), ended.step), ("finished", 3));
        let metrics = &json(&run.join("summary.json"))["metrics"];
        assert!(
            metrics.as_object().expect("an object").keys().any(|name| name.starts_with("test_")),
            "{metrics}"
        );
        assert!(metrics["loss"].is_number(), "{metrics}");
    });
}

#[test]
fn weights_that_are_not_finite_are_not_saved() {
    let place = Place::new();
    place.succeed(&train("--ranks 2 --steps 2 --out run"));
    let said =
        place.fail("train --resume --out run --steps 3 --set optim.lr=1e39 --set schedule.kind=constant");
    assert!(said.contains("checkpoint of step 3 is not saved") && said.contains("not finite"), "{said}");
    assert_eq!(saved(&place.path("run")), [2]);
    place.succeed("train --resume --out run --steps 3 --set optim.lr=1e-3");
    assert_eq!(saved(&place.path("run")), [2, 3]);
}

/// FIFOs and links in place of a run's files end a command with an error that names the file, and nothing is written through a link.
#[cfg(unix)]
#[test]
fn fifos_and_links_in_a_run_are_named() {
    let place = Place::new();
    place.succeed(&train("--steps 2 --out whole"));
    let target = place.write("target", "private");
    let checkpoint = |run: &Path| {
        let names = fs::read_dir(run.join("checkpoints")).expect("lists").flatten().map(|entry| entry.path());
        names.filter(|path| path.is_dir()).max().expect("a checkpoint")
    };
    let cases = ["metrics.jsonl", "summary.json", "saved", "lock", "checkpoint.json", "logs/rank-0.log"];
    side_by_side(cases.into_iter().flat_map(|name| [(name, true), (name, false)]), |(name, is_fifo)| {
        let out = format!("{}-{is_fifo}", name.replace('/', "-"));
        let run = place.path(&out);
        let copied = std::process::Command::new("cp").arg("-r").arg(place.path("whole")).arg(&run).status();
        assert!(copied.expect("cp runs").success());
        let file = if name == "checkpoint.json" { checkpoint(&run).join(name) } else { run.join(name) };
        fs::remove_file(&file).expect("it is there");
        if is_fifo {
            assert!(std::process::Command::new("mkfifo").arg(&file).status().expect("mkfifo runs").success());
        } else {
            std::os::unix::fs::symlink(&target, &file).expect("links");
        }
        // They come to an end; what they need and cannot read is named.
        let output = place.output(&format!("train --resume --steps 4 --out {out}"));
        let said = both(&output);
        let is_needed = ["metrics.jsonl", "lock", "checkpoint.json", "logs/rank-0.log"].contains(&name);
        let what = if is_fifo { "FIFO" } else { "symbolic link" };
        assert!(!is_needed || !output.status.success() && said.contains(what), "{name}: {said}");
        for line in ["report", "watch --plain", "status", "diagnose", "hash"] {
            drop(place.output(&format!("{line} {out}")));
        }
    });
    assert_eq!(fs::read_to_string(&target).expect("reads"), "private");
    // The folder itself, and folders in it, may be links: to another disk.
    for name in ["checkpoints", "samples", "logs"] {
        let (run, disk) = (place.path("whole"), place.path(&format!("disk-{name}")));
        fs::rename(run.join(name), &disk).expect("moves");
        std::os::unix::fs::symlink(&disk, run.join(name)).expect("links");
    }
    std::os::unix::fs::symlink(place.path("whole"), place.path("linked")).expect("links");
    place.succeed("train --resume --steps 4 --out linked");
    assert_eq!((step(&place.path("whole")), saved(&place.path("whole")).last()), (4, Some(&4)));
}
