//! Kinds of operations.

/// The kind of an operation. Its position is its code on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce,
    ReduceScatter,
    AllGather,
    AllGatherV,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    AllToAll,
    AllToAllV,
    SendRecv,
    Barrier,
    Measure,
    AllReduceInPlace,
    ReduceScatterInPlace,
    AllGatherInPlace,
    Setup,
}

impl Kind {
    /// All kinds.
    pub(crate) const ALL: [Self; 17] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::AllGatherV,
        Self::Broadcast,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::AllToAllV,
        Self::SendRecv,
        Self::Barrier,
        Self::Measure,
        Self::AllReduceInPlace,
        Self::ReduceScatterInPlace,
        Self::AllGatherInPlace,
        Self::Setup,
    ];

    /// Returns the name in messages and records.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::ReduceScatter => "reduce-scatter",
            Self::AllGather => "all-gather",
            Self::AllGatherV => "all-gatherv",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all-to-all",
            Self::AllToAllV => "all-to-allv",
            Self::SendRecv => "send/receive",
            Self::Barrier => "barrier",
            Self::Measure => "measuring of links",
            Self::AllReduceInPlace => "all-reduce in place",
            Self::ReduceScatterInPlace => "reduce-scatter in place",
            Self::AllGatherInPlace => "all-gather in place",
            Self::Setup => "setting up",
        }
    }
}
