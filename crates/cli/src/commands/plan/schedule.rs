//! The schedule of a pipeline: its facts in lines, and its picture.

use phalanx_charts::{Style, Timetable, TimetableBox, TimetableRow};
use phalanx_config::Config;
use phalanx_sharding::ShardingError;
use phalanx_sharding::pipeline::{
    BlockSeconds, PassSeconds, PipelineSchedule, PlayCosts, PlayedWork, ScheduleLimits, SentValue, StagePass,
    StageWork,
};
use phalanx_trainer::engine::MeasuredStages;
use serde_json::{Value, json};

/// The schedule of a configuration whose model is in stages.
pub(super) struct PlannedSchedule {
    schedule: PipelineSchedule,
    micros: usize,
    /// The chunks of a rank.
    chunks: usize,
    /// By rank, the most activations that it keeps.
    kept: Vec<usize>,
    /// The share of time in which the busiest rank waits.
    bubble: f64,
    sent: Vec<SentValue>,
    buffers: usize,
}

impl PlannedSchedule {
    /// Checks the schedule of a configuration; `None` if the model has no stages. Each chunk hands a value to the next one.
    pub(super) fn of(config: &Config) -> Result<Option<Self>, ShardingError> {
        if config.pipeline_ranks() == 1 {
            return Ok(None);
        }
        let micros = config.micro_batches();
        let schedule = config.pipeline_schedule(micros)?;
        let all = schedule.num_chunks();
        let sent: Vec<SentValue> =
            (1..all).map(|to| SentValue { value: to, from: to - 1, to: vec![to] }).collect();
        let buffers = schedule.needed_buffers(&sent)?;
        let checked = schedule.check(&sent, ScheduleLimits { buffers, kept: None })?;
        let chunks = config.pipeline.chunks;
        Ok(Some(Self {
            schedule,
            micros,
            chunks,
            kept: checked.peak_kept,
            bubble: checked.bubble,
            sent,
            buffers,
        }))
    }

    /// Returns the facts as lines of a plan.
    pub(super) fn lines(&self) -> Vec<String> {
        let kept: Vec<String> = self.kept.iter().map(ToString::to_string).collect();
        let whose = if self.chunks > 1 { "micro-batches of a chunk" } else { "micro-batches" };
        vec![
            String::new(),
            format!(
                "pipeline: {} with {} stages and {} micro-batches; ranks wait {:.0} % of the time if forward and both parts of \
                 backward take equally long, and keep the activations of {} {whose} at most",
                self.schedule.name,
                self.schedule.num_chunks(),
                self.micros,
                100.0 * self.bubble,
                kept.join(", ")
            ),
        ]
    }

    /// Returns the facts for JSON.
    pub(super) fn json(&self) -> Value {
        json!({
            "schedule": self.schedule.name,
            "stages": self.schedule.num_chunks(),
            "micro_batches": self.micros,
            "bubble": self.bubble,
            "kept": self.kept,
        })
    }

    /// Draws when each pass runs, by the measured times of blocks, or if forward and both parts of backward take equally long. Messages
    /// take no time, and both parts of a measured backward equally much.
    pub(super) fn picture(&self, measured: Option<&MeasuredStages>) -> Result<Timetable, ShardingError> {
        let unit = PassSeconds { forward: 1.0, input: 1.0, weight: 1.0 };
        let of_chunk = |measured: &MeasuredStages, chunk: usize| {
            let own = measured.blocks.iter().filter(|block| block.chunk == chunk);
            let sum = own.fold(BlockSeconds::default(), |sum, block| BlockSeconds {
                forward: sum.forward + block.seconds.forward,
                backward: sum.backward + block.seconds.backward,
            });
            PassSeconds { forward: sum.forward, input: sum.backward / 2.0, weight: sum.backward / 2.0 }
        };
        let all = 0..self.schedule.num_chunks();
        let chunks: Vec<PassSeconds> =
            all.map(|chunk| measured.map_or(unit, |measured| of_chunk(measured, chunk))).collect();
        let costs = PlayCosts { chunks, message: 0.0, buffers: self.buffers };
        let timeline = self.schedule.play(&self.sent, &costs)?;
        let bubble = timeline.bubble() / timeline.end;
        let rows = timeline.ranks.iter().enumerate().map(|(rank, works)| TimetableRow {
            label: format!("rank {rank}"),
            boxes: works.iter().map(|played| self.drawn(played)).collect(),
        });
        let has_parts =
            self.schedule.ranks.iter().flatten().any(|work| work.pass == StagePass::BackwardWeight);
        let mut kinds: Vec<(String, Style)> = Vec::new();
        for chunk in 0..self.chunks {
            let of = if self.chunks > 1 { format!(", chunk {chunk}") } else { String::new() };
            kinds.push((format!("forward{of}"), style(StagePass::Forward, chunk)));
            kinds.push((format!("backward{of}"), style(StagePass::Backward, chunk)));
        }
        if has_parts {
            kinds[1].0 = "gradients of inputs".to_owned();
            kinds.push(("gradients of weights".to_owned(), style(StagePass::BackwardWeight, 0)));
        }
        let note = format!("numbers are micro-batches; ranks wait {:.0} % of the time", 100.0 * bubble);
        let title =
            format!("{}: {} ranks, {} micro-batches", self.schedule.name, self.kept.len(), self.micros);
        Ok(Timetable { title, note, rows: rows.collect(), kinds })
    }

    fn drawn(&self, played: &PlayedWork) -> TimetableBox {
        let PlayedWork { work, start, end } = *played;
        let StageWork { pass, chunk, micro } = work;
        let style = style(pass, chunk / self.kept.len());
        TimetableBox { start, end, style, label: micro.to_string(), title: work.to_string() }
    }
}

/// The style of a pass of a rank's chunk.
fn style(pass: StagePass, chunk: usize) -> Style {
    let colour = match pass {
        StagePass::Forward => 0,
        StagePass::Backward | StagePass::BackwardInput => 1,
        StagePass::BackwardWeight => 2,
    };
    Style::of(colour + 3 * (chunk % 2))
}
