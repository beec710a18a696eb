//! What the environment says about the rank of this process.
//!
//! Each launcher's variables make a [`Claim`]. Launchers start other launchers, and whatever an outer one set is still
//! there in the processes of the inner one; so claims are put in the order from the innermost, whose word counts, and
//! each of the others must either say the same or be known to have started something else than ranks.

use std::ffi::OsString;
use std::fmt;

use super::{Launcher, Rank};
use crate::{Error, Result};

/// The rank of the process whose variables `lookup` finds.
pub(super) fn detect(
    lookup: &dyn Fn(&str) -> Option<OsString>,
    world_size: Option<u32>,
) -> Result<Option<Rank>> {
    if world_size == Some(0) {
        return Rank::new(0, 0).map(Some);
    }
    let environment = Environment(lookup);
    let mut claims = environment.claims()?;
    // `WORLD_SIZE` alone: what scripts export for the ranks that they start later, by a launcher of another kind.
    let announced = match environment.number("RANK")? {
        None => environment.number("WORLD_SIZE")?.filter(|size| size.value > 1),
        Some(_) => None,
    };
    // A launcher that says world size 1 contradicts nothing.
    let several = |claim: &Claim| !claim.is_single();
    if claims.iter().any(several) || announced.is_some() || world_size.is_some_and(|size| size > 1) {
        claims.retain(several);
    }
    let Some((winner, others)) = claims.split_first() else {
        return match announced {
            Some(size) if world_size.is_none() => Err(Error::argument(format!(
                "{size} is set, but no variable says which rank this process is"
            ))),
            _ => Ok(None),
        };
    };
    for other in others {
        if !winner.agrees(other) && !winner.is_within(other) {
            return Err(contradiction(winner, other));
        }
    }
    let size = winner.world_size(others, announced, world_size)?;
    winner.rank(others, size).map(Some)
}

/// A variable and the number that is its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Number {
    name: &'static str,
    value: u32,
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.value)
    }
}

/// What one launcher says.
#[derive(Debug)]
struct Claim {
    launcher: Launcher,
    rank: Number,
    size: Option<Number>,
    local_rank: Option<Number>,
    local_size: Option<Number>,
    job: Option<String>,
    kind: Kind,
    /// It started one process on this host, as it does for another launcher.
    one_per_host: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A launcher that sets its variables anew in each process that it starts.
    Started {
        /// The number of its own daemons or agents, one per host, if it says so.
        agents: Option<u32>,
        /// It is made to be started within other launchers, not only within Slurm.
        anywhere: bool,
    },
    /// Slurm's `srun`, which starts other launchers.
    Srun,
    /// Variables that a script may have set, that say no more than the rank.
    Plain,
}

impl Claim {
    fn agrees(&self, other: &Claim) -> bool {
        let sizes = self.size.zip(other.size);
        self.rank.value == other.rank.value && sizes.is_none_or(|(a, b)| a.value == b.value)
    }

    fn is_single(&self) -> bool {
        self.size.is_some_and(|size| size.value == 1)
    }

    /// Whether `outer` may have started the launcher that started this process.
    fn is_within(&self, outer: &Claim) -> bool {
        match (self.kind, outer.kind) {
            (_, Kind::Plain) | (Kind::Plain | Kind::Srun, _) => false,
            (Kind::Started { anywhere: false, .. }, Kind::Started { .. }) => false,
            (Kind::Started { agents, .. }, _) => {
                let all_are_agents =
                    agents.zip(outer.size).is_some_and(|(agents, size)| agents == size.value);
                outer.one_per_host || all_are_agents
            }
        }
    }

    /// The world size: the launcher's own, else what another source says. All sources must say the same.
    fn world_size(
        &self,
        others: &[Claim],
        announced: Option<Number>,
        by_hand: Option<u32>,
    ) -> Result<Number> {
        // The size of a step that only carries another launcher's daemons is that of the daemons.
        let of_the_same = |other: &&Claim| self.agrees(other) && !self.is_within(other);
        let agreeing = || others.iter().filter(of_the_same).find_map(|other| other.size);
        let said = self.size.or_else(agreeing);
        if let Some((said, announced)) = said.zip(announced).filter(|(a, b)| a.value != b.value) {
            return Err(Error::argument(format!(
                "{said} contradicts {announced}; unset the one that is wrong"
            )));
        }
        let said = said.or(announced);
        match (said, by_hand) {
            (Some(said), Some(by_hand)) if said.value != by_hand => {
                Err(Error::argument(format!("a world size of {by_hand} was given, which contradicts {said}")))
            }
            (Some(said), _) => Ok(said),
            (None, Some(value)) => Ok(Number { name: "world size", value }),
            (None, None) => {
                let why = match self.launcher {
                    Launcher::Pmix => "PMIx keeps the world size out of the environment",
                    Launcher::Torchrun => "WORLD_SIZE is not set",
                    _ => "no variable says the world size",
                };
                let rank = self.rank;
                Err(Error::argument(format!("{rank} is set, but {why}; give the world size by hand")))
            }
        }
    }

    /// The rank that this claim makes.
    fn rank(&self, others: &[Claim], size: Number) -> Result<Rank> {
        let above = |low: Number, high: Number| {
            Error::argument(format!("{low} is not below {high}; ranks count from 0"))
        };
        if self.rank.value >= size.value {
            return Err(above(self.rank, size));
        }
        // A script that names the rank and the local rank says by it which GPU the process shall use.
        let script = others.iter().find(|other| other.launcher == Launcher::Torchrun);
        let local_rank = script.and_then(|script| script.local_rank).or(self.local_rank);
        let local_size = script.and_then(|script| script.local_size).or(self.local_size);
        if let Some(local) = local_size.filter(|local| local.value > size.value) {
            return Err(Error::argument(format!("{local} is more than {size}")));
        }
        if let Some((rank, size)) = local_rank.zip(local_size).filter(|(rank, size)| rank.value >= size.value)
        {
            return Err(above(rank, size));
        }
        Ok(Rank {
            rank: self.rank.value,
            world_size: size.value,
            local_rank: local_rank.map(|local| local.value),
            local_world_size: local_size.map(|local| local.value),
            launcher: Some(self.launcher),
            job: self.job.clone(),
        })
    }
}

fn contradiction(one: &Claim, other: &Claim) -> Error {
    let of = |claim: &Claim| match claim.size {
        Some(size) => format!("{} of {size}", claim.rank),
        None => claim.rank.to_string(),
    };
    Error::argument(format!(
        "{} contradicts {}: only one of them tells this process its rank; unset the variables of the other",
        of(one),
        of(other)
    ))
}

/// The variables of a process.
struct Environment<'a>(&'a dyn Fn(&str) -> Option<OsString>);

impl Environment<'_> {
    /// What all launchers say, the innermost first.
    fn claims(&self) -> Result<Vec<Claim>> {
        let open_mpi = self.open_mpi()?;
        let slurm = self.slurm()?;
        let (mut pmix, mut pmi) = (self.pmix()?, self.pmi()?);
        // Open MPI and Slurm set these as well for the ranks that they start: one launcher, not two.
        let of_slurm = pmix.as_ref().is_some_and(|claim| claim.kind == Kind::Plain);
        if open_mpi.is_some() {
            absorb(open_mpi.as_ref(), &mut pmix)?;
        } else if of_slurm {
            absorb(slurm.as_ref(), &mut pmix)?;
        }
        if pmi.as_ref().is_some_and(|claim| claim.kind == Kind::Plain) {
            absorb(slurm.as_ref(), &mut pmi)?;
        }
        let (elastic, script) = match self.torchrun()? {
            Some(claim) if claim.kind == Kind::Plain => (None, Some(claim)),
            elastic => (elastic, None),
        };
        Ok([elastic, open_mpi, pmi, pmix, slurm, script].into_iter().flatten().collect())
    }

    fn torchrun(&self) -> Result<Option<Claim>> {
        let run = self.text("TORCHELASTIC_RUN_ID")?;
        let master = self.text("MASTER_ADDR")?.zip(self.text("MASTER_PORT")?);
        let master = master.map(|(address, port)| format!("{address}:{port}"));
        let names = ["RANK", "WORLD_SIZE", "LOCAL_RANK"];
        let claim = self.claim(Launcher::Torchrun, names, Some("LOCAL_WORLD_SIZE"))?;
        let Some(claim) = claim else { return Ok(None) };
        Ok(Some(match run {
            // The id is "none" unless the user names the run, so it takes the port to tell two runs apart; and the
            // ranks of an earlier attempt may still be on their way out.
            Some(run) => {
                let attempt = self.text("TORCHELASTIC_RESTART_COUNT")?.unwrap_or_default();
                let master = master.unwrap_or_default();
                let agents = self.number("GROUP_WORLD_SIZE")?.map(|agents| agents.value);
                Claim {
                    job: Some(format!("torchrun {run} {master} {attempt}")),
                    kind: Kind::Started { agents, anywhere: true },
                    ..claim
                }
            }
            None => Claim { job: master.map(|master| format!("master {master}")), ..claim },
        }))
    }

    fn open_mpi(&self) -> Result<Option<Claim>> {
        let names = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"];
        let claim = self.claim(Launcher::OpenMpi, names, Some("OMPI_COMM_WORLD_LOCAL_SIZE"))?;
        let Some(claim) = claim else { return Ok(None) };
        // Version 4 sets both to one number; version 5 has the first alone, a text.
        let job = match self.text("PMIX_NAMESPACE")? {
            Some(namespace) => Some(namespace),
            None => self.text("OMPI_MCA_ess_base_jobid")?,
        };
        Ok(Some(Claim {
            job: job.map(|job| format!("openmpi {job}")),
            kind: Kind::Started { agents: None, anywhere: false },
            ..claim
        }))
    }

    /// MPICH's and Intel's Hydra, and others that set the variables of its protocol.
    fn pmi(&self) -> Result<Option<Claim>> {
        // With `-pmi-port` it sets PMI_ID in place of PMI_RANK, and no size.
        let rank = if self.text("PMI_RANK")?.is_some() { "PMI_RANK" } else { "PMI_ID" };
        let names = [rank, "PMI_SIZE", "MPI_LOCALRANKID"];
        let claim = self.claim(Launcher::Hydra, names, Some("MPI_LOCALNRANKS"))?;
        let Some(claim) = claim else { return Ok(None) };
        Ok(Some(match claim.local_rank {
            // Hydra names the job nowhere in the environment, and a PMI_JOBID is then that of an outer launcher.
            Some(_) => Claim { kind: Kind::Started { agents: None, anywhere: false }, ..claim },
            // Slurm's and Cray's plugins for this protocol.
            None => Claim { job: self.text("PMI_JOBID")?.map(|job| format!("pmi {job}")), ..claim },
        }))
    }

    fn pmix(&self) -> Result<Option<Claim>> {
        let Some(rank) = self.number("PMIX_RANK")? else { return Ok(None) };
        let namespace = self.text("PMIX_NAMESPACE")?;
        let kind = match &namespace {
            Some(namespace) if namespace.starts_with("slurm.pmix.") => Kind::Plain,
            _ => Kind::Started { agents: None, anywhere: false },
        };
        let job = namespace.map(|namespace| format!("pmix {namespace}"));
        Ok(Some(Claim { job, kind, ..Claim::new(Launcher::Pmix, rank) }))
    }

    /// Only of a step that `srun` started. The processes of `sbatch` and `salloc` have SLURM_PROCID=0 and
    /// SLURM_NTASKS too, but these describe the allocation, and the process is the only one of its kind.
    fn slurm(&self) -> Result<Option<Claim>> {
        // The steps of batch scripts and interactive shells have numbers at the top of 32 bits; some versions print
        // them as negative numbers.
        let step = self.text("SLURM_STEP_ID")?.filter(|id| id.parse().is_ok_and(|id: u32| id < 0xffff_fff0));
        let (Some(step), Some(_)) = (step, self.text("SLURM_STEP_NUM_TASKS")?) else { return Ok(None) };
        let node = self.number("SLURM_NODEID")?;
        let counts = self.text("SLURM_STEP_TASKS_PER_NODE")?;
        let here = counts.zip(node).and_then(|(counts, node)| tasks_of_node(&counts, node.value));
        // A batch script that was submitted from within a step has the variables of that step still, all of them.
        // What betrays them is the list of the tasks on this host, which is set anew: it is that of one process.
        let listed = self.text("SLURM_GTIDS")?.map(|tasks| tasks.split(',').count());
        if here.zip(listed).is_some_and(|(here, listed)| here as usize != listed) {
            return Ok(None);
        }
        let names = ["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"];
        let Some(claim) = self.claim(Launcher::Slurm, names, None)? else { return Ok(None) };
        let hosts = self.number("SLURM_STEP_NUM_NODES")?.map(|hosts| hosts.value);
        let attempt = self.text("SLURM_RESTART_COUNT")?.unwrap_or_default();
        let job = self.text("SLURM_JOB_ID")?.map(|job| format!("slurm {job}.{step} {attempt}"));
        // With a terminal (`srun --pty bash`), what a user starts by hand is started in the first task alone.
        let terminal = self.text("SLURM_PTY_PORT")?.is_some();
        Ok(Some(Claim {
            local_size: here.map(|value| Number { name: "SLURM_STEP_TASKS_PER_NODE", value }),
            job,
            kind: Kind::Srun,
            one_per_host: here == Some(1) || hosts == claim.size.map(|size| size.value) || terminal,
            ..claim
        }))
    }

    /// The claim that variables make: of the rank, the world size and the local rank, and of the local world size.
    fn claim(
        &self,
        launcher: Launcher,
        [rank, size, local_rank]: [&'static str; 3],
        local_size: Option<&'static str>,
    ) -> Result<Option<Claim>> {
        let Some(rank) = self.number(rank)? else { return Ok(None) };
        let size = self.number(size)?;
        if let Some(size) = size.filter(|size| size.value == 0) {
            return Err(Error::argument(format!("{size} cannot be: it counts this process")));
        }
        let local_size = local_size.map(|name| self.number(name)).transpose()?.flatten();
        Ok(Some(Claim {
            size,
            local_rank: self.number(local_rank)?,
            local_size,
            one_per_host: local_size.is_some_and(|size| size.value == 1),
            ..Claim::new(launcher, rank)
        }))
    }

    fn text(&self, name: &str) -> Result<Option<String>> {
        let Some(value) = (self.0)(name) else { return Ok(None) };
        value
            .into_string()
            .map(Some)
            .map_err(|raw| Error::argument(format!("{name}={} is not UTF-8", raw.to_string_lossy())))
    }

    fn number(&self, name: &'static str) -> Result<Option<Number>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        match text.parse() {
            Ok(value) => Ok(Some(Number { name, value })),
            Err(_) => Err(Error::argument(format!("{name}={text:?} is not a number of 0 or more"))),
        }
    }
}

impl Claim {
    fn new(launcher: Launcher, rank: Number) -> Claim {
        Claim {
            launcher,
            rank,
            size: None,
            local_rank: None,
            local_size: None,
            job: None,
            kind: Kind::Plain,
            one_per_host: false,
        }
    }
}

/// Takes away what `owner` set as well, under names of another launcher. It must say what the owner says.
fn absorb(owner: Option<&Claim>, also: &mut Option<Claim>) -> Result<()> {
    let Some((owner, claim)) = owner.zip(also.as_ref()) else { return Ok(()) };
    if owner.agrees(claim) {
        *also = None;
    } else if !owner.is_single() && !claim.is_single() {
        return Err(contradiction(owner, claim));
    }
    Ok(())
}

/// The entry for a node of a list such as `2(x3),1`: two tasks on each of the nodes 0 to 2, one on node 3.
fn tasks_of_node(list: &str, node: u32) -> Option<u32> {
    let mut first = 0u64;
    for entry in list.split(',') {
        let (tasks, nodes) = match entry.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse::<u32>().ok()?),
            None => (entry, 1),
        };
        let tasks = tasks.parse().ok()?;
        first += u64::from(nodes);
        if u64::from(node) < first {
            return Some(tasks);
        }
    }
    None
}

#[cfg(test)]
mod tests;
