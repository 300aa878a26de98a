//! Bytes that were changed: what parsers and decoders meet in broken and in hostile files.
//!
//! A change is three numbers, so that any generator can make one and a shrinking one can make it smaller.

/// One change: what is done, where (counted round), and with which byte or length.
pub type Change = (u8, usize, u8);

/// The bytes after all changes, one after the other.
pub fn damaged(bytes: &[u8], changes: &[Change]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for &(kind, at, with) in changes {
        let length = out.len();
        if length == 0 {
            break;
        }
        let at = at % length;
        let end = (at + 1 + usize::from(with) / 8).min(length);
        match kind % 6 {
            0 => out[at] = with,
            1 => out[at] ^= 1 << (with % 8),
            2 => out[at] = out[at].wrapping_add(with),
            3 => out.truncate(at),
            4 => {
                let part = out[at..end].to_vec();
                out.splice(at..at, part);
            }
            _ => {
                out.drain(at..end);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_change() {
        let of = |kind, at, with| damaged(b"abcd", &[(kind, at, with)]);
        assert_eq!(of(0, 5, b'x'), b"axcd");
        assert_eq!(of(1, 0, 0), b"`bcd");
        assert_eq!(of(2, 0, 1), b"bbcd");
        assert_eq!(of(3, 2, 0), b"ab");
        assert_eq!(of(4, 1, 8), b"abcbcd");
        assert_eq!(of(5, 2, 255), b"ab");
        assert_eq!(damaged(b"", &[(0, 0, 0)]), b"");
    }
}
