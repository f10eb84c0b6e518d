//! Succession of a lost coordinator: the lowest surviving rank takes over.
//!
//! All ranks know the address where each rank listens. A rank that loses the coordinator calls the ranks below its own, the lowest
//! first, and joins the first that accepts it. A rank that none accepts is the lowest itself and takes over. A rank that still hears
//! its coordinator, or that has already formed a new world, refuses callers: they count as lost.

use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinHandle;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, timeout};

use super::command::{Command, RejoinRefusal, RejoinRequest};
use super::frame::{self, Message};
use super::state::{Connection, Heartbeat, Peer};
use super::timeouts::PARTING;

/// A connection to another rank that is being opened.
pub(crate) type Dialing = Pin<Box<dyn Future<Output = Result<Connection, String>> + Send>>;

/// Access to the other ranks of the world when the coordinator is lost.
pub(crate) trait PeerDirectory: Send + Sync {
    /// Calls a rank, which finds the connection among its [`Succession::callers`].
    fn call(&self, rank: usize) -> Dialing;

    /// True if the process of a rank is known to have ended.
    fn has_ended(&self, rank: usize) -> bool;

    /// Returns the address of a rank.
    fn address(&self, rank: usize) -> IpAddr;
}

/// State of a rank that may have to follow a lost coordinator.
pub(crate) struct Succession {
    pub(crate) own: usize,
    pub(crate) world_size: usize,
    pub(crate) peers: Arc<dyn PeerDirectory>,
    /// Connections of ranks that have lost the coordinator.
    pub(crate) callers: UnboundedReceiver<Peer>,
    /// Ranks that left for good while the others went on. They count as ended.
    pub(super) departed: Vec<usize>,
    /// Callers that came before this rank noticed the loss.
    held: Vec<HeldCaller>,
}

/// A caller that waits for a decision.
struct HeldCaller {
    peer: Peer,
    since: Instant,
}

/// The result of the search for a coordinator. It includes an open rejoin request.
pub(super) enum SearchResult {
    /// Another rank took over and accepted this one.
    Coordinator(Peer, Option<RejoinRequest>),
    /// This rank takes over. It has the connections of ranks that called it.
    Own(Vec<Peer>, Option<RejoinRequest>),
    /// This rank left during the search.
    Left,
}

/// The result of calling the ranks below this one.
enum CallResult {
    Accepted(Peer),
    Refused { by: usize, reason: String },
    NoAnswer,
}

/// The number of ranks that are called at a time.
const AT_ONCE: usize = 16;

impl Succession {
    pub(crate) fn new(
        own: usize,
        world_size: usize,
        peers: Arc<dyn PeerDirectory>,
        callers: UnboundedReceiver<Peer>,
    ) -> Self {
        Self { own, world_size, peers, callers, departed: Vec::new(), held: Vec::new() }
    }

    /// Keeps a caller until this rank notices the loss of the coordinator too.
    pub(super) fn hold(&mut self, peer: Peer) {
        self.held.push(HeldCaller { peer, since: Instant::now() });
    }

    /// Refuses callers that have waited for `limit`, after which this rank would have noticed the loss too.
    pub(super) fn send_away_after(&mut self, limit: Duration, coordinator: usize) {
        let now = Instant::now();
        let is_late = |held: &mut HeldCaller| now.duration_since(held.since) > limit;
        for HeldCaller { peer, .. } in self.held.extract_if(.., is_late) {
            send_away(peer, format!("rank {} hears rank {coordinator}, which has lost it", self.own));
        }
    }

    /// Refuses all callers that wait.
    fn send_all_away(&mut self, reason: &str) {
        for HeldCaller { peer, .. } in self.held.drain(..) {
            send_away(peer, reason.to_owned());
        }
    }

    /// Searches for the successor of the coordinator until there is one or this rank leaves. `rejoin` is a request that the lost
    /// coordinator has not answered.
    pub(super) async fn find(
        &mut self,
        heartbeat: Heartbeat,
        commands: &mut UnboundedReceiver<Command>,
        mut rejoin: Option<RejoinRequest>,
    ) -> SearchResult {
        let mut calling = pin!(call_lower_ranks(self.own, self.peers.clone(), heartbeat.timeout));
        let mut refusal: Option<(usize, String)> = None;
        loop {
            tokio::select! {
                called = &mut calling, if refusal.is_none() => match called {
                    CallResult::Accepted(peer) => return self.follow(peer, rejoin),
                    CallResult::NoAnswer => {
                        tracing::warn!("this rank takes over the control plane");
                        let peers = self.held.drain(..).map(|held| held.peer).collect();
                        return SearchResult::Own(peers, rejoin);
                    }
                    CallResult::Refused { by, reason } => refusal = Some((by, reason)),
                },
                command = commands.recv() => match command {
                    Some(Command::Rejoin(request)) => rejoin = Some(request),
                    Some(Command::Spawn(task)) => drop(tokio::spawn(task)),
                    Some(Command::Leave) | None => return SearchResult::Left,
                    // Without a coordinator, questions have no answer.
                    Some(
                        Command::Broken(..)
                        | Command::Ask(..)
                        | Command::Post(..)
                        | Command::Announce(..)
                        | Command::Depart(..)
                        | Command::Stop(..),
                    ) => {}
                },
                Some(peer) = self.callers.recv() => self.hold(peer),
            }
            if let Some((by, reason)) = &refusal {
                self.send_all_away(&format!("rank {} is left out itself", self.own));
                if let Some(request) = rejoin.take() {
                    let (rank, by, reason) = (self.own, *by, reason.clone());
                    let _ = request.answer.send(Err(RejoinRefusal::LeftOut { rank, by, reason }));
                }
            }
        }
    }

    /// Follows the rank that took over.
    fn follow(&mut self, peer: Peer, rejoin: Option<RejoinRequest>) -> SearchResult {
        let rank = peer.rank;
        tracing::warn!("rank {rank} has taken over the control plane");
        self.send_all_away(&format!("rank {rank} has taken over, and it did not come there"));
        SearchResult::Coordinator(peer, rejoin)
    }
}

/// Calls the ranks below `own` in groups, so that dead ranks are not awaited one by one. The lowest that answers counts. `limit` is the
/// silence after which a rank counts as lost.
async fn call_lower_ranks(own: usize, peers: Arc<dyn PeerDirectory>, limit: Duration) -> CallResult {
    for first in (0..own).step_by(AT_ONCE) {
        let ranks = (first..own.min(first + AT_ONCE)).filter(|rank| !peers.has_ended(*rank));
        // The control thread of a rank answers at once. One that is silent for half of the limit is stopped or cut off.
        let calls = ranks
            .map(|rank| Call { rank, answer: tokio::spawn(timeout(limit / 2, peers.call(rank))) })
            .collect();
        match first_answer(calls, limit).await {
            CallResult::NoAnswer => {}
            answer => return answer,
        }
    }
    CallResult::NoAnswer
}

/// A call that is under way.
struct Call {
    rank: usize,
    answer: JoinHandle<Result<Result<Connection, String>, Elapsed>>,
}

/// Returns the answer of the first of some ranks that answers.
async fn first_answer(calls: Vec<Call>, limit: Duration) -> CallResult {
    for Call { rank, answer } in calls {
        let mut connection = match answer.await {
            Ok(Ok(Ok(connection))) => connection,
            Ok(Ok(Err(problem))) => {
                tracing::debug!(rank, %problem, "cannot reach a rank that might have taken over");
                continue;
            }
            Ok(Err(_)) | Err(_) => continue,
        };
        // The rank may notice the loss later than this one by as long as silence may last.
        match timeout(2 * limit, frame::read(&mut connection)).await {
            Ok(Ok(Message::Admitted)) => return CallResult::Accepted(Peer { rank, connection }),
            Ok(Ok(Message::Refused { reason })) => return CallResult::Refused { by: rank, reason },
            _ => {}
        }
    }
    CallResult::NoAnswer
}

/// Refuses a caller and tells it why.
pub(super) fn send_away(peer: Peer, reason: String) {
    let Peer { rank, mut connection } = peer;
    tracing::warn!(rank, %reason, "refused a rank that has lost its coordinator");
    tokio::spawn(async move {
        let _ = timeout(PARTING, frame::write(&mut connection, &Message::Refused { reason })).await;
    });
}
