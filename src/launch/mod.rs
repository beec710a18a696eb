//! Which rank this process is, as launchers tell it, and the check that the ranks of a run feed from the same data in
//! the same order.

mod agreement;
mod detect;
mod host;

pub use agreement::Agreement;
pub(crate) use host::{Entered, Registration};

use std::fmt;

use crate::{Device, Error, Result};

/// What started the ranks of a run and told each which one it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// PyTorch's `torchrun` (torchelastic), or a script that sets `RANK` and `WORLD_SIZE` as `torchrun` does.
    Torchrun,
    /// `srun` of Slurm.
    Slurm,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpiexec` of MPICH or Intel MPI, and whatever else sets `PMI_RANK` and `PMI_SIZE`.
    Hydra,
    /// A launcher that speaks PMIx and sets nothing else. It does not tell the world size.
    Pmix,
}

impl Launcher {
    /// The name in reports and messages.
    pub fn name(self) -> &'static str {
        match self {
            Launcher::Torchrun => "torchrun",
            Launcher::Slurm => "slurm",
            Launcher::OpenMpi => "openmpi",
            Launcher::Hydra => "hydra",
            Launcher::Pmix => "pmix",
        }
    }

    /// The variable that holds the rank.
    fn rank_variable(self) -> &'static str {
        match self {
            Launcher::Torchrun => "RANK",
            Launcher::Slurm => "SLURM_PROCID",
            Launcher::OpenMpi => "OMPI_COMM_WORLD_RANK",
            Launcher::Hydra => "PMI_RANK",
            Launcher::Pmix => "PMIX_RANK",
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Which process of a run this is: `rank` of `world_size`, counted from 0.
///
/// ```
/// use gpufeed::Rank;
///
/// # fn main() -> gpufeed::Result<()> {
/// // What the launcher says; without a launcher this process is alone.
/// let rank = Rank::detect()?.unwrap_or(Rank::single());
/// # let _ = rank;
/// // Or by hand.
/// let rank = Rank::new(2, 4)?;
/// assert_eq!((rank.rank(), rank.world_size()), (2, 4));
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rank {
    rank: u32,
    /// Above `rank`.
    world_size: u32,
    local_rank: Option<u32>,
    local_world_size: Option<u32>,
    launcher: Option<Launcher>,
    job: Option<String>,
}

impl Rank {
    /// The only process of a run: rank 0 of 1.
    pub fn single() -> Rank {
        Rank { rank: 0, world_size: 1, local_rank: None, local_world_size: None, launcher: None, job: None }
    }

    /// Process `rank` of `world_size`, by hand.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if `world_size` is 0 or `rank` is not below it.
    pub fn new(rank: u32, world_size: u32) -> Result<Rank> {
        if world_size == 0 {
            return Err(Error::argument("the world size is 0; it counts this process, so it is at least 1"));
        }
        if rank >= world_size {
            return Err(Error::argument(format!(
                "there is no rank {rank} of {world_size}: ranks count from 0, so the last is {}",
                world_size - 1
            )));
        }
        Ok(Rank { rank, world_size, ..Rank::single() })
    }

    /// Says also which process of its host this is: `local_rank` of `local_world_size`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if `local_world_size` is 0 or more than the world size,
    /// or if `local_rank` is not below it.
    pub fn with_local(self, local_rank: u32, local_world_size: u32) -> Result<Rank> {
        if local_rank >= local_world_size || local_world_size > self.world_size {
            return Err(Error::argument(format!(
                "there is no local rank {local_rank} of {local_world_size} on the host of {self}"
            )));
        }
        Ok(Rank { local_rank: Some(local_rank), local_world_size: Some(local_world_size), ..self })
    }

    /// Names the job. It is by this name that the ranks of one host find each other, so it is the same on all of
    /// them and no other run on the host has it at the same time. Launchers name their jobs themselves.
    pub fn with_job(self, job: impl Into<String>) -> Rank {
        Rank { job: Some(job.into()), ..self }
    }

    /// The rank that the launcher of this process gave it, from the environment; `None` if no launcher is seen.
    ///
    /// These are read, and the first that is there counts:
    ///
    /// | launcher | variables |
    /// | --- | --- |
    /// | torchrun | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`, with `TORCHELASTIC_RUN_ID` |
    /// | Open MPI | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE` |
    /// | MPICH, Intel MPI | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` |
    /// | PMIx | `PMIX_RANK`; the world size must come from elsewhere |
    /// | Slurm's `srun` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID`, `SLURM_STEP_TASKS_PER_NODE` |
    /// | a script | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE` |
    ///
    /// All of those that are there must say the same, with two exceptions. A launcher that says world size 1
    /// contradicts nothing. And a launcher that was itself started by another one wins over it: `torchrun` started
    /// once per host by `srun` or `mpirun`; `mpirun` in a Slurm allocation, whose daemons `srun` starts once per host.
    /// A batch script or an `salloc` shell of Slurm is one process, whatever `SLURM_NTASKS` says, and so no rank.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument), naming the variables and their values, if two
    /// launchers contradict each other, a value is not a number, a rank comes without its world size, or is not
    /// below it.
    pub fn detect() -> Result<Option<Rank>> {
        Rank::detect_with_world_size(None)
    }

    /// As [`detect`](Rank::detect), with a world size that is known otherwise: for launchers that tell the rank
    /// alone. `None` also if a launcher says that its world size is 1 where more was named: then it is none that
    /// knows the rank.
    ///
    /// # Errors
    /// As `detect`; also if the launcher says another world size, or `world_size` is 0.
    pub fn detect_with_world_size(world_size: Option<u32>) -> Result<Option<Rank>> {
        detect::detect(&|name| std::env::var_os(name), world_size)
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of processes of the run.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// The number, from 0, of this process among those of its host, if it is known.
    pub fn local_rank(&self) -> Option<u32> {
        self.local_rank
    }

    /// The number of processes of the run on this host, if it is known.
    pub fn local_world_size(&self) -> Option<u32> {
        self.local_world_size
    }

    /// The launcher that said so; `None` for a rank by hand.
    pub fn launcher(&self) -> Option<Launcher> {
        self.launcher
    }

    /// The name of the job, if it has one.
    pub fn job(&self) -> Option<&str> {
        self.job.as_deref()
    }

    /// The GPU whose number is the local rank. Only for those who ask: where the launcher shows each rank its own GPU
    /// alone (by `CUDA_VISIBLE_DEVICES`), the right device of every rank is `cuda:0`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) if the local rank is not known. The global rank is no
    /// substitute: on every host but the first there is no such GPU.
    pub fn device(&self) -> Result<Device> {
        self.local_rank.map(Device::Cuda).ok_or_else(|| {
            Error::argument(format!(
                "the local rank of {self} is not known, so neither is its GPU; name a device, or the local rank"
            ))
        })
    }

    /// Checks a rank that was given by hand against the one that the launcher says. A launcher that says world size 1
    /// contradicts nothing, and what either does not know is not compared.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument), naming both.
    pub fn check_against(&self, detected: &Rank) -> Result<()> {
        if detected.world_size == 1 {
            return Ok(());
        }
        let differ = |a: Option<u32>, b: Option<u32>| a.zip(b).is_some_and(|(a, b)| a != b);
        if (self.rank, self.world_size) == (detected.rank, detected.world_size)
            && !differ(self.local_rank, detected.local_rank)
            && !differ(self.local_world_size, detected.local_world_size)
        {
            return Ok(());
        }
        let source = match detected.launcher {
            Some(launcher) => format!("{launcher} ({})", launcher.rank_variable()),
            None => "the launcher".into(),
        };
        Err(Error::argument(format!(
            "{} was given, but {source} says that this process is {}",
            self.in_full(),
            detected.in_full()
        )))
    }

    /// A rank that was given by hand, with what it leaves open (local rank, job) as the launcher says.
    ///
    /// # Errors
    /// As [`check_against`](Rank::check_against).
    pub fn filled_from(self, detected: &Rank) -> Result<Rank> {
        self.check_against(detected)?;
        // A launcher of one process knows nothing of the run that was named by hand.
        if (self.rank, self.world_size) != (detected.rank, detected.world_size) {
            return Ok(self);
        }
        Ok(Rank {
            local_rank: self.local_rank.or(detected.local_rank),
            local_world_size: self.local_world_size.or(detected.local_world_size),
            launcher: self.launcher.or(detected.launcher),
            job: self.job.or_else(|| detected.job.clone()),
            ..self
        })
    }

    fn in_full(&self) -> String {
        match (self.local_rank, self.local_world_size) {
            (Some(rank), Some(size)) => format!("{self} (local rank {rank} of {size})"),
            (Some(rank), None) => format!("{self} (local rank {rank})"),
            (None, _) => self.to_string(),
        }
    }
}

impl fmt::Display for Rank {
    /// `rank 2 of 4`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.world_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_rank_is_below_its_world_size() {
        assert_eq!(Rank::new(0, 1).unwrap(), Rank::single());
        assert_eq!(Rank::new(3, 4).unwrap().to_string(), "rank 3 of 4");
        for (rank, size) in [(0, 0), (1, 1), (4, 4), (u32::MAX, u32::MAX)] {
            assert_eq!(Rank::new(rank, size).unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
        let error = Rank::new(4, 4).unwrap_err().to_string();
        assert_eq!(error, "there is no rank 4 of 4: ranks count from 0, so the last is 3");
    }

    #[test]
    fn a_local_rank_is_below_the_number_of_ranks_of_the_host() {
        let rank = Rank::new(5, 8).unwrap();
        let local = rank.clone().with_local(1, 4).unwrap();
        assert_eq!((local.local_rank(), local.local_world_size()), (Some(1), Some(4)));
        for (local, size) in [(0, 0), (4, 4), (0, 9)] {
            let error = rank.clone().with_local(local, size).unwrap_err();
            assert!(error.to_string().contains(&format!("local rank {local} of {size}")), "{error}");
        }
    }

    #[test]
    fn the_device_is_that_of_the_local_rank_and_never_of_the_global_one() {
        let rank = Rank::new(5, 8).unwrap();
        assert_eq!(rank.clone().with_local(1, 4).unwrap().device().unwrap(), Device::Cuda(1));
        assert!(rank.device().unwrap_err().to_string().contains("local rank of rank 5 of 8 is not known"));
        assert!(Rank::single().device().is_err());
    }

    #[test]
    fn a_rank_by_hand_must_be_what_the_launcher_says() {
        let launched = Rank { launcher: Some(Launcher::OpenMpi), ..Rank::new(2, 4).unwrap() }
            .with_local(0, 2)
            .unwrap()
            .with_job("j");
        let by_hand = Rank::new(2, 4).unwrap();
        by_hand.check_against(&launched).unwrap();
        assert_eq!(by_hand.filled_from(&launched).unwrap(), launched);

        let error = Rank::new(1, 4).unwrap().filled_from(&launched).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            error.to_string(),
            "rank 1 of 4 was given, but openmpi (OMPI_COMM_WORLD_RANK) says that this process is rank 2 of 4 \
             (local rank 0 of 2)"
        );
        for other in [Rank::new(2, 8).unwrap(), Rank::new(2, 4).unwrap().with_local(1, 2).unwrap()] {
            assert!(other.check_against(&launched).is_err());
        }
    }

    #[test]
    fn a_launcher_of_one_process_contradicts_no_rank_by_hand() {
        let alone = Rank { launcher: Some(Launcher::Slurm), ..Rank::single() }.with_job("slurm 1.0");
        let by_hand = Rank::new(3, 4).unwrap();
        by_hand.check_against(&alone).unwrap();
        // Neither does it name the job of a run that it did not start.
        assert_eq!(by_hand.clone().filled_from(&alone).unwrap(), by_hand);
        assert!(Rank::single().check_against(&by_hand).is_err());
    }
}
