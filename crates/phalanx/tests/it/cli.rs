//! The built program: its commands, messages and exit codes, without training.

use std::process::{Command, Output};

fn phalanx(folder: &std::path::Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_phalanx"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("phalanx runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn mistakes_have_code_two_and_say_what_was_meant() {
    let folder = tempfile::tempdir().expect("a folder");
    let cases: &[(&[&str], &str)] = &[
        (&["trian"], "'train'"),
        (&["train", "shapes-cave"], "there is no preset `shapes-cave`; did you mean shapes-cvae?"),
        (
            &["train", "--set", "train.raks=3"],
            "--set train.raks=3: unknown key train.raks; did you mean train.ranks?",
        ),
        (&["train", "--ranks", "100"], "train.global_batch 32 is not at least train.ranks 100"),
        (&["train", "--ranks", "0"], "--ranks 0: train.ranks = 0 is not at least 1"),
        (&["train", "--strategy", "pipeline"], "is not built yet; there is"),
        (&["train", "--strategy", "dpp"], "--strategy dpp: "),
        (&["train", "--data", "cifar"], "did you mean cifar10?"),
        (&["train", "--data", "cifar10"], "data.kind = cifar10 needs data.path"),
        (&["train", "--steps", "3", "--epochs", "3"], "cannot be used with"),
        (&["train", "nowhere.toml"], "cannot read nowhere.toml"),
        (&["config", "show", "tniy"], "did you mean tiny?"),
        (&["rank", "x"], "is started by `phalanx train`"),
    ];
    for (arguments, words) in cases {
        let output = phalanx(folder.path(), arguments);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty(), "{arguments:?}: {}", text(&output.stdout));
    }
    let left: Vec<_> = std::fs::read_dir(folder.path()).expect("lists").collect();
    assert!(left.is_empty(), "a mistake leaves nothing behind: {left:?}");
}

#[test]
fn what_is_shown_can_be_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let list = phalanx(folder.path(), &["config", "list"]);
    assert!(list.status.success() && text(&list.stdout).contains("cifar10-resnet18"));
    for plain in [&[][..], &["--plain"][..]] {
        let mut arguments = vec!["config", "show", "tiny", "--set", "optim.lr=0.5"];
        arguments.extend(plain);
        let shown = phalanx(folder.path(), &arguments);
        assert!(shown.status.success());
        std::fs::write(folder.path().join("copy.toml"), &shown.stdout).expect("writes");
        let diff = phalanx(folder.path(), &["config", "diff", "tiny", "copy.toml"]);
        assert_eq!(text(&diff.stdout), "optim.lr: 0.002 -> 0.5\n");
    }
    let shown = text(&phalanx(folder.path(), &["config", "show", "tiny", "--set", "optim.lr=0.5"]).stdout);
    assert!(
        shown.contains("# The peak learning rate.") && shown.contains("set by --set optim.lr=0.5"),
        "{shown}"
    );
    assert!(phalanx(folder.path(), &["doctor"]).status.success());
}

#[test]
fn a_run_is_never_overwritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("run");
    std::fs::create_dir(&out).expect("a folder");
    std::fs::write(out.join("config.toml"), "[train]\nseed = 5\n").expect("writes");
    let output = phalanx(folder.path(), &["train", "tiny", "--out", "run"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("already holds a run; continue it with --resume"));
    assert_eq!(std::fs::read_to_string(out.join("config.toml")).expect("reads"), "[train]\nseed = 5\n");
    for (arguments, words) in [
        (&["train", "tiny", "--resume"][..], "there is no run of `tiny` in runs to resume"),
        (&["train", "tiny", "--resume", "--out", "other"][..], "other holds no run"),
    ] {
        let output = phalanx(folder.path(), arguments);
        assert_eq!(output.status.code(), Some(1));
        assert!(text(&output.stderr).contains(words), "{}", text(&output.stderr));
    }
}
