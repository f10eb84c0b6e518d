//! Samples the resource use of a rank about once a second, on a separate thread.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::energy::{CpuEnergy, RankEnergy};
use super::process::ProcessUsage;
use super::progress::{Progress, ProgressCounters, StateBytes};
use phalanx_run::{
    EnergyKind, EnergyPart, GpuLine, MemoryLine, RunError, TimeLine, TransferLine, UsageLine, open_to_append,
};

/// A reading of a GPU. Unavailable values are `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct GpuReading {
    /// The share of time in which kernels ran, from 0 to 1.
    pub utilisation: Option<f64>,
    /// Bytes of its memory that are taken, by all programs.
    pub memory_bytes: Option<u64>,
    /// Bytes of activations: saved for backward, and temporary values between ops.
    pub activation_bytes: Option<u64>,
    /// Watts.
    pub watts: Option<f64>,
    /// Joules since the run began.
    pub joules: Option<f64>,
}

/// The resources that a rank has used since its sampler was started.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResourceUse {
    /// The resource use of the process; empty for a rank that is not the first of its process.
    pub process: ProcessUsage,
    /// The energy of the run.
    pub energy: RankEnergy,
}

/// The sampled rank.
pub struct SampledRank {
    /// Its number when the run began.
    pub rank: usize,
    /// Its host, as a number and by name.
    pub host: (usize, String),
    /// True if it reports the values of its process: it is the first or only rank of the process.
    pub accounts_for_process: bool,
    /// The energy of its CPUs.
    pub energy: CpuEnergy,
    /// The reader of its GPU, or the reason why it has none.
    pub gpu: Result<Box<dyn Fn() -> GpuReading + Send>, String>,
}

impl std::fmt::Debug for SampledRank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SampledRank(rank {}, energy {:?})", self.rank, self.energy)
    }
}

/// Samples the resource use of a rank on a separate thread until it is dropped.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    progress: Progress,
    meters: Mutex<Meters>,
    ended: Mutex<bool>,
    wake: Condvar,
}

/// The meters and the output file.
#[derive(Debug)]
struct Meters {
    whose: SampledRank,
    /// The output file, if lines are written.
    file: Option<(PathBuf, File)>,
    /// The start time, and the usage of the process at the start.
    begun: Instant,
    before: ProcessUsage,
    /// The time and usage of the last line.
    last: (Instant, ProcessUsage),
    last_joules: Option<f64>,
}

/// The result of one reading.
struct Reading {
    process: ProcessUsage,
    /// Seconds since the last reading.
    since: f64,
    gpu: GpuReading,
    joules: Option<f64>,
}

impl Sampler {
    /// Starts sampling. Appends a line to the file at `path` every `interval`; no lines if it is zero.
    ///
    /// # Errors
    /// If the file cannot be opened or the thread cannot be started.
    pub fn start(path: &Path, interval: Duration, whose: SampledRank) -> Result<Self, RunError> {
        let now = whose.process();
        let mut file = None;
        if !interval.is_zero() {
            let opened = open_to_append(path);
            file = Some((path.to_owned(), opened.map_err(RunError::io("open", path))?));
        }
        let meters = Meters {
            whose,
            file,
            begun: Instant::now(),
            before: now,
            last: (Instant::now(), now),
            last_joules: None,
        };
        let shared = Arc::new(Shared {
            progress: Progress::default(),
            meters: Mutex::new(meters),
            ended: Mutex::default(),
            wake: Condvar::new(),
        });
        let mut thread = None;
        if !interval.is_zero() {
            let theirs = shared.clone();
            let spawned = std::thread::Builder::new().name("phalanx-usage".to_owned());
            let spawned = spawned.spawn(move || theirs.run(interval));
            thread = Some(spawned.map_err(RunError::io("start a thread for", path))?);
        }
        Ok(Self { shared, thread })
    }

    /// Returns the counters that training updates.
    pub fn progress(&self) -> &Progress {
        &self.shared.progress
    }

    /// Returns the resources used so far, and writes a last line.
    pub fn used(&self) -> ResourceUse {
        self.shared.meters().used(&self.shared.progress)
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread returns no result.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn meters(&self) -> MutexGuard<'_, Meters> {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, interval: Duration) {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        while !*ended {
            let waited = self.wake.wait_timeout(ended, interval).unwrap_or_else(PoisonError::into_inner);
            ended = waited.0;
            if !*ended && waited.1.timed_out() {
                self.meters().sample(&self.progress);
            }
        }
    }
}

impl SampledRank {
    fn process(&self) -> ProcessUsage {
        if self.accounts_for_process { ProcessUsage::now() } else { ProcessUsage::default() }
    }
}

impl Meters {
    fn read(&mut self) -> Reading {
        let (process, now) = (self.whose.process(), Instant::now());
        let since_begin = process.since(&self.before).cpu_seconds;
        let joules = self.whose.energy.joules(since_begin);
        let gpu = self.whose.gpu.as_ref().map_or_else(|_| GpuReading::default(), |look| look());
        Reading { process, since: (now - self.last.0).as_secs_f64(), gpu, joules }
    }

    /// Reads all meters and appends a line.
    fn sample(&mut self, progress: &Progress) -> Reading {
        let reading = self.read();
        let (spent, held) = progress.read();
        let line = self.line(&reading, &spent, &held);
        tracing::trace!(
            target: "phalanx_trace::counter",
            rank = line.rank as u64,
            parameters = line.memory.parameter_bytes,
            gradients = line.memory.gradient_bytes,
            optimizer = line.memory.optimizer_bytes,
            gathered = line.memory.gathered_bytes,
            activations = line.memory.activation_bytes,
            "held bytes"
        );
        self.last = (Instant::now(), reading.process);
        self.last_joules = reading.joules;
        if let Some((path, file)) = &mut self.file {
            let text = serde_json::to_vec(&line).map_err(std::io::Error::from);
            let written = text.and_then(|mut text| {
                text.push(b'\n');
                file.write_all(&text)
            });
            if let Err(error) = written {
                tracing::warn!("usage is no longer written to {}: {error}", path.display());
                self.file = None;
            }
        }
        reading
    }

    fn line(&self, reading: &Reading, spent: &ProgressCounters, held: &StateBytes) -> UsageLine {
        let Reading { process, since, gpu, joules } = reading;
        let rate = |now: Option<f64>, before: Option<f64>| {
            now.zip(before).filter(|_| *since > 0.0).map(|(now, before)| (now - before) / since)
        };
        let busy = rate(process.cpu_seconds, self.last.1.cpu_seconds);
        UsageLine {
            time: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
            seconds: spent.seconds,
            step: spent.step,
            rank: self.whose.rank,
            host: self.whose.host.1.clone(),
            cpu_percent: busy.map(|cores| 100.0 * cores),
            resident_bytes: process.resident_bytes,
            memory: MemoryLine {
                parameter_bytes: held.parameters,
                gradient_bytes: held.gradients,
                optimizer_bytes: held.optimizer,
                gathered_bytes: held.gathered,
                activation_bytes: gpu.activation_bytes.unwrap_or(held.activations),
            },
            transfers: TransferLine {
                network_sent_bytes: spent.network_sent_bytes,
                network_received_bytes: spent.network_received_bytes,
                disk_read_bytes: process.disk_read_bytes,
                disk_written_bytes: process.disk_written_bytes,
                minor_faults: process.minor_faults,
                major_faults: process.major_faults,
            },
            times: TimeLine {
                data_seconds: spent.data_seconds,
                communication_exposed_seconds: spent.communication_exposed_seconds,
                communication_hidden_seconds: spent.communication_hidden_seconds,
                step_seconds: spent.step_seconds,
            },
            gpu: GpuLine {
                gpu_percent: gpu.utilisation.map(|share| 100.0 * share),
                gpu_memory_bytes: gpu.memory_bytes,
                gpu_watts: gpu.watts,
                gpu_joules: gpu.joules,
            },
            cpu_watts: rate(*joules, self.last_joules.or(Some(0.0))),
            cpu_joules: *joules,
            energy: self.whose.energy.kind(),
        }
    }

    fn used(&mut self, progress: &Progress) -> ResourceUse {
        let reading = self.sample(progress);
        // The process may have trained another run before.
        let process = reading.process.since(&self.before);
        let gpu = match (&self.whose.gpu, reading.gpu.joules) {
            (Ok(_), Some(joules)) => EnergyPart {
                kind: EnergyKind::Measured,
                model: "the GPU's own counter (NVML)".to_owned(),
                joules: Some(joules),
            },
            (Ok(_), None) => {
                let why = "NVML reports no energy of this GPU".to_owned();
                EnergyPart { kind: EnergyKind::Absent, model: why, joules: None }
            }
            (Err(why), _) => EnergyPart { kind: EnergyKind::Absent, model: why.clone(), joules: None },
        };
        let cpu = self.whose.energy.part(reading.joules);
        let seconds = self.begun.elapsed().as_secs_f64();
        let energy =
            RankEnergy { host: self.whose.host.0, seconds, cpu_seconds: process.cpu_seconds, cpu, gpu };
        ResourceUse { process, energy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whose(rank: usize, accounts_for_process: bool, watts: f64) -> SampledRank {
        let none = || Err(super::super::PowercapError::None(PathBuf::from("/x")));
        SampledRank {
            rank,
            host: (0, "here".to_owned()),
            accounts_for_process,
            energy: CpuEnergy::of(true, watts, none),
            gpu: Err("no GPU".to_owned()),
        }
    }

    fn lines(path: &Path) -> Vec<UsageLine> {
        let text = std::fs::read_to_string(path).expect("reads");
        text.lines().map(|line| serde_json::from_str(line).expect("a line")).collect()
    }

    #[test]
    fn lines_come_by_themselves_and_a_last_one_at_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rank-3.usage.jsonl");
        let sampler = Sampler::start(&path, Duration::from_millis(20), whose(3, true, 10.0)).expect("starts");
        let mut step = 0;
        while lines(&path).len() < 3 {
            step += 1;
            sampler.progress().set_counters(ProgressCounters {
                step,
                network_sent_bytes: 7 * step,
                ..ProgressCounters::default()
            });
            sampler.progress().set_bytes(|| StateBytes {
                parameters: 40,
                activations: step,
                ..StateBytes::default()
            });
            std::thread::sleep(Duration::from_millis(1));
        }
        sampler.progress().set_counters(ProgressCounters {
            step: 10_000,
            seconds: 5.5,
            ..ProgressCounters::default()
        });
        let used = sampler.used();
        drop(sampler);
        let all = lines(&path);
        let last = all.last().expect("lines");
        assert_eq!((last.step, last.seconds, last.rank, last.memory.parameter_bytes), (10_000, 5.5, 3, 40));
        assert!(all.windows(2).all(|pair| pair[0].time <= pair[1].time && pair[0].step <= pair[1].step));
        assert!(all[1].memory.activation_bytes > 0 && all[1].transfers.network_sent_bytes == 7 * all[1].step);
        if cfg!(target_os = "linux") {
            assert!(last.cpu_percent.is_some() && last.resident_bytes > Some(1 << 20));
            assert_eq!(last.energy, Some(EnergyKind::Estimated));
            let part = used.energy.cpu.expect("estimated");
            assert_eq!(part.joules, last.cpu_joules);
            assert_eq!(used.process.cpu_seconds, used.energy.cpu_seconds);
            assert!(used.process.cpu_seconds < ProcessUsage::now().cpu_seconds);
        }
        // A resumed run appends to the file.
        let again = Sampler::start(&path, Duration::from_secs(60), whose(3, true, 0.0)).expect("starts");
        again.used();
        assert_eq!(lines(&path).len(), all.len() + 1);
        assert_eq!((lines(&path)[all.len()].energy, lines(&path)[all.len()].cpu_joules), (None, None));
    }

    #[test]
    fn a_rank_that_does_not_account_for_its_process_reports_nothing_of_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rank-1.usage.jsonl");
        let sampler = Sampler::start(&path, Duration::from_secs(60), whose(1, false, 10.0)).expect("starts");
        let used = sampler.used();
        assert_eq!((used.process, used.energy.cpu_seconds), (ProcessUsage::default(), None));
        let text = std::fs::read_to_string(&path).expect("reads");
        assert!(text.contains("\"step\":0") && !text.contains("cpu_percent"), "{text}");
        // Without an interval, there is no thread and no line, but the end is reported.
        let (off, none) = (folder.path().join("off"), Duration::ZERO);
        let sampler = Sampler::start(&off, none, whose(1, true, 10.0)).expect("starts");
        assert_eq!(sampler.used().process.cpu_seconds.is_some(), cfg!(target_os = "linux"));
        assert!(!off.exists() && sampler.thread.is_none());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_sample_takes_far_less_than_a_hundredth_of_its_second() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rank-0.usage.jsonl");
        let sampler = Sampler::start(&path, Duration::from_secs(60), whose(0, true, 10.0)).expect("starts");
        // CPU time of this thread would be better still; the fastest of many runs is undisturbed by others.
        let once = |_| {
            let start = Instant::now();
            sampler.used();
            start.elapsed()
        };
        let fastest = (0..50).map(once).min().expect("fifty");
        eprintln!("a sample takes {fastest:?}");
        assert!(fastest < Duration::from_millis(1), "{fastest:?}");
    }
}
