//! Language models: every strategy gives the losses of one rank, files of text are read, and bad input is named.

use crate::harness::results::{column, hashes};
use crate::harness::{Place, side_by_side};

/// A small model whose steps take milliseconds, with dropout.
const GPT: &str = "train tiny-gpt --set model.layers=2 --set model.width=16 --set model.heads=2 --set model.context=12 \
                   --set train.global_batch=6 --set train.threads=1 --set log.every=1 --set train.steps=10 \
                   --set schedule.warmup_steps=0 --set eval.limit=5";

/// A decoder of the same size with a head of its own, whose heads share keys.
const LLAMA: &str = "train tiny-llama --set model.layers=2 --set model.width=16 --set model.heads=4 --set model.key_heads=2 \
                     --set model.context=12 --set model.head_norms=true --set model.tied=false \
                     --set train.global_batch=6 --set train.threads=1 --set log.every=1 \
                     --set train.steps=10 --set schedule.warmup_steps=0 --set eval.limit=5";

fn assert_close(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let near = |(found, expected): (&f64, &f64)| (found - expected).abs() <= tolerance * expected.abs();
    assert!(found.iter().zip(expected).all(near), "{what}: {found:?} and {expected:?}");
}

#[test]
fn every_strategy_gives_the_losses_of_one_rank() {
    let place = Place::new();
    // The last window of the text is shorter, so ranks have different numbers of predictions.
    let text: String =
        (0..400).map(|at| ["the ", "cat ", "sees ", "a ", "bird. "][at * at % 7 % 5]).collect();
    std::fs::write(place.path("text.txt"), text).expect("writes");
    for (model, data, name) in [
        (GPT, "--set model.texts=40", "sentences"),
        (GPT, "--set data.path=text.txt", "file"),
        (LLAMA, "--set data.path=text.txt", "llama"),
        (LLAMA, "--set data.path=text.txt --set model.tied=true", "tied"),
    ] {
        place.succeed(&format!("{model} {data} --ranks 1 --out {name}"));
        let losses =
            |run: &str| [column(&place.path(run), "loss"), column(&place.path(run), "test_loss")].concat();
        let expected = losses(name);
        assert!(expected.len() > 10 && expected[9] < expected[0], "{expected:?}");
        side_by_side(
            [
                "--ranks 3 --strategy ddp",
                "--ranks 2 --strategy zero2",
                "--ranks 4 --strategy fsdp",
                "--ranks 4 --strategy hsdp --set comm.link=10Gbit,1us --set comm.hosts=2",
                "--ranks 2 --strategy fsdp --set train.recompute=1 --set train.accumulate=2",
            ],
            |line| {
                let run = format!("{name}-{}", line.replace(|c: char| !c.is_alphanumeric(), ""));
                place.succeed(&format!("{model} {data} {line} --out {run}"));
                assert_close(&run, &losses(&run), &expected, 2e-5);
            },
        );
        let run = format!("{name}-bf16");
        place.succeed(&format!("{model} {data} --ranks 2 --set train.precision=bf16 --out {run}"));
        assert_close(&run, &losses(&run), &expected, 0.03);
    }
}

#[test]
fn a_text_is_read_by_bytes_and_a_run_resumes_to_the_bit() {
    let place = Place::new();
    std::fs::write(place.path("bytes"), [7_u8, 255, 0, 13].repeat(120)).expect("writes");
    let line = format!("{GPT} --ranks 1 --set data.path=bytes --set model.tokenizer=bytes");
    place.succeed(&format!("{line} --out whole"));
    place.succeed(&format!("{line} --steps 4 --out parts"));
    place.succeed("train --resume --out parts --steps 0");
    assert_eq!(hashes(&place.path("parts")), hashes(&place.path("whole")));
}

#[test]
fn bad_input_is_named() {
    let place = Place::new();
    std::fs::write(place.path("latin1.txt"), b"caf\xe9 ".repeat(50)).expect("writes");
    std::fs::write(place.path("short.txt"), "a").expect("writes");
    for (line, words) in [
        ("--set model.key_heads=3", &["4 heads cannot share 3"][..]),
        ("--set model.head_dim=5", &["head_dim", "even"]),
        ("--set model.theta=0", &["theta"]),
    ] {
        let said = place.fail(&format!("{LLAMA} --ranks 1 {line} --out run"));
        assert!(words.iter().all(|words| said.contains(words)), "{line}: {said}");
    }
    for (line, words) in [
        ("--set model.heads=3", &["3 heads do not divide a width of 16"][..]),
        ("--set model.context=0", &["model.context"]),
        ("--set data.path=none.txt", &["none.txt"]),
        ("--set data.path=latin1.txt", &["latin1.txt", "not UTF-8 at byte 3"]),
        ("--set data.path=short.txt", &["short.txt", "no two in a row"]),
    ] {
        let said = place.fail(&format!("{GPT} --ranks 1 {line} --out run"));
        assert!(words.iter().all(|words| said.contains(words)), "{line}: {said}");
        assert!(!place.path("run/config.toml").exists(), "{line}: there is a run");
    }
}
