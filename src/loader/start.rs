//! Starting the reading thread: what belongs to it is made there.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::bounded;

use super::pipeline::Pipeline;
use super::polls::{Polls, Verdict};
use super::ring::Ring;
use super::setup::{Links, Places, Setup};
use super::staging::Staging;
use super::{leave, panic_message};
use crate::backend::{Backend, GdsReader, GdsSettings, NoRing, PoolReader, Reader, Region, UringReader};
use crate::cufile::{Driver, Route};
use crate::memory::cuda::{Copier, Pinned};
use crate::storage::{FileTable, IoPriority, Pulse, apply_priority};
use crate::{Error, ErrorKind, Result};

/// All that the reading thread is given.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) setup: Setup,
    pub(super) links: Links,
    pub(super) files: FileTable,
    pub(super) ring: Arc<Ring>,
    pub(super) staging: Staging,
    /// That of the reading thread, and of those that read for it.
    pub(super) priority: Option<IoPriority>,
    /// Whether reads are polled for.
    pub(super) polls: Polls,
    /// How long a trial of that may wait for storage.
    pub(super) read_timeout: Option<Duration>,
    /// For the backend `gds`.
    pub(super) gds: Option<((Driver, Route), GdsSettings)>,
    #[cfg(test)]
    pub(super) wrap: Option<crate::backend::testing::Wrap>,
}

impl Start {
    /// Starts the thread, and waits until it can serve epochs. Returns also whether it polls.
    pub(super) fn start(self) -> Result<(JoinHandle<()>, Verdict)> {
        let (started, starting) = bounded(1);
        let (pulse, dataset) = (Arc::clone(&self.links.pulse), Arc::clone(&self.setup.dataset));
        let (backend, limit) = (self.setup.backend, self.read_timeout);
        let thread = std::thread::Builder::new()
            .name("gpufeed-io".into())
            .spawn(move || match self.pipeline() {
                Ok((pipeline, polling)) => {
                    let _ = started.send(Ok(polling));
                    pipeline.run();
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            })
            .map_err(|e| Error::new(ErrorKind::Io, "cannot start the reading thread").caused_by(e))?;
        match leave::started(&starting, (&pulse, &dataset), backend, limit)? {
            Some(Ok(polling)) => Ok((thread, polling)),
            Some(Err(error)) => {
                // It has nothing left to do; nobody who counts threads or limits their number shall find it.
                let _ = thread.join();
                Err(error)
            }
            None => {
                let why = thread.join().err().map_or("it ended".into(), |panic| panic_message(&*panic));
                Err(Error::new(ErrorKind::Panicked, format!("the reading thread panicked: {why}")))
            }
        }
    }

    /// Makes the reader here, since the ring of io_uring belongs to the thread that makes it.
    fn pipeline(self) -> Result<(Pipeline, Verdict)> {
        let Start { mut setup, links, mut files, ring, staging, priority, polls, gds, .. } = self;
        // First of all: what is started from here on inherits it.
        priority.map_or(Ok(()), apply_priority)?;
        let on_host = |region: &Region| region.start.host().is_some();
        let regions: Vec<Region> = ring.regions().chain(staging.regions()).filter(on_host).collect();
        let first = ring.target().contexts().first();
        let mut polling = Verdict::by_rule(false, format!("the backend {} does not poll", setup.backend));
        let reader: Box<dyn Reader> = match (setup.backend, gds) {
            (Backend::Gds, Some((cufile, settings))) => {
                let slots = ring.regions().zip(ring.buffers().iter().take(1).cycle());
                let chunks = staging.regions().zip(staging.buffer().into_iter().cycle());
                let regions: Vec<_> = slots.chain(chunks).collect();
                let io_bytes = setup.layout.io_bytes;
                Box::new(GdsReader::new(cufile, settings, setup.depth.all, io_bytes, &regions)?)
            }
            (Backend::Pread | Backend::PageCache, _) => {
                Box::new(PoolReader::new(setup.depth.all, first.cloned())?)
            }
            (Backend::Auto | Backend::Uring | Backend::Gds, _) => {
                let (reader, verdict) =
                    uring(&mut setup, polls, &regions, (&mut files, &links.pulse), &staging)?;
                polling = verdict;
                Box::new(reader)
            }
        };
        #[cfg(test)]
        let reader = match self.wrap {
            Some(wrap) => (wrap.0)(reader),
            None => reader,
        };
        let (mut copier, mut pinned) = (None, None);
        if let Some(first) = first {
            copier = Some(Copier::new(ring.target().contexts(), staging.chunks())?);
            // The baseline copies from plain memory, as most programs do.
            let chunk = staging.chunk_bytes();
            if let (Some((start, len)), false) = (staging.host(), setup.backend == Backend::PageCache) {
                // SAFETY: the pipeline owns the registration and the staging memory, and drops the registration
                // first; nobody else registers memory of ours.
                pinned = Some(unsafe { Pinned::register(first, start, len, chunk) }?);
            }
        }
        let places = Places { ring, staging, copier, pinned };
        Ok((Pipeline::new(setup, links, files, reader, places), polling))
    }
}

/// Makes the reader of io_uring, polled if that was asked for or has shown itself to be better.
fn uring(
    setup: &mut Setup,
    polls: Polls,
    regions: &[Region],
    (files, pulse): (&mut FileTable, &Pulse),
    staging: &Staging,
) -> Result<(UringReader, Verdict)> {
    let (depth, places) = (setup.depth.all, files.capacity() as u32);
    let refused = |it: NoRing| Error::new(ErrorKind::Unavailable, it.0).by(Backend::Uring.name());
    let unpolled = || UringReader::new(depth, regions, places).map_err(refused);
    let (polled, trial) = match polls {
        Polls::No(why) => return Ok((unpolled()?, Verdict::by_rule(false, why))),
        Polls::Yes(polled) => (polled, None),
        Polls::Try(polled, trial) => (polled, Some(trial)),
    };
    // The ring that most reads go to comes first: where that is not known yet, the one that is there in any case.
    let made = UringReader::polling(depth, regions, places, (polled.len(), trial.is_none()));
    let mut reader = match (made, &trial) {
        (Ok(reader), _) => reader,
        (Err(it), Some(_)) => return Ok((unpolled()?, Verdict::by_rule(false, it.0))),
        (Err(it), None) => return Err(refused(it)),
    };
    let verdict = match trial {
        None => Verdict::by_rule(true, "it was asked for"),
        Some(trial) => {
            // The regions of chunks come last.
            let first = regions.len() as u32 - staging.chunks();
            let sizes = setup.dataset.files().iter().map(|file| file.identity().size);
            trial.run(&mut reader, (files, pulse), (staging, first), (&setup.drives, &polled), sizes)?
        }
    };
    match verdict.polls {
        true => setup.polled = polled,
        false => reader.stop_polling(),
    }
    Ok((reader, verdict))
}
