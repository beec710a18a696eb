//! An NFS 3 server that does what servers may do and Linux's own does not: it answers with fewer bytes than it was asked for,
//! forgets handles of files that are still there, says that a file ends where it does not, or cannot read a part of one.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nfs3_server::nfs3_types::nfs3::{fattr3, filename3, ftype3, nfspath3, nfsstat3, nfstime3, specdata3};
use nfs3_server::tcp::{NFSTcp, NFSTcpListener};
use nfs3_server::vfs::{DirEntryPlus, FileHandleU64, NextResult, NfsReadFileSystem, ReadDirPlusIterator};
use tokio::sync::oneshot;

use crate::data::Data;
use crate::guest::Mounted;

/// What it does to reads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Odd {
    /// Nothing.
    #[default]
    Not,
    /// Answers with a third of the bytes, which ends at no boundary of anything, if it is asked for more than a page.
    Short,
    /// After so many reads, does not know the file any more so many times, though its name leads to it again.
    Stale { after: u64, times: u64 },
    /// Is not ready yet, so many times. The client asks again, after 5 seconds.
    Later(u64),
    /// Says that every file ends at this offset, though its size is greater.
    EndsAt(u64),
    /// Cannot read what holds this offset.
    BadAt(u64),
}

#[derive(Debug, Default)]
struct Oddities {
    is: Mutex<Odd>,
    /// Answers that were odd.
    given: AtomicU64,
}

/// The files of one folder, in the order of their names. The handle of the folder is 1, that of the first file 2.
#[derive(Debug)]
struct Folder {
    files: Vec<PathBuf>,
    path: PathBuf,
    odd: Arc<Oddities>,
}

const ROOT: u64 = 1;

impl Folder {
    fn path_of(&self, handle: FileHandleU64) -> Result<&PathBuf, nfsstat3> {
        match handle.as_u64() {
            ROOT => Ok(&self.path),
            file => self.files.get(file as usize - 2).ok_or(nfsstat3::NFS3ERR_STALE),
        }
    }

    fn attributes(&self, handle: FileHandleU64) -> Result<fattr3, nfsstat3> {
        let found = fs::metadata(self.path_of(handle)?).map_err(|_| nfsstat3::NFS3ERR_STALE)?;
        let time =
            |seconds: i64, nseconds: i64| nfstime3 { seconds: seconds as u32, nseconds: nseconds as u32 };
        Ok(fattr3 {
            type_: if found.is_dir() { ftype3::NF3DIR } else { ftype3::NF3REG },
            mode: found.mode() & 0o777,
            nlink: found.nlink() as u32,
            uid: found.uid(),
            gid: found.gid(),
            size: found.len(),
            used: found.blocks() * 512,
            rdev: specdata3 { specdata1: 0, specdata2: 0 },
            fsid: 1,
            fileid: handle.as_u64(),
            atime: time(found.atime(), found.atime_nsec()),
            mtime: time(found.mtime(), found.mtime_nsec()),
            ctime: time(found.ctime(), found.ctime_nsec()),
        })
    }

    /// What a read is made of: how many bytes to give at most, and where to say that the file ends.
    fn oddly(&self, offset: u64, count: u64) -> Result<(u64, u64), nfsstat3> {
        let mut is = self.odd.is.lock().unwrap();
        let (is_odd, answer) = match &mut *is {
            Odd::Short if count > 4096 => (true, Ok((count / 3, u64::MAX))),
            Odd::Stale { after: after @ 1.., .. } => {
                *after -= 1;
                (false, Ok((count, u64::MAX)))
            }
            Odd::Stale { times: times @ 1.., .. } => {
                *times -= 1;
                (true, Err(nfsstat3::NFS3ERR_STALE))
            }
            Odd::Later(times @ 1..) => {
                *times -= 1;
                (true, Err(nfsstat3::NFS3ERR_JUKEBOX))
            }
            Odd::EndsAt(end) => (offset + count > *end, Ok((count, *end))),
            Odd::BadAt(bad) if (offset..offset + count).contains(bad) => (true, Err(nfsstat3::NFS3ERR_IO)),
            Odd::Not | Odd::Short | Odd::Stale { .. } | Odd::Later(0) | Odd::BadAt(_) => {
                (false, Ok((count, u64::MAX)))
            }
        };
        self.odd.given.fetch_add(u64::from(is_odd), Ordering::Relaxed);
        answer
    }
}

impl NfsReadFileSystem for Folder {
    type Handle = FileHandleU64;

    fn root_dir(&self) -> FileHandleU64 {
        FileHandleU64::new(ROOT)
    }

    async fn lookup(&self, folder: &FileHandleU64, name: &filename3<'_>) -> Result<FileHandleU64, nfsstat3> {
        if *folder != ROOT {
            return Err(nfsstat3::NFS3ERR_NOTDIR);
        }
        let is_named =
            |file: &PathBuf| file.file_name().is_some_and(|it| it.as_encoded_bytes() == name.as_ref());
        let found = self.files.iter().position(is_named).ok_or(nfsstat3::NFS3ERR_NOENT)?;
        Ok(FileHandleU64::new(found as u64 + 2))
    }

    async fn getattr(&self, handle: &FileHandleU64) -> Result<fattr3, nfsstat3> {
        self.attributes(*handle)
    }

    async fn read(
        &self,
        handle: &FileHandleU64,
        offset: u64,
        count: u32,
    ) -> Result<(Vec<u8>, bool), nfsstat3> {
        let (most, end) = self.oddly(offset, u64::from(count))?;
        let file = fs::File::open(self.path_of(*handle)?).map_err(|_| nfsstat3::NFS3ERR_STALE)?;
        let end = end.min(file.metadata().map_err(|_| nfsstat3::NFS3ERR_IO)?.len());
        let mut bytes = vec![0; most.min(end.saturating_sub(offset)) as usize];
        file.read_exact_at(&mut bytes, offset).map_err(|_| nfsstat3::NFS3ERR_IO)?;
        let is_end = offset + bytes.len() as u64 >= end;
        Ok((bytes, is_end))
    }

    async fn readdirplus(
        &self,
        _folder: &FileHandleU64,
        cookie: u64,
    ) -> Result<impl ReadDirPlusIterator<FileHandleU64>, nfsstat3> {
        let after = |&(handle, _): &(u64, _)| handle > cookie;
        let entry = |(handle, file): (u64, &PathBuf)| DirEntryPlus {
            fileid: handle,
            name: file.file_name().unwrap_or_default().as_encoded_bytes().to_vec().into(),
            cookie: handle,
            name_attributes: self.attributes(FileHandleU64::new(handle)).ok(),
            name_handle: Some(FileHandleU64::new(handle)),
        };
        let entries: Vec<_> = (2..).zip(&self.files).filter(after).map(entry).collect();
        Ok(Entries(entries.into_iter()))
    }

    async fn readlink(&self, _handle: &FileHandleU64) -> Result<nfspath3<'_>, nfsstat3> {
        Err(nfsstat3::NFS3ERR_INVAL)
    }
}

struct Entries(std::vec::IntoIter<DirEntryPlus<FileHandleU64>>);

impl ReadDirPlusIterator<FileHandleU64> for Entries {
    async fn next(&mut self) -> NextResult<DirEntryPlus<FileHandleU64>> {
        self.0.next().map_or(NextResult::Eof, NextResult::Ok)
    }
}

/// The server, and a mount of what it has, until it is dropped.
#[derive(Debug)]
pub(crate) struct OddServer {
    // In the order in which they end.
    _mounted: Mounted,
    _stop: Stop,
    _behind: Mounted,
    odd: Arc<Oddities>,
}

#[derive(Debug)]
struct Stop {
    tell: Option<oneshot::Sender<()>>,
    server: Option<JoinHandle<()>>,
}

impl Drop for Stop {
    fn drop(&mut self) {
        drop(self.tell.take());
        let ended = self.server.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().expect("the server does not panic");
        }
    }
}

impl OddServer {
    /// Serves data, and mounts it without a memory for attributes. Returns the data as it is seen there too.
    #[track_caller]
    pub(crate) fn start() -> (OddServer, Data) {
        let behind = Mounted::at("behind", "-t tmpfs tmpfs");
        let folder = behind.point().to_path_buf();
        let data = Data::in_folder(&folder);
        let mut files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().path()).collect();
        files.sort();
        let odd = Arc::new(Oddities::default());
        let folder = Folder { files, path: folder, odd: Arc::clone(&odd) };
        let (tell, told) = oneshot::channel::<()>();
        let (port_in, port) = channel();
        let server = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = NFSTcpListener::bind_ro("127.0.0.1:0", folder).await.unwrap();
                port_in.send(listener.get_listen_port()).unwrap();
                tokio::select! {
                    ended = listener.handle_forever() => ended.unwrap(),
                    _ = told => (),
                }
            });
        });
        let port = port.recv().expect("the server starts");
        let stop = Stop { tell: Some(tell), server: Some(server) };
        let ports = format!("port={port},mountport={port},mountproto=tcp,mountvers=3");
        let mounted =
            Mounted::at("odd", &format!("-t nfs -o vers=3,proto=tcp,nolock,noac,{ports} 127.0.0.1:/"));
        let data = data.at(mounted.point());
        (OddServer { _mounted: mounted, _stop: stop, _behind: behind, odd }, data)
    }

    /// Is like this from here on.
    pub(crate) fn becomes(&self, odd: Odd) {
        *self.odd.is.lock().unwrap() = odd;
        self.odd.given.store(0, Ordering::Relaxed);
    }

    /// How many answers were odd since then.
    pub(crate) fn oddities(&self) -> u64 {
        self.odd.given.load(Ordering::Relaxed)
    }
}
