//! A job's requests, and its script.

use std::fmt::Write as _;
use std::path::Path;

use super::ClusterError;
use super::limit::seconds_of;
use super::text::{check_text, checked_path};

/// The part of a script that draws a secret, unless the user has given one.
const SECRET: &str = "# What ranks prove to know to each other, new in every life of the job; who joins finds it there.\n\
    if [ -z \"$PHALANX_SECRET_FILE\" ]; then\n\
    \x20 export PHALANX_SECRET_FILE=\"$run/secret\"\n\
    \x20 rm -f \"$run/secret\"\n\
    \x20 (umask 077; od -An -v -N32 -tx1 /dev/urandom | tr -d ' \\n' > \"$run/secret\")\n\
    \x20 # Also where the script is told to end before its last line.\n\
    \x20 trap 'rm -f \"$run/secret\"' EXIT\n\
    fi\n";

/// The name of this job for `squeue` and `scontrol`; of an array, of this task alone.
const JOB: &str = "job=$SLURM_JOB_ID\n\
    [ -z \"$SLURM_ARRAY_JOB_ID\" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID\n";

/// The placeholder of the number of an array's task.
pub const TASK: &str = "{task}";

/// The most tasks of an array.
const MOST_TASKS: u64 = 10_000;

/// The work of a job's ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Work {
    /// They train a run, all together: when one fails the others are ended.
    #[default]
    Train,
    /// They train a run whose world may change: those who are left go on.
    Elastic,
    /// They join a run of another job, each for itself, and leave it again.
    Join,
}

/// A job's requests to the scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Job {
    /// The work of its ranks.
    pub work: Work,
    /// The job's name.
    pub name: String,
    /// The number of hosts.
    pub nodes: usize,
    /// Ranks on each of them.
    pub ranks_per_node: usize,
    /// Cores of each rank; the cluster's default if nothing is said.
    pub cpus_per_rank: Option<usize>,
    /// GPUs of each node.
    pub gpus_per_node: Option<usize>,
    /// The longest that it may take, as SLURM writes it: minutes, `h:mm:ss`, `d-hh:mm:ss`.
    pub time: Option<String>,
    /// The partition.
    pub partition: Option<String>,
    /// The account.
    pub account: Option<String>,
    /// True if it is queued again after an interruption.
    pub requeue: bool,
    /// The tasks of an array.
    pub array: Option<String>,
    /// Seconds before the end of its time at which ranks are told to save.
    pub warning: u64,
    /// Further options of `sbatch`, such as `--constraint=a100`.
    pub options: Vec<String>,
}

impl Job {
    /// Returns the script that trains the run in `run` by `program`; of an array's task the run in the folder `task-N` there.
    ///
    /// # Errors
    /// [`ClusterError::ControlCharacter`] and [`ClusterError::NotUtf8`] for texts that a script cannot hold.
    pub fn script(&self, program: &Path, run: &Path) -> Result<String, ClusterError> {
        self.check_texts(program, run)?;
        Ok(self.checked_script(program, run))
    }

    fn check_texts(&self, program: &Path, run: &Path) -> Result<(), ClusterError> {
        checked_path("the program", program)?;
        checked_path("--out", run)?;
        check_text("the name of the job", &self.name)?;
        let texts = [
            ("--time", &self.time),
            ("--partition", &self.partition),
            ("--account", &self.account),
            ("--array", &self.array),
        ];
        for (what, text) in texts {
            text.iter().try_for_each(|text| check_text(what, text))?;
        }
        self.options.iter().try_for_each(|option| check_text("--sbatch", option))
    }

    fn checked_script(&self, program: &Path, run: &Path) -> String {
        let mut script = "#!/bin/bash\n".to_owned();
        let mut option = |text: String| {
            let _ = writeln!(script, "#SBATCH {text}");
        };
        option(format!("--job-name={}", word(&self.name)));
        option(format!("--nodes={}", self.nodes));
        option(format!("--ntasks-per-node={}", self.ranks_per_node));
        let numbers = [("cpus-per-task", self.cpus_per_rank), ("gpus-per-node", self.gpus_per_node)];
        for (name, number) in numbers {
            number.iter().for_each(|number| option(format!("--{name}={number}")));
        }
        let texts = [
            ("time", &self.time),
            ("partition", &self.partition),
            ("account", &self.account),
            ("array", &self.array),
        ];
        for (name, text) in texts {
            text.iter().for_each(|text| option(format!("--{name}={}", word(text))));
        }
        if self.warning() > 0 {
            option(format!("--signal=USR1@{}", self.warning()));
        }
        if self.work != Work::Train {
            // A node that is lost takes its ranks with it, and not the job.
            option("--no-kill".to_owned());
        }
        option(if self.requeue { "--requeue" } else { "--no-requeue" }.to_owned());
        option("--open-mode=append".to_owned());
        // `%` begins what SLURM fills in.
        let logs = run.join("logs").display().to_string().replace('%', "%%");
        let file = if self.array.is_some() { "slurm-%A_%a.out" } else { "slurm-%j.out" };
        option(format!("--output={}", word(&format!("{logs}/{file}"))));
        self.options.iter().for_each(|given| option(given.clone()));
        let place = match &self.array {
            Some(_) => format!("{}\"/task-$SLURM_ARRAY_TASK_ID\"", quoted(run)),
            None => quoted(run),
        };
        let _ = write!(script, "\nrun={place}\n{}", self.work(program));
        if self.requeue {
            // Where all ranks of an elastic job have left, those that joined it may still train.
            let over = match self.work {
                Work::Elastic => "grep -q '\"doing\": \"ended\"' \"$run/state.json\" && ",
                Work::Train | Work::Join => "",
            };
            let _ = write!(
                script,
                "\n# Ranks that were told to stop have saved and end well. Who cancels a job does not want it back.\n\
                 {JOB}if [ \"$code\" -eq 0 ] && {over}grep -q '\"status\": \"interrupted\"' \"$run/summary.json\"; then\n\
                 \x20 case \"$(squeue --noheader --format=%T --jobs=\"$job\" 2>/dev/null)\" in\n\
                 \x20   RUNNING) scontrol requeue \"$job\" ;;\n\
                 \x20 esac\n\
                 fi\n",
            );
        }
        script.push_str("exit \"$code\"\n");
        script
    }

    /// Seconds before the end at which ranks are told to save: of a short job at most a quarter, as SLURM tells them at once if there
    /// is less left than that, and half a minute more.
    fn warning(&self) -> u64 {
        let time = self.time.as_deref().and_then(|time| seconds_of(time).ok());
        self.warning.min(time.map_or(u64::MAX, |seconds| seconds / 4))
    }

    /// The part of the script that starts the ranks and waits for them.
    fn work(&self, program: &Path) -> String {
        let cpus = self.cpus_per_rank.map_or_else(String::new, |cpus| format!("--cpus-per-task={cpus} "));
        let program = quoted(program);
        // Ranks need this script's variables, also where sbatch was told to pass none of its own (`--export=NONE`).
        let given = format!("--export=ALL {cpus}");
        // What ranks of a world do that may change when one of them ends: nothing, however long the others go on.
        let outliving = format!("srun --no-kill --kill-on-bad-exit=0 --wait=0 {given}{program}");
        match self.work {
            Work::Train => format!(
                "{SECRET}# Goes on with the run where it is, also when the job was queued again.\n\
                 srun --kill-on-bad-exit=1 {given}{program} train --resume --out \"$run\"\ncode=$?\n"
            ),
            Work::Elastic => format!(
                "{SECRET}# Goes on with the run where it is, also when the job was queued again.\n\
                 rm -f \"$run/state.json\"\n\
                 {outliving} train --resume --out \"$run\"\ncode=$?\n\
                 # Ranks that were lost have srun fail; the run says itself whether it has ended well.\n\
                 if grep -q '\"doing\": \"ended\"' \"$run/state.json\" 2>/dev/null; then code=0; fi\n"
            ),
            Work::Join => format!(
                "# Each task takes part when there is room, and leaves when the job is told to end.\n\
                 {outliving} join \"$run\"\ncode=$?\n"
            ),
        }
    }
}

/// A value as one word of an `#SBATCH` line, which has rules of its own: quotes hold it together, and a backslash stands before what
/// is none.
fn word(text: &str) -> String {
    let is_plain = |letter: char| letter.is_alphanumeric() || "-_./%+=:,@".contains(letter);
    match text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
    }
}

/// A path as one word of a shell.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "'\\''"))
}

/// The numbers of an array's tasks: `0-3,7` are 0, 1, 2, 3 and 7. A limit on how many run at once (`%2`) is for the scheduler.
///
/// # Errors
/// [`ClusterError::Array`] if it names none, or what is no number.
pub fn tasks_of_array(text: &str) -> Result<Vec<u64>, ClusterError> {
    let wrong = |problem: String| ClusterError::Array { text: text.to_owned(), problem };
    let number = |word: &str| word.trim().parse::<u64>().map_err(|_| wrong(format!("`{word}` is no number")));
    let list = text.split_once('%').map_or(text, |(list, _)| list);
    let mut tasks = Vec::new();
    for part in list.split(',') {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last, step) = (number(first)?, number(last)?, number(step)?);
        if last < first || step == 0 || last - first >= MOST_TASKS {
            return Err(wrong(format!("`{part}` names no tasks, or more than {MOST_TASKS}")));
        }
        tasks.extend((first..=last).step_by(step as usize));
        if tasks.len() as u64 > MOST_TASKS {
            return Err(wrong(format!("its parts name more than {MOST_TASKS} tasks")));
        }
    }
    tasks.sort_unstable();
    tasks.dedup();
    Ok(tasks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_that_would_begin_lines_of_a_script_are_refused() {
        let script = |job: Job, run: &str| job.script(Path::new("phalanx"), Path::new(run));
        let refused = script(Job::default(), "/runs/x\ntouch /tmp/x").expect_err("a line").to_string();
        assert!(
            refused.starts_with("--out `/runs/x\\ntouch /tmp/x` has the control character \\n"),
            "{refused}"
        );
        let jobs = [
            Job { name: "a\rb".to_owned(), ..Job::default() },
            Job { account: Some("a\n#SBATCH --wrap=x".to_owned()), ..Job::default() },
            Job { options: vec!["--comment=\u{1b}[2J".to_owned()], ..Job::default() },
        ];
        for job in jobs {
            assert!(matches!(script(job, "/runs/x"), Err(ClusterError::ControlCharacter { .. })));
        }
        let quoted = Job { account: Some("a --wrap=x".to_owned()), ..Job::default() };
        let script = script(quoted, "/runs/x").expect("one word");
        assert!(script.contains("#SBATCH --account=\"a --wrap=x\"\n"), "{script}");
    }

    #[test]
    fn a_script_asks_for_what_the_job_needs() {
        let job = Job {
            name: "gan".into(),
            nodes: 2,
            ranks_per_node: 3,
            cpus_per_rank: Some(4),
            time: Some("30".into()),
            partition: Some("p".into()),
            requeue: true,
            warning: 60,
            options: vec!["--constraint=fast".into()],
            ..Job::default()
        };
        let script = job.script(Path::new("/a b/phalanx"), Path::new("/it's/run")).expect("sound");
        assert!(!script.contains("--no-kill"), "{script}");
        for line in [
            "#SBATCH --nodes=2",
            "#SBATCH --ntasks-per-node=3",
            "#SBATCH --cpus-per-task=4",
            "#SBATCH --time=30",
            "#SBATCH --partition=p",
            "#SBATCH --signal=USR1@60",
            "#SBATCH --output=\"/it's/run/logs/slurm-%j.out\"",
            "#SBATCH --requeue",
            "#SBATCH --constraint=fast",
            "run='/it'\\''s/run'",
            "srun --kill-on-bad-exit=1 --export=ALL --cpus-per-task=4 '/a b/phalanx' train --resume --out \"$run\"",
        ] {
            assert!(script.lines().any(|own| own == line), "{line}\n{script}");
        }
        assert!(script.contains("scontrol requeue") && !script.contains("gpus"), "{script}");
        let elastic = Job { work: Work::Elastic, ..job.clone() }
            .script(Path::new("phalanx"), Path::new("/run"))
            .expect("sound");
        let join = Job { work: Work::Join, requeue: false, ..job.clone() };
        let join = join.script(Path::new("phalanx"), Path::new("/run")).expect("sound");
        let outliving =
            "srun --no-kill --kill-on-bad-exit=0 --wait=0 --export=ALL --cpus-per-task=4 'phalanx'";
        for (script, command) in [(&elastic, "train --resume --out"), (&join, "join")] {
            let line = format!("{outliving} {command} \"$run\"");
            for line in ["#SBATCH --no-kill", "#SBATCH --signal=USR1@60", &line] {
                assert!(script.lines().any(|own| own == line), "{line}\n{script}");
            }
        }
        for script in [&script, &elastic, &join] {
            let checked = std::process::Command::new("sh").args(["-n", "-c", script]).status();
            assert!(checked.expect("a shell").success(), "{script}");
        }
        // A joining process looks for the secret of the run.
        assert!(!join.contains("PHALANX_SECRET_FILE"), "{join}");
        for script in [&script, &elastic] {
            let drawn = script.find("/dev/urandom").expect("a secret");
            assert!(drawn < script.find("srun").expect("ranks") && script.contains("rm -f \"$run/secret\""));
        }
        let array = Job { array: Some("0-3".into()), requeue: false, ..job };
        let script = array.script(Path::new("phalanx"), Path::new("/runs/x")).expect("sound");
        assert!(script.contains("run='/runs/x'\"/task-$SLURM_ARRAY_TASK_ID\"\n"), "{script}");
        assert!(script.contains("/runs/x/logs/slurm-%A_%a.out") && !script.contains("scontrol"), "{script}");
    }

    #[test]
    fn values_of_options_are_one_word() {
        for (text, one) in [
            ("cifar10-resnet18", "cifar10-resnet18"),
            ("/runs/a b", "\"/runs/a b\""),
            ("a#b", "\"a#b\""),
            ("it's", "\"it's\""),
            ("a\"b\\c", "\"a\\\"b\\\\c\""),
        ] {
            assert_eq!(word(text), one);
        }
        let script = Job::default().script(Path::new("phalanx"), Path::new("/runs/100%")).expect("sound");
        assert!(script.contains("#SBATCH --output=/runs/100%%/logs/slurm-%j.out\n"), "{script}");
    }

    #[test]
    fn a_short_job_is_not_warned_as_it_begins() {
        let warning = |time: Option<&str>, warning: u64| {
            Job { time: time.map(str::to_owned), warning, ..Job::default() }.warning()
        };
        for (time, asked, given) in
            [(None, 120, 120), (Some("2:00:00"), 120, 120), (Some("2"), 120, 30), (Some("2:00"), 0, 0)]
        {
            assert_eq!(warning(time, asked), given, "{time:?}");
        }
    }

    /// Runs a job's script with programs in the place of SLURM's, of which `srun` does this: the exit code, and what they were told.
    #[cfg(unix)]
    fn act(job: &Job, variables: &[(&str, &str)], srun: &str) -> (Option<i32>, String, bool) {
        use std::os::unix::fs::PermissionsExt as _;
        let place = tempfile::tempdir().expect("a folder");
        let (told, run) = (place.path().join("told"), place.path().join("a run"));
        let task = run.join("task-3");
        std::fs::create_dir_all(&task).expect("a folder");
        for run in [&run, &task] {
            std::fs::write(run.join("summary.json"), "{\n  \"status\": \"interrupted\"\n}").expect("writes");
        }
        let squeue = format!("echo \"squeue $*\" >> '{0}'; echo RUNNING", told.display());
        let scontrol = format!("echo \"scontrol $*\" >> '{0}'", told.display());
        for (name, text) in [("srun", srun), ("squeue", &squeue), ("scontrol", &scontrol)] {
            let path = place.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("writes");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
        }
        let path = format!("{}:{}", place.path().display(), std::env::var("PATH").unwrap_or_default());
        let script = job.script(Path::new("phalanx"), &run).expect("sound");
        let mut command = std::process::Command::new("bash");
        command.args(["-c", &script]).env("PATH", path).env_remove("PHALANX_SECRET_FILE");
        let status = command.envs(variables.iter().copied()).status().expect("bash runs");
        let secret = [run.join("secret"), task.join("secret")].iter().any(|secret| secret.exists());
        (status.code(), std::fs::read_to_string(told).unwrap_or_default(), secret)
    }

    #[cfg(unix)]
    #[test]
    fn a_job_asks_for_itself_again_and_of_an_array_for_its_own_task() {
        let job = Job { requeue: true, ..Job::default() };
        // The secret is there while ranks are.
        let srun = "[ -s \"$PHALANX_SECRET_FILE\" ]";
        let plain = act(&job, &[("SLURM_JOB_ID", "9")], srun);
        let asked = "squeue --noheader --format=%T --jobs=9\nscontrol requeue 9\n".to_owned();
        assert_eq!(plain, (Some(0), asked, false));
        let array = Job { array: Some("0-3".into()), ..job.clone() };
        let variables = [("SLURM_JOB_ID", "9"), ("SLURM_ARRAY_JOB_ID", "9"), ("SLURM_ARRAY_TASK_ID", "3")];
        let asked = "squeue --noheader --format=%T --jobs=9_3\nscontrol requeue 9_3\n".to_owned();
        assert_eq!(act(&array, &variables, srun), (Some(0), asked, false));
        // A rank that fails, and a script that is told to end while ranks run.
        assert_eq!(act(&job, &[("SLURM_JOB_ID", "9")], "exit 7"), (Some(7), String::new(), false));
        let (code, told, secret) = act(&job, &[("SLURM_JOB_ID", "9")], "kill -TERM $PPID");
        assert_eq!((told.as_str(), secret), ("", false), "{code:?}");
    }

    #[test]
    fn tasks_are_numbers_and_ranges() {
        assert_eq!(tasks_of_array("0-3,7").expect("sound"), [0, 1, 2, 3, 7]);
        assert_eq!(tasks_of_array("1-7:3%2").expect("sound"), [1, 4, 7]);
        for (text, words) in [
            ("", "no number"),
            ("3-1", "names no tasks"),
            ("a", "`a`"),
            ("0-99999", "more than"),
            ("0-9999,0-9999", "more than"),
        ] {
            let error = tasks_of_array(text).expect_err(text).to_string();
            assert!(error.contains(words) && error.contains("as in 0-3,7"), "{error}");
        }
    }
}
