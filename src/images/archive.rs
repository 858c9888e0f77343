//! Access to the parts of an archive: a directory, or a tar file that is indexed once and then read at offsets.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::compress::{self, Packing};
use super::error::{ImageError, io};
use super::space::Space;
use super::tar_reader::{Kind, TarReader, broken, is_header};
use crate::sys::openat::{Found, read_regular_in_root};

/// Longest manifest, index or config.
pub(crate) const MAX_JSON_BYTES: u64 = 4 << 20;

/// The maximum number of members of an archive (not of its layers).
const MAX_MEMBERS: usize = 20_000;

/// The longest chain of links from a member to its data.
const MAX_LINKS: usize = 8;

/// Receives the number of unpacked bytes; fails once the client is gone.
pub(crate) type Tick<'a> = dyn FnMut(u64) -> Result<(), ImageError> + 'a;

/// An archive ready to be read.
#[derive(Debug)]
pub(crate) enum Archive {
    /// An OCI layout directory.
    Directory { path: PathBuf, fd: OwnedFd },
    /// A tar file and the index of its members.
    Tar {
        path: PathBuf,
        file: File,
        members: HashMap<String, Slot>,
    },
}

#[derive(Debug)]
pub(crate) enum Slot {
    Data { offset: u64, size: u64 },
    Link(String),
}

impl Archive {
    /// Opens a directory, or a tar file. A compressed tar file is first unpacked to an unnamed file in `staging`.
    pub(crate) fn open(
        path: &Path,
        staging: &Path,
        space: &mut Space,
        tick: &mut Tick<'_>,
    ) -> Result<Self, ImageError> {
        // Opening a pipe would wait for its writer.
        let file = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path)
            .map_err(io("open", path))?;
        let kind = file.metadata().map_err(io("read", path))?;
        if kind.is_dir() {
            return Ok(Self::Directory {
                path: path.to_owned(),
                fd: file.into(),
            });
        }
        if !kind.is_file() {
            return Err(ImageError::NotAnImage {
                path: path.to_owned(),
                why: "it is neither a file nor a directory".to_owned(),
            });
        }
        let mut start = [0; 512];
        let got = file.read_at(&mut start, 0).map_err(io("read", path))?;
        let file = match Packing::detect(&start[..got]) {
            Packing::Plain => file,
            Packing::Gzip | Packing::Zstd => unpack_whole(&file, path, staging, space, tick)?,
        };
        Self::of_tar(file, path)
    }

    /// Opens an OCI layout directory.
    pub(crate) fn of_directory(path: &Path) -> Result<Self, ImageError> {
        let dir = File::open(path).map_err(io("open", path))?;
        Ok(Self::Directory {
            path: path.to_owned(),
            fd: dir.into(),
        })
    }

    /// Opens an OCI layout: a directory, or a tar that is not compressed.
    pub(crate) fn of_layout(path: &Path) -> Result<Self, ImageError> {
        match path.is_dir() {
            true => Self::of_directory(path),
            false => Self::of_tar(File::open(path).map_err(io("open", path))?, path),
        }
    }

    /// Reads a tar, compressed or not, from a stream that cannot be read twice: to an unnamed file in `staging`
    /// first.
    pub(crate) fn receive(
        stream: impl Read,
        staging: &Path,
        space: &mut Space,
        tick: &mut Tick<'_>,
    ) -> Result<Self, ImageError> {
        let path = Path::new("standard input");
        let file = unpack_whole(stream, path, staging, space, tick)?;
        Self::of_tar(file, path)
    }

    fn of_tar(file: File, path: &Path) -> Result<Self, ImageError> {
        let mut start = [0; 512];
        let got = file.read_at(&mut start, 0).map_err(io("read", path))?;
        if got < 512 || !is_header(&start) {
            return Err(ImageError::NotAnImage {
                path: path.to_owned(),
                why: if got == 0 {
                    "it is empty".to_owned()
                } else {
                    "it does not start with a tar header".to_owned()
                },
            });
        }
        let members = index(&file, path)?;
        Ok(Self::Tar {
            path: path.to_owned(),
            file,
            members,
        })
    }

    /// The file or directory.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Directory { path, .. } | Self::Tar { path, .. } => path,
        }
    }

    /// Whether a part with this name exists.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.part(name).is_ok()
    }

    /// A part, and its length.
    pub(crate) fn part(&self, name: &str) -> Result<Section, ImageError> {
        let missing = || ImageError::Missing {
            what: format!("`{name}`"),
        };
        match self {
            Self::Directory { path, fd } => {
                let file = match read_regular_in_root(fd, Path::new(name)) {
                    Ok(Found::Regular(file)) => file,
                    Ok(Found::Whiteout | Found::Other) => return Err(missing()),
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(missing()),
                    Err(e) => return Err(io("open", &path.join(name))(e)),
                };
                let meta = file.metadata().map_err(io("read", &path.join(name)))?;
                let size = meta.len();
                Ok(Section::new(file, 0, size))
            }
            Self::Tar {
                path,
                file,
                members,
            } => {
                let mut at = clean(name);
                for _ in 0..MAX_LINKS {
                    match members.get(&at).ok_or_else(missing)? {
                        Slot::Data { offset, size } => {
                            let file = file.try_clone().map_err(io("open", path))?;
                            return Ok(Section::new(file, *offset, *size));
                        }
                        Slot::Link(target) => at.clone_from(target),
                    }
                }
                Err(missing())
            }
        }
    }

    /// A small part as a whole.
    pub(crate) fn json(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let section = self.part(name)?;
        if section.len() > MAX_JSON_BYTES {
            return Err(ImageError::Limit {
                what: format!("`{name}`"),
                limit: MAX_JSON_BYTES,
                unit: "bytes",
            });
        }
        let mut bytes = Vec::new();
        let size = section.len();
        section
            .take(MAX_JSON_BYTES)
            .read_to_end(&mut bytes)
            .map_err(|e| broken(&format!("`{name}`"), &e, "its data"))?;
        if (bytes.len() as u64) < size {
            return Err(ImageError::Truncated {
                what: format!("`{name}`"),
                at: "its data".to_owned(),
            });
        }
        Ok(bytes)
    }
}

/// A part of a file, read at offsets so that several parts of one file can be read.
#[derive(Debug)]
pub(crate) struct Section {
    file: File,
    offset: u64,
    end: u64,
}

impl Section {
    fn new(file: File, offset: u64, size: u64) -> Self {
        Self {
            file,
            offset,
            end: offset + size,
        }
    }

    /// Bytes not read yet.
    pub(crate) fn len(&self) -> u64 {
        self.end - self.offset
    }
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.len())
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        let n = self.file.read_at(&mut buffer[..most], self.offset)?;
        self.offset += n as u64;
        Ok(n)
    }
}

fn index(file: &File, path: &Path) -> Result<HashMap<String, Slot>, ImageError> {
    let what = format!("`{}`", path.display());
    let size = file.metadata().map_err(io("read", path))?.len();
    let mut reader = TarReader::seeking(file, what.clone());
    std::io::Seek::rewind(&mut &*file).map_err(io("read", path))?;
    let mut members = HashMap::new();
    while let Some(member) = reader.next()? {
        let name = clean(&String::from_utf8_lossy(&member.name));
        let link = String::from_utf8_lossy(&member.link).into_owned();
        let slot = match member.kind {
            Kind::File => {
                if member.offset + member.size > size {
                    return Err(ImageError::Truncated {
                        what,
                        at: format!("`{}`", member.shown()),
                    });
                }
                Slot::Data {
                    offset: member.offset,
                    size: member.size,
                }
            }
            Kind::HardLink => Slot::Link(clean(&link)),
            // Old versions of `docker save` write a layer shared by two images once, and symlinks to it.
            Kind::Symlink => {
                let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent);
                Slot::Link(clean(&format!("{parent}/{link}")))
            }
            Kind::Directory | Kind::Char | Kind::Block | Kind::Fifo => continue,
        };
        members.insert(name, slot);
        if members.len() > MAX_MEMBERS {
            return Err(ImageError::Limit {
                what: format!("the number of files in {what}"),
                limit: MAX_MEMBERS as u64,
                unit: "files",
            });
        }
    }
    Ok(members)
}

/// A member's name without `.`, `..` and empty components. Names are only keys here, never paths.
fn clean(name: &str) -> String {
    let mut parts = Vec::new();
    for part in name.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn unpack_whole(
    packed: impl Read,
    path: &Path,
    staging: &Path,
    space: &mut Space,
    tick: &mut Tick<'_>,
) -> Result<File, ImageError> {
    let what = format!("`{}`", path.display());
    let target = staging.join("archive.tar");
    let mut out = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&target)
        .map_err(io("create", &target))?;
    // Without a name nothing is left of it, however the worker ends.
    std::fs::remove_file(&target).map_err(io("remove", &target))?;
    let mut data = compress::decoder(packed).map_err(|e| broken(&what, &e, "its start"))?;
    let mut buffer = vec![0; 128 << 10];
    let mut done = 0;
    loop {
        let n = match data.read(&mut buffer) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(broken(&what, &e, "its compressed data")),
        };
        space.take(n as u64)?;
        done += n as u64;
        tick(done)?;
        out.write_all(&buffer[..n])
            .map_err(|e| space.write_error(e, |e| io("write", &target)(e)))?;
    }
    drop(data);
    Ok(out)
}
