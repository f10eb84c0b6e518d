//! The registration of networks.

use std::path::Path;
use std::sync::Arc;

use phalanx_data::Attribute;
use phalanx_sharding::pipeline::StageParams;
use phalanx_tensor::io::load_network;
use phalanx_tensor::{
    BuildOptions, ComputeDevice, Key, Listener, Param, ParamStore, Scope, StoreBuilder, TensorError,
    TensorPlan, TensorRank,
};

use super::any_training::AnyTraining;
use super::checks::{check, check_evaluation, list};
use super::phase::Training;
use super::rule_use::RuleUse;
use crate::engine::distributed::{Distributed, Network, listener};
use crate::engine::error::TrainError;
use phalanx_config::{Config, Offload, mib};
use phalanx_datasets::{attributes, num_classes};
use phalanx_weights::{WeightNames, load_of_run};

/// The source of initial weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Weights {
    /// Random, or read from files.
    Here,
    /// Random on the ranks that hold them, later; only files are read here.
    ByRanks,
    /// Zeros; no file is read, because a checkpoint follows or values do not matter.
    Placeholder,
    /// None: only names, shapes and places.
    Absent,
}

/// Where networks are built.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct BuildTarget<'a> {
    pub(in crate::engine) weights: Weights,
    /// The place of parameters.
    pub(in crate::engine) device: &'a ComputeDevice,
    /// This rank among those that compute parts of the same layers; none if layers are not cut.
    pub(in crate::engine) tensor: Option<TensorRank>,
    /// This rank's stage; none if it has the whole model.
    pub(in crate::engine) stage: Option<StageTarget<'a>>,
}

/// The stage of a rank.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct StageTarget<'a> {
    /// The parameters of each rank along the pipeline.
    pub(in crate::engine) params: &'a Arc<StageParams>,
    /// This rank along the pipeline.
    pub(in crate::engine) rank: usize,
}

impl<'a> BuildTarget<'a> {
    /// Whole networks.
    pub(in crate::engine) fn whole(weights: Weights, device: &'a ComputeDevice) -> Self {
        Self { weights, device, tensor: None, stage: None }
    }
}

/// Registers the networks of a training.
#[derive(Debug)]
pub struct Setup<'a> {
    config: &'a Config,
    classes: Option<usize>,
    key: Key,
    target: BuildTarget<'a>,
    /// The plan by which the layers of the next network are cut over ranks.
    plan: TensorPlan,
    networks: Vec<Network>,
    /// The names of networks that other settings of the training have.
    left_out: Vec<String>,
    rules: RuleUse,
}

/// A training with its networks.
pub(in crate::engine) struct Built {
    pub(in crate::engine) training: Box<dyn AnyTraining>,
    pub(in crate::engine) networks: Vec<Network>,
    /// The names of parameters in files of weights.
    pub(in crate::engine) names: WeightNames,
}

impl Built {
    /// Prepares networks for inference. Sessions need the returned listener: it uploads offloaded parameters with the blocks that use
    /// them.
    pub(in crate::engine) fn ready(
        &mut self,
        config: &Config,
    ) -> Result<Option<Arc<dyn Listener>>, TrainError> {
        for network in self.networks.iter_mut().filter(|network| network.is_offloaded()) {
            network.share(&Distributed::none(), config, 1, None)?;
        }
        Ok(listener(self.networks.iter()))
    }

    /// The stores of all networks.
    pub(in crate::engine) fn stores(&self) -> Vec<&ParamStore> {
        self.networks.iter().map(Network::store).collect()
    }

    /// The stores of the networks that weights are for: those that are trained. Others have sources of their own.
    pub(in crate::engine) fn learnt_stores(&self) -> Vec<&ParamStore> {
        learnt_stores(&self.networks)
    }
}

/// The stores of the trained ones of some networks.
pub(in crate::engine) fn learnt_stores<'n>(
    networks: impl IntoIterator<Item = &'n Network>,
) -> Vec<&'n ParamStore> {
    networks.into_iter().filter(|network| network.is_learnt()).map(Network::store).collect()
}

impl<'a> Setup<'a> {
    pub(in crate::engine) fn new(
        config: &'a Config,
        classes: Option<usize>,
        target: BuildTarget<'a>,
    ) -> Self {
        let key = Key::new(config.train.seed).stream("weights");
        let (plan, rules) = (TensorPlan::default(), RuleUse::default());
        Self { config, classes, key, target, plan, networks: Vec::new(), left_out: Vec::new(), rules }
    }

    /// The run's configuration.
    pub fn config(&self) -> &'a Config {
        self.config
    }

    /// Returns the number of classes of `[data]`; 0 for a user's own data.
    ///
    /// # Errors
    /// If it must be read from a folder of images and cannot be.
    pub fn classes(&self) -> Result<usize, TrainError> {
        Ok(self.classes.map_or_else(|| num_classes(self.config), Ok)?)
    }

    /// Returns the attributes of the images of `[data]`, such as colour: the names of their arrays in a batch
    /// ([`StepInput::classes`](crate::StepInput::classes) reads them), and the meaning of their numbers. None for a user's own data.
    ///
    /// # Errors
    /// If the configuration describes no images.
    pub fn attributes(&self) -> Result<Vec<Attribute>, TrainError> {
        if self.classes == Some(0) { Ok(Vec::new()) } else { Ok(attributes(self.config)?) }
    }

    /// Registers the only network. Its parameters are saved under their own names.
    ///
    /// # Errors
    /// Errors of `build`, and [`TrainError::Setup`] if there are other networks.
    pub fn model<N>(
        &mut self,
        build: impl FnOnce(&Scope) -> Result<N, TensorError>,
    ) -> Result<N, TrainError> {
        self.add("", None, build)
    }

    /// Registers the only network, as [`Setup::model`], with initial values that `load` reads into the whole parameters of its store.
    ///
    /// # Errors
    /// Errors of `load` and `build`, and [`TrainError::Setup`] if there are other networks.
    pub fn model_from<N>(
        &mut self,
        load: impl FnOnce(&ParamStore) -> Result<(), TrainError>,
        build: impl FnOnce(&Scope) -> Result<N, TensorError>,
    ) -> Result<N, TrainError> {
        self.add("", Some(Box::new(load)), build)
    }

    /// Registers one of several networks. In checkpoints, the names of its parameters begin with its name.
    ///
    /// # Errors
    /// Errors of `build`, and [`TrainError::Setup`] if the name is taken or invalid.
    pub fn network<N>(
        &mut self,
        name: &str,
        build: impl FnOnce(&Scope) -> Result<N, TensorError>,
    ) -> Result<N, TrainError> {
        self.named(name)?;
        self.add(name, None, build)
    }

    /// Registers one of several networks, as [`Setup::network`], with initial values that `load` reads into the whole parameters of its
    /// store.
    ///
    /// # Errors
    /// Errors of `load` and `build`, and [`TrainError::Setup`] if the name is taken or invalid.
    pub fn network_from<N>(
        &mut self,
        name: &str,
        load: impl FnOnce(&ParamStore) -> Result<(), TrainError>,
        build: impl FnOnce(&Scope) -> Result<N, TensorError>,
    ) -> Result<N, TrainError> {
        self.named(name)?;
        self.add(name, Some(Box::new(load)), build)
    }

    /// Registers a network that is not trained, as [`Setup::frozen_network`], with values that `load` reads into the whole parameters of
    /// its store.
    ///
    /// # Errors
    /// Errors of `load` and `build`, and [`TrainError::Setup`] if the name is taken or invalid.
    pub fn frozen_network_from<N>(
        &mut self,
        name: &str,
        load: impl FnOnce(&ParamStore) -> Result<(), TrainError>,
        build: impl FnOnce(&Scope) -> Result<N, TensorError>,
    ) -> Result<N, TrainError> {
        self.named(name)?;
        self.add(name, Some(Box::new(load)), |scope| build(&scope.frozen()))
    }

    /// Registers a network that is not trained: gradients flow through it but not into its parameters. Its values come from a file of
    /// weights (safetensors or PyTorch), whose names are without the network's name. Without a file they are random.
    ///
    /// # Errors
    /// Errors of `build`, and [`TrainError::Setup`] if the name is taken or invalid, or the file does not match.
    pub fn frozen_network<N>(
        &mut self,
        name: &str,
        weights: Option<&Path>,
        build: impl FnOnce(&Scope) -> Result<N, TensorError>,
    ) -> Result<N, TrainError> {
        self.named(name)?;
        let load = weights.map(|path| -> Load<'_> { Box::new(move |store| load_named(name, path, store)) });
        self.add(name, load, |scope| build(&scope.frozen()))
    }

    /// Registers a network that is not trained, with values from the newest checkpoint of a run; averages if there are any. In the
    /// checkpoint, the names of its parameters begin with one of `prefixes`, such as `generator.`; the first that exists is used.
    ///
    /// # Errors
    /// Errors of `build`, [`TrainError::Setup`] if the name is taken or invalid, or a parameter is missing or has another shape, and
    /// those of reading the run.
    pub fn frozen_network_of_run<N>(
        &mut self,
        name: &str,
        run: &Path,
        prefixes: &[&str],
        build: impl FnOnce(&Scope) -> Result<N, TensorError>,
    ) -> Result<N, TrainError> {
        self.frozen_network_from(name, |store| Ok(load_of_run(name, run, prefixes, store)?), build)
    }

    /// Names a network that other settings of the training have. Configurations may have keys of it, such as
    /// `[critic.optim]`, which have no effect.
    ///
    /// # Errors
    /// [`TrainError::Setup`] if the name is invalid.
    pub fn leave_out(&mut self, name: &str) -> Result<(), TrainError> {
        self.named(name)?;
        self.left_out.push(name.to_owned());
        Ok(())
    }

    /// Sets the plan by which the layers of the next network are cut over ranks, if they are. Rules of `tensor.plan` go before those of
    /// the plan.
    ///
    /// # Errors
    /// Errors of `plan`.
    pub fn cut_by(
        &mut self,
        plan: impl FnOnce() -> Result<TensorPlan, TensorError>,
    ) -> Result<(), TrainError> {
        if self.target.tensor.is_some() {
            self.plan = plan()?;
        }
        Ok(())
    }

    /// Returns the plan of the next network with the rules of the configuration.
    fn take_plan(&mut self) -> Result<TensorPlan, TrainError> {
        let own = self.config.tensor.plan.iter().map(String::as_str);
        Ok(std::mem::take(&mut self.plan).with_rules(own)?)
    }

    /// Refuses networks of which no layer is cut, and rules of the configuration that name nothing.
    fn check_plan(&self) -> Result<(), TrainError> {
        if self.target.tensor.is_none() {
            return Ok(());
        }
        let params = || self.networks.iter().flat_map(|network| network.store().model_params());
        let names: Vec<&str> = params().map(Param::name).collect();
        let own = TensorPlan::new(self.config.tensor.plan.iter().map(String::as_str))?;
        if let Some(pattern) = own.unmatched(&names).first() {
            return Err(TrainError::Setup(format!("tensor.plan: `{pattern}` names no parameter")));
        }
        match params().any(|param| param.portion().is_some()) {
            true => Ok(()),
            false => Err(TrainError::Setup(
                "parallel.tensor is given, and no layer is cut: the model has no plan for it. tensor.plan gives one, such as \
                 [\"blocks.*.fc1 = column\", \"blocks.*.fc2 = row\"]"
                    .to_owned(),
            )),
        }
    }

    /// Checks the name of a network.
    fn named(&self, name: &str) -> Result<(), TrainError> {
        let sound = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
        if name.is_empty() || !name.chars().all(sound) {
            let problem = "is no name for a network: it takes letters, digits, `_` and `-`";
            return Err(TrainError::Setup(format!("`{name}` {problem}")));
        }
        if Config::sections().iter().any(|(section, _)| *section == name) {
            let problem = "is a section of the configuration, so no network can have that name";
            return Err(TrainError::Setup(format!("`{name}` {problem}")));
        }
        Ok(())
    }

    /// Refuses a network without a name of its own.
    fn check_new(&self, name: &str) -> Result<(), TrainError> {
        if let Some(other) = self.networks.iter().find(|other| other.name() == name) {
            return Err(TrainError::Setup(match other.name() {
                "" => "two networks have no name: Setup::network gives them names".to_owned(),
                name => format!("two networks have the name `{name}`"),
            }));
        }
        if let Some(other) = self.networks.iter().find(|other| other.name().is_empty() || name.is_empty()) {
            let named = if name.is_empty() { other.name() } else { name };
            let problem = "of several networks each needs a name: use Setup::network for all";
            return Err(TrainError::Setup(format!(
                "one network has no name, another is `{named}`; {problem}"
            )));
        }
        Ok(())
    }

    fn add<N>(
        &mut self,
        name: &str,
        load: Option<Load<'_>>,
        build: impl FnOnce(&Scope) -> Result<N, TensorError>,
    ) -> Result<N, TrainError> {
        self.check_new(name)?;
        let config = self.config.for_network(name);
        // Files are read into whole parameters.
        let BuildTarget { weights, device, tensor, stage } = self.target;
        let load = load.filter(|_| weights != Weights::Placeholder);
        let fill = match weights {
            Weights::Here | Weights::Placeholder => true,
            Weights::ByRanks => load.is_some(),
            Weights::Absent => false,
        };
        // Without values, no GPU is needed.
        let device = if weights == Weights::Absent { ComputeDevice::host() } else { device.clone() };
        let plan = self.take_plan()?;
        let rules = Arc::new(config.param_rules(name).map_err(TrainError::Setup)?);
        let layout = tensor.map(|tensor| plan.layout(tensor));
        let layout = match stage {
            Some(StageTarget { params, rank }) => Some(params.layout(rank, layout)),
            None => layout,
        };
        let builder = StoreBuilder::new(BuildOptions {
            device,
            offload: config.train.offload == Offload::Parameters,
            key: self.key,
            decay_matrices_only: config.optim.decay_matrices_only,
            rules: rules.clone(),
            layout,
            fill,
            zeros: weights == Weights::Placeholder,
            unit_bytes: mib(config.train.unit_mib),
            bucket_bytes: config.train.bucket_kib.saturating_mul(1 << 10),
            ..BuildOptions::default()
        });
        let root = builder.root();
        let built = build(&if name.is_empty() { root } else { root.pp(name) })?;
        let store = builder.build()?;
        if store.model_params().next().is_none() {
            let whose = if name.is_empty() { "the network".to_owned() } else { format!("network `{name}`") };
            return Err(TrainError::Setup(format!("{whose} has no parameters")));
        }
        self.rules.add(name, &store, &rules)?;
        if let (true, Some(load)) = (fill, load) {
            load(&store)?;
        }
        self.networks.push(Network::new(name, store));
        Ok(built)
    }

    /// Joins the networks with their training.
    ///
    /// # Errors
    /// [`TrainError::Setup`] if phases and networks do not match.
    pub(in crate::engine) fn finish<M: Sync + 'static>(
        self,
        mut training: Training<M>,
    ) -> Result<Built, TrainError> {
        let names = WeightNames::new(std::mem::take(&mut training.names))?;
        let training: Box<dyn AnyTraining> = Box::new(training);
        check(&training.phases(), &self.networks).map_err(TrainError::Setup)?;
        check_evaluation(&training.outline()).map_err(TrainError::Setup)?;
        let is_known = |name: &str| {
            self.networks.iter().any(|network| network.name() == name)
                || self.left_out.iter().any(|known| known == name)
        };
        if let Some(strange) = self.config.networks.keys().find(|name| !is_known(name)) {
            let there = list(self.networks.iter().map(Network::name));
            return Err(TrainError::Setup(format!(
                "the configuration has keys {strange}.…, but no network has that name; there is: {there}"
            )));
        }
        self.check_plan()?;
        self.rules.check(self.networks.iter().map(|network| (network.name(), network.store())))?;
        Ok(Built { training, networks: self.networks, names })
    }
}

/// Reads initial values into a store.
type Load<'a> = Box<dyn FnOnce(&ParamStore) -> Result<(), TrainError> + 'a>;

/// Reads a file of weights into the store of the network called `name`.
fn load_named(name: &str, path: &Path, store: &ParamStore) -> Result<(), TrainError> {
    match load_network(store, &format!("{name}."), path, true) {
        Ok(_) => Ok(()),
        Err(error @ TensorError::Weights { .. }) => {
            Err(TrainError::Setup(format!("weights of network `{name}` from {error}")))
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use phalanx_tensor::{Value, nn};

    use super::*;

    use crate::engine::training::StepInput;

    /// Whole networks with random weights.
    fn here() -> BuildTarget<'static> {
        static HOST: std::sync::LazyLock<ComputeDevice> = std::sync::LazyLock::new(ComputeDevice::host);
        BuildTarget::whole(Weights::Here, &HOST)
    }

    fn line(scope: &Scope) -> Result<nn::Linear, TensorError> {
        nn::Linear::new(scope, 2, 1)
    }

    fn loss(_: &(), step: &StepInput<'_>) -> Result<Value, TrainError> {
        step.normal(&[])
    }

    /// The error of a training that `describe` registers, or `sound`.
    fn said(describe: impl FnOnce(&mut Setup<'_>) -> Result<Training<()>, TrainError>) -> String {
        let config = Config::default();
        let mut setup = Setup::new(&config, Some(0), here());
        let built = describe(&mut setup).and_then(|training| setup.finish(training));
        built.map_or_else(|error| error.to_string(), |_| "sound".to_owned())
    }

    #[test]
    fn mistakes_are_named() {
        let plain = || Training::new("a test", ()).loss(loss);
        assert_eq!(said(|setup| setup.model(line).map(|_| plain())), "sound");
        assert_eq!(said(|_| Ok(plain())), "the training has no network; Setup::model registers one");
        assert_eq!(
            said(|setup| setup.model(line).map(|_| Training::new("a test", ()))),
            "the training has no phase; Training::loss adds one"
        );
        let two = |setup: &mut Setup<'_>, a: &str, b: &str| {
            setup.network(a, line)?;
            setup.network(b, line)?;
            Ok::<_, TrainError>(Training::new("a test", ()))
        };
        assert_eq!(said(|setup| two(setup, "a", "a")), "two networks have the name `a`");
        assert!(said(|setup| two(setup, "a", "b.c")).starts_with("`b.c` is no name for a network"));
        assert!(said(|setup| two(setup, "a", "optim")).starts_with("`optim` is a section"));
        assert_eq!(
            said(|setup| Ok(two(setup, "a", "b")?.phase("first", ["a", "c"], loss))),
            "phase `first` updates `c`, which is no network; there is: `a`, `b`"
        );
        assert!(
            said(|setup| Ok(two(setup, "a", "b")?.phase("first", ["a"], loss)))
                .starts_with("no phase updates network `b`")
        );
        assert_eq!(
            said(|setup| Ok(two(setup, "a", "b")?.phase("x", ["a"], loss).phase("x", ["b"], loss))),
            "two phases have the name `x`"
        );
        assert!(
            said(|setup| {
                setup.model(line)?;
                two(setup, "a", "b")
            })
            .starts_with("one network has no name, another is `a`")
        );
        let frozen = |setup: &mut Setup<'_>| {
            setup.frozen_network("still", None, line)?;
            setup.network("b", line)?;
            Ok(Training::new("a test", ()).phase("first", ["still", "b"], loss))
        };
        assert_eq!(said(frozen), "phase `first` updates `still`, which is not learnt");
        assert_eq!(said(|setup| setup.model(|_| Ok(())).map(|()| plain())), "the network has no parameters");
        let during = |spans: [[f64; 2]; 2]| {
            said(|setup| {
                let [first, second] = spans;
                let training = two(setup, "a", "b")?.phase("x", ["a"], loss).during(first[0], first[1]);
                Ok(training.phase("y", ["b"], loss).during(second[0], second[1]))
            })
        };
        assert_eq!(during([[0.5, 1.0], [0.0, 0.6]]), "sound");
        assert_eq!(during([[0.0, 0.4], [0.5, 1.0]]), "no phase is during 0.4 to 0.5 of the run");
        assert_eq!(during([[0.0, 0.4], [0.4, 0.9]]), "no phase is during 0.9 to 1 of the run");
        assert_eq!(
            during([[0.5, 0.5], [0.0, 1.0]]),
            "phase `x` is during 0.5 to 0.5, which is no part of 0 to 1"
        );
        let evaluated = |names: [&'static str; 2]| {
            said(|setup| setup.model(line).map(|_| plain().evaluate(names, |_, _| Ok([0.0; 2]))))
        };
        assert_eq!(evaluated(["loss", "gap"]), "sound");
        assert_eq!(evaluated(["gap", "gap"]), "the evaluation has two measures of the name `gap`");
        assert_eq!(
            said(|setup| setup.model(line).map(|_| plain().watched(["spread"]))),
            "phase `` watches `spread`, which it does not measure"
        );
    }

    #[test]
    fn a_frozen_network_is_read_from_a_file_with_its_names() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("weights.safetensors");
        let config = Config::default();
        let mut other = Setup::new(&config, Some(0), here());
        other.model(line).expect("registers");
        let named = other.networks[0].store().state_dict().expect("here");
        phalanx_tensor::io::save_safetensors(&path, &named, &[]).expect("writes");
        let mut setup = Setup::new(&config, Some(0), BuildTarget { weights: Weights::ByRanks, ..here() });
        setup.frozen_network("still", Some(&path), line).expect("reads");
        setup.network("b", line).expect("registers");
        let still = setup.networks[0].store().param("still.weight").expect("named").tensor().expect("here");
        let saved = other.networks[0].store().param("weight").expect("named").tensor().expect("here");
        assert_eq!(still.to_vec2::<f32>().expect("f32"), saved.to_vec2::<f32>().expect("f32"));
        assert!(setup.networks[1].store().buckets()[0].values().is_none(), "ranks initialise what they hold");
        let wide = |scope: &Scope| nn::Linear::new(scope, 3, 1);
        let error = Setup::new(&config, Some(0), here())
            .frozen_network("still", Some(&path), wide)
            .expect_err("another shape")
            .to_string();
        assert!(error.starts_with("weights of network `still` from "), "{error}");
    }
}
