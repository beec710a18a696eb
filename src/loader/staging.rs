//! Chunks of memory that reads pass through when they cannot land in a slot.

use std::sync::Arc;

use crate::Result;
use crate::backend::{Address, Region};
use crate::memory::HostMapping;
use crate::memory::cuda::{Context, CudaBuffer};

/// A fixed number of chunks of one size.
#[derive(Debug)]
pub(crate) struct Staging {
    memory: Memory,
    chunks: u32,
    chunk_bytes: usize,
    free: Vec<u32>,
}

#[derive(Debug)]
enum Memory {
    Host(HostMapping),
    /// For reads that come by cuFile.
    Cuda(Arc<CudaBuffer>),
}

impl Staging {
    /// Allocates the chunks, at least one: on the GPU of `context`, if there is one, else in host memory. `wipe` as for
    /// the ring.
    pub(crate) fn new(
        chunks: u32,
        chunk_bytes: usize,
        context: Option<&Arc<Context>>,
        wipe: bool,
    ) -> Result<Staging> {
        let bytes = (chunks as usize).saturating_mul(chunk_bytes);
        let memory = match context {
            None => Memory::Host(HostMapping::new(bytes)?),
            Some(context) => Memory::Cuda(Arc::new(CudaBuffer::new(context, bytes)?.wiped(wipe))),
        };
        Ok(Staging { memory, chunks, chunk_bytes, free: (0..chunks).rev().collect() })
    }

    /// The memory of all chunks, if it is on the host.
    pub(crate) fn host(&self) -> Option<(*mut u8, usize)> {
        match &self.memory {
            Memory::Host(memory) => Some((memory.as_ptr(), memory.len())),
            Memory::Cuda(_) => None,
        }
    }

    /// The memory of all chunks, if it is on a GPU.
    pub(crate) fn buffer(&self) -> Option<&Arc<CudaBuffer>> {
        match &self.memory {
            Memory::Host(_) => None,
            Memory::Cuda(buffer) => Some(buffer),
        }
    }

    /// The chunks as regions that reads land in, in the order of their numbers.
    pub(crate) fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        (0..self.chunks).map(|chunk| Region { start: self.start(chunk), len: self.chunk_bytes })
    }

    /// The size of a chunk in bytes.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// How many chunks there are.
    pub(crate) fn chunks(&self) -> u32 {
        self.chunks
    }

    /// The size of all chunks in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.chunks) * self.chunk_bytes as u64
    }

    pub(crate) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(crate) fn give_back(&mut self, chunk: u32) {
        self.free.push(chunk);
    }

    pub(crate) fn start(&self, chunk: u32) -> Address {
        let start = match &self.memory {
            Memory::Host(memory) => Address::Host(memory.as_ptr()),
            Memory::Cuda(buffer) => Address::Device(buffer.start()),
        };
        start.plus(chunk as usize * self.chunk_bytes)
    }
}
