//! Trainings on a GPU by configuration, in the built program, on the software GPU.
#![cfg(feature = "cuda")]

#[path = "../../cuda/tests/software/mod.rs"]
mod software;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// How many GPUs the software driver has.
const DEVICES: &str = "SOFTWARE_GPU_COUNT";

/// A folder of runs, and the libraries that programs find there.
struct Place {
    runs: tempfile::TempDir,
    /// Those of the software GPU; nothing where the machine's own are used.
    libraries: Option<&'static Path>,
}

impl Place {
    /// None, and a message, where the software GPU cannot be built.
    fn new() -> Option<Self> {
        Self::of(Some(software::libraries()?))
    }

    /// With the machine's own GPUs if they are asked for.
    fn anywhere() -> Option<Self> {
        if software::is_real() { Self::of(None) } else { Self::new() }
    }

    fn of(libraries: Option<&'static Path>) -> Option<Self> {
        Some(Self { runs: tempfile::tempdir().expect("a folder"), libraries })
    }

    /// Whether there are so many GPUs; a message if not.
    fn has(&self, gpus: usize) -> bool {
        let there = if self.libraries.is_some() { gpus } else { phalanx_cuda::Device::count().unwrap_or(0) };
        if there < gpus {
            println!("skipped: {gpus} ranks on {there} GPU(s)");
        }
        there >= gpus
    }

    fn run(&self, name: &str) -> PathBuf {
        self.runs.path().join(name)
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        let words = line.split(' ').filter(|part| !part.is_empty());
        if let Some(libraries) = self.libraries {
            command.env("LD_LIBRARY_PATH", libraries).env("XDG_CACHE_HOME", libraries);
        }
        command.args(words).current_dir(self.runs.path());
        command
    }

    fn output(&self, line: &str) -> Output {
        // As many GPUs as a line that names ranks has ranks.
        let ranks = line.split("train.ranks=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or("1");
        self.command(line).env(DEVICES, ranks).output().expect("phalanx runs")
    }

    fn succeed(&self, line: &str) -> String {
        let output = self.output(line);
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{line}: {text}");
        text
    }

    fn fail(&self, line: &str) -> String {
        let output = self.output(line);
        assert!(!output.status.success(), "{line} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// A field of every logged line.
fn column(run: &Path, name: &str) -> Vec<f64> {
    let lines = fs::read_to_string(run.join("metrics.jsonl")).expect("reads");
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("is JSON"));
    lines.filter_map(|line| line[name].as_f64()).collect()
}

/// Every number of every logged line that is a loss.
fn losses(run: &Path) -> Vec<f64> {
    let lines = fs::read_to_string(run.join("metrics.jsonl")).expect("reads");
    let mut all = Vec::new();
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).expect("is JSON");
        let fields = line.as_object().expect("is an object").iter();
        all.extend(fields.filter(|(name, _)| name.ends_with("loss")).filter_map(|(_, value)| value.as_f64()));
    }
    all
}

/// One rank on a GPU and one on the processor have the same losses.
fn agree(place: &Place, line: &str, tolerance: f64) {
    agree_on(place, 1, line, tolerance);
}

/// Ranks with a GPU each, and as many on the processor, have the same losses.
fn agree_on(place: &Place, ranks: usize, line: &str, tolerance: f64) {
    if !place.has(ranks) {
        return;
    }
    for device in ["cpu", "cuda"] {
        let common = format!("--set train.ranks={ranks} --set train.threads=1 --set log.every=1");
        let text =
            place.succeed(&format!("train {line} {common} --set train.device={device} --out {device}"));
        assert_eq!(device == "cuda", text.contains("GPU 0, "), "{text}");
    }
    let [on_cpu, on_gpu] = ["cpu", "cuda"].map(|name| losses(&place.run(name)));
    assert!(on_cpu.len() == on_gpu.len() && on_cpu.len() >= 5, "{} and {}", on_cpu.len(), on_gpu.len());
    for (step, (a, b)) in on_cpu.iter().zip(&on_gpu).enumerate() {
        assert!((a - b).abs() <= tolerance * a.abs().max(1e-3), "{line}, step {step}: {a} and {b}");
    }
    for name in ["cpu", "cuda"] {
        fs::remove_dir_all(place.run(name)).expect("removes");
    }
}

#[test]
fn an_autoencoder_trains_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    agree(&place, "tiny --steps 5 --set train.clip_norm=1 --set train.ema=0.9", 1e-4);
    agree(&place, "tiny --steps 5 --set train.precision=bf16", 2e-2);
    agree(&place, "tiny --steps 5 --set train.precision=f16 --set train.recompute=2", 4e-3);
    // Of six test images more are asked for than there are.
    let latent = "shapes-autoencoder --steps 5 --set model.image_size=16 --set model.widths=[8,16] \
                  --set model.groups=4 --set data.images=16 --set data.test_images=6 --set train.global_batch=4 \
                  --set train.threads=1 --set eval.batch=4 --set sample.rows=8";
    agree(&place, latent, 1e-3);
}

#[test]
fn a_run_on_a_gpu_goes_on_bit_for_bit() {
    let Some(place) = Place::new() else { return };
    let common =
        "train tiny --set train.ranks=1 --set log.every=1 --set train.device=cuda --set train.ema=0.9";
    place.succeed(&format!("{common} --steps 5 --out whole"));
    place.succeed(&format!("{common} --steps 3 --out parts"));
    place.succeed(&format!("{common} --steps 5 --out parts --resume"));
    assert_eq!(column(&place.run("whole"), "loss"), column(&place.run("parts"), "loss"));
    for run in ["whole", "parts"] {
        place.succeed(&format!("export {run} --out {run}.safetensors"));
    }
    let [whole, parts] = ["whole", "parts"].map(|run| fs::read(place.run(&format!("{run}.safetensors"))));
    assert!(whole.expect("reads") == parts.expect("reads"), "the weights differ");
    let energy = column(&place.run("whole"), "gpu_energy_joules");
    assert!(energy.len() == 5 && energy.is_sorted() && energy[4] > energy[0], "{energy:?}");
    assert_eq!(column(&place.run("whole"), "gpu_power_watts"), [123.456; 5]);
    let summary = fs::read(place.run("whole").join("summary.json")).expect("reads");
    let summary: Value = serde_json::from_slice(&summary).expect("is JSON");
    let peak = |kind: &str| summary["metrics"][format!("gpu_peak_{kind}_bytes")].as_u64().expect("a number");
    // Of 143,467 parameters: weights; two moments and the averages, which the optimizer's kind has too.
    assert_eq!((peak("gradients"), peak("optimizer")), (143_467 * 4, 143_467 * 12));
    assert!(peak("parameters") >= 143_467 * 4 && peak("activations") > 0, "{summary}");
    place.succeed("sample --run whole --prompt red --out red.png");
}

#[test]
fn classifiers_train_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    let small = "--steps 5 --set data.kind=shapes --set data.images=64 --set data.test_images=8 \
                 --set model.image_size=16 --set train.global_batch=4 --set train.accumulate=1";
    // Roundings grow at every ReLU of a deep network with batch norm.
    agree(&place, &format!("cifar10-resnet18 {small}"), 3e-2);
    agree(&place, &format!("cifar10-mobilenetv2 {small}"), 3e-2);
    // Channels-last.
    agree(&place, &format!("cifar10-resnet18 {small} --set train.precision=bf16"), 0.1);
    agree(&place, &format!("cifar10-mobilenetv2 {small} --set train.precision=bf16"), 0.1);
}

#[test]
fn what_learns_pictures_with_texts_trains_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    let common =
        "--steps 5 --set train.threads=1 --set data.images=24 --set data.test_images=8 --set eval.batch=4";
    let clip = "--set model.image_size=8 --set model.widths=[4] --set model.embed=8 --set model.text_width=8 \
                --set model.text_heads=2 --set model.text_layers=1 --set train.global_batch=8";
    agree(&place, &format!("shapes-clip {common} {clip}"), 1e-3);
    let diffusion = "--set model.kind=diffusion --set model.image_size=16 --set model.widths=[8,16] \
                     --set model.attention=[false,true] --set model.groups=4 --set model.heads=2 \
                     --set model.text_width=16 --set model.text_layers=1 --set model.text_heads=2 \
                     --set model.text_context=12 --set model.sample_steps=2 --set model.drop_text=0.3 \
                     --set model.dropout=0.1 --set train.global_batch=4 --set sample.rows=1 --set sample.columns=1";
    agree(&place, &format!("tiny {common} {diffusion}"), 1e-3);
    agree(&place, &format!("tiny {common} {diffusion} --set train.precision=bf16"), 3e-2);
}

#[test]
fn networks_against_each_other_train_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    let gan = "--steps 5 --set model.kind=stackgan --set model.image_size=32 --set model.upscale=2 \
               --set model.condition=8 --set model.noise=4 --set model.gf_dim=4 --set model.df_dim=4 \
               --set model.residual_blocks=1 --set model.embed=16 --set model.text_part=0.2 \
               --set model.stage1_part=0.4 --set train.steps=5 --set train.global_batch=12 --set train.threads=1 \
               --set data.images=24 --set data.test_images=9 --set eval.batch=2 --set sample.rows=2 \
               --set sample.columns=1 --set optim.kind=adam --set optim.lr=2e-4 --set optim.betas=[0.5,0.999] \
               --set optim.eps=1e-4 --set schedule.kind=constant";
    agree(&place, &format!("tiny {gan}"), 1e-3);
}

#[test]
fn losses_are_read_a_step_late_and_are_the_same() {
    let Some(place) = Place::anywhere() else { return };
    let common = "train tiny --steps 7 --set train.ranks=1 --set train.device=cuda --set train.clip_norm=0.5";
    place.succeed(&format!("{common} --set log.every=1 --out each"));
    place.succeed(&format!("{common} --set log.every=3 --out some"));
    for name in ["loss", "grad_norm"] {
        let [each, some] = ["each", "some"].map(|run| column(&place.run(run), name));
        assert_eq!(each.len(), 7, "{name}");
        assert_eq!(some, [0, 2, 5, 6].map(|step| each[step]), "{name}");
    }
    // A loss that is not finite is noticed when the next step is queued, before anything is saved or told of a later one.
    let broken = "--set optim.lr=1e30 --set checkpoint.every=3 --set log.every=1000 --set train.clip_norm=0";
    let error = place.fail(&format!(
        "train tiny --steps 9 --set train.ranks=1 --set train.device=cuda {broken} --out broken"
    ));
    assert!(error.contains("is not finite") || error.contains("NaN") || error.contains("inf"), "{error}");
    let saved = fs::read_dir(place.run("broken").join("checkpoints")).map_or(0, Iterator::count);
    assert_eq!(saved, 0, "{error}");
}

#[test]
fn the_state_of_an_optimizer_may_lie_on_the_host() {
    let Some(place) = Place::anywhere() else { return };
    let common =
        "train tiny --set train.ranks=1 --set log.every=1 --set train.device=cuda --set train.ema=0.9";
    let offload = "--set train.offload=optimizer";
    place.succeed(&format!("{common} --steps 5 --out there"));
    place.succeed(&format!("{common} {offload} --steps 5 --out whole"));
    place.succeed(&format!("{common} {offload} --steps 3 --out parts"));
    place.succeed(&format!("{common} {offload} --steps 5 --out parts --resume"));
    let [there, whole, parts] = ["there", "whole", "parts"].map(|run| column(&place.run(run), "loss"));
    assert_eq!(whole, parts);
    for (a, b) in there.iter().zip(&whole) {
        assert!((a - b).abs() <= 1e-5 * a.abs(), "{there:?} and {whole:?}");
    }
    let peak = |run: &str| {
        let summary = fs::read(place.run(run).join("summary.json")).expect("reads");
        let summary: Value = serde_json::from_slice(&summary).expect("is JSON");
        summary["metrics"]["gpu_peak_optimizer_bytes"].as_u64().expect("a number")
    };
    assert_eq!((peak("there"), peak("whole")), (143_467 * 12, 0));
    // In files: to the bit what the processor computes.
    let disk = "--set train.offload=disk --set train.offload_folder=files";
    place.succeed(&format!("{common} {disk} --steps 5 --out disk"));
    assert_eq!(column(&place.run("disk"), "loss"), whole);
    assert_eq!(peak("disk"), 0);
    assert!(!place.run("files").exists(), "files are deleted");
}

/// The most bytes of a kind that a run's first GPU held.
fn peak(run: &Path, kind: &str) -> u64 {
    let summary = fs::read(run.join("summary.json")).expect("reads");
    let summary: Value = serde_json::from_slice(&summary).expect("is JSON");
    summary["metrics"][format!("gpu_peak_{kind}_bytes")].as_u64().expect("a number")
}

#[test]
fn parameters_may_lie_on_the_host() {
    let Some(place) = Place::anywhere() else { return };
    // Units of at most a block; evaluations, samples and checkpoints between.
    let common = "tiny --steps 5 --set train.threads=1 --set log.every=1 --set train.device=cuda --set train.ema=0.9 \
                  --set train.bucket_kib=0 --set eval.every=2 --set checkpoint.every=2 --set sample.every=4";
    for (ranks, strategy) in [(1, "ddp"), (2, "ddp"), (2, "fsdp"), (4, "hsdp")] {
        if !place.has(ranks) {
            continue;
        }
        let line = format!("train {common} --set train.ranks={ranks} --strategy {strategy}");
        for offload in ["optimizer", "parameters"] {
            place.succeed(&format!("{line} --set train.offload={offload} --out {offload}"));
        }
        let [there, here] = ["optimizer", "parameters"].map(|run| place.run(run));
        assert_eq!(losses(&there), losses(&here), "{strategy} on {ranks}");
        assert!(losses(&here).len() >= 5);
        for run in ["optimizer", "parameters"] {
            place.succeed(&format!("export {run} --out {run}.safetensors"));
        }
        let [a, b] =
            ["optimizer", "parameters"].map(|run| fs::read(place.run(&format!("{run}.safetensors"))));
        assert!(a.expect("reads") == b.expect("reads"), "{strategy} on {ranks}: the weights differ");
        let [parameters, gradients] =
            ["parameters", "gradients"].map(|kind| [&there, &here].map(|run| peak(run, kind)));
        // Where ranks have shards, samples want all parameters; between groups the shards of all gradients wait for each other.
        assert!(parameters[1] < parameters[0] || strategy != "ddp", "{strategy} on {ranks}: {parameters:?}");
        assert!(gradients[1] < gradients[0] || strategy == "hsdp", "{strategy} on {ranks}: {gradients:?}");
        if ranks == 1 {
            // Of 143,467 parameters two units, of which the largest has 34,664; nothing of what the processor keeps.
            assert!(peak(&here, "parameters") <= 2 * 4 * 34_664, "{}", peak(&here, "parameters"));
            assert_eq!(peak(&here, "optimizer"), 0);
            place.succeed("sample --run parameters --prompt red --out red.png");
            place.succeed("eval --run parameters");
        }
        for run in [there, here] {
            fs::remove_dir_all(run).expect("removes");
        }
    }
}

#[test]
fn runs_with_parameters_on_the_host_go_on_bit_for_bit() {
    let Some(place) = Place::anywhere() else { return };
    for (ranks, strategy) in [(1, "ddp"), (2, "fsdp")] {
        if !place.has(ranks) {
            continue;
        }
        let common = format!(
            "train tiny --set train.ranks={ranks} --strategy {strategy} --set log.every=1 --set train.device=cuda \
             --set train.threads=1 --set train.ema=0.9 --set train.bucket_kib=0 --set train.clip_norm=1"
        );
        let offload = "--set train.offload=parameters";
        place.succeed(&format!("{common} {offload} --steps 5 --out whole"));
        place.succeed(&format!("{common} {offload} --steps 3 --out parts"));
        place.succeed(&format!("{common} {offload} --steps 5 --out parts --resume"));
        place.succeed(&format!("{common} --set train.offload=optimizer --steps 5 --out there"));
        let [whole, parts, there] = ["whole", "parts", "there"].map(|run| column(&place.run(run), "loss"));
        assert_eq!(whole, parts, "{strategy}");
        // Norms are added up elsewhere.
        for (a, b) in there.iter().zip(&whole) {
            assert!((a - b).abs() <= 1e-5 * a.abs(), "{strategy}: {there:?} and {whole:?}");
        }
        for run in ["whole", "parts", "there"] {
            fs::remove_dir_all(place.run(run)).expect("removes");
        }
    }
    let on_host = "--set train.offload=parameters --set train.bucket_kib=0";
    graphs_change_nothing(&place, 1, &format!("tiny {on_host} --set eval.every=3"));
    graphs_change_nothing(&place, 2, &format!("tiny {on_host} --strategy fsdp"));
    if place.has(2) {
        let refused =
            "train tiny --steps 1 --set train.ranks=2 --set train.device=cuda --strategy zero2 --out refused";
        let error = place.fail(&format!("{refused} {on_host}"));
        assert!(error.contains("zero2") && error.contains("`ddp`, `fsdp` and `hsdp` can"), "{error}");
    }
}

/// The losses of a training by graphs are those of one without, to the last bit; how many pieces of work graphs have.
fn graphs_change_nothing(place: &Place, ranks: usize, line: &str) -> usize {
    if !place.has(ranks) {
        return 0;
    }
    let common = format!(
        "--steps 6 --set train.ranks={ranks} --set train.threads=1 --set log.every=1 --set train.device=cuda"
    );
    for graphs in [false, true] {
        place.succeed(&format!("train {line} {common} --set train.graphs={graphs} --out {graphs}"));
    }
    let [without, with] = ["false", "true"].map(|run| losses(&place.run(run)));
    assert_eq!(with, without, "{line}");
    assert!(with.len() >= 6);
    let log = fs::read_to_string(place.run("true").join("logs/rank-0.log")).expect("reads");
    let recorded = log
        .lines()
        .filter_map(|line| line.split(" pieces of work are recorded as").next()?.rsplit(' ').next());
    let most = recorded.filter_map(|count| count.parse().ok()).max();
    for run in ["false", "true"] {
        fs::remove_dir_all(place.run(run)).expect("removes");
    }
    most.unwrap_or_else(|| panic!("{line}: nothing was recorded: {log}"))
}

#[test]
fn steps_launched_as_graphs_have_the_same_bits() {
    let Some(place) = Place::anywhere() else { return };
    // Random numbers, weights of losses that change from step to step, averages, clipping, checkpoints and evaluations between.
    let tiny = "tiny --set train.clip_norm=1 --set train.ema=0.9 --set eval.every=2 --set checkpoint.every=3";
    assert!(graphs_change_nothing(&place, 1, tiny) > 100);
    // A scale of the loss that is too large at first: steps that leave their update out.
    graphs_change_nothing(
        &place,
        1,
        "tiny --set train.precision=f16 --set train.recompute=2 --set train.accumulate=2",
    );
    // Scales at which some steps overflow: after one that was recorded with its update, and before any had averages.
    for scale in [1_400_000, 1_700_000] {
        let some = format!(
            "tiny --set train.precision=f16 --set train.loss_scale={scale} --set optim.lr=0.01 --set train.ema=0.9"
        );
        graphs_change_nothing(&place, 1, &format!("{some} --set train.clip_norm=1"));
    }
    // The last batch of an epoch is smaller than the others.
    let small = "--set data.kind=shapes --set data.images=18 --set data.test_images=8 --set data.tail=ragged \
                 --set model.image_size=16 --set model.width=8 --set train.global_batch=4";
    graphs_change_nothing(&place, 1, &format!("cifar10-resnet18 {small} --set train.precision=bf16"));
    let diffusion = "tiny --set model.kind=diffusion --set model.image_size=16 --set model.widths=[8,16] \
                     --set model.attention=[false,true] --set model.groups=4 --set model.heads=2 \
                     --set model.text_width=16 --set model.text_layers=1 --set model.text_heads=2 \
                     --set model.text_context=12 --set model.sample_steps=2 --set model.drop_text=0.3 \
                     --set train.global_batch=4 --set sample.rows=1 --set sample.columns=1";
    graphs_change_nothing(&place, 1, diffusion);
}

#[test]
fn graphs_lie_between_what_ranks_send_each_other() {
    let Some(place) = Place::anywhere() else { return };
    for strategy in ["ddp", "zero2", "fsdp"] {
        // Evaluations gather parameters in another order.
        graphs_change_nothing(
            &place,
            2,
            &format!("tiny --strategy {strategy} --set train.clip_norm=1 --set eval.every=3"),
        );
    }
    let synchronised = "--set data.kind=shapes --set data.images=24 --set data.test_images=8 \
                        --set model.image_size=16 --set model.width=8 --set train.global_batch=4 \
                        --set model.sync_batch_norm=true";
    graphs_change_nothing(&place, 2, &format!("cifar10-resnet18 {synchronised} --strategy zero1"));
}

/// Bytes that each step but the first copied to the GPU.
fn uploaded(run: &Path) -> Vec<f64> {
    column(run, "gpu_uploaded_bytes").windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn images_travel_as_bytes_and_small_sets_stay() {
    let Some(place) = Place::anywhere() else { return };
    // Two steps an epoch of 4 images of 16 × 16, cut out of a black border and mirrored; read when they are asked for.
    let common = "train cifar10-resnet18 --steps 6 --set train.ranks=1 --set train.device=cuda --set log.every=1 \
                  --set data.kind=shapes --set data.images=8 --set data.test_images=8 --set data.workers=0 \
                  --set data.crop_padding=2 --set data.flip=true --set model.image_size=16 --set model.width=8 \
                  --set train.global_batch=4 --set train.accumulate=1 --set train.threads=1 --set eval.every=3";
    place.succeed(&format!("{common} --set data.device_cache_mib=0 --out read"));
    place.succeed(&format!("{common} --out kept"));
    place.succeed(&format!("{common} --set train.graphs=true --out graphs"));
    let parts = common.replace("--steps 6", "--steps 3");
    place.succeed(&format!("{parts} --out parts"));
    place.succeed(&format!("{common} --out parts --resume"));
    let bytes = 4.0 * 16.0 * 16.0 * 3.0;
    // Labels and places besides. The third and the last step are followed by an evaluation of two batches.
    let few = bytes / 8.0;
    let [read, kept] = ["read", "kept"].map(|run| uploaded(&place.run(run)));
    assert_eq!(read.len(), 5);
    for (step, batches) in [(0, 1.0), (1, 3.0), (2, 1.0), (3, 1.0), (4, 3.0)] {
        let sent = read[step];
        let whole = bytes * batches;
        assert!((whole..whole + few).contains(&sent), "step {}: {sent} of {} bytes", step + 2, 4.0 * whole);
    }
    // The first epoch brings all training images, and the first evaluation those for testing.
    assert!(kept[0] >= bytes && (2.0 * bytes..2.0 * bytes + few).contains(&kept[1]), "{kept:?}");
    assert!(kept[2..].iter().all(|sent| *sent < few), "{kept:?}");
    let all = losses(&place.run("read"));
    assert_eq!(all.len(), 8, "six steps and two evaluations: {all:?}");
    for run in ["kept", "graphs", "parts"] {
        assert_eq!(losses(&place.run(run)), all, "{run}");
    }
    let held = |run: &str| {
        let summary = fs::read(place.run(run).join("summary.json")).expect("reads");
        let summary: Value = serde_json::from_slice(&summary).expect("is JSON");
        summary["metrics"]["gpu_peak_data_bytes"].as_u64().expect("a number")
    };
    assert_eq!((held("read"), held("kept")), (0, 16 * 16 * 16 * 3));
}

#[test]
fn images_prepared_on_a_gpu_are_those_of_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    // Cut out of what is larger, and of what has a border.
    let cut = "--set data.resize=20 --set data.flip=true";
    let border = "--set data.crop_padding=3 --set data.flip=true --set data.images=48";
    agree(&place, &format!("tiny --steps 5 {cut}"), 1e-4);
    agree(&place, &format!("tiny --steps 7 {border}"), 1e-4);
    agree(&place, &format!("tiny --steps 5 {border} --set train.precision=bf16"), 2e-2);
    for strategy in ["ddp", "dp"] {
        agree_on(&place, 2, &format!("tiny --steps 7 {border} --strategy {strategy}"), 1e-4);
    }
}

#[test]
fn a_lost_rank_is_named_by_ranks_on_gpus() {
    let Some(place) = Place::new() else { return };
    let line = "train tiny --steps 100000 --ranks 2 --set train.ranks=2 --set train.device=cuda --set log.every=1 --out lost";
    let mut running = place.command(line);
    running.env(DEVICES, "2").stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped());
    let running = running.spawn().expect("phalanx runs");
    let started = std::time::Instant::now();
    let wait = std::time::Duration::from_millis(50);
    while fs::read_to_string(place.run("lost").join("metrics.jsonl")).map_or(0, |lines| lines.lines().count())
        < 3
    {
        assert!(started.elapsed().as_secs() < 240, "three steps");
        std::thread::sleep(wait);
    }
    // The launcher's children are the ranks.
    let children =
        Command::new("pgrep").args(["-P", &running.id().to_string()]).output().expect("pgrep runs");
    let children = String::from_utf8_lossy(&children.stdout).into_owned();
    let victim = children.split_whitespace().last().expect("a rank").to_owned();
    assert!(Command::new("kill").args(["-9", &victim]).status().expect("kill runs").success());
    let output = running.wait_with_output().expect("phalanx ends");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("rank "), "{error}");
    assert!(error.contains("signal 9") || error.contains("killed"), "{error}");
    // The other one has seen it too, unless it was ended before it could say so.
    let logs = fs::read_dir(place.run("lost").join("logs")).expect("logs").flatten();
    let said: String = logs.filter_map(|log| fs::read_to_string(log.path()).ok()).collect();
    assert!(said.contains("was lost") || said.contains("a rank is gone"), "{said}");
}

#[test]
fn ranks_with_a_gpu_each_train_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    for strategy in ["ddp", "zero2", "fsdp"] {
        agree_on(&place, 2, &format!("tiny --steps 5 --strategy {strategy} --set train.clip_norm=1"), 1e-4);
    }
    // Ranks that are threads of one process, and groups of ranks.
    for strategy in ["dp", "zero1", "hsdp"] {
        agree_on(&place, 4, &format!("tiny --steps 5 --strategy {strategy} --set train.ema=0.9"), 1e-4);
    }
    agree_on(&place, 2, "tiny --steps 5 --strategy fsdp --set train.precision=bf16", 2e-2);
    // Statistics of batch norm over all ranks; the last batch of an epoch has a sample for one of them only.
    let uneven = "--steps 5 --set data.kind=shapes --set data.images=9 --set data.test_images=8 --set data.tail=ragged \
                  --set model.image_size=16 --set model.width=8 --set train.global_batch=4 --set model.sync_batch_norm=true";
    agree_on(&place, 2, &format!("cifar10-resnet18 {uneven} --strategy fsdp"), 3e-2);
}

#[test]
fn gradients_rounded_by_gpus_train_as_those_rounded_by_processors() {
    let Some(place) = Place::anywhere() else { return };
    let rounded = "tiny --set codec.kind=bf16 --set codec.when=always";
    for strategy in ["ddp", "zero2", "fsdp"] {
        agree_on(&place, 2, &format!("{rounded} --steps 5 --strategy {strategy}"), 5e-4);
    }
    // Sums in several steps, each of which is rounded: in another order.
    for strategy in ["dp", "hsdp"] {
        agree_on(&place, 4, &format!("{rounded} --steps 5 --strategy {strategy}"), 2e-3);
    }
    graphs_change_nothing(&place, 2, &format!("{rounded} --strategy zero2"));
    // Half of the bytes travel.
    if !place.has(2) {
        return;
    }
    let common = "train tiny --steps 3 --set train.ranks=2 --set train.device=cuda --strategy ddp";
    let sent = |run: &str, codec: &str| {
        place.succeed(&format!("{common} {codec} --out {run}"));
        let summary = fs::read(place.run(run).join("summary.json")).expect("reads");
        let summary: Value = serde_json::from_slice(&summary).expect("is JSON");
        summary["ranks"][0]["step_bytes_sent"].as_f64().expect("a number")
    };
    let (plain, half) = (sent("plain", ""), sent("half", "--set codec.kind=bf16 --set codec.when=always"));
    assert!(half < 0.6 * plain, "{half} and {plain} bytes");
}

#[test]
fn ranks_with_a_gpu_each_go_on_bit_for_bit() {
    let Some(place) = Place::anywhere() else { return };
    if !place.has(2) {
        return;
    }
    let common = "train tiny --set train.ranks=2 --set log.every=1 --set train.device=cuda --strategy fsdp";
    place.succeed(&format!("{common} --steps 5 --out whole"));
    place.succeed(&format!("{common} --steps 3 --out parts"));
    place.succeed(&format!("{common} --steps 5 --out parts --resume"));
    assert_eq!(column(&place.run("whole"), "loss"), column(&place.run("parts"), "loss"));
    for run in ["whole", "parts"] {
        place.succeed(&format!("export {run} --out {run}.safetensors"));
    }
    let [whole, parts] = ["whole", "parts"].map(|run| fs::read(place.run(&format!("{run}.safetensors"))));
    assert!(whole.expect("reads") == parts.expect("reads"), "the weights differ");
}

#[test]
fn a_gpu_is_taken_where_there_is_one_for_each_rank() {
    let Some(place) = Place::new() else { return };
    let text = place.succeed("train tiny --steps 1 --set train.ranks=1 --out auto");
    assert!(text.contains("GPU 0, software GPU 0"), "{text}");
    let error = place.fail("train tiny --steps 1 --ranks 2 --set train.device=cuda --out two");
    assert!(error.contains("this host has one GPU, and rank 1"), "{error}");
    let output =
        place.command("train tiny --steps 1 --ranks 2 --out auto-two").output().expect("phalanx runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("CPU, as rank 1 has no GPU: this host has one GPU"), "{text}");
    // What NCCL does not do is done on processors, or refused.
    for (setting, why) in [
        ("codec.kind=int8", "codec.kind = \"int8\" encodes gradients on the processor, and \"bf16\" works"),
        ("codec.kind=bf16", "codec.when = \"auto\" measures by the processor's clock"),
        ("comm.algorithm=ring", "comm.algorithm = \"ring\", and NCCL chooses the way itself"),
    ] {
        let line = format!("train tiny --steps 1 --set train.ranks=2 --set {setting}");
        let text = place.succeed(&format!("{line} --out {setting}"));
        assert!(text.contains(&format!("CPU, as {why}")), "{text}");
        let error = place.fail(&format!("{line} --set train.device=cuda --out {setting}-cuda"));
        assert!(error.contains(why), "{error}");
    }
    // A launcher that shows each rank a GPU of its own, and one that shows all the same.
    let shared = "train tiny --steps 1 --ranks 2 --out shared";
    let output = place.command(shared).env("CUDA_VISIBLE_DEVICES", "0").output().expect("phalanx runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("CPU, as ranks 0 and 1 would share a GPU"), "{text}");
}

#[test]
fn without_a_driver_the_processor_trains_and_a_gpu_is_an_error_with_names() {
    if phalanx_cuda::libraries::Library::Driver.find().is_ok() {
        println!("skipped: this machine has a driver");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let run = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.args(line.split(' ')).current_dir(folder.path()).output().expect("phalanx runs")
    };
    let output = run("train tiny --steps 1 --set train.ranks=1 --set train.device=cuda --out gpu");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(error.contains("the CUDA driver") && error.contains("libcuda.so.1"), "{error}");
    let output = run("train tiny --steps 1 --set train.ranks=1 --out auto");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("CPU, as the CUDA driver is not there"), "{text}");
}

#[test]
fn the_doctor_examines_gpus_and_libraries() {
    let Some(place) = Place::new() else { return };
    let text = place.command("doctor").env(DEVICES, "2").output().expect("phalanx runs");
    assert!(text.status.success(), "{text:?}");
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    for expected in [
        "cuDNN      9.10.2 (libcudnn.so)",
        "software GPU 0",
        "compute capability 9.0",
        "self-test passed",
        "NCCL       2.",
        "link       ",
        "to hosts   ",
    ] {
        assert!(text.contains(expected), "no `{expected}` in:\n{text}");
    }
}
