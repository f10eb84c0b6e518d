//! The manifest for Kubernetes: an indexed Job with a pod for each rank, or for each node's GPUs, the name by which
//! they find rank 0, and the configuration that they train.
//!
//! The manifest is for `kubectl apply`, on Kubernetes 1.27 and later. Where a pod is, its index says: it is the rank, or, where pods have
//! several, torchrun's `--node-rank` of the process that starts them. Ranks
//! meet at the pod of index 0, whose name the headless service makes known. The run's folder is in a volume that all pods
//! mount, and is made by whichever comes first; every pod goes on with what is there, so a Job whose pods are made again goes
//! on from the newest checkpoint.

use std::fmt::Write as _;

use super::ClusterError;
use super::text::check_text;

/// The exit code of an interrupted rank, so that its pod does not count as finished (`EX_TEMPFAIL`).
pub const INTERRUPTED: u8 = 75;

/// Where ranks of a pod read their secret: in memory.
const SECRET: &str = "/dev/shm/phalanx-secret";

/// Pods that are made again, of each rank, before a Job that may begin again fails for good.
const RETRIES: usize = 100;

/// The longest name: a pod's host name is this, a dash and its index, and has at most 63 characters.
const LONGEST_NAME: usize = 52;

/// A training whose ranks are pods, or processes in them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pods {
    /// The Job's name, its service's and its configuration's; see [`pod_name`].
    pub name: String,
    /// The number of pods.
    pub pods: usize,
    /// Ranks in each of them; 0 is one.
    pub ranks_per_pod: usize,
    /// The image that has the program.
    pub image: String,
    /// The program's path in the image.
    pub program: String,
    /// The claim of a volume that all pods can write, which is mounted at `/runs`.
    pub claim: String,
    /// The run's folder in that volume.
    pub run: String,
    /// The Secret that has what ranks prove to know to each other under the key `secret`, if there is one.
    pub secret: Option<String>,
    /// The configuration, as the run's `config.toml` has it.
    pub config: String,
    /// Cores of each rank.
    pub cpus: Option<usize>,
    /// GPUs of each pod.
    pub gpus: Option<usize>,
    /// The longest that the Job may take, in seconds.
    pub seconds: Option<u64>,
    /// True if interrupted and failed pods are made again.
    pub requeue: bool,
    /// Seconds between a pod's being told to end and its end.
    pub warning: u64,
}

/// Reduces a name to lower-case letters, digits and dashes: `CIFAR_10 ddp` becomes `cifar-10-ddp`.
pub fn pod_name(name: &str) -> String {
    let allowed =
        |letter: char| if letter.is_ascii_alphanumeric() { letter.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(allowed).take(LONGEST_NAME).collect();
    let name = name.trim_matches('-');
    // A service's name begins with a letter.
    if name.starts_with(|letter: char| letter.is_ascii_alphabetic()) {
        name.to_owned()
    } else {
        let name: String = format!("run-{name}").chars().take(LONGEST_NAME).collect();
        name.trim_end_matches('-').to_owned()
    }
}

impl Pods {
    /// Returns the manifest: YAML, three objects.
    ///
    /// # Errors
    /// [`ClusterError::ControlCharacter`] for a text that a manifest cannot hold.
    pub fn manifest(&self) -> Result<String, ClusterError> {
        let texts = [
            ("--image", &self.image),
            ("--volume-claim", &self.claim),
            ("--out", &self.run),
            ("the program", &self.program),
        ];
        texts.into_iter().try_for_each(|(what, text)| check_text(what, text))?;
        self.secret.iter().try_for_each(|secret| check_text("--secret", secret))?;
        // Tabs are no line breaks, and strings of TOML may hold them.
        let lines = self.config.split('\n').map(|line| line.replace('\t', " "));
        lines.into_iter().try_for_each(|line| check_text("the configuration", &line))?;
        let mut text = self.head();
        self.write_job(&mut text);
        self.write_container(&mut text);
        self.write_volumes(&mut text);
        Ok(text)
    }

    /// Returns the comment, the configuration and the service.
    fn head(&self) -> String {
        let name = &self.name;
        let config: String = self.config.lines().map(|line| format!("    {line}\n")).collect();
        let config = config.replace("    \n", "\n");
        let secret = match &self.secret {
            Some(secret) => format!(
                "# before: openssl rand -hex 32 | kubectl create secret generic {secret} --from-file=secret=/dev/stdin\n"
            ),
            None => "# Ranks prove nothing to each other, and nothing is encrypted, without --secret NAME.\n"
                .to_owned(),
        };
        format!(
            "# kubectl apply -f FILE; then kubectl logs --follow job/{name}\n{secret}\
             apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  config.toml: |\n{config}---\n\
             apiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\nspec:\n  clusterIP: None\n\
             \x20 # Ranks look for rank 0 before any of them is ready.\n  publishNotReadyAddresses: true\n  selector:\n\
             \x20   batch.kubernetes.io/job-name: {name}\n---\n"
        )
    }

    /// Writes the job down to the beginning of its pods.
    fn write_job(&self, text: &mut String) {
        let _ = write!(
            text,
            "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: {0}\nspec:\n  completionMode: Indexed\n\
             \x20 completions: {1}\n  parallelism: {1}\n  backoffLimit: {2}\n",
            self.name,
            self.pods,
            if self.requeue { RETRIES * self.pods } else { 0 },
        );
        if let Some(seconds) = self.seconds {
            let _ = writeln!(text, "  activeDeadlineSeconds: {seconds}");
        }
        // A usage error fails again in a new pod. Pods that the cluster takes away are no failure of the training.
        text.push_str(
            "  podFailurePolicy:\n    rules:\n    - action: FailJob\n      onExitCodes:\n        containerName: rank\n\
             \x20       operator: In\n        values: [2]\n",
        );
        if self.requeue {
            text.push_str("    - action: Ignore\n      onPodConditions:\n      - type: DisruptionTarget\n");
        }
    }

    /// Writes the container of a pod: script, environment and resources.
    fn write_container(&self, text: &mut String) {
        let name = &self.name;
        let _ = write!(
            text,
            "  template:\n    spec:\n      subdomain: {name}\n      restartPolicy: Never\n\
             \x20     # Else a service called `phalanx` would set PHALANX_PORT in all pods.\n      enableServiceLinks: false\n\
             \x20     terminationGracePeriodSeconds: {}\n      containers:\n      - name: rank\n        image: {}\n\
             \x20       command: [/bin/sh, -c]\n        args:\n        - |\n",
            self.warning.max(1),
            scalar(&self.image),
        );
        for line in self.script().lines() {
            let _ = writeln!(text, "          {line}");
        }
        let _ = write!(
            text,
            "        env:\n        - name: {}\n          valueFrom:\n            fieldRef:\n\
             \x20             fieldPath: metadata.annotations['batch.kubernetes.io/job-completion-index']\n",
            self.index(),
        );
        let master = format!("{name}-0.{name}");
        let world = self.pods.to_string();
        // Pods that start several ranks tell each of them its place.
        let alone = [("WORLD_SIZE", world.as_str()), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")];
        let alone = alone.into_iter().filter(|_| self.ranks_per_pod <= 1);
        let secret = self.secret.is_some().then_some(("PHALANX_SECRET_FILE", SECRET));
        let places = [("MASTER_ADDR", master.as_str()), ("MASTER_PORT", "29500")];
        for (key, value) in alone.chain(places).chain(secret) {
            let _ = writeln!(text, "        - name: {key}\n          value: {}", scalar(value));
        }
        if self.cpus.is_some() || self.gpus.is_some() {
            text.push_str("        resources:\n          limits:\n");
            let cpus = self.cpus.map(|cpus| cpus * self.ranks_per_pod.max(1));
            for (kind, number) in [("cpu", cpus), ("nvidia.com/gpu", self.gpus)] {
                if let Some(number) = number {
                    let _ = writeln!(text, "            {kind}: {number}");
                }
            }
        }
    }

    /// Writes the volumes and their places in the container.
    fn write_volumes(&self, text: &mut String) {
        let name = &self.name;
        let _ = write!(
            text,
            "        volumeMounts:\n        - {{name: runs, mountPath: /runs}}\n        - {{name: config, mountPath: /etc/phalanx}}\n\
             \x20       - {{name: shm, mountPath: /dev/shm}}\n{}      volumes:\n      - name: runs\n        persistentVolumeClaim:\n\
             \x20         claimName: {}\n      - name: config\n        configMap:\n          name: {name}\n      - name: shm\n\
             \x20       emptyDir:\n          medium: Memory\n",
            if self.secret.is_some() {
                "        - {name: secret, mountPath: /etc/phalanx-secret}\n"
            } else {
                ""
            },
            scalar(&self.claim),
        );
        if let Some(secret) = &self.secret {
            let _ = write!(
                text,
                "      - name: secret\n        secret:\n          secretName: {}\n",
                scalar(secret)
            );
        }
    }

    /// The variable with the pod's index.
    fn index(&self) -> &'static str {
        if self.ranks_per_pod > 1 { "NODE_RANK" } else { "RANK" }
    }

    /// Returns the script of each pod.
    fn script(&self) -> String {
        let place = match self.ranks_per_pod {
            0 | 1 => String::new(),
            ranks => format!(
                " --nnodes {} --node-rank \"$NODE_RANK\" --nproc-per-node {ranks} --master-addr \"$MASTER_ADDR\" --master-port \
                 \"$MASTER_PORT\"",
                self.pods
            ),
        };
        // Modes and owners of a Secret's files follow the cluster's rules; ranks want a file that is theirs alone.
        let secret = match self.secret {
            Some(_) => format!("(umask 077; cat /etc/phalanx-secret/secret > {SECRET})\n"),
            None => String::new(),
        };
        format!(
            "{secret}run={run}\n\
             # Whichever pod comes first makes the run's folder; a configuration that is there already stays.\n\
             mkdir -p \"$run\"\n\
             if ! [ -f \"$run/config.toml\" ]; then\n\
             \x20 cp /etc/phalanx/config.toml \"$run/.config.${index}\" && mv \"$run/.config.${index}\" \"$run/config.toml\"\n\
             fi\n\
             # The name of rank 0's pod is known some seconds after the pod was made.\n\
             for second in $(seq 300); do getent hosts \"$MASTER_ADDR\" >/dev/null && break; sleep 1; done\n\
             exec {program} train{place} --resume --interrupted-code {INTERRUPTED} --out \"$run\"\n",
            index = self.index(),
            run = word(&format!("/runs/{}", self.run)),
            program = word(&self.program),
        )
    }
}

/// A text as one word of a shell.
fn word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Renders a text as a YAML scalar. JSON strings are valid scalars for every text.
fn scalar(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pods() -> Pods {
        Pods {
            name: "cvae".into(),
            pods: 4,
            image: "registry.example/phalanx:1".into(),
            program: "phalanx".into(),
            claim: "shared".into(),
            run: "it's/cvae".into(),
            config: "[model]\nkind = \"cvae\"\n\n[train]\nranks = 4\n".into(),
            warning: 120,
            ..Pods::default()
        }
    }

    #[test]
    fn a_manifest_asks_for_a_pod_for_each_rank() {
        let manifest = pods().manifest().expect("sound");
        for line in [
            "  completions: 4",
            "  parallelism: 4",
            "  backoffLimit: 0",
            "    [train]",
            "          value: \"cvae-0.cvae\"",
            "        image: \"registry.example/phalanx:1\"",
            "          claimName: \"shared\"",
            "          run='/runs/it'\\''s/cvae'",
            "      terminationGracePeriodSeconds: 120",
        ] {
            assert!(manifest.lines().any(|own| own == line), "{line}\n{manifest}");
        }
        for word in ["limits", "Deadline", "DisruptionTarget", "NODE_RANK", "nnodes"] {
            assert!(!manifest.contains(word), "{word}\n{manifest}");
        }
        let hidden = Pods { secret: Some("ranks".into()), ..pods() }.manifest().expect("sound");
        for line in [
            "# before: openssl rand -hex 32 | kubectl create secret generic ranks --from-file=secret=/dev/stdin",
            "        - name: PHALANX_SECRET_FILE",
            "          value: \"/dev/shm/phalanx-secret\"",
            "          (umask 077; cat /etc/phalanx-secret/secret > /dev/shm/phalanx-secret)",
            "        - {name: secret, mountPath: /etc/phalanx-secret}",
            "          secretName: \"ranks\"",
        ] {
            assert!(hidden.lines().any(|own| own == line), "{line}\n{hidden}");
            assert!(!manifest.contains(line), "{line}\n{manifest}");
        }
        let more = Pods { cpus: Some(3), gpus: Some(1), seconds: Some(7200), requeue: true, ..pods() }
            .manifest()
            .expect("sound");
        for line in [
            "            cpu: 3",
            "            nvidia.com/gpu: 1",
            "  activeDeadlineSeconds: 7200",
            "  backoffLimit: 400",
            "      - type: DisruptionTarget",
        ] {
            assert!(more.lines().any(|own| own == line), "{line}\n{more}");
        }
    }

    #[test]
    fn a_pod_of_several_ranks_starts_them_by_their_place() {
        let manifest =
            Pods { ranks_per_pod: 8, cpus: Some(3), gpus: Some(8), ..pods() }.manifest().expect("sound");
        for line in [
            "  completions: 4",
            "        - name: NODE_RANK",
            "            cpu: 24",
            "            nvidia.com/gpu: 8",
            "          exec 'phalanx' train --nnodes 4 --node-rank \"$NODE_RANK\" --nproc-per-node 8 --master-addr \"$MASTER_ADDR\" \
             --master-port \"$MASTER_PORT\" --resume --interrupted-code 75 --out \"$run\"",
        ] {
            assert!(manifest.lines().any(|own| own == line), "{line}\n{manifest}");
        }
        // What torchrun would set is each rank's own.
        assert!(!manifest.contains("WORLD_SIZE") && !manifest.contains("name: RANK"), "{manifest}");
    }

    #[test]
    fn names_are_those_that_a_host_can_have() {
        for (given, name) in [
            ("CIFAR_10 ddp", "cifar-10-ddp"),
            ("cvae", "cvae"),
            ("3stages", "run-3stages"),
            ("__", "run"),
            (&"a".repeat(70), &"a".repeat(LONGEST_NAME)),
        ] {
            assert_eq!(pod_name(given), name, "{given}");
        }
    }

    #[test]
    fn what_a_pod_runs_is_a_script_of_the_shell() {
        for ranks_per_pod in [1, 8] {
            let script = Pods { ranks_per_pod, ..pods() }.script();
            let checked = std::process::Command::new("sh").args(["-n", "-c", &script]).status();
            assert!(checked.expect("a shell").success(), "{script}");
        }
    }

    #[test]
    fn texts_that_would_begin_a_line_of_their_own_are_refused() {
        let pods = |change: fn(&mut Pods, String), text: &str| {
            let mut pods = Pods { name: "a".to_owned(), pods: 1, ..Pods::default() };
            change(&mut pods, text.to_owned());
            pods.manifest()
        };
        let fields: [fn(&mut Pods, String); 6] = [
            |pods, text| pods.image = text,
            |pods, text| pods.claim = text,
            |pods, text| pods.run = text,
            |pods, text| pods.program = text,
            |pods, text| pods.secret = Some(text),
            |pods, text| pods.config = text,
        ];
        for (at, field) in fields.into_iter().enumerate() {
            for text in ["a\rb", "a\u{85}b", "a\u{2028}b", "a\0b"] {
                assert!(pods(field, text).is_err(), "field {at}: {text:?}");
            }
            assert!(pods(field, "a b").is_ok(), "field {at}");
        }
    }
}
