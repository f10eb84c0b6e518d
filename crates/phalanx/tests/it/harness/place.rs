//! Temporary folders in which commands of the program run.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use phalanx_launch::MeetingPort;

/// The built program.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_phalanx");

macro_rules! small {
    () => {
        "--set train.global_batch=12 --set train.threads=1 --set log.every=1 --set data.images=60 --set data.test_images=12 \
         --set sample.rows=1 --set sample.columns=1 --set eval.batch=4"
    };
}

/// Options of trainings by few samples, with small evaluations.
pub(crate) const SMALL: &str = small!();

/// The options of `SMALL`, and a model whose steps take milliseconds.
pub(crate) const MLP: &str = concat!(
    "--set model.kind=mlp --set model.mlp_width=24 --set model.mlp_depth=1 --set model.image_size=8 ",
    small!()
);

/// The option that delays ranks 0 to `ranks` in every step.
pub(crate) fn delayed(ranks: usize, ms: usize) -> String {
    let delays: Vec<String> = (0..ranks).map(|rank| format!("rank={rank},ms={ms}")).collect();
    format!("--set chaos.delay={}", delays.join(";"))
}

/// A temporary folder in which commands of a program run. It is removed when this is dropped.
///
/// A command is a line of words with spaces between them.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    program: PathBuf,
    environment: Vec<(OsString, OsString)>,
}

impl Place {
    /// A new folder for commands of `phalanx`.
    pub(crate) fn new() -> Self {
        Self::of(PathBuf::from(PROGRAM))
    }

    /// A new folder for commands of another program.
    pub(crate) fn of(program: PathBuf) -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), program, environment: Vec::new() }
    }

    /// Sets a variable of all commands.
    pub(crate) fn with(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// The folder.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A path in the folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Writes a file and the folders above it. Returns its path.
    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("creates");
        std::fs::write(&path, contents).expect("writes");
        path
    }

    /// Writes a file with a secret for all ranks. Returns its path.
    #[cfg(unix)]
    pub(crate) fn secret(&self, mode: u32) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = self.write("secret", "a secret of some length");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its own file");
        path
    }

    /// A command of the program, not started.
    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(line.split_whitespace()).current_dir(self.folder()).stdin(Stdio::null());
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command. Returns its exit status and output.
    pub(crate) fn output(&self, line: &str) -> Output {
        self.command(line).output().expect("the program starts")
    }

    /// Runs a command that must succeed. Returns its standard output.
    pub(crate) fn succeed(&self, line: &str) -> String {
        let output = self.output(line);
        assert!(output.status.success(), "{line}: {:?}\n{}", output.status, both(&output));
        text(&output.stdout)
    }

    /// Runs a command that must succeed. Returns its standard output and standard error.
    pub(crate) fn succeed_with_errors(&self, line: &str) -> String {
        let output = self.output(line);
        assert!(output.status.success(), "{line}: {:?}\n{}", output.status, both(&output));
        both(&output)
    }

    /// Runs a command that must fail. Returns its standard error.
    pub(crate) fn fail(&self, line: &str) -> String {
        let output = self.output(line);
        assert!(!output.status.success(), "{line} succeeds:\n{}", both(&output));
        stderr(&output)
    }

    /// Runs a command that must fail with an exit code. Returns its standard error.
    pub(crate) fn fail_with(&self, code: i32, line: &str) -> String {
        let output = self.output(line);
        assert_eq!(output.status.code(), Some(code), "{line}:\n{}", both(&output));
        stderr(&output)
    }
}

/// The text of bytes that a program has printed.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The standard error of a process.
pub(crate) fn stderr(output: &Output) -> String {
    text(&output.stderr)
}

/// The standard output and standard error of a process.
pub(crate) fn both(output: &Output) -> String {
    format!("{}\n{}", text(&output.stdout), text(&output.stderr))
}

/// A free port of this host that nothing else draws until this test program ends.
pub(crate) fn free_port() -> u16 {
    Box::leak(Box::new(MeetingPort::draw().expect("a free port"))).number()
}
