//! Optimizer state on a disk: a file for each kind of state of each bucket, read and written in the background.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use candle_core::{DType, Device, Tensor};

use crate::host::HostSliceMut;
use crate::store::FlatStorage;
use crate::{Result, TensorError};

/// A folder with the state of live optimizers, and a thread that reads and writes it. Clones are handles; the last
/// one deletes the files, which are not a checkpoint. (Rajbhandari et al. 2021.)
#[derive(Debug, Clone)]
pub struct Disk(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    /// Folders created for it, the outermost first.
    made: Vec<PathBuf>,
    queue: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The results of writes, the oldest first.
    writing: VecDeque<Receiver<Result<()>>>,
}

/// A request to the thread, served in order.
enum Job {
    Read { path: PathBuf, elements: usize, dtype: DType, reply: Sender<Result<Tensor>> },
    Write { path: PathBuf, elements: FlatStorage, reply: Sender<Result<()>> },
}

/// Elements that are being read from the disk.
#[derive(Debug)]
pub(super) struct PendingRead(Receiver<Result<Tensor>>);

impl PendingRead {
    /// Waits for them.
    pub(super) fn take(self) -> Result<FlatStorage> {
        let gone = || TensorError::Argument {
            name: "state on a disk",
            value: "unread".to_owned(),
            expected: "its thread has ended",
        };
        FlatStorage::new(self.0.recv().map_err(|_| gone())??)
    }
}

impl Disk {
    /// Makes a folder of its own inside of this one, which is created if it does not exist.
    ///
    /// # Errors
    /// If a folder cannot be created, or a thread cannot be started.
    pub fn new(folder: impl Into<PathBuf>) -> Result<Self> {
        let outer: PathBuf = folder.into();
        let failed = |source| TensorError::Io { action: "make", path: outer.clone(), source };
        let missing = outer.ancestors().take_while(|folder| !folder.exists());
        let mut made: Vec<PathBuf> = missing.map(Path::to_owned).collect();
        made.reverse();
        fs::create_dir_all(&outer).map_err(failed)?;
        let process = std::process::id();
        // Other processes, also of other hosts, may have state there.
        let own =
            (0..).map(|number| outer.join(format!("{process}-{number}"))).find_map(
                |own| match fs::create_dir(&own) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => None,
                    outcome => Some(outcome.map(|()| own)),
                },
            );
        let folder = own.unwrap_or_else(|| Err(ErrorKind::AlreadyExists.into())).map_err(failed)?;
        let (jobs, queue) = channel();
        let thread = std::thread::Builder::new().name("phalanx-disk".to_owned());
        let thread = thread.spawn(move || work(&queue)).map_err(failed)?;
        let queue = Queue { jobs: Some(jobs), thread: Some(thread), writing: VecDeque::new() };
        Ok(Self(Arc::new(Inner { folder, made, queue: Mutex::new(queue) })))
    }

    /// The folder of the files.
    pub fn folder(&self) -> &Path {
        &self.0.folder
    }

    fn path(&self, kind: &str, index: usize) -> PathBuf {
        self.0.folder.join(format!("{kind}-{index}"))
    }

    fn ask(&self, job: Job) {
        let queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jobs) = &queue.jobs {
            // The receiver of the result notices a thread that has ended.
            let _ = jobs.send(job);
        }
    }

    /// Begins to read the state of a kind of the bucket with this index, after earlier writes to it.
    pub(super) fn read(&self, kind: &str, index: usize, elements: usize, dtype: DType) -> PendingRead {
        let (reply, outcome) = channel();
        self.ask(Job::Read { path: self.path(kind, index), elements, dtype, reply });
        PendingRead(outcome)
    }

    /// Begins to write the state. A later call reports a failure.
    ///
    /// # Errors
    /// If an earlier write failed.
    pub(super) fn write(&self, kind: &str, index: usize, elements: FlatStorage) -> Result<()> {
        let (reply, outcome) = channel();
        self.ask(Job::Write { path: self.path(kind, index), elements, reply });
        let mut queue = self.0.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.writing.push_back(outcome);
        while let Some(oldest) = queue.writing.front() {
            match oldest.try_recv() {
                Ok(outcome) => {
                    queue.writing.pop_front();
                    outcome?;
                }
                Err(_) => break,
            }
        }
        Ok(())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let queue = self.queue.get_mut().unwrap_or_else(PoisonError::into_inner);
        queue.jobs = None;
        if let Some(thread) = queue.thread.take() {
            let _ = thread.join();
        }
        // Leftover files are useless. Folders with other contents stay.
        let _ = fs::remove_dir_all(&self.folder);
        self.made.iter().rev().for_each(|folder| drop(fs::remove_dir(folder)));
    }
}

fn work(queue: &Receiver<Job>) {
    while let Ok(job) = queue.recv() {
        // A receiver that is gone needs no result.
        match job {
            Job::Read { path, elements, dtype, reply } => drop(reply.send(read(&path, elements, dtype))),
            Job::Write { path, elements, reply } => drop(reply.send(write(&path, &elements))),
        }
    }
}

/// The number of bytes converted at a time.
const PIECE: usize = 1 << 20;

fn read(path: &Path, elements: usize, dtype: DType) -> Result<Tensor> {
    let failed = |source| TensorError::Io { action: "read", path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut piece = vec![0_u8; PIECE];
    macro_rules! numbers {
        ($type:ty) => {{
            const SIZE: usize = size_of::<$type>();
            let mut numbers: Vec<$type> = Vec::with_capacity(elements);
            while numbers.len() < elements {
                let bytes = &mut piece[..(SIZE * (elements - numbers.len())).min(PIECE)];
                file.read_exact(bytes).map_err(failed)?;
                numbers
                    .extend(bytes.as_chunks::<SIZE>().0.iter().map(|bytes| <$type>::from_le_bytes(*bytes)));
            }
            Ok(Tensor::from_vec(numbers, elements, &Device::Cpu)?)
        }};
    }
    match dtype {
        DType::F32 => numbers!(f32),
        DType::F64 => numbers!(f64),
        other => Err(TensorError::dtype("state on a disk", other)),
    }
}

fn write(path: &Path, elements: &FlatStorage) -> Result<()> {
    let failed = |source| TensorError::Io { action: "write", path: path.to_owned(), source };
    let mut file = File::create(path).map_err(failed)?;
    let mut piece = Vec::with_capacity(PIECE);
    macro_rules! numbers {
        ($numbers:expr) => {
            $numbers.chunks(PIECE / 8).try_for_each(|numbers| {
                piece.clear();
                numbers.iter().for_each(|number| piece.extend_from_slice(&number.to_le_bytes()));
                file.write_all(&piece)
            })
        };
    }
    let written = elements.with_slice_mut(|slice| match slice {
        HostSliceMut::F32(numbers) => numbers!(numbers),
        HostSliceMut::F64(numbers) => numbers!(numbers),
    })?;
    written.map_err(failed)
}
