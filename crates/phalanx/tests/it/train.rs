//! Whole trainings by the built program: ranks that agree, runs that go on where they were, faults that are told.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_phalanx");

/// A folder for one test's runs.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn run(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn phalanx(&self, line: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(line.split(' ').filter(|part| !part.is_empty())).current_dir(self.0.path());
        command
    }

    fn output(&self, line: &str) -> Output {
        self.phalanx(line).output().expect("phalanx runs")
    }

    /// Runs a command that must succeed and returns what it printed.
    fn succeed(&self, line: &str) -> String {
        let output = self.output(line);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{line}: {:?}\n{out}\n{err}", output.status);
        out
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("reads")).expect("is JSON")
}

/// Steps and losses of a run, the losses as they are written.
fn losses(run: &Path) -> Vec<(u64, f64)> {
    let lines = fs::read_to_string(run.join("metrics.jsonl")).expect("reads");
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("is JSON"));
    lines.filter_map(|line| Some((line["step"].as_u64()?, line["loss"].as_f64()?))).collect()
}

fn weights(run: &Path, step: u64) -> Vec<u8> {
    fs::read(run.join(format!("checkpoints/step-{step:08}/model.safetensors"))).expect("a checkpoint")
}

#[test]
fn ranks_together_learn_what_one_learns() {
    let place = Place::new();
    let common = "train tiny --steps 6 --set log.every=1 --set train.clip_norm=1 --set train.ema=0.9";
    for (name, more) in [
        ("one", "--ranks 1"),
        ("two", "--ranks 2"),
        ("four", "--ranks 4"),
        ("pieces", "--ranks 2 --set train.accumulate=2"),
    ] {
        place.succeed(&format!("{common} {more} --out {name}"));
    }
    let one = losses(&place.run("one"));
    assert_eq!(one.len(), 6);
    for name in ["two", "four", "pieces"] {
        for ((step, expected), (_, found)) in one.iter().zip(losses(&place.run(name))) {
            assert!(
                (found - expected).abs() < 2e-4 * expected.abs(),
                "{name}, step {step}: {found} {expected}"
            );
        }
    }
    let summary = json(&place.run("two").join("summary.json"));
    assert_eq!((summary["status"].as_str(), summary["world_size"].as_u64()), (Some("finished"), Some(2)));
    let ranks = summary["ranks"].as_array().expect("ranks");
    assert_eq!(ranks.len(), 2);
    for rank in ranks {
        for field in ["parameter_bytes", "gradient_bytes", "optimizer_bytes", "bytes_sent", "bytes_received"]
        {
            assert!(rank[field].as_u64().is_some_and(|bytes| bytes > 0), "{field}: {rank}");
        }
    }
}

#[test]
fn ranks_together_contrast_what_one_contrasts() {
    let place = Place::new();
    // Pictures are told apart from the texts of all ranks. The last batch of an epoch is uneven, and one rank of four has none of
    // it: 16 + 16 + 3 pictures.
    let common = "train shapes-clip --steps 6 --set log.every=1 --set model.image_size=8 --set model.widths=[4] \
        --set model.embed=8 --set model.text_width=8 --set model.text_heads=2 --set model.text_layers=1 \
        --set train.global_batch=16 --set data.images=35 --set data.test_images=20 --set data.tail=ragged \
        --set eval.every=3 --set sample.every=0 --set train.clip_norm=1";
    for (name, more) in [
        ("one", "--ranks 1"),
        ("two", "--ranks 2"),
        ("four", "--ranks 4 --strategy fsdp"),
        ("whole", "--ranks 1 --set train.accumulate=2"),
        ("pieces", "--ranks 2 --set train.accumulate=2"),
    ] {
        place.succeed(&format!("{common} {more} --out {name}"));
    }
    for (one, name) in [("one", "two"), ("one", "four"), ("whole", "pieces")] {
        let (expected, found) = (losses(&place.run(one)), losses(&place.run(name)));
        assert_eq!((expected.len(), found.len()), (6, 6));
        for ((step, expected), (_, found)) in expected.iter().zip(found) {
            let off = (found - expected).abs();
            assert!(off < 2e-4 * expected.abs(), "{name}, step {step}: {found} {expected}");
        }
        let tested = |run: &str| {
            let metrics = json(&place.run(run).join("summary.json"))["metrics"].clone();
            ["test_loss", "test_accuracy"].map(|name| metrics[name].as_f64().expect("a number"))
        };
        let ([expected, right], [found, also_right]) = (tested(one), tested(name));
        assert!((found - expected).abs() < 1e-3 * expected, "{name}: {found} {expected}");
        assert_eq!(right, also_right, "{name}");
    }
}

#[test]
fn a_resumed_run_equals_an_uninterrupted_one() {
    let place = Place::new();
    // Steps in mid-epoch, a schedule that changes, averages, crops and flips: all have to go on where they were.
    let common = "train tiny --set log.every=1 --set train.ema=0.9 --set schedule.kind=cosine \
        --set data.flip=true --set data.crop_padding=2 --set data.images=80 --set train.global_batch=16";
    place.succeed(&format!("{common} --steps 9 --out whole"));
    place.succeed(&format!("{common} --steps 4 --out parts"));
    let shown = place.succeed(&format!("{common} --steps 9 --out parts --resume"));
    assert!(shown.contains("resumed after step 4"), "{shown}");
    assert_eq!(losses(&place.run("whole")), losses(&place.run("parts")));
    for file in ["model", "optimizer", "ema"] {
        let read = |run: &str| {
            fs::read(place.run(run).join(format!("checkpoints/step-00000009/{file}.safetensors")))
                .expect("reads")
        };
        assert!(read("whole") == read("parts"), "{file} differs");
    }
    // The configuration that the run has left is enough to go on with.
    let shown = place.succeed("train --resume --out parts --steps 11");
    assert!(shown.contains("resumed after step 9"), "{shown}");
    assert_eq!(losses(&place.run("parts")).last().map(|last| last.0), Some(11));
    let shown = place.succeed("train --resume --out parts --steps 11");
    assert!(shown.contains("nothing to do"), "{shown}");
}

#[test]
fn a_run_that_was_lost_before_its_summary_is_concluded() {
    let place = Place::new();
    place.succeed("train tiny --set log.every=1 --ranks 2 --steps 5 --out run");
    let (run, summary) = (place.run("run"), place.run("run").join("summary.json"));
    let expected = json(&summary);
    let before = losses(&run);
    for resumed in ["", "--ranks 1"] {
        // As by a kill between the last checkpoint and the summary.
        fs::remove_file(&summary).expect("there is one");
        let line = format!("train --resume --out run --steps 5 {resumed}");
        let shown = place.succeed(&line);
        assert!(!shown.contains("nothing to do"), "{shown}");
        let told = json(&summary);
        assert_eq!((&told["status"], &told["step"]), (&"finished".into(), &5.into()));
        for name in ["loss", "test_loss"] {
            assert_eq!(told["metrics"][name], expected["metrics"][name], "{name}");
        }
        assert_eq!(losses(&run), before, "no step is told twice");
    }
    let shown = place.succeed("train --resume --out run --steps 5");
    assert!(shown.contains("nothing to do"), "{shown}");
}

#[test]
fn strategies_give_the_same_checkpoints_and_go_on_from_each_others() {
    let place = Place::new();
    // With averages, clipping by the global norm, micro-batches, an uneven last batch of an epoch, and a last test image
    // that only one rank has.
    let common = "train tiny --set log.every=1 --set train.ema=0.9 --set train.clip_norm=0.5 --set data.test_images=33 \
        --set train.accumulate=2 --set data.images=80 --set train.global_batch=32";
    for strategy in ["dp", "ddp", "zero1", "zero2", "fsdp"] {
        place.succeed(&format!("{common} --ranks 2 --steps 5 --strategy {strategy} --out {strategy}"));
    }
    for strategy in ["dp", "zero1", "zero2", "fsdp"] {
        // Who holds parts writes parts; checkpoints.rs compares the rest of them.
        place.succeed(&format!("export {strategy} --out {strategy}.safetensors"));
        place.succeed("export ddp --out ddp.safetensors");
        let read = |run: &str| fs::read(place.run(&format!("{run}.safetensors"))).expect("reads");
        assert!(read("ddp") == read(strategy), "{strategy}: the models differ");
        assert_eq!(losses(&place.run("ddp")), losses(&place.run(strategy)), "{strategy}");
        let tested = |run: &str| json(&place.run(run).join("summary.json"))["metrics"]["test_loss"].clone();
        assert!(
            tested("ddp").is_f64() && tested("ddp") == tested(strategy),
            "{strategy}: {}",
            tested(strategy)
        );
        let held = |field: &str| -> u64 {
            let ranks = json(&place.run(strategy).join("summary.json"))["ranks"].clone();
            ranks.as_array().expect("ranks").iter().filter_map(|rank| rank[field].as_u64()).sum()
        };
        let whole = json(&place.run("ddp").join("summary.json"))["ranks"][0].clone();
        let of_whole = |field: &str| whole[field].as_u64().expect("a number");
        assert_eq!(
            held("optimizer_bytes"),
            of_whole("optimizer_bytes"),
            "{strategy}: no state is held twice"
        );
        if strategy == "fsdp" {
            assert_eq!(held("parameter_bytes"), of_whole("parameter_bytes"), "and no parameter");
        }
    }
    // Saved by four ranks that hold parts, continued by two that hold everything, then by parts again.
    place.succeed(&format!("{common} --ranks 1 --steps 9 --out one"));
    place.succeed(&format!("{common} --ranks 4 --steps 3 --strategy fsdp --out mixed"));
    place.succeed(&format!("{common} --ranks 2 --steps 6 --strategy ddp --out mixed --resume"));
    // Three ranks have unequal shares.
    place.succeed(&format!("{common} --ranks 3 --steps 7 --strategy dp --out mixed --resume"));
    place.succeed(&format!("{common} --ranks 4 --steps 8 --strategy hsdp --out mixed --resume"));
    place.succeed(&format!("{common} --ranks 8 --steps 9 --strategy zero3 --out mixed --resume"));
    let (one, mixed) = (losses(&place.run("one")), losses(&place.run("mixed")));
    assert_eq!((one.len(), mixed.len()), (9, 9));
    for ((step, expected), (_, found)) in one.iter().zip(mixed) {
        assert!((found - expected).abs() < 1e-5 * expected.abs(), "step {step}: {found} {expected}");
    }
}

#[test]
fn replicas_live_in_one_process() {
    let place = Place::new();
    place.succeed(
        "train tiny --ranks 3 --strategy dp --steps 4 --set train.ema=0.9 --set eval.every=2 --out run",
    );
    let run = place.run("run");
    assert!(!run.join("logs/rank-1.log").exists(), "there is one process");
    assert!(run.join("samples/step-00000004.png").exists() && run.join("samples/prompts.txt").exists());
    let summary = json(&run.join("summary.json"));
    assert_eq!((summary["world_size"].as_u64(), summary["strategy"].as_str()), (Some(3), Some("dp")));
    let ranks = summary["ranks"].as_array().expect("ranks");
    let held = |rank: usize, field: &str| ranks[rank][field].as_u64().expect("a number");
    for rank in 0..3 {
        assert_eq!(held(rank, "parameter_bytes"), held(0, "parameter_bytes"), "a copy on each thread");
        assert_eq!(held(rank, "gradient_bytes") > 0, rank == 0, "summed at the leader");
        assert_eq!(held(rank, "optimizer_bytes") > 0, rank == 0, "updated at the leader");
        assert!(held(rank, "bytes_received") > 0);
    }
    // What a launcher starts are several processes.
    let launched = place
        .phalanx("train tiny --strategy dp --out launched")
        .envs([("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")])
        .output()
        .expect("runs");
    let said = text(&launched.stderr);
    assert_eq!(launched.status.code(), Some(2), "{said}");
    assert!(said.contains("threads of one process") && said.contains("--strategy ddp"), "{said}");
    assert!(!place.run("launched").exists());
    // A failure has its rank and its log, as that of a process has.
    let broken = place.output(
        "train tiny --ranks 2 --strategy dp --set optim.kind=sgd --set optim.lr=1e30 --set optim.momentum=0 --out broken",
    );
    let said = text(&broken.stderr);
    assert_eq!(broken.status.code(), Some(1), "{said}");
    assert!(said.contains("rank 0 failed: step ") && said.contains("rank-0.log"), "{said}");
    let unread = place.output("train tiny --ranks 2 --strategy dp --data cifar10=nowhere --out unread");
    let said = text(&unread.stderr);
    assert!(
        unread.status.code() == Some(1) && said.contains("rank 0 failed: ") && said.contains("nowhere"),
        "{said}"
    );
}

#[test]
fn a_damaged_checkpoint_is_told_and_an_older_one_used() {
    let place = Place::new();
    place.succeed("train tiny --ranks 1 --steps 6 --set checkpoint.every=3 --out run");
    let file = place.run("run").join("checkpoints/step-00000006/model.safetensors");
    let bytes = fs::read(&file).expect("reads");
    fs::write(&file, &bytes[..bytes.len() / 2]).expect("writes");
    let shown = place.succeed("train --resume --out run --steps 7");
    assert!(shown.contains("model.safetensors: has ") && shown.contains("resumed after step 3"), "{shown}");
}

#[test]
fn a_run_can_be_evaluated_and_sampled() {
    let place = Place::new();
    let shown = place.succeed("train tiny --ranks 1 --out run");
    let plain = shown.lines().find(|line| line.trim_start().starts_with("step  1/30")).unwrap_or(&shown);
    for word in ["loss ", "lr ", "images/s", "mem ", "data ", "comm "] {
        assert!(plain.contains(word), "{plain}");
    }
    let run = place.run("run");
    let curve = losses(&run);
    assert!(curve[curve.len() - 1].1 < 0.8 * curve[0].1, "{curve:?}");
    for file in [
        "config.toml",
        "metrics.jsonl",
        "summary.json",
        "curves.svg",
        "checkpoints/latest",
        "logs/rank-0.log",
    ] {
        assert!(run.join(file).exists(), "{file}");
    }
    assert!(run.join("samples/step-00000030.png").exists());
    let found: Value = serde_json::from_str(&place.succeed("eval --run run")).expect("is JSON");
    let told = json(&run.join("summary.json"))["metrics"]["test_loss"].as_f64().expect("a test loss");
    let loss = found["loss"].as_f64().expect("a loss");
    assert!((loss - told).abs() < 1e-5 * told.abs(), "{loss} {told}");
    let weights = "--weights run/checkpoints/step-00000030/model.safetensors";
    let same = "--set model.image_size=16 --set model.latent=16 --set model.widths=[8,16] --set model.text_width=16 \
        --set model.text_layers=1 --set model.text_heads=2 --set data.test_images=32 --set model.l1_smooth=0 \
        --set model.kl_weight=0.0005";
    let shown = place.succeed(&format!("eval --model cvae {weights} --data shapes {same}"));
    let found: Value = serde_json::from_str(&shown).expect("is JSON");
    let of_weights = found["loss"].as_f64().expect("a loss");
    assert!((of_weights - told).abs() < 1e-5 * told.abs(), "{of_weights} {told}");
    let prompts = ["--prompt", "a small red circle", "--prompt", "a large blue square"];
    let drawn =
        place.phalanx("sample --run run --out grid.png --columns 3").args(prompts).output().expect("runs");
    assert!(drawn.status.success(), "{}", text(&drawn.stderr));
    let grid = fs::read(place.run("grid.png")).expect("a picture");
    assert!(grid.starts_with(b"\x89PNG"));
    let again = place.output("train tiny --ranks 1 --out run");
    assert_eq!(again.status.code(), Some(1));
    assert!(text(&again.stderr).contains("already holds a run"), "{}", text(&again.stderr));
}

#[test]
fn a_dry_run_trains_nothing() {
    let place = Place::new();
    let shown = place.succeed("train tiny --dry-run --out run");
    assert!(
        shown.contains("parameters: ")
            && shown.contains("[train]")
            && shown.contains("steps: 16 in an epoch, 30 in all"),
        "{shown}"
    );
    assert!(!place.run("run").exists());
}

#[test]
fn every_instruction_set_trains_and_others_are_refused() {
    let place = Place::new();
    let mut last = Vec::new();
    for level in ["portable", "avx2", "avx512", "neon", "sse9"] {
        let run = format!("train tiny --ranks 1 --steps 4 --out {level}");
        let output = place.phalanx(&run).env("PHALANX_SIMD", level).output().expect("runs");
        if output.status.success() {
            last.push(losses(&place.run(level)).last().expect("a loss").1);
        } else {
            let said = text(&output.stderr);
            assert!(said.contains(&format!("instruction set `{level}`")), "{said}");
        }
    }
    assert!(!last.is_empty() && last.iter().all(|loss| (loss / last[0] - 1.0).abs() < 1e-3), "{last:?}");
}

#[test]
fn a_broken_loss_names_the_step_and_nothing_is_saved_after_the_one_before() {
    for (ranks, names) in [(1, "step "), (2, "rank 0 failed: step ")] {
        let place = Place::new();
        let output = place.output(&format!(
            "train tiny --ranks {ranks} --set optim.kind=sgd --set optim.lr=1e30 --set optim.momentum=0 \
             --set checkpoint.every=1 --set checkpoint.keep=9 --out run"
        ));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(names) && said.contains("the loss is "), "{said}");
        assert_eq!(said.contains("rank-0.log"), ranks > 1, "{said}");
        // Every step before was saved, and no other.
        let named = said.split("step ").nth(1).and_then(|rest| rest.split(':').next());
        let step: u64 = named.and_then(|step| step.parse().ok()).expect("a step");
        let mut saved: Vec<_> = fs::read_dir(place.run("run").join("checkpoints"))
            .expect("lists")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .filter(|name| name != "latest")
            .collect();
        saved.sort();
        let before: Vec<_> = (1..step).map(|step| format!("step-{step:08}")).collect();
        assert!(step > 1 && saved == before, "step {step}: {saved:?}\n{said}");
        // Nor is there a line of it, which would read as a measurement.
        let logged = losses(&place.run("run"));
        assert!(logged.iter().all(|(at, loss)| *at < step && loss.is_finite()), "{logged:?}");
    }
}

#[test]
fn unreadable_data_names_the_file() {
    let place = Place::new();
    fs::create_dir(place.run("images")).expect("a folder");
    fs::write(place.run("images").join("data_batch_1.bin"), [1; 5000]).expect("writes");
    for arguments in ["--data cifar10=images", "--data cifar10=nowhere", "--data folder=images"] {
        let output =
            place.output(&format!("train tiny {arguments} --out {}", arguments.replace(['-', ' ', '='], "")));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("failed: ") && (said.contains("images") || said.contains("nowhere")), "{said}");
    }
    // Nothing was trained, so the same folder serves once the mistake is mended; its logs stay.
    let folder = "datacifar10nowhere";
    assert!(place.run(folder).join("logs").is_dir() && !place.run(folder).join("config.toml").exists());
    let output = place.output(&format!("train tiny --steps 1 --out {folder}"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let again = place.output(&format!("train tiny --steps 1 --out {folder}"));
    assert!(text(&again.stderr).contains("already holds a run"), "{}", text(&again.stderr));
}

/// A training that would take hours, begun.
fn begin(place: &Place, strategy: &str) -> Child {
    begin_with(place, strategy, &[])
}

/// A training that would take hours, begun with more in its environment.
fn begin_with(place: &Place, strategy: &str, environment: &[(&str, &Path)]) -> Child {
    let line = format!(
        "train tiny --ranks 3 --strategy {strategy} --set train.global_batch=12 --steps 1000000 --out run"
    );
    let mut child = place
        .phalanx(&line)
        .envs(environment.iter().copied())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let metrics = place.run("run").join("metrics.jsonl");
    let since = Instant::now();
    while fs::read_to_string(&metrics).map_or(0, |text| text.lines().count()) < 2 {
        assert!(since.elapsed() < Duration::from_secs(60), "no step within a minute");
        assert!(child.try_wait().expect("waits").is_none(), "ended early");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

/// The processes that `parent` has started and that have not ended.
fn children(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        fields.first().is_some_and(|state| *state != "Z")
            && fields.get(1) == Some(&parent.to_string().as_str())
    };
    let mut found: Vec<u32> = pids.filter(is_child).collect();
    found.sort_unstable();
    found
}

fn is_alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

fn send(signal: &str, pid: u32) {
    assert!(Command::new("kill").args([signal, &pid.to_string()]).status().expect("kill").success());
}

fn eventually(what: &str, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_killed_rank_ends_the_job_soon() {
    let place = Place::new();
    let child = begin(&place, "ddp");
    let ranks = children(child.id());
    assert_eq!(ranks.len(), 3);
    let since = Instant::now();
    // Ranks are started in order, so this is rank 1.
    send("-KILL", ranks[1]);
    let output = child.wait_with_output().expect("ends");
    let said = text(&output.stderr);
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("rank 1 failed: was killed by signal 9") && said.contains("rank-1.log"), "{said}");
    eventually("ranks are left", || !ranks.iter().any(|pid| is_alive(*pid)));
}

#[test]
#[cfg(target_os = "linux")]
fn a_killed_parent_takes_its_ranks_along() {
    let place = Place::new();
    let mut child = begin(&place, "ddp");
    let ranks = children(child.id());
    child.kill().expect("kills");
    child.wait().expect("ends");
    eventually("ranks are left", || !ranks.iter().any(|pid| is_alive(*pid)));
}

#[test]
#[cfg(target_os = "linux")]
fn an_interrupt_leaves_a_checkpoint_and_a_summary() {
    for (strategy, code) in [("ddp", 0), ("dp --interrupted-code 75", 75)] {
        let place = Place::new();
        let child = begin(&place, strategy);
        send("-INT", child.id());
        let output = child.wait_with_output().expect("ends");
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
        let run = place.run("run");
        let summary = json(&run.join("summary.json"));
        assert_eq!(summary["status"].as_str(), Some("interrupted"));
        let step = summary["step"].as_u64().expect("a step");
        assert_eq!(losses(&run).last().map(|last| last.0), Some(step));
        assert!(!weights(&run, step).is_empty());
        let shown = place.succeed(&format!("train --resume --out run --steps {}", step + 2));
        assert!(shown.contains(&format!("resumed after step {step}")), "{shown}");
    }
}

/// The files below a folder, with what is in them.
#[cfg(target_os = "linux")]
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            all.extend(contents(&path));
        } else {
            all.push((path.clone(), fs::read(path).expect("reads")));
        }
    }
    all
}

#[test]
#[cfg(target_os = "linux")]
fn secrets_are_in_no_argument_environment_log_or_folder() {
    use std::os::unix::fs::PermissionsExt as _;
    let secret = "0f4b8d51c6e27a93ffb1c0d2e4a6880917263544536271809fadbeef01234567";
    for given in [true, false] {
        let place = Place::new();
        let file = place.0.path().join("the-secret");
        fs::write(&file, format!("{secret}\n")).expect("writes");
        let environment = [("PHALANX_SECRET_FILE", file.as_path())];
        let environment = if given { &environment[..] } else { &[] };
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("ours");
        if given {
            let output =
                place.phalanx("train tiny --ranks 2 --out open").envs(environment.iter().copied()).output();
            let said = text(&output.expect("runs").stderr);
            assert!(said.contains("chmod 600"), "{said}");
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("ours");
        // Between hosts everything is encrypted; who has no secret could not do that.
        let mut child = begin_with(&place, "ddp --set comm.encryption=all", environment);
        let ranks = children(child.id());
        assert_eq!(ranks.len(), 3);
        let is_hex =
            |bytes: &[u8]| bytes.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte));
        for pid in ranks.iter().chain([&child.id()]) {
            for what in ["cmdline", "environ"] {
                let shown = fs::read(format!("/proc/{pid}/{what}")).expect("it lives");
                // One that was made for these ranks looks like the one that was given.
                let found = shown.windows(secret.len()).find(|window| is_hex(window));
                assert!(found.is_none(), "{what} of {pid}: {found:?}");
            }
        }
        send("-INT", child.id());
        assert!(child.wait().is_ok());
        let mut said = String::new();
        std::io::Read::read_to_string(&mut child.stderr.take().expect("piped"), &mut said).expect("text");
        assert!(!said.contains(secret), "{said}");
        for (path, bytes) in contents(&place.run("run")) {
            assert!(
                !bytes.windows(secret.len()).any(|window| window == secret.as_bytes()),
                "{}",
                path.display()
            );
            // Checkpoints name hashes of their files.
            let is_log = path.extension().is_some_and(|kind| kind == "log" || kind == "toml");
            assert!(!is_log || !bytes.windows(secret.len()).any(is_hex), "{}", path.display());
        }
    }
}
