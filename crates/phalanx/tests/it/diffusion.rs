//! Diffusion by the engine: ranks that agree under every strategy, first stages, drawings.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use phalanx_run::RunFolder;
use phalanx_trainer::engine::{
    Drawing, DrawingKind, GridStyle, RunEvaluation, TrainedModel, evaluate_model, sample_model,
};

use crate::harness::engine::{Once, Recorder, run_in, try_resolve, try_train};

const STEPS: usize = 10;

/// Small enough to be trained in a second. Ten pictures are no multiple of three ranks, and the last batch of an epoch
/// has three.
const SMALL: &str = "model.kind=diffusion model.image_size=16 model.widths=[8,16] model.attention=[false,true] \
    model.groups=4 model.heads=2 model.text_width=16 model.text_layers=1 model.text_heads=2 model.text_context=12 \
    model.sample_steps=4 model.drop_text=0.3 model.dropout=0.1 \
    train.global_batch=10 train.bucket_kib=32 data.images=23 data.test_images=9 data.tail=pad train.threads=1 \
    train.ema=0.8 train.clip_norm=0.5 optim.lr=0.002 optim.weight_decay=0.05 schedule.kind=cosine \
    eval.batch=2 eval.every=0 sample.rows=1 sample.columns=1";

/// The values that rank 0 reports: loss and gradient norm of every step, and the loss on the test split.
#[derive(Debug, Clone, Default, PartialEq)]
struct Curve {
    losses: Vec<f64>,
    norms: Vec<f64>,
    tested: Vec<f64>,
}

/// Trains in a folder of its own below `place`.
fn train_in(place: &Path, name: &str, settings: &[&str]) -> Result<(PathBuf, Curve), String> {
    /// A step's loss and gradient norm, or the measures of the test split.
    enum Row {
        Step(f64, Option<f64>),
        Tested(Vec<f64>),
    }
    let resolved = try_resolve(settings)?;
    let path = place.join(name);
    let recorder =
        Recorder::of_steps(|report| Row::Step(report.phases[0].loss, report.updates[0].gradient_norm));
    let recorder =
        recorder.and_evaluations(|measures| Row::Tested(measures.iter().map(|(_, value)| *value).collect()));
    try_train(&run_in(&path), &resolved, Box::new(recorder.clone()))?;
    let mut curve = Curve::default();
    for row in recorder.take() {
        match row {
            Row::Step(loss, norm) => {
                curve.losses.push(loss);
                curve.norms.extend(norm);
            }
            Row::Tested(measures) => curve.tested.extend(measures),
        }
    }
    Ok((path, curve))
}

/// The curve of these settings, trained once for all tests.
fn curve_of(settings: &[&str]) -> Arc<Curve> {
    static KNOWN: Once<String, Curve> = Once::new();
    KNOWN.get(settings.join(" "), || {
        let place = tempfile::tempdir().expect("a folder");
        train_in(place.path(), "run", settings).unwrap_or_else(|error| panic!("{settings:?}: {error}")).1
    })
}

#[track_caller]
fn close(what: &str, found: &Curve, expected: &Curve, tolerance: f64) {
    for (found, expected) in [
        (&found.losses, &expected.losses),
        (&found.norms, &expected.norms),
        (&found.tested, &expected.tested),
    ] {
        assert_eq!(found.len(), expected.len(), "{what}");
        for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
            let off = (found - expected).abs();
            assert!(off <= tolerance * expected.abs(), "{what}: number {at}: {found} is not {expected}");
        }
    }
}

fn run_settings(strategy: &str, ranks: usize, recompute: usize) -> String {
    format!("train.strategy={strategy} train.ranks={ranks} train.recompute={recompute} train.steps={STEPS}")
}

/// Any ranks under any strategy compute what one rank does.
fn strategies_agree(model: &str, strategies: &[(&str, usize, usize)]) {
    let alone = curve_of(&[SMALL, model, &run_settings("ddp", 1, 0)]);
    assert_eq!((alone.losses.len(), alone.tested.len()), (STEPS, 1));
    let (first, last) = (alone.losses[0], alone.losses[STEPS - 1]);
    assert!(last < 0.97 * first, "one rank learns: {alone:?}");
    for (strategy, ranks, recompute) in strategies {
        let found = curve_of(&[SMALL, model, &run_settings(strategy, *ranks, *recompute)]);
        close(&format!("{strategy} of {ranks} ranks"), &found, &alone, 1e-5);
    }
    let again = curve_of(&[SMALL, model, &run_settings("ddp", 1, 1)]);
    assert_eq!(again, alone, "recomputation changes no bit");
}

#[test]
fn pixels_with_text_agree_under_every_strategy() {
    let all = [
        ("dp", 2, 0),
        ("ddp", 3, 0),
        ("zero1", 2, 1),
        ("zero2", 3, 0),
        ("fsdp", 2, 0),
        ("fsdp", 3, 2),
        ("hsdp", 4, 1),
    ];
    strategies_agree("model.prediction=v_prediction model.zero_snr=true model.pool_text=true", &all);
}

#[test]
fn pixels_without_text_agree_under_a_strategy_of_each_kind() {
    strategies_agree(
        "model.conditional=false model.coordinates=true model.schedule=linear model.prediction=v_prediction model.min_snr=5",
        &[("ddp", 3, 0), ("zero2", 2, 1), ("fsdp", 3, 2)],
    );
    strategies_agree(
        "model.conditional=false model.schedule=flow model.prediction=flow_prediction",
        &[("fsdp", 2, 1)],
    );
    strategies_agree(
        "model.conditional=false model.zero_snr=true model.prediction=sample model.patch=2 model.coordinates=true \
         model.uncertainty=true",
        &[("ddp", 3, 0), ("fsdp", 2, 1)],
    );
}

#[test]
fn bf16_follows_f32_and_pieces_follow_the_whole() {
    let alone = curve_of(&[SMALL, &run_settings("ddp", 1, 0)]);
    let rounded = curve_of(&[SMALL, &run_settings("fsdp", 2, 1), "train.precision=bf16"]);
    close("bf16", &rounded, &alone, 0.05);
    assert_ne!(rounded, alone);
    let ragged = curve_of(&[SMALL, &run_settings("ddp", 1, 0), "data.tail=ragged"]);
    let pieces = curve_of(&[SMALL, &run_settings("ddp", 2, 0), "train.accumulate=2 data.tail=ragged"]);
    // What is drawn at random is drawn for other pieces, but for the first noise of each sample it is drawn alike.
    close("pieces", &pieces, &ragged, 1e-5);
}

/// A first stage and a run of latent diffusion over it.
fn latent(place: &Path, first: &str) -> PathBuf {
    let common = "model.image_size=16 train.global_batch=16 train.ranks=1 train.steps=40 data.images=64 \
        data.test_images=8 train.threads=1 train.ema=0.5";
    train_in(place, "first", &[first, common]).unwrap_or_else(|error| panic!("{first}: {error}")).0
}

#[test]
fn latent_images_of_either_autoencoder_are_learnt_alike_by_any_ranks() {
    for first in [
        "model.kind=autoencoder-kl model.widths=[8,16] model.groups=4 model.latent_channels=2",
        "model.kind=cvae model.latent=16 model.kl_weight=1e-6",
    ] {
        let place = tempfile::tempdir().expect("a folder");
        let stage = latent(place.path(), first);
        let over = format!("model.latent_images=true model.first_stage={}", stage.display());
        let alone = curve_of(&[SMALL, &over, &run_settings("ddp", 1, 0)]);
        assert!(alone.losses[STEPS - 1] < alone.losses[0], "{first}: {alone:?}");
        for (strategy, ranks) in [("ddp", 2), ("fsdp", 3)] {
            let found = curve_of(&[SMALL, &over, &run_settings(strategy, ranks, 0)]);
            close(&format!("{first}: {strategy} of {ranks}"), &found, &alone, 1e-5);
        }
        // The stages measure the first latent images together, and each goes on with what a checkpoint says of them.
        let stages = "parallel.pipeline=2 pipeline.micro_batches=1";
        let mut losses = Vec::new();
        for (until, ranks, mesh) in [(4, 2, stages), (7, 2, stages), (STEPS, 1, "")] {
            let until = format!("train.stop_step={until}");
            let settings = [SMALL, &over, &run_settings("ddp", ranks, 0), mesh, &until];
            losses.extend(train_in(place.path(), "moved", &settings).expect("trains").1.losses);
        }
        let near = |(found, expected): (&f64, &f64)| (found - expected).abs() <= 1e-4 * expected.abs();
        assert_eq!(losses.len(), STEPS);
        assert!(losses.iter().zip(&alone.losses).all(near), "{first}: {losses:?}, not {:?}", alone.losses);
    }
}

#[test]
fn kept_latent_images_are_those_that_are_encoded() {
    let place = tempfile::tempdir().expect("a folder");
    let stage = latent(
        place.path(),
        "model.kind=autoencoder-kl model.widths=[8,16] model.groups=4 model.latent_channels=2",
    );
    let over =
        format!("model.latent_images=true model.first_stage={} data.flip=true eval.every=4", stage.display());
    for (number, run) in
        ["train.ranks=1", "train.ranks=2", "train.ranks=2 train.precision=bf16"].iter().enumerate()
    {
        let of = |name: &str, further: &str| {
            let settings = [SMALL, &format!("train.steps={STEPS}"), &over, run, further];
            train_in(place.path(), &format!("{number}-{name}"), &settings).expect("it trains").1
        };
        let kept = of("kept", "");
        let tolerance = if run.contains("bf16") { 2e-2 } else { 1e-5 };
        close(run, &of("encoded", "model.keep_latents=0"), &kept, tolerance);
        // Each part encodes anew what the one before it kept.
        let parts = [4, 7, STEPS].map(|until| of("parts", &format!("train.stop_step={until}")).losses);
        assert_eq!(parts.concat(), kept.losses, "{run}");
    }
}

#[test]
fn a_first_stage_that_does_not_fit_is_refused_in_words() {
    let place = tempfile::tempdir().expect("a folder");
    let stage = latent(place.path(), "model.kind=autoencoder-kl model.widths=[8,16] model.groups=4");
    let of = |more: &str, folder: &Path| {
        let over = format!(
            "model.latent_images=true model.first_stage={} train.ranks=1 train.steps=1",
            folder.display()
        );
        let other = tempfile::tempdir().expect("a folder");
        train_in(other.path(), "run", &[SMALL, &over, more]).expect_err("does not fit")
    };
    assert!(of("model.image_size=32", &stage).contains("images of 16 pixels"));
    let said = of("", &place.path().join("gone"));
    assert!(said.contains("gone holds no run"), "{said}");
    let (other, _) =
        train_in(place.path(), "mlp", &["model.kind=mlp train.ranks=1 train.steps=1"]).expect("trains");
    let said = of("", &other);
    assert!(said.contains("the first stage") && said.contains("mlp"), "{said}");
    // The engine trains one run; two need the program.
    let other = tempfile::tempdir().expect("a folder");
    let said =
        train_in(other.path(), "run", &[SMALL, "model.latent_images=true train.ranks=1"]).expect_err("none");
    assert!(said.contains("names no run"), "{said}");
}

/// Pictures that a run draws, as the bytes of the grid.
fn drawn(run: &Path, drawing: &Drawing, sets: &[&str], seed: u64) -> Result<Vec<u8>, String> {
    let program = phalanx::program();
    let folder = RunFolder::open(run).expect("a run");
    let mut resolved = program.catalogue().resolve_run(&folder.config()).expect("a configuration");
    for set in sets {
        resolved.set(set, set).expect("a key");
    }
    let out = run.join("drawn.png");
    let task = program.task_of(&resolved.config).expect("a task");
    let model = TrainedModel::of_run(task, &folder, &resolved.config).expect("a checkpoint");
    sample_model(task, &model, &resolved.config, drawing, &[seed], (&out, GridStyle::default()))
        .map_err(|error| error.to_string())?;
    Ok(std::fs::read(&out).expect("written"))
}

#[test]
fn every_kind_of_drawing_is_drawn_and_seeds_decide() {
    let place = tempfile::tempdir().expect("a folder");
    let stage = latent(place.path(), "model.kind=autoencoder-kl model.widths=[8,16] model.groups=4");
    let over = format!("model.latent_images=true model.first_stage={}", stage.display());
    for (name, model) in [("pixels", ""), ("latent", over.as_str())] {
        let settings = [SMALL, model, "train.ranks=1 train.steps=6"];
        let (run, _) = train_in(place.path(), name, &settings).expect("trains");
        // The checkpoint has all that is needed of the first stage but its configuration.
        let prompts = ["a red circle".to_owned(), "a small blue ring".to_owned()];
        let of = |kind: DrawingKind| Drawing { prompts: prompts.to_vec(), columns: 3, kind };
        let samples = drawn(&run, &of(DrawingKind::Samples), &[], 1).expect("draws");
        assert_eq!(samples, drawn(&run, &of(DrawingKind::Samples), &[], 1).expect("draws"));
        assert_ne!(samples, drawn(&run, &of(DrawingKind::Samples), &[], 2).expect("draws"));
        let image = vec![0.3_f32; 3 * 16 * 16];
        let mask = Some((0..256).map(|at| f32::from(u8::from(at % 16 < 8))).collect());
        let from = |strength, mask| DrawingKind::From { image: image.clone(), strength, mask };
        let mut all = vec![samples];
        for kind in [
            DrawingKind::Strip,
            DrawingKind::BetweenTexts,
            DrawingKind::BetweenNoises,
            from(0.5, None),
            from(1.0, mask),
        ] {
            let picture =
                drawn(&run, &of(kind.clone()), &[], 1).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            assert!(!all.contains(&picture), "{name}: {kind:?} is another picture");
            all.push(picture);
        }
        for set in [
            "model.sampler=ddpm",
            "model.sampler=dpm-solver++",
            "model.sampler=euler",
            "model.eta=0.5",
            "model.guidance=1",
            "model.negative=\"a red circle\"",
            "model.sample_steps=3",
        ] {
            let picture = drawn(&run, &of(DrawingKind::Samples), &[set], 1);
            let picture = picture.unwrap_or_else(|error| panic!("{set}: {error}"));
            assert_ne!(picture, all[0], "{name}: {set} is another picture");
        }
        let one = Drawing { prompts: prompts[..1].to_vec(), columns: 3, kind: DrawingKind::BetweenTexts };
        assert!(drawn(&run, &one, &[], 1).expect_err("one prompt").contains("two prompts"));
        let RunEvaluation { step, measures, .. } = {
            let program = phalanx::program();
            let folder = RunFolder::open(&run).expect("a run");
            let resolved = program.catalogue().resolve_run(&folder.config()).expect("a configuration");
            let task = program.task_of(&resolved.config).expect("a task");
            let model = TrainedModel::of_run(task, &folder, &resolved.config).expect("a checkpoint");
            evaluate_model(task, &model, &resolved.config, None).expect("evaluates")
        };
        assert!(step == 6 && measures[0].1 > 0.0 && measures[0].1.is_finite(), "{measures:?}");
    }
}

#[test]
fn a_picture_does_not_depend_on_others_drawn_with_it() {
    let place = tempfile::tempdir().expect("a folder");
    let (run, _) = train_in(place.path(), "run", &[SMALL, "train.ranks=1 train.steps=3"]).expect("trains");
    let grid = |prompts: &[&str], columns: usize| {
        let prompts: Vec<String> = prompts.iter().map(|prompt| (*prompt).to_owned()).collect();
        let bytes =
            drawn(&run, &Drawing::samples(&prompts, columns), &["model.sampler=ddpm"], 5).expect("draws");
        image::load_from_memory(&bytes).expect("a picture").to_rgb8()
    };
    // Both are magnified four times; pictures of 16 pixels lie 18 apart behind a border of 2.
    let (many, one) = (grid(&["a green star", "a red circle"], 2), grid(&["a red circle"], 1));
    for y in 0..64 {
        for x in 0..64 {
            let (of_many, of_one) = (many.get_pixel(8 + x, 8 + 72 + y), one.get_pixel(8 + x, 8 + y));
            let off = of_many.0.iter().zip(of_one.0).map(|(a, b)| a.abs_diff(b)).max();
            assert!(off <= Some(1), "pixel {x}, {y}: {of_many:?} {of_one:?}");
        }
    }
}
