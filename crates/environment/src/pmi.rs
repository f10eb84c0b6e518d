//! Queries to MPICH's launcher by PMI-1: lines of words over a socket that Hydra leaves open in each of its processes.
//!
//! Each rank asks for the name of the job's key-value space. If the job has several hosts, rank 0 writes its addresses there, all
//! ranks wait at a barrier, and each reads them. The exchange ends with `finalize`: the launcher takes a process that leaves
//! without it for dead.
//!
//! The protocol: `src/pmi` of MPICH, "PMI: A Scalable Parallel Process-Management Interface" (Balaji et al., 2010).
#![allow(unsafe_code)]

use std::net::IpAddr;
use std::sync::OnceLock;

use crate::error::{EnvironmentError, Result};

/// The launcher's answers about the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PmiJob {
    /// The job's name.
    pub job: String,
    /// The addresses of rank 0, if they were asked for.
    pub addresses: Vec<IpAddr>,
}

/// The key of rank 0's addresses.
const KEY: &str = "phalanx-rank-0";

/// The most characters of a value that every implementation accepts.
const MAX_VALUE: usize = 255;

fn problem(problem: impl std::fmt::Display) -> EnvironmentError {
    let problem = format!("{problem}; set MASTER_ADDR and MASTER_PORT to avoid the query");
    EnvironmentError { variable: "PMI_FD", problem }
}

/// Asks the launcher of this process once; later calls return the same answer. With `exchange` all ranks wait for each other.
pub(super) fn ask(descriptor: Option<&str>, rank: u64, exchange: bool) -> Result<PmiJob> {
    static ANSWER: OnceLock<Result<PmiJob>> = OnceLock::new();
    let ask = || {
        let descriptor = descriptor.ok_or_else(|| problem("is not set, so the launcher cannot be asked"))?;
        let server = connection(descriptor)?;
        talk(&mut Server { stream: server }, rank, exchange, super::interface::own_addresses)
    };
    ANSWER.get_or_init(ask).clone()
}

/// Duplicates the open socket with this number.
#[cfg(unix)]
fn connection(descriptor: &str) -> Result<std::fs::File> {
    use std::os::fd::BorrowedFd;
    let number: i32 =
        descriptor.trim().parse().map_err(|_| problem(format!("`{descriptor}` is not a number")))?;
    if number < 0 {
        return Err(problem(format!("`{descriptor}` is not an open file")));
    }
    // SAFETY: the number is not -1, and the descriptor is only duplicated before this function returns; the system refuses
    // if it is not open. Nothing in this process owns it: the launcher opened it.
    let copy = unsafe { BorrowedFd::borrow_raw(number) }.try_clone_to_owned();
    copy.map(Into::into).map_err(problem)
}

#[cfg(not(unix))]
fn connection(_: &str) -> Result<std::fs::File> {
    Err(problem("cannot be used on this system"))
}

/// The connection to the launcher's server.
struct Server<S> {
    stream: S,
}

impl<S: std::io::Read + std::io::Write> Server<S> {
    /// Sends one question and returns the value of the word `wanted` in the answer.
    fn ask(&mut self, question: &str, answered: &str, wanted: &str) -> Result<String> {
        let lost = |error: std::io::Error| problem(format!("the launcher does not answer: {error}"));
        self.stream.write_all(format!("{question}\n").as_bytes()).map_err(lost)?;
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).map_err(lost)?;
            line.push(byte[0]);
        }
        let line = String::from_utf8_lossy(&line).into_owned();
        let word =
            |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        if word("cmd") != Some(answered) || word("rc").is_some_and(|code| code != "0") {
            return Err(problem(format!("the launcher answers `{}` to `{question}`", line.trim())));
        }
        Ok(word(wanted).unwrap_or_default().to_owned())
    }
}

/// Runs the whole exchange with the launcher. `own` returns the addresses of this host.
fn talk(
    server: &mut Server<impl std::io::Read + std::io::Write>,
    rank: u64,
    exchange: bool,
    own: impl Fn() -> Vec<IpAddr>,
) -> Result<PmiJob> {
    server.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init", "rc")?;
    let table = server.ask("cmd=get_my_kvsname", "my_kvsname", "kvsname")?;
    let mut addresses = Vec::new();
    if exchange {
        if rank == 0 {
            let value = list_of(&own());
            server.ask(&format!("cmd=put kvsname={table} key={KEY} value={value}"), "put_result", "rc")?;
        }
        server.ask("cmd=barrier_in", "barrier_out", "rc")?;
        let value = server.ask(&format!("cmd=get kvsname={table} key={KEY}"), "get_result", "value")?;
        addresses = value.split(',').filter_map(|address| address.parse().ok()).collect();
    }
    server.ask("cmd=finalize", "finalize_ack", "rc")?;
    Ok(PmiJob { job: format!("mpiexec {table}"), addresses })
}

/// Returns the addresses with commas between them, without those that do not fit into a value.
fn list_of(addresses: &[IpAddr]) -> String {
    let mut list = String::new();
    for address in addresses.iter().map(ToString::to_string) {
        if list.len() + address.len() < MAX_VALUE {
            list = if list.is_empty() { address } else { format!("{list},{address}") };
        }
    }
    list
}

/// Returns the job that these recorded answers of a server describe.
#[cfg(any(test, fuzzing))]
pub(crate) fn parse_answers(answers: &[u8], rank: u64) -> Result<PmiJob> {
    /// Reads from a recording and discards writes.
    struct Recording<'a>(&'a [u8]);

    impl std::io::Read for Recording<'_> {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.0.read(into)
        }
    }

    impl std::io::Write for Recording<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    let mut server = Server { stream: Recording(answers) };
    talk(&mut server, rank, true, || vec![IpAddr::from([10, 0, 0, 1])])
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Read, Write};

    use super::*;

    /// Recorded answers, and the questions asked so far.
    struct RecordedServer {
        answers: Cursor<&'static str>,
        asked: Vec<u8>,
    }

    impl Read for RecordedServer {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.answers.read(into)
        }
    }

    impl Write for RecordedServer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.asked.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn run(rank: u64, exchange: bool, answers: &'static str) -> (Result<PmiJob>, String) {
        let mut server =
            Server { stream: RecordedServer { answers: Cursor::new(answers), asked: Vec::new() } };
        let own = || vec![[10, 0, 0, 2].into(), [192, 0, 2, 2].into()];
        let answer = talk(&mut server, rank, exchange, own);
        (answer, String::from_utf8(server.stream.asked).expect("text"))
    }

    #[test]
    fn conversations_with_hydra_4_and_5() {
        let of_4 = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n\
                    cmd=my_kvsname kvsname=kvs_23246_0_1023609237_vm\n\
                    cmd=finalize_ack\n";
        let (answer, asked) = run(1, false, of_4);
        let job = "mpiexec kvs_23246_0_1023609237_vm".to_owned();
        assert_eq!(answer, Ok(PmiJob { job, addresses: Vec::new() }));
        assert!(asked.ends_with("cmd=finalize\n") && !asked.contains("barrier"), "{asked}");

        let of_5 = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=2\n\
                    cmd=my_kvsname rc=0 kvsname=kvs_23344_0_697025602_vm\n\
                    cmd=put_result rc=0\n\
                    cmd=barrier_out tag=0\n\
                    cmd=get_result rc=0 value=10.0.0.2,192.0.2.2\n\
                    cmd=finalize_ack rc=0\n";
        let (answer, asked) = run(0, true, of_5);
        let addresses = vec![[10, 0, 0, 2].into(), [192, 0, 2, 2].into()];
        assert_eq!(answer, Ok(PmiJob { job: "mpiexec kvs_23344_0_697025602_vm".to_owned(), addresses }));
        assert!(asked.contains("key=phalanx-rank-0 value=10.0.0.2,192.0.2.2\n"), "{asked}");
    }

    #[test]
    fn malformed_answers_are_errors() {
        for answers in ["", "cmd=response_to_init rc=-1\n", "cmd=hello rc=0\n", "no line"] {
            let error = run(1, false, answers).0.expect_err(answers).to_string();
            assert!(error.contains("PMI_FD") && error.contains("MASTER_ADDR"), "{error}");
        }
        assert!(connection("-1").is_err() && connection("1000000").is_err() && connection("x").is_err());
    }
}
