//! The dashboard on a real terminal: what is on its screen, what keys do, and that the terminal is given back however it
//! ends.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use phalanx_report::dashboard::{ExitReason, OwnTraining, show};
use phalanx_run::RunFolder;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::harness::processes::{PATIENCE, signal};
use crate::harness::results::{lines, saved, summary};
use crate::harness::{PROGRAM, Place, Running, side_by_side};

/// The variable that has this test program run a command, of which each line is an argument, in a session of its own.
const SESSION: &str = "PHALANX_TEST_SESSION";

/// The variable that has this test program show a run's dashboard and panic: in which way, and the run's folder.
const PANICS: &str = "PHALANX_TEST_PANICS";

/// Not a test of its own: becomes a command whose controlling terminal is its standard input, so that it hears of new
/// sizes.
#[test]
fn as_who_leads_a_session() {
    let Ok(command) = std::env::var(SESSION) else { return };
    rustix::process::setsid().expect("it leads no group");
    rustix::process::ioctl_tiocsctty(std::io::stdin()).expect("a terminal without a session");
    let mut parts = command.lines();
    let failed = Command::new(parts.next().expect("a program")).args(parts).exec();
    panic!("{command}: {failed}");
}

/// Not a test of its own: a dashboard that ends by a panic.
#[test]
fn as_a_program_that_panics() {
    let Ok(how) = std::env::var(PANICS) else { return };
    let (how, folder) = how.split_once(' ').expect("two words");
    let folder = RunFolder::open(Path::new(folder)).expect("a run");
    let begun = Instant::now();
    let ended = || {
        if begun.elapsed() > Duration::from_secs(2) {
            match how {
                "here" => panic!("the program fell"),
                _ => drop(std::thread::spawn(|| panic!("a thread fell")).join()),
            }
        }
        false
    };
    let left = show(&folder, Some(OwnTraining { ended: &ended, interrupt: &|| {} }), |_, _| None, &|| 0);
    assert_eq!(left.expect("the terminal obeys"), ExitReason::Quit);
}

/// A program on a terminal.
struct Seen {
    child: Child,
    master: File,
    /// The program's side; held open so that its settings can be looked at afterwards.
    slave: File,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Drop for Seen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size((columns, rows): (u16, u16)) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Seen {
    /// Starts a program on a new terminal.
    fn start(columns_rows: (u16, u16), place: &Path, command: &[&str], environment: &[(&str, &str)]) -> Self {
        let master: OwnedFd = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).expect("ours");
        unlockpt(&master).expect("ours");
        let name = ptsname(&master, Vec::new()).expect("it has a name").into_string().expect("plain");
        tcsetwinsize(&master, size(columns_rows)).expect("it has a size");
        // Opened without becoming the controlling terminal of the test.
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::NOCTTY;
        let slave: File = rustix::fs::open(&name, flags, rustix::fs::Mode::empty()).expect("opens").into();
        let end = || Stdio::from(slave.try_clone().expect("one more"));
        let mut program = Command::new(std::env::current_exe().expect("this program"));
        program
            .args(["--exact", "dashboard::as_who_leads_a_session", "--nocapture"])
            .env(SESSION, command.join("\n"));
        program.current_dir(place).stdin(end()).stdout(end()).stderr(end());
        program.env("TERM", "xterm-256color").env_remove("NO_COLOR").env_remove("COLORTERM");
        program.envs(environment.iter().copied());
        let child = program.spawn().expect("this program runs again");
        let screen = Arc::new(Mutex::new(vt100::Parser::new(columns_rows.1, columns_rows.0, 0)));
        let (shown, mut from) = (screen.clone(), File::from(master.try_clone().expect("one more")));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut bytes) {
                shown.lock().expect("no panic").process(&bytes[..count]);
            }
        });
        Self { child, master: File::from(master), slave, screen }
    }

    fn text(&self) -> String {
        self.screen.lock().expect("no panic").screen().contents()
    }

    fn is_taken(&self) -> bool {
        let screen = self.screen.lock().expect("no panic");
        screen.screen().alternate_screen() && screen.screen().hide_cursor()
    }

    fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).expect("the terminal takes it");
    }

    fn resize(&self, columns_rows: (u16, u16)) {
        self.screen.lock().expect("no panic").screen_mut().set_size(columns_rows.1, columns_rows.0);
        tcsetwinsize(&self.master, size(columns_rows)).expect("it has a size");
    }

    fn wait_for(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            let ended = self.child.try_wait().expect("it is there");
            assert_eq!(ended, None, "it ended before {what}:\n{}", self.text());
            assert!(begun.elapsed() < PATIENCE, "no {what} within {PATIENCE:?}:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn wait_for_text(&mut self, text: &str) {
        self.wait_for(text, |seen| seen.text().contains(text));
    }

    fn signal(&self, name: &str) {
        signal(name, self.child.id());
    }

    /// Waits for the end: how it ended, and what is on the screen, which must be the first one, with a cursor, and with a
    /// terminal that echoes and reads lines.
    fn end(mut self) -> (ExitStatus, String) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it is there") {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE, "no end within {PATIENCE:?}:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        };
        // What it has sent last may still be on its way.
        std::thread::sleep(Duration::from_millis(300));
        {
            let screen = self.screen.lock().expect("no panic");
            assert!(!screen.screen().alternate_screen(), "the first screen is back");
            assert!(!screen.screen().hide_cursor(), "the cursor is back");
        }
        let modes = tcgetattr(&self.slave).expect("a terminal").local_modes;
        assert!(modes.contains(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG), "{modes:?}");
        (status, self.text())
    }
}

/// A training whose steps take a while, by two ranks.
const SLOW: &str = "--ranks 2 --out run --set log.every=1 --set train.threads=1 --set data.images=64 --set data.test_images=8 \
    --set sample.every=3 --set checkpoint.every=1000 --steps 100000 --set chaos.delay=rank=0,ms=20";

/// The number of steps that the run has reported.
fn done(place: &Place) -> usize {
    lines(&place.path("run")).len()
}

fn started(place: &Place, columns_rows: (u16, u16)) -> Seen {
    let line = format!("{PROGRAM} train tiny {SLOW} --tui");
    let command: Vec<&str> = line.split_whitespace().collect();
    Seen::start(columns_rows, place.folder(), &command, &[])
}

#[test]
fn a_training_is_shown_paused_saved_and_stopped_by_keys() {
    let place = Place::new();
    let mut seen = started(&place, (120, 40));
    seen.wait_for("the dashboard", Seen::is_taken);
    seen.wait_for_text("run  training  2 ranks by");
    seen.wait_for_text("▀▀");
    for words in ["╭ l1", "╭ ranks", "╭ log", "samples/s", "ETA ", "/100,000"] {
        seen.wait_for_text(words);
    }
    seen.press("?");
    seen.wait_for_text("pause after the step, and resume");
    seen.press("?l");
    seen.wait_for_text("╭ l1, log scale");

    seen.press("p");
    seen.wait_for_text("PAUSED");
    let paused = done(&place);
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(done(&place), paused, "no step is taken");
    let checkpoints = || saved(&place.path("run"));
    assert!(checkpoints().is_empty());
    seen.press("s");
    seen.wait_for("the checkpoint", |_| !checkpoints().is_empty());
    assert_eq!(checkpoints()[0] as usize, paused, "of the step after which it paused");
    seen.press("p");
    seen.wait_for("more steps", |_| done(&place) > paused);

    seen.resize((80, 24));
    seen.wait_for_text("[curves]  ranks   samples   log");
    seen.press("\t\t");
    seen.wait_for_text("[samples]");
    seen.resize((30, 8));
    seen.wait_for_text("30 x 8 is too small");
    seen.resize((120, 40));
    seen.wait_for_text("╭ ranks");

    seen.press("q");
    seen.wait_for_text("Stop the training?");
    seen.press("n");
    seen.wait_for("the question to go", |seen| !seen.text().contains("Stop the training?"));
    let before = done(&place);
    seen.wait_for("more steps", |_| done(&place) > before);
    seen.press("x");
    seen.wait_for_text("Stop the run after saving?");
    seen.press("y");
    let (status, text) = seen.end();
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(text.contains("continue with: phalanx train --resume --out run"), "{text}");
    let summary = summary(&place.path("run"));
    assert_eq!(summary.status, "interrupted");
    assert_eq!(checkpoints().last(), Some(&summary.step));
}

#[test]
fn a_signal_or_ctrl_c_stops_the_training_and_gives_the_terminal_back() {
    side_by_side(["-TERM", "-HUP", "\u{3}", "q"], |interrupt| {
        let place = Place::new();
        let mut seen = started(&place, (80, 24));
        seen.wait_for_text("training  2 ranks");
        match interrupt {
            "q" => seen.press("qy"),
            key if !key.starts_with('-') => seen.press(key),
            signal => seen.signal(signal),
        }
        let (status, text) = seen.end();
        assert_eq!(status.code(), Some(0), "{interrupt:?}: {text}");
        assert_eq!(summary(&place.path("run")).status, "interrupted", "{interrupt:?}");
    });
}

#[test]
fn a_failure_is_told_on_the_screen_that_stays() {
    let place = Place::new();
    for ranks in ["--ranks 2", "--ranks 2 --strategy dp", "--ranks 1"] {
        // So large a step that the loss is no number any more.
        let line =
            format!("{PROGRAM} train tiny --tui --out run --set optim.kind=sgd --set optim.lr=1e30 {ranks}");
        let command: Vec<&str> = line.split_whitespace().collect();
        let seen = Seen::start((100, 30), place.folder(), &command, &[]);
        let (status, text) = seen.end();
        assert_eq!(status.code(), Some(1), "{ranks}: {text}");
        assert!(text.contains("error: rank 0 failed") && text.contains("loss"), "{ranks}: {text}");
        std::fs::remove_dir_all(place.path("run")).expect("there is one");
    }
}

#[test]
fn a_watcher_can_leave_and_the_training_continues() {
    let place = Place::new();
    let mut training = Running::start(&place, &format!("train tiny {SLOW}"));
    training.wait_for_step(1);
    for (leave, code) in [("q", 0), ("\u{3}", 0), ("-TERM", 143), ("-INT", 130)] {
        let mut seen =
            Seen::start((100, 30), place.folder(), &[PROGRAM, "watch", "run"], &[("NO_COLOR", "1")]);
        seen.wait_for("the dashboard", Seen::is_taken);
        seen.wait_for_text("run  training  2 ranks by");
        let before = done(&place);
        seen.press("p");
        seen.wait_for_text("PAUSED");
        seen.press("p");
        seen.wait_for_text("run  training");
        seen.wait_for("more steps", |_| done(&place) > before);
        match leave.starts_with('-') {
            true => seen.signal(leave),
            false => seen.press(leave),
        }
        assert_eq!(seen.end().0.code(), Some(code), "{leave:?}");
    }
    let before = done(&place);
    std::thread::sleep(Duration::from_millis(800));
    assert!(done(&place) > before, "the training goes on");
    let mut seen = Seen::start((100, 30), place.folder(), &[PROGRAM, "watch", "run"], &[]);
    seen.wait_for_text("run  training");
    training.launcher().kill().expect("it lives");
    training.end();
    seen.wait_for_text("GONE");
    seen.press("s");
    seen.wait_for_text("`save` is not possible: the run is over");
    seen.press("q");
    assert_eq!(seen.end().0.code(), Some(0));
}

#[test]
fn a_dumb_terminal_gets_plain_lines() {
    let place = Place::new();
    let line = format!("{PROGRAM} train tiny --tui --ranks 2 --steps 4 --out run");
    let command: Vec<&str> = line.split_whitespace().collect();
    let seen = Seen::start((100, 40), place.folder(), &command, &[("TERM", "dumb")]);
    let (status, text) = seen.end();
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(text.contains("finished"), "{text}");
    let seen = Seen::start((100, 40), place.folder(), &[PROGRAM, "watch", "run"], &[("TERM", "dumb")]);
    let (status, text) = seen.end();
    assert!(status.success() && text.contains("step 1/4  l1 ") && text.contains("finished"), "{text}");
}

#[test]
fn a_panic_gives_the_terminal_back_and_is_told() {
    let place = Place::new();
    let run = RunFolder::create(Some(&place.path("run")), place.folder(), "run").expect("new");
    std::fs::write(run.config(), "").expect("writes");
    let program = std::env::current_exe().expect("this program").display().to_string();
    for (how, said, fails) in [("here", "the program fell", true), ("thread", "a thread fell", false)] {
        let how = format!("{how} {}", run.path().display());
        let command = [program.as_str(), "--exact", "dashboard::as_a_program_that_panics", "--nocapture"];
        let mut seen =
            Seen::start((100, 30), place.folder(), &command, &[(PANICS, &how), ("RUST_BACKTRACE", "0")]);
        seen.wait_for("the dashboard", Seen::is_taken);
        seen.wait_for_text("run  starting");
        let (status, text) = seen.end();
        assert_eq!(status.success(), !fails, "{text}");
        assert!(text.contains(said), "{text}");
    }
}
