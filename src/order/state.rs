//! Where a run stands: a few numbers from which it goes on, in another process and at another size.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Shuffle;
use crate::storage::write_whole;
use crate::{Error, ErrorKind, Result};

/// The version of `State` that is written, and the only one that is read.
const VERSION: u32 = 1;

/// An epoch and a position in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Stand {
    pub(crate) epoch: u64,
    pub(crate) position: u64,
}

/// Where a run stands: what comes next is the sample at `position` of `epoch`.
///
/// It counts what was *delivered*, not what was read ahead, over all ranks: the ranks of a run that are at the same
/// batch have the same state, and any of them may save it. It says nothing of world size, batch size, threads or
/// depth, all of which may be others when a loader goes on from it.
///
/// It is a value for `serde`; [`write`](State::write) and [`read`](State::read) keep it in a file of its own, as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The version of this format: 1.
    version: u32,
    /// The dataset's fingerprint.
    dataset: String,
    shuffle: Shuffle,
    seed: u64,
    epoch: u64,
    position: u64,
}

impl State {
    pub(crate) fn new(dataset: &str, shuffle: Shuffle, seed: u64, stand: Stand) -> Self {
        let Stand { epoch, position } = stand;
        State { version: VERSION, dataset: dataset.into(), shuffle, seed, epoch, position }
    }

    /// The epoch that is under way, or that comes next.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many samples of that epoch were delivered, over all ranks. 0 between epochs.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The shuffle of the run.
    pub fn shuffle(&self) -> Shuffle {
        self.shuffle
    }

    /// The fingerprint of the run's dataset.
    pub fn fingerprint(&self) -> &str {
        &self.dataset
    }

    /// Where to go on, for a run over `samples` samples of the dataset with this fingerprint.
    pub(crate) fn stand_in(&self, dataset: &str, shuffle: Shuffle, seed: u64, samples: u64) -> Result<Stand> {
        let mut differs = Vec::new();
        if self.version != VERSION {
            return Err(other_version(self.version.into()));
        }
        if self.dataset != dataset {
            differs.push(format!("its dataset has the fingerprint {}, this one {dataset}", self.dataset));
        }
        if self.seed != seed {
            differs.push(format!("its seed is {}, this run's {seed}", self.seed));
        }
        if self.shuffle != shuffle {
            differs.push(format!("its shuffle is {}, this run's {shuffle}", self.shuffle));
        }
        if !differs.is_empty() {
            let what = format!(
                "the state is of another run, and samples would be lost or repeated: {}",
                differs.join("; ")
            );
            return Err(Error::argument(what));
        }
        if self.position > samples {
            return Err(Error::argument(format!(
                "the state's position {} is beyond the {samples} samples of an epoch",
                self.position
            )));
        }
        let Stand { epoch, position } = Stand { epoch: self.epoch, position: self.position };
        // An epoch that is over is the beginning of the next.
        Ok(if position == samples && samples > 0 {
            Stand { epoch: epoch.saturating_add(1), position: 0 }
        } else {
            Stand { epoch, position }
        })
    }

    /// Writes the state to a file, whole or not at all: a crash in the middle leaves the file that was there.
    ///
    /// # Errors
    /// `Io` if that fails, with the path.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|e| Error::new(ErrorKind::Io, "the state cannot be made JSON").at(path).caused_by(e))?;
        text.push('\n');
        write_whole(path, text.as_bytes()).map_err(|error| Error::io(path, "cannot write the state", error))
    }

    /// Reads a state that [`write`](State::write) wrote.
    ///
    /// # Errors
    /// `NotFound` or `Io` if the file cannot be read, `InvalidData` if it is no state, `Unsupported` if a later version of
    /// this crate wrote it.
    pub fn read(path: impl AsRef<Path>) -> Result<State> {
        // A state is some hundred bytes; a file that is none may be anything, a device even.
        const LONGEST: u64 = 64 << 10;
        let path = path.as_ref();
        let (file, _) = crate::storage::Opener::default().open_regular(path, 0)?;
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut std::io::Read::take(file, LONGEST), &mut text)
            .map_err(|e| Error::io(path, "cannot read the state", e))?;
        let no_state = |e: serde_json::Error| Error::data(path, format!("it is no saved state: {e}"));
        let value: serde_json::Value = serde_json::from_slice(&text).map_err(no_state)?;
        // A later version may have other keys, and then its number tells more than the key that is missing.
        let version = value.get("version").and_then(serde_json::Value::as_u64);
        if let Some(version) = version.filter(|version| *version != u64::from(VERSION)) {
            return Err(other_version(version).at(path));
        }
        serde_json::from_value(value).map_err(no_state)
    }
}

fn other_version(version: u64) -> Error {
    let what = format!("the state has the format version {version}, this is a reader of version {VERSION}");
    Error::new(ErrorKind::Unsupported, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        State::new(
            "0123",
            Shuffle::Blocks { block: 4, window: 64 },
            u64::MAX,
            Stand { epoch: 3, position: 1 << 60 },
        )
    }

    #[test]
    fn a_state_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        state().write(&path).unwrap();
        assert_eq!(State::read(&path).unwrap(), state());
        let other = State::new("0123", Shuffle::None, 0, Stand::default());
        other.write(&path).unwrap();
        assert_eq!(State::read(&path).unwrap(), other);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left behind");
        let text = std::fs::read_to_string(&path).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        for key in ["version", "dataset", "shuffle", "seed", "epoch", "position"] {
            assert!(value.get(key).is_some(), "{key}: {text}");
        }
    }

    #[test]
    fn a_file_that_is_no_state_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text, kind) in [
            ("empty", Some(""), ErrorKind::InvalidData),
            ("half", Some("{\"version\": 1, \"data"), ErrorKind::InvalidData),
            ("list", Some("[1]"), ErrorKind::InvalidData),
            ("lacks", Some("{\"version\": 1}"), ErrorKind::InvalidData),
            ("later", Some("{\"version\": 2, \"shards\": []}"), ErrorKind::Unsupported),
            ("missing", None, ErrorKind::NotFound),
        ] {
            let path = folder.path().join(name);
            if let Some(text) = text {
                std::fs::write(&path, text).unwrap();
            }
            let error = State::read(&path).unwrap_err();
            assert_eq!((error.kind(), error.path()), (kind, Some(path.as_path())), "{error}");
        }
        let error = state().write(folder.path().join("no/such/folder")).unwrap_err();
        assert!(error.to_string().contains("no/such/folder"), "{error}");
    }

    #[test]
    fn a_state_of_another_run_says_what_differs() {
        let blocks = Shuffle::Blocks { block: 4, window: 64 };
        let samples = 1 << 61;
        let stand = state().stand_in("0123", blocks, u64::MAX, samples).unwrap();
        assert_eq!(stand, Stand { epoch: 3, position: 1 << 60 });
        for (dataset, shuffle, seed, parts) in [
            ("4567", blocks, u64::MAX, &["fingerprint 0123, this one 4567"][..]),
            ("0123", blocks, 7, &["seed is 18446744073709551615, this run's 7"]),
            ("0123", Shuffle::Full, u64::MAX, &["shuffle is blocks:4:64, this run's full"]),
            ("4567", Shuffle::None, 1, &["fingerprint", "seed", "shuffle"]),
        ] {
            let error = state().stand_in(dataset, shuffle, seed, samples).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            assert!(parts.iter().all(|part| error.to_string().contains(part)), "{error}");
        }
        let error = state().stand_in("0123", blocks, u64::MAX, 5).unwrap_err().to_string();
        assert!(error.contains("beyond the 5 samples"), "{error}");
        let newer = State { version: 2, ..state() };
        assert_eq!(
            newer.stand_in("0123", blocks, u64::MAX, samples).unwrap_err().kind(),
            ErrorKind::Unsupported
        );
    }

    #[test]
    fn the_end_of_an_epoch_is_the_beginning_of_the_next() {
        let at = |position| {
            let state = State::new("a", Shuffle::None, 1, Stand { epoch: 4, position });
            state.stand_in("a", Shuffle::None, 1, 100).unwrap()
        };
        assert_eq!(at(100), Stand { epoch: 5, position: 0 });
        assert_eq!(at(99), Stand { epoch: 4, position: 99 });
        assert_eq!(at(0), Stand { epoch: 4, position: 0 });
    }
}
