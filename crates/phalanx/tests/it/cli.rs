//! The built program: its commands, messages and exit codes, without training.

use serde_json::Value;

use crate::harness::place::text;
use crate::harness::{MLP, Place, stderr};

#[test]
fn mistakes_have_code_two_and_say_what_was_meant() {
    let place = Place::new();
    for (line, words) in [
        ("trian", "'train'"),
        ("train shapes-cave", "there is no preset `shapes-cave`; did you mean shapes-cvae?"),
        ("train --set train.raks=3", "--set train.raks=3: unknown key train.raks; did you mean train.ranks?"),
        ("train --ranks 100", "train.global_batch 32 is not at least train.ranks 100"),
        ("train --ranks 0", "--ranks 0: train.ranks = 0 is not at least 1"),
        (
            "train --strategy pipeline",
            "is an axis of the mesh (--parallel pipeline=2), no strategy; there is",
        ),
        ("train --strategy dpp", "--strategy dpp: "),
        ("train --data cifar", "did you mean cifar10?"),
        ("train --data cifar10", "data.kind = cifar10 needs data.path"),
        ("train --steps 3 --epochs 3", "cannot be used with"),
        ("train nowhere.toml", "cannot read nowhere.toml"),
        ("config show tniy", "did you mean tiny?"),
        ("rank x", "is started by `phalanx train`"),
        ("train --lr 3", "use --set optim.lr=3"),
        ("train --batch-size=64", "use --set train.global_batch=64"),
        ("train --data photos/train", "write --data folder=photos/train"),
        ("submit --ranks 2", "--nodes times --ranks-per-node"),
        ("submit --time soon", "soon"),
        ("submit --ranks-per-node 2 --gpus-per-node 3", "take --gpus-per-node 2"),
        ("fit tiny", "use `phalanx train`"),
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
    let found: Value = serde_json::from_str(&place.succeed("doctor --json")).expect("JSON");
    assert_eq!(found["machine"]["version"], env!("CARGO_PKG_VERSION"));
    let short = place.succeed("doctor");
    assert!(
        short.split_whitespace().count() < 80 && place.succeed("doctor -v").len() > short.len(),
        "{short}"
    );
}

#[test]
fn scripts_get_json() {
    let place = Place::new();
    let presets: Value = serde_json::from_str(&place.succeed("config list --json")).expect("JSON");
    assert_eq!((&presets[0]["name"], &presets[0]["default"]), (&"shapes-cvae".into(), &true.into()));
    let keys: Value =
        serde_json::from_str(&place.succeed("config show tiny --set optim.lr=0.5 --json")).expect("JSON");
    let rate =
        keys.as_array().and_then(|keys| keys.iter().find(|key| key["key"] == "optim.lr")).expect("a key");
    assert_eq!((&rate["value"], &rate["origin"]), (&0.5.into(), &"--set optim.lr=0.5".into()));
    let changed: Value =
        serde_json::from_str(&place.succeed("config diff tiny shapes-cvae --json")).expect("JSON");
    assert!(
        changed.as_array().is_some_and(|keys| keys.iter().any(|key| key["key"] == "train.steps")),
        "{changed}"
    );
    let studies: Value = serde_json::from_str(&place.succeed("study --json")).expect("JSON");
    assert!(studies.as_array().is_some_and(|studies| studies.len() > 3), "{studies}");
}

#[test]
fn a_training_prints_json_lines_or_nothing() {
    let place = Place::new();
    for ranks in [1, 2] {
        let said =
            place.succeed(&format!("train tiny {MLP} --ranks {ranks} --steps 4 --json --out json{ranks}"));
        let events: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
        let kinds: Vec<&str> = events.iter().filter_map(|event| event["event"].as_str()).collect();
        assert_eq!((kinds[0], kinds[kinds.len() - 1]), ("started", "finished"), "{kinds:?}");
        for kind in ["step", "evaluated", "saved"] {
            assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
        }
        let last = events.last().expect("not empty");
        assert_eq!((&last["status"], &last["step"]), (&"finished".into(), &4.into()), "{last}");
        let output =
            place.output(&format!("train tiny {MLP} --ranks {ranks} --steps 2 --quiet --out quiet{ranks}"));
        assert!(
            output.status.success() && output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
    }
}

#[test]
fn shells_and_man_get_their_files() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = place.succeed(&format!("completions {shell}"));
        assert!(text.contains("diagnose") && text.contains("logical") | text.contains("ranks"), "{shell}");
    }
    assert!(place.succeed("man pages").contains("pages/phalanx.1"));
    let page = std::fs::read_to_string(place.path("pages/phalanx-train.1")).expect("a page");
    assert!(page.contains("Train a model") && page.contains("Examples"), "{page}");
    assert!(place.path("pages/phalanx-config-show.1").is_file() && place.path("pages/phalanx.1").is_file());
}

#[test]
fn help_shows_groups_and_examples() {
    let place = Place::new();
    let help = place.succeed("--help");
    let at = |text: &str| help.find(text).unwrap_or_else(|| panic!("{text} is not in {help}"));
    assert!(
        at("Train:") < at("Look:") && at("Look:") < at("Use:") && at("Cluster:") < at("Options:"),
        "{help}"
    );
    assert!(help.lines().all(|line| line.chars().count() <= 110), "{help}");
    let help = place.succeed("train --help");
    assert!(help.contains("Examples:\n  phalanx train shapes-cvae --ranks 2"), "{help}");
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
