//! Mail between processes: a connection from each to each that it sends to, opened with the first message, and served by the
//! control thread at both ends, so that messages arrive whatever the program does. Ranks that have lost the hub come to the same
//! door, and are passed on to the control plane.

use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use super::doors::Key;
use super::hello::Plane;
use crate::control::{Caller, ControlPlane};
use crate::error::{CommError, Result};
use crate::failure::Cause;
use crate::mailbox::{Channel, Inbox, LONGEST, Mail, has_left};
use crate::sealed::is_altered;

/// Before each message: the communicator, the channel, the length, and over a simulated link when it has left.
const HEADER: usize = 24;

/// What is reserved for a message before it comes: whoever announces more has to send it.
const RESERVED: usize = 1 << 20;

/// Bytes that may wait for a connection; a sender that is further ahead waits.
const QUEUE: usize = 64 << 20;

/// How long a connection may take to be opened or to introduce itself.
const INTRODUCTION: Duration = Duration::from_secs(10);

/// Introductions that may be under way at a time; more callers wait at the door.
const DOORS: usize = 64;

/// How often a waiting sender looks whether the world is broken.
const LOOK: Duration = Duration::from_millis(50);

/// What connections of this world's mail need.
pub(super) struct Post {
    pub(super) inbox: Arc<Inbox>,
    /// Where each rank listens.
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) key: Key,
    /// Where those go who have lost the hub.
    pub(super) callers: UnboundedSender<Caller>,
}

/// A rank's mail.
pub(super) struct ProcessMail {
    post: Arc<Post>,
    control: Arc<ControlPlane>,
    /// How long a sender waits for room.
    timeout: Duration,
    outgoing: Vec<Mutex<Option<Outgoing>>>,
}

/// The messages for one rank.
#[derive(Clone)]
struct Outgoing {
    messages: UnboundedSender<Vec<u8>>,
    flow: Arc<Flow>,
}

/// How far the messages for one rank have gone.
#[derive(Default)]
struct Flow {
    state: Mutex<FlowState>,
    changed: Condvar,
}

#[derive(Default)]
struct FlowState {
    /// Bytes that wait.
    waiting: usize,
    /// Whether the connection is gone, or all that there was is written.
    ended: bool,
}

impl Flow {
    fn state(&self) -> MutexGuard<'_, FlowState> {
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

    /// Waits until something holds, or the world breaks, or for so long; whether it holds.
    fn wait(&self, post: &Post, at_most: Duration, holds: impl Fn(&FlowState) -> bool) -> bool {
        let start = Instant::now();
        let mut state = self.state();
        while !holds(&state) {
            if post.inbox.failure().is_set() || start.elapsed() > at_most {
                return false;
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl ProcessMail {
    /// Begins to take what others send to `listener`.
    pub(super) fn begin(
        post: Post,
        listener: TcpListener,
        control: &Arc<ControlPlane>,
        timeout: Duration,
    ) -> Result<Arc<Self>> {
        let outgoing = post.addresses.iter().map(|_| Mutex::default()).collect();
        let post = Arc::new(post);
        control.spawn(Box::pin(accept(post.clone(), listener, Arc::downgrade(control))))?;
        Ok(Arc::new(Self { post, control: control.clone(), timeout, outgoing }))
    }

    fn outgoing(&self, to: usize) -> Result<Outgoing> {
        let mut place = self.outgoing[to].lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(outgoing) = &*place {
            return Ok(outgoing.clone());
        }
        let (messages, queue) = unbounded_channel();
        let outgoing = Outgoing { messages, flow: Arc::default() };
        self.control.spawn(Box::pin(deliver(self.post.clone(), to, queue, outgoing.flow.clone())))?;
        Ok(place.insert(outgoing).clone())
    }
}

impl Mail for ProcessMail {
    fn send(&self, to: usize, channel: Channel, bytes: &[u8]) -> Result<()> {
        let inbox = &self.post.inbox;
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
        let Outgoing { messages, flow } = self.outgoing(to)?;
        let mut message = Vec::with_capacity(HEADER + bytes.len());
        message.extend_from_slice(&channel.communicator.to_le_bytes());
        message.extend_from_slice(&channel.number.to_le_bytes());
        message.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        message.extend_from_slice(&inbox.leave(bytes.len()).to_le_bytes());
        message.extend_from_slice(bytes);
        let len = message.len();
        let room = |state: &FlowState| state.ended || state.waiting == 0 || state.waiting + len <= QUEUE;
        if !flow.wait(&self.post, self.timeout, room) {
            return Err(match inbox.failure().is_set() {
                true => inbox.broken(operation()),
                false => CommError::NoRoom { rank: to, seconds: self.timeout.as_secs_f64() },
            });
        }
        let mut state = flow.state();
        state.waiting += len;
        if state.ended || messages.send(message).is_err() {
            return Err(has_left(to, channel));
        }
        Ok(())
    }

    fn receive(&self, channel: Channel, at_most: Duration) -> Result<Option<(usize, Vec<u8>)>> {
        self.post.inbox.take(channel, at_most)
    }

    fn close(&self) {
        for place in &self.outgoing {
            let taken = place.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(Outgoing { messages, flow }) = taken {
                drop(messages);
                // The receiver's control thread reads whatever its program does, so that this is a matter of the way alone.
                flow.wait(&self.post, self.timeout, |state| state.ended);
            }
        }
        self.post.inbox.close();
    }
}

/// Opens the connection to a rank and writes what is for it.
async fn deliver(post: Arc<Post>, to: usize, mut messages: UnboundedReceiver<Vec<u8>>, flow: Arc<Flow>) {
    let writing = async {
        let mut stream = match timeout(INTRODUCTION, post.key.open(to, post.addresses[to], Plane::Mail)).await
        {
            Ok(called) => called?,
            Err(_) => return Err("it does not answer".to_owned()),
        };
        let lost = |error: std::io::Error| format!("the connection broke: {error}");
        while let Some(message) = messages.recv().await {
            stream.write_all(&message).await.map_err(lost)?;
            if messages.is_empty() {
                stream.flush().await.map_err(lost)?;
            }
            flow.written(message.len());
        }
        stream.flush().await.map_err(lost)?;
        stream.shutdown().await.map_err(lost)
    };
    if let Err(problem) = writing.await {
        tracing::debug!(rank = to, %problem, "messages for a rank do not reach it");
    }
    flow.end();
}

/// Lets in whoever proves to be a rank of this world, and reads what it sends.
async fn accept(post: Arc<Post>, listener: TcpListener, control: Weak<ControlPlane>) {
    let listener = listener.set_nonblocking(true).and_then(|()| tokio::net::TcpListener::from_std(listener));
    let listener = match listener {
        Ok(listener) => listener,
        Err(error) => return tracing::error!(%error, "cannot listen for messages of other ranks"),
    };
    let doors = Arc::new(Semaphore::new(DOORS));
    // Nobody closes the doors.
    while let Ok(door) = doors.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, from)) => {
                let (post, control) = (post.clone(), control.clone());
                tokio::spawn(async move {
                    let introduced = match timeout(INTRODUCTION, post.key.answer(stream)).await {
                        Ok(introduced) => introduced,
                        Err(_) => Err("it did not introduce itself".to_owned()),
                    };
                    drop(door);
                    match introduced {
                        // A control plane that has ended needs nobody.
                        Ok((rank, Plane::Succession, stream)) => drop(post.callers.send((rank, stream))),
                        Ok((rank, _, stream)) => match read(&post.inbox, rank, stream).await {
                            Err(error) if is_altered(&error) => alarm(&post, &control, rank),
                            // Whether it left or was lost is for the control plane to say.
                            _ => {}
                        },
                        Err(reason) => tracing::warn!(%from, %reason, "refused a connection for messages"),
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "accepting a connection for messages failed");
                tokio::time::sleep(LOOK).await;
            }
        }
    }
}

/// Breaks the world: what a rank has sent was altered on its way, so that messages are missing.
fn alarm(post: &Post, control: &Weak<ControlPlane>, rank: usize) {
    if let Some(control) = control.upgrade() {
        let reason = format!("a message of rank {rank} was altered on its way");
        control.alert(Cause::Aborted(post.inbox.own(), reason));
    }
}

/// Puts what a rank sends into the inbox, until it leaves.
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
            tracing::warn!(rank, length, "a rank announces a message of impossible length");
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
    use super::super::encryption::{Credentials, Encryption};
    use super::super::secret::Secret;
    use super::super::tampering::{HANDSHAKE, proxy};
    use super::*;
    use crate::control::{Command, Watched};

    #[test]
    fn an_altered_message_breaks_the_world_by_name() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let secret = Some(Secret::new(&[5; 16]).expect("long"));
        let credentials = Credentials { secret, encryption: Encryption::All };
        let watched = Watched::default();
        let (control, mut commands) = ControlPlane::remote(watched.clone());
        let (control, (callers, _)) = (Arc::new(control), unbounded_channel());
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let key = |own| Key { own, world_size: 2, token: 9, credentials: credentials.clone() };
        let post = Arc::new(Post {
            inbox: Inbox::new(0, watched.failure.clone(), None),
            addresses: vec![address; 2],
            key: key(0),
            callers,
        });
        runtime.block_on(async {
            tokio::spawn(accept(post.clone(), listener, Arc::downgrade(&control)));
            let way = proxy(address, HANDSHAKE + 30);
            let mut stream = key(1).open(0, way, Plane::Mail).await.expect("a rank");
            stream.write_all(&[0; HEADER + 50]).await.expect("it reads");
            stream.flush().await.expect("it reads");
            let told = timeout(Duration::from_secs(10), commands.recv()).await.expect("in time");
            let Some(Command::Broken(Cause::Aborted(0, reason), _)) = told else {
                panic!("nothing of the kind")
            };
            assert_eq!(reason, "a message of rank 1 was altered on its way");
        });
        assert!(watched.failure.is_set());
    }
}
