//! Trainings by codecs, by the built program: curves, runs that go on to the bit, verdicts, and what is refused.

use std::path::Path;

use serde_json::Value;

use crate::harness::results::{self, Tensors, checkpoint, log};
use crate::harness::{Place, side_by_side};

/// The losses of a run.
fn losses(run: &Path) -> Vec<f64> {
    results::column(run, "loss")
}

/// All tensors of a run's checkpoint, with the state of codecs.
fn contents(run: &Path, step: u64) -> Tensors {
    results::contents(&checkpoint(run, step))
}

/// A model so small that starting it is most of the time.
const SMALL: &str = "train tiny --set model.image_size=8 --set model.latent=3 --set model.widths=[3] \
    --set model.embed=3 --set model.text_width=6 --set model.text_vocab=514 --set model.text_context=16 \
    --set data.test_images=4 --set sample.rows=1 --set sample.columns=1 --set log.every=1 \
    --set data.images=60 --set train.global_batch=24 --set data.tail=ragged --set optim.kind=sgd \
    --set optim.lr=0.05 --set optim.momentum=0 --set codec.when=always --set codec.density=0.05 \
    --set codec.chunk=64 --set train.bucket_kib=8";

#[test]
fn interrupted_runs_go_on_to_the_bit() {
    let place = Place::new();
    side_by_side(
        [
            ("ddp", "topk", ""),
            ("fsdp", "topk", ""),
            ("zero2", "dgc", "--set codec.warmup_steps=5"),
            ("hsdp", "powersgd", "--set codec.scope=inter-host"),
            ("ddp", "sign", "--set codec.scope=inter-host"),
            ("zero1", "qsgd", ""),
        ],
        |(strategy, codec, more)| {
            let ranks = if strategy == "hsdp" { 4 } else { 2 };
            let line =
                format!("{SMALL} --ranks {ranks} --strategy {strategy} --set codec.kind={codec} {more}");
            let [whole, parts] = ["whole", "parts"].map(|name| format!("{strategy}-{codec}-{name}"));
            place.succeed(&format!("{line} --steps 7 --out {whole}"));
            place.succeed(&format!("{line} --steps 3 --out {parts}"));
            place.succeed(&format!("{line} --steps 7 --out {parts} --resume"));
            assert_eq!(losses(&place.path(&parts)), losses(&place.path(&whole)), "{strategy}, {codec}");
            let expected = contents(&place.path(&whole), 7);
            let kept = expected.iter().filter(|(name, _)| name.starts_with("codec-"));
            assert!(
                kept.flat_map(|(_, (_, bits))| bits).any(|bits| *bits != 0),
                "{strategy}, {codec}: nothing is kept"
            );
            assert!(contents(&place.path(&parts), 7) == expected, "{strategy}, {codec}: checkpoints differ");
        },
    );
    // With another number of ranks it goes on only if what was kept is given up, and says so.
    let line = format!(
        "{SMALL} --ranks 3 --strategy ddp --set codec.kind=topk --steps 8 --out ddp-topk-parts --resume"
    );
    let error = place.fail(&line);
    assert!(
        error.contains("resume with as many ranks, not with 3, or drop that state by codec.reset = true"),
        "{error}"
    );
    place.succeed(&format!("{line} --set codec.reset=true"));
    // So does a run that goes on without its codec.
    let without = format!(
        "{SMALL} --ranks 2 --strategy fsdp --steps 8 --out fsdp-topk-parts --resume --set codec.kind=none"
    );
    let error = place.fail(&without);
    assert!(error.contains("codec `none` keeps nothing, but was given"), "{error}");
    place.succeed(&format!("{without} --set codec.reset=true"));
}

#[test]
fn curves_are_as_near_as_the_codec_is_fine() {
    let place = Place::new();
    let run = |strategy: &str, codec: &str, more: &str| {
        let name = format!("{strategy}-{codec}{}", more.replace([' ', '='], ""));
        let line = format!(
            "{SMALL} --ranks 2 --strategy {strategy} --set codec.kind={codec} {more} --steps 6 --out {name}"
        );
        place.succeed(&line);
        losses(&place.path(&name))
    };
    let dense = run("ddp", "none", "");
    let off =
        |curve: &[f64]| curve.iter().zip(&dense).map(|(a, b)| (a - b).abs() / b.abs()).fold(0.0, f64::max);
    for strategy in ["ddp", "zero1", "zero2", "fsdp", "dp"] {
        assert_eq!(run(strategy, "lossless", ""), dense, "{strategy}");
    }
    for (codec, allowed) in [("bf16", 0.01), ("int8", 0.01), ("int4", 0.1), ("qsgd", 0.1)] {
        for strategy in ["ddp", "fsdp"] {
            let curve = run(strategy, codec, "");
            assert!(off(&curve) > 0.0 && off(&curve) < allowed, "{strategy}, {codec}: {}", off(&curve));
        }
    }
    for codec in ["topk", "randomk", "powersgd", "sign", "topk-int8"] {
        let curve = run("ddp", codec, "");
        assert!(off(&curve) > 0.0 && off(&curve) < 0.5, "{codec}: {curve:?} and {dense:?}");
    }
    for weights in ["bf16", "int8"] {
        let rounded = run("fsdp", "none", &format!("--set codec.weights={weights}"));
        assert!(off(&rounded) > 0.0 && off(&rounded) < 0.05, "weights by {weights}: {}", off(&rounded));
    }
}

#[test]
fn a_codec_that_does_not_pay_says_so_once() {
    let place = Place::new();
    let line = format!(
        "{SMALL} --ranks 2 --strategy ddp --set codec.kind=topk --set codec.when=auto --steps 10 --out run"
    );
    let text = place.succeed_with_errors(&line);
    let told = |text: &str| text.lines().filter(|line| line.contains("worth it below")).count();
    let log = log(&place.path("run"), 0);
    assert!(told(&text) > 0 && told(&log) == told(&text), "{text}\n{log}");
    // What was decided is part of the checkpoint, and not measured again.
    assert!(contents(&place.path("run"), 10).keys().any(|name| name.ends_with(" when")));
    let text = place.succeed_with_errors(&line.replace("--steps 10", "--steps 22 --resume"));
    assert_eq!(told(&text), 0, "{text}");
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let place = Place::new();
    for (more, said) in [
        ("--set codec.kind=zip", "`topk`"),
        ("--set codec.kind=topk --set codec.density=0", "give a density above 0"),
        ("--set codec.kind=int8 --set codec.chunk=100", "give a multiple of 8"),
        ("--set codec.weights=int8", "needs parameters that are gathered, as fsdp and hsdp do, or pulled"),
        ("--set codec.kind=dgc --set codec.when=auto", "set codec.when = always"),
        (
            "--set codec.kind=dgc --set optim.momentum=0.9",
            "it needs optim.kind = sgd with optim.momentum = 0",
        ),
        ("--set codec.kind=topk --set train.precision=f16", "take bf16, or a fixed train.loss_scale"),
    ] {
        let error = place.fail(&format!("{SMALL} --ranks 2 --strategy ddp --steps 1 --out refused {more}"));
        assert!(error.contains(said), "{more}: {error}");
    }
}

#[test]
fn a_plan_shows_what_a_codec_keeps_and_sends() {
    let place = Place::new();
    let plan = |more: &str| -> Value {
        let line = format!("plan --model resnet18 --ranks 4 --json {more}");
        serde_json::from_str(&place.succeed(&line)).expect("is JSON")
    };
    let row = |plan: &Value, strategy: &str| {
        let rows = plan["strategies"].as_array().expect("rows");
        rows.iter().find(|row| row["strategy"] == strategy).cloned().expect("a row")
    };
    let (dense, topk) = (plan(""), plan("--set codec.kind=topk --set codec.density=0.001"));
    let (before, after) = (row(&dense, "ddp"), row(&topk, "ddp"));
    let number = |row: &Value, key: &str| row[key].as_u64().expect("a number");
    assert_eq!(number(&before, "codec_bytes"), 0);
    // A residual for every gradient, and a fraction of the bytes: 8 for each of 0.1 % to three others, instead of 6 for each.
    assert_eq!(number(&after, "codec_bytes"), number(&after, "gradient_bytes"));
    let ratio = number(&before, "bytes_sent_per_step") as f64 / number(&after, "bytes_sent_per_step") as f64;
    assert!((200.0..=250.0).contains(&ratio), "{ratio}");
    assert!(
        topk["codec_in_words"]
            .as_str()
            .expect("words")
            .starts_with("topk, density 0.001, scope all, when auto")
    );
    // Between two groups of two: all of the plain bytes inside, and half of the numbers by a byte each.
    let between = row(&plan("--set codec.kind=int8 --set codec.scope=inter-host"), "ddp");
    let part = number(&between, "bytes_sent_per_step") as f64 / number(&before, "bytes_sent_per_step") as f64;
    assert!((0.75..0.76).contains(&part), "{part}");
    let plain = row(&plan("--strategy fsdp"), "fsdp");
    let halved = row(&plan("--set codec.weights=bf16 --strategy fsdp"), "fsdp");
    // Two of three parts of what is sent are parameters, forward and backward.
    let part = number(&halved, "bytes_sent_per_step") as f64 / number(&plain, "bytes_sent_per_step") as f64;
    assert!((0.66..0.70).contains(&part), "{part}");
    let rounded = plan("--set codec.weights=int8 --strategy fsdp");
    let rows = rounded["strategies"].as_array().expect("rows").iter();
    let gather_or_pull = ["fsdp", "hsdp", "ps-bsp", "ps-ssp", "ps-asp"];
    assert_eq!(rows.map(|row| &row["strategy"]).collect::<Vec<_>>(), gather_or_pull);
    let text = place.succeed("plan --model resnet18 --ranks 4 --set codec.kind=powersgd --set codec.rank=4");
    assert!(text.contains("codec      powersgd, rank 4"), "{text}");
}
