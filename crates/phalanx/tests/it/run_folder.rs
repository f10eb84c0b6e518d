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

#[test]
fn another_optimizer_needs_a_reset() {
    side_by_side([1, 2], |ranks| {
        let place = Place::new();
        place.succeed(&train(&format!("--ranks {ranks} --steps 2 --set train.ema=0.5 --out run")));
        let run = place.path("run");
        let before = record(&run);
        let other = "train --resume --out run --steps 4 --set optim.kind=sgd --set optim.momentum=0.9";
        let said = place.fail(other);
        for words in [
            "the checkpoint of step 2 has exp_avg and exp_avg_sq of the network",
            "the configured optimizer keeps momentum_buffer",
            "--resume --reset optimizer",
        ] {
            assert!(said.contains(words), "{said}");
        }
        assert!(record(&run) == before, "a refused optimizer changes the run");
        let said = place.succeed_with_errors(&format!("{other} --reset optimizer --set train.seed=7"));
        for words in ["changed: optim.kind = \"sgd\" (was \"adamw\"): ", "changed: train.seed = 7 (was 0): "]
        {
            assert!(said.contains(words), "{said}");
        }
        assert!(said.contains("weights stay"), "each key says what its change does: {said}");
        assert!(said.contains("the optimizer begins with fresh state"), "{said}");
        assert_eq!(step(&run), 4);
        assert!(!run.join("reset.proposed").exists() && !run.join("config.proposed.toml").exists());
        // The momentum that was saved since then continues, and without it there is none to drop.
        place.succeed("train --resume --out run --steps 6");
        let said = place.fail("train --resume --out run --steps 8 --set optim.momentum=0");
        assert!(said.contains("keeps no optimizer state"), "{said}");
        let said = place.fail("train --out new --reset optimizer --steps 2");
        assert!(said.contains("--resume"), "{said}");
    });
}

#[test]
fn a_refused_resumption_of_an_elastic_run_changes_nothing() {
    let place = Place::new();
    place.succeed(&train("--elastic 1:2 --steps 2 --out run"));
    let run = place.path("run");
    let before = record(&run);
    assert!(before.iter().any(|(name, _)| name.ends_with("state.json")));
    for refused in ["--set model.mlp_width=32", "--data folder=nowhere"] {
        let said = place.fail(&format!("train --resume --out run --steps 4 {refused}"));
        assert!(record(&run) == before, "{refused} changes the run:\n{said}");
    }
    let said = place.fail("train --restart --out run --data folder=nowhere");
    assert!(record(&run) == before, "a refused restart moves the record:\n{said}");
    place.succeed("train --resume --out run --steps 4");
    assert_eq!(step(&run), 4);
}

#[test]
fn names_with_a_dash_train_and_names_that_are_not_utf8_are_refused() {
    side_by_side([1, 2], |ranks| {
        let place = Place::new();
        place.succeed(&train(&format!("--ranks {ranks} --steps 2 --out=-dash")));
        place.succeed("train --resume --out=-dash --steps 3");
        assert_eq!(step(&place.path("-dash")), 3);
    });
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt as _;
        let place = Place::new();
        for line in [train("--ranks 2 --steps 2 --out"), "submit tiny --dry-run --out".to_owned()] {
            let mut command = place.command(&line);
            command.arg(std::ffi::OsStr::from_bytes(b"run\xff"));
            let output = command.output().expect("the program starts");
            let said = both(&output);
            assert!(!output.status.success() && said.contains("the name is not UTF-8"), "{said}");
            assert_eq!(
                fs::read_dir(place.path(".")).expect("lists").count(),
                0,
                "nothing is written: {said}"
            );
        }
    }
}

#[test]
fn a_last_measure_that_is_not_finite_is_no_finished_run() {
    // The loss of the step is finite, and so are the weights; products of the weights are not.
    let broken = "--steps 1 --set optim.lr=1e30 --set optim.kind=sgd --set optim.momentum=0 \
                  --set schedule.kind=constant --set schedule.warmup_steps=0 --set train.clip_norm=0";
    side_by_side([1, 2], |ranks| {
        let place = Place::new();
        let line = train(&format!("--ranks {ranks} {broken} --out run"));
        let run = place.path("run");
        for line in [line.as_str(), "train --resume --out run"] {
            let said = place.fail(line);
            assert!(said.contains("after the last step, 1: test_loss is "), "{said}");
            assert!(!said.contains("finished"), "{said}");
            let status = fs::read_to_string(run.join("summary.json")).unwrap_or_default();
            assert!(!status.contains("\"finished\""), "{status}");
            assert!(run.join("checkpoints/step-00000001").exists(), "the weights are kept");
        }
        let output = place.output("eval --json run");
        let said = both(&output);
        assert!(!output.status.success() && said.contains("\"loss\":null"), "{said}");
        assert!(said.contains("loss is NaN: the weights are of no use"), "{said}");
    });
}

#[test]
fn steps_beyond_a_schedule_are_named_with_the_key_that_moves_its_end() {
    let place = Place::new();
    let run = place.path("run");
    place.succeed(&train("--ranks 1 --set train.steps=3 --set schedule.kind=cosine --out run"));
    let said = place.succeed_with_errors("train --resume --out run");
    assert!(
        said.contains("nothing to do: 3 of 3 steps are done") && said.contains("--set train.steps=N"),
        "{said}"
    );
    // The option stops; it does not move the schedule.
    let said = place.succeed_with_errors("train --resume --out run --steps 5");
    let words =
        "steps 4 to 5 have a learning rate of 0: the schedule ends at step 3; --set train.steps=5 --steps 0";
    assert!(said.contains(words), "{said}");
    assert_eq!(step(&run), 5);
    // Its advice makes rates that are not 0.
    let said = place.succeed_with_errors("train --resume --out run --set train.steps=8 --steps 0");
    assert!(said.contains("changed: train.steps = 8 (was 3): ") && !said.contains("rate of 0"), "{said}");
    let lines = fs::read_to_string(run.join("metrics.jsonl")).expect("reads");
    let rates: Vec<bool> = lines.lines().map(|line| !line.contains("\"lr\":0.0,")).collect();
    assert_eq!(rates, [true, true, true, false, false, true, true, true], "{lines}");
}
