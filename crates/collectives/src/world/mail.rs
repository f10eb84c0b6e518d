//! Mail between processes: messages that belong to no operation.
//!
//! A rank opens a connection to another with its first message. The control threads serve it at both ends, so messages arrive while
//! programs compute. Ranks that have lost the coordinator connect to the same port, and are passed on to the control plane.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::control::{ControlPlane, Peer};
use crate::encrypted::is_altered;
use crate::error::{CommError, Result};
use crate::failure::Cause;
use crate::mailbox::{Channel, Inbox, LONGEST, Mail, Message, Timing, has_left};
use crate::rendezvous::introductions::{Introductions, PAUSE, RefusalLog, most_introductions};
use crate::rendezvous::{AcceptedPeer, MAIL_INTRODUCTION, WorldIdentity};
use crate::security::Purpose;

/// Bytes of a message's header: the communicator, the channel, the length, and over a simulated link the departure time.
const HEADER: usize = 24;

/// The most bytes that are reserved for a message before it arrives.
const RESERVED: usize = 1 << 20;

/// Bytes that may be queued for a rank. Further sends wait.
const QUEUE: usize = 64 << 20;

/// The most introductions at a time.
const MOST_INTRODUCTIONS: usize = 64;

/// The time between two checks of a waiting sender for a broken world.
const LOOK: Duration = Duration::from_millis(50);

/// The parameters of a rank's mail connections.
pub(super) struct MailOptions {
    pub(super) inbox: Arc<Inbox>,
    /// The addresses where ranks listen.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) identity: WorldIdentity,
    /// The queue of ranks that have lost the coordinator.
    pub(super) callers: UnboundedSender<Peer>,
}

/// A rank's mail.
pub(super) struct ProcessMail {
    options: Arc<MailOptions>,
    control: Arc<ControlPlane>,
    /// The longest wait of a sender for room.
    timeout: Duration,
    outgoing: Vec<Mutex<Option<Outgoing>>>,
}

/// The queue of messages to one rank.
#[derive(Clone)]
struct Outgoing {
    messages: UnboundedSender<Vec<u8>>,
    progress: Arc<SendProgress>,
}

/// The progress of the messages to one rank.
#[derive(Default)]
struct SendProgress {
    state: Mutex<SendState>,
    changed: Condvar,
}

#[derive(Default)]
struct SendState {
    /// Bytes that are queued.
    waiting: usize,
    /// True if the connection is gone, or everything was written.
    ended: bool,
}

impl SendProgress {
    fn state(&self) -> MutexGuard<'_, SendState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn written(&self, bytes: usize) {
        self.state().waiting -= bytes;
        self.changed.notify_all();
    }

    fn end(&self) {
        self.state().ended = true;
        self.changed.notify_all();
    }

    /// Waits until `holds` is true, the world breaks, or `at_most` has passed. Returns the last value of `holds`.
    fn wait(&self, options: &MailOptions, at_most: Duration, holds: impl Fn(&SendState) -> bool) -> bool {
        let start = Instant::now();
        let mut state = self.state();
        while !holds(&state) {
            if options.inbox.failure().is_set() || start.elapsed() > at_most {
                return false;
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl ProcessMail {
    /// Starts to accept connections at `listener`.
    pub(super) fn start(
        options: MailOptions,
        listener: TcpListener,
        control: &Arc<ControlPlane>,
        timeout: Duration,
    ) -> Result<Arc<Self>> {
        let outgoing = options.addresses.iter().map(|_| Mutex::default()).collect();
        let options = Arc::new(options);
        let acceptor = Acceptor::new(options.clone(), Arc::downgrade(control));
        control.spawn(Box::pin(acceptor.run(listener)))?;
        Ok(Arc::new(Self { options, control: control.clone(), timeout, outgoing }))
    }

    fn outgoing(&self, to: usize) -> Result<Outgoing> {
        let mut place = self.outgoing[to].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outgoing) = &*place {
            return Ok(outgoing.clone());
        }
        let (messages, queue) = unbounded_channel();
        let outgoing = Outgoing { messages, progress: Arc::default() };
        let delivery = deliver(self.options.clone(), to, queue, outgoing.progress.clone());
        self.control.spawn(Box::pin(delivery))?;
        Ok(place.insert(outgoing).clone())
    }
}

impl Mail for ProcessMail {
    fn send(&self, to: usize, channel: Channel, timing: Timing, bytes: &[u8]) -> Result<()> {
        let inbox = &self.options.inbox;
        let operation = || format!("send to rank {to} on channel {}", channel.number);
        if inbox.failure().is_set() {
            return Err(inbox.broken(operation()));
        }
        if bytes.len() > LONGEST {
            let problem = format!("{} bytes; a message has at most {LONGEST}", bytes.len());
            return Err(CommError::Argument { operation: "send to a channel", problem });
        }
        if to == inbox.own() {
            return if inbox.put(to, channel, bytes.to_vec(), 0) { Ok(()) } else { Err(CommError::Closed) };
        }
        let Outgoing { messages, progress } = self.outgoing(to)?;
        let mut message = Vec::with_capacity(HEADER + bytes.len());
        message.extend_from_slice(&channel.communicator.to_le_bytes());
        message.extend_from_slice(&channel.number.to_le_bytes());
        message.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        message.extend_from_slice(&inbox.leave(bytes.len(), timing).to_le_bytes());
        message.extend_from_slice(bytes);
        let len = message.len();
        let room = |state: &SendState| state.ended || state.waiting == 0 || state.waiting + len <= QUEUE;
        if !progress.wait(&self.options, self.timeout, room) {
            return Err(match inbox.failure().is_set() {
                true => inbox.broken(operation()),
                false => CommError::NoRoom { rank: to, seconds: self.timeout.as_secs_f64() },
            });
        }
        let mut state = progress.state();
        state.waiting += len;
        if state.ended || messages.send(message).is_err() {
            return Err(has_left(to, channel));
        }
        Ok(())
    }

    fn receive(&self, channel: Channel, at_most: Duration) -> Result<Option<Message>> {
        self.options.inbox.take(channel, at_most)
    }

    fn close(&self) {
        for place in &self.outgoing {
            let taken = place.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(Outgoing { messages, progress }) = taken {
                drop(messages);
                // The receiver's control thread reads at any time, so only the connection takes time.
                progress.wait(&self.options, self.timeout, |state| state.ended);
            }
        }
        self.options.inbox.close();
    }
}

/// Opens the connection to a rank and writes the messages to it.
async fn deliver(
    options: Arc<MailOptions>,
    to: usize,
    mut messages: UnboundedReceiver<Vec<u8>>,
    progress: Arc<SendProgress>,
) {
    let writing = async {
        let connecting = options.identity.connect(to, options.addresses[to], Purpose::Mail);
        let mut stream = match timeout(MAIL_INTRODUCTION, connecting).await {
            Ok(connected) => connected?,
            Err(_) => return Err("it does not answer".to_owned()),
        };
        let lost = |error: std::io::Error| format!("the connection broke: {error}");
        while let Some(message) = messages.recv().await {
            stream.write_all(&message).await.map_err(lost)?;
            if messages.is_empty() {
                stream.flush().await.map_err(lost)?;
            }
            progress.written(message.len());
        }
        stream.flush().await.map_err(lost)?;
        stream.shutdown().await.map_err(lost)
    };
    if let Err(problem) = writing.await {
        tracing::debug!(rank = to, %problem, "cannot deliver messages to a rank");
    }
    progress.end();
}

/// Accepts the connections of other ranks.
#[derive(Clone)]
struct Acceptor {
    options: Arc<MailOptions>,
    control: Weak<ControlPlane>,
    refusals: Arc<RefusalLog>,
}

/// The introduction of a caller on a task of its own.
type Introduction = JoinHandle<Result<Result<AcceptedPeer, String>, Elapsed>>;

impl Acceptor {
    fn new(options: Arc<MailOptions>, control: Weak<ControlPlane>) -> Self {
        Self { options, control, refusals: Arc::new(RefusalLog::new("messages of ranks")) }
    }

    /// Accepts connections as long as the control thread runs.
    async fn run(self, listener: TcpListener) {
        let listener =
            listener.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(listener));
        let listener = match listener {
            Ok(listener) => listener,
            Err(error) => return tracing::error!(%error, "cannot listen for messages of other ranks"),
        };
        let mut places = Introductions::new(most_introductions(MOST_INTRODUCTIONS));
        loop {
            while !places.make_room() {
                tokio::time::sleep(PAUSE).await;
            }
            match listener.accept().await {
                Ok((stream, from)) => {
                    let options = self.options.clone();
                    let introduction = tokio::spawn(async move {
                        timeout(MAIL_INTRODUCTION, options.identity.accept(stream)).await
                    });
                    places.add(introduction.abort_handle());
                    tokio::spawn(self.clone().serve(introduction, from));
                }
                Err(error) => {
                    self.refusals.add(&"an unknown address", &format!("accepting failed: {error}"));
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Waits for the introduction of a caller, then reads its messages or passes it on to the control plane.
    async fn serve(self, introduction: Introduction, from: SocketAddr) {
        let accepted = match introduction.await {
            Ok(Ok(accepted)) => accepted,
            Ok(Err(_)) => Err("it did not introduce itself".to_owned()),
            Err(_) => Err("it gave way to later callers".to_owned()),
        };
        let AcceptedPeer { rank, purpose, connection } = match accepted {
            Ok(peer) => peer,
            Err(reason) => return self.refusals.add(&from, &reason),
        };
        if purpose == Purpose::Succession {
            // Without a control thread the rank is not needed.
            return drop(self.options.callers.send(Peer { rank, connection }));
        }
        // The control plane tells whether the rank left or was lost.
        if let Err(error) = read(&self.options.inbox, rank, connection).await
            && is_altered(&error)
        {
            self.break_world(rank);
        }
    }

    /// Breaks the world because a message of a rank was altered, so that messages are missing.
    fn break_world(&self, rank: usize) {
        if let Some(control) = self.control.upgrade() {
            let reason = format!("a message of rank {rank} was altered on its way");
            control.alert(Cause::Aborted(self.options.inbox.own(), reason));
        }
    }
}

/// Puts the messages of a rank into the inbox until it leaves.
pub(super) async fn read(
    inbox: &Inbox,
    rank: usize,
    mut stream: impl AsyncRead + Unpin,
) -> std::io::Result<()> {
    let mut header = [0; HEADER];
    loop {
        stream.read_exact(&mut header).await?;
        let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let channel = Channel { communicator: short(0), number: short(4) };
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let (length, left) = (long(8), long(16));
        if length > LONGEST as u64 {
            tracing::warn!(rank, length, "refused a message of impossible length");
            return Ok(());
        }
        let mut bytes = Vec::with_capacity((length as usize).min(RESERVED));
        (&mut stream).take(length).read_to_end(&mut bytes).await?;
        if bytes.len() as u64 != length || !inbox.put(rank, channel, bytes, left) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tampering::{HANDSHAKE, proxy};
    use super::*;
    use crate::control::RankState;
    use crate::control::command::Command;
    use crate::security::{Credentials, Encryption, Secret};

    #[test]
    fn an_altered_message_breaks_the_world_by_name() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let secret = Some(Secret::new(&[5; 16]).expect("long"));
        let credentials = Credentials { secret, encryption: Encryption::All };
        let watched = RankState::default();
        let (control, mut commands) = ControlPlane::remote(watched.clone());
        let (control, (callers, _)) = (Arc::new(control), unbounded_channel());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let identity = |own| WorldIdentity { own, world_size: 2, token: 9, credentials: credentials.clone() };
        let options = Arc::new(MailOptions {
            inbox: Inbox::new(0, watched.failure.clone(), None),
            addresses: vec![address; 2],
            identity: identity(0),
            callers,
        });
        runtime.block_on(async {
            let acceptor = Acceptor::new(options, Arc::downgrade(&control));
            tokio::spawn(acceptor.run(listener));
            let way = proxy(address, HANDSHAKE + 30);
            let mut stream = identity(1).connect(0, way, Purpose::Mail).await.expect("a rank");
            stream.write_all(&[0; HEADER + 50]).await.expect("it reads");
            stream.flush().await.expect("it reads");
            let command = timeout(Duration::from_secs(10), commands.recv()).await.expect("in time");
            let Some(Command::Broken(Cause::Aborted(0, reason), _)) = command else {
                panic!("another command")
            };
            assert_eq!(reason, "a message of rank 1 was altered on its way");
        });
        assert!(watched.failure.is_set());
    }
}
