//! Reads and validates trace files: the spans of all ranks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::category::Category;
use super::chrome::PRODUCER;

/// The error of reading a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file is no trace.
    #[error("{} is no trace in Chrome's format: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The problem with it.
        problem: String,
    },
}

/// A span of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct FileEvent {
    /// The process, which is the rank.
    pub pid: u64,
    /// The thread.
    pub tid: u64,
    /// Its name.
    pub name: String,
    /// The category; `None` if this program has no such category.
    pub category: Option<Category>,
    /// The start time in microseconds.
    pub begin: f64,
    /// The end time in microseconds.
    pub end: f64,
    /// The arguments.
    pub args: Map<String, Value>,
    /// The thread and time of its issue, if another thread issued it.
    pub issued: Option<(u64, f64)>,
}

impl FileEvent {
    /// Returns an integer argument.
    pub fn count(&self, name: &str) -> Option<u64> {
        self.args.get(name)?.as_u64()
    }

    /// Returns the duration in microseconds.
    pub fn duration(&self) -> f64 {
        self.end - self.begin
    }
}

/// A trace.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TraceFile {
    /// True if this program has written it.
    pub is_own: bool,
    /// The spans, sorted by process, thread and start. Outer spans come first.
    pub spans: Vec<FileEvent>,
    /// The uncertainty of times between ranks in microseconds.
    pub uncertainty: f64,
    /// The number of events that were dropped because the buffer was full.
    pub left_out: u64,
}

impl TraceFile {
    /// Reads a trace.
    ///
    /// # Errors
    /// [`TraceError`] if the file cannot be read or is malformed.
    pub fn read(path: &Path) -> Result<Self, TraceError> {
        let io = |source| TraceError::Io { path: path.to_owned(), source };
        // An open of a FIFO would wait for a writer.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(io(std::io::Error::new(std::io::ErrorKind::InvalidInput, "is no regular file")));
        }
        let text = std::fs::read_to_string(path).map_err(io)?;
        Self::parse(&text).map_err(|problem| TraceError::Malformed { path: path.to_owned(), problem })
    }

    /// Parses a trace.
    ///
    /// # Errors
    /// A description of the problem.
    pub fn parse(text: &str) -> Result<Self, String> {
        let read: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        // The format also allows a list without an enclosing object.
        let events = read.as_array().or_else(|| read.get("traceEvents")?.as_array());
        let events = events.ok_or("it has no list `traceEvents`")?;
        let other = &read["otherData"];
        let clocks = other["clocks"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut file = Self {
            is_own: other["producer"] == PRODUCER,
            uncertainty: clocks
                .iter()
                .filter_map(|clock| clock["uncertainty_us"].as_f64())
                .fold(0.0, f64::max),
            left_out: clocks
                .iter()
                .filter_map(|clock| clock["left_out"].as_u64())
                .fold(0, u64::saturating_add),
            spans: Vec::new(),
        };
        let mut flows = Flows::default();
        for (number, event) in events.iter().enumerate() {
            let event = RawEvent { number, json: event };
            match event.phase()? {
                "X" => file.spans.push(event.span()?),
                "s" => {
                    let (id, tid, at) = event.flow_end()?;
                    flows.starts.insert(id, (tid, at));
                }
                "f" => flows.ends.push(event.flow_end()?),
                _ => {}
            }
        }
        file.order();
        if file.is_own {
            file.connect(&flows)?;
        }
        Ok(file)
    }

    fn order(&mut self) {
        self.spans.sort_by(|a, b| {
            let place = |event: &FileEvent| (event.pid, event.tid);
            place(a).cmp(&place(b)).then(a.begin.total_cmp(&b.begin)).then(b.end.total_cmp(&a.end))
        });
    }

    /// Attaches each flow to the span at whose start it ends.
    fn connect(&mut self, Flows { starts, ends }: &Flows) -> Result<(), String> {
        for (id, tid, at) in ends {
            let start = starts
                .get(id)
                .ok_or_else(|| format!("flow {} of process {} ends without a start", id.1, id.0))?;
            let place = (id.0, *tid);
            let from = self.spans.partition_point(|span| ((span.pid, span.tid), span.begin) < (place, *at));
            // If several spans start at the same time, the issued one is the communication.
            let here = self.spans[from..]
                .iter_mut()
                .take_while(|span| (span.pid, span.tid) == place && span.begin <= *at);
            let mut here = here.filter(|span| span.issued.is_none());
            let span =
                here.next().ok_or_else(|| format!("flow {} of process {} ends at no span", id.1, id.0))?;
            span.issued = Some(*start);
        }
        Ok(())
    }

    /// Returns the process ids in ascending order.
    pub fn ranks(&self) -> Vec<u64> {
        let mut ranks: Vec<u64> = self.spans.iter().map(|span| span.pid).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Returns the spans of a process.
    pub fn of_rank(&self, pid: u64) -> &[FileEvent] {
        let first = self.spans.partition_point(|span| span.pid < pid);
        let last = self.spans.partition_point(|span| span.pid <= pid);
        &self.spans[first..last]
    }
}

/// The process and the name of a flow.
type FlowId = (u64, String);

/// The flows from the issue of operations to their start.
#[derive(Default)]
struct Flows {
    /// The thread and time of each start.
    starts: BTreeMap<FlowId, (u64, f64)>,
    /// The flow, thread and time of each end.
    ends: Vec<(FlowId, u64, f64)>,
}

/// An event of the file, with its number for messages.
struct RawEvent<'a> {
    number: usize,
    json: &'a Value,
}

impl RawEvent<'_> {
    fn lacks(&self, what: &str) -> String {
        format!("event {} has no {what}: {}", self.number, self.json)
    }

    /// Returns the kind of event.
    fn phase(&self) -> Result<&str, String> {
        self.json["ph"].as_str().ok_or_else(|| self.lacks("`ph`"))
    }

    fn time(&self, name: &str) -> Option<f64> {
        self.json[name].as_f64().filter(|time| time.is_finite())
    }

    fn begin(&self) -> Result<f64, String> {
        self.time("ts").ok_or_else(|| self.lacks("time `ts`"))
    }

    /// Returns the process and the thread.
    fn place(&self) -> Result<(u64, u64), String> {
        // Other programs may use strings as process and thread ids.
        let of = |name: &str| match &self.json[name] {
            Value::Number(number) => number.as_u64(),
            Value::String(text) => Some(text.parse().unwrap_or_else(|_| number_of(text))),
            _ => None,
        };
        Ok((of("pid").ok_or_else(|| self.lacks("`pid`"))?, of("tid").unwrap_or(0)))
    }

    /// Reads a span.
    fn span(&self) -> Result<FileEvent, String> {
        let ((pid, tid), begin) = (self.place()?, self.begin()?);
        let duration = self.time("dur").unwrap_or(0.0);
        if duration < 0.0 {
            return Err(format!("event {} ends before it begins: {}", self.number, self.json));
        }
        Ok(FileEvent {
            pid,
            tid,
            name: self.json["name"].as_str().unwrap_or_default().to_owned(),
            category: self.json["cat"].as_str().and_then(Category::named),
            begin,
            end: begin + duration,
            args: self.json["args"].as_object().cloned().unwrap_or_default(),
            issued: None,
        })
    }

    /// Reads one end of a flow: the flow, the thread, and the time.
    fn flow_end(&self) -> Result<(FlowId, u64, f64), String> {
        let ((pid, tid), at) = (self.place()?, self.begin()?);
        let id = &self.json["id"];
        let id = id.as_str().map(str::to_owned).or_else(|| Some(id.as_u64()?.to_string()));
        Ok(((pid, id.ok_or_else(|| self.lacks("`id`"))?), tid, at))
    }
}

/// Returns a number for a process or thread with a string id.
fn number_of(name: &str) -> u64 {
    blake3::hash(name.as_bytes()).as_bytes().iter().take(6).fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}
