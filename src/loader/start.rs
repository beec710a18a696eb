//! Starting the reading thread: what belongs to it is made there.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::bounded;

use super::panic_message;
use super::pipeline::{Links, Pipeline, Places, Setup};
use super::ring::Ring;
use super::staging::Staging;
use crate::backend::{Backend, GdsReader, GdsSettings, PoolReader, Reader, Region, UringReader};
use crate::cufile::{Driver, Route};
use crate::memory::cuda::{Copier, Pinned};
use crate::storage::{FileTable, IoPriority, apply_priority};
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
    /// For the backend `gds`.
    pub(super) gds: Option<((Driver, Route), GdsSettings)>,
    #[cfg(test)]
    pub(super) wrap: Option<crate::backend::testing::Wrap>,
}

impl Start {
    /// Starts the thread, and waits until it can serve epochs.
    pub(super) fn start(self) -> Result<JoinHandle<()>> {
        let (started, starting) = bounded(1);
        let thread = std::thread::Builder::new()
            .name("gpufeed-io".into())
            .spawn(move || match self.pipeline() {
                Ok(pipeline) => {
                    let _ = started.send(Ok(()));
                    pipeline.run();
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            })
            .map_err(|e| Error::new(ErrorKind::Io, "cannot start the reading thread").caused_by(e))?;
        match starting.recv() {
            Ok(Ok(())) => Ok(thread),
            Ok(Err(error)) => {
                // It has nothing left to do; nobody who counts threads or limits their number shall find it.
                let _ = thread.join();
                Err(error)
            }
            Err(_) => {
                let why = thread.join().err().map_or("it ended".into(), |panic| panic_message(&*panic));
                Err(Error::new(ErrorKind::Panicked, format!("the reading thread panicked: {why}")))
            }
        }
    }

    /// Makes the reader here, since the ring of io_uring belongs to the thread that makes it.
    fn pipeline(self) -> Result<Pipeline> {
        let Start { setup, links, files, ring, staging, priority, gds, .. } = self;
        // First of all: what is started from here on inherits it.
        priority.map_or(Ok(()), apply_priority)?;
        let on_host = |region: &Region| region.start.host().is_some();
        let regions: Vec<Region> = ring.regions().chain(staging.regions()).filter(on_host).collect();
        let first = ring.target().contexts().first();
        let reader: Box<dyn Reader> = match (setup.backend, gds) {
            (Backend::Gds, Some((cufile, settings))) => {
                let slots = ring.regions().zip(ring.buffers().iter().take(1).cycle());
                let chunks = staging.regions().zip(staging.buffer().into_iter().cycle());
                let regions: Vec<_> = slots.chain(chunks).collect();
                let io_bytes = setup.layout.io_bytes;
                Box::new(GdsReader::new(cufile, settings, setup.queue_depth, io_bytes, &regions)?)
            }
            (Backend::Pread | Backend::PageCache, _) => {
                Box::new(PoolReader::new(setup.queue_depth, first.cloned())?)
            }
            (Backend::Auto | Backend::Uring | Backend::Gds, _) => {
                let made = UringReader::new(setup.queue_depth, &regions, files.capacity() as u32);
                Box::new(
                    made.map_err(|it| Error::new(ErrorKind::Unavailable, it.0).by(setup.backend.name()))?,
                )
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
        Ok(Pipeline::new(setup, links, files, reader, Places { ring, staging, copier, pinned }))
    }
}
