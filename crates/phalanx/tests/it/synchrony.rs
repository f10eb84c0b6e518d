//! Whole trainings whose ranks do not take every step together: what equals what, what is learnt, what is told, and resumption.

use phalanx_run::{RunFolder, Summary, read_metrics};
use phalanx_sharding::STRATEGIES;

use crate::harness::engine::{Recorder, refusal, resolve, run_in};
#[cfg(target_os = "linux")]
use crate::harness::processes::kill;
use crate::harness::results::{lines, summary};
use crate::harness::{Place, side_by_side};
#[cfg(target_os = "linux")]
use crate::harness::{Running, results::saved};

/// Of every step the loss, and of the test split the first measure.
type Curve = Vec<f64>;

/// Trains in a folder, or resumes there, by ranks that are threads.
fn train_in(folder: &RunFolder, settings: &str) -> Curve {
    let recorder = Recorder::of_steps(|report| report.phases[0].loss);
    recorder.and_evaluations(|measures| measures[0].1).train(folder, &resolve(&[settings]))
}

fn train_once(settings: &str) -> (Curve, Summary, Place) {
    let place = Place::new();
    let curve = train_in(&run_in(&place.path("run")), settings);
    (curve, summary(&place.path("run")), place)
}

const CVAE: &str = "train.global_batch=8 train.bucket_kib=32 data.images=24 data.test_images=9 train.threads=1 \
    eval.batch=2 eval.every=0 checkpoint.every=0 sample.rows=1 sample.columns=1 optim.kind=adamw optim.lr=0.002 optim.weight_decay=0.05";

const RESNET: &str = "model.kind=resnet18 model.width=8 model.image_size=32 train.global_batch=8 train.bucket_kib=32 \
    data.images=24 data.test_images=9 train.threads=1 eval.batch=2 eval.every=0 checkpoint.every=0 optim.kind=sgd optim.lr=0.02";

#[test]
fn ps_bsp_gives_the_losses_of_ddp_to_the_bit() {
    for (model, further) in [
        (CVAE, "train.ema=0.8 train.clip_norm=0.5 eval.every=4"),
        (CVAE, "train.accumulate=2 data.images=23 data.tail=ragged"),
        (RESNET, "train.clip_norm=2"),
    ] {
        for ranks in [2, 3] {
            let of = |strategy: &str| {
                let own = format!("train.steps=10 train.ranks={ranks} train.strategy={strategy}");
                train_once(&format!("{model} {further} {own}")).0
            };
            // Squares of sharded gradients are added part by part, as under zero1.
            assert_eq!(of("ps-bsp"), of("zero1"), "{ranks} ranks, {further}");
        }
    }
}

#[test]
fn servers_of_their_own_change_no_loss_of_ps_bsp_and_their_runs_go_on_to_the_bit() {
    let settings = |strategy: &str| {
        format!("{RESNET} eval.every=4 train.steps=10 train.ranks=2 train.strategy={strategy}")
    };
    let ddp = train_once(&settings("ddp")).0;
    let own = format!("{} sync.servers=2 train.ema=0.8", settings("ps-bsp"));
    let (whole, summary, _place) = train_once(&own);
    assert_eq!((summary.world_size, summary.servers, summary.ranks.len()), (2, 2, 4));
    let losses = |curve: &[f64]| [0, 1, 2, 3, 5, 6, 7, 8, 10, 11].map(|at| curve[at]);
    assert_eq!(losses(&whole), losses(&ddp));
    let place = Place::new();
    let folder = run_in(&place.path("run"));
    let mut parts = train_in(&folder, &format!("{own} train.stop_step=4"));
    parts.extend(train_in(&folder, &own));
    assert_eq!(parts, whole);
    // Another number of servers, and none, go on from what these have saved.
    for further in ["sync.servers=1", "sync.servers=0"] {
        let settings = format!("{own} {further} train.steps=20 train.stop_step=12");
        assert!(train_in(&folder, &settings).iter().all(|loss| loss.is_finite()));
        std::fs::remove_dir_all(place.path("run/checkpoints/step-00000012")).expect("it was saved");
    }
}

#[test]
fn encoded_pushes_train_and_say_what_they_send() {
    let of = |codec: &str| {
        let (curve, summary, _) =
            train_once(&format!("{CVAE} train.steps=30 train.ranks=2 train.strategy=ps-bsp {codec}"));
        (curve, summary.ranks[0].step_bytes_sent)
    };
    let (dense, sent) = of("");
    let (lossless, _) = of("codec.kind=lossless");
    assert_eq!(lossless, dense, "the same bits come");
    let (int8, fewer) = of("codec.kind=int8 codec.weights=int8");
    assert_eq!(of("codec.kind=int8 codec.weights=int8").0, int8, "runs repeat");
    assert!(fewer * 3 < sent, "{fewer} of {sent} bytes");
    let (bf16, half) = of("codec.kind=bf16 codec.weights=bf16");
    assert!(half * 10 < sent * 6 && half * 10 > sent * 4, "{half} of {sent} bytes");
    let last = |curve: &Curve| *curve.last().expect("steps");
    assert!((last(&bf16) / last(&dense) - 1.0).abs() < 0.05, "{:?}, not {:?}", last(&bf16), last(&dense));
    assert!((last(&int8) / last(&dense) - 1.0).abs() < 0.05, "{:?}, not {:?}", last(&int8), last(&dense));
}

#[test]
fn a_meeting_after_every_step_of_plain_gradient_descent_is_ddp() {
    let of = |strategy: &str| {
        let own =
            format!("train.steps=8 train.ranks=2 optim.momentum=0 sync.every=1 train.strategy={strategy}");
        train_once(&format!("{RESNET} {own}")).0
    };
    let (ddp, local) = (of("ddp"), of("local-sgd"));
    for (step, (a, b)) in ddp.iter().zip(&local).take(4).enumerate() {
        assert!((a - b).abs() < 2e-3 * a.abs(), "step {step}: {a} and {b}");
    }
}

#[test]
fn every_strategy_learns_and_says_how_it_kept_step() {
    for row in STRATEGIES.iter().filter(|row| !row.is_bulk_synchronous()) {
        // Updates that come late make large steps swing, the more the less time a worker gets.
        let rate = if ["ps-asp", "ps-ssp"].contains(&row.name) { 0.0007 } else { 0.002 };
        let own = format!(
            "train.steps=30 train.ranks=3 train.strategy={row} sync.every=4 log.every=5 train.ema=0.8 optim.lr={rate}"
        );
        let (curve, summary, place) = train_once(&format!("{CVAE} {own}"));
        assert_eq!(curve.len(), 31, "{row}: every step and the test split");
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let (first, last) = (mean(&curve[..5]), mean(&curve[25..30]));
        assert!(last < 0.9 * first, "{row}: {first}, then {last}");
        assert!(curve[30] < first, "{row}: what is evaluated has learnt too: {}", curve[30]);
        for rank in &summary.ranks {
            let kept =
                rank.synchrony.as_ref().unwrap_or_else(|| panic!("{row}: rank {} says nothing", rank.rank));
            assert!(kept.meetings > 0 && rank.bytes_sent > 0, "{row}: {kept:?}");
            if row.name.starts_with("ps-") {
                assert_eq!(kept.staleness.iter().sum::<u64>(), 90, "{row}: every push of every worker");
                assert!(row.name != "ps-ssp" || kept.leads.len() <= 4, "{row}: {:?}", kept.leads);
                assert!(row.name != "ps-bsp" || kept.staleness == [90], "{row}: {:?}", kept.staleness);
            } else {
                assert!(kept.consensus_distance.is_some(), "{row}");
            }
        }
        let svg = std::fs::read_to_string(place.path("run/synchrony.svg")).expect("a picture");
        // Partners under ad-psgd may never wait, and a panel of zeros is left out.
        assert!(svg.contains("time waited for other ranks") || row.name == "ad-psgd", "{row}");
        let lines = lines(&place.path("run"));
        assert!(lines.iter().any(|line| line.number("waited_seconds").is_some()), "{row}");
        assert_eq!(lines.last().map(phalanx_run::Line::step), Some(30), "{row}");
        let of_ranks = read_metrics(&place.path("run/metrics-by-rank.jsonl")).expect("lines");
        assert_eq!(of_ranks.len(), 90, "{row}: every step of every rank");
        for line in lines.iter().filter(|line| line.number("loss").is_some()) {
            let told = of_ranks.iter().filter(|told| told.step() == line.step());
            let numbers = |name: &str| told.clone().filter_map(|told| told.number(name)).collect::<Vec<_>>();
            let last = numbers("seconds").into_iter().fold(0.0, f64::max);
            assert_eq!(line.number("seconds"), Some(last), "{row}: done when the last rank has done it");
            let (whole, own) = (line.number("loss").expect("a loss"), mean(&numbers("loss")));
            assert!((whole - own).abs() < 1e-5 * whole.abs(), "{row}: {whole}, of ranks {own}");
        }
    }
    let (_, summary, place) = train_once(&format!("{CVAE} train.steps=3 train.ranks=2 train.strategy=ddp"));
    assert!(summary.ranks.iter().all(|rank| rank.synchrony.is_none()));
    assert!(!place.path("run/synchrony.svg").exists());
    assert!(!place.path("run/metrics-by-rank.jsonl").exists());
}

#[test]
fn interrupted_runs_go_on_to_the_bit() {
    for (strategy, further) in [
        ("ps-bsp", ""),
        ("ps-bsp", "codec.kind=topk codec.density=0.05 codec.weights=int8"),
        ("ps-bsp", "codec.kind=qsgd codec.weights=bf16"),
        ("local-sgd", "sync.every=4"),
        ("post-local-sgd", "sync.every=4 sync.start=3"),
        ("diloco", "sync.every=4"),
        ("diloco", "sync.every=4 sync.fragments=2 sync.overlap=2 sync.outer_bf16=true"),
        ("d-psgd", "sync.topology=ring"),
        ("sgp", "sync.topology=exponential"),
    ] {
        let settings =
            format!("{CVAE} train.steps=10 train.ranks=3 train.ema=0.8 train.strategy={strategy} {further}");
        let whole = train_once(&settings).0;
        let place = Place::new();
        let folder = run_in(&place.path("run"));
        let mut parts = train_in(&folder, &format!("{settings} train.stop_step=6"));
        // The first part ends with an evaluation of its own.
        assert_eq!(parts.len(), 7, "{strategy}");
        parts.pop();
        parts.extend(train_in(&folder, &settings));
        assert_eq!(parts, whole, "{strategy} {further}");
    }
}

#[test]
fn a_run_goes_on_under_another_strategy_and_with_other_ranks() {
    let place = Place::new();
    let folder = run_in(&place.path("run"));
    let mut last = f64::INFINITY;
    for (stop, own) in [
        (8, "train.ranks=3 train.strategy=diloco sync.every=3"),
        (16, "train.ranks=2 train.strategy=ps-asp"),
        (24, "train.ranks=2 train.strategy=ddp"),
        (32, "train.ranks=4 train.strategy=local-sgd sync.every=2"),
    ] {
        let curve = train_in(&folder, &format!("{CVAE} train.steps=40 train.stop_step={stop} {own}"));
        assert_eq!(curve.len(), 9, "{own}");
        assert!(curve[8] < 1.2 * last, "{own}: {last}, then {}", curve[8]);
        last = curve[8];
    }
}

#[test]
fn a_straggler_holds_up_those_who_wait_for_it() {
    let of = |strategy: &str| {
        let own = format!(
            "train.steps=16 train.ranks=3 chaos.delay=rank=1,ms=30,jitter=0.2 train.strategy={strategy}"
        );
        train_once(&format!("{CVAE} eval.enabled=false {own} sync.staleness=2")).1
    };
    let waited =
        |summary: &Summary, rank: usize| summary.ranks[rank].synchrony.as_ref().expect("told").waited_seconds;
    let (bulk, free) = (of("ps-bsp"), of("ps-asp"));
    // The slow one's 16 steps take at least 0.38 s more; the others wait for it, or come to the end before it.
    assert!(waited(&bulk, 0) > 0.3 && waited(&bulk, 2) > 0.3, "{:?}", bulk.ranks);
    let free_kept = free.ranks[0].synchrony.as_ref().expect("told");
    assert!(free_kept.clock_spread > 2, "{free_kept:?}");
    let stale = of("ps-ssp");
    let kept = stale.ranks[0].synchrony.as_ref().expect("told");
    assert!(kept.clock_spread <= 3 && kept.leads.len() <= 3, "{kept:?}");
}

#[test]
fn what_cannot_be_is_refused_with_what_would_be_right() {
    for (settings, problem) in [
        ("train.strategy=diloco train.ranks=2 sync.fragments=9 sync.every=4", "it needs from 1 to 4"),
        ("train.strategy=local-sgd train.ranks=2 sync.every=0", "it needs 1 or more"),
        ("train.strategy=ps-asp train.ranks=2 codec.kind=powersgd", "there is: none, bf16, int8"),
        ("train.strategy=ps-bsp train.ranks=2 codec.kind=int8 codec.scope=inter-host", "use all"),
        ("train.strategy=local-sgd train.ranks=2 codec.kind=bf16", "use codec none"),
        ("train.strategy=local-sgd train.ranks=2 codec.weights=int8", "or pulled, as ps-bsp"),
        ("train.strategy=ps-asp train.ranks=2 train.precision=f16", "use bf16 or f32"),
        ("chaos.delay=rank=7,ms=3", "train.ranks is"),
        ("chaos.delay=ms=3", "names no rank"),
        ("train.strategy=ps-asq", "ps-asp"),
        ("sync.topology=rang", "ring"),
    ] {
        let error = refusal(&[settings]);
        assert!(error.contains(problem), "{settings}: {error}");
    }
}

#[test]
#[cfg(target_os = "linux")]
fn a_dead_server_ends_the_run_with_its_name_and_the_run_goes_on_from_its_checkpoint() {
    let place = Place::new();
    let line = "train tiny --ranks 3 --strategy ps-asp --steps 100000 --set checkpoint.every=10 --set log.every=1 --set \
        train.global_batch=12 --set train.threads=1 --out run";
    let mut running = Running::start(&place, line);
    let run = running.run.clone();
    running.wait_for("checkpoint", |run| run.saved().last().is_some_and(|step| *step >= 20));
    kill(*running.ranks().last().expect("a rank"));
    let error = running.fail();
    assert!(error.contains("rank 2"), "{error}");
    let until = saved(&run).pop().expect("a checkpoint") + 5;
    place.succeed(&format!("train --resume --out run --steps {until}"));
    let summary = summary(&run);
    assert_eq!((summary.step, summary.strategy.as_str()), (until, "ps-asp"));
    assert!(summary.ranks.iter().all(|rank| rank.synchrony.is_some() && rank.bytes_received > 0));
}

#[test]
fn processes_train_under_every_strategy() {
    let place = Place::new();
    let apart = STRATEGIES.iter().filter(|row| !row.is_bulk_synchronous());
    side_by_side(apart, |row| {
        place.succeed(&format!(
            "train tiny --ranks 2 --strategy {row} --steps 6 --set sync.every=2 --set train.global_batch=8 --set \
            train.threads=1 --out {row}"
        ));
        let run = place.path(row.name);
        assert!(summary(&run).ranks.iter().all(|rank| rank.synchrony.is_some()), "{row}");
        assert!(run.join("synchrony.svg").is_file(), "{row}");
    });
}
