//! Who takes over when the rank is lost that the control plane goes through: the lowest that lives.
//!
//! Each rank has a door that all have known since they met. Whoever has lost the hub knocks at the doors of the ranks below its
//! own, the lowest first, and joins the first that lets it in; whom nobody lets in is the lowest itself and takes over. A rank that
//! still hears its hub, or has come to an end with those who are left, sends callers away: they are taken for lost.

use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};

use super::frame::{self, Message};
use super::{Command, Connection, Heartbeat, PARTING, Unmet, Wanted};

/// Opening a connection to another rank.
pub(crate) type Calling = Pin<Box<dyn Future<Output = Result<Connection, String>> + Send>>;

/// How ranks reach each other when the hub is lost.
pub(crate) trait Doors: Send + Sync {
    /// Calls a rank, which hears of it among its [`Succession::callers`].
    fn call(&self, rank: usize) -> Calling;

    /// Whether the process of a rank is known to have ended.
    fn has_ended(&self, rank: usize) -> bool;

    /// Where a rank is reached.
    fn address(&self, rank: usize) -> IpAddr;
}

/// A rank that has lost the hub and calls this one, by its number in the world.
pub(crate) type Caller = (usize, Connection);

/// What a rank needs to follow a hub that is lost.
pub(crate) struct Succession {
    pub(crate) own: usize,
    pub(crate) world_size: usize,
    pub(crate) doors: Arc<dyn Doors>,
    pub(crate) callers: UnboundedReceiver<Caller>,
    /// Those who have said that they go on nowhere: they count as ended.
    pub(super) departed: Vec<usize>,
    /// Those who have called while this rank had not noticed that the hub is lost, and when they did.
    held: Vec<(Caller, Instant)>,
}

/// What has become of the search for a hub.
pub(super) enum Found {
    /// A rank has taken over and let this one in.
    Hub(Caller, Option<Wanted>),
    /// It is this rank, to which others may have come already.
    Own(Vec<Caller>, Option<Wanted>),
    /// This rank has left meanwhile.
    Left,
}

/// The end of a walk from door to door.
enum Walk {
    LetIn(Caller),
    SentAway { by: usize, reason: String },
    Nobody,
}

impl Succession {
    pub(crate) fn new(
        (own, world_size): (usize, usize),
        doors: Arc<dyn Doors>,
        callers: UnboundedReceiver<Caller>,
    ) -> Self {
        Self { own, world_size, doors, callers, departed: Vec::new(), held: Vec::new() }
    }

    /// Has somebody wait who calls before this rank has noticed anything.
    pub(super) fn hold(&mut self, caller: Caller) {
        self.held.push((caller, Instant::now()));
    }

    /// Sends those away who have waited for so long that this rank would have noticed too.
    pub(super) fn send_away_after(&mut self, patience: Duration, hub: usize) {
        let now = Instant::now();
        let late = |(_, since): &mut (Caller, Instant)| now.duration_since(*since) > patience;
        for (caller, _) in self.held.extract_if(.., late) {
            send_away(caller, format!("rank {} hears rank {hub}, which has lost it", self.own));
        }
    }

    /// Looks for the hub's successor, until there is one or this rank leaves. `wanted` is a meeting that this rank has asked the lost
    /// hub for.
    pub(super) async fn find(
        &mut self,
        heartbeat: Heartbeat,
        commands: &mut UnboundedReceiver<Command>,
        mut wanted: Option<Wanted>,
    ) -> Found {
        let mut walking = pin!(walk(self.own, self.doors.clone(), heartbeat.timeout));
        let mut left_out: Option<(usize, String)> = None;
        loop {
            tokio::select! {
                walked = &mut walking, if left_out.is_none() => match walked {
                    Walk::LetIn(hub) => {
                        tracing::warn!("rank {} has taken over the control plane", hub.0);
                        for (caller, _) in self.held.drain(..) {
                            send_away(caller, format!("rank {} has taken over, and it did not come there", hub.0));
                        }
                        return Found::Hub(hub, wanted);
                    }
                    Walk::Nobody => {
                        tracing::warn!("this rank has taken over the control plane");
                        return Found::Own(self.held.drain(..).map(|(caller, _)| caller).collect(), wanted);
                    }
                    Walk::SentAway { by, reason } => left_out = Some((by, reason)),
                },
                command = commands.recv() => match command {
                    Some(Command::Regroup(own)) => wanted = Some(own),
                    Some(Command::Spawn(task)) => drop(tokio::spawn(task)),
                    Some(Command::Leave) | None => return Found::Left,
                    // Nobody is there to hear of it, and who asks gets no answer.
                    Some(
                        Command::Broken(..)
                        | Command::Ask(..)
                        | Command::Post(..)
                        | Command::Announce(..)
                        | Command::Depart(..)
                        | Command::Stop(..),
                    ) => {}
                },
                Some(caller) = self.callers.recv() => self.hold(caller),
            }
            if let Some((by, reason)) = &left_out {
                for (caller, _) in self.held.drain(..) {
                    send_away(caller, format!("rank {} is left out itself", self.own));
                }
                if let Some(wanted) = wanted.take() {
                    let (rank, by, reason) = (self.own, *by, reason.clone());
                    let _ = wanted.answer.send(Err(Unmet::LeftOut { rank, by, reason }));
                }
            }
        }
    }
}

/// Knocks at the doors of the ranks below `own`, a few of them at once, as those behind which nobody lives would each be waited for
/// else. The lowest that answers counts. `patience` is how long a rank may be silent before it counts as lost.
async fn walk(own: usize, doors: Arc<dyn Doors>, patience: Duration) -> Walk {
    for first in (0..own).step_by(AT_ONCE) {
        let ranks = (first..own.min(first + AT_ONCE)).filter(|rank| !doors.has_ended(*rank));
        // The thread behind a door has nothing else to do: one that is silent for half of that time is stopped, or cut off.
        let calls = ranks.map(|rank| (rank, tokio::spawn(timeout(patience / 2, doors.call(rank)))));
        let calls: Vec<_> = calls.collect();
        match first_of(calls, patience).await {
            Walk::Nobody => {}
            end => return end,
        }
    }
    Walk::Nobody
}

/// How many doors are knocked at together.
const AT_ONCE: usize = 16;

/// A call that is under way.
type Called = JoinHandle<Result<Result<Connection, String>, Elapsed>>;

/// What the first of some ranks says that opens.
async fn first_of(calls: Vec<(usize, Called)>, patience: Duration) -> Walk {
    for (rank, call) in calls {
        let mut stream = match call.await {
            Ok(Ok(Ok(stream))) => stream,
            Ok(Ok(Err(problem))) => {
                tracing::debug!(rank, %problem, "cannot reach a rank that might have taken over");
                continue;
            }
            Ok(Err(_)) | Err(_) => continue,
        };
        // It may notice as much later as silence may last before it counts.
        match timeout(2 * patience, frame::read(&mut stream)).await {
            Ok(Ok(Message::Admitted)) => return Walk::LetIn((rank, stream)),
            Ok(Ok(Message::Refused { reason })) => return Walk::SentAway { by: rank, reason },
            _ => {}
        }
    }
    Walk::Nobody
}

/// Tells a caller why it is not let in.
pub(super) fn send_away((rank, mut stream): Caller, reason: String) {
    tracing::warn!(rank, %reason, "a rank that has lost the hub is not let in");
    tokio::spawn(async move {
        let _ = timeout(PARTING, frame::write(&mut stream, &Message::Refused { reason })).await;
    });
}
