//! The version of a cuFile library, as `cuFileGetVersion` encodes it.

use std::fmt;

/// A cuFile version as the library gives it: 1000 for each major and 10 for each minor version, so that 1.14
/// is
/// 1140. It is not the CUDA version: CUDA 12.9 came with cuFile 1.14, CUDA 13.0 with 1.15.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Version(pub i32);

impl Version {
    /// The version `major.minor`.
    pub const fn new(major: i32, minor: i32) -> Self {
        Self(major * 1000 + minor * 10)
    }

    /// The 1 of 1.14.
    pub const fn major(self) -> i32 {
        self.0 / 1000
    }

    /// The 14 of 1.14.
    pub const fn minor(self) -> i32 {
        self.0 % 1000 / 10
    }

    /// Reads `"1.14"`, for the tables of this crate: a text of another form does not compile there.
    pub(crate) const fn literal(text: &str) -> Self {
        let bytes = text.as_bytes();
        let (mut major, mut minor, mut after_dot, mut at) = (0, 0, false, 0);
        while at < bytes.len() {
            match bytes[at] {
                b'.' if !after_dot => after_dot = true,
                digit @ b'0'..=b'9' if after_dot => minor = minor * 10 + (digit - b'0') as i32,
                digit @ b'0'..=b'9' => major = major * 10 + (digit - b'0') as i32,
                _ => panic!("a version is written major.minor"),
            }
            at += 1;
        }
        assert!(after_dot && major > 0 && minor < 100, "a version is written major.minor");
        Self::new(major, minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_shown_and_ordered() {
        assert_eq!(Version::literal("1.14"), Version(1140));
        assert_eq!(Version(1200).to_string(), "1.20");
        assert_eq!(Version(1191).to_string(), "1.19");
        assert!(Version::new(1, 9) < Version::new(1, 10));
        assert!(Version::new(1, 20) < Version::new(2, 0));
    }
}
