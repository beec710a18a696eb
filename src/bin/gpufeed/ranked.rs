//! Paths of files that every rank of a job writes: launchers give all ranks one command line, and so one path.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What stands for the rank.
const MARK: &[u8] = b"{rank}";

/// Whether the path is another one for each rank.
pub(crate) fn names_rank(path: &Path) -> bool {
    path.as_os_str().as_bytes().windows(MARK.len()).any(|bytes| bytes == MARK)
}

/// The path of this rank: with its number wherever `{rank}` is.
pub(crate) fn path_of(path: &Path, rank: u32) -> PathBuf {
    let mut rest = path.as_os_str().as_bytes();
    let mut whole = Vec::with_capacity(rest.len());
    while let [first, others @ ..] = rest {
        rest = match rest.strip_prefix(MARK) {
            Some(behind) => {
                whole.extend(rank.to_string().into_bytes());
                behind
            }
            None => {
                whole.push(*first);
                others
            }
        };
    }
    OsString::from_vec(whole).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rank_comes_wherever_a_path_says_so() {
        for (path, of_rank_12) in [
            ("order.{rank}", "order.12"),
            ("{rank}", "12"),
            ("/out/{rank}/order-{rank}.txt", "/out/12/order-12.txt"),
            ("{{rank}}", "{12}"),
            ("{rank{rank}", "{rank12"),
            ("dir/{rank}é", "dir/12é"),
        ] {
            assert!(names_rank(Path::new(path)), "{path}");
            assert_eq!(path_of(Path::new(path), 12), Path::new(of_rank_12));
        }
        for path in ["", "order", "{Rank}", "{rank", "rank}", "{ rank }"] {
            assert!(!names_rank(Path::new(path)), "{path}");
            assert_eq!(path_of(Path::new(path), 12), Path::new(path));
        }
        // A name need not be UTF-8.
        let path = PathBuf::from(OsString::from_vec(b"\xff{rank}\xfe".to_vec()));
        assert_eq!(path_of(&path, 0).as_os_str().as_bytes(), b"\xff0\xfe");
    }
}
