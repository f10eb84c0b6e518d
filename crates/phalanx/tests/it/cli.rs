//! The built program: its commands, messages and exit codes, without training.

use crate::harness::place::text;
use crate::harness::{Place, stderr};

#[test]
fn mistakes_have_code_two_and_say_what_was_meant() {
    let place = Place::new();
    for (line, words) in [
        ("trian", "'train'"),
        ("train shapes-cave", "there is no preset `shapes-cave`; did you mean shapes-cvae?"),
        ("train --set train.raks=3", "--set train.raks=3: unknown key train.raks; did you mean train.ranks?"),
        ("train --ranks 100", "train.global_batch 32 is not at least train.ranks 100"),
        ("train --ranks 0", "--ranks 0: train.ranks = 0 is not at least 1"),
        ("train --strategy pipeline", "is not built yet; there is"),
        ("train --strategy dpp", "--strategy dpp: "),
        ("train --data cifar", "did you mean cifar10?"),
        ("train --data cifar10", "data.kind = cifar10 needs data.path"),
        ("train --steps 3 --epochs 3", "cannot be used with"),
        ("train nowhere.toml", "cannot read nowhere.toml"),
        ("config show tniy", "did you mean tiny?"),
        ("rank x", "is started by `phalanx train`"),
        ("sample --run runs/x", "the run is an argument; use: phalanx sample runs/x"),
        ("eval --run runs/x --judge y", "the run is an argument; use: phalanx eval runs/x"),
    ] {
        let output = place.output(line);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(words), "{line}: {said}");
        assert!(output.stdout.is_empty(), "{line}: {}", text(&output.stdout));
    }
    let left: Vec<_> = std::fs::read_dir(place.folder()).expect("lists").collect();
    assert!(left.is_empty(), "a mistake leaves nothing behind: {left:?}");
}

#[test]
fn what_is_shown_can_be_used() {
    let place = Place::new();
    assert!(place.succeed("config list").contains("cifar10-resnet18"));
    for plain in ["", "--plain"] {
        let shown = place.succeed(&format!("config show tiny --set optim.lr=0.5 {plain}"));
        place.write("copy.toml", shown);
        assert_eq!(place.succeed("config diff tiny copy.toml"), "optim.lr: 0.002 -> 0.5\n");
    }
    let shown = place.succeed("config show tiny --set optim.lr=0.5");
    assert!(
        shown.contains("# The peak learning rate.") && shown.contains("set by --set optim.lr=0.5"),
        "{shown}"
    );
    place.succeed("doctor");
}

#[test]
fn a_run_is_never_overwritten() {
    let place = Place::new();
    let config = place.write("run/config.toml", "[train]\nseed = 5\n");
    for (line, words) in [
        ("train tiny --out run", "already holds a run; continue it with --resume"),
        ("train tiny --resume", "there is no run of `tiny` in runs to resume"),
        ("train tiny --resume --out other", "other holds no run"),
    ] {
        let said = place.fail_with(1, line);
        assert!(said.contains(words), "{line}: {said}");
    }
    assert_eq!(std::fs::read_to_string(config).expect("reads"), "[train]\nseed = 5\n");
}
