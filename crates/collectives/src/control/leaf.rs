//! Every other rank's side of the control plane: hears the hub and tells it.

use std::sync::Arc;

use crossbeam_channel::Sender;
use tokio::io::AsyncWriteExt;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

use super::frame::{self, Message};
use super::succession::{Caller, Succession};
use super::{
    All, Command, Heard, Heartbeat, Notice, PARTING, Regrouping, Request, Stop, Wanted, Watched, listen,
};
use crate::failure::{Cause, Failure};

/// What has ended the watch of a rank that is not the hub.
pub(super) enum Ended {
    /// It has left.
    Left,
    /// The hub is lost; of whom it was asked to bring those together who are left, if it was.
    HubLost(Option<Wanted>),
}

/// The watch of every other rank: hears the hub and tells it. It may have wanted to meet those who are left before.
pub(super) async fn watch(
    heartbeat: Heartbeat,
    (hub, stream): Caller,
    commands: &mut UnboundedReceiver<Command>,
    watched: &Watched,
    succession: &mut Succession,
    mut wanted: Option<Wanted>,
) -> Ended {
    let failure = &watched.failure;
    let (read, mut write) = tokio::io::split(stream);
    let (to, mut heard) = unbounded_channel::<Heard>();
    tokio::spawn(listen((succession.own, hub, 0), read, heartbeat.timeout, to));
    let mut beat = tokio::time::interval(heartbeat.interval);
    let mut watching = true;
    let mut asking: Option<Sender<All>> = None;
    let mut meeting: Option<Arc<Failure>> = None;
    let lose = |meeting: &Option<Arc<Failure>>, rank| {
        if let Some(meeting) = meeting {
            meeting.set(Cause::Lost(rank));
        }
    };
    if wanted.is_some() {
        let _ = frame::write(&mut write, &Message::Regroup).await;
    }
    loop {
        tokio::select! {
            message = heard.recv(), if watching => match message {
                Some((_, _, Some(Message::Lost { rank }))) => {
                    failure.set(Cause::Lost(rank));
                    lose(&meeting, rank);
                }
                Some((_, _, Some(Message::Aborted { rank, reason }))) => drop(failure.set(Cause::Aborted(rank, reason))),
                Some((_, _, Some(Message::Tell { question, communicator }))) => {
                    let doing = watched.recorder.doing(communicator);
                    let _ = frame::write(&mut write, &Message::Doing { question, doing }).await;
                }
                Some((_, _, Some(Message::All { doing }))) => {
                    if let Some(asking) = asking.take() {
                        let _ = asking.send(doing);
                    }
                }
                Some((_, _, Some(Message::Regrouped { members, port }))) => {
                    // What no hub says is not answered: members are some of the ranks there were, in their order.
                    let sound = members.is_sorted_by(|a, b| a < b)
                        && members.last().is_some_and(|last| *last < succession.world_size);
                    if let Some(wanted) = wanted.take_if(|_| sound) {
                        let meeting = meeting.insert(Arc::default()).clone();
                        let at = succession.doors.address(hub);
                        let _ = wanted.answer.send(Ok(Regrouping { members, port, at, meeting }));
                    }
                }
                Some((_, _, Some(Message::Apart(unmet)))) => {
                    if let Some(wanted) = wanted.take() {
                        let _ = wanted.answer.send(Err(unmet));
                    }
                }
                Some((_, _, Some(Message::Notice { name, payload }))) => {
                    watched.job.deliver(name, Notice { from: hub, payload });
                }
                Some((_, _, Some(Message::Hold))) => {
                    let step = watched.job.vote();
                    let _ = frame::write(&mut write, &Message::InStep { step }).await;
                }
                Some((_, _, Some(Message::StopAfter { after, rank, reason, goes_on }))) => {
                    watched.job.decide(Stop { after, rank, reason, goes_on });
                }
                Some((_, _, Some(Message::Departed { rank }))) => succession.departed.push(rank),
                Some((_, _, Some(Message::Bye))) | None => {
                    watching = false;
                    wanted = None;
                    watched.job.leave();
                    // The hub waits for this end of the connection before it closes its own.
                    let _ = write.shutdown().await;
                }
                Some((_, _, Some(_))) => {}
                Some((_, _, None)) => {
                    failure.set(Cause::Lost(hub));
                    lose(&meeting, hub);
                    return Ended::HubLost(wanted);
                }
            },
            Some(caller) = succession.callers.recv() => succession.hold(caller),
            command = commands.recv() => match command {
                Some(Command::Broken(cause, told)) => {
                    let _ = frame::write(&mut write, &cause.into()).await;
                    drop(told);
                }
                Some(Command::Ask(communicator, answer)) => {
                    asking = Some(answer);
                    let _ = frame::write(&mut write, &Message::Ask { communicator }).await;
                }
                Some(Command::Post(name, payload)) => {
                    let _ = frame::write(&mut write, &Message::Notice { name, payload }).await;
                }
                Some(Command::Regroup(own)) => {
                    // A hub that has left answers nobody.
                    wanted = Some(own).filter(|_| watching);
                    let _ = frame::write(&mut write, &Message::Regroup).await;
                }
                // Only the hub announces.
                Some(Command::Announce(..)) => {}
                Some(Command::Stop(Request { reason, goes_on })) => {
                    let _ = frame::write(&mut write, &Message::RequestStop { reason, goes_on }).await;
                }
                Some(Command::Depart(told)) => {
                    let _ = frame::write(&mut write, &Message::Departed { rank: succession.own }).await;
                    drop(told);
                }
                Some(Command::Spawn(task)) => drop(tokio::spawn(task)),
                Some(Command::Leave) | None => {
                    let _ = frame::write(&mut write, &Message::Bye).await;
                    let _ = write.shutdown().await;
                    // Closing with unread messages would discard the goodbye on its way.
                    let _ = timeout(PARTING, async { while heard.recv().await.is_some() {} }).await;
                    return Ended::Left;
                }
            },
            _ = beat.tick() => {
                // This rank would have noticed by then what the caller has.
                succession.send_away_after(heartbeat.timeout + 2 * heartbeat.interval, hub);
                if watching {
                    let _ = frame::write(&mut write, &Message::Heartbeat).await;
                }
            }
        }
    }
}
