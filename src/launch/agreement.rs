//! The value by which ranks find out whether they feed from the same data in the same order.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// A short value that is equal on all ranks that feed from the same data in the same order: one hash of the dataset's
/// fingerprint and one of the settings that the order depends on.
///
/// Ranks that differ would deliver some samples twice and others never, and no error would say so. The loaders of one
/// host compare it by themselves; across hosts the program does it, by whatever it has: gather the 16 bytes of
/// [`to_bytes`](Agreement::to_bytes) from all ranks, in the order of ranks (`MPI_Allgather`, NCCL's all-gather on a
/// 16-byte buffer, a key per rank in a store), and give them to [`check`](Agreement::check), on every rank.
///
/// ```
/// # fn demo(mine: gpufeed::Agreement) -> gpufeed::Result<()> {
/// # let all_gather = |bytes: [u8; 16]| vec![bytes; 4];
/// let gathered: Vec<[u8; 16]> = all_gather(mine.to_bytes());
/// let all: Vec<_> = gathered.into_iter().map(gpufeed::Agreement::from_bytes).collect();
/// gpufeed::Agreement::check(&all)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Agreement {
    dataset: u64,
    order: u64,
}

impl Agreement {
    /// `order` is every setting that the order of samples depends on, by name, without what differs among ranks.
    pub(crate) fn new(fingerprint: &str, order: &[(&str, String)]) -> Agreement {
        // Each text goes in with its length before it, so that no two lists of settings look the same when joined.
        let hash = |what: &str, texts: &[&str]| {
            let mut hash = Sha256::new();
            for text in [&["gpufeed agreement 1", what], texts].concat() {
                hash.update((text.len() as u64).to_le_bytes());
                hash.update(text);
            }
            let mut first = [0; 8];
            first.copy_from_slice(&hash.finalize()[..8]);
            u64::from_be_bytes(first)
        };
        let settings: Vec<&str> = order.iter().flat_map(|(name, value)| [*name, value.as_str()]).collect();
        Agreement { dataset: hash("dataset", &[fingerprint]), order: hash("order", &settings) }
    }

    /// The value as bytes, the same on any machine.
    pub fn to_bytes(self) -> [u8; 16] {
        ((u128::from(self.dataset) << 64) | u128::from(self.order)).to_be_bytes()
    }

    /// The value that [`to_bytes`](Agreement::to_bytes) gave.
    pub fn from_bytes(bytes: [u8; 16]) -> Agreement {
        let both = u128::from_be_bytes(bytes);
        Agreement { dataset: (both >> 64) as u64, order: both as u64 }
    }

    /// Checks that all ranks agree; `all[i]` is the value of rank `i`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument). It names the ranks that differ from what most ranks
    /// have (from what rank 0 has, if no value is more common), and says whether it is the dataset or the order.
    pub fn check(all: &[Agreement]) -> Result<()> {
        let found: Vec<String> = [
            odd_ones(all, |a| a.dataset, "another dataset (the fingerprint differs)"),
            odd_ones(all, |a| a.order, "another order (seed, shuffle, batch size, world size or start)"),
        ]
        .into_iter()
        .flatten()
        .collect();
        if found.is_empty() {
            return Ok(());
        }
        Err(Error::argument(format!("the ranks do not agree on what they feed: {}", found.join("; "))))
    }
}

/// In words, the ranks whose value is not the most common one; of equally common ones that of the lowest rank counts.
fn odd_ones(all: &[Agreement], value: fn(&Agreement) -> u64, what: &str) -> Option<String> {
    let mut counts: Vec<(u64, u64)> = Vec::new();
    // Hashes are few and almost always one, so a list is searched faster than a map.
    for agreement in all {
        match counts.iter_mut().find(|(known, _)| *known == value(agreement)) {
            Some((_, count)) => *count += 1,
            None => counts.push((value(agreement), 1)),
        }
    }
    let &(common, count) = counts.iter().rev().max_by_key(|(_, count)| *count)?;
    let odd: Vec<usize> =
        all.iter().enumerate().filter(|(_, a)| value(a) != common).map(|(rank, _)| rank).collect();
    if odd.is_empty() {
        return None;
    }
    let feeds = if odd.len() == 1 { "has" } else { "have" };
    let others = if count == 1 { "rank 0".into() } else { format!("the {count} others that agree") };
    Some(format!("{} {feeds} {what} than {others}", ranks_in_words(&odd)))
}

/// `rank 3`, `ranks 1, 4 to 7`; not more than a line of them. `ranks` ascends.
fn ranks_in_words(ranks: &[usize]) -> String {
    const SHOWN: usize = 8;
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let word = |&(first, last): &(usize, usize)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    };
    let shown: Vec<String> = runs.iter().take(SHOWN).map(word).collect();
    let hidden: usize = runs.iter().skip(SHOWN).map(|(first, last)| last - first + 1).sum();
    let more = if hidden > 0 { format!(" and {hidden} more") } else { String::new() };
    format!("rank{} {}{more}", if ranks.len() == 1 { "" } else { "s" }, shown.join(", "))
}

impl fmt::Display for Agreement {
    /// 32 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.dataset, self.order)
    }
}

impl FromStr for Agreement {
    type Err = Error;

    /// Reads 32 hexadecimal digits.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument) for anything else.
    fn from_str(text: &str) -> Result<Agreement> {
        Some(text)
            .filter(|text| text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit()))
            .and_then(|text| u128::from_str_radix(text, 16).ok())
            .map(|both| Agreement::from_bytes(both.to_be_bytes()))
            .ok_or_else(|| Error::argument(format!("{text:?} is not 32 hexadecimal digits")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn of(fingerprint: &str, seed: u64) -> Agreement {
        Agreement::new(fingerprint, &[("seed", seed.to_string()), ("shuffle", "full".into())])
    }

    #[test]
    fn equal_settings_are_one_value_and_any_other_setting_is_another() {
        assert_eq!(of("f", 7), of("f", 7));
        assert_ne!(of("f", 7).order, of("f", 8).order);
        assert_eq!(of("f", 7).dataset, of("f", 8).dataset);
        assert_ne!(of("f", 7).dataset, of("g", 7).dataset);
        assert_eq!(of("f", 7).order, of("g", 7).order);
        // Joined without their lengths these would be the same text.
        let pair = |a: &str, b: &str| Agreement::new("f", &[("a", a.into()), ("b", b.into())]);
        assert_ne!(pair("1b2", ""), pair("1", "2"));
        assert_ne!(Agreement::new("f", &[]), Agreement::new("f", &[("", String::new())]));
    }

    #[test]
    fn the_value_is_the_same_in_every_version() {
        assert_eq!(of("f", 7).to_string(), "578d85ef098285817656125c58f37fc4");
    }

    #[test]
    fn text_and_bytes_are_read_as_written() {
        let value = of("f", 7);
        assert_eq!(value.to_string().len(), 32);
        assert_eq!(value.to_string().parse::<Agreement>().unwrap(), value);
        assert_eq!(Agreement::from_bytes(value.to_bytes()), value);
        let small = Agreement { dataset: 0, order: 1 };
        assert_eq!(small.to_string(), format!("{}1", "0".repeat(31)));
        assert_eq!(small.to_bytes()[15], 1);
        for text in ["", "7", "+0000000000000000000000000000001", &"g".repeat(32), &"0".repeat(33), "äöü"]
        {
            assert_eq!(text.parse::<Agreement>().unwrap_err().kind(), ErrorKind::InvalidArgument);
        }
    }

    #[test]
    fn ranks_that_agree_pass() {
        Agreement::check(&[]).unwrap();
        Agreement::check(&[of("f", 7); 5]).unwrap();
    }

    #[test]
    fn the_rank_that_differs_is_named_with_what_differs() {
        let mut all = [of("f", 7); 4];
        all[2] = of("f", 8);
        let error = Agreement::check(&all).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert_eq!(
            error.to_string(),
            "the ranks do not agree on what they feed: rank 2 has another order (seed, shuffle, batch size, world \
             size or start) than the 3 others that agree"
        );
        // Rank 0 itself can be the odd one.
        all[2] = of("f", 7);
        all[0] = of("g", 8);
        let error = Agreement::check(&all).unwrap_err().to_string();
        assert!(error.contains("rank 0 has another dataset (the fingerprint differs) than the 3"), "{error}");
        assert!(error.contains("; rank 0 has another order"), "{error}");
    }

    #[test]
    fn without_a_majority_rank_0_is_what_the_others_are_held_to() {
        let error = Agreement::check(&[of("f", 1), of("f", 2)]).unwrap_err().to_string();
        assert!(error.contains("rank 1 has another order") && error.ends_with("than rank 0"), "{error}");
        let error =
            Agreement::check(&[of("f", 1), of("f", 2), of("f", 1), of("f", 2)]).unwrap_err().to_string();
        assert!(error.contains("ranks 1, 3 have"), "{error}");
    }

    #[test]
    fn many_ranks_fit_on_a_line() {
        assert_eq!(ranks_in_words(&[3]), "rank 3");
        assert_eq!(ranks_in_words(&[1, 2, 4, 5, 6, 9]), "ranks 1, 2, 4 to 6, 9");
        let even: Vec<usize> = (0..1000).step_by(2).collect();
        assert_eq!(ranks_in_words(&even), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 492 more");
    }
}
